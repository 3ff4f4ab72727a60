"""What a job in a pod uses: told from the store while it runs, and afterwards from another process."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cluster.fixtures import REAL

pytestmark = pytest.mark.usefixtures("machine")

MIB = 1 << 20
JOBS = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def hold(mebibytes, until, seconds=0.0):
        data = b"x" * (mebibytes << 20)
        print("held", time.time(), flush=True)
        began = time.monotonic()
        while time.monotonic() < began + seconds or (until and not os.path.exists(until)):
            pass
        return time.process_time()

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def on_two_hosts():
        data = b"x" * ((100 if os.environ["KINETIC_HOST_INDEX"] == "1" else 20) << 20)
        time.sleep(4)
"""


@pytest.mark.real_node
def test_memory_and_cpu_of_a_pod_are_read_while_it_runs_and_kept_when_it_is_collected(
    clients: Any, shared: Any, site: Any, kinetic: Any
) -> None:
    clients.project.write("held.py", JOBS)

    job_id, live, ended, cpu, kept = clients.run(f"""
        import time
        import kinetic
        from held import hold
        job = hold.run_async(200, {str(shared / "until")!r})
        limit = time.monotonic() + 60
        while not (live := job.usage()).hosts:
            assert time.monotonic() < limit
            time.sleep(0.2)
        open({str(shared / "until")!r}, "w").close()
        job.wait()
        ended = job.usage().to_dict()
        cpu = job.result()
        tell([job.job_id, live.to_dict(), ended, cpu, kinetic.attach(job.job_id).usage().to_dict()])
    """)

    assert 200 * MIB < live["peak"]["memory_bytes"] < 400 * MIB
    assert 200 * MIB < ended["peak"]["memory_bytes"] < 400 * MIB
    (host,) = ended["hosts"]
    assert cpu - 1.5 < host["cpu_seconds"] < cpu + 5
    assert host["memory_limit_bytes"] > 200 * MIB
    assert host["source"] == ("cgroup" if REAL else "processes")  # the agent's containers have no group of their own
    assert host["seconds"] > live["hosts"][0]["seconds"]
    assert kept == ended
    assert site.bucket.names(f"{job_id}/") == []
    seen, word, printed = kinetic("jobs", "logs", job_id, "--timestamps", "--search", "held").out.split()
    assert (word, abs(datetime.fromisoformat(seen).timestamp() - float(printed)) < 5) == ("held", True)
    until = datetime.fromtimestamp(float(printed) - 5, UTC).isoformat()
    assert kinetic("jobs", "logs", job_id, "--until", until, "--search", "held").out == ""


def test_a_pod_of_less_than_a_second_writes_nothing_and_one_of_two_seconds_one_page(clients: Any, site: Any) -> None:
    clients.project.write("held.py", JOBS)
    short, longer = clients.run("""
        from held import hold
        short, longer = hold.run_async(1, ""), hold.run_async(1, "", 2.0)
        short.wait(), longer.wait()
        tell([short.job_id, longer.job_id])
    """)

    assert site.bucket.names(f"{short}/usage/") == []
    (name,) = site.bucket.names(f"{longer}/usage/")
    page = json.loads(site.bucket.read("jobs-of-a-test", f"below/{name}"))
    assert page["rows"]
    assert page["mac"]


def test_the_progress_of_a_pod_of_milliseconds_is_in_its_sealed_page(clients: Any, site: Any) -> None:
    clients.project.write(
        "reports.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(steps):
            for step in range(steps):
                kinetic.progress(step + 1, steps, loss=0.5)
        """,
    )
    job_id, found = clients.run("""
        from reports import train
        job = train.run_async(400)
        job.wait()
        tell([job.job_id, job.progress().to_json()])
    """)

    assert (found["done"], found["total"], found["metrics"]) == (400, 400, {"loss": 0.5})
    (name,) = site.bucket.names(f"{job_id}/usage/")
    assert json.loads(site.bucket.read("jobs-of-a-test", f"below/{name}"))["mac"]


def test_each_host_of_a_slice_tells_what_it_uses(clients: Any, machines: Any, site: Any) -> None:
    machines()
    clients.project.write("held.py", JOBS)

    job_id, usage, kept = clients.run("""
        import kinetic
        from held import on_two_hosts
        job = on_two_hosts.run_async()
        job.wait()
        usage = job.usage().to_dict()
        job.result()
        tell([job.job_id, usage, kinetic.attach(job.job_id).usage().to_dict()])
    """)

    assert [host["host"] for host in usage["hosts"]] == [0, 1]
    small, large = (host["peak"]["memory_bytes"] for host in usage["hosts"])
    assert large - small > 50 * MIB
    assert usage["peak"]["memory_bytes"] == large
    assert kept == usage
    assert site.bucket.names(f"{job_id}/usage/") == []
