"""What tests take: a cluster of their own for the whole session, or the one that KINETIC_TEST_KUBECONFIG points at.

Its nodes are those of the node agent; with KINETIC_TEST_REAL_NODE=1 they are real ones, for the tests that say so.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from cluster import binaries, node_host, nodes
from cluster.agent import Agent, NoBlockError
from cluster.node_host import Host, NodeUnavailableError
from cluster.plane import Plane
from cluster.real_node import RealNodes
from servers.google_cloud import GoogleCloud

if TYPE_CHECKING:
    from cluster.nodes import NodeSpec

OTHER = "KINETIC_TEST_KUBECONFIG"
# Read now: a test's environment has nothing of kinetic's.
REAL = os.environ.get("KINETIC_TEST_REAL_NODE", "") == "1"


class Cluster(NamedTuple):
    """A control plane and its nodes, both of ours."""

    plane: Plane
    agent: Agent | RealNodes


class Resting:
    """A plugin that stops the programs of a control plane, 5 % of a core, while tests run that do not need it."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("of_a_cluster"):
            self._plane.thaw()
        else:
            self._plane.freeze()


_STARTED = pytest.StashKey[Cluster | str]()


def why_not() -> str:
    """Say why there is no cluster of ours, or "" if there is one."""
    if OTHER in os.environ:
        return f"needs a cluster that it may break, and {OTHER} points at another"
    if binaries.missing():
        return "needs the test cluster: run `make cluster`"
    return node_host.why_not() if REAL else ""


def why_not_here(item: pytest.Item) -> str:
    """Return why a test cannot run on the nodes that this session has, or ""."""
    if REAL and not item.get_closest_marker("real_node"):
        return "runs on the node agent: unset KINETIC_TEST_REAL_NODE"
    if not REAL and item.get_closest_marker("only_real_node"):
        return "runs on a real node: `make test-node`"
    return ""


def session_cluster(config: pytest.Config) -> Cluster:
    """Start the session's cluster, or return the one that runs already; it ends with the session.

    Raises:
        pytest.skip.Exception: There is none and none can be made; says why.
    """
    if reason := why_not():
        pytest.skip(reason)
    if _STARTED not in config.stash:
        try:
            config.stash[_STARTED] = start(config)
        except NoBlockError as error:
            config.stash[_STARTED] = f"the node agent finds no place on this machine: {error}"
        except NodeUnavailableError as error:
            config.stash[_STARTED] = str(error)
    started = config.stash[_STARTED]
    if isinstance(started, str):
        pytest.skip(started)
    return started


def start(config: pytest.Config) -> Cluster:
    """Start a control plane and what runs its nodes, to end with the session; tests add the nodes that they need."""
    folder = Path(tempfile.mkdtemp(prefix="kinetic-cluster-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    plane = Plane(folder, names=REAL).start()
    config.add_cleanup(plane.stop)
    if REAL:
        agent: Agent | RealNodes = RealNodes(plane.nodes, plane.authority, Host()).start()
    else:
        agent = Agent(plane.nodes, plane.authority, folder / "nodes").start()
    config.add_cleanup(agent.stop)
    config.add_cleanup(plane.thaw)  # the last that was added is the first that is done
    config.pluginmanager.register(Resting(plane))
    return Cluster(plane, agent)


@pytest.fixture(scope="session")
def kubeconfig(pytestconfig: pytest.Config) -> Path:
    """The kubeconfig of a cluster: ours, or the one that KINETIC_TEST_KUBECONFIG names."""
    other = os.environ.get(OTHER)
    return Path(other) if other else session_cluster(pytestconfig).plane.kubeconfig


@pytest.fixture(scope="session")
def plane(pytestconfig: pytest.Config) -> Plane:
    return session_cluster(pytestconfig).plane


@pytest.fixture(scope="session")
def agent(pytestconfig: pytest.Config) -> Agent | RealNodes:
    return session_cluster(pytestconfig).agent


@pytest.fixture
def namespace(plane: Plane) -> Iterator[str]:
    """A namespace of the test's own, and nothing refused, cut or counted from the test before."""
    plane.heal()
    name = plane.create_namespace()
    yield name
    plane.heal()
    plane.delete_namespace(name)


@pytest.fixture
def add_node(plane: Plane, agent: Agent | RealNodes, namespace: str) -> Iterator[Callable[[NodeSpec], str]]:
    """A function that adds nodes, which go with the test. Give each the namespace in its name: names must differ."""
    added: list[str] = []

    def add(spec: NodeSpec) -> str:
        added.append(spec.name)
        return agent.add_node(spec)

    yield add
    plane.heal()  # nodes are taken away by the server
    for name in added:
        agent.discard_node(name)


@pytest.fixture
def node(add_node: Callable[[NodeSpec], str], namespace: str) -> str:
    """A plain node of this test alone; a pod finds it by the label `kubernetes.io/hostname`."""
    return add_node(nodes.cpu(f"node-{namespace}"))


@pytest.fixture
def cloud(plane: Plane) -> Iterator[GoogleCloud]:
    """An empty project of the fake Google, whose clusters are the one of this session."""
    with GoogleCloud() as cloud:
        cloud.token = plane.client.token
        cloud.pending = 0  # else a command waits 3 s for each; tests/unit/_cluster waits with a clock of its own
        cloud.enabled = {"serviceusage.googleapis.com"}
        address = plane.client.url.removeprefix("https://")
        cloud.container.api_server = (address, Path(plane.authority.certificate).read_bytes())
        yield cloud
    assert cloud.wrong == []
