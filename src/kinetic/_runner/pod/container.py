"""The container of a job: which host it is, its secrets and environment, its devices, and a shortage of its machine.

**Devices.** A GPU or TPU must have come up before the job runs, or the machine is paid for nothing. Frameworks are not
asked: importing one takes seconds, and opening a TPU locks it. CUDA is asked in a separate process, since a process
that has initialized it must not fork.

| kind | it is there if |
|---|---|
| gpu | the driver's library initializes and counts as many devices as were asked for |
| tpu | there is a device file (/dev/accel0, /dev/vfio/0), or an accelerator of Google's on the PCI bus |

JAX does the rest: with JAX_PLATFORMS, it raises if a device is there and its own backend does not come up.

**Node pressure.** To the cluster an eviction is a disruption like any other, so the job begins again, and would be
evicted again forever. So an attempt that is interrupted writes down what its machine was short of, and after three such
attempts in a row the next one fails the job. A kubelet evicts when 100 MiB of memory or 10 % of the disk are left,
unless configured otherwise, and then gives a pod one second. A machine that was short of something from the beginning
does not evict for that: a cluster puts no pods there.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from kinetic._runner.supervisor.verdicts import OUT_OF_REACH
from kinetic._stores.protocol import Store
from kinetic._wire import dataclass, documents, outcomes
from kinetic._wire import task as wire_task
from kinetic._wire.documents import KEY_BYTES
from kinetic._wire.outcomes import AttemptNote
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import KineticError, RunnerError

PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}  # of JAX; the first one is where it computes
MEMORY, DISK = "memory", "disk"
MOST_IN_A_ROW = 3  # attempts that failed around the job; as often as other failures around a job are retried
# A slice that is started again costs all its chips, and nothing else ends one whose function ends its pod each time.
MOST_BRIEF, BRIEF_SECONDS = 10, 60.0
SHORT_OF, WHY = "short_of", "why"  # in the details of a note
HOLD = "hold"  # in the folder of a warm pod's task that its client has not confirmed: a pipe, which says what follows

_READ_AT_START = ("PYTHON", "LD_")  # variables that an interpreter reads when it starts, and not again
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
ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")  # if the pod has its account's
_MEMINFO = Path("/proc/meminfo")  # of the machine, also inside a container
_LITTLE_KIB = 512 << 10  # of memory: more than a kubelet's own threshold, since some was given back meanwhile
_LITTLE_DISK = 0.1


@dataclass(frozen=True)
class HostInPod:
    host: int  # from 0
    restarts: int | None  # of the whole set of hosts; None if unknown
    base: Path  # a folder of this container's own
    runner: str  # the folder with this code


def page_of(argument: str) -> str:
    """Return the page that an argument of the container means: itself, or the content of ``@FILE``."""
    return Path(argument[1:]).read_text() if argument.startswith("@") else argument


def settings_of(task: Task) -> PodSettings:
    if task.pod is None:
        raise RunnerError("this task is not one of a pod", next="submit the job again")
    return task.pod


def host_of(hosts: int, environ: Mapping[str, str], *, slices: int = 1) -> int:
    """Return which host this is; raises RunnerError if there are several, and no variable has the number."""
    if hosts == 1:
        return 0
    of_slice = environ.get(wire_task.SLICE_VARIABLE, "") if slices > 1 else "0"
    for name in wire_task.HOST_VARIABLES:
        value = environ.get(name, "")
        if value.isdecimal() and of_slice.isdecimal() and int(value) < hosts // slices and int(of_slice) < slices:
            return int(of_slice) * (hosts // slices) + int(value)
    raise RunnerError(
        f"it is unknown which of {hosts} hosts this one is",
        why=f"none of {', '.join(wire_task.HOST_VARIABLES)} is a number below {hosts}",
        next="launch the job with completionMode: Indexed, or as a JobSet",
    )


def restarts_of(environ: Mapping[str, str]) -> int | None:
    """Return how often the set of hosts was started again; None if unknown."""
    value = environ.get(wire_task.RESTART_VARIABLE, "")
    return int(value) if value.isdecimal() else None


def captured(settings: PodSettings) -> dict[str, str]:
    """Read the values of captured variables; raises RunnerError if the file is there and cannot be read."""
    path = Path(settings.secret, wire_task.ENVIRONMENT_FILE)
    try:
        found = json.loads(path.read_bytes())
        return {str(name): str(value) for name, value in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise RunnerError("the captured variables of this job cannot be read", why=f"{path}: {error}") from error


def key_of(settings: PodSettings) -> bytes:
    """Read the job's key; only after the worker was started, whose memory must not hold it."""
    path = Path(settings.secret, wire_task.KEY_FILE)
    try:
        keys = path.read_bytes()
    except OSError as error:
        raise RunnerError("the key of this job cannot be read", why=f"{path}: {error}") from error
    if len(keys) % KEY_BYTES or len(keys) < settings.key_offset + KEY_BYTES:
        why = f"{path} has {len(keys)} bytes, and the key of {KEY_BYTES} would begin at {settings.key_offset}"
        raise RunnerError("the key of this job is invalid", why=why)
    return keys[settings.key_offset : settings.key_offset + KEY_BYTES]


