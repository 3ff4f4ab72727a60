"""Resume where a killed job stopped, with nothing but the standard library.

    python examples/checkpoint_json.py

The first attempt is killed halfway, as by the loss of its machine. `retries=1` starts a second one, which finds the
checkpoint.
"""

import json
import os
import signal
import tempfile

import kinetic


@kinetic.run(accelerator="cpu", retries=1)
def add_up(upto, killed_at):
    """Add the numbers up to a limit, and save the sum after every tenth."""
    path = os.path.join(kinetic.checkpoint_dir(), "state.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    state = {"number": 0, "sum": 0}
    if os.path.exists(path):
        with open(path) as file:
            state = json.load(file)
    begun = state["number"]

    for number in range(begun + 1, upto + 1):
        state = {"number": number, "sum": state["sum"] + number}
        if number % 10 == 0:
            with open(f"{path}.part", "w") as file:
                json.dump(state, file)
            os.replace(f"{path}.part", path)  # the old checkpoint or the new one, never half of one
        if number == killed_at and os.environ["KINETIC_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    return {"attempt": int(os.environ["KINETIC_ATTEMPT"]), "begun": begun, "sum": state["sum"]}


def main():
    mine = add_up.with_options(output_dir=tempfile.mkdtemp(prefix="checkpoint-json-"))
    print(mine(100, killed_at=57))


if __name__ == "__main__":
    main()
