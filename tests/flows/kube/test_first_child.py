"""A batch on a cluster whose first child compiles for the others: their pods are made once its programs are stored.

Control plane, JobSet's controller and RBAC are real. JAX is a small package of the test's project, since the pods of
these tests compile nothing that takes long: it writes the files and reports what JAX reports.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for
from flows.kube.test_followers import account

__all__ = ["account"]

pytestmark = pytest.mark.usefixtures("account")

JAX = """
    import os
    import types
    import zlib

    events, durations = [], []
    monitoring = types.SimpleNamespace(
        register_event_listener=events.append, register_event_duration_secs_listener=durations.append
    )

    def compile(name, seconds):
        \"\"\"Compile a program, or find it in the cache.\"\"\"
        for event in events:
            event("/jax/compilation_cache/compile_requests_use_cache")
        folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
        file, found = f"{folder}/{name}-cache", os.path.exists(f"{folder}/{name}-cache")
        for event in events:
            event("/jax/compilation_cache/cache_hits" if found else "/jax/compilation_cache/cache_misses")
        if found:
            for duration in durations:
                duration("/jax/compilation_cache/compile_time_saved_sec", seconds)
        else:
            os.makedirs(folder, exist_ok=True)
            with open(file, "wb") as written:
                written.write(zlib.compress(seconds.to_bytes(4, "big") + name.encode()))
        for duration in durations:
            duration("/jax/core/compile/backend_compile_duration", 0 if found else seconds)
        return found
"""
DISTRIBUTED = """
    def initialize(**_):
        pass
"""
TRAIN = """
    import os
    import time
    import kinetic

    def stay(until):
        while not os.path.exists(until):
            time.sleep(0.02)

    @kinetic.run(accelerator=ACCELERATOR)
    def train(number, folder):
        import jax
        open(f"{folder}/began-{number}", "w").close()
        stay(f"{folder}/compile")
        found = jax.compile(STEP, 100)
        stay(f"{folder}/until-{number}")
        if number == 13:
            raise ValueError("no luck")
        return found
"""


@pytest.fixture
def train(clients: Any) -> Any:
    """Return a function that writes the project, for some hardware; each call of it edits the code."""
    edits = []

    def write(accelerator: str) -> None:
        edits.append(accelerator)
        (clients.project.root / "jax").mkdir(exist_ok=True)
        clients.project.write("jax/__init__.py", textwrap.dedent(JAX))
        clients.project.write("jax/distributed.py", textwrap.dedent(DISTRIBUTED))
        head = f"ACCELERATOR, STEP = {accelerator!r}, 'step-{len(edits)}'\n"
        clients.project.write("train.py", head + textwrap.dedent(TRAIN))

    return write


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).touch()


def measure(clients: Any, shared: Path) -> None:
    """Run the function once by itself, which leaves a measurement."""
    touch(shared, "compile", "until-0")
    clients.run("from train import train\ntell(train.run_async(0, words[0]).result())", str(shared))
    for file in shared.iterdir():
        file.unlink()


def submit(clients: Any, numbers: list[int], shared: Path) -> tuple[list[str], str, str]:
    """Submit a batch from a process that ends at once; return its jobs, its id, and what was written to stderr."""
    (ids, group_id), err = clients.both(
        f"""
        from train import train
        batch = train.run_async_map([(number, words[0]) for number in {numbers}], max_concurrent=None)
        tell([[job.job_id for job in batch.jobs], batch.group_id])
        sys.stderr.flush()
        os._exit(0)
        """,
        str(shared),
    )
    return ids, group_id, err


def suspended(objects: list[dict[str, Any]]) -> list[bool]:
    return [bool(each["spec"].get("suspend")) for each in objects]


@pytest.mark.timeout(240)
def test_on_slices_the_others_are_started_by_the_first_childs_pod_when_its_programs_are_stored(
    clients: Any, site: Any, machines: Any, shared: Path, train: Any, kinetic: Any
) -> None:
    machines()
    train("tpu-v4-2x2x2")
    measure(clients, shared)
    train("tpu-v4-2x2x2")

    (first, second), group_id, said = submit(clients, [0, 1], shared)
    wait_for("the first child", (shared / "began-0").exists, seconds=60)
    explained = kinetic("jobs", "explain", second).out
    before = suspended(site.job_sets(second))
    touch(shared, "compile")
    wait_for("the start of the other", lambda: suspended(site.job_sets(second)) == [False], seconds=60)
    still = site.bucket.names(f"{first}/result")
    touch(shared, "until-0", "until-1")
    found = clients.run(f"import kinetic\ntell(kinetic.attach_batch({group_id!r}).results(timeout=120))")
    again, _, said_again = submit(clients, [0, 1], shared)

    assert "the first job compiles, and the others wait for it" in said
    assert f"waits until {first} has compiled the programs that both use" in explained
    assert (before, still) == ([True], [])  # the first child still ran
    assert found == [False, True]  # the second one compiled nothing
    assert "compiling took" not in said_again  # the cache has what this code compiles to
    assert suspended(site.job_sets(again[1])) == [False]


def test_the_others_start_without_a_client_when_the_first_child_fails_before_it_compiled(
    clients: Any, site: Any, add_node: Any, namespace: str, shared: Path, train: Any
) -> None:
    add_node(nodes.gpu(f"gpu-{namespace}", count=1))
    train("gpu-l4")
    measure(clients, shared)
    train("gpu-l4")
    clients.project.write("jax/__init__.py", "raise ValueError('no JAX')\n")

    (first, second, third), _, _ = submit(clients, [13, 0, 1], shared)
    before = suspended(site.jobs(second) + site.jobs(third))
    wait_for("the start of the others", lambda: not any(suspended(site.jobs(second) + site.jobs(third))), seconds=60)

    assert before == [True, True]
    assert site.bucket.names(f"{first}/result") != []


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_others_start_whether_the_pod_of_the_first_child_or_its_job_is_deleted_or_it_is_cancelled(
    clients: Any, site: Any, add_node: Any, namespace: str, shared: Path, train: Any, kinetic: Any
) -> None:
    for number in range(2):
        add_node(nodes.gpu(f"gpu-{number}-{namespace}", count=1))
    train("gpu-l4")
    measure(clients, shared)
    train("gpu-l4")
    seen = []
    for end in ("cancelled", "its pod is deleted", "its job is deleted"):
        for file in shared.iterdir():
            file.unlink()
        (first, second), group_id, _ = submit(clients, [0, 1], shared)
        wait_for("the first child", (shared / "began-0").exists, seconds=60)
        (shared / "began-0").unlink()
        if end == "cancelled":
            kinetic("jobs", "cancel", first)
        elif end == "its pod is deleted":
            site.api.delete(f"{site.core}/pods/{site.pods_of(first)[0]['metadata']['name']}")
            wait_for("its next pod", (shared / "began-0").exists, seconds=90)
            seen += suspended(site.jobs(second))
            touch(shared, "compile")
        else:
            (name,) = [each["metadata"]["name"] for each in site.jobs(first)]
            site.api.delete(f"{site.batch}/jobs/{name}?propagationPolicy=Background")
            wait_for("the end of its Job", lambda: not site.jobs(first))  # noqa: B023 - called here
            seen += suspended(site.jobs(second))
            kinetic("batch", "status", group_id)
        wait_for("the start of the other", lambda: suspended(site.jobs(second)) == [False])  # noqa: B023 - as above
        kinetic("batch", "cancel", group_id)

    assert seen == [True, True]
