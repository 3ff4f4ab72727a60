"""The launch page of a job on this machine: written 0600 beside the queue, gone with the job.

It holds what must never enter a store: the values of the job's environment. The job's key lies in a file of its own,
which the keeper reads only after it forked the worker.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._backends.local.paths import Paths
from kinetic._runner.work import Work
from kinetic._wire import fields, folders, names, pages, seal


@dataclass(frozen=True)
class LaunchPage:
    """What a keeper is told about a job; ``queued`` is what its row says, should the queue have to be rebuilt."""

    job_id: str
    order_sha256: str
    store_url: str
    key_id: str
    umask: int
    deadline: float | None
    environment: dict[str, str] = field(repr=False)
    hosts: int = 1
    order_key: str = ""
    child: dict[str, Any] | None = None
    mark: str = ""
    machine: str = ""
    function: str = ""
    placed: list[dict[str, Any]] | None = None
    memory_bytes: int | None = None
    retries: int = 0
    queued: dict[str, Any] | None = None

    def to_bytes(self) -> bytes:
        """Write the page."""
        return pages.write({"schema": pages.SCHEMA, **self.__dict__})


def write(paths: Paths, page: LaunchPage, key: bytes) -> None:
    """Write page and key into the job's folder, each whole or not at all, and force them and their names to the disk.

    The folder's own name is forced by whoever writes the row.
    """
    write_private(paths.key(page.job_id), key)
    write_private(paths.launch(page.job_id), page.to_bytes())
    folders.sync(paths.job(page.job_id))


def read(paths: Paths, job_id: str) -> LaunchPage | None:
    """Read the page of a job, or None when the job was removed.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        data = paths.launch(job_id).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    what = f"the launch page of {job_id}"
    return fields.build(LaunchPage, _READERS, pages.read(data, what), what)


_READERS = {
    "job_id": names.JOB_ID,
    "order_sha256": fields.sha256,
    "store_url": fields.text(fields.PATH, least=1),
    "key_id": fields.text(fields.NAME),
    "umask": fields.whole(0, 0o777),
    "deadline": fields.maybe(fields.number(0, fields.SECONDS)),
    "environment": fields.map_of(fields.text(fields.BYTES), 1_000_000, fields.text(fields.TEXT)),
    "hosts": fields.whole(1, 100_000),
    "order_key": fields.text(),
    "child": fields.maybe(fields.map_of(fields.anything, 64)),
    "mark": fields.text(),
    "machine": fields.text(),
    "function": fields.text(),
    "memory_bytes": fields.maybe(fields.whole(0, fields.BYTES)),
    "retries": fields.whole(0, fields.BYTES),
    "queued": fields.maybe(fields.map_of(fields.anything, 64)),
    "placed": fields.maybe(fields.array_of(fields.map_of(fields.anything, 64), 100_000)),
}


def forget(paths: Paths, job_id: str) -> None:
    """Remove page and key of a job that has its verdict: captured values are kept no longer than they are needed."""
    for path in (paths.launch(job_id), paths.key(job_id)):
        with contextlib.suppress(OSError):
            path.unlink()


def key_of(paths: Paths, job_id: str) -> bytes:
    """Read the job's key.

    Raises:
        IntegrityError: It is cut short: what it sealed could never be opened.
    """
    path = paths.key(job_id)
    key = path.read_bytes()
    seal.check_length(len(key), str(path))
    return key


def works_of(
    paths: Paths, page: LaunchPage, attempt: int, *, runner: str, more: dict[str, str], coordinator: str = ""
) -> tuple[Work, ...]:
    """Make the work of every host of one attempt, the leader's first."""
    return tuple(
        work_of(paths, page, attempt, runner=runner, more=more, host=host, coordinator=coordinator)
        for host in range(page.hosts)
    )


def work_of(
    paths: Paths,
    page: LaunchPage,
    attempt: int,
    *,
    runner: str,
    more: dict[str, str],
    host: int = 0,
    coordinator: str = "",
) -> Work:
    """Make the work of one host: the same names whoever asks, so that an observer finds a dead keeper's files."""
    return Work(
        job_id=page.job_id,
        attempt=attempt,
        host=host,
        order_sha256=page.order_sha256,
        store_url=page.store_url,
        environment={**page.environment, **more, "KINETIC_HOST_INDEX": str(host)},
        umask=page.umask,
        folder=paths.work(page.job_id, attempt, host),
        log=paths.log(page.job_id, attempt, host),
        body=paths.body(page.job_id, attempt, host),
        meta=paths.word(page.job_id, attempt, host),
        deadline=page.deadline,
        runner=runner,
        hosts=page.hosts,
        coordinator=coordinator,
        order_key=page.order_key,
        child=page.child,
        data=paths.data(page.job_id, attempt, host),
        data_cache=paths.data_cache,
        function=page.function,
        placed=page.placed,
        memory_bytes=page.memory_bytes,
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file for its owner only, whole or not at all."""
    beside = f"{path}.{os.getpid():x}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            folders.write_all(descriptor, data)
            os.fsync(descriptor)  # the row that names it will outlive a power cut, so it must, too
        finally:
            os.close(descriptor)
        os.replace(beside, path)  # on the way of every submission
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # on the way of every submission
        raise
