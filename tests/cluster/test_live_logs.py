"""The log of a pod on a real control plane: each byte once, in order, as printed, whatever becomes of connections."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import pytest
from cluster.plane import wait_for
from servers.gcs import GcsServer

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import job_manifests, pod_logs
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.job_manifests import RUNNER_FILE, RUNNER_PATH, JobRequest
from kinetic._backends.kube.pod_logs import PodLog
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._hardware import place
from kinetic._jobs import logs
from kinetic._project import runner_bundle
from kinetic._stores import protocol
from kinetic._stores.bucket import BucketStore
from kinetic._wire import digests, keys, python_runtime
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import PodSettings, Task

pytestmark = pytest.mark.timeout(120)

JOB_ID = "cpu-train-20261121-143000-1a2b3c4"
ODD = b"\xff\x00\n\n10 %\r100 %\r\nkinetic| mine\n" + b"x" * 100_000 + b"\n"

# The runner's own hands, with the test in place of the user: it prints what comes through a socket.
POD = """
import json, os, socket, sys
sys.path.insert(0, "/kinetic/runner.zip")
import unpack
unpack.install()
from pathlib import Path
from kinetic._runner.pod import log_pump
from kinetic._stores import open_store
from kinetic._wire import pod_log_format as podlog

log_pump.say("job JOB")
link = socket.create_connection(("127.0.0.1", int(os.environ["PORT"])))
link.sendall(os.environ["HOSTNAME"].encode() + b"\\n")
lines = link.makefile("rb")
claim = podlog.Claim(*json.loads(next(lines)))
log_pump.say(podlog.claim_line(claim, 2))
log = Path("/scratch/log")
spool = log_pump.LogSpool(log)
own = log_pump.LogPump(spool, log_pump.LogSegments(open_store("/scratch/store"), lambda start: str(start), spool))
own.start()
log_pump.set_output(own)
with log.open("ab", buffering=0) as file:
    for line in lines:
        told = json.loads(line)
        if "print" in told:
            file.write(told["print"].encode("latin-1"))
        else:
            log_pump.say(told["say"])
