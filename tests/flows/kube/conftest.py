"""Jobs on a cluster: the clients, jobs and words of the tests next door, with pods where those have workers.

Control plane, controllers and scheduler are real, and JobSet's, too; the nodes are the agent of tests/cluster, the
image of a pod is the Python that runs the tests, and the store is a bucket of tests/servers. Each test has a namespace,
a bucket and nodes of its own. Those marked `real_node` also run where kubelet, containerd and images are real.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import containers, controllers, images, nodes
from cluster.accounts import RBAC
from cluster.fixtures import OTHER, REAL, add_node, agent, cloud, namespace, plane, why_not, why_not_here
from flows.conftest import Told
from flows.kube.site import JOBS, Bucket, Site

from kinetic._stores.protocol import CREDENTIAL_VARIABLES

ANYWHERE = "test_any_cluster.py"  # what runs on a cluster of somebody else as well
# Read now: a test's environment has nothing of kinetic's.
ELSEWHERE = {name: os.environ.get(name, "") for name in (OTHER, "KINETIC_TEST_STORE", "KINETIC_TEST_NAMESPACE")}
# Of an account that may make LeaderWorkerSets, and no Jobs.
RULES = [
    {"apiGroups": [""], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "list", "watch", "delete", "patch"]},
    {"apiGroups": ["leaderworkerset.x-k8s.io"], "resources": ["*"], "verbs": ["*"]},
]
SECONDS = 120  # a pod takes seconds where a worker takes tenths of them

__all__ = ["add_node", "agent", "cloud", "namespace", "plane"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its time, and skip all with one line where there is no cluster that runs pods."""
    folder = f"{Path(__file__).parent}{os.sep}"
    here = [item for item in items if str(item.path).startswith(folder)]  # is_relative_to takes 0.6 s for all of them
    reason = _why_not() if here else ""
    for item in here:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
        if ELSEWHERE[OTHER] and item.path.name == ANYWHERE:
            continue
        if why := reason or why_not_here(item):
            item.add_marker(pytest.mark.skip(reason=why))


