"""Burying: whoever takes a dead keeper's lock ends its processes and says what became of its job.

It is safe to die in the middle of this: the lock falls free again, and the next one does the same once more.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic._backends.local import launching, life
from kinetic._backends.local.paths import Paths
from kinetic._backends.local.queue import Keeper, Queue, Row
from kinetic._runner import judging, sealing
from kinetic._runner.work import Work
from kinetic._stores import open_store
from kinetic._wire import keys

MARK = "KINETIC_KEEPER"  # in the environment of a keeper and of everything below it
_STARTING_SECONDS = 5.0  # a keeper is there in 0.1 s; a second one too many does no harm
_REQUEUES = 2  # a job that ends its keeper before it begins, three times, is the reason
_one_at_a_time = threading.Lock()  # POSIX locks do not tell threads of one process apart


def bury_the_dead(paths: Paths, queue: Queue) -> None:
    """Look at every keeper's life, and bury those that lost it."""
    known = queue.keepers()
    names = {keeper.keeper for keeper in known}
    orphans = {row.keeper for row in queue.look("state IN ('claimed', 'running')")} - names - {None}
    own = os.environ.get(MARK, "")
    for keeper in [*known, *(Keeper(str(name), "", "busy", 0, 0.0) for name in sorted(map(str, orphans)))]:
        if keeper.keeper == own and keeper.pid == os.getpid():
            continue
        with _one_at_a_time:
            _look_at(paths, queue, keeper)


def _look_at(paths: Paths, queue: Queue, keeper: Keeper) -> None:
    lock = paths.lock(keeper.keeper)
    young = keeper.state == "starting" and time.time() - keeper.since < _STARTING_SECONDS
    if young:
        return
    if not lock.exists():
        _settle_all(paths, queue, keeper)
        return
    held = life.take_from_the_dead(lock)
    if held is None:
        return
    try:
        _settle_all(paths, queue, keeper)
    finally:
        held.release(remove=True)


def _settle_all(paths: Paths, queue: Queue, keeper: Keeper) -> None:
    end_marked(keeper.keeper)
    for row in queue.look("keeper = ? AND state IN ('claimed', 'running')", (keeper.keeper,)):
        if row.state == "claimed" and row.requeues < _REQUEUES:
            queue.requeue(row.job_id)
        else:
            settle(paths, queue, row)
    with queue.change() as db:
        db.execute("DELETE FROM keepers WHERE keeper = ?", (keeper.keeper,))
    for path in (paths.wake(keeper.keeper), paths.keeper_log(keeper.keeper)):
        path.unlink(missing_ok=True)


def settle(paths: Paths, queue: Queue, row: Row) -> None:
    """Give the job of a dead keeper its verdict: the result if it was complete, otherwise that it was lost."""
    page = launching.read(paths, row.job_id)
    if page is None:
        queue.forget(row.job_id)
        return
    store = open_store(page.store_url)
    if store.size(keys.result(row.job_id)) is None:
        task = launching.work_of(paths, page, row.attempt, runner="", more={})
        ending = judging.Ending(status=None, phase="execute", word=_last_word(task))
        verdict = judging.judge(task, ending, started=row.started or row.submitted, ended=time.time())
        verdict = replace(verdict, witness="observer", key_id=page.key_id)
        sealing.seal(store, verdict, launching.key_of(paths, row.job_id), body=task.body, spare=task.reserve)
        for path in (task.body, task.meta, task.reserve):
            path.unlink(missing_ok=True)
        ship_log(store, task)
        queue.end(row.job_id, verdict.status)
    else:
        queue.end(row.job_id, "ended")


def ship_log(store: Any, task: Work) -> None:
    """Make a finished log durable: by a rename where the store is on the same disk."""
    with contextlib.suppress(OSError):
        if task.log.stat().st_size == 0:
            return
        key = keys.log_segment(task.job_id, task.attempt, task.host, 0)
        adopt = getattr(store, "adopt", None)
        if adopt is not None:
            adopt(key, task.log)
        else:
            store.put(key, task.log)


def _last_word(task: Work) -> dict[str, Any] | None:
    try:
        word = json.loads(task.meta.read_text())
    except (OSError, ValueError):
        return None
    return word if isinstance(word, dict) else None


def end_marked(keeper: str) -> None:
    """Kill every process below a keeper that is gone, found by the mark in its environment, never by a number alone."""
    for _ in range(5):  # what forks while we look is found on the next round
        found = [pid for pid in _marked(keeper) if pid != os.getpid()]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)  # they need a moment to be gone


def _marked(keeper: str) -> list[int]:
    wanted = f"{MARK}={keeper}".encode()
    if not Path("/proc/self/environ").exists():
        return _marked_by_ps(wanted)
    found = []
    for name in os.listdir("/proc"):  # names are all we need
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0") and _alive(name):
                    found.append(int(name))
    return found


def _alive(pid: str) -> bool:
    """Say whether a process is more than a zombie."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return bool(state) and state[0] not in {"Z", "X"}


def _marked_by_ps(wanted: bytes) -> list[int]:
    import subprocess  # macOS: ps shows the environment of one's own processes

    listing = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, check=False).stdout  # noqa: S607
    return [int(line.split(None, 1)[0]) for line in listing.splitlines() if wanted in line.split()]