own.finish(5)
log_pump.say(podlog.VERDICT)
own.drain(5)
"""


def on(node: str) -> PodRequirements:
    settings = ClusterSettings(node_selector={"kubernetes.io/hostname": node})
    return PodRequirements("python:3.11-slim", settings=settings)


@dataclass
class Talker:
    """A pod that prints what a test tells it to.

    Attributes:
        name: Of the pod.
        printed: All of it so far.
    """

    name: str
    link: socket.socket
    printed: bytes = b""

    def claims(self, attempt: int = 0, host: int = 0) -> Talker:
        self._send([JOB_ID, attempt, host])
        return self

    def prints(self, data: bytes) -> None:
        self._send({"print": data.decode("latin-1")})
        self.printed += data

    def says(self, text: str) -> None:
        self._send({"say": text})

    def ends(self) -> None:
        self.link.shutdown(socket.SHUT_WR)

    def _send(self, told: object) -> None:
        self.link.sendall(json.dumps(told).encode() + b"\n")


@dataclass
class Stage:
    """Where talkers come from."""

    client: Client
    node: str
    listener: socket.socket
    talkers: list[Talker] = field(default_factory=list)

    def start(self, name: str, host: int = 0) -> Talker:
        """Start a pod, and wait until it can be told what to print."""
        request = JobRequest(
            JOB_ID, self.client.namespace, place("cpu"),
            on(self.node),
            ("python", "-c", POD),
            environment={"PORT": str(self.listener.getsockname()[1])}, runner="kinetic-runner",
        )  # fmt: skip
        template = job_manifests.pod_template(request, terminationGracePeriodSeconds=1)
        template["spec"]["volumes"].append({"name": "scratch", "emptyDir": {}})
        template["spec"]["containers"][0]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
        about = {**template["metadata"], "name": name}
        about["annotations"] = {
            **about.get("annotations", {}), "batch.kubernetes.io/job-completion-index": str(host)
        }  # fmt: skip
        self.client.create(
            kube_client.POD, {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}
        )
        link = self.listener.accept()[0]
        assert link.makefile("rb").readline() == name.encode() + b"\n"
        self.talkers.append(talker := Talker(name, link))
        wait_for("the pod to run", lambda: self._is_running(name))
        return talker

    def _is_running(self, name: str) -> bool:
        found = self.client.get(kube_client.POD, name)
        return bool(found) and found["status"].get("phase") == "Running"

    def pods(self) -> list[dict[str, Any]]:
        return self.client.list(kube_client.POD, job_manifests.label_selector(job_id=JOB_ID)).objects

    def follow(self, *, host: int = 0, attempt: int = 0, told: list[str] | None = None) -> Any:
        """Open a log as whoever asks again and again would."""
        say = (told if told is not None else []).append

        def ask() -> PodLog | None:
            return pod_logs.follow_live(
                self.client, self.pods(), host=host, attempt=attempt, on_verdict=lambda: say("verdict")
            )  # fmt: skip

        return wait_for("the log", ask)


@pytest.fixture
def stage(kube: Client, node: str, isolated: None) -> Iterator[Stage]:
    data = runner_bundle.build().data
    manifest = job_manifests.runner_config_map(kube.namespace, "1", "ab" * 32, {RUNNER_FILE: data})
    manifest["metadata"]["name"] = "kinetic-runner"
    kube.create(kube_client.CONFIG_MAP, manifest)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        made = Stage(kube, node, listener)
        yield made
        for talker in made.talkers:
            talker.link.close()


class Reader:
    """Reads a log from its beginning, as a follower does: from a position on, what is there."""

    def __init__(self, log: PodLog) -> None:
        self.log, self.seen = log, b""

    def has(self, wanted: bytes) -> bool:
        """Wait until as much was read; say whether it is the right."""
        wait_for("the log to arrive", lambda: self.read() or len(self.seen) >= len(wanted))
        return self.seen == wanted

    def ends(self) -> bool:
        """Wait until the log sends its reader to the store."""

        def over() -> bool:
            try:
                return self.read()
            except OSError:
                return True

        return bool(wait_for("the end of the log", over))

    def read(self) -> bool:
        """Read what is there; always false."""
        while data := self.log.read(len(self.seen), 1 << 16):
            self.seen += data
        return False


# ---------------------------------------------------------------------------------------------------------- following


def test_a_log_is_followed_byte_for_byte_while_its_pod_runs(stage: Stage) -> None:
    told: list[str] = []
    talker = stage.start("talker").claims()
    reader = Reader(stage.follow(told=told))

    for data in (b"one\n", ODD, b"", b"two\r\n"):
        talker.prints(data)
        assert reader.has(talker.printed)
    talker.says("between two lines")
    talker.prints(b"no end")
    assert told == []
    talker.ends()

    assert reader.ends()
    assert reader.seen == talker.printed
    assert told == ["verdict"]


BREAKS: dict[str, Callable[[Any], object]] = {
    "the connection is cut": lambda plane: plane.proxy.cut_connections(),
    "the next answers are lost": lambda plane: (
        plane.proxy.fail("drop", target="/log", times=3),
        plane.proxy.cut_connections(),
    ),
    "the next answers are cut": lambda plane: (
        plane.proxy.fail("cut", target="/log", times=2),
        plane.proxy.cut_connections(),
    ),
    "the server is busy": lambda plane: (
        plane.proxy.fail("status", target="/log", times=3),
        plane.proxy.cut_connections(),
    ),
    "the server starts again": lambda plane: plane.restart_api_server(),
}


@pytest.mark.parametrize("break_it", BREAKS.values(), ids=list(BREAKS))
def test_each_line_comes_once_and_in_order_when(plane, stage: Stage, break_it: Callable[[Any], object]) -> None:
    talker = stage.start("talker").claims()
    reader = Reader(stage.follow())
    talker.prints(b"".join(b"%d\n" % number for number in range(1000)))
    talker.prints(b"half of a line")
    assert reader.has(talker.printed.removesuffix(b"half of a line"))

    break_it(plane)
    talker.prints(b" and the rest\n")
    talker.prints(b"".join(b"%d\r\n" % number for number in range(1000)))

    assert reader.has(talker.printed)


def test_a_late_reader_sees_everything(stage: Stage) -> None:
    talker = stage.start("talker").claims()
    talker.prints(ODD * 20)
    early = Reader(stage.follow())
    assert early.has(talker.printed)

    shot = pod_logs.snapshot(stage.client, stage.pods(), host=0, attempt=0)
    late = Reader(stage.follow())

    assert shot is not None
    assert shot.read(0, shot.size()) == talker.printed
    assert late.has(talker.printed)
    talker.prints(b"more\n")
    assert late.has(talker.printed)
    assert early.has(talker.printed)


def test_a_pod_that_took_another_ones_place_has_a_log_of_its_own(stage: Stage) -> None:
    first = stage.start("first").claims(0)
    first.prints(b"first\n")
    reader = Reader(stage.follow(attempt=0))
    assert reader.has(b"first\n")

    path = kube_client.POD.path(stage.client.namespace, "first")
    stage.client.transport.send("DELETE", path, body=b'{"gracePeriodSeconds": 0}')
    assert reader.ends()
    second = stage.start("second")
    assert pod_logs.follow_live(stage.client, stage.pods(), host=0, attempt=1, on_verdict=print) is None
    second.claims(1)
    second.prints(b"second\n")

    assert Reader(stage.follow(attempt=1)).has(b"second\n")
    assert reader.seen == b"first\n"
    assert pod_logs.follow_live(stage.client, stage.pods(), host=0, attempt=0, on_verdict=print) is None


def test_hosts_are_told_apart(stage: Stage) -> None:
    hosts = [stage.start(f"host-{number}", host=number).claims(0, number) for number in range(2)]
    readers = [Reader(stage.follow(host=number)) for number in range(2)]

    for number, talker in enumerate(hosts):
        talker.prints(b"I am %d\n" % number)

    assert [reader.has(talker.printed) for reader, talker in zip(readers, hosts, strict=True)] == [True, True]
    shots = [pod_logs.snapshot(stage.client, stage.pods(), host=number, attempt=0) for number in range(2)]
    assert [shot and shot.read(0, 100) for shot in shots] == [b"I am 0\n", b"I am 1\n"]


def test_a_line_that_a_dying_pod_began_gets_no_end(stage: Stage, agent) -> None:
    talker = stage.start("talker").claims()
    reader = Reader(stage.follow())
    talker.prints(b"one\n" + b"x" * 40_000)  # of a long line the first pieces come before its end
    wait_for("the beginning of the line", lambda: reader.read() or len(reader.seen) > 10_000)

    for pid in agent.pids(stage.client.namespace, "talker").values():
        os.kill(pid, signal.SIGKILL)

    assert reader.ends()
    assert talker.printed.startswith(reader.seen)


def test_a_reader_that_goes_leaves_no_thread(stage: Stage) -> None:
    stage.start("talker").claims().prints(b"one\n")
    log = stage.follow()
    assert Reader(log).has(b"one\n")

    log.close()

    wait_for("the thread to end", lambda: not any(each.name == "kinetic-pod-log" for each in threading.enumerate()))


# ----------------------------------------------------------------------------------------------------- the real runner


TALK = """
def talk(lines):
    import sys, time
    for number in range(lines):
        sys.stdout.write(f"line {number}\\r\\n" if number % 3 else f"kinetic| {number}\\n")
        sys.stdout.flush()
        time.sleep(0.01)
    sys.stdout.write("x" * 50_000 + "\\n50 %\\r100 %")
    return lines
