"""From the launch page and the container's environment to the work of this host."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from kinetic._runner.pod import devices
from kinetic._runner.work import Work
from kinetic._wire import pod, seal
from kinetic._wire.pod import PodPage
from kinetic._wire.seal import KEY_BYTES
from kinetic.errors import RunnerError

_READ_AT_START = ("PYTHON", "LD_")  # variables that an interpreter looks at when it starts, and not again
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Place:
    """Where this process stands.

    Attributes:
        host: Index of this host, from 0.
        restarts: How often the whole set of hosts was started again; None where nothing says so.
        base: A folder of this container's own.
        runner: The folder with this code.
    """

    host: int
    restarts: int | None
    base: Path
    runner: str


def host_of(page: PodPage, environ: Mapping[str, str]) -> int:
    """Return which host this is.

    Raises:
        RunnerError: There are several, and nothing says which one this is.
    """
    if page.hosts == 1:
        return 0
    for name in pod.HOST_VARIABLES:
        said = environ.get(name, "")
        if said.isdecimal() and int(said) < page.hosts:
            return int(said)
    raise RunnerError(
        f"nothing says which of {page.hosts} hosts this one is",
        why=f"none of {', '.join(pod.HOST_VARIABLES)} is a number below {page.hosts}",
        next="launch the job with completionMode: Indexed, or as a JobSet",
    )


def restarts_of(environ: Mapping[str, str]) -> int | None:
    """Return how often the set of hosts was started again; None where nothing says so."""
    said = environ.get(pod.RESTART_VARIABLE, "")
    return int(said) if said.isdecimal() else None


def captured(page: PodPage) -> dict[str, str]:
    """Read the values of captured variables.

    Raises:
        RunnerError: The file is there and cannot be read.
    """
    path = Path(page.secret, pod.ENVIRONMENT_FILE)
    try:
        found = json.loads(path.read_bytes())
        return {str(name): str(value) for name, value in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunnerError("the captured variables of this job cannot be read", why=f"{path}: {error}") from error


def key_of(page: PodPage) -> bytes:
    """Read the job's key; only after the worker was started, whose memory must not hold it.

    Raises:
        RunnerError: It is not there, or it is no key.
    """
    path = Path(page.secret, pod.KEY_FILE)
    try:
        keys = path.read_bytes()
    except OSError as error:
        raise RunnerError("the key of this job cannot be read", why=f"{path}: {error}") from error
    if len(keys) % KEY_BYTES or len(keys) < page.key_at + KEY_BYTES:
        why = f"{path} has {len(keys)} bytes, and the key of {KEY_BYTES} would begin at {page.key_at}"
        raise RunnerError("the key of this job is none", why=why)
    return keys[page.key_at : page.key_at + KEY_BYTES]


def borrowed_key(page: PodPage) -> AbstractContextManager[bytes]:
    """Lend the job's key before the worker was started: nothing of it stays in this process."""
    return seal.borrowed(Path(page.secret, pod.KEY_FILE), page.key_at)


def check_secret(page: PodPage) -> None:
    """Refuse to begin what could never be sealed.

    Raises:
        RunnerError: There is no key.
    """
    path = Path(page.secret, pod.KEY_FILE)
    if not path.is_file():
        raise RunnerError("the key of this job is not there", why=f"{path} does not exist")


def work_of(page: PodPage, place: Place, attempt: int, environ: Mapping[str, str]) -> Work:
    """Make the work of this host."""
    return Work(
        job_id=page.job_id,
        attempt=attempt,
        host=place.host,
        order_sha256=page.order_sha256,
        store_url=page.store_url,
        environment=environment(page, place, attempt, environ),
        umask=page.umask,
        folder=place.base / "work",
        log=place.base / "log",
        body=place.base / "body",  # never in the store, where others may write
        meta=place.base / "word",
        deadline=page.deadline,
        runner=place.runner,
        hosts=page.hosts,
        coordinator=page.coordinator,
        order_key=page.order_key,
        child=page.child,
        data=place.base / "data",
        data_cache=place.base / "cache",
        function=page.function,
        placed=page.placed,
        kind=page.kind,
        chips=page.chips,
        require_accelerator=page.require_accelerator,
        requirements=page.requirements,
        is_in_a_pod=True,
        own_interpreter=any(name.startswith(_READ_AT_START) for name in captured(page)),
    )


def environment(page: PodPage, place: Place, attempt: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the worker has in its environment: the container's, over it what the user captured, then ours.

    Below all of them: where JAX computes, which an image or a captured variable may know better.
    """
    own = {
        "KINETIC_JOB_ID": page.job_id,
        "KINETIC_ATTEMPT": str(attempt),
        "KINETIC_OUTPUT_DIR": page.output_dir,
        "KINETIC_CHECKPOINT_DIR": page.checkpoint_dir,
        "KINETIC_HOST_INDEX": str(place.host),
        "KINETIC_HOST_COUNT": str(page.hosts),
    }
    return {
        **devices.platforms(page.kind),
        **environ,
        **_familiar(page),
        **captured(page),
        **{name: value for name, value in own.items() if value},
    }


def _familiar(page: PodPage) -> dict[str, str]:
    """Return what programs for the package that this one replaces look for."""
    found = {"JOB_ID": page.job_id}
    if page.store_url.startswith("gs://"):
        found["GCS_BUCKET"] = page.store_url.removeprefix("gs://").partition("/")[0]
    return found


def memory_bytes() -> int:
    """Return how much memory this container may use: its limit, else what the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            return min(machine, int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return machine
