"""From the task of a pod and the container's environment to that of this host."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from kinetic._runner.pod import accelerator_check
from kinetic._wire import seal
from kinetic._wire import task as wire_task
from kinetic._wire.seal import KEY_BYTES
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import RunnerError

_READ_AT_START = ("PYTHON", "LD_")  # variables that an interpreter looks at when it starts, and not again


@dataclass(frozen=True)
class HostInPod:
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


def settings_of(task: Task) -> PodSettings:
    """Return what a task says to the first process of a pod.

    Raises:
        RunnerError: It is none of a pod's.
    """
    if task.pod is None:
        raise RunnerError("this task is not one of a pod", next="submit the job again")
    return task.pod


def host_of(task: Task, environ: Mapping[str, str]) -> int:
    """Return which host this is.

    Raises:
        RunnerError: There are several, and nothing says which one this is.
    """
    if task.hosts == 1:
        return 0
    for name in wire_task.HOST_VARIABLES:
        said = environ.get(name, "")
        if said.isdecimal() and int(said) < task.hosts:
            return int(said)
    raise RunnerError(
        f"nothing says which of {task.hosts} hosts this one is",
        why=f"none of {', '.join(wire_task.HOST_VARIABLES)} is a number below {task.hosts}",
        next="launch the job with completionMode: Indexed, or as a JobSet",
    )


def restarts_of(environ: Mapping[str, str]) -> int | None:
    """Return how often the set of hosts was started again; None where nothing says so."""
    said = environ.get(wire_task.RESTART_VARIABLE, "")
    return int(said) if said.isdecimal() else None


def captured(settings: PodSettings) -> dict[str, str]:
    """Read the values of captured variables.

    Raises:
        RunnerError: The file is there and cannot be read.
    """
    path = Path(settings.secret, wire_task.ENVIRONMENT_FILE)
    try:
        found = json.loads(path.read_bytes())
        return {str(name): str(value) for name, value in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunnerError("the captured variables of this job cannot be read", why=f"{path}: {error}") from error


def key_of(settings: PodSettings) -> bytes:
    """Read the job's key; only after the worker was started, whose memory must not hold it.

    Raises:
        RunnerError: It is not there, or it is no key.
    """
    path = Path(settings.secret, wire_task.KEY_FILE)
    try:
        keys = path.read_bytes()
    except OSError as error:
        raise RunnerError("the key of this job cannot be read", why=f"{path}: {error}") from error
    if len(keys) % KEY_BYTES or len(keys) < settings.key_at + KEY_BYTES:
        why = f"{path} has {len(keys)} bytes, and the key of {KEY_BYTES} would begin at {settings.key_at}"
        raise RunnerError("the key of this job is none", why=why)
    return keys[settings.key_at : settings.key_at + KEY_BYTES]


def borrowed_key(settings: PodSettings) -> AbstractContextManager[bytes]:
    """Lend the job's key before the worker was started: nothing of it stays in this process."""
    return seal.borrowed(Path(settings.secret, wire_task.KEY_FILE), settings.key_at)


def check_secret(settings: PodSettings) -> None:
    """Refuse to begin what could never be sealed.

    Raises:
        RunnerError: There is no key.
    """
    path = Path(settings.secret, wire_task.KEY_FILE)
    if not path.is_file():
        raise RunnerError("the key of this job is not there", why=f"{path} does not exist")


def task_of(task: Task, place: HostInPod, attempt: int, environ: Mapping[str, str]) -> Task:
    """Return the task of this host, at this attempt."""
    found = captured(settings_of(task))
    return replace(
        task,
        environment=environment(task, place, attempt, environ, found),
        attempt=attempt,
        host=place.host,
        base=str(place.base),
        cache=str(place.base / "cache"),
        runner=place.runner,
        own_interpreter=any(name.startswith(_READ_AT_START) for name in found),
    )


def environment(
    task: Task, place: HostInPod, attempt: int, environ: Mapping[str, str], captured: Mapping[str, str]
) -> dict[str, str]:
    """Return what the worker has in its environment: the container's, over it what the user captured, then ours.

    Below all of them: where JAX computes, which an image or a captured variable may know better.
    """
    settings = settings_of(task)
    own = {
        "KINETIC_JOB_ID": task.job_id,
        "KINETIC_ATTEMPT": str(attempt),
        "KINETIC_OUTPUT_DIR": settings.output_dir,
        "KINETIC_CHECKPOINT_DIR": settings.checkpoint_dir,
        "KINETIC_HOST_INDEX": str(place.host),
        "KINETIC_HOST_COUNT": str(task.hosts),
    }
    return {
        **accelerator_check.platforms(task.kind),
        **environ,
        **_familiar(task),
        **captured,
        **{name: value for name, value in own.items() if value},
    }


def _familiar(task: Task) -> dict[str, str]:
    """Return what programs for the package that this one replaces look for."""
    found = {"JOB_ID": task.job_id}
    if task.store_url.startswith("gs://"):
        found["GCS_BUCKET"] = task.store_url.removeprefix("gs://").partition("/")[0]
    return found
