"""What users see of a job in a warm pod is what they see of a job in a pod of its own: all in one warm pod."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_debugger import HELPER, PROGRAM, read_configuration
from flows.kube.test_warm_pods import is_idle, pods_of_warm
from servers.debugger import Debugger

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

KEPT = """
    import os, sys, time, kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m", volumes={"/kinetic-volume/deep": kinetic.Data("set")})
    def read(path):
        print("reading", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        from kinetic._stores import open_store  # in place of what users have for buckets
        open_store(kinetic.output_dir()).put("note.txt", b"an output")
        return open("/kinetic-volume/deep/a.txt").read() + open(path).read(), os.listdir(".") != []

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def fail(number):
        seen = [name for _, _, names in os.walk("/kinetic-volume") for name in names]
        raise ValueError(f"no {number}, and {seen} of the last job")

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def hangs_here(until):
        print("hanging", flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)
        return "freed"
"""


def test_data_outputs_logs_errors_stacks_and_deadlines_are_those_of_any_job(
    clients: Any, site: Any, kinetic: Any, shared: Any
) -> None:
    clients.project.write("kept.py", KEPT)
    clients.project.write("set/a.txt", "a volume, ")
    clients.project.write("more.txt", "an argument")

    job_id, value, log = clients.run("""
        from kept import read
        job = read.run_async(kinetic.Data("more.txt"))
        tell([job.job_id, job.result(cleanup=False), job.logs()])
    """)
    outputs = kinetic("outputs", "ls", job_id)
    wait_for("an idle pod", is_idle(site, 1))
    again = clients.run("from kept import read\ntell(read(kinetic.Data('more.txt')))")
    wait_for("an idle pod", is_idle(site, 2))
    error = clients.run("""
        from kept import fail
        try:
            fail(7)
        except ValueError as error:
            tell(message(error))
    """)
    wait_for("an idle pod", is_idle(site, 3))
    hanging = clients.run(
        "from kept import hangs_here\ntell(hangs_here.run_async(words[0]).job_id)", str(shared / "go")
    )
    wait_for("its log", lambda: "hanging" in kinetic("jobs", "logs", hanging).out, 60)
    stacks, explained = kinetic("jobs", "stacks", hanging), kinetic("jobs", "explain", hanging)
    shell = kinetic("jobs", "shell", hanging, "--", "sh", "-c", "echo $KINETIC_JOB_ID; test -f kept.py && echo there")
    (shared / "go").touch()
    freed = kinetic("jobs", "result", hanging)
    wait_for("an idle pod", is_idle(site, 4))
    late = clients.run("""
        from kept import hangs_here
        job = hangs_here.with_options(deadline="2s").run_async("/never")
        tell([job.job_id, str(job.exception(timeout=90)), job.logs()])
    """)

    assert value == ["a volume, an argument", True]
    assert sorted(line for line in log.splitlines() if not line.startswith("kinetic:")) == ["reading", "to stderr"]
    assert again == value, "the same volume at the same path"
    assert "note.txt" in outputs.out, outputs.err
    assert error.startswith("no 7, and [] of the last job")
    assert "in hangs_here" in stacks.out, stacks.err
    assert "it is in the warm pod" in explained.out, explained.err
    assert shell.out.splitlines() == [hanging, "there"], shell.err
    assert freed.out == "freed\n", freed.err
    assert "deadline" in late[1], late
    assert "in hangs_here" in late[2], "its log shows where it was"
    assert len(site.pods_of()) == 1


def test_a_breakpoint_of_an_editor_is_hit_in_a_warm_pod(
    clients: Any, site: Any, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    monkeypatch.setenv("KINETIC_KEEP_WARM", "10m")
    helper = str(project.write("helper.py", HELPER))
    project.write("program.py", PROGRAM)
    clients.run("from one import add\ntell(add(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))

    client = project.start("program.py")
    configuration = read_configuration(client.stdout)
    with Debugger(configuration["connect"]["port"], configuration["pathMappings"]) as debugger:
        debugger.attach({helper: [3]})
        debugger.go_on(debugger.stopped())
        hit = debugger.stopped()
        value = debugger.evaluate("value", hit)
        debugger.go_on(hit)
        out, err = client.communicate(timeout=60)

    assert (hit["name"], hit["source"]["path"], hit["line"], value) == ("twice", helper, 3, "20")
    assert "value 41" in out, err
    wait_for("an idle pod", is_idle(site, 2))
    assert json.dumps([pod["metadata"]["labels"]["app"] for pod in site.pods_of()]) == '["kinetic-warm"]'


def test_a_batch_leaves_one_warm_pod_however_many_of_its_jobs_run_at_once(clients: Any, site: Any) -> None:
    values, said = clients.both("""
        from one import large
        batch = large.with_options(keep_warm="10m").run_async_map([256, 512])
        tell([len(value) for value in batch.results(cleanup=False)])
    """)

    assert values == [256, 512]
    assert said.count("its pod stays for 10 min 00 s after the last job as the warm pod ") == 1
    assert (len(pods_of_warm(site)), len(site.pods_of())) == (1, 2)
