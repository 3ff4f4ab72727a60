"""A worker in an interpreter of its own, where a fork would be broken: its keeper has used obstore, which has threads.

A fork keeps one thread of its parent, and whatever needs the others waits for ever. So the forked process becomes a
fresh interpreter, with the same flags, at the cost of a start: some 50 ms, and only for jobs with a store in the cloud.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, NoReturn

from kinetic._wire import fields
from kinetic._wire.task import READERS, Task

SCRIPT = "worker.py"  # beside keeper.py, in the folder of the runner
_THREADED = "obstore"


def is_needed() -> bool:
    """Say whether this process has loaded what a forked child could not use."""
    return _THREADED in sys.modules


def become(task: Task, report: int) -> NoReturn:
    """Turn this process into a fresh interpreter that carries out the task; never returns."""
    import tempfile  # 4 ms, which no keeper's start should cost

    with tempfile.TemporaryFile() as file:  # without a name: the environment of the job is in it
        send(task, file)
        for descriptor in (file.fileno(), report):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - Python's own signature
        words = [sys.executable, *_flags(), str(Path(task.runner) / SCRIPT), str(file.fileno()), str(report)]
        environ = task.environment if task.own_interpreter else os.environ
        os.execve(words[0], words, environ)  # noqa: S606 - no shell is the point


def send(task: Task, file: IO[bytes]) -> None:
    """Write a task into a file, to be read from its beginning: in ASCII, for not all variables are UTF-8."""
    file.write(json.dumps(task.to_json()).encode("ascii"))
    file.flush()
    file.seek(0)


def receive(file: IO[bytes]) -> Task:
    """Read a task.

    Raises:
        IntegrityError: It is none.
    """
    return fields.build(Task, READERS, json.loads(file.read()), "the task of this worker")


def _flags() -> list[str]:
    """Return the flags that this interpreter was started with: what stands before the script."""
    words = sys.orig_argv[1:]
    return words[: words.index(sys.argv[0])] if sys.argv[0] in words else []