def temporary_key(settings: PodSettings) -> AbstractContextManager[bytes]:
    """Give access to the job's key before the worker was started: nothing of it stays in this process."""
    return documents.temporary_key(Path(settings.secret, wire_task.KEY_FILE), settings.key_offset)


def check_secret(settings: PodSettings) -> None:
    """Raise RunnerError for a job without a key: its outcome could never be sealed."""
    path = Path(settings.secret, wire_task.KEY_FILE)
    if not path.is_file():
        raise RunnerError("the key of this job is missing", why=f"{path} does not exist")


def task_of(task: Task, place: HostInPod, attempt: int, environ: Mapping[str, str]) -> Task:
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
    """Return the worker's environment: ours wins over what the user captured, and that over the container's.

    Before all of them: where JAX computes, which an image or a captured variable may know better.
    """
    settings = settings_of(task)
    own = {
        "KINETIC_JOB_ID": task.job_id,
        "KINETIC_ATTEMPT": str(attempt),
        "KINETIC_OUTPUT_DIR": settings.output_dir,
        "KINETIC_CHECKPOINT_DIR": settings.checkpoint_dir,
        "KINETIC_HOST_INDEX": str(place.host),
        "KINETIC_HOST_COUNT": str(task.hosts),
        "KINETIC_SLICE_COUNT": str(task.slices) if task.slices > 1 else "",
    }
    found = {**({"JAX_PLATFORMS": PLATFORMS[task.kind]} if task.kind in PLATFORMS else {}), **environ}
    found["JOB_ID"] = task.job_id  # this and the next one: for programs written for the package that this one replaces
    if task.store_url.startswith("gs://"):
        found["GCS_BUCKET"] = task.store_url.removeprefix("gs://").partition("/")[0]
    return {**found, **captured, **{name: value for name, value in own.items() if value}}


# ------------------------------------------------------------------------------------------------------------- devices


def check_accelerator(kind: str, count: int, *, required: bool) -> None:
    """Check whether the ``count`` devices of this pod came up; if not, the first line of the log says so.

    Raises RunnerError if they are required; else the job runs on the CPU. ``kind``: anything but "gpu" and "tpu" has no
    device.
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
            next="submit it again: another machine may work; or let it run without: "
            "[tool.kinetic] require_accelerator = false, or KINETIC_REQUIRE_ACCELERATOR=0",
            code="no-accelerator",
        )
    if os.environ.get("JAX_PLATFORMS") == PLATFORMS[kind]:
        os.environ["JAX_PLATFORMS"] = "cpu"


def _gpus(count: int) -> str:
    import subprocess  # 3 ms; only jobs with a GPU

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


# ------------------------------------------------------------------------------------------------------- node pressure


def shortages(folder: Path, meminfo: Path = _MEMINFO) -> tuple[str, ...]:
    """Return what this machine is short of, of MEMORY and DISK; ``folder`` is on the machine's disk."""
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
    """Return what the machines of all of the last attempts before this one were short of, or ""."""
    return _noted_in_a_row(store, note, key, MOST_IN_A_ROW, lambda each: str(each.details.get(SHORT_OF) or ""))


def was_out_of_reach(store: Store, note: AttemptNote, key: bytes) -> bool:
    """Return whether all of the last attempts before this one ended as their data or their store was out of reach."""

    def reason(each: AttemptNote) -> str:
        why = str(each.details.get(WHY) or "")
        return why if why.startswith(OUT_OF_REACH) else ""

    return bool(_noted_in_a_row(store, note, key, MOST_IN_A_ROW, reason))


def brief_attempts(store: Store, note: AttemptNote, key: bytes) -> str:
    """Return why the latest attempt of a slice ended if many before this one ended soon after they began, or ""."""

    def reason(each: AttemptNote) -> str:
        ended = each.details.get("ended")
        is_brief = isinstance(ended, int | float) and ended - each.started < BRIEF_SECONDS
        return str(each.details.get(WHY) or "") if is_brief else ""

    return _noted_in_a_row(store, note, key, MOST_BRIEF, reason)


def _noted_in_a_row(
    store: Store, note: AttemptNote, key: bytes, count: int, noted: Callable[[AttemptNote], str]
) -> str:
    """Return what the latest attempt before this one has noted; "" if not all of so many have noted something."""
    found = ""
    for attempt in range(note.attempt - 1, note.attempt - 1 - count, -1):
        text = ""
        if attempt >= 0:
            with contextlib.suppress(KineticError):  # missing or unreadable
                text = noted(outcomes.read_note(store, note.job_id, attempt, key))
        if not text:
            return ""
        found = found or text
    return found


def eviction_message(shortage: str) -> str:
    how = f'resources = {{ {shortage} = "64Gi" }} under [tool.kinetic] in pyproject.toml asks for more'
    return f"{MOST_IN_A_ROW} times in a row its machine ran out of {shortage}, and it was evicted; {how}"
