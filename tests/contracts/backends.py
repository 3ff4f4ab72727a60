"""The backends that the contract suite is asked of: each with a home, a store and jobs of its own.

``fake`` runs jobs in this process, ``local`` in processes of this machine, ``kube`` in pods of the test cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers import user_module

import kinetic
from kinetic import JobHandle, JobStatus, testing
from kinetic._backends.protocol import Backend, Launch
from kinetic._jobs import locate

_JOBS = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def add(one, other):
        print("adding", one, "and", other)
        return one + other

    @kinetic.run(accelerator="cpu")
    def fail():
        raise ValueError("no")

    @kinetic.run(accelerator="cpu")
    def fail_later(value):
        raise ValueError(value)

    @kinetic.run(accelerator="cpu")
    def fail_from(key):
        try:
            try:
                {}[key]
            except KeyError as error:
                raise OSError(2, "not there") from error
        except OSError as error:
            raise ValueError("no") from error

    @kinetic.run(accelerator="cpu")
    def join(one, other):
        return one + other

    @kinetic.run(accelerator="cpu")
    def stay(until):
        print("here", flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)
        return "gone"
"""


class Place:
    """A backend under test, and jobs for it.

    Args:
        root: A folder that its jobs see as well.
        backend: The fake one; None for the one that the environment points at.
    """

    def __init__(self, root: Path, monkeypatch: Any, backend: testing.FakeBackend | None = None) -> None:
        self._fake, self._root, self._until = backend, root, root / "until"
        self._backend: Backend | None = backend
        self._jobs: Any = user_module.imported(root, _JOBS, monkeypatch)
        self._monkeypatch = monkeypatch

    @property
    def backend(self) -> Backend:
        """The backend: the one of the first job that was submitted."""
        assert self._backend is not None, "submit a job first"
        return self._backend

    def submit(self, function: str = "add", *args: Any) -> JobHandle:
        """Submit a job."""
        job: JobHandle = getattr(self._jobs, function).run_async(*(args or ((1, 2) if function == "add" else ())))
        self._backend = locate.backend_of(job)
        return job

    def submit_command(self, *words: str) -> JobHandle[int]:
        """Submit a command of the project."""
        self._monkeypatch.chdir(self._root)
        job = kinetic.run_command(words)
        self._backend = locate.backend_of(job)
        return job

    def submit_long(self) -> JobHandle:
        """Submit a job that runs until it is released."""
        if self._fake is not None:
            self._fake.running_seconds = float("inf")
        return self.submit("stay", str(self._until))

    def release(self, job: JobHandle) -> None:
        """Let a long job come to its end."""
        self._until.touch()
        if self._fake is not None:
            self._fake.running_seconds = 1.0  # of those that begin from now on
            self._fake.run(job.job_id)

    def submit_batch(self, count: int) -> Any:
        """Submit a batch."""
        return self._jobs.add.run_async_map([(number, number) for number in range(count)])

    def spy(self) -> list[Launch]:
        """Return the launches that are made from now on."""
        backend, made = self.backend, []
        launch = backend.launch

        def noting(launches: Any) -> list[str]:
            made.extend(launches)
            return launch(launches)

        self._monkeypatch.setattr(backend, "launch", noting)
        return made

    def status(self, job: JobHandle) -> JobStatus | None:
        """Return how the backend sees a job; None where it does not."""
        found = self.backend.observe([job.job_id]).get(job.job_id)
        return found.status if found is not None else None

    def wait(self, job: JobHandle, is_so: Callable[[], bool], seconds: float = 60) -> None:
        """Watch a job until something is so."""
        limit = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < limit, f"{job.job_id} is {self.status(job)}"
            self.backend.watch(job.job_id, seconds=0.5)

    def wait_for_end(self, job: JobHandle) -> None:
        """Watch a job until it has ended."""
        self.wait(job, lambda: (seen := self.status(job)) is None or seen.is_final)

    def wait_for_start(self, job: JobHandle) -> None:
        """Watch a job until it runs."""
        self.wait(job, lambda: self.status(job) is JobStatus.RUNNING)
