"""Where the host-local state lies: the queue, the locks, the pulses, the logs being written.

{runtime}/queue.db queue.lock queue.note queue.db.damaged-{time}
{runtime}/keepers/{keeper}.lock .wake .log .job
{runtime}/jobs/{job_id}/launch.json key pulse submitting log-{attempt}-{host} work-{attempt}-{host}/
{runtime}/jobs/{job_id}/body-{attempt}-{host} word-{attempt}-{host}   its value and last word, until they are sealed
{runtime}/jobs/{job_id}/data-{attempt}-{host}/   its own copies of what it reads
{runtime}/groups/{group}.json {group}.{epoch}.lock
{runtime}/runners/{digest}/                     this client's own code, unpacked
{runtime}/data/                                 data that jobs have read; see _runner/data/cache.py
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kinetic._wire import folders
from kinetic._wire.task import AttemptFiles
from kinetic.errors import BackendUnavailableError


def suffix(attempt: int, host: int) -> str:
    """Return what stands behind the names of an attempt's files: those of all attempts and hosts share a folder."""
    return f"-{attempt}-{host}"


@dataclass(frozen=True)
class Paths:
    """Every file name of the local backend, in one place."""

    runtime: Path

    @property
    def queue(self) -> Path:
        """The database of what waits and runs."""
        return self.runtime / "queue.db"

    @property
    def runners(self) -> Path:
        """Folders with the code that keepers run."""
        return self.runtime / "runners"

    @property
    def environments(self) -> Path:
        """Isolated environments, built by uv."""
        return self.runtime / "environments"

    @property
    def data_cache(self) -> Path:
        """Data that jobs have read, for those that read it again."""
        return self.runtime / "data"

    @property
    def keepers(self) -> Path:
        """Locks, wake-up pipes and logs of keepers."""
        return self.runtime / "keepers"

    @property
    def groups(self) -> Path:
        """What belongs to batches: locks of their drivers, and values that no store may hold."""
        return self.runtime / "groups"

    def kept(self, group: str) -> Path:
        """Values of environment variables that the children of a batch need."""
        return self.groups / f"{group}.json"

    @property
    def jobs(self) -> Path:
        """One folder for each job."""
        return self.runtime / "jobs"

    def job(self, job_id: str) -> Path:
        """The folder of one job."""
        return self.jobs / job_id

    def launch(self, job_id: str) -> Path:
        """What the keeper is told: environment, digest of the order."""
        return self.jobs / job_id / "launch.json"

    def key(self, job_id: str) -> Path:
        """The job's own key, read by the keeper after it forked the worker."""
        return self.jobs / job_id / "key"

    def pulse(self, job_id: str) -> Path:
        """The pipe whose writer is the keeper: a byte means running, its end means look now."""
        return self.jobs / job_id / "pulse"

    def submitting(self, job_id: str) -> Path:
        """Locked while a client is still submitting the job."""
        return self.jobs / job_id / "submitting"

    def files(self, job_id: str, attempt: int, host: int = 0) -> AttemptFiles:
        """The files of one host of an attempt."""
        return AttemptFiles(str(self.job(job_id)), suffix(attempt, host))

    def lock(self, keeper: str) -> Path:
        """Held by a keeper for as long as it lives."""
        return self.keepers / f"{keeper}.lock"

    def wake(self, keeper: str) -> Path:
        """A byte written here wakes an idle keeper."""
        return self.keepers / f"{keeper}.wake"

    def held(self, keeper: str) -> Path:
        """Which job a keeper has in hand; see ``queue_repair``."""
        return self.keepers / f"{keeper}.job"

    def keeper_log(self, keeper: str) -> Path:
        """What a keeper says about itself; empty unless something went wrong."""
        return self.keepers / f"{keeper}.log"

    def make(self) -> None:
        """Make the folders, for their owner only.

        Raises:
            BackendUnavailableError: They cannot be made.
        """
        try:
            for folder in (self.runtime, self.keepers, self.jobs, self.runners):
                folders.make(folder)
        except OSError as error:
            raise BackendUnavailableError(
                "the folders for running jobs cannot be made",
                why=f"{error.filename or self.runtime}: {error.strerror or error}",
                next="point KINETIC_RUNTIME_DIR at a folder on a local disk that you may write",
            ) from error
