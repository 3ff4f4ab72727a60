"""Train with Keras, lose the machine in the middle, and resume: the second call begins where the first one stopped.

    python examples/resume_keras.py

What makes it work: both calls name the same output directory, so both see the same checkpoints.
"""

import sys
import tempfile

import kinetic


@kinetic.run(accelerator="cpu")
def train(epochs, lost_after=None):
    """Train to the given number of epochs in total, and say which of them this call trained."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    pictures = np.random.default_rng(0).random((256, 8), dtype="float32")
    labels = (pictures.sum(axis=1) > 4).astype("float32")
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))

    # Saves weights, optimizer and the number of the epoch after each epoch, and loads them when there are any. The
    # double one is what remains where the machine is lost while the file is being written.
    checkpoints = keras.callbacks.BackupAndRestore(
        kinetic.checkpoint_dir(), double_checkpoint=True, delete_checkpoint=False
    )
    history = model.fit(
        pictures, labels, epochs=epochs, verbose=2, callbacks=[checkpoints, *_losing_the_machine(lost_after)]
    )
    return {"epochs": history.epoch, "updates": int(model.optimizer.iterations)}


def _losing_the_machine(after):
    """Return what ends the process without a word when some epochs are done, as the loss of its machine would."""
    import os

    import keras

    def end(epoch, _logs):
        if epoch == after:
            os._exit(9)

    return [keras.callbacks.LambdaCallback(on_epoch_begin=end)] if after is not None else []


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="resume-keras-")
    mine = train.with_options(output_dir=folder)
    try:
        mine(6, lost_after=3)
    except kinetic.errors.JobError as error:
        print(f"the first call: {error.what}")
    print(f"the second call: {mine(6)}")
    print(f"checkpoints: {folder}/checkpoints")


if __name__ == "__main__":
    main()
