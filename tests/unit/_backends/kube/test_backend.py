"""The backend of clusters: whoever waits shares the watches of the process, whatever it waits for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from servers.informers import end_informers
from servers.scripted import Scripted, open_lines, page, refusal

from kinetic._backends.kube import job_launcher, runner_config_maps
from kinetic._backends.kube.backend import KubeBackend
from kinetic._backends.kube.connection import ClusterAddress
from kinetic.errors import AccessDeniedError, CapacityError

if TYPE_CHECKING:
    from servers.http11 import Answer, Request

MANY = 30


def job(name: str, **labels: str) -> dict[str, Any]:
    found = {"app": "kinetic", "job-id": name, **labels}
    about = {"uid": f"uid-{name}", "name": f"kinetic-{name}", "resourceVersion": "5", "labels": found}
    return {"kind": "Job", "metadata": about, "spec": {}, "status": {"ready": 1}}


class Jobs:
    """An API server that has some jobs, and selects among them as far as these tests need."""

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.jobs = jobs

    def answer(self, request: Request) -> Answer:
        if request.path == "/apis":
            return page({"groups": []})
        if "watch" in request.query:
            return open_lines()
        found = [each for each in self.jobs if self._fits(each["metadata"]["labels"], request.query["labelSelector"])]
        return page({"metadata": {"resourceVersion": "10"}, "items": found})

    @staticmethod
    def _fits(labels: dict[str, str], selector: str) -> bool:
        for name, values in re.findall(r"([\w/-]+) in \(([^)]*)\)", selector):
            if labels.get(name) not in values.split(","):
                return False
        rest = re.sub(r"[\w/-]+ in \([^)]*\),?", "", selector)
        for term in filter(None, rest.split(",")):
            name, _, value = term.partition("=")
            if labels.get(name) != value if value else name.removeprefix("!") in labels:
                return False
        return True


class Full(Jobs):
    """One whose machines take no pod."""

    def answer(self, request: Request) -> Answer:
        if request.path.endswith("/pods"):
            said = "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."
            unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
            pod = {"metadata": {"name": "p", "uid": "p"}, "spec": {}, "status": {"conditions": [unplaced]}}
            return page({"metadata": {}, "items": [pod]})
        return page({"metadata": {}, "items": []}) if request.path.endswith("/events") else super().answer(request)


class WithoutCode(Jobs):
    """One from whose namespace the code of kinetic was deleted; a pod waits for it."""

    name = runner_config_maps.name_of_own()
    code: ClassVar[dict[str, Any]] = {}
    is_denied = False

    def answer(self, request: Request) -> Answer:
        about = {"name": "p", "uid": "p", "namespace": "research"}
        if request.path.endswith("/pods"):
            is_placed = {"type": "PodScheduled", "status": "True"}
            spec = {"nodeName": "n", "containers": [{"name": "kinetic-worker"}]}
            pod = {"metadata": about, "spec": spec, "status": {"phase": "Pending", "conditions": [is_placed]}}
            return page({"metadata": {}, "items": [pod]})
        if request.path.endswith("/events"):
            said = f'MountVolume.SetUp failed for volume "runner" : configmap "{self.name}" not found'
            event = {"reason": "FailedMount", "message": said, "involvedObject": about}
            return page({"metadata": {}, "items": [] if self.code else [event]})
        if request.path.endswith("/configmaps"):
            if self.is_denied:
                return refusal(403, "configmaps is forbidden", "Forbidden")
            self.code.update(json.loads(request.body))
            return page(self.code, 201)
        if "/configmaps/" in request.path:
            return page(self.code) if self.code else refusal(404, "none", "NotFound")
        return super().answer(request)


@contextlib.contextmanager
def backend_with(folder: Path, *jobs: dict[str, Any], kind: type[Jobs] = Jobs) -> Iterator[KubeBackend]:
    with Scripted(kind(*jobs).answer) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        environ = {"KUBECONFIG": str(folder / "kubeconfig"), "KINETIC_OWNER": "ann", "HOME": str(folder)}
        made = KubeBackend("gke", ClusterAddress("", "", "", "research", "test"), environ)
        try:
            yield made
        finally:
            end_informers(server, made._informers.alive())
            made.client.close()


@pytest.mark.parametrize(
    "labels",
    [
        {"kinetic/owner": "ann", "kinetic/group": "grp-12345678"},
        {"kinetic/owner": "bob"},
        {"kinetic/owner": "ann"},
    ],
    ids=["children of a batch", "somebody else's jobs", "own jobs"],
)
def test_however_many_jobs_are_waited_for_few_watches_are_open(tmp_path: Path, labels: dict[str, str]) -> None:
    with backend_with(tmp_path, *(job(f"job-{number}", **labels) for number in range(MANY))) as backend:
        for number in range(MANY):
            told, _ = [backend.watch(f"job-{number}", seconds=0.01) for _ in range(2)]
            seen = backend.observe([f"job-{number}"])[f"job-{number}"]
            backend.stop_watching(f"job-{number}")

            assert told  # whoever begins to watch looks once
            assert seen.status.value == "RUNNING"
        open_ = len(backend._informers.alive())

    assert open_ <= 2


def test_what_a_watch_made_anew_tells_first_is_news(tmp_path: Path) -> None:
    done: list[Any] = []

    def waits() -> None:
        backend.watch("a", seconds=0)
        (feed,) = backend._informers.alive()
        for _ in range(5):
            feed.notify("a")
        backend.watch("a", seconds=0)
        feed.end()
        done.append(backend.watch("a", seconds=300))

    with backend_with(tmp_path, job("a", **{"kinetic/owner": "ann"})) as backend:
        waiting = threading.Thread(target=waits, daemon=True)
        waiting.start()
        waiting.join(10)

        assert done == [True]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads; just that is tried
def test_a_forked_child_submits_though_another_thread_was_submitting(tmp_path: Path) -> None:
    with backend_with(tmp_path) as backend, backend._launcher.lock:
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            os._exit(0 if backend._launcher.lock.acquire(timeout=5) else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("where", "command"),
    [
        (ClusterAddress("", "", "", "research", "test"), "kubectl get nodes --show-labels"),
        (ClusterAddress("acme", "us-west4-a", "main", "research", "test"), "kubectl get nodes --show-labels"),
        (
            ClusterAddress("acme", "us-west4-a", "main", "research", ""),
            "gcloud container node-pools list --cluster main --location us-west4-a --project acme",
        ),
    ],
    ids=["a context", "a context and a project", "a project"],
)
def test_where_no_machine_fits_the_command_that_lists_them_is_one_of_this_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: ClusterAddress, command: str
) -> None:
    with backend_with(tmp_path, job("a"), kind=Full) as backend:
        client = backend.client
        monkeypatch.setattr(KubeBackend, "client", client)

        found = KubeBackend("gke", where, {}).explain("a")

    assert found is not None
    assert found.next.startswith(f"{command} shows what the cluster has")


def test_what_the_store_has_of_a_collected_job_goes_though_its_cluster_refuses_to_remove_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise AccessDeniedError("you may not delete jobs here")

    monkeypatch.setattr(job_launcher, "delete_jobs", refuse)
    monkeypatch.setattr(KubeBackend, "client", None)
    removed: list[str] = []

    KubeBackend._remove_behind(KubeBackend.__new__(KubeBackend), [job("one")], lambda: removed.append("one"))

    assert removed == ["one"]
    told = capsys.readouterr().err
    assert "one was collected, and could not be removed in full" in told
    assert "you may not delete jobs here" in told
    assert "kinetic jobs cleanup one" in told


def test_a_quota_that_refuses_some_jobs_says_which_others_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[Any] = [SimpleNamespace(order=SimpleNamespace(job_id=f"cpu-{number}")) for number in range(5)]

    def make(launch: Any, _: int) -> dict[str, Any]:
        if launch.order.job_id not in {"cpu-1", "cpu-3"}:
            raise CapacityError("the quota of the namespace is used up")
        return job(launch.order.job_id)

    with backend_with(tmp_path) as backend:
        monkeypatch.setattr(backend._launcher, "make", make)
        monkeypatch.setattr(backend, "add", lambda *_: None)

        with pytest.raises(CapacityError) as refused:
            backend.launch(launches)

    assert sorted(refused.value.launched) == ["cpu-1", "cpu-3"]


@pytest.mark.parametrize("is_denied", [False, True])
def test_who_looks_at_a_pod_that_waits_for_the_code_of_kinetic_sends_it_again(tmp_path: Path, is_denied: bool) -> None:
    class Here(WithoutCode):
        code: ClassVar[dict[str, Any]] = {}

    Here.is_denied = is_denied
    waiting = job("job-1")
    waiting["status"] = {"active": 1}
    with backend_with(tmp_path, waiting, kind=Here) as backend:
        found = backend.explain("job-1")

    assert found is not None
    assert ("was sent there again" in found.what, bool(Here.code)) == (not is_denied, not is_denied)
    assert is_denied == ("does not exist" in found.what)
