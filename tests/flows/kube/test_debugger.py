"""The debugger in a pod: an editor's breakpoint by local path, through the API server, and the job's value."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from cluster import images
from cluster.plane import wait_for
from servers.debugger import Debugger
from servers.wheels import environment_with_pip

from kinetic._inspect.port_forward import free_port

PROGRAM = """
    import kinetic
    from helper import twice

    @kinetic.run(accelerator="cpu", debug=True)
    def train(x):
        a = twice(x)
        b = a + 1
        return b

    if __name__ == "__main__":
        print("value", train(20))
"""
HELPER = """
    def twice(value):
        both = value * 2
        return both
"""


@pytest.mark.usefixtures("machine")
def test_a_breakpoint_of_an_editor_is_hit_in_a_pod(project: Any, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    project.write("helper.py", HELPER)
    project.write("program.py", PROGRAM)
    helper, program = str(project.root / "helper.py"), str(project.root / "program.py")
    client = project.start("program.py")
    configuration = read_configuration(client.stdout)
    port = configuration["connect"]["port"]

    with Debugger(port, configuration["pathMappings"]) as debugger:
        debugger.attach({helper: [3]})
        first = debugger.stopped()
        kept = [job["spec"]["ttlSecondsAfterFinished"] for job in site.jobs()]
        debugger.go_on(first)
        hit = debugger.stopped()
        value = debugger.evaluate("value", hit)
        after = debugger.next(hit)
        debugger.go_on(after)
        out, err = client.communicate(timeout=60)

    assert (first["name"], first["source"]["path"], first["line"]) == ("train", program, 7)
    assert (hit["name"], hit["source"]["path"], hit["line"], value) == ("twice", helper, 3, "20")
    assert after["line"] == 4
    assert "value 41" in out, err
    assert kept == [7200]
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.usefixtures("machine")
def test_a_pod_says_that_it_waits_and_goes_on_when_nobody_comes(
    project: Any, kinetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_DEBUG_WAIT_TIMEOUT", "15")
    project.write("helper.py", HELPER)
    project.write("program.py", PROGRAM)
    project.write(
        "detached.py",
        """
        import kinetic
        import program

        job = program.train.run_async(20)
        kinetic.debug.wait_for_debug_server(job)
        print(job.job_id)
        """,
    )
    done = project.run("detached.py")
    job_id = done.stdout.strip()
    assert job_id, done.stderr

    told = json.loads(kinetic("jobs", "explain", job_id, "--json").out)
    value = kinetic("jobs", "result", job_id)
    log = kinetic("jobs", "logs", job_id).out

    assert told["what"] == "it waits for a debugger"
    assert value.out == "41\n", value.err
    assert "no debugger came within 15 s; train begins without one" in log


SLICE = """
    import os
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x2", debug=True)
    def where():
        host = os.environ["KINETIC_HOST_INDEX"]
        print("this is host", host, flush=True)
        return host

    if __name__ == "__main__":
        print(where.run_async().job_id)
"""
COMMAND = """
    import runpy
    runpy.run_module("kinetic", run_name="__main__", alter_sys=True)