def _why_not() -> str:
    return why_not() or ("" if containers.isolated() else "this user may not make namespaces here; root may")


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Iterator[Bucket]:
    """The bucket with everything that jobs keep, behind a proxy that can refuse."""
    made = Bucket(request.getfixturevalue("agent").gateway if REAL else "127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def shared(tmp_path: Path, agent: Any) -> Iterator[Path]:
    """A folder that client and pods both see, under the same path, as they would see one of a network."""
    if REAL:
        with tempfile.TemporaryDirectory(dir=agent.shared) as name:
            Path(name).chmod(0o777)
            yield Path(name)
        return
    folder = tmp_path / "shared"
    folder.mkdir()
    python = images.of_this_python()
    agent.registry.add("python:*", python._replace(shown=(*python.shown, str(folder))))
    yield folder
    agent.registry.add("python:*", python)


@pytest.fixture
def home(home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a home that points at the cluster: as its users do, by a project, and nothing names a backend."""
    points = _points_elsewhere() if ELSEWHERE[OTHER] else _points_here(request, monkeypatch)
    for name, value in points.items():
        monkeypatch.setenv(name, value)
    return home


def _points_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    plane, namespace, bucket, _ = map(request.getfixturevalue, ("plane", "namespace", "bucket", "shared"))
    for name in CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return {
        "KUBECONFIG": str(plane.kubeconfig),
        "KINETIC_KUBE_CONTEXT": "test",
        "KINETIC_PROJECT": "project-of-a-test",
        "KINETIC_NAMESPACE": namespace,
        "KINETIC_STORE": bucket.address,
        "STORAGE_EMULATOR_HOST": bucket.url,
        "KINETIC_REQUIRE_ACCELERATOR": "0",  # the nodes of these tests have no chips
        "KINETIC_BASE_PACKAGES": "0",  # the image is the Python that runs the tests: nothing is installed into it
    }


def _points_elsewhere() -> dict[str, str]:
    kubeconfig, store, namespace = ELSEWHERE.values()
    if not store:
        pytest.skip(f"{OTHER} needs KINETIC_TEST_STORE: a bucket that the pods of that cluster reach")
    lines = Path(kubeconfig).read_text().splitlines()
    context = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("current-context:"))
    points = {"KUBECONFIG": kubeconfig, "KINETIC_BACKEND": "gke", "KINETIC_KUBE_CONTEXT": context}
    points |= {"KINETIC_NAMESPACE": namespace} if namespace else {}
    return points | {"KINETIC_STORE": store}


@pytest.fixture
def project(project: Any) -> Iterator[Any]:
    """End whatever client the test leaves: its cluster is about to go."""
    started: list[Any] = []
    begin = project.start

    def start(*words: Any, **more: Any) -> Any:
        started.append(begin(*words, **more))
        return started[-1]

    project.start, project.started = start, started
    yield project
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


@pytest.fixture
def batches(batches: Any, request: pytest.FixtureRequest) -> Any:
    """Let clients and the pods of their jobs meet in the shared folder."""
    if not ELSEWHERE[OTHER]:
        shared = request.getfixturevalue("shared")
        batches.notes, batches.go = shared / "notes", shared / "go"
    begin = batches.start

    def start(*words: Any, **more: Any) -> Any:
        batches.project.started.append(begin(*words, **more))
        return batches.project.started[-1]

    batches.start = start
    return batches


@pytest.fixture
def clients(batches: Any) -> Any:
    """Clients of single jobs: what they run finds ``one.py`` with some jobs, beside those of batches."""
    batches.project.write("one.py", JOBS)
    return batches


@pytest.fixture
def site(plane: Any, agent: Any, namespace: str, bucket: Bucket) -> Site:
    """What the test sees of its place: objects, pods and requests."""
    return Site(plane, agent, namespace, bucket)


@pytest.fixture
def machine(add_node: Any, namespace: str) -> str:
    """A machine with eight cores of this test alone."""
    return add_node(nodes.cpu(f"machine-{namespace}"))


@pytest.fixture
def machines(add_node: Any, namespace: str) -> Callable[..., list[str]]:
    """Return a function that adds the machines of a slice of v4 to a pool; it returns all that it added."""
    made: list[str] = []

    def add(hosts: int = 2, topology: str = "2x2x2", pool: int = 0) -> list[str]:
        for _ in range(hosts):
            name, of = f"tpu-{len(made)}-{namespace}", f"pool-{pool}-{namespace}"
            spec = nodes.tpu(name, "tpu-v4-podslice", topology, pool=of)
            made.append(add_node(spec))
        return made

    return add


@pytest.fixture
def only_leader_worker_sets(home: Path, site: Any, plane: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client one that may make LeaderWorkerSets and no Jobs; there is no JobSet. Pods may do the same."""
    plane.proxy.hide("jobset.x-k8s.io")
    site.put("serviceaccounts", {"metadata": {"name": "submitter"}})
    where = f"{RBAC}/namespaces/{site.namespace}"
    site.api.create(f"{where}/roles", {"metadata": {"name": "submitter"}, "rules": RULES})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "submitter"}
    subjects = [
        {"kind": "ServiceAccount", "name": name, "namespace": site.namespace} for name in ("submitter", "default")
    ]
    binding = {"metadata": {"name": "submitter"}, "roleRef": reference, "subjects": subjects}
    site.api.create(f"{where}/rolebindings", binding)
    token = site.put("serviceaccounts/submitter/token", {"spec": {}})["status"]["token"]
    endpoint = site.plane.client._replace(token=token)
    monkeypatch.setenv("KUBECONFIG", str(endpoint.write_kubeconfig(tmp_path / "submitter.yaml")))


@pytest.fixture(scope="module")
def set_controller(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The controller of LeaderWorkerSets, where `make controllers` has built it."""
    if why := controllers.why_not():
        pytest.skip(why)
    with controllers.started(controllers.LEADER_WORKER_SET, plane, tmp_path_factory.mktemp("lws")):
        yield


@pytest.fixture
def kinetic(project: Any) -> Callable[..., Told]:
    """A function that runs a command in the project's folder to its end."""

    def run(*words: str) -> Told:
        return Told.of(project.kinetic(*words))

    return run
