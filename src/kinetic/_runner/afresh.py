"""A worker in an interpreter of its own, where a fork would be broken: its keeper has used obstore, which has threads.

A fork keeps one thread of its parent, and whatever needs the others waits for ever. So the forked process becomes a
fresh interpreter, with the same flags, at the cost of a start: some 50 ms, and only for jobs with a store in the cloud.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from kinetic._runner.work import Work

SCRIPT = "worker.py"  # beside keeper.py, in the folder of the runner
_THREADED = "obstore"
_PATHS = ("folder", "log", "body", "meta", "data", "data_cache")


def is_needed() -> bool:
    """Say whether this process has loaded what a forked child could not use."""
    return _THREADED in sys.modules


def become(task: Work, report: int) -> NoReturn:
    """Turn this process into a fresh interpreter that carries out the task; never returns."""
    import tempfile  # 4 ms, which no keeper's start should cost

    page = os.fsencode(json.dumps(to_json(task)))
    with tempfile.TemporaryFile() as file:  # without a name: the environment of the job is in it
        file.write(page)
        file.flush()
        file.seek(0)
        for descriptor in (file.fileno(), report):
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - Python's own signature
        words = [sys.executable, *_flags(), str(Path(task.runner) / SCRIPT), str(file.fileno()), str(report)]
        environ = task.environment if task.own_interpreter else os.environ
        os.execve(words[0], words, environ)  # noqa: S606 - no shell is the point


def main(words: list[str]) -> NoReturn:
    """Be a worker: ``TASK REPORT``, two descriptors."""
    from kinetic._runner import keeping, processes, working

    descriptor, report = (int(word) for word in words)
    with os.fdopen(descriptor, "rb") as file:
        task = from_json(json.loads(file.read()))
    os.set_inheritable(report, False)  # noqa: FBT003
    processes.Title(keeping.use_linux()).set(task.job_id, f"worker {task.folder}")  # the one before went with exec
    working.work(task, report)


def to_json(task: Work) -> dict[str, Any]:
    """Return a task as plain JSON values."""
    fields = {name: getattr(task, name) for name in Work.__dataclass_fields__}
    plain = {name: os.fspath(fields[name]) for name in _PATHS}
    names = ("environment", "child", "requirements")
    maps = {name: None if fields[name] is None else dict(fields[name]) for name in names}
    return {**fields, **plain, **maps}


def from_json(page: dict[str, Any]) -> Work:
    """Rebuild a task."""
    return Work(**{**page, **{name: Path(page[name]) for name in _PATHS}})


def _flags() -> list[str]:
    """Return the flags that this interpreter was started with: what stands before the script."""
    words = sys.orig_argv[1:]
    return words[: words.index(sys.argv[0])] if sys.argv[0] in words else []
