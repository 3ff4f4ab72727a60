"""Where a GKE cluster is, asked of a server that speaks the container API, and held against Google's document."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.discovery import document
from servers.google_cloud import Fault, GoogleCloud
from servers.google_cloud.container import AUTHORITY
from servers.google_cloud.tokens import Tokens
from servers.http11 import Answer
from servers.scripted import Scripted

from kinetic._google import clusters
from kinetic._google.api import Service
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, BackendUnavailableError, CredentialsError, KineticError

PLACE = ("us-central1-a", "kinetic-cluster")
HERE = ("my-project", *PLACE)


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud("my-project") as cloud:
        cloud.tokens = {"token"}
        yield cloud
    assert cloud.wrong == []


def service(cloud: GoogleCloud, tokens: Tokens | None = None, waited: list[float] | None = None) -> Service:
    sleep = (waited if waited is not None else []).append
    return Service(clusters.CONTAINER_API, tokens or Tokens(), Retry(3, sleep=sleep), environ=cloud.endpoints)


def test_the_dns_endpoint_is_taken_where_it_is_answered_and_needs_no_certificate(cloud: GoogleCloud) -> None:
    dns = {"endpoint": "gke-abc.us-central1.gke.goog", "allowExternalTraffic": True}
    cloud.container.add(*PLACE, controlPlaneEndpointsConfig={"dnsEndpointConfig": dns})

    found = clusters.read_cluster(service(cloud), *HERE)

    assert (found.server, found.authority) == ("https://gke-abc.us-central1.gke.goog", b"")


def test_a_name_that_nobody_answers_is_passed_over_for_the_address_and_its_certificate(cloud: GoogleCloud) -> None:
    cloud.container.add(*PLACE)

    found = clusters.read_cluster(service(cloud), *HERE)

    assert (found.server, found.authority) == ("https://203.0.113.7", AUTHORITY)


def test_only_what_is_needed_of_a_cluster_is_asked_for(cloud: GoogleCloud) -> None:
    cloud.container.add(*PLACE)
    cloud.quota_projects = {"billed"}

    clusters.read_cluster(service(cloud, Tokens(project="billed")), *HERE)

    (asked,) = cloud.calls
    assert asked.path == "v1/projects/my-project/locations/us-central1-a/clusters/kinetic-cluster"
    assert "masterAuth/clusterCaCertificate" in asked.query["fields"]
    assert asked.headers["x-goog-user-project"] == "billed"


def test_a_cluster_that_is_not_there_is_answered_with_those_that_are(cloud: GoogleCloud) -> None:
    cloud.container.add("europe-west4", "big")

    with pytest.raises(BackendUnavailableError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert caught.value.code == "cluster-missing"
    assert caught.value.why == "its clusters: big in europe-west4"
    assert caught.value.next == "export KINETIC_CLUSTER=big KINETIC_ZONE=europe-west4"


def test_a_project_without_clusters_names_the_command_that_lists_them(cloud: GoogleCloud) -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert caught.value.next == "gcloud container clusters list --project my-project"


def test_a_missing_permission_is_named(cloud: GoogleCloud) -> None:
    cloud.denied = {"container.clusters.get"}

    with pytest.raises(AccessDeniedError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert "container.clusters.get" in caught.value.why
    assert "roles/container.developer" in caught.value.next


def test_an_api_that_is_not_switched_on_comes_with_the_command_that_does_it(cloud: GoogleCloud) -> None:
    cloud.enabled.clear()

    with pytest.raises(AccessDeniedError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert caught.value.next == "gcloud services enable container.googleapis.com --project my-project"


@pytest.mark.parametrize("may_use_it", [True, False])
def test_a_login_whose_own_project_has_the_api_off_uses_the_quota_of_the_cluster(may_use_it: bool) -> None:
    with GoogleCloud() as cloud:
        cloud.container.add("us-west4", "team")
        cloud.quota_projects = {"old", *([cloud.project] if may_use_it else [])}
        cloud.enabled_elsewhere.clear()
        tokens = Tokens(project="old")
        asked = Service(clusters.CONTAINER_API, tokens, Retry(1), environ=cloud.endpoints)

        assert clusters.read_cluster(asked, cloud.project, "us-west4", "team").name == "team"

        cloud.forget()
        clusters.read_cluster(asked, cloud.project, "us-west4", "team")
        assert len(cloud.calls) == 1
        cloud.enabled.clear()
        with pytest.raises(AccessDeniedError) as caught:
            clusters.read_cluster(asked, cloud.project, "us-west4", "team")
        assert "is not enabled in" in caught.value.what
        assert cloud.project in str(caught.value.why)


def test_who_may_use_the_quota_of_no_project_learns_the_role() -> None:
    with GoogleCloud() as cloud:
        cloud.quota_projects, cloud.counted_elsewhere = set(), True
        asked = Service(clusters.CONTAINER_API, Tokens(project="old"), Retry(1), environ=cloud.endpoints)

        with pytest.raises(AccessDeniedError) as caught:
            clusters.read_cluster(asked, cloud.project, "us-west4", "team")

    assert "roles/serviceusage.serviceUsageConsumer" in str(caught.value.next)


def test_a_token_that_ended_is_exchanged_once(cloud: GoogleCloud) -> None:
    cloud.container.add(*PLACE)
    tokens = Tokens("old", "token")

    clusters.read_cluster(service(cloud, tokens), *HERE)

    assert tokens.refused == ["old"]


def test_a_token_that_nobody_wants_is_an_error_of_credentials(cloud: GoogleCloud) -> None:
    with pytest.raises(CredentialsError, match="rejected our credentials"):
        clusters.read_cluster(service(cloud, Tokens("stolen")), *HERE)

    assert len(cloud.calls) == 2


def test_a_busy_service_is_asked_again(cloud: GoogleCloud) -> None:
    cloud.container.add(*PLACE)
    cloud.faults = [Fault(at=0), Fault(at=1, status=429, reason="RATE_LIMIT_EXCEEDED")]
    waited: list[float] = []

    clusters.read_cluster(service(cloud, waited=waited), *HERE)

    assert len(waited) == 2


def test_a_service_that_stays_away_is_said(cloud: GoogleCloud) -> None:
    cloud.faults = [Fault(times=3)]

    with pytest.raises(BackendUnavailableError, match="does not respond"):
        clusters.read_cluster(service(cloud), *HERE)


@pytest.mark.parametrize("status", ["PROVISIONING", "STOPPING", "ERROR"])
def test_a_cluster_that_does_not_serve_says_so(cloud: GoogleCloud, status: str) -> None:
    cloud.container.add(*PLACE).update(status=status, statusMessage="out of addresses")

    with pytest.raises(BackendUnavailableError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert caught.value.why == f"its status is {status}: out of addresses"


def test_a_private_cluster_names_the_switch_for_its_dns_name(cloud: GoogleCloud) -> None:
    cloud.container.add(*PLACE).update(endpoint="")

    with pytest.raises(BackendUnavailableError) as caught:
        clusters.read_cluster(service(cloud), *HERE)

    assert "--enable-dns-access" in caught.value.next


@pytest.mark.parametrize(
    ("verb", "path", "query", "complaint"),
    [
        ("GET", "v1/projects/p/locations/l/clusters/c", {"wishes": "name"}, "unknown parameter wishes"),
        ("GET", "v1/projects/p/locations/l/clusters/c", {"fields": "title"}, "the answer has no field title"),
        ("GET", "v1/projects/p/locations/-/clusters", {"fields": "clusters(name,loc)"}, "no field clusters/loc"),
    ],
)
def test_the_document_would_notice_a_mistake(verb: str, path: str, query: dict[str, str], complaint: str) -> None:
    (found,) = document("container.v1").complaints(verb, path, query)

    assert complaint in found


def test_the_document_would_notice_a_wrong_answer() -> None:
    found = document("container.v1").misfits("Cluster", {"status": "WALKING", "endpoint": 7, "nme": "x"})

    assert len(found) == 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirection_carries_our_token_nowhere(status: int) -> None:
    with (
        Scripted(Answer(200, b"{}")) as elsewhere,
        Scripted(Answer(status, b"", {"location": f"{elsewhere.url}/steal"})) as here,
    ):
        environ = {"CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER": here.url}
        asked = Service(clusters.CONTAINER_API, Tokens(), Retry(1, sleep=lambda _: None), environ=environ)
        with pytest.raises(KineticError):
            clusters.read_cluster(asked, *HERE)

        assert elsewhere.asked == []