"""


@pytest.mark.timeout(180)
def test_any_host_of_a_slice_is_debugged_while_the_others_wait_for_it(
    project: Any, kinetic: Any, machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines()
    monkeypatch.setenv("KINETIC_DEBUG_WAIT_TIMEOUT", "120")
    program = str(project.write("program.py", SLICE))
    project.write("command.py", COMMAND)
    job_id = project.run("program.py").stdout.strip()

    def explained() -> str:
        return str(json.loads(kinetic("jobs", "explain", job_id, "--json").out)["what"])

    wait_for("both hosts", lambda: explained() == "hosts 0 and 1 of 2 wait for a debugger", 60)
    command = project.start("command.py", "jobs", "debug", job_id, "--port", str(free_port()), "--host", "1")
    configuration = read_configuration(command.stdout)
    with Debugger(configuration["connect"]["port"], configuration["pathMappings"]) as debugger:
        found = debugger.attach({program: [8]})
        first = debugger.stopped()
        attached = explained()
        debugger.go_on(first)
        hit = debugger.stopped()
        host = debugger.evaluate("host", hit)
        wait_for("host 0 to be done", lambda: "this is host 0" in kinetic("jobs", "logs", job_id).out, 30)
        meanwhile = kinetic("jobs", "status", job_id).out
        debugger.go_on(hit)
        _, err = command.communicate(timeout=60)
    value = kinetic("jobs", "result", job_id).out

    assert found[program][0]["verified"]
    assert (first["name"], first["source"]["path"], first["line"]) == ("where", program, 7)
    assert attached == "a debugger is attached to host 1 of 2"
    assert (hit["line"], host) == (8, "'1'")
    assert "RUNNING" in meanwhile
    assert (command.returncode, f"{job_id} has ended: SUCCEEDED" in err) == (0, True), err
    assert value == "0\n"


@pytest.fixture(params=["uv is in the image", "pip alone is"])
def with_uv(request: pytest.FixtureRequest, agent: Any, shared: Any) -> bool:
    """Have an image with nothing but Python and one of two installers, and with our own way to the index."""
    folder = shared / "image"
    has_uv = bool(request.param == "uv is in the image")
    if has_uv:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    else:
        environment_with_pip(folder)
    bare = images.of_this_python(str(folder))
    if has_uv:
        shutil.copy2(
            import_module("uv").find_uv_bin(), folder / "bin" / "uv"
        )  # no link: where it leads is not in a pod
    way = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
    shown = (*bare.shown, str(shared))
    agent.registry.add("python:*", bare._replace(environment=way, shown=shown))
    return has_uv


def detached(project: Any) -> tuple[str, str, str]:
    """Submit a job that waits for a debugger; return its two files, and its id."""
    helper, program = str(project.write("helper.py", HELPER)), str(project.write("program.py", PROGRAM))
    project.write("command.py", COMMAND)
    project.write("detached.py", "import program\nprint(program.train.run_async(20).job_id)")
    return helper, program, project.run("detached.py").stdout.strip()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("machine")
def test_an_image_without_debugpy_gets_it_when_the_job_begins(project: Any, kinetic: Any, with_uv: bool) -> None:
    helper, program, job_id = detached(project)

    command = project.start("command.py", "jobs", "debug", job_id, "--port", str(free_port()))
    configuration = read_configuration(command.stdout)
    with Debugger(configuration["connect"]["port"], configuration["pathMappings"]) as debugger:
        debugger.attach({helper: [3]})
        first = debugger.stopped()
        debugger.go_on(first)
        hit = debugger.stopped()
        value = debugger.evaluate("value", hit)
        came_from = debugger.evaluate("__import__('debugpy').__file__", hit)
        debugger.go_on(hit)
        _, err = command.communicate(timeout=60)
    log = kinetic("jobs", "logs", job_id).out
    result = kinetic("jobs", "result", job_id)

    assert ("-m pip install" in log, "fetching debugpy==" in log) == (not with_uv, True)
    assert "/work.debugger/debugpy/" in came_from
    assert (first["source"]["path"], hit["source"]["path"], hit["line"], value) == (program, helper, 3, "20")
    assert (command.returncode, result.out) == (0, "41\n"), err + result.err


@pytest.mark.timeout(180)
@pytest.mark.usefixtures("machine")
def test_a_pod_that_is_replaced_while_it_is_debugged_is_attached_to_with_the_same_configuration(
    project: Any, kinetic: Any, site: Any
) -> None:
    helper, program, job_id = detached(project)
    command = project.start("command.py", "jobs", "debug", job_id, "--port", str(free_port()))
    configuration = read_configuration(command.stdout)
    port, mappings = configuration["connect"]["port"], configuration["pathMappings"]
    with Debugger(port, mappings) as debugger:
        debugger.attach({helper: [3]})
        debugger.stopped()
        (pod,) = site.pods_of(job_id)
        site.api.delete(f"{site.core}/pods/{pod['metadata']['name']}")
        debugger.ended()

    site.running(job_id, but=pod["metadata"]["name"])
    with Debugger(port, mappings) as debugger:  # as soon as there is a pod: its debug server is waited for
        found = debugger.attach({helper: [3]})
        first = debugger.stopped()
        debugger.go_on(first)
        hit = debugger.stopped()
        debugger.go_on(hit)
        _, err = command.communicate(timeout=60)

    assert found[helper][0]["verified"]
    assert (first["source"]["path"], hit["source"]["path"], hit["line"]) == (program, helper, 3)
    assert command.returncode == 0, err
    assert kinetic("jobs", "result", job_id).out == "41\n"


def read_configuration(stream: Any) -> dict[str, Any]:
    """Read a launch.json from a stream on which more may come."""
    text = ""
    while not text.rstrip().endswith("\n}"):
        line = stream.readline()
        assert line, text
        text += line
    try:
        page: dict[str, Any] = json.loads(text[text.index("{") :])["configurations"][0]
    except ValueError as error:
        pytest.fail(f"{error} in what was printed:\n{text}")
    return page
