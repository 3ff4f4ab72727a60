"""The smallest job: a function that adds, and says where it did. Needs nothing but kinetic.

    python examples/first_job.py
"""

import kinetic


@kinetic.run(accelerator="cpu")
def add(a, b):
    import os

    print(f"adding {a} and {b} in the job {os.environ['KINETIC_JOB_ID']}")
    return a + b


if __name__ == "__main__":
    print("the job says", add(2, 3))
    print("without a job:", add.local(2, 3))
