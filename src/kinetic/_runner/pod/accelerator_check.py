"""Devices: whether the GPU or TPU that a job waits for has come up in its pod, before the machine is burnt for nothing.

Frameworks are not asked: importing one takes seconds, and opening a TPU keeps everybody else out. CUDA is asked in a
process of its own, since a process that has initialized it must not fork. What is looked at:

| kind | it is there if |
|---|---|
| gpu | the driver's library initializes and counts as many devices as were asked for |
| tpu | there is a device file (/dev/accel0, /dev/vfio/0), or an accelerator of Google's on the PCI bus |

JAX does the rest: with JAX_PLATFORMS, it raises where a device is there and its own backend does not come up.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys

from kinetic.errors import RunnerError

PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}  # of JAX; the first one is where it computes

_SECONDS = 60.0  # a driver that does not answer for so long does not work
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


def platforms(kind: str) -> dict[str, str]:
    """Return the variable that keeps JAX from computing somewhere else in silence."""
    return {"JAX_PLATFORMS": PLATFORMS[kind]} if kind in PLATFORMS else {}


def check(kind: str, count: int, *, required: bool) -> None:
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
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its driver does not answer within {_SECONDS:g} s"
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
