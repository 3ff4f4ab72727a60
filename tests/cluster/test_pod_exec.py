"""Looking into a job on a real control plane: stacks of a real runner, exec with its exit codes, forwarded ports."""

from __future__ import annotations

import contextlib
import os
import pickle
import pty
import socket
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
from cluster.accounts import account_token, bind
from cluster.plane import wait_for
from servers.gcs import GcsServer
from servers.terminal import Screen

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import job_manifests, object_status
from kinetic._backends.kube.backend import KubeBackend
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import ClusterAddress, FixedCredential
from kinetic._backends.kube.job_manifests import RUNNER_FILE, RUNNER_PATH, JobRequest
from kinetic._backends.protocol import DebugAddress
from kinetic._config import home
from kinetic._config import target as settings
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._hardware import place
from kinetic._inspect import port_forward
from kinetic._jobs.handle import JobHandle
from kinetic._project import runner_bundle
from kinetic._stores import protocol
from kinetic._stores.bucket import BucketStore
from kinetic._stores.parallel import Retry
from kinetic._wire import digests, documents, inspection, keys, python_runtime
from kinetic._wire.inspection import DebugPage
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import AccessDeniedError, BackendError, RunnerError

pytestmark = pytest.mark.timeout(120)

JOB_ID = "cpu-stay-20261121-143000-1a2b3c4"

