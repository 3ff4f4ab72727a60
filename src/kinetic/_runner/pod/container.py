"""From the task of a pod and the container's environment to that of this host."""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from kinetic._stores.protocol import Store
from kinetic._wire import documents, outcomes
from kinetic._wire import task as wire_task
from kinetic._wire.documents import KEY_BYTES
from kinetic._wire.outcomes import AttemptNote
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import KineticError, RunnerError

PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}  # of JAX; the first one is where it computes

_DRIVER_SECONDS = 60.0  # a driver that does not answer for so long does not work
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")
_GOOGLE = "0x1ae0"  # vendor on the PCI bus
_NO_ACCELERATORS = ("0x01", "0x02")  # classes of what else Google puts there: disks and network cards
_CUDA = """
import ctypes
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
print(code, count.value)
"""
_CUDA_ERRORS = {
    100: "no device is detected",
    101: "invalid device",
    802: "the system is not ready",
    803: "driver mismatch",
}


def jax_platforms(kind: str) -> dict[str, str]:
    """Return the variable that keeps JAX from computing somewhere else in silence."""
    return {"JAX_PLATFORMS": PLATFORMS[kind]} if kind in PLATFORMS else {}


def check_accelerator(kind: str, count: int, *, required: bool) -> None:
    """Look whether the devices of this pod came up; where they did not, the first line of the log says so.

    Args:
        kind: "gpu" or "tpu"; anything else has no device.
        count: How many devices this pod was given.
        required: Whether the job fails without them; else it runs on the CPU.

    Raises:
        RunnerError: They did not come up, and they are required.
    """
    why = {"gpu": _gpus, "tpu": _tpus}[kind](count) if kind in {"gpu", "tpu"} else ""
    if not why:
        return
    what = f"the {kind.upper()} of this pod did not come up"
    sys.stderr.write(f"kinetic: {what}: {why}{'' if required else '; the job runs on the CPU'}\n")
    sys.stderr.flush()
    if required:
        raise RunnerError(
            what,
            why=why,
            next="submit it again: another machine may do; or let it run without: "
            "[tool.kinetic] require_accelerator = false, or KINETIC_REQUIRE_ACCELERATOR=0",
            code="no-accelerator",
        )
    if os.environ.get("JAX_PLATFORMS") == PLATFORMS[kind]:
        os.environ["JAX_PLATFORMS"] = "cpu"


def _gpus(count: int) -> str:
    """Return why there are too few GPUs, or ""."""
    # What the user hides from the function, or what an image hides, is not what this pod lacks.
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    words = [sys.executable, "-I", "-c", _CUDA]
    try:
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its driver does not answer within {_DRIVER_SECONDS:g} s"
    except OSError as error:
        return f"its driver cannot be asked: {error}"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"the driver ended with {done.returncode}"])[-1]
    code, found = map(int, done.stdout.split())
    if code:
        return f"CUDA says {code}" + (f" ({_CUDA_ERRORS[code]})" if code in _CUDA_ERRORS else "")
    return f"{found} of {count} are there" if found < count else ""


def _tpus(_: int) -> str:
    """Return why there is no TPU, or ""; files are not counted, since generations differ in how many a chip has."""
    if any(glob.glob(pattern) for pattern in _TPU_FILES) or any(map(_is_a_tpu, glob.glob("/sys/bus/pci/devices/*"))):
        return ""
    return f"there is no {' or '.join(_TPU_FILES)}, and no accelerator of Google's on the PCI bus"


def _is_a_tpu(device: str) -> bool:
    try:
        with open(f"{device}/vendor") as vendor, open(f"{device}/class") as kind:
            return vendor.read().strip() == _GOOGLE and not kind.read().startswith(_NO_ACCELERATORS)
    except OSError:
        return False


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
    if len(keys) % KEY_BYTES or len(keys) < settings.key_offset + KEY_BYTES:
        why = f"{path} has {len(keys)} bytes, and the key of {KEY_BYTES} would begin at {settings.key_offset}"
        raise RunnerError("the key of this job is none", why=why)
    return keys[settings.key_offset : settings.key_offset + KEY_BYTES]


def temporary_key(settings: PodSettings) -> AbstractContextManager[bytes]:
    """Lend the job's key before the worker was started: nothing of it stays in this process."""
    return documents.temporary_key(Path(settings.secret, wire_task.KEY_FILE), settings.key_offset)


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
        **jax_platforms(task.kind),
        **environ,
        **_compatibility_variables(task),
        **captured,
        **{name: value for name, value in own.items() if value},
    }


def _compatibility_variables(task: Task) -> dict[str, str]:
    """Return what programs for the package that this one replaces look for."""
    found = {"JOB_ID": task.job_id}
    if task.store_url.startswith("gs://"):
        found["GCS_BUCKET"] = task.store_url.removeprefix("gs://").partition("/")[0]
    return found


MEMORY, DISK = "memory", "disk"
MOST_EVICTIONS = 3  # attempts in a row; as often as other failures of what is around a job are tried again
SHORT_OF = "short_of"  # in the details of a note
_MEMINFO = Path("/proc/meminfo")  # of the machine, also inside a container
_LITTLE_KIB = 512 << 10  # of memory: more than a kubelet's own threshold, since some was given back meanwhile
_LITTLE_DISK = 0.1


def shortages(folder: Path, meminfo: Path = _MEMINFO) -> tuple[str, ...]:
    """Return what this machine is short of, of MEMORY and DISK.

    Args:
        folder: A folder of this container's own, which lies on the machine's disk.
        meminfo: Where the kernel tells of memory.
    """
    return (*((MEMORY,) if _is_short_of_memory(meminfo) else ()), *((DISK,) if _is_short_of_disk(folder) else ()))


def _is_short_of_memory(meminfo: Path) -> bool:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) < _LITTLE_KIB
    except (OSError, ValueError, KeyError):
        return False


def _is_short_of_disk(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and disk.f_bavail / disk.f_blocks < _LITTLE_DISK


def lasting_shortage(store: Store, note: AttemptNote, key: bytes) -> str:
    """Return what the machines of all of the last attempts before this one were short of, or "".

    Args:
        store: Where the job lies.
        note: Of this attempt.
        key: The job's key.
    """
    found = ""
    for attempt in range(note.attempt - 1, note.attempt - 1 - MOST_EVICTIONS, -1):
        said = _noted_shortage(store, note.job_id, attempt, key) if attempt >= 0 else ""
        if not said:
            return ""
        found = found or said
    return found


def eviction_message(lacking: str) -> str:
    """Return why a job is given up."""
    how = f'resources = {{ {lacking} = "64Gi" }} under [tool.kinetic] in pyproject.toml asks for more'
    return f"{MOST_EVICTIONS} times in a row its machine ran out of {lacking}, and it was evicted; {how}"


def _noted_shortage(store: Store, job_id: str, attempt: int, key: bytes) -> str:
    try:
        return str(outcomes.read_note(store, job_id, attempt, key).details.get(SHORT_OF) or "")
    except KineticError:  # not there, or not to be read now: then nobody knows
        return ""
