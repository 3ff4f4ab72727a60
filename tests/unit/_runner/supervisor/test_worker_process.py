"""A worker in an interpreter of its own: the task arrives whole, and only where a fork would be broken."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from kinetic._runner.supervisor import worker_process
from kinetic._wire.task import PodSettings, Task

TASK = Task("cpu-train-1", "ab" * 32, "s3://jobs", "k", 0o22, 1.5, {"A": "1", "Ü": "☃"}, hosts=4, attempt=2, host=1)


def test_a_task_arrives_as_it_was_sent():
    for sent in (TASK, replace(TASK, child={"job_id": "x", "data": []}, deadline=None, pod=PodSettings(holds=True))):
        assert worker_process.task_from(worker_process.task_bytes(sent)) == sent


def test_values_of_variables_that_are_not_utf_8_arrive_as_they_were():
    sent = replace(TASK, environment={"FILE": "/data/\udce9"})

    assert worker_process.task_from(worker_process.task_bytes(sent)) == sent


def test_a_fork_will_do_until_a_store_in_the_cloud_was_used():
    code = """
import os
from kinetic import _stores
from kinetic._runner.supervisor import worker_process
from kinetic._stores.parallel import Retry
from kinetic.errors import KineticError

_stores.preload("gs://bucket")
store = _stores.bucket.BucketStore("gs://bucket", retry=Retry(attempts=1))
print(worker_process.needs_own_interpreter(), len(os.listdir("/proc/self/task")))
try:
    store.size("key")
except KineticError:
    print(worker_process.needs_own_interpreter(), len(os.listdir("/proc/self/task")) > 1)
"""
    environ = {**os.environ, "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}  # where nothing listens
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)

    assert done.stdout.splitlines() == ["False 1", "True True"]