STAY = """
def stay(port):
    import ctypes, socket, threading, time

    def answer_all(server):
        while True:
            peer = server.accept()[0]
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    def answer(peer):
        with peer:
            while peer.recv(1) != b"\\n":  # the job's token, which a debug server wants first
                pass
            while data := peer.recv(1 << 16):
                peer.sendall(data.upper())

    if port:
        server = socket.create_server((socket.gethostbyname(socket.gethostname()), port))  # not all pods' loopback
        threading.Thread(target=answer_all, args=(server,), daemon=True).start()
    def remain():  # a stack shows it once the server listens
        ctypes.CDLL(None).sleep(600)

    print("started", flush=True)
    remain()
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BucketStore]:
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    server = GcsServer().start()
    server.bucket("jobs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    yield BucketStore("gs://jobs/here")
    server.close()


class Stage(NamedTuple):
    """Where a job runs.

    Attributes:
        client: Of the cluster.
        node: Where its pods go.
        store: Its store.
    """

    client: Client
    node: str
    store: BucketStore

    def launch(self, *, port: int = 0, hosts: int = 1, image: str = "python:3.11-slim") -> str:
        """Make a job whose function stays, and return the name of its object."""
        page = self._order(port, hosts)
        request = JobRequest(
            JOB_ID, self.client.namespace, place("cpu")._replace(hosts=hosts),
            PodRequirements(image, settings=ClusterSettings(node_selector={"kubernetes.io/hostname": self.node})),
            ("python3", RUNNER_PATH, page.to_argument()),
            environment={"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]}, runner="kinetic-runner",
            secret="kinetic-secret",
        )  # fmt: skip
        manifest = job_manifests.manifest(request, kube_client.JOB)
        manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        made = self.client.create(kube_client.JOB, manifest)
        files = {"job-key": bytes(range(32)), "environment.json": b'{"CAPTURED": "of the user"}'}
        secret = job_manifests.secret(request, files, made)
        secret["metadata"]["name"] = request.secret
        self.client.create(kube_client.SECRET, secret)
        name = str(made["metadata"]["name"])
        self.client.patch(kube_client.JOB, name, {"spec": {"suspend": False}})
        return name

    def _order(self, port: int, hosts: int) -> Task:
        script: dict[str, Any] = {"__name__": "__main__"}
        exec(textwrap.dedent(STAY), script)
        written = Order(
            JOB_ID,
            "stay",
            Artifact.within(cloudpickle.dumps(script["stay"])),
            Artifact.within(pickle.dumps(((port,), {}))),
            fingerprint={"python": python_runtime.python_version()},
            hosts=hosts,
        ).to_bytes()
        self.store.put(keys.order(JOB_ID), written)
        self.store.put(keys.record(JOB_ID), b"{}")
        pod = PodSettings(poll_seconds=1.0)
        return Task(JOB_ID, digests.of_bytes(written), self.store.url, "key-1", 0o022, None, {}, hosts=hosts, pod=pod)

    def pods(self) -> list[dict[str, Any]]:
        return self.client.list(kube_client.POD, job_manifests.label_selector(job_id=JOB_ID)).objects

    def wait_until_it_stays(self, hosts: int = 1) -> None:
        wait_for(
            "the pods",
            lambda: len([pod for pod in self.pods() if object_status.pod_phase(pod) == "Running"]) == hosts,
            60,
        )
        wait_for("the function", lambda: self._is_staying(hosts), 60)

    def _is_staying(self, hosts: int) -> bool:
        found = self.backend().stacks(JOB_ID, hosts=range(hosts))
        return all("in remain" in each.text for each in found)

    def backend(self, client: Client | None = None) -> KubeBackend:
        """Return a backend with our client, or with another one of the same cluster."""
        backend = KubeBackend("gke", ClusterAddress("", "", "", self.client.namespace, ""), dict(os.environ))
        chosen = client or self.client
        backend.__class__ = type("Ours", (KubeBackend,), {"client": property(lambda _: chosen)})
        return backend


@pytest.fixture
def stage(kube: Client, node: str, isolated: None, store: BucketStore) -> Stage:
    manifest = job_manifests.runner_config_map(
        kube.namespace, "1", "ab" * 32, {RUNNER_FILE: runner_bundle.build().data}
    )
    manifest["metadata"]["name"] = "kinetic-runner"
    kube.create(kube_client.CONFIG_MAP, manifest)
    return Stage(kube, node, store)


def ran(
    backend: KubeBackend, command: list[str], capfd: pytest.CaptureFixture[str], given: bytes | None = None
) -> tuple[int, str, str]:
    """Run a command in the job with some standard input; return its exit code and what it wrote."""
    reading_end, writing_end = os.pipe()
    if given is not None:
        os.write(writing_end, given)
    os.close(writing_end)
    before = os.dup(0)
    os.dup2(reading_end, 0)
    capfd.readouterr()
    try:
        code = backend.run_in(JOB_ID, command, host=0, tty=False)
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reading_end)
    out, err = capfd.readouterr()
    return code, out, err


# --------------------------------------------------------------------------------------------------------------- stacks


def test_a_job_that_hangs_in_c_in_its_pod_says_where(stage: Stage) -> None:
    stage.launch()

    stage.wait_until_it_stays()
    (found,) = stage.backend().stacks(JOB_ID, hosts=[0])

    assert (found.why, found.host) == ("", 0)
    assert found.text.splitlines()[1].endswith("in remain")
    assert "kinetic/_runner" not in found.text
    assert object_status.pod_phase(stage.pods()[0]) == "Running"


def test_a_connection_that_is_refused_or_cut_is_made_again(plane, stage: Stage) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    plane.proxy.fail("status", target="/exec", times=1)
    plane.proxy.fail("drop", target="/exec", times=1)

    (found,) = stage.backend().stacks(JOB_ID, hosts=[0])

    assert (found.why, "in stay" in found.text) == ("", True)


def test_each_host_of_a_slice_answers_and_one_that_there_is_not_is_told(stage: Stage) -> None:
    stage.launch(hosts=2)
    stage.wait_until_it_stays(hosts=2)

    found = stage.backend().stacks(JOB_ID, hosts=[0, 1, 2])

    assert ["in stay" in each.text for each in found] == [True, True, False]
    assert found[2].why == "it has no pod whose container runs"


# ---------------------------------------------------------------------------------------------------------------- shell


def test_a_command_in_a_pod_has_the_jobs_variables_its_folder_and_its_exit_code(stage: Stage, capfd) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    words = ["sh", "-c", "pwd; echo $KINETIC_JOB_ID $KINETIC_ATTEMPT $CAPTURED; echo wrong >&2; exit 7"]

    code, out, err = ran(stage.backend(), words, capfd)

    folder, variables = out.splitlines()
    assert code == 7
    assert folder.startswith("/tmp/kinetic-")
    assert folder.endswith("/work")
    assert variables == f"{JOB_ID} 0 of the user"
    assert err == "wrong\n"


def test_input_reaches_a_command_in_a_pod_and_so_does_its_end(stage: Stage, capfd) -> None:
    stage.launch()
    stage.wait_until_it_stays()

    assert ran(stage.backend(), ["cat"], capfd, b"a\x00b\n" * 1000)[:2] == (0, "a\x00b\n" * 1000)
    assert ran(stage.backend(), [], capfd, b"echo in $0; exit 3\n")[0] == 3


def test_a_large_output_comes_whole(stage: Stage, capfd) -> None:
    stage.launch()
    stage.wait_until_it_stays()

    code, out, _ = ran(stage.backend(), ["python3", "-c", "print('x' * 3_000_000)"], capfd)

    assert (code, len(out), set(out)) == (0, 3_000_001, {"x", "\n"})


def test_a_command_that_an_image_does_not_have_is_named(stage: Stage, capfd) -> None:
    stage.launch()
    stage.wait_until_it_stays()

    with pytest.raises(RunnerError, match="there is no no-such-program in the job's image") as caught:
        ran(stage.backend(), ["no-such-program"], capfd)

    assert caught.value.code == "no-command"
    assert "looked in /" in str(caught.value.why)
    assert capfd.readouterr() == ("", "")
    assert ran(stage.backend(), ["sh", "-c", "echo mine >&2; exit 125"], capfd) == (125, "", "mine\n")


def test_a_job_without_a_pod_has_no_shell(stage: Stage) -> None:
    with pytest.raises(RunnerError, match="the job is not running"):
        stage.backend().run_in(JOB_ID, ["true"], host=0, tty=False)


def test_who_may_not_exec_is_told_which_right_is_missing(plane, stage: Stage) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    namespace = stage.client.namespace
    token = account_token(plane, namespace, "reader")
    bind(plane, namespace, "reader-view", {"kind": "ClusterRole", "name": "view"}, "reader")
    access = replace(stage.client.transport.access, credential=FixedCredential(f"Bearer {token}"))

    with contextlib.closing(Client(access, namespace, Retry(4, 0.05, 1.0, 30.0))) as reader:
        for look in (
            lambda backend: backend.run_in(JOB_ID, ["true"], host=0, tty=False),
            lambda backend: backend.stacks(JOB_ID, hosts=[0]),
        ):
            with pytest.raises(AccessDeniedError, match=r"missing permission .*: create pods/exec") as denied:
                look(stage.backend(reader))
            assert 'cannot get resource "pods/exec"' in str(denied.value.why)
            assert f"kubectl auth can-i create pods/exec -n {namespace}" in str(denied.value.next)


def test_a_connection_that_breaks_is_told_and_the_job_goes_on(plane, stage: Stage, capfd) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    plane.proxy.seen.clear()

    def cut() -> None:
        wait_for("the command", lambda: plane.proxy.calls("GET", "/exec?"))
        plane.proxy.cut_connections()

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(BackendError, match="broke before the command had ended"):
        ran(stage.backend(), ["sh", "-c", "exec sleep 600"], capfd)
    cutting.join()

    assert object_status.pod_phase(stage.pods()[0]) == "Running"


ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.backend import KubeBackend
from kinetic._backends.kube.connection import ClusterAddress
backend = KubeBackend("gke", ClusterAddress("", "", "", sys.argv[1], "test"))
before = termios.tcgetattr(0)
code = backend.run_in(sys.argv[2], [], host=0, tty=True)
print("as before:", termios.tcgetattr(0) == before, "code:", code, flush=True)
"""


