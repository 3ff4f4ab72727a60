"""A pod whose accelerator comes up, or does not."""

from __future__ import annotations

import glob
import shutil
import subprocess
from pathlib import Path

import pytest

from kinetic._wire import keys
from kinetic._wire.task import FAILED_EXIT

from .conftest import JOB, Pods

SEES = "import os\ndef see():\n    print('the function')\n    return os.environ.get('JAX_PLATFORMS')"

# The driver's library, played: it initializes with one code and counts so many devices.
DRIVER = """
#include <unistd.h>
int cuInit(unsigned flags) { sleep(%(sleeps)d); return %(code)d; }
int cuDeviceGetCount(int *count) { *count = %(count)d; return 0; }
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here")
no_gpu = pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="there is a GPU here")
no_tpu = pytest.mark.skipif(
    bool(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")), reason="there is a TPU here"
)


def driver(folder: Path, *, code: int = 0, count: int = 1, sleeps: int = 0) -> dict[str, str]:
    """Build a library that plays the driver's, and return what lets a pod find it."""
    source = folder / "driver.c"
    source.write_text(DRIVER % {"code": code, "count": count, "sleeps": sleeps})
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def with_chips(pods: Pods, kind: str, chips: int = 1, *, required: bool = True) -> Pods:
    pods.tell(kind=kind, chips=chips, require_accelerator=required)
    return pods.order(SEES)


@no_gpu
@no_tpu
@pytest.mark.parametrize(("kind", "why"), [("gpu", "libcuda.so.1: cannot open"), ("tpu", "there is no /dev/accel")])
def test_a_job_whose_accelerator_does_not_come_up_fails_and_the_first_line_of_its_log_says_why(
    pods: Pods, kind: str, why: str
) -> None:
    code, _ = with_chips(pods, kind).run()

    read = pods.outcome()
    first = pods.log().splitlines()[0]
    assert code == FAILED_EXIT
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "accelerator check", "no-accelerator")
    assert first.startswith(f"kinetic: the {kind.upper()} of this pod did not come up: ")
    assert why in first
    assert "the function" not in pods.log()


@no_gpu
@no_tpu
@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_a_job_that_does_not_require_its_accelerator_runs_on_the_cpu_and_says_so_first(pods: Pods, kind: str) -> None:
    code, _ = with_chips(pods, kind, required=False).run()

    assert code == 0
    assert pods.value() == "cpu"
    first, *others = pods.log().splitlines()
    assert first.startswith(f"kinetic: the {kind.upper()} of this pod did not come up: ")
    assert first.endswith("; the job runs on the CPU")
    assert others == ["the function"]


@needs_a_compiler
def test_a_job_whose_gpus_came_up_runs_with_them_and_says_nothing(pods: Pods, tmp_path: Path) -> None:
    code, out = with_chips(pods, "gpu", 4).run(**driver(tmp_path, count=4), CUDA_VISIBLE_DEVICES="")

    assert code == 0, out
    assert (pods.value(), pods.log()) == ("cuda,cpu", "the function\n")


@needs_a_compiler
@pytest.mark.parametrize(
    ("driven", "why"),
    [
        ({"code": 100}, "CUDA says 100 (no device is detected)"),
        ({"code": 999}, "CUDA says 999"),
        ({"count": 3}, "3 of 4 are there"),
    ],
)
def test_a_driver_that_does_not_work_is_told(pods: Pods, tmp_path: Path, driven: dict[str, int], why: str) -> None:
    code, _ = with_chips(pods, "gpu", 4).run(**driver(tmp_path, **driven))

    assert code == FAILED_EXIT
    assert pods.log().splitlines()[0] == f"kinetic: the GPU of this pod did not come up: {why}"


@pytest.mark.parametrize(("kind", "platforms"), [("cpu", "cpu"), ("", None)])
def test_the_pod_says_where_jax_computes(pods: Pods, kind: str, platforms: str | None) -> None:
    with_chips(pods, kind).run()

    assert pods.value() == platforms


def test_an_image_and_a_captured_variable_know_better_where_jax_computes(pods: Pods) -> None:
    with_chips(pods, "cpu").run(JAX_PLATFORMS="of the image")
    assert pods.value() == "of the image"

    pods.store.delete(keys.result(JOB))
    (pods.secret / "environment.json").write_text('{"JAX_PLATFORMS": "captured"}')
    pods.run(JAX_PLATFORMS="of the image")
    assert pods.value() == "captured"
