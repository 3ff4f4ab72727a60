"""Programs are compiled once: real JAX in real jobs of this machine, and real PyTorch where it is installed."""

from __future__ import annotations

import json
import os
import re
from importlib.util import find_spec

import pytest
from flows.programs import COMPILES, FAKE_TORCH

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="real PyTorch is needed, and it is not installed here"
)

JOBS = f"""
    import os
    import pathlib
    import sys

    import kinetic
    {COMPILES}
    @kinetic.run(accelerator="cpu")
    def compiles(number):
        found = is_found(4), number and is_found()
        from kinetic._runner.worker.compilers import whole_seconds
        folder = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
        print("large:", sum(whole_seconds(file) != 0 for file in pathlib.Path(folder or "off").glob("*-cache")))
        return *found, folder

    @kinetic.run(accelerator="cpu")
    def nothing(number):
        import os
        import threading
        return [name for name in sys.modules if "compile_cache" in name], len(threading.enumerate()), \\
            [name for name in os.environ if "CACHE" in name]
"""


@needs_jax
def test_a_job_finds_what_another_compiled_unless_that_is_turned_off(project, home, wait_until, monkeypatch) -> None:
    script = f"""{JOBS}
    if __name__ == "__main__":
        job = compiles.run_async(int(sys.argv[1]))
        print(*job.result(cleanup=False))
        print(job.tail(20))
    """
    first = project.out(script, "1")
    again = project.out(script, "1")
    listed = json.loads(project.kinetic("cache", "list", "--json").stdout)
    monkeypatch.setenv("KINETIC_COMPILE_CACHE", "off")
    off = project.out(script, "0")

    assert first.startswith("False False /")
    assert "from cache" not in first
    assert again.startswith("True True /")
    assert " from cache (saved" in again
    assert off.splitlines()[0] == "False 0 "  # no folder
    assert "compile" not in off
    assert [(each["library"], each["hardware"]) for each in listed["groups"]] == [("jax", "cpu")]
    large = int(first.partition("large: ")[2].split()[0])
    assert listed["groups"][0]["files"] == large + 1, "each large program, and the small ones together"
    wait_until(lambda: not [*home.glob("run/*/jobs/*/data-*")], "the end of what the jobs read")


@needs_jax
def test_programs_of_tenths_of_a_second_are_found_by_the_next_job_of_the_same_function(project) -> None:
    script = """
        import re, sys
        import kinetic

        def compiles():
            import jax
            import jax.numpy as jnp

            def program(x, number):
                for i in range(4):
                    x = jnp.sort(jnp.sin(x) @ jnp.cos(x) + jnp.tanh(x) * (i + number), axis=i % 2)
                return x

            jitted = jax.jit(program, static_argnums=1)
            return float(sum(jitted(jnp.ones((8, 8)), number).sum() for number in range(6)))

        train = kinetic.run(accelerator="cpu")(compiles)

        @kinetic.run(accelerator="cpu")
        def evaluate():
            return compiles()

        if __name__ == "__main__":
            job = (train if sys.argv[1] == "train" else evaluate).run_async()
            value = job.result(cleanup=False)
            print(value, *re.findall(r"(\\d+) (?:programs? )?from cache", job.logs()) or "0")
    """
    first, again, other, other_again = (
        project.out(script, name).split() for name in ("train", "train", "eval", "eval")
    )

    assert len({each[0] for each in (first, again, other, other_again)}) == 1
    assert int(first[1]) == 0
    assert int(other[1]) < 6, "of another function, only what took a busy machine a second is fetched"
    assert int(again[1]) >= 6
    assert int(other_again[1]) >= 6


