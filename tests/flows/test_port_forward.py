"""A local port that leads to a job: real forwarders, an echo behind a token as what listens there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic
from kinetic._inspect import port_forward
from kinetic._jobs import find, locate
from kinetic._jobs.handle import JobHandle
from kinetic._wire.inspection import DebugPage
from kinetic.errors import DebugError, OptionError

SCRIPT = """
    import os, socket, sys, threading, time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def echo(gate):
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=answer_all, args=(server,), daemon=True).start()
        print(server.getsockname()[1], flush=True)
        while not os.path.exists(gate):
            time.sleep(0.01)

    def answer_all(server):
        while True:
            peer = server.accept()[0]
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    def answer(peer):
        with peer:
            token = b""
            while not token.endswith(b"\\n"):
                token += peer.recv(1)
            while data := peer.recv(1 << 16):
                if data == b"bye":
                    return
                peer.sendall(data.upper())

    print(echo.run_async(sys.argv[1]).job_id)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that ends the job."""
    return tmp_path / "gate"


@pytest.fixture
def job(project, wait_until, gate) -> JobHandle:
    """A running job with a server, and the page on which a debug server says where it is."""
    job_id = project.out(SCRIPT, str(gate)).strip()
    handle = find.attach(job_id)
    wait_until(lambda: "\n" in (handle.logs() or ""), "the job's server", 30)
    page = DebugPage(int((handle.logs() or "").strip()))
    locate.local().paths.files(job_id, 0).debug_page.write_bytes(page.to_bytes())
    return handle


@pytest.fixture
def start(job: JobHandle) -> Iterator[Callable[[int], subprocess.Popen[bytes]]]:
    """Return a function that starts a forwarder; it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(port: int) -> subprocess.Popen[bytes]:
        started.append(port_forward.start(job, host=0, local_port=port))
        return started[-1]

    yield run
    for process in started:
        port_forward.stop(process)


def ask(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    answer = b""
    while len(answer) < len(text):
        data = connection.recv(1 << 16)
        assert data, "the connection was closed"
        answer += data
    return answer


def test_each_connection_reaches_the_job_and_none_knows_of_the_other(start) -> None:
    port = port_forward.free_port()
    start(port)

    with socket.create_connection(("127.0.0.1", port)) as one, socket.create_connection(("127.0.0.1", port)) as two:
        first, second, large = ask(one, b"one"), ask(two, b"two"), ask(one, b"x" * 3_000_000)

    assert (first, second, large) == (b"ONE", b"TWO", b"X" * 3_000_000)


def test_a_connection_that_the_job_closes_is_closed_here_and_the_next_one_works(start) -> None:
    port = port_forward.free_port()
    start(port)

    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"bye")
        closed = connection.recv(100)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        again = ask(connection, b"again")

    assert (closed, again) == (b"", b"AGAIN")


def test_a_taken_port_is_refused_with_a_free_one_before_anything_is_started(job) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        with pytest.raises(DebugError, match=f"the local port {port} is in use") as refused:
            port_forward.start(job, host=0, local_port=port)

    free = int(str(refused.value.next).partition("--port ")[2].partition(" ")[0])
    assert refused.value.code == "port-taken"
    with socket.create_server(("127.0.0.1", free)):
        pass
    assert not (locate.runtime() / "forwarders").exists()


def test_a_port_that_none_can_be_is_refused(job) -> None:
    for port in (0, -1, 65_536, "5678", None):
        with pytest.raises(OptionError, match=f"{port!r} is not a valid port"):
            port_forward.start(job, host=0, local_port=port)


