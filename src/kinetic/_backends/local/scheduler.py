"""How much may run here at once: the cores this process may use, and the GPUs that are there.

A client reads this when it submits, and the queue keeps it with the job: whoever starts the job later goes by that.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._backends.local import liveness, recovery
from kinetic._backends.local.queue import (
    NEW_SUPERVISOR,
    SUPERVISORS,
    Limits,
    Queue,
    SupervisorRow,
    again_if_repaired,
    startable,
)
from kinetic._backends.local.runtime_files import Paths
from kinetic._stores.protocol import CREDENTIAL_VARIABLES
from kinetic._wire import digests, documents, failpoints, output_paths, threads
from kinetic.errors import CapacityError, LaunchError, OptionError

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement
    from kinetic._wire.order import Order


def read_limits(environ: Mapping[str, str]) -> Limits:
    """Return the slots and devices of this machine.

    KINETIC_LOCAL_SLOTS sets the number of "cpu" jobs; KINETIC_LOCAL_GPUS names the devices, e.g. "0,1" or "none".
    """
    return Limits(_slots(environ.get("KINETIC_LOCAL_SLOTS", "")), _gpus(environ.get("KINETIC_LOCAL_GPUS", "")))


def cores() -> int:
    """Return the cores that affinity and the control group's quota allow, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def check_gpus(placement: Placement, there: Sequence[str], *, strict: bool) -> tuple[str, ...]:
    """Refuse GPUs that are not here, or say that the job runs on the CPU instead.

    Args:
        placement: The hardware.
        there: The GPUs of this machine.
        strict: Whether the user asked for this machine by name: then hardware that is absent is an error.

    Raises:
        CapacityError: There are too few.
    """
    wanted = placement.chips_per_host
    if wanted <= len(there):
        return ()
    if there or strict:
        raise CapacityError(
            f"{placement.name} needs {wanted} GPU(s), and this machine has {len(there)}",
            why="looked for /dev/nvidia*, or at KINETIC_LOCAL_GPUS if it is set",
            next='ask for fewer, or use accelerator="cpu"',
        )
    return (f"{placement.name} is not here: the job runs on the CPU",)


def _slots(setting: str) -> int:
    if not setting:
        return cores()
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    raise OptionError(
        f"KINETIC_LOCAL_SLOTS={setting!r} is not a number of jobs",
        why="it takes a whole number of at least 1",
        next="unset KINETIC_LOCAL_SLOTS",
    )