"""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketStore]:
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    server = GcsServer().start()
    server.bucket("jobs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    yield BucketStore("gs://jobs/here")
    server.close()


def order(store: BucketStore, text: str, *args: Any) -> Task:
    """Write what a job needs in its store, and return its launch page."""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(text), script)
    written = Order(
        JOB_ID,
        "talk",
        Artifact.within(cloudpickle.dumps(script["talk"])),
        Artifact.within(pickle.dumps((args, {}))),
        fingerprint={"python": python_runtime.python_version()},
    ).to_bytes()
    store.put(keys.order(JOB_ID), written)
    store.put(keys.record(JOB_ID), b"{}")
    return Task(JOB_ID, digests.of_bytes(written), store.url, "key-1", 0o022, None, {}, pod=PodSettings())


def launch(stage: Stage, page: Task) -> str:
    """Make the Job of a page, and let it run."""
    request = JobRequest(
        JOB_ID, stage.client.namespace, place("cpu"),
        on(stage.node),
        ("python", RUNNER_PATH, page.to_argument()),
        environment={"STORAGE_EMULATOR_HOST": os.environ["STORAGE_EMULATOR_HOST"]}, runner="kinetic-runner",
        secret="kinetic-secret",
    )  # fmt: skip
    made = stage.client.create(kube_client.JOB, job_manifests.job(request))
    secret = job_manifests.secret(request, {"job-key": bytes(range(32))}, made)
    secret["metadata"]["name"] = request.secret
    stage.client.create(kube_client.SECRET, secret)
    name = str(made["metadata"]["name"])
    stage.client.patch(kube_client.JOB, name, {"spec": {"suspend": False}})
    return name


def follower(stage: Stage, store: BucketStore) -> logs.Follower:
    """Read a job's log where it can be had soonest, as the handle does."""

    def reopen(attempt: int) -> Any:
        found = pod_logs.follow_live(stage.client, stage.pods(), host=0, attempt=attempt, on_verdict=lambda: None)
        return found or stored(attempt)

    def stored(attempt: int) -> Any:
        return logs.stored_log(store, JOB_ID, attempt=attempt, host=0)

    return logs.Follower(reopen, lambda: 0, stored)


