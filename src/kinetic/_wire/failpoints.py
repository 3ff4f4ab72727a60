"""Named steps of a job, so that the kill suite can end a process exactly there, or a little later.

For tests only. ``KINETIC_TEST_KILL=NAME+SECONDS@MARK`` ends the first process that reaches the step NAME with SIGKILL:
at once, or SECONDS later if that is given. The file MARK is created first, so that of all processes one dies, once.
Without the variable, as always outside of the suite, a step is a call of a built-in that does nothing: 30 ns.
"""

from __future__ import annotations

import os
from collections.abc import Callable

VARIABLE = "KINETIC_TEST_KILL"

# In the order in which one job reaches them. The suite takes its points from here; one that is not reached fails it.
CLIENT = (
    "client:begun",  # the job's folder is there and locked: from now on the job is being submitted
    "client:data-sent",  # blobs and manifest are in the store
    "client:packed",
    "client:record-written",  # the job can be found
    "client:launch-written",
    "client:queued",  # the job will run, whatever happens to us
    "client:launched",
    "client:collected",  # the value is in memory
    "client:log-kept",  # its log is in the history, which does not name it yet
    "client:history-written",  # the job counts as removed
    "client:row-forgotten",
    "client:folder-removed",
    "client:artifacts-deleted",
)
# Of a job that a warm pod carries out, beside those above; in the order for a new pod, then for one that is there.
WARM = (
    "client:warm-job-created",  # suspended
    "client:warm-secret-created",
    "client:job-created",  # that of the task, suspended
    "client:secret-created",  # now the task can be started in a pod of its own
    "client:task-held",  # the pod gets ready for it
    "client:task-assigned",  # the pod's number stands for this job
    "client:task-told",
    "client:placed-cold",  # the job is one of a pod of its own, which is not started yet
    "pod:ends",  # idle for its time, or at its maximum
)
SLICE = (  # of a warm slice, on its first host
    "leader:took",  # the job is the slice's
    "leader:hands-over",  # it has begun with a task, and other hosts have not heard of it
)
CANCELLER = (
    "canceller:sealed",  # the job counts as cancelled
    "canceller:stopped",
    "canceller:history-written",
)
SUPERVISOR = (
    "supervisor:alive",  # it holds its process lock
    "supervisor:registered",
    "supervisor:claimed",
    "supervisor:attempt-noted",
    "supervisor:marked-running",
    "supervisor:forked",
    "supervisor:worker-ended",
    "supervisor:judged",
    "supervisor:page-appended",  # the value and its page are one file, which is not yet the result
    "supervisor:sealed",
    "supervisor:told",
    "supervisor:log-shipped",
    "supervisor:cleared",
    "supervisor:ended",
)
WORKER = (
    "worker:begun",
    "worker:verified",
    "worker:unpacked",
    "worker:data-ready",  # what the job reads is at its path
    "worker:unpickled",
    "worker:calling",  # the mark that the function began is on the disk
    "worker:called",
    "worker:body-written",
    "worker:meta-written",  # the value will be delivered, whatever happens to us
    "worker:told",
    "worker:leaving",
)
OBSERVER = (
    "observer:locked",  # it holds the dead supervisor's lock
    "observer:ended-processes",
    "observer:judged",
    "observer:sealed",
    "observer:settled",
)
# Of jobs that follow others, besides these.
FOLLOWER = (
    "client:follows",  # who collects the predecessor keeps its value
    "follower:found",  # what it waits for may have ended
    "follower:noted",  # a predecessor has succeeded; after the last one, the job is queued
    "follower:sealed",  # it is closed, because a predecessor did not succeed
)
SINGLE = CLIENT + CANCELLER + SUPERVISOR + WORKER + OBSERVER
BATCH = (
    "driver:inputs-written",
    "driver:manifest-written",  # the batch can be found and taken over
    "driver:leased",
    "driver:child-written",  # the child counts as submitted
    "driver:record-written",
    "driver:launched",
    "driver:saw-an-end",
    "driver:attempt-closed",  # a failed attempt can no longer succeed
    "driver:stopped-the-rest",  # fail-fast: nothing more is launched
    "driver:released",
    "supervisor:unmarked",  # a child's Outcome is there, and no listing shows it
    "client:children-marked",  # collected children count as removed
)
COMPILED = (  # of a job that compiles
    "worker:program-sent",  # its bytes are in the store, which no entry names
    "worker:program-listed",  # the next job finds it
)
KEPT = (  # of a task of a warm pod with other packages
    "worker:packages-made",  # nothing says yet that they are complete
    "supervisor:gave-back",  # they cannot be had there: the job is one of a pod of its own, which nothing has started
)
ALL = SINGLE + FOLLOWER + BATCH + COMPILED + WARM + SLICE + KEPT


def _armed(name: str) -> None:
    """Die here, if this is the step and no process died here before."""
    assert name in ALL, f"{name} is missing in the table of steps"  # noqa: S101 - in tests only
    if name != _WHERE:
        return
    try:
        os.close(os.open(_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    if not _LATER:
        _die(0.0)
    import threading

    threading.Thread(target=_die, args=(float(_LATER),), daemon=True).start()


def _die(seconds: float) -> None:
    import signal
    import time

    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)  # the first process of a container, which the kernel does not let kill itself


_AT, _, _MARK = os.environ.get(VARIABLE, "").partition("@")
_WHERE, _, _LATER = _AT.partition("+")
step: Callable[[str], object] = _armed if _WHERE else bool