def _gpus(setting: str) -> tuple[str, ...]:
    if setting == "none":
        return ()
    if setting:
        return tuple(dict.fromkeys(word.strip() for word in setting.split(",") if word.strip()))
    devices = [name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia")]
    return tuple(sorted((name for name in devices if name.isdigit()), key=int))


def _quota() -> float | None:
    """Return the cores that the control group's quota amounts to, or None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError):
        return None


_STARTUP = (
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "VIRTUAL_ENV",
    "KINETIC_PORTABLE",
    failpoints.VARIABLE,
)

_TRIES = 3


def advance(
    paths: Paths, queue: Queue, limits: Limits, *, ready: str = "", template_id: str = "", collect: bool = False
) -> None:
    """Do whatever the queue needs now.

    Args:
        paths: Where.
        queue: What waits.
        limits: How much may run at once.
        ready: A template_id for which a supervisor shall be getting ready even if nothing waits yet.
        template_id: The caller's own: only if no supervisor of this one can be started, that is the caller's error.
        collect: Wait the 10 ms until a started supervisor has detached itself: for single-threaded callers.

    Inside a job nothing is started: it would be a child of the job, and end with it.
    """
    if os.environ.get("KINETIC_JOB_ID"):
        return
    for _ in range(_TRIES):
        recovery.recover_dead_supervisors(paths, queue)
        wake, spawn = _plan(queue, limits, ready)
        asleep = [supervisor for supervisor in wake if not liveness.wake(paths.wake(supervisor))]
        _spawn_all(paths, queue, limits, spawn, template_id, collect=collect)
        if not asleep:  # else one died just now: who else is there?
            return


def _spawn_all(
    paths: Paths, queue: Queue, limits: Limits, spawn: list[tuple[str, str]], ours: str, *, collect: bool
) -> None:
    for supervisor, template_id in spawn:
        try:
            pid = _spawn(paths, queue, limits, supervisor, template_id)
        except LaunchError as error:
            if template_id == ours:
                raise
            if not _is_passing(error.__cause__):
                recovery.give_up_on_template(paths, queue, template_id, str(error.why))
            continue
        if collect or threads.start(partial(_collect, pid), "kinetic-spawn") is None:
            _collect(pid)  # it forks the supervisor and ends within milliseconds


@again_if_repaired
def _plan(queue: Queue, limits: Limits, ready: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Decide in one transaction who is woken and who is started, so that two callers never start the same twice."""
    wake: list[str] = []
    spawn: list[tuple[str, str]] = []
    with queue.change() as db:
        supervisors = [SupervisorRow(*row) for row in db.execute(SUPERVISORS)]
        at_work = {name for (name,) in db.execute("SELECT supervisor FROM jobs WHERE state IN ('claimed', 'running')")}
        wanted = Counter(row.template_id for row in startable(db, limits))
        if ready and not wanted[ready] and sum(supervisor.state != "idle" for supervisor in supervisors) < limits.slots:
            wanted[ready] = 1
        for template_id, count in wanted.items():
            idle = [
                supervisor.supervisor
                for supervisor in supervisors
                if supervisor.template_id == template_id and supervisor.state == "idle"
            ]
            coming = sum(
                _is_coming(supervisor, at_work) for supervisor in supervisors if supervisor.template_id == template_id
            )
            wake += idle[:count]
            spawn += [(os.urandom(6).hex(), template_id) for _ in range(count - len(idle) - coming)]
        db.executemany(NEW_SUPERVISOR, [(*item, "starting", 0, time.time()) for item in spawn])
    return wake, spawn


def _is_coming(supervisor: SupervisorRow, at_work: set[str]) -> bool:
    """Say whether a supervisor will look at the queue by itself in a moment: it starts, or has just ended a job."""
    return supervisor.state == "starting" or (supervisor.state == "busy" and supervisor.supervisor not in at_work)


def _is_passing(error: BaseException | None) -> bool:
    """Say whether a process could not be started for want of something that comes back."""
    return isinstance(error, OSError) and error.errno in {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE}


def _make_runner_again(paths: Paths, folder: Path) -> None:
    """Make the code that a job was submitted with again, if it is gone and is ours: it is not forced to the disk."""
    if folder.parent == paths.runners and not (folder / "supervisor.py").exists():
        from kinetic._project import runner_bundle  # rare: after a power cut

        runner_bundle.folder(paths.runners)


def _spawn(paths: Paths, queue: Queue, limits: Limits, supervisor: str, template_id: str) -> int:
    template = queue.template(template_id)
    _make_runner_again(paths, Path(runner_of(template["arguments"])))
    environment = {name: os.environ[name] for name in _STARTUP if name in os.environ}
    environment |= template["environment"] | {recovery.SUPERVISOR_VARIABLE: supervisor}
    words = [
        *template["arguments"],
        supervisor,
        template_id,
        str(paths.runtime),
        str(limits.slots),
        ",".join(limits.gpus),
    ]
    log = str(paths.supervisor_log(supervisor))
    try:
        return os.posix_spawn(
            words[0],
            words,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM],
        )
    except OSError as error:
        queue.forget_supervisor(supervisor)
        raise LaunchError(
            "the process that would carry out this job could not be started",
            why=f"{words[0]}: {error}",
            next="look at the limits of this shell with: ulimit -a",
        ) from error


def _collect(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # somebody else in this process waits for every child
        return


def runner_of(arguments: list[str]) -> str:
    """Return the folder of the runner's code from a template's command line."""
    return str(Path(arguments[-1]).parent)


_PREFIXES = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "KINETIC_PORTABLE")
OF_ONE_INTERPRETER = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"})  # would lead out of another one
_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_FLAGS = {
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_user_site": "s",
    "no_site": "S",
    "ignore_environment": "E",
    "bytes_warning": "b",
}


def make_template(runner: Path, environ: Mapping[str, str], interpreter: str = "") -> dict[str, Any]:
    """Say how a supervisor for this client's jobs is started.

    Args:
        runner: The folder with the runner's code.
        environ: This client's environment.
        interpreter: The Python of an isolated environment, or "" for this client's own.

    Returns:
        arguments (a command line), environment (variables that work at start-up), limits and affinity (which
        a supervisor inherits from whoever starts it, or takes on itself).
    """
    import resource  # POSIX only, as is everything in this room

    limits = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS if _has(resource, name)}
    return {
        "arguments": [interpreter or sys.executable, *_flags(), str(runner / "supervisor.py")],
        "environment": {
            name: value
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and not (interpreter and name in OF_ONE_INTERPRETER)
        },
        "limits": limits,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def template_digest(made: dict[str, Any]) -> str:
    """Return the digest that stands for a template."""
    return digests.of_bytes(documents.write(made))[:24]


def apply_template(made: Mapping[str, Any]) -> None:
    """Take on a template's limits and affinity, as far as this process may: whoever started it may have had others."""
    import resource

    for limit, (soft, hard) in made.get("limits", {}).items():
        number = getattr(resource, f"RLIMIT_{limit}", None)
        if number is None or resource.getrlimit(number) == (soft, hard):
            continue
        with contextlib.suppress(ValueError, OSError):  # only root raises a hard limit
            resource.setrlimit(number, (soft, hard))
            continue
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    cores = made.get("affinity")
    if cores and hasattr(os, "sched_setaffinity") and sorted(os.sched_getaffinity(0)) != cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)


