"""The examples of docs/api.md, by the name that each one shows. generate_api.py puts them below the docstring.

They are whole scripts, and tests/flows/test_docs_snippets.py runs them in this order, in one folder.
"""

from __future__ import annotations

EXAMPLES: dict[str, str] = {
    "kinetic.run": """\
# train.py
import kinetic


@kinetic.run(accelerator="cpu", deadline="10m", retries=1)
def train(rate, steps=3):
    loss = 1.0
    for _ in range(steps):
        loss *= 1 - rate
    return round(loss, 3)


if __name__ == "__main__":
    print(train(0.1))  # runs as a job, and waits
""",
    "kinetic.run_command": """\
# command.py
import kinetic

if __name__ == "__main__":
    job = kinetic.run_command(["python", "-c", "print(1 + 1)"], name="sum", deadline="10m")
    print(job.result(), job.command)  # its exit code
""",
    "kinetic.RemoteCallable": """\
# three_ways.py
from train import train

if __name__ == "__main__":
    print(train(0.1))  # as a job; waits
    print(train.run_async(0.1).result())  # as a job; a handle at once
    print(train.local(0.1))  # in this process
    print(train.with_options(accelerator="tpu-v5e-1", deadline=60)(0.1))  # the same function elsewhere
""",
    "kinetic.RemoteCallable.run_async_map": """\
# rates.py
from train import train

if __name__ == "__main__":
    batch = train.run_async_map([0.1, (0.2, 5), {"rate": 0.3}], name="rates", max_concurrent=2)
    print(batch.results())  # in the order of the inputs
""",
    "kinetic.JobHandle": """\
# handle.py
from train import train

if __name__ == "__main__":
    job = train.run_async(0.1)
    job.wait(timeout=60)
    print(job.job_id, job.status().value, job.tail(5))
    try:
        print(job.result(timeout=3600))
    except TimeoutError:
        print("not yet: the job keeps running")
""",
    "kinetic.attach": """\
# attach.py
import kinetic
from train import train

if __name__ == "__main__":
    job_id = train.run_async(0.1).job_id  # keep the id; the rest can be another process, or another day
    print(kinetic.attach(job_id).result())
""",
    "kinetic.list_jobs": """\
# unfinished.py
import kinetic

for job in kinetic.list_jobs():
    if not job.done():
        print(job.job_id, job.func_name)
""",
    "kinetic.BatchHandle": """\
# batch.py
from train import train

if __name__ == "__main__":
    batch = train.run_async_map([0.1, 0.2, 0.3])
    for job in batch.as_completed():
        print(job.group_index, job.result(cleanup=False))
    print(batch.status_counts())
    batch.cleanup()
""",
    "kinetic.attach_batch": """\
# again.py
import kinetic
from train import train

if __name__ == "__main__":
    group_id = train.run_async_map([0.1, 0.2]).group_id
    print(kinetic.attach_batch(group_id, resume=True).results())
""",
    "kinetic.Data": """\
# words.py
import kinetic


@kinetic.run(accelerator="cpu")
def count(path):
    with open(path) as file:  # a plain path inside the job
        return len(file.read().split())


if __name__ == "__main__":
    print(count(kinetic.Data("words.py")))
""",
    "kinetic.output_dir": """\
# keep.py
import os

import kinetic


@kinetic.run(accelerator="cpu")
def keep(text):
    with open(os.path.join(kinetic.output_dir(), "notes.txt"), "w") as file:
        file.write(text)


if __name__ == "__main__":
    job = keep.run_async("kept after the job was removed")
    job.result()
    print(os.listdir(job.output_dir))
""",
}
