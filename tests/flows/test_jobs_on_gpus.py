"""Jobs on a real GPU of this machine: they compute on it, are measured, leave nothing on it, and compile once.

They run where there are an NVIDIA GPU, JAX with CUDA, and PyTorch; `make test-gpu` runs them alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from glob import glob
from importlib.util import find_spec
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(not glob("/dev/nvidia[0-9]*"), reason="there is no NVIDIA GPU here"),
    pytest.mark.skipif(not (find_spec("jax") and find_spec("torch")), reason="JAX and PyTorch are not installed here"),
    pytest.mark.timeout(300),
]

GIB = 1 << 30
JOBS = """
    import os, subprocess, sys, time
    import kinetic

    def see():
        import jax, torch
        numbers = jax.numpy.arange(6.0).reshape(2, 3)
        jax_says = jax.devices()[0].platform, jax.numpy.dot(numbers, numbers.T).tolist()
        return os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), *jax_says

    on_gpu = kinetic.run(accelerator="gpu-l4")(see)
    on_cpu = kinetic.run(accelerator="cpu")(see)

    @kinetic.run(accelerator="gpu-l4")
    def hold(gibibytes, seconds):
        import torch
        data = torch.ones(gibibytes << 30, dtype=torch.uint8, device="cuda")
        square = torch.rand(4096, 4096, device="cuda")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            square = (square @ square).clamp(0, 1)
            torch.cuda.synchronize()
        return os.getppid(), torch.cuda.get_device_name(), int(data[0])

    LEFT = (
        "import os, sys, time, torch\\n"
        "os.setsid()\\n"
        "data = torch.ones(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda')\\n"
        "torch.cuda.synchronize()\\n"
        "print('holds', flush=True)\\n"
        "time.sleep(1000)\\n"
    )

    @kinetic.run(accelerator="gpu-l4")
    def leave(gibibytes):
        left = subprocess.Popen([sys.executable, "-c", LEFT, str(gibibytes)], stdout=subprocess.PIPE, text=True)
        return left.stdout.readline(), used_bytes()

    def used_bytes():
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[0]) << 20

    @kinetic.run(accelerator="gpu-l4")
    def step():
        begun = time.monotonic()
        import jax, torch
        imported = time.monotonic()
        numbers = jax.numpy.arange(6.0)
        jax_says = jax.devices()[0].platform, float(numbers @ numbers)
        torch_says = float(torch.arange(6.0, device="cuda").square().sum())
        return imported - begun, jax_says, torch_says, os.getpid()

    @kinetic.run(accelerator="gpu-l4")
    def weights():
        import torch
        model = torch.nn.Linear(3, 2, device="cuda")
        torch.nn.init.ones_(model.weight)
        return {"state": model.state_dict(), "model": model, "device": str(model.weight.device)}

    @kinetic.run(accelerator="cpu")
    def add_up(found):
        return float(found["state"]["weight"].sum()), str(found["model"].weight.device)
"""
# What XLA compiles for a GPU in some seconds, and what PyTorch's compiler makes kernels of with Triton.
COMPILING = """
    import os, time
    import kinetic

    @kinetic.run(accelerator="gpu-l4")
    def with_jax():
        import jax, jax.numpy as jnp

        def program(x):
            for number in range(60):
                x = jnp.sort(jnp.sin(x) @ jnp.cos(x) + jnp.tanh(x) * number, axis=number % 2)
            return x

        numbers = jnp.ones((64, 64))
        lowered = jax.jit(program).lower(numbers)
        begun = time.monotonic()
        compiled = lowered.compile()
        took = time.monotonic() - begun
        return took, float(compiled(numbers).sum())

    @kinetic.run(accelerator="gpu-l4")
    def with_torch():
        import torch

        def program(x):
            for number in range(12):
                x = torch.softmax(torch.sin(x) * number + torch.cos(x.T), dim=number % 2)
            return x

        numbers = torch.rand(512, 512, device="cuda")
        begun = time.monotonic()
        found = torch.compile(program)(numbers)
        torch.cuda.synchronize()
        took = time.monotonic() - begun
        counted = torch._dynamo.utils.counters["inductor"]
        is_right = torch.allclose(found, program(numbers), atol=1e-4)
        return took, counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"], is_right
