"""The fixtures of the test cluster, for the tests of the cluster itself."""

import contextlib
from pathlib import Path

import lightkube
import pytest
from cluster import containers
from cluster.fixtures import add_node, agent, cloud, kubeconfig, namespace, node, plane, why_not, why_not_here
from cluster.manifests import Objects
from lightkube.config.kubeconfig import KubeConfig

from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import context_access
from kinetic._stores.parallel import Retry

SECONDS = 90  # the server may be restarted, and starts with whichever test is first
WITHOUT = {"test_ports.py", "test_node_host.py"}  # what needs no cluster

__all__ = ["add_node", "agent", "cloud", "kubeconfig", "namespace", "node", "objects", "plane"]


def pytest_collection_modifyitems(items):
    """Give each test its time, and skip all with one line where there is no cluster."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    reason = why_not() if here else ""
    for item in here:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
        if item.path.name not in WITHOUT and (why := reason or why_not_here(item)):
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def objects(plane, namespace):
    return Objects(plane.api, namespace)


@pytest.fixture
def client(kubeconfig):
    """The client that the backend uses, through the proxy."""
    with lightkube.Client(config=KubeConfig.from_file(kubeconfig), trust_env=False) as client:
        yield client


@pytest.fixture
def kube(plane, namespace):
    """The same client without the proxy, in the namespace of the test."""
    access = context_access("", {"KUBECONFIG": str(plane.kubeconfig)})
    with contextlib.closing(Client(access, namespace, Retry(8, 0.05, 1.0, 60.0))) as client:
        yield client


@pytest.fixture
def isolated():
    """Ask for containers that have a file system and processes of their own."""
    if not containers.isolated():
        pytest.skip("this user may not make namespaces here; root may")
