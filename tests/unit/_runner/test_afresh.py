"""A worker in an interpreter of its own: the task arrives whole, and only where a fork would be broken."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from kinetic._runner import afresh
from kinetic._runner.work import Work


def task(**more: object) -> Work:
    given = {
        "job_id": "cpu-train-1", "attempt": 2, "host": 1, "order_sha256": "ab", "store_url": "s3://jobs",
        "environment": {"A": "1", "Ü": "☃"}, "umask": 0o22, "folder": Path("/w"), "log": Path("/l"), "body": Path("/b"),
        "meta": Path("/m"), "deadline": 1.5, "runner": "/runner", "hosts": 4,
    }  # fmt: skip
    return Work(**{**given, **more})


def test_a_task_arrives_as_it_was_sent():
    for sent in (task(), task(child={"job_id": "x", "data": []}, deadline=None, data=Path("/d"))):
        assert afresh.from_json(json.loads(json.dumps(afresh.to_json(sent)))) == sent


def test_every_field_of_a_task_travels():
    assert set(afresh.to_json(task())) == {field.name for field in fields(Work)}


def test_a_fork_will_do_until_something_with_threads_is_loaded():
    code = "from kinetic._runner import afresh; print(afresh.is_needed()); import obstore; print(afresh.is_needed())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]
