"""Two jobs, one after the other: the first prepares files, the second reads them.

    python examples/two_steps.py

The files stay in the output folder of the first job, so preparing is not repeated when only the training changes.
"""

import os

import kinetic


@kinetic.run(accelerator="cpu")
def prepare(count):
    """Write numbers into the output folder, and return how many."""
    with open(os.path.join(kinetic.output_dir(), "numbers.txt"), "w") as file:
        file.writelines(f"{number}\n" for number in range(count))
    return count


@kinetic.run(accelerator="cpu")
def train(folder, rate):
    """Read what the first job wrote. It gets a path of its own copy."""
    with open(os.path.join(folder, "numbers.txt")) as file:
        return rate * sum(int(line) for line in file)


def main():
    first = prepare.run_async(10)
    print("prepared:", first.result())  # waits
    prepared = kinetic.Data(first.output_dir)
    print("trained:", train.run_async_map([(prepared, 0.5), (prepared, 1.0)]).results())


if __name__ == "__main__":
    main()
