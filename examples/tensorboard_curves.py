"""Write curves for TensorBoard into the output folders of a sweep, one folder for each input.

pip install tensorboardX
python examples/tensorboard_curves.py
tensorboard --logdir FOLDER
"""

import os
import sys
import tempfile

import kinetic


@kinetic.run(accelerator="cpu")
def train(rate):
    """Write a loss for each step; TensorBoard reads the files while the job runs."""
    from tensorboardX import SummaryWriter

    loss = 1.0
    with SummaryWriter(kinetic.output_dir()) as writer:
        for step in range(20):
            loss *= 1 - rate
            writer.add_scalar("loss", loss, step)
    return round(loss, 4)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="curves-")
    batch = train.with_options(output_dir=folder).run_async_map([0.05, 0.1, 0.2])
    print("losses:", batch.results())
    curves = [name for _, _, names in os.walk(folder) for name in names if name.startswith("events.")]
    print(f"{len(curves)} curves: tensorboard --logdir {folder}")


if __name__ == "__main__":
    main()