@needs_jax
def test_the_first_job_of_a_batch_fills_the_cache_for_those_that_start_after_it(project, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")

    out = project.out(f"""{JOBS}
    if __name__ == "__main__":
        batch = compiles.run_async_map([1, 2], input_mode="single")
        print(*(found for _, found, _ in batch.results()))
    """)

    assert out == "False True\n"


def test_a_job_that_compiles_nothing_loads_nothing_and_leaves_nothing(project, home) -> None:
    out = project.out(f"""{JOBS}
    if __name__ == "__main__":
        print(nothing(0))
    """)

    assert out.startswith("([], 1, [])")  # the main thread; the one that flushes is none of Python's objects
    assert not (home / "store" / "data" / "compiled").exists()


@needs_jax
def test_all_hosts_of_a_slice_see_the_same_programs(project) -> None:
    script = """
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2")
        def compiles():
            import os
            os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            import jax
            import jax.numpy as jnp
            import numpy as np
            from jax.sharding import Mesh, NamedSharding, PartitionSpec

            spread = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
            numbers = jax.make_array_from_callback((8,), spread, lambda index: np.arange(8.0)[index])

            def program(v):
                x = jnp.outer(v, v)
                for i in range(4):
                    x = jnp.sort(jnp.sin(x) @ jnp.cos(x) + jnp.tanh(x) * i, axis=i % 2)
                return x.sum()

            folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
            os.makedirs(folder, exist_ok=True)
            compiled = jax.jit(program, out_shardings=NamedSharding(spread.mesh, PartitionSpec())).lower(numbers)
            jax.jit(jnp.sum, out_shardings=NamedSharding(spread.mesh, PartitionSpec()))(numbers)  # waits for the cache
            print("HOST", os.environ["KINETIC_HOST_INDEX"], "HAS", sorted(os.listdir(folder)))
            compiled.compile()

        if __name__ == "__main__":
            job = compiles.run_async()
            job.result(cleanup=False)
            print(job.job_id)
    """
    job_ids = [project.out(script).split()[-1] for _ in range(2)]

    log = project.kinetic("jobs", "logs", job_ids[1], "--host", "all").stdout

    seen = sorted(line.partition("HOST ")[2] for line in log.splitlines() if "HOST " in line)
    assert [line[0] for line in seen] == ["0", "1"]
    assert seen[0][1:] == seen[1][1:]
    assert "-cache" in seen[0]
    assert "from cache (saved" in log


@needs_torch
@pytest.mark.timeout(600)  # importing its compiler takes a minute on a busy machine
def test_torch_compile_finds_what_another_job_compiled(project) -> None:
    script = """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def compiles():
            import torch

            def program(x):
                return torch.softmax(torch.sin(x) @ torch.cos(x), dim=0)

            torch.compile(program)(torch.ones(8, 8))
            counted = torch._dynamo.utils.counters["inductor"]
            return counted["fxgraph_cache_hit"], counted["fxgraph_cache_miss"]

        if __name__ == "__main__":
            print(compiles())
    """
    project.write("torch_twice.py", script)

    first, again, with_libraries_ahead = (project.run("torch_twice.py", timeout=280) for _ in range(3))

    assert first.stdout.splitlines()[-1:] == ["(0, 1)"], first.stderr
    for done in (again, with_libraries_ahead):
        assert done.stdout.splitlines()[-1:] == ["(1, 0)"], done.stderr
        assert re.search(r"compile cache of torch: \d\d files found", done.stdout), done.stdout


@needs_jax
@pytest.mark.nightly
def test_a_command_finds_what_another_job_compiled_and_its_log_has_the_same_line(project) -> None:
    project.write("programs.py", JOBS)
    project.write("train.py", "import programs\nprint(*programs.compiles.local(1))\n")
    train = ("run", "--", "sh", "-c", "python train.py")
    job = "import programs\nif __name__ == '__main__':\n    print(programs.compiles(1)[1])\n"

    first = project.kinetic(*train).stdout
    again = project.kinetic(*train).stdout
    function = project.out(job)

    assert "kinetic: compiled " in first
    assert "from cache" not in first
    assert " from cache (saved" in again  # on a busy machine, more programs than one take long enough to be kept
    found = [next(line for line in text.splitlines() if "large:" not in line) for text in (first, again)]
    assert (found[0].split()[1], found[1].split()[1], function.split()[-1]) == ("False", "True", "True")


def test_a_command_that_uses_torch_gets_the_folders_of_torch_filled_and_one_that_does_not_leaves_nothing(
    project, home, wait_until
) -> None:
    project.write("torch/__init__.py", "")
    project.write("torch/_inductor.py", FAKE_TORCH)
    command = ("run", "--", "python", "-c")

    nothing = project.kinetic(*command, "import torch, os; print(os.environ['VLLM_CACHE_ROOT'])").stdout
    left = (home / "store" / "data" / "compiled").exists()
    first, again = (project.kinetic(*command, "import torch._inductor").stdout for _ in range(2))

    assert nothing.rstrip().startswith(f"/tmp/kinetic-{os.getuid()}-compiled/vllm-")
    assert not left
    assert first.splitlines()[:2] == ["TORCHINDUCTOR_CACHE_DIR compiles", "TRITON_CACHE_DIR compiles"]
    assert "compile cache of torch: 0 files found, 2 added" in first
    assert [line.split()[1] for line in again.splitlines()[:2]] == ["made", "made"]
    assert "compile cache of torch: 2 files found, 0 added" in again
    wait_until(lambda: not list(home.glob("run/*/jobs/*/data-*")), "the end of the jobs' folders")


def test_the_hosts_of_a_command_on_a_slice_find_what_the_first_one_compiled_and_nothing_else(project) -> None:
    project.write("torch/__init__.py", "")
    project.write("torch/_inductor.py", FAKE_TORCH)
    command = ("run", "-a", "tpu-v4-2x2x2", "--", "python", "-c")

    logs = []
    for _ in range(2):
        project.kinetic(*command, "import torch._inductor")
        logs.append(project.kinetic("jobs", "logs", "@last", "--host", "all").stdout)

    first, log = logs
    assert "TORCHINDUCTOR_CACHE_DIR compiles" in first  # by the host that came first
    found = re.findall(r"^\[host (\d)\] TORCHINDUCTOR_CACHE_DIR made by (\d+)$", log, re.MULTILINE)
    assert [host for host, _ in sorted(found)] == ["0", "1"]
    assert len({maker for _, maker in found}) == 1
    assert log.count("compile cache of torch: 2 files found, 0 added") == 2
