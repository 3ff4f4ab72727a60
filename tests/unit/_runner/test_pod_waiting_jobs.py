"""What a pod does at its end for the jobs that wait for its own."""

from __future__ import annotations

import copy
import itertools
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.certificates import Authority
from servers.faults import BrokenServer, QuietHandler

from kinetic._runner.pod import cluster_api, waiting_jobs
from kinetic._runner.pod.cluster_api import Answer
from kinetic._runner.pod.waiting_jobs import Others
from kinetic._stores.memory import MemoryStore
from kinetic._stores.protocol import Entry
from kinetic._wire import documents, keys
from kinetic._wire.task import AttemptFiles, PodSettings, Task
from kinetic.errors import StoreUnreachableError

JOB_ID, LATER = "cpu-a-20261123-103059-1234567", "cpu-b-20261123-103059-1234568"


def test_a_page_that_somebody_else_wrote_keeps_no_other_job_from_its_end(tmp_path: Path) -> None:
    store = MemoryStore("a")
    (tmp_path / "namespace").write_text("here")
    page = {"schema": documents.SCHEMA, "after": [JOB_ID]}
    for name, more in (("cpu-0", {}), (LATER, {"closed": {JOB_ID: b64encode(b"its verdict").decode()}})):
        store.put(keys.follower(JOB_ID, name), documents.write(page | more))

    said = list(waiting_jobs.settle(store, JOB_ID, "", succeeded=False, environ={}, folder=tmp_path))

    assert said == [f"{LATER}, which follows this job, was closed"]
    assert store.get(keys.result(LATER)) == b"its verdict"


def test_a_chain_of_any_length_is_closed_when_its_first_job_fails(tmp_path: Path) -> None:
    store, names = MemoryStore("a"), [f"cpu-a-20261123-103059-{number:07x}" for number in range(700)]
    (tmp_path / "namespace").write_text("here")
    for before, name in itertools.pairwise(names):
        page = {"schema": documents.SCHEMA, "after": [before], "closed": {before: b64encode(b"its verdict").decode()}}
        store.put(keys.follower(before, name), documents.write(page))

    said = list(waiting_jobs.settle(store, names[0], "", succeeded=False, environ={}, folder=tmp_path))

    assert said == [f"{name}, which follows this job, was closed" for name in names[1:]]
    assert store.get(keys.result(names[-1])) == b"its verdict"


def test_followers_that_cannot_be_listed_now_keep_no_others_from_being_closed(tmp_path: Path) -> None:
    first, second, third, last = (f"cpu-a-20261123-103059-{number:07x}" for number in range(4))

    class Failing(MemoryStore):
        def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
            if prefix == keys.followers(third):
                raise StoreUnreachableError("the store does not answer")
            return super().entries(prefix, after=after)

    store = Failing("a")
    (tmp_path / "namespace").write_text("here")
    for before, name in ((first, second), (first, third), (second, last)):
        page = {"schema": documents.SCHEMA, "after": [before], "closed": {before: b64encode(b"its verdict").decode()}}
        store.put(keys.follower(before, name), documents.write(page))

    said = set(waiting_jobs.settle(store, first, "", succeeded=False, environ={}, folder=tmp_path))

    assert said == {f"{name}, which follows this job, was closed" for name in (second, third, last)}


def test_a_token_of_the_service_account_that_has_expired_is_read_anew(tmp_path: Path) -> None:
    authority, token = Authority(tmp_path), tmp_path / "token"
    shown: list[str] = []

    class Handler(QuietHandler):
        def do_PATCH(self) -> None:  # noqa: N802 - the base's name
            shown.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            token.write_text("renewed")  # by the kubelet, meanwhile
            self.send_response(200 if shown[-1].endswith("renewed") else 401)
            self.send_header("Content-Length", "0")
            self.end_headers()

    pair, context = authority.issue("server"), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = BrokenServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    token.write_text("expired")
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}

    statuses = [cluster_api.request("PATCH", "/a", {}, environ=where, folder=tmp_path).status for _ in range(2)]
    server.shutdown()
    thread.join()
    server.server_close()

    assert statuses == [200, 200]
    assert shown == ["Bearer expired", "Bearer renewed", "Bearer renewed"]


