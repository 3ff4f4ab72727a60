"""Train with JAX and Orbax, lose the machine in the middle, and resume: the second call begins where the first stopped.

    pip install orbax-checkpoint
    python examples/resume_orbax.py

What makes it work: both calls name the same output directory, so both see the same checkpoints.
"""

import os
import signal
import sys
import tempfile

import kinetic

EVERY = 10  # steps between checkpoints: what a lost machine costs at most


@kinetic.run(accelerator="cpu")
def train(steps, lost_at=None):
    """Train to the given number of steps in total, and say at which one this call began."""
    import jax
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    inputs = jax.random.normal(jax.random.key(0), (128, 4))
    targets = inputs @ jnp.array([1.0, -2.0, 3.0, 0.5])

    @jax.jit
    def update(state):
        slope = jax.grad(lambda weights: jnp.mean((inputs @ weights - targets) ** 2))(state["weights"])
        return {"weights": state["weights"] - 0.05 * slope, "step": state["step"] + 1}

    state = {"weights": jnp.zeros(4), "step": jnp.array(0)}
    options = ocp.CheckpointManagerOptions(save_interval_steps=EVERY, max_to_keep=2)
    with ocp.CheckpointManager(kinetic.checkpoint_dir(), options=options) as checkpoints:
        latest = checkpoints.latest_step()  # None where nothing was saved; what was cut off while saving does not count
        if latest is not None:
            state = checkpoints.restore(latest, args=ocp.args.StandardRestore(state))
        begun = int(state["step"])

        for step in range(begun + 1, steps + 1):
            state = update(state)
            checkpoints.save(step, args=ocp.args.StandardSave(state))  # writes while the training continues
            if step == lost_at:
                checkpoints.wait_until_finished()
                os.kill(os.getpid(), signal.SIGKILL)  # the loss of its machine would look like this
    return {
        "begun": begun,
        "ended": int(state["step"]),
        "weights": [round(float(each), 2) for each in state["weights"]],
    }


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="resume-orbax-")
    mine = train.with_options(output_dir=folder)
    try:
        mine(100, lost_at=57)
    except kinetic.errors.JobError as error:
        print(f"the first call: {error.what}")
    print(f"the second call: {mine(100)}")
    print(f"checkpoints: {folder}/checkpoints")


if __name__ == "__main__":
    main()
