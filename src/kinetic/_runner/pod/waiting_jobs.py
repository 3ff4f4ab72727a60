"""The jobs that wait for the one of this pod: once its outcome is in the store, they are started, or closed.

A job that is submitted to follow another one writes its key below that one first, and then reads its outcome; here the
outcome is written first, and then the keys are listed. So at least one of the two sees the other. What is done here may
be done by others at the same time: an outcome is created once, and a job that runs is not started again. What others
wrote below our key is not believed: nothing but suspended jobs that say themselves that they wait is touched, and what
starts verifies its predecessors again.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kinetic._runner.pod import cluster_api
from kinetic._runner.pod.cluster_api import ACCOUNT_FOLDER, Answer
from kinetic._runner.pod.log_pump import say
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.outcomes import SUCCEEDED
from kinetic._wire.task import AttemptFiles, Task
from kinetic.errors import IntegrityError, KeyMissingError, KineticError, RunnerError

AFTER, JOB_ID, QUEUE = "kinetic/after", "kinetic/job-id", "kinetic/queue"  # annotations; see job_manifests
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GROUP, WARM = "kinetic/group", "kinetic/warm"  # labels
_NAME = re.compile(r"kinetic-[a-z0-9-]{1,62}")
_KINDS = ("apis/batch/v1", "jobs"), ("apis/jobset.x-k8s.io/v1alpha2", "jobsets")
_MOST_OF_COMPILING = 0.9  # of the seconds that it took the last time
_MOST_BYTES = 1 << 22  # of what a follower says about itself
CHANGE_TO_COLD: dict[str, Any] = {"metadata": {"labels": {WARM: None}}, "spec": {"suspend": False}}  # of a task


def settle(
    store: Store,
    job_id: str,
    group: str,
    *,
    succeeded: bool,
    environ: Mapping[str, str] = os.environ,
    folder: Path = ACCOUNT_FOLDER,
) -> Iterator[str]:
    """Start or close what waits for a job, or for its batch; yield a sentence for each, for the log of the runner."""
    ended = [(job_id, group or job_id)]  # with those that are closed here: a chain may be longer than Python's stack
    while ended:
        job_id, owner = ended.pop()
        prefix, entries = keys.followers(owner), list[Entry]()
        with contextlib.suppress(KineticError):  # as below
            entries += store.entries(prefix)
        for entry in entries:
            name = entry.key.removeprefix(prefix)
            with contextlib.suppress(KineticError, ValueError, TypeError, LookupError):  # of others: on to the next
                page = documents.read(documents.fetch(store, entry.key, _MOST_BYTES, entry.key), entry.key)
                after = [str(each) for each in page.get("after") or ()]
                if succeeded and all(each == job_id or _has_succeeded(store, each, page) for each in after):
                    yield from _start(name, page, environ, folder)
                elif not succeeded and job_id in after and keys.is_job_id(name):
                    for words in _close(store, name, page, job_id, environ, folder):
                        ended.append((name, name))
                        yield words


def _has_succeeded(store: Store, name: str, page: Mapping[str, Any]) -> bool:
    """Return whether a predecessor seems to have succeeded; the job that starts verifies it."""
    if keys.is_group_id(name):
        marks = (keys.parse_children(entry.key) for entry in store.entries(keys.marks(name)))
        done = {mark[0].start for mark in marks if mark is not None and mark[2] == SUCCEEDED}
        return len(done) >= int(dict(page.get("inputs") or {}).get(name, 1))
    at = keys.result(name)
    size = store.size(at)
    if size is None:
        return store.size(keys.history(name)) is not None
    with contextlib.suppress(KeyMissingError, IntegrityError):
        return outcomes.read(size, lambda start, length: store.get(at, start=start, length=length), None).succeeded
    return False


def _start(name: str, page: Mapping[str, Any], environ: Mapping[str, str], folder: Path) -> Iterator[str]:
    for path, found in _waiting(name, str(page.get("name", "")), AFTER, environ, folder):
        answer = cluster_api.request("PATCH", path, change_to_start(found), environ=environ, folder=folder)
        done, about = answer.status == 200, found["metadata"]["annotations"]
        if about[AFTER].startswith("programs-of "):
            which = f"{about.get(JOB_ID, name)}, which waited for programs of this job,"
            yield f"{which} was started" if done else f"{which} could not be started from here ({answer.reason})"
        else:
            yield f"{name}, which follows this job, was started" if done else _left(name, answer)


class Others:
    """The children of a batch that wait for the programs of this first one; see record 29."""

    def __init__(
        self,
        store: Store,
        task: Task,
        base: Path,
        environ: Mapping[str, str] = os.environ,
        folder: Path = ACCOUNT_FOLDER,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._task, self._group = store, task, keys.group_of_mark(task.mark)
        self._expected = task.pod.awaited_seconds if task.pod is not None else 0.0
        self._file = AttemptFiles(str(base), "").compiled
        self._environ, self._folder, self._now = environ, folder, now
        self._written, self._changed = "", now()
        self._are_started = False

    def start_if_compiled(self) -> None:
        """Start them once most programs are in the store, by the seconds that compiling took the last time.

        Or once nothing was added for all of these seconds: then there is less to compile than there was.
        """
        if self._are_started:
            return
        written, now = self._file.read_text() if self._file.exists() else "", self._now()
        if written != self._written:
            self._written, self._changed = written, now
        try:
            is_over = float(written or 0) >= _MOST_OF_COMPILING * self._expected
        except ValueError:  # the user's code can write into it
            is_over = True
        if is_over or now > self._changed + self._expected:
            self._are_started = self.start()

    def start_if_decided(self) -> None:
        """Start them if no other attempt of this job follows, which would."""
        if self._store.size(keys.result(self._task.job_id)) is not None:
            self.start()

    def start(self) -> bool:
        """Start them now; return whether none is left.

        The key is written first: a client that launches one of them now looks for it afterwards.
        """
        are_started = True
        try:
            self._store.put(keys.group_compiled(self._group), b"", if_absent=True)
            for words in _start(self._group, {}, self._environ, self._folder):
                are_started = are_started and words.endswith("was started")
                say(words)
        except (KineticError, OSError) as error:  # it is tried again, also by the next process that looks
            say(f"jobs that wait for programs of this one could not be started from here: {error}")
            return False
        return are_started


def change_to_start(found: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the change that starts an object which waits, see ``hold`` in job_manifests; None where it does not."""
    annotations = (found.get("metadata") or {}).get("annotations") or {}
    if AFTER not in annotations:
        return None
    change: dict[str, Any] = {"metadata": {"annotations": {AFTER: None}}}
    if queue := annotations.get(QUEUE):
        change["metadata"]["labels"] = {QUEUE_LABEL: queue}  # Kueue starts it
    else:
        change["spec"] = {"suspend": False}
    return change


