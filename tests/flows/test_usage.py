"""What jobs of this machine use: true while they run, afterwards, and once collected; a short job costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MIB = 1 << 20
JOBS = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def burn(mebibytes, seconds, go="."):
        data = b"x" * (mebibytes << 20)
        until = time.monotonic() + seconds
        while time.monotonic() < until or not os.path.exists(go):
            pass
        print("burned", os.times().user + os.times().system)
        return os.times().user + os.times().system

    @kinetic.run(accelerator="cpu")
    def nothing():
        pass

    @kinetic.run(accelerator="cpu", retries=1)
    def fail_once(mebibytes):
        data = b"x" * (mebibytes << 20)
        time.sleep(1.5)
        if os.environ["KINETIC_ATTEMPT"] == "0":
            raise ValueError("the first time")

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def on_two_hosts():
        data = b"x" * ((100 if os.environ["KINETIC_HOST_INDEX"] == "1" else 20) << 20)
        time.sleep(2.5)
"""


def shown(project: Any, job_id: str) -> tuple[str, Any]:
    """Return what ``kinetic jobs show`` says of the usage of a job, as text and as JSON."""
    text = project.kinetic("jobs", "show", job_id).stdout
    page = json.loads(project.kinetic("jobs", "show", job_id, "--json").stdout)["job"]
    return next((line for line in text.splitlines() if line.startswith("usage ")), ""), page["usage"]


def test_cpu_and_memory_are_true_while_a_job_runs_afterwards_from_another_process_and_once_it_was_collected(
    project: Any, tmp_path: Path
) -> None:
    project.write("jobs.py", JOBS)

    out = project.out(f"""
        import json, time
        from jobs import burn
        job, hosts = burn.run_async(200, 4, {str(tmp_path / "go")!r}), []
        while not hosts or len(hosts[0]["samples"]) < 3:
            time.sleep(0.05)
            hosts = (live := job.usage().to_dict())["hosts"]
        assert job.running()
        open({str(tmp_path / "go")!r}, "w").close()
        job.wait()
        print(json.dumps([job.job_id, live, job.usage().to_dict()]))
    """)
    job_id, live, ended = json.loads(out)
    text, page = shown(project, job_id)
    cpu, collected = json.loads(
        project.out(f"""
        import json, kinetic
        job = kinetic.attach({job_id!r})
        print(json.dumps([job.result(), kinetic.attach({job_id!r}).usage().to_dict()]))
    """)
    )

    assert 200 * MIB < live["peak"]["memory_bytes"] < 300 * MIB
    assert 200 * MIB < ended["peak"]["memory_bytes"] < 300 * MIB
    (host,) = ended["hosts"]
    assert cpu - 0.1 < host["cpu_seconds"] < cpu + 1.0  # besides it, what the worker needs before and after
    assert 4 <= host["seconds"] < 60
    assert host["source"] == "processes"
    assert len(host["samples"]) >= 3
    assert all(0 <= sample["cpu_percent"] < 130 for sample in host["samples"])
    assert sum(sample["cpu_percent"] for sample in host["samples"]) > 0
    assert 0 < ended["peak"]["disk_used_bytes"] < host["disk_bytes"]
    assert text.startswith("usage ")
    assert "at most CPU " in text
    assert f"memory {ended['peak']['memory_bytes'] / 1e6:.1f} MB of " in text
    assert page["peak"] == ended["peak"]
    assert "samples" not in page["hosts"][0]
    assert collected == ended


def test_a_job_of_less_than_a_second_leaves_no_file_and_no_object_and_loads_nothing(project: Any, home: Any) -> None:
    project.write("jobs.py", JOBS)

    out = project.out("""
        import json
        from jobs import nothing
        job = nothing.run_async()
        job.wait()
        print(json.dumps([job.job_id, job.usage().to_dict()]))
    """)

    job_id, usage = json.loads(out)
    assert usage["hosts"] == []
    assert not [path for path in home.rglob("*usage*") if "runners" not in path.parts]
    assert shown(project, job_id) == ("", None)


def test_each_attempt_and_each_host_has_its_own(project: Any) -> None:
    project.write("jobs.py", JOBS)

    first, second, hosts = json.loads(
        project.out("""
        import json
        from jobs import fail_once, on_two_hosts
        job, both = fail_once.run_async(150), on_two_hosts.run_async()
        job.wait(), both.wait()
        print(json.dumps([job.usage(0).to_dict(), job.usage().to_dict(), both.usage().to_dict()]))
    """)
    )

    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert first["peak"]["memory_bytes"] > 150 * MIB
    assert second["peak"]["memory_bytes"] > 150 * MIB
    assert [host["host"] for host in hosts["hosts"]] == [0, 1]
    small, large = (host["peak"]["memory_bytes"] for host in hosts["hosts"])
    assert large - small > 50 * MIB
    assert hosts["peak"]["memory_bytes"] == large


def test_what_was_changed_in_the_store_is_refused(project: Any, home: Any, wait_until: Any) -> None:
    project.write("jobs.py", JOBS)
    job_id = project.out("""
        from jobs import burn
        job = burn.run_async(10, 1.3)
        job.wait()
        print(job.job_id)
    """).strip()
    stored = home / "store" / job_id / "usage" / "0" / "0"
    wait_until(stored.exists, "the usage in the store, which comes after the verdict")
    wait_until(
        lambda: not [*home.glob("run/*/jobs/*/*.usage")], "the end of the file of the machine, which is read first"
    )
    page = json.loads(stored.read_text())
    stored.write_text(json.dumps({**page, "cpu_seconds": 1e6}))

    out = project.out(f"""
        import kinetic
        try:
            kinetic.attach({job_id!r}).usage()
        except kinetic.errors.IntegrityError as error:
            print(error.code)
    """)

    assert out.strip() == "seal"
    assert shown(project, job_id) == ("", None)