def _has(module: object, limit: str) -> bool:
    return hasattr(module, f"RLIMIT_{limit}")


def _flags() -> list[str]:
    """Return the interpreter's own flags, so that a job runs under the same ones."""
    found = []
    for attribute, letter in _FLAGS.items():
        found += [f"-{letter * count}"] if (count := getattr(sys.flags, attribute)) else []
    found += [f"-W{option}" for option in sys.warnoptions]
    for option, value in sys._xoptions.items():  # noqa: SLF001 - the documented way to read -X
        found.append(f"-X{option}" if value is True else f"-X{option}={value}")
    return found


_NAMES = frozenset(  # a string is read more easily than forty quoted words
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TERM COLUMNS NO_COLOR VIRTUAL_ENV CONDA_PREFIX "
    "CONDA_DEFAULT_ENV SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY "
    "http_proxy https_proxy no_proxy XLA_FLAGS".split()
) | frozenset(threads.VARIABLES)
_OURS = ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "KINETIC_PORTABLE", "KINETIC_VOLUME_ROOT")
_COPIED_PREFIXES = ("LC_", "XDG_", "PYTHON", "LD_", "DYLD_", "CUDA_", "NVIDIA_", *_OURS)


def job_environment(
    order: Order,
    placement: Placement,
    captured: Mapping[str, str],
    environ: Mapping[str, str],
    interpreter: str = "",
    *,
    store_url: str = "",
) -> dict[str, str]:
    """Return everything that a job's process will have in its environment; what the user captured wins.

    Args:
        order: The job.
        placement: Its hardware.
        captured: The variables that the user wants along.
        environ: This client's environment.
        interpreter: The Python of an isolated environment, or "" for this client's own.
        store_url: Where the job's order lies; for a store in the cloud its credentials go along, as a pod has them.
    """
    chosen = allowed_variables(environ, cloud=is_cloud(store_url, *(ref.uri for ref in order.data)))
    if interpreter:
        chosen = _inside(chosen, interpreter)
    frameworks = {"KERAS_BACKEND": "jax"}  # as on a cluster
    if placement.kind != "gpu":
        frameworks |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(max(1, placement.chips_per_host))}
    if order.cpu is not None:
        frameworks |= {
            name: value for name, value in threads.thread_count_variables(order.cpu).items() if name not in chosen
        }
    own = {
        "KINETIC_JOB_ID": order.job_id,
        "KINETIC_OUTPUT_DIR": order.output_dir,
        "KINETIC_CHECKPOINT_DIR": output_paths.checkpoints_of(order),
        "KINETIC_HOST_INDEX": "0",
        "KINETIC_HOST_COUNT": str(order.hosts),
    }
    return chosen | frameworks | dict(captured) | own


def allowed_variables(environ: Mapping[str, str], *, cloud: bool = False) -> dict[str, str]:
    """Return what of a client's environment every job gets; with what opens stores in the cloud, where it needs one."""
    names = _NAMES | frozenset(CREDENTIAL_VARIABLES) if cloud else _NAMES
    return {name: value for name, value in environ.items() if name in names or name.startswith(_COPIED_PREFIXES)}


def is_cloud(*addresses: str) -> bool:
    """Say whether one of some addresses needs credentials."""
    return any(address.startswith(("gs://", "s3://")) for address in addresses)


def _inside(chosen: Mapping[str, str], interpreter: str) -> dict[str, str]:
    """Make variables of this client's environment fit another one: as if it had been activated."""
    binaries = os.path.dirname(interpreter)
    kept = {
        name: value
        for name, value in chosen.items()
        if name not in OF_ONE_INTERPRETER and not name.startswith("CONDA_")
    }
    return kept | {
        "VIRTUAL_ENV": os.path.dirname(binaries),
        "PATH": os.pathsep.join(filter(None, (binaries, chosen.get("PATH", "")))),
    }
