"""Pods with a real GPU, of a machine that has one: checked, measured, kept warm, and free for the next task.

The test's node shows its containers the device files and the driver, as NVIDIA's device plugin does. `make test-gpu`
runs these with those of this machine's own jobs.
"""

from __future__ import annotations

import json
import time
from glob import glob
from importlib.util import find_spec
from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for
from flows.kube.test_warm_pods import is_idle, pods_of_warm, says
from flows.test_jobs_on_gpus import COMPILING, GIB, JOBS

pytestmark = [
    pytest.mark.skipif(not glob("/dev/nvidia[0-9]*"), reason="there is no NVIDIA GPU here"),
    pytest.mark.skipif(not (find_spec("jax") and find_spec("torch")), reason="JAX and PyTorch are not installed here"),
    pytest.mark.timeout(300),
]

PODS = """
    @kinetic.run(accelerator="gpu-l4")
    def in_a_pod():
        import jax, torch
        return os.environ["JAX_PLATFORMS"], torch.cuda.device_count(), jax.devices()[0].platform

    @kinetic.run(accelerator="gpu-l4", keep_warm="10m")
    def step():
        loaded = [name for name in ("jax", "torch", "numpy") if name in sys.modules]
        begun = time.monotonic()
        import jax, torch
        imported = time.monotonic()
        numbers = jax.numpy.arange(6.0)
        jax_says = jax.devices()[0].platform, float(numbers @ numbers)
        used = time.monotonic()
        torch_says = float(torch.arange(6.0, device="cuda").square().sum())
        free, total = torch.cuda.mem_get_info()
        seconds = [imported - begun, used - imported, time.monotonic() - used]
        print("level of messages", os.environ.get("TF_CPP_MIN_LOG_LEVEL"))
        return {"loaded": loaded, "jax": jax_says, "torch": torch_says, "taken": total - free, "seconds": seconds}

    @kinetic.run(accelerator="gpu-l4", keep_warm="10m")
    def leave_warm(gibibytes):
        left = subprocess.Popen([sys.executable, "-c", LEFT, str(gibibytes)], stdout=subprocess.PIPE, text=True)
        import torch
        said = left.stdout.readline()
        free, total = torch.cuda.mem_get_info()
        return said, total - free
"""


@pytest.fixture
def gpu_node(add_node: Any, namespace: str, monkeypatch: pytest.MonkeyPatch, home: Any) -> str:
    """A machine with the GPU of this one; jobs on it fail if it does not come up."""
    monkeypatch.setenv("KINETIC_REQUIRE_ACCELERATOR", "1")
    return str(add_node(nodes.gpu(f"gpu-{namespace}")))


@pytest.fixture
def gpu_clients(gpu_node: str, clients: Any) -> Any:
    clients.project.write("jobs.py", JOBS + PODS)
    clients.project.write("compiling.py", COMPILING)
    return clients


def test_a_pod_computes_on_its_gpu_and_is_measured(gpu_clients: Any) -> None:
    seen, log, held, usage = gpu_clients.run("""
        from jobs import hold, in_a_pod
        job = in_a_pod.run_async()
        seen, log = job.result(cleanup=False), job.logs()
        job = hold.run_async(2, 12)
        job.wait()
        usage = job.usage().to_dict(samples=False)
        tell([seen, log, job.result(), usage])
    """)

    assert seen == ["cuda,cpu", 1, "gpu"]
    assert "did not come up" not in log
    (device,) = usage["hosts"][0]["devices"]
    assert (device["kind"], device["name"]) == ("gpu", held[1])
    assert 2 * GIB < usage["peak"]["device_memory_bytes"] < 5 * GIB


def test_a_warm_pod_forks_from_a_process_that_has_imported_jax_and_torch_and_each_task_uses_the_gpu(
    gpu_clients: Any, site: Any
) -> None:
    found = []
    while len(found) < 2 or (not all(each["loaded"] for each in found[-2:]) and len(found) < 9):
        found.append(gpu_clients.run("from jobs import step\ntell(step())"))
        wait_for("an idle pod", is_idle(site, len(found)))
        time.sleep(5)  # the packages are imported again after each task

    print(json.dumps(found, indent=1))
    print(says(site))
    assert found[0]["loaded"] == []
    for each in found:
        assert (each["jax"], each["torch"]) == (["gpu", 55.0], 55.0)
    for each in found[-2:]:
        assert each["loaded"] == ["jax", "torch", "numpy"], says(site)
        assert each["seconds"][0] < 0.5
    assert "imports its packages itself" not in says(site)
    assert says(site).count("level of messages 1\n") == len(found), "jax sets it when it is imported"
    assert "StreamExecutor" not in says(site)


def test_what_a_task_left_on_the_gpu_is_gone_before_the_next_one(gpu_clients: Any, site: Any) -> None:
    before = gpu_clients.run("from jobs import step\ntell(step())")["taken"]
    said, during = gpu_clients.run("from jobs import leave_warm\ntell(leave_warm(6))")
    after = gpu_clients.run("from jobs import step\ntell(step())")["taken"]

    print(before, during, after)
    assert said == "holds\n"
    assert during > 6 * GIB
    assert after < before + GIB
    assert len(pods_of_warm(site)) == 1


def test_what_a_pod_compiles_for_its_gpu_is_found_by_the_next_pod(gpu_clients: Any) -> None:
    script = """
        import compiling
        job = getattr(compiling, {!r}).run_async()
        value = job.result(cleanup=False)
        tell([value, job.logs()])
    """

    found = {name: [gpu_clients.run(script.format(name)) for _ in range(2)] for name in ("with_jax", "with_torch")}

    print(json.dumps(found, indent=1))
    (first, _), (again, log) = found["with_jax"]
    assert again[0] < first[0] / 2
    assert "from cache" in log
    (first, _), (again, _) = found["with_torch"]
    assert (first[1], first[2] > 0, first[3]) == (0, True, True)
    assert (again[1] > 0, again[2], again[3]) == (True, 0, True)