"""


def test_a_job_computes_on_the_gpu_and_a_job_for_the_cpu_sees_none(project: Any) -> None:
    project.write("jobs.py", JOBS)

    gpu, cpu = json.loads(
        project.out("import json\nfrom jobs import on_cpu, on_gpu\nprint(json.dumps([on_gpu(), on_cpu()]))")
    )

    assert gpu == ["0", 1, "gpu", [[5.0, 14.0], [14.0, 50.0]]]
    assert cpu == ["", 0, "cpu", [[5.0, 14.0], [14.0, 50.0]]]


def test_a_job_finds_jax_and_torch_imported_and_has_the_gpu_as_one_that_imported_them_itself(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    project.write("jobs.py", JOBS)

    found = json.loads(
        project.out("""
        import json, time
        from jobs import step, used_bytes
        found, limit = [step()], time.monotonic() + 120
        while found[-1][0] > found[0][0] / 5:
            assert time.monotonic() < limit, found
            time.sleep(1)
            found.append(step())
        found += [step(), step()]
        print(json.dumps([found, used_bytes()]))
        """).splitlines()[-1]
    )

    (first, *others), left = found
    assert all(other[1:3] == first[1:3] == [["gpu", 55.0], 55.0] for other in others)
    assert [other[0] < first[0] / 5 for other in others[-3:]] == [True] * 3
    assert len({each[3] for each in [first, *others]}) == 1 + len(others), "each job is a process of its own"
    assert left < GIB, "the process that has imported them has opened no GPU"


@pytest.mark.parametrize("variables", [{"KINETIC_LOCAL_GPUS": "none"}, {"CUDA_VISIBLE_DEVICES": ""}])
def test_a_job_for_a_gpu_runs_on_the_cpu_where_it_may_use_none(project: Any, monkeypatch: Any, variables: Any) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    project.write("jobs.py", JOBS)

    project.write("script.py", "import json\nfrom jobs import on_gpu\nprint(json.dumps(on_gpu()))")
    done = project.run("script.py", timeout=120)

    assert done.stdout == json.dumps(["", 0, "cpu", [[5.0, 14.0], [14.0, 50.0]]]) + "\n", done.stderr
    assert "this machine has no gpu-l4: the job runs on the CPU" in done.stderr


def test_what_jobs_use_of_the_gpu_is_measured_in_each_of_one_supervisor(project: Any) -> None:
    project.write("jobs.py", JOBS)

    found = json.loads(
        project.out("""
        import json
        from jobs import hold
        found = []
        for gibibytes in (2, 3):
            job = hold.run_async(gibibytes, 5)
            job.wait()
            usage = job.usage().to_dict(samples=False)
            found.append([job.result(), usage])
        print(json.dumps(found))
    """)
    )

    (first, before), (second, after) = found
    assert first[0] == second[0], "both were forked from one supervisor, which had the driver's library open in between"
    for gibibytes, (_, name, value), usage in ((2, first, before), (3, second, after)):
        assert value == 1
        (device,) = usage["hosts"][0]["devices"]
        assert (device["kind"], device["name"]) == ("gpu", name)
        assert device["memory_bytes"] > 10 * GIB
        assert gibibytes * GIB < usage["peak"]["device_memory_bytes"] < (gibibytes + 3) * GIB
        assert 20 < usage["peak"]["device_percent"] <= 100


def test_a_process_that_a_job_leaves_on_the_gpu_is_ended_and_its_memory_is_free(project: Any, wait_until: Any) -> None:
    project.write("jobs.py", JOBS)

    before, (said, during), after = json.loads(
        project.out("""
        import json, time
        from jobs import leave, used_bytes
        before = used_bytes()
        left = leave(4)
        limit = time.monotonic() + 20
        while used_bytes() > before + (1 << 30) and time.monotonic() < limit:
            time.sleep(0.1)
        print(json.dumps([before, left, used_bytes()]))
    """)
    )

    assert said == "holds\n"
    assert during > before + 4 * GIB
    assert after < before + GIB


def test_a_cancelled_job_gives_back_the_memory_of_the_gpu(project: Any) -> None:
    project.write("jobs.py", JOBS)

    before, during, after = json.loads(
        project.out("""
        import json, time
        from jobs import hold, used_bytes
        before = used_bytes()
        job = hold.run_async(4, 1000)
        limit = time.monotonic() + 60
        while (during := used_bytes()) < before + (4 << 30):
            assert time.monotonic() < limit
            time.sleep(0.1)
        job.cancel()
        job.wait()
        limit = time.monotonic() + 20
        while used_bytes() > before + (1 << 30) and time.monotonic() < limit:
            time.sleep(0.1)
        print(json.dumps([before, during, used_bytes()]))
    """)
    )

    assert during >= before + 4 * GIB
    assert after < before + GIB


def test_tensors_of_a_gpu_are_opened_where_there_is_none_by_clients_and_by_jobs_that_follow(
    project: Any, monkeypatch: Any
) -> None:
    project.write("jobs.py", JOBS)
    ids = json.loads(
        project.out("""
        import json
        from jobs import add_up, weights
        made = weights.run_async()
        followed = add_up.run_async(made)
        kept = made.result(cleanup=False)
        assert str(kept["model"].weight.device) == kept["device"] == "cuda:0"  # where the GPU is, they stay on it
        print(json.dumps([made.job_id, followed.job_id, followed.result(cleanup=False)]))
    """)
    )
    log = project.kinetic("jobs", "logs", ids[1]).stdout
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    project.write(
        "elsewhere.py",
        f"""
        import json, kinetic
        found = kinetic.attach({ids[0]!r}).result()
        print(json.dumps([float(found["state"]["weight"].sum()), str(found["model"].weight.device), found["device"]]))
    """,
    )
    done = project.run("elsewhere.py", timeout=120)

    assert ids[2] == [6.0, "cpu"]
    assert "they are on the CPU now" in log
    assert json.loads(done.stdout) == [6.0, "cpu", "cuda:0"], done.stderr
    assert "the tensors of this result were on a device that is not here" in done.stderr


def test_what_jax_and_torch_compile_for_a_gpu_is_found_by_the_next_job(project: Any) -> None:
    project.write("compiling.py", COMPILING)
    script = """
        import json, sys
        import compiling
        job = getattr(compiling, sys.argv[1]).run_async()
        value = job.result(cleanup=False)
        print(json.dumps([value, job.logs()]))
    """

    found = {name: [json.loads(project.out(script, name)) for _ in range(2)] for name in ("with_jax", "with_torch")}
    listed = json.loads(project.kinetic("cache", "list", "--json").stdout)

    print(json.dumps(found, indent=1))
    (first, _), (again, log) = found["with_jax"]
    assert again[0] < first[0] / 2
    assert again[1] == first[1]
    assert "from cache" in log
    (first, _), (again, log) = found["with_torch"]
    assert (first[1], first[2] > 0, first[3]) == (0, True, True)
    assert (again[1] > 0, again[2], again[3]) == (True, 0, True)
    assert again[0] < first[0]
    assert {(each["library"], each["hardware"].startswith("gpu")) for each in listed["groups"]} == {
        ("jax", True),
        ("torch", True),
    }, listed


def test_a_pod_knows_that_a_gpu_is_missing() -> None:
    code = "from kinetic._runner.pod.container import _gpus; print(repr(_gpus({})))"

    one, nine = (
        subprocess.run([sys.executable, "-c", code.format(count)], check=True, capture_output=True, text=True).stdout
        for count in (1, 9)
    )

    assert one.strip() == "''"
    assert " of 9 are there" in nine


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="only root hides a device file")
def test_a_pod_knows_that_the_file_of_its_gpu_is_missing() -> None:
    code = "from kinetic._runner.pod.container import _gpus; print(repr(_gpus(1)))"
    hide = 'for file in /dev/nvidia[0-9]*; do mount --bind /dev/null "$file"; done; exec "$@"'

    words = ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", code]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout

    assert told.startswith("'CUDA says "), told