def _close(
    store: Store, name: str, page: Mapping[str, Any], because: str, environ: Mapping[str, str], folder: Path
) -> Iterator[str]:
    """Write the verdict that its submitter sealed for this case, and remove its object."""
    sealed = b64decode(str(dict(page["closed"])[because]))
    if not store.put(keys.result(name), sealed, if_absent=True):
        return
    yield f"{name}, which follows this job, was closed"
    for path, _ in _waiting(name, str(page.get("name", "")), AFTER, environ, folder):
        options = "?propagationPolicy=Background"
        cluster_api.request("DELETE", path + options, environ=environ, folder=folder)


def start_cold(job_id: str, *, environ: Mapping[str, str] = os.environ, folder: Path = ACCOUNT_FOLDER) -> str:
    """Start a job that its warm pod does not carry out in pods of its own; return a sentence for the log."""
    for path, _ in _waiting(job_id, keys.object_name(job_id), WARM, environ, folder):
        answer = cluster_api.request("PATCH", path, CHANGE_TO_COLD, environ=environ, folder=folder)
        if answer.status != 200:
            return f"{job_id} could not be started from here ({answer.reason}); a kinetic command will"
        return f"{job_id} starts in a pod of its own"
    return f"{job_id} was started from elsewhere, or is by the next kinetic command that looks at it"


def _waiting(
    name: str, object_name: str, mark: str, environ: Mapping[str, str], folder: Path
) -> Sequence[tuple[str, dict[str, Any]]]:
    """Return the objects of a job or batch that are suspended and have a mark that they wait, with their paths."""
    found = []
    for api, plural in _KINDS:
        base = f"/{api}/namespaces/{cluster_api.namespace(folder)}/{plural}"
        if keys.is_group_id(name):
            query = f"?labelSelector={quote(f'{GROUP}={name}')}"
            answer = cluster_api.request("GET", base + query, environ=environ, folder=folder)
            if answer.status not in {200, 404}:  # 404: the cluster has no such kind
                raise RunnerError(f"the jobs of {name} cannot be listed", why=answer.reason)
            objects = list(answer.page.get("items") or ()) if answer.status == 200 else []
        elif _NAME.fullmatch(object_name):
            answer = cluster_api.request("GET", f"{base}/{object_name}", environ=environ, folder=folder)
            objects = [answer.page] if answer.status == 200 else []
        else:
            objects = []
        for each in objects:
            about = each.get("metadata") or {}
            annotations = about.get("annotations") or {}
            is_its_own = keys.is_group_id(name) or annotations.get(JOB_ID) == name
            marks = {**annotations, **(about.get("labels") or {})}
            if mark in marks and is_its_own and (each.get("spec") or {}).get("suspend"):
                found.append((f"{base}/{about.get('name')}", each))
        if found:
            break
    return found


def _left(name: str, answer: Answer) -> str:
    return f"{name} follows this job, and could not be started from here ({answer.reason}); a kinetic command will"
