"""What the jobs of one supervisor import, and a process that has imported it before the next of them begins.

A job gets a worker of that process only if its function, when it ran last, imported all that this process has imported,
under the same variables: whatever importing does to an interpreter, this job does as well.
"""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from kinetic._backends.local import limits, scheduler
from kinetic._backends.local.preloader import Preloader
from kinetic._runner.supervisor.supervise import Supervisor
from kinetic._runner.supervisor.worker_process import EarlyWorker
from kinetic._runner.worker import preloaded_modules, worker
from kinetic._runner.worker.import_trace import OF_ONE_JOB
from kinetic._runner.worker.preloaded_modules import Imports
from kinetic._wire import NamedTuple, digests
from kinetic._wire.order import WORDS_VARIABLE
from kinetic._wire.task import Task

_IMPORT_SECONDS = 120.0
_MOST_SPOILERS = 8  # each costs the imports before it once more
_MISSES = 2  # jobs one after the other that had to import much all the same, before their libraries replace these


class _Wanted(NamedTuple):
    imports: Imports
    variables: str  # a digest: what only one job was to have stays nowhere


class Preloading:
    """Learns what functions import, and has at most one process that has imported it.

    ``may_begin``: whether a job is likely to come that has use of it, and there is memory for it.
    """

    def __init__(self, supervisor: Supervisor, may_begin: Callable[[], bool]) -> None:
        self._libc, self._may_begin = supervisor.libc, may_begin
        self._functions: dict[tuple[str, str], Imports] = {}  # what each imported when it ran last, see ``_name_of``
        self._unsteady: set[tuple[str, str]] = set()  # those that set variables to other values each time
        self._preloader: Preloader | None = None
        self._wanted: _Wanted | None = None  # what it imports
        self._limit = 0.0  # until when it must have done so
        self._useless: list[_Wanted] = []  # what no worker can be forked after
        self._spoilers: set[str] = set()  # packages that are the reason, and that each job imports itself
        self._in_vain = 0  # jobs one after the other that began again
        self._misses = 0
        self._spare: EarlyWorker | None = None
        self._last = ("", ("", ""))  # the job to which this gave a worker, and its function

    @property
    def descriptor(self) -> int:
        """What becomes readable when there is something to do; -1 for nothing."""
        waits = self._preloader is not None and not self._preloader.is_ready
        return self._preloader.descriptor if self._preloader is not None and waits else -1

    @property
    def is_of_use(self) -> bool:
        """Whether libraries are imported for the next job."""
        return self._preloader is not None and self._preloader.is_ready

    def worker_for(self, task: Task, *, may_be: bool) -> EarlyWorker | None:
        """Return a worker for a task, or None; ``may_be``: whether it can have one that was forked before."""
        self._look()
        spare, self._spare = self._spare, None
        if may_be and self._fits(task):
            if spare is None or not spare.is_alive:
                spare = self._new_worker(spare)
            if spare is not None:
                self._last = task.job_id, _name_of(task)
                return spare
        if spare is not None:
            spare.end()
        return None

    def get_ready(self) -> None:
        """Have a worker ready for a job like the last one."""
        self._look()
        last = self._functions.get(self._last[1])
        is_likely = self.is_of_use and last is not None and self._is_like(last)
        if is_likely and (self._spare is None or not self._spare.is_alive):
            self._spare = self._new_worker(self._spare)

    def learn(self, task: Task) -> None:
        """Take in what a job imported, which has ended, and begin to import that for the next one."""
        had_ours = self._last[0] == task.job_id
        imports = preloaded_modules.noted_imports(task.folder.parent)
        if not imports.names:
            if had_ours:
                self._misses = self._in_vain = 0
                if (task.folder.parent / preloaded_modules.IMPORTS_FILE).exists():  # it had no use of what it was given
                    self._functions.pop(_name_of(task), None)
            return
        name, before = _name_of(task), self._functions.get(_name_of(task))
        self._functions[name] = imports
        if had_ours and self._wanted is not None and not _is_set_alike(imports, self._wanted.imports):
            self._unsteady.add(name)
        elif before is not None and _is_set_alike(imports, before):
            self._unsteady.discard(name)
        if not limits.may_preload(task.environment):
            self.end()
            return
        if name in self._unsteady:
            return
        self._look()
        wanted = _Wanted(imports, _shared(task.environment))
        if had_ours and wanted == self._wanted and self._is_like(imports):  # a file of a library is another one by now
            self._in_vain += 1
            if self._in_vain >= _MISSES:
                self._useless.append(wanted)
            self.end()
        self._misses += 1
        waits = self._preloader is not None and (not self._preloader.is_ready or self._misses < _MISSES)
        if not waits and wanted != self._wanted:
            self._begin(wanted, task)

    def _begin(self, wanted: _Wanted, task: Task) -> None:
        if wanted in self._useless or not self._may_begin():
            return
        self.end()
        with contextlib.suppress(OSError):  # no processes left
            usual = replace(task, environment=scheduler.allowed_variables(task.environment))
            entry = functools.partial(worker.wait_for_a_task, usual)
            left_out = frozenset(self._spoilers)
            variables = {name: value for name, value in task.environment.items() if name != WORDS_VARIABLE}
            self._preloader = Preloader(entry, self._libc, wanted.imports, variables, left_out)
            self._wanted, self._misses, self._limit = wanted, 0, time.monotonic() + _IMPORT_SECONDS

    def _look(self) -> None:
        """See whether the libraries are imported by now, and are of use."""
        if self._preloader is None or self._preloader.is_ready:
            return
        self._preloader.look()
        is_late = time.monotonic() > self._limit
        is_for_nobody = self._preloader.is_ready and not any(map(self._is_like, self._functions.values()))
        if self._wanted is not None and (self._preloader.is_over or is_late or is_for_nobody):
            if self._preloader.spoiler and len(self._spoilers) < _MOST_SPOILERS:
                self._spoilers.add(self._preloader.spoiler)
            else:
                self._useless.append(self._wanted)
            self.end()

    def _is_like(self, imports: Imports) -> bool:
        """Return whether what these imports do to an interpreter includes what was done to our process."""
        if self._preloader is None or self._wanted is None:
            return False
        ours = self._wanted.imports
        is_set_so = _is_set_alike(imports, ours) and imports.changed <= self._preloader.changed
        return is_set_so and {*ours.names} <= {*imports.names}

    def _fits(self, task: Task) -> bool:
        found = self._functions.get(_name_of(task))
        if not self.is_of_use or self._wanted is None or found is None:
            return False
        is_same = _shared(task.environment) == self._wanted.variables
        return is_same and limits.may_preload(task.environment) and self._is_like(found)

    def _new_worker(self, was: EarlyWorker | None) -> EarlyWorker | None:
        if was is not None:
            was.end()
        assert self._preloader is not None  # noqa: S101 - for the type checker: a task fits one
        try:
            return EarlyWorker(self._preloader.entry, self._libc, self._preloader.fork)
        except OSError:
            self.end()
            return None

    def end(self) -> None:
        """End all processes of this."""
        if self._spare is not None:
            self._spare.end()
            self._spare = None
        if self._preloader is not None:
            self._preloader.end()
        self._preloader = self._wanted = None


def _is_set_alike(one: Imports, other: Imports) -> bool:
    return (one.set_before, one.settings) == (other.set_before, other.settings)


def _name_of(task: Task) -> tuple[str, str]:
    return task.project, task.function


def _shared(environment: Mapping[str, str]) -> str:
    """Return the digest of the variables that are not one job's own."""
    found = sorted(item for item in environment.items() if item[0] not in OF_ONE_JOB)
    return digests.of_bytes(json.dumps(found).encode())