def test_it_outlives_whoever_started_it_and_ends_with_the_job(job, gate, wait_until, tmp_path) -> None:
    port = port_forward.free_port()
    script = f"""
        from kinetic._jobs import find as finding; from kinetic._inspect import port_forward as forwarding
        print(forwarding.start(finding.attach({job.job_id!r}), host=0, local_port={port}).pid)
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    path = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    pid = int(subprocess.run(words, stdout=subprocess.PIPE, env=path, check=True, timeout=60).stdout)

    with socket.create_connection(("127.0.0.1", port)) as connection:
        answer = ask(connection, b"alone")
    gate.touch()

    assert answer == b"ALONE"
    wait_until(lambda: not _listens(port), "the end of the forwarder", 30)
    wait_until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or _is_zombie(pid), "the end of its process", 30)
    assert list((locate.runtime() / "forwarders").iterdir()) == []


def test_ctrl_c_in_the_terminal_of_whoever_started_it_is_not_meant_for_it(start) -> None:
    process = start(port_forward.free_port())

    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_sigterm_ends_it_with_its_connections_and_leaves_the_port_free(start) -> None:
    port = port_forward.free_port()
    process = start(port)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        ask(connection, b"open")

        port_forward.stop(process)
        port_forward.stop(process)

        assert connection.recv(100) == b""
    assert process.returncode == 0
    start(port)


def test_one_that_hangs_is_killed(start, monkeypatch) -> None:
    monkeypatch.setattr(port_forward, "_END_SECONDS", 0.2)
    process = start(port_forward.free_port())
    process.send_signal(signal.SIGSTOP)

    port_forward.stop(process)

    assert process.returncode == -signal.SIGKILL


def test_a_debug_server_that_is_about_to_come_is_waited_for(job, start) -> None:
    page = locate.local().paths.files(job.job_id, 0).debug_page
    page.rename(page.with_suffix(".later"))
    port = port_forward.free_port()
    start(port)

    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"patient")
        connection.settimeout(0.7)
        with pytest.raises(TimeoutError):  # neither an answer nor an end
            connection.recv(100)
        connection.settimeout(30)
        page.with_suffix(".later").rename(page)
        answer = connection.recv(100)

    assert answer == b"PATIENT"


def test_what_keeps_it_from_coming_up_is_told(job, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(job, "backend", "nowhere")

    with pytest.raises(kinetic.errors.BackendError, match="did not start") as failed:
        port_forward.start(job, host=0, local_port=(port := port_forward.free_port()))

    assert "nowhere" in str(failed.value.why)
    assert not _listens(port)


FORWARD = [sys.executable, "-m", "kinetic", "jobs", "forward"]


def forward(job: JobHandle, port: str) -> subprocess.Popen[str]:
    """Start the command, in a terminal of nobody."""
    return subprocess.Popen([*FORWARD, job.job_id, port], stderr=subprocess.PIPE, text=True)


def told(process: subprocess.Popen[str]) -> str:
    """Return the line that a command writes next."""
    assert process.stderr is not None
    return process.stderr.readline()


def test_the_command_leads_to_any_port_of_a_job_until_that_ends(job, gate) -> None:
    port, local = int(job.logs()), port_forward.free_port()

    with forward(job, f"{local}:{port}") as process:
        line = told(process)
        with socket.create_connection(("127.0.0.1", local)) as connection:
            connection.sendall(b"\n")  # its token
            answer = ask(connection, b"hello")
        gate.touch()
        err = process.stderr.read()

    assert line == f"kinetic: 127.0.0.1:{local} leads to port {port} of {job.job_id}, until that ends\n"
    assert answer == b"HELLO"
    assert (process.returncode, err) == (0, f"{job.job_id} has ended: SUCCEEDED\n")


def test_a_block_of_python_leads_to_a_port_of_a_job_and_no_longer_afterwards(job) -> None:
    port, local = int(job.logs()), port_forward.free_port()

    with job.forward(port) as same, job.forward(port, local) as other:
        with socket.create_connection(("127.0.0.1", other)) as connection:
            connection.sendall(b"\n")
            answer = ask(connection, b"hello")
        threads = [each for each in threading.enumerate() if each.name == "kinetic-forward"]
    for each in threads:
        each.join(10)

    assert (same, other, answer) == (port, local, b"HELLO")
    assert [each.is_alive() for each in threads] == [False]
    assert not _listens(local)
    with pytest.raises(OptionError, match="'6006' is not a valid port"):
        job.forward("6006").__enter__()
    with pytest.raises(DebugError, match="is in use") as raised:
        job.forward(1, port).__enter__()
    assert "job.forward(1, local_port=" in raised.value.next


def test_a_connection_that_cannot_be_accepted_is_told_and_ends_nothing(monkeypatch) -> None:
    monkeypatch.setattr(port_forward, "_RETRY_SECONDS", 0.0)
    said = list[str]()
    with socket.socket() as listener:  # never listens, so none can be accepted

        def report(text: str) -> None:
            said.append(text)
            if len(said) == 2:
                forwarder.close()

        forwarder = port_forward.Forwarder(None, listener, lambda: None, report)  # type: ignore[arg-type] # asks none
        forwarder.run()

    assert said == ["no connection can be accepted: [Errno 22] Invalid argument"] * 2


def test_ctrl_c_closes_the_port_and_the_job_keeps_running(job) -> None:
    local = port_forward.free_port()

    with forward(job, f"{local}:{int(job.logs())}") as process:
        told(process)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()

    assert process.returncode == 130
    assert job.job_id in err
    assert job.status().value == "RUNNING"
    assert not _listens(local)


def test_where_nothing_listens_each_connection_is_closed_and_the_reason_is_told_once(job) -> None:
    local, nothing = port_forward.free_port(), port_forward.free_port()

    with forward(job, f"{local}:{nothing}") as process:
        told(process)
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", local)) as connection:
                closed = connection.recv(100)
                assert closed == b""
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()

    assert err.count(f"port {nothing} of {job.job_id}: a connection was closed: [Errno 111] Connection refused\n") == 1


def test_a_port_of_this_machine_needs_no_other_one_and_what_is_no_port_is_refused(job, project) -> None:
    here = project.kinetic("jobs", "forward", job.job_id, "6006")
    wrong = [project.kinetic("jobs", "forward", job.job_id, port) for port in ("0", "web", "80:", "1:99999")]

    assert here.returncode == 0
    assert here.stderr == f"kinetic: {job.job_id} is on this machine: connect to 127.0.0.1:6006\n"
    for done, port in zip(wrong, ("0", "web", "80:", "1:99999"), strict=True):
        assert done.returncode == 2
        assert done.stderr.startswith(f"error: '{port}' is not a valid port")
        assert done.stderr.endswith(f"next:  kinetic jobs forward {job.job_id} 6006\n")


def test_a_job_that_has_ended_has_no_ports(job, gate, project) -> None:
    gate.touch()
    job.wait()

    done = project.kinetic("jobs", "forward", job.job_id, "6006")

    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {job.job_id} does not run: it is SUCCEEDED [not-running]\n")
    assert done.stderr.endswith(f"next:  kinetic jobs logs {job.job_id}\n")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
