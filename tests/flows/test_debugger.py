"""The debugger, driven as an editor does: a real DAP client, breakpoints by local path, on jobs of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from servers.debugger import Debugger

import kinetic

SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = """
    import kinetic
    from helper import twice

    @kinetic.run(debug=True)
    def train(x):
        a = twice(x)
        b = a + 1
        return b

    @kinetic.run(debug=True)
    def pauses(x):
        breakpoint()
        return x

    if __name__ == "__main__":
        print(train.run_async(20).job_id)
"""
HELPER = """
    def twice(value):
        both = value * 2
        return both
"""


@pytest.fixture
def theirs(project, monkeypatch):
    """A project whose functions wait for a debugger."""
    project.write("helper.py", HELPER)
    project.write("program.py", PROGRAM)
    monkeypatch.setenv("KINETIC_DEBUG_WAIT_TIMEOUT", "60")
    return project


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE)}


def submit(project, what: str) -> kinetic.JobHandle:
    code = f"import program; print({what}.job_id)"
    done = project.run("-c", code)
    assert done.returncode == 0, done.stderr
    return kinetic.attach(done.stdout.strip())


def configuration(printed: str) -> dict:
    return json.loads(printed[printed.index("{") :])["configurations"][0]


def running(home: Path) -> list[str]:
    """Return the command lines of debugpy's own processes that belong to this home's supervisors."""
    mark = str(home).encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes()
            if b"debugpy" in words and mark in (folder / "environ").read_bytes():
                found.append(words.decode())
    return found


def attach(job: kinetic.JobHandle, capsys) -> tuple[subprocess.Popen, Debugger, dict]:
    from kinetic._inspect import port_forward

    process = job.debug_attach(local_port=port_forward.free_port())
    printed = configuration(capsys.readouterr().out)
    return process, Debugger(printed["connect"]["port"], printed["pathMappings"]), printed


def test_a_breakpoint_set_by_its_local_path_is_hit_and_the_result_arrives(theirs, capsys) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    process, debugger, printed = attach(job, capsys)
    helper = str(theirs.root / "helper.py")

    try:
        found = debugger.attach({helper: [3]})
        first = debugger.stopped()
        debugger.go_on(first)
        hit = debugger.stopped()
        value = debugger.evaluate("value", hit)
        after = debugger.next(hit)
        both = debugger.evaluate("both", after)
        debugger.go_on(after)
        result = job.result()
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert found[helper][0]["verified"]
    assert (first["name"], first["source"]["path"], first["line"]) == ("train", str(theirs.root / "program.py"), 7)
    assert (hit["name"], hit["source"]["path"], hit["line"], value) == ("twice", helper, 3, "20")
    assert (after["line"], both) == (4, "40")
    assert result == 41
    assert process.poll() is not None
    assert printed["pathMappings"][0]["localRoot"] == str(theirs.root)


def test_a_function_of_a_script_stops_in_the_scripts_own_file(theirs, capsys) -> None:
    done = theirs.run("program.py")
    job = kinetic.attach(done.stdout.strip())
    process, debugger, _ = attach(job, capsys)
    program = str(theirs.root / "program.py")

    try:
        debugger.attach({program: [9]})
        first = debugger.stopped()
        debugger.go_on(first)
        hit = debugger.stopped()
        debugger.go_on(hit)
        result = job.result()
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert (first["line"], first["source"]["path"]) == (7, program)
    assert (hit["line"], hit["source"]["path"]) == (9, program)
    assert result == 41


def test_breakpoint_stops_where_it_stands(theirs, capsys) -> None:
    job = submit(theirs, "program.pauses.run_async(5)")
    process, debugger, _ = attach(job, capsys)

    try:
        debugger.attach()
        debugger.go_on(debugger.stopped())
        hit = debugger.stopped()
        debugger.go_on(hit)
        result = job.result()
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert (hit["name"], hit["line"]) == ("pauses", 14)
    assert result == 5


def test_a_job_to_which_nobody_comes_goes_on_and_says_so(theirs, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_DEBUG_WAIT_TIMEOUT", "0.5")

    job = submit(theirs, "program.pauses.run_async(5)")

    assert job.result() == 5
    assert f"attach one: kinetic jobs debug {job.job_id}" in job.logs()
    assert "no debugger came within 0.5 s; pauses begins without one" in job.logs()


def test_a_job_that_waits_can_be_cancelled_and_leaves_no_process(theirs, home) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    kinetic.debug.wait_for_debug_server(job)

    before = running(home)
    job.cancel()

    assert before
    assert job.status().value == "NOT_FOUND"
    assert running(home) == []


def test_explain_tells_of_the_debugger(theirs, capsys) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    kinetic.debug.wait_for_debug_server(job)

    waits = _explain(theirs, job)
    process, debugger, _ = attach(job, capsys)
    try:
        debugger.attach()
        stop = debugger.stopped()
        attached = _explain(theirs, job)
        debugger.go_on(stop)
        job.result()
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert waits["what"] == "it waits for a debugger"
    assert waits["next"] == f"kinetic jobs debug {job.job_id}"
    assert attached["what"] == "a debugger is attached to it"


def _explain(project, job) -> dict:
    done = project.kinetic("jobs", "explain", job.job_id, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_blocking_call_without_a_terminal_submits_nothing(theirs) -> None:
    theirs.write(
        "script.py",
        """
        import kinetic, program
        try:
            program.train(1)
        except RuntimeError as error:
            print(error.code, len(kinetic.list_jobs()))
        """,
    )

    done = theirs.run("script.py")

    assert done.stdout.split() == ["no-terminal", "0"], done.stderr


def test_a_blocking_call_opens_the_way_and_closes_it_itself(theirs, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    theirs.write("script.py", "import program\nprint('value', program.train(20), flush=True)\n")

    script = theirs.start("script.py")
    try:
        printed = read_configuration(script.stdout)
        port = printed["connect"]["port"]
        with Debugger(port, printed["pathMappings"]) as debugger:
            debugger.attach()
            debugger.go_on(debugger.stopped())
            out, err = script.communicate(timeout=60)
    finally:
        script.kill()

    assert script.returncode == 0, err
    assert "value 41" in out
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_ctrl_c_in_a_blocking_call_closes_the_way_and_the_job_waits_on(theirs, monkeypatch, capsys) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    theirs.write("script.py", "import program\nprogram.train(20)\n")
    script = theirs.start("script.py")
    try:
        port = read_configuration(script.stdout)["connect"]["port"]

        script.send_signal(signal.SIGINT)
        _, err = script.communicate(timeout=60)
    finally:
        script.kill()

    (job,) = kinetic.list_jobs()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert f"debug:    kinetic jobs debug {job.job_id}" in err
    assert "Traceback" not in err
    process, debugger, _ = attach(job, capsys)
    with debugger:
        debugger.attach()
        debugger.go_on(debugger.stopped())
        assert job.result() == 41
    kinetic.debug.cleanup_port_forward(process)


def read_configuration(stream) -> dict:
    """Read a launch.json from a stream on which more may come."""
    text = ""
    while not text.rstrip().endswith("\n}"):
        line = stream.readline()
        assert line, text
        text += line
    return configuration(text)


def test_the_command_forwards_until_the_job_has_ended(theirs) -> None:
    from kinetic._inspect import port_forward

    job = submit(theirs, "program.train.run_async(20)")
    words = ["-m", "kinetic", "jobs", "debug", job.job_id, "--port", str(port_forward.free_port())]
    command = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )

    try:
        printed = read_configuration(command.stdout)
        with Debugger(printed["connect"]["port"], printed["pathMappings"]) as debugger:
            debugger.attach()
            debugger.go_on(debugger.stopped())
            _, err = command.communicate(timeout=60)
    finally:
        command.kill()

    assert command.returncode == 0, err
    assert f"{job.job_id} has ended: SUCCEEDED" in err


def test_a_job_without_debug_has_no_server_to_attach_to(theirs) -> None:
    job = submit(theirs, "program.train.with_options(debug=False).run_async(1)")

    with pytest.raises(kinetic.errors.DebugError, match="has no debug server"):
        job.debug_attach()

    assert job.result() == 3


def test_the_debugger_of_a_client_does_not_follow_into_the_supervisors(theirs, home) -> None:
    theirs.write(
        "debugged.py",
        """
        import os, posix
        import debugpy
        import program

        debugpy.listen(("127.0.0.1", 0))  # as an editor starts a script: its child processes wait for the editor
        assert os.posix_spawn is not posix.posix_spawn
        print(program.train.with_options(debug=False)(1))
        """,
    )

    done = theirs.run("debugged.py")

    assert done.stdout == "3\n", done.stderr
    assert not [words for words in running(home) if "pydevd" in words]


def test_a_worker_that_is_killed_while_it_stands_at_a_breakpoint_takes_the_debugger_along(theirs, home, capsys) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    process, debugger, _ = attach(job, capsys)
    debugger.attach()
    debugger.stopped()
    page = next(home.glob(f"run/*/jobs/{job.job_id}/*.debug"))

    try:
        os.kill(json.loads(page.read_text())["pid"], signal.SIGKILL)
        status = job.wait(timeout=60)
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert status.value == "FAILED"
    assert running(home) == []


def test_another_host_can_be_debugged_and_the_first_need_not_wait(theirs, capsys) -> None:
    theirs.write(
        "slice.py",
        """
        import os
        import kinetic

        @kinetic.run(accelerator="tpu-v4-2x2x2", debug=True)
        def where():
            host = os.environ["KINETIC_HOST_INDEX"]
            return host
        """,
    )
    done = theirs.run("-c", "import slice; print(slice.where.run_async().job_id)")
    job = kinetic.attach(done.stdout.strip())
    from kinetic._inspect import port_forward

    process = job.debug_attach(local_port=port_forward.free_port(), host=1)
    printed = configuration(capsys.readouterr().out)
    with Debugger(printed["connect"]["port"], printed["pathMappings"]) as debugger:
        debugger.attach()
        first = debugger.stopped()
        host = debugger.evaluate("os.environ['KINETIC_HOST_INDEX']", first)
        debugger.go_on(first)
        result = job.result()
    kinetic.debug.cleanup_port_forward(process)

    assert host == "'1'"
    assert result == "0"
    assert "a debugger is attached to another host; where begins here without one" in job.logs()


def test_a_deadline_does_not_end_a_job_that_stands_at_a_breakpoint(theirs, capsys) -> None:
    job = submit(theirs, "program.train.with_options(deadline=0.5).run_async(20)")
    process, debugger, _ = attach(job, capsys)

    with debugger:
        debugger.attach()
        stop = debugger.stopped()
        with pytest.raises(TimeoutError):
            job.wait(timeout=1)
        debugger.go_on(stop)
        result = job.result()
    kinetic.debug.cleanup_port_forward(process)

    assert result == 41


NOBODY = 65534
INITIALIZE = b'{"seq": 1, "type": "request", "command": "initialize", "arguments": {"adapterID": "other"}}'
KNOCK = """
import os, socket, sys
if user := int(sys.argv[3]):  # which may not read the files of this Python
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
with socket.socket() as connection:
    connection.settimeout(20)
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    connection.sendall(sys.argv[2].encode())
    print(repr(connection.recv(1)))
