"""The part of `kinetic up` and `kinetic down` that is inside a cluster, on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kinetic._backends.kube.client import NAMESPACE, RESOURCE_QUOTA, SERVICE_ACCOUNT, Client
from kinetic._backends.kube.connection import context_access
from kinetic._cluster import jobset
from kinetic._cluster import namespace as in_cluster
from kinetic._cluster.namespace import FollowerBinding, FollowerRole, Namespace, Quota, ServiceAccount
from kinetic._cluster.project_apis import ProjectApis
from kinetic._cluster.resource import Found, Setup, Spec
from kinetic._google import login
from kinetic.errors import ClusterError, KineticError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def client(plane, namespace) -> Iterator[Client]:
    client = Client(context_access("", {"KUBECONFIG": str(plane.kubeconfig)}), namespace)
    yield client
    client.close()


def setup_for(client: Client, **more: Any) -> Setup:
    given = {"project": "acme", "cluster": "team", "namespace": client.namespace, "limits": (("tpu", 16), ("pods", 4))}
    apis = ProjectApis("acme", login.Tokens({}), {})
    return Setup(Spec(**(given | more)), apis, lambda _: client)  # type: ignore[arg-type]


def test_the_account_and_the_quota_are_made_once_and_are_known_again(client: Client) -> None:
    setup = setup_for(client)
    for kind in (ServiceAccount, FollowerRole, FollowerBinding, Quota):
        resource = kind(setup)
        assert resource.read().state == "missing"

        resource.make(resource.read())
        resource.make(resource.read())  # as after a kill: its answer was lost

        found = kind(setup_for(client)).read()
        assert (found.state, kind(setup).diff(found)) == ("ours", [])
    account = client.get(SERVICE_ACCOUNT, "kinetic")
    assert account is not None
    assert account["automountServiceAccountToken"] is False


def test_a_quota_is_changed_and_then_holds(client: Client) -> None:
    first, second = Quota(setup_for(client)), Quota(setup_for(client, limits=(("pods", 0),)))
    first.make(first.read())

    changes = second.diff(second.read())
    second.change(second.read(), changes)

    assert {change.field for change in changes} == {"pods", "requests.google.com/tpu"}
    quota = client.get(RESOURCE_QUOTA, "kinetic")
    assert quota is not None
    assert quota["spec"]["hard"] == {"pods": "0"}
    pod = {"name": "one", "image": "none"}
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one"},
        "spec": {"containers": [pod], "serviceAccountName": "kinetic"},
    }
    account = ServiceAccount(setup_for(client))
    account.make(account.read())
    from kinetic._backends.kube.client import POD

    with pytest.raises(KineticError, match="quota of the namespace"):
        client.create(POD, manifest)


def test_what_somebody_else_made_is_named_and_not_changed(client: Client) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "kinetic"},
        "spec": {"hard": {"pods": "7"}},
    }
    client.create(RESOURCE_QUOTA, manifest)
    quota = Quota(setup_for(client))

    found = quota.read()
    with pytest.raises(ClusterError, match="was not made by kinetic"):
        quota.make(found)

    assert found.state == "foreign"
    kept = client.get(RESOURCE_QUOTA, "kinetic")
    assert kept is not None
    assert kept["spec"]["hard"] == {"pods": "7"}


def test_a_namespace_is_made_and_removed_with_what_is_in_it(client: Client) -> None:
    setup = setup_for(client, namespace=f"{client.namespace}-made")
    made = Namespace(setup)
    made.make(made.read())
    assert made.read().state == "ours"

    made.remove(made.read())

    assert made.read().state in {"pending", "missing"}


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_a_namespace_that_kubernetes_brings_is_used_as_it_is(name: str, client: Client) -> None:
    assert Namespace(setup_for(client, namespace=name)).read().state == "given"


def test_a_namespace_of_somebody_else_is_used_and_never_removed(client: Client) -> None:
    assert client.get(NAMESPACE, client.namespace) is not None

    assert Namespace(setup_for(client)).read().state == "given"


def test_a_namespace_and_an_account_made_by_hand_are_not_marked_by_a_plan_from_before_the_cluster_ran(
    client: Client,
) -> None:
    client.create(SERVICE_ACCOUNT, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "kinetic"}})
    setup = setup_for(client)

    for kind in (Namespace, ServiceAccount):
        kind(setup).make(Found("missing"))

        assert kind(setup).read().state == "given"


def test_every_object_has_the_mark_by_which_it_is_found(client: Client) -> None:
    setup = setup_for(client)

    for kind in (Namespace, ServiceAccount, Quota):
        assert kind(setup).manifest()["metadata"]["labels"] == in_cluster.KUBERNETES_MARK


@pytest.mark.parametrize("manifest", jobset.manifests(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_a_real_server_accepts_every_object_of_jobset(manifest: dict[str, Any], client: Client) -> None:
    kind = jobset.KINDS[manifest["kind"]]
    # The test cluster has JobSet's webhooks under their names already, at other addresses.
    name = f"{manifest['metadata']['name']}{'-of-up' if 'Webhook' in kind.name else ''}"
    where = {"namespace": client.namespace} if kind.namespaced else {}
    manifest = manifest | {"metadata": manifest["metadata"] | where | {"name": name}}
    query = {"fieldManager": "kinetic-test", "fieldValidation": "Strict", "dryRun": "All", "force": "true"}

    reply = client.transport.send(
        "PATCH",
        kind.path(client.namespace, name),
        query=query,
        body=json.dumps(manifest).encode(),
        headers={"Content-Type": "application/apply-patch+yaml"},
    )

    assert reply.status in {200, 201}, reply.body[:500]


def test_a_jobset_without_our_label_is_somebody_elses(client: Client) -> None:
    assert jobset.JobSet(setup_for(client)).read().state == "given"