def test_a_shell_in_a_pod_has_a_terminal_of_our_size_and_ours_is_as_before(plane, stage: Stage) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (31, 97))
    environ = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "TERM": "xterm-color"}

    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, stage.client.namespace, JOB_ID],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environ,
    )  # fmt: skip
    os.close(theirs)
    screen = Screen(ours)
    os.write(ours, b"echo in a shell as''-expected; stty size; echo $TERM\n")
    screen.until(b"as-expected\r\n31 97\r\nxterm-color\r\n")
    termios.tcsetwinsize(ours, (40, 120))
    screen.until_it_answers(b"stty size\n", b"40 120\r\n")
    os.write(ours, b"sh -c 'echo asleep''-now; exec sleep 1000'\n")
    screen.until(b"asleep-now\r\n")
    os.write(ours, b"\x03")  # a key like any other: it ends what runs there, not us
    screen.until_it_answers(b"echo $KINETIC_JOB_ID-still''-there\n", f"{JOB_ID}-still-there\r\n".encode())
    os.write(ours, b"exit 9\n")

    screen.until(b"as before: True code: 9")
    assert process.wait(30) == 0
    os.close(ours)


# ----------------------------------------------------------------------------------------------------------- forwarding


@pytest.fixture
def forwarder(plane, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A local port that leads to the server of a job in the cluster."""
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    stage.launch(port=inspection.PORT)
    stage.wait_until_it_stays()
    key_id, own = home.own_key(settings.ensure_home(os.environ))  # its token is made of it
    key = inspection.page_key(inspection.token(documents.job_key(own, JOB_ID, stage.store.url)))
    handle = JobHandle(
        JOB_ID, "gke", "", "", "", stage.client.namespace, "jobs", "kinetic-x", "", "cpu", "stay", "stay",
        "2026-11-21T14:30:00Z", store=stage.store.url, context="test", key_id=key_id,
    )  # fmt: skip
    for attempt in (0, 1):
        at = keys.debug(JOB_ID, attempt, 0)
        stage.store.put(at, DebugPage(inspection.PORT).sealed(at, key))
    port = port_forward.free_port()
    process = port_forward.start(handle, host=0, local_port=port)
    yield port
    assert process.poll() is None, "it ended by itself"
    port_forward.stop(process)


def ask(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    answer = b""
    while len(answer) < len(text) and (data := connection.recv(1 << 16)):
        answer += data
    return answer


def asked(port: int, text: bytes) -> bytes:
    """Ask over a connection of its own; b"" where it was closed."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection, contextlib.suppress(ConnectionError):
        return ask(connection, text)
    return b""


def test_connections_go_through_the_api_server_and_do_not_disturb_each_other(forwarder: int) -> None:
    with (
        socket.create_connection(("127.0.0.1", forwarder), 30) as one,
        socket.create_connection(("127.0.0.1", forwarder), 30) as two,
    ):
        found = ask(one, b"one"), ask(two, b"two"), ask(one, b"x" * 1_000_000)

    assert found == (b"ONE", b"TWO", b"X" * 1_000_000)


def test_small_writes_are_not_delayed(forwarder: int) -> None:
    head, seconds = b"content-length: 4\r\n\r\n", []
    with socket.create_connection(("127.0.0.1", forwarder), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(30):
            begun, answer = time.monotonic(), b""
            connection.sendall(head)  # as editors write: a head, and then the rest
            connection.sendall(b"%04d" % number)
            while len(answer) < len(head) + 4:
                answer += connection.recv(1 << 16)
            seconds.append(time.monotonic() - begun)

    assert min(seconds) < 0.03, seconds  # a delayed acknowledgement takes 40 ms, each time


def test_connections_one_after_another_and_side_by_side_never_read_what_is_another_ones(stage: Stage) -> None:
    stage.launch(port=inspection.PORT)
    stage.wait_until_it_stays()
    (pod,) = stage.pods()
    backend, name = stage.backend(), object_status.object_name(pod)

    def answer(number: int) -> bytes:
        with backend.dial(DebugAddress(inspection.PORT, machine=name)) as link:
            link.send(b"token\n%s" % words(number))
            return link.receive()

    def words(number: int) -> bytes:
        return b"hello %d" % number

    found = [answer(number) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found += pool.map(answer, range(40, 80))

    assert found == [words(number).upper() for number in range(80)]


def test_a_broken_connection_is_closed_and_the_next_one_is_forwarded_anew(plane, forwarder: int) -> None:
    with socket.create_connection(("127.0.0.1", forwarder), 30) as connection:
        before = ask(connection, b"before")

        plane.proxy.cut_connections()

        assert (before, connection.recv(100)) == (b"BEFORE", b"")
    assert asked(forwarder, b"after") == b"AFTER"


def test_an_api_server_that_is_away_is_waited_for(plane, forwarder: int) -> None:
    plane.kill_api_server()
    with socket.create_connection(("127.0.0.1", forwarder), 60) as connection:
        connection.sendall(b"patient")
        plane.start_api_server()

        assert connection.recv(100) == b"PATIENT"


def test_a_storm_of_refusals_is_outlasted(plane, forwarder: int) -> None:
    plane.proxy.fail("status", target="portforward", times=2)
    plane.proxy.fail("drop", target="portforward", times=1)

    assert asked(forwarder, b"stubborn") == b"STUBBORN"


def test_a_replaced_pod_is_found_again(stage: Stage, forwarder: int) -> None:
    (old,) = stage.pods()
    assert asked(forwarder, b"first") == b"FIRST"

    path = kube_client.POD.path(stage.client.namespace, object_status.object_name(old))
    stage.client.transport.send("DELETE", path, body=b'{"gracePeriodSeconds": 30}')

    wait_for("the next pod's answer", lambda: asked(forwarder, b"second") == b"SECOND", 60)
    assert [pod for pod in stage.pods() if object_status.object_name(pod) != object_status.object_name(old)]


def test_a_port_on_which_nobody_listens_closes_the_connection(plane, stage: Stage, monkeypatch) -> None:
    stage.launch()
    stage.wait_until_it_stays()
    (pod,) = stage.pods()

    with (
        stage.backend().dial(DebugAddress(1, machine=object_status.object_name(pod))) as link,
        pytest.raises(BackendError, match="port 1 of the pod"),
    ):
        link.receive()