"""


def knock(port: int, sent: bytes, user: int = 0) -> str:
    """Send something to a port as another process, and return the first byte of the answer as Python writes it."""
    done = subprocess.run(
        [sys.executable, "-c", KNOCK, str(port), sent.decode(), str(user)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or ("closed" if "ConnectionResetError" in done.stderr else done.stderr)


def message(body: bytes = INITIALIZE) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def ports_of_the_job(home: Path) -> list[int]:
    """Return every port that a process of this home listens on, from the kernel's table."""
    inodes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(home).encode() in (folder / "environ").read_bytes():
                inodes |= {
                    os.readlink(each)[8:-1]
                    for each in (folder / "fd").iterdir()
                    if os.readlink(each).startswith("socket:")
                }
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def test_without_the_token_no_port_of_a_debugged_job_answers(theirs, home) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    kinetic.debug.wait_for_debug_server(job)

    ports = ports_of_the_job(home)
    page = json.loads(next(home.glob(f"run/*/jobs/{job.job_id}/*.debug")).read_text())
    answers = [knock(page["port"], sent) for sent in (message(), b"0" * 64 + b"\n" + message())]
    job.cancel()

    assert page["port"] in ports
    assert all(answer in {"b''", "closed"} for answer in answers), answers


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_reaches_neither_the_job_nor_our_forwarded_port(theirs, home, capsys) -> None:
    job = submit(theirs, "program.train.run_async(20)")
    process, debugger, printed = attach(job, capsys)
    try:
        ports = {*ports_of_the_job(home), printed["connect"]["port"]}
        answers = [knock(port, message(), NOBODY) for port in sorted(ports)]
        debugger.attach()  # ours still works, whoever else was refused
        debugger.go_on(debugger.stopped())
        result = job.result()
    finally:
        debugger.close()
        kinetic.debug.cleanup_port_forward(process)

    assert len(ports) >= 3  # the adapter's two, and the forwarded one
    assert all(answer in {"b''", "closed"} for answer in answers), answers
    assert result == 41


def test_the_function_does_not_see_the_token_and_no_command_line_shows_one(theirs, home, capsys) -> None:
    theirs.write(
        "looks.py",
        """
        import os
        import kinetic

        @kinetic.run(debug=True)
        def names():
            return [name for name in os.environ if "TOKEN" in name]
        """,
    )
    done = theirs.run("-c", "import looks; print(looks.names.run_async().job_id)")
    job = kinetic.attach(done.stdout.strip())
    process, debugger, _ = attach(job, capsys)
    with debugger:
        lines = " ".join(running(home))
        debugger.attach()
        debugger.go_on(debugger.stopped())
        result = job.result()
    kinetic.debug.cleanup_port_forward(process)

    assert result == []
    assert "debugpy" in lines
    assert "token" not in lines
