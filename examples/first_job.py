"""The smallest job: a function that adds, and says where it did. Run it with: python examples/first_job.py."""

import os

import kinetic


@kinetic.run(accelerator="cpu")
def add(a, b):
    where = os.environ.get("KINETIC_JOB_ID", "this process")
    print(f"adding {a} and {b} in {where}")
    return a + b


if __name__ == "__main__":
    print("the job says", add(2, 3))
    print("without a job:", add.local(2, 3))