@pytest.mark.parametrize("break_it", [lambda _: None, *list(BREAKS.values())[:3]], ids=["", *list(BREAKS)[:3]])
def test_from_the_pod_into_the_store_nothing_is_lost_and_nothing_comes_twice(
    plane, stage: Stage, store: BucketStore, break_it: Callable[[Any], object]
) -> None:
    lines = 150
    expected = b"".join(b"line %d\r\n" % each if each % 3 else b"kinetic| %d\n" % each for each in range(lines))
    expected += b"x" * 50_000 + b"\n50 %\r100 %"
    name = launch(stage, order(store, TALK, lines))
    reader, seen, was_broken = follower(stage, store), bytearray(), False

    def is_over() -> bool:
        nonlocal was_broken
        for data in reader.new_bytes():
            seen.extend(data)
        if not was_broken and len(seen) > 200:
            was_broken = True
            break_it(plane)
        return store.size(keys.result(JOB_ID)) is not None

    wait_for("the verdict", is_over, 60)
    for data in reader.new_bytes(last=True):
        seen.extend(data)

    assert bytes(seen) == expected
    assert was_broken
    assert logs.stored_log(store, JOB_ID, attempt=0, host=0).read(0, 1 << 20) == expected
    wait_for("the Job", lambda: stage.client.get(kube_client.JOB, name)["status"].get("succeeded"))


def test_whoever_is_told_of_a_verdict_finds_it_in_the_store(stage: Stage, store: BucketStore) -> None:
    launch(stage, order(store, TALK, 30))
    found: list[int | None] = []
    wait_for("the pod", stage.pods)

    def open_it() -> PodLog | None:
        return pod_logs.follow_live(
            stage.client,
            stage.pods(),
            host=0,
            attempt=0,
            on_verdict=lambda: found.append(store.size(keys.result(JOB_ID))),
        )

    reader = Reader(wait_for("the log", open_it))

    assert reader.ends()
    assert found
    assert found[0]
    assert reader.seen.endswith(b"\n50 %\r100 %")