# ------------------------------------------------------------------------------- children that wait for the first one


class Cluster:
    """The API of a cluster with the Jobs of a batch: one started, two that wait for the first, one for another job."""

    def __init__(self) -> None:
        self.jobs = {
            name: {"metadata": {"name": name, "annotations": after}, "spec": {"suspend": bool(after)}}
            for name, after in {
                "kinetic-0": {},
                "kinetic-1": {"kinetic/after": f"programs-of {JOB_ID}", "kinetic/job-id": "cpu-1"},
                "kinetic-2": {"kinetic/after": f"programs-of {JOB_ID}", "kinetic/job-id": "cpu-2"},
            }.items()
        }
        self.status = 200

    def request(self, method: str, path: str, change: Any = None, **_: Any) -> Answer:
        if self.status != 200:
            return Answer(self.status, f"HTTP {self.status}", {})
        if "/jobsets" in path:
            return Answer(404, "HTTP 404", {})
        if method == "PATCH":
            found = self.jobs[path.rpartition("/")[2]]
            found["metadata"]["annotations"].clear()
            found["spec"] |= change["spec"]
            return Answer(200, "", dict(found))
        return Answer(200, "", {"items": copy.deepcopy(list(self.jobs.values()))})

    @property
    def waiting(self) -> list[str]:
        return [name for name, each in self.jobs.items() if each["spec"]["suspend"]]


class First:
    """The pod of the first child, on a clock of the test."""

    def __init__(self, folder: Path) -> None:
        (folder / "namespace").write_text("here")
        self.store, self.now = MemoryStore("b"), 0.0
        settings = PodSettings(awaited_seconds=100.0)
        mark = keys.mark("grp-00000001", 0, 0)
        self.task = Task(JOB_ID, "0" * 64, "memory://", "key-1", 0o022, None, {}, mark=mark, pod=settings)
        self.file = AttemptFiles(str(folder), "").compiled
        self.others = Others(self.store, self.task, folder, {}, folder, lambda: self.now)

    def look(self, at: float, compiled: str = "") -> None:
        self.now = at
        if compiled:
            self.file.write_text(compiled)
        self.others.start_if_compiled()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(cluster_api, "request", made.request)
    return made


@pytest.fixture
def first(tmp_path: Path) -> First:
    return First(tmp_path)


def test_the_others_start_once_most_of_the_programs_are_stored(first: First, cluster: Cluster) -> None:
    first.look(50.0)
    first.look(99.0, "30.000")  # of 100 s
    before = cluster.waiting
    first.look(120.0, "91.000")

    assert before == ["kinetic-1", "kinetic-2"]
    assert cluster.waiting == []
    assert first.store.size(keys.group_compiled("grp-00000001")) == 0


@pytest.mark.parametrize(
    "looks",
    [
        [(101.0, "")],  # JAX is not even imported
        [(99.0, "10.000"), (200.0, "")],  # what is compiled now is less than it was
        [(5.0, "many")],  # the user's code wrote into the file
    ],
)
def test_the_others_wait_no_longer_than_compiling_took(first: First, cluster: Cluster, looks: Any) -> None:
    *early, last = looks
    for look in early:
        first.look(*look)
    before = cluster.waiting

    first.look(*last)

    assert (before, cluster.waiting) == (["kinetic-1", "kinetic-2"], [])


def test_a_cluster_that_does_not_answer_is_asked_again(
    first: First, cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.status = 503
    first.look(1.0, "100.000")
    cluster.status = 200
    first.look(6.0)

    assert cluster.waiting == []
    said = capfd.readouterr().out
    assert "could not be started from here: the jobs of grp-00000001 cannot be listed" in said
    assert "cpu-2, which waited for programs of this job, was started" in said


@pytest.mark.parametrize(("is_decided", "left"), [(True, []), (False, ["kinetic-1", "kinetic-2"])])
def test_a_pod_that_must_go_starts_the_others_only_where_no_attempt_follows(
    first: First, cluster: Cluster, is_decided: bool, left: list[str]
) -> None:
    if is_decided:
        first.store.put(keys.result(JOB_ID), b"cancelled")

    first.others.start_if_decided()

    assert cluster.waiting == left
