"""A client makes things once, however often the network fails, and says what a refusal means.

Against a server with written answers; tests/cluster has the same client on a real one.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.http11 import Answer, Request
from servers.scripted import Scripted, lines, page, refusal

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube.client import Client, is_same
from kinetic._backends.kube.connection import FixedCredential, TokenFunction
from kinetic._backends.kube.informer import Watch
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    CredentialsError,
    KineticError,
    LaunchError,
)

JOB = {"metadata": {"name": "kinetic-a", "labels": {"job-id": "a"}, "annotations": {"kinetic/order": "abc"}}}
MADE = {"metadata": {**JOB["metadata"], "uid": "uid-1", "resourceVersion": "7"}}


@pytest.fixture
def waited() -> list[float]:
    return []


@pytest.fixture
def connect(waited: list[float]) -> Iterator[Callable[..., Client]]:
    with contextlib.ExitStack() as stack:

        def make(server: Scripted | str, **more: Any) -> Client:
            url = server if isinstance(server, str) else server.url
            access = Access(
                **{"server": url, "about": "the context test", "credential": FixedCredential("Bearer t"), **more}
            )
            retry = Retry(attempts=4, sleep=waited.append, random=lambda: 1.0)
            client = Client(access, "research", retry)
            stack.callback(client.close)
            return client

        yield make


def test_an_object_is_made_with_strict_validation(connect) -> None:
    with Scripted(page(MADE, 201)) as server:
        made = connect(server).create(kube_client.JOB, JOB)

    assert made == MADE
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/apis/batch/v1/namespaces/research/jobs")
    assert asked.query == {"fieldManager": "kinetic", "fieldValidation": "Strict"}
    assert asked.headers["authorization"] == "Bearer t"


def test_an_answer_that_was_lost_does_not_make_a_second_one(connect) -> None:
    taken = refusal(409, 'jobs.batch "kinetic-a" already exists', "AlreadyExists")
    with Scripted(refusal(504, "timeout"), taken, page(MADE)) as server:
        made = connect(server).create(kube_client.JOB, JOB)

    assert made["metadata"]["uid"] == "uid-1"
    assert [path.partition(" ")[0] for path in server.paths] == ["POST", "POST", "GET"]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"job-id": "b"}},
        {"annotations": {"kinetic/order": "another"}},
        {"deletionTimestamp": "2026-11-21T00:00:00Z"},
    ],
)
def test_an_object_of_somebody_else_is_not_taken_for_ours(connect, change: dict) -> None:
    other = {"metadata": {**MADE["metadata"], **change}}

    taken = refusal(409, "already exists", "AlreadyExists")
    with Scripted(taken, page(other)) as server, pytest.raises(LaunchError) as caught:
        connect(server).create(kube_client.JOB, JOB)

    assert caught.value.code == "name-taken"


def test_a_secret_of_an_earlier_job_of_that_name_is_not_ours() -> None:
    wanted = {"metadata": {"ownerReferences": [{"uid": "new"}]}}

    assert not is_same(wanted, {"metadata": {"ownerReferences": [{"uid": "old"}]}})
    assert is_same(wanted, {"metadata": {"ownerReferences": [{"uid": "new"}], "labels": {"added": "by a webhook"}}})


def test_what_was_in_the_way_and_is_gone_is_made_after_all(connect) -> None:
    taken = refusal(409, "already exists", "AlreadyExists")
    gone = refusal(404, 'jobs.batch "kinetic-a" not found', "NotFound")

    with Scripted(taken, gone, page(MADE, 201)) as server:
        assert connect(server).create(kube_client.JOB, JOB) == MADE


QUOTA = (
    'Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been modified; please apply '
    "your changes to the latest version and try again"
)


def test_an_object_that_filled_the_quota_itself_is_there_though_its_answer_was_lost(connect) -> None:
    over = 'jobs.batch "a" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used: count/jobs.batch=1'
    with Scripted(refusal(504, "timeout"), refusal(403, over, "Forbidden"), page(MADE)) as server:
        made = connect(server).create(kube_client.JOB, JOB)

    assert made["metadata"]["uid"] == "uid-1"
    assert [path.partition(" ")[0] for path in server.paths] == ["POST", "POST", "GET"]


def test_a_job_is_made_though_others_are_made_under_the_same_quota(connect, waited: list[float]) -> None:
    with Scripted(*[refusal(409, QUOTA, "Conflict")] * 4, page(MADE, 201)) as server:
        assert connect(server).create(kube_client.JOB, JOB) == MADE

    assert len(server.paths) == 5
    assert waited == [0.25, 0.5, 1.0, 2.0]


def test_a_conflict_that_lasts_is_told(connect) -> None:
    with Scripted(refusal(409, QUOTA, "Conflict")) as server, pytest.raises(BackendError) as caught:
        connect(server).create(kube_client.JOB, JOB)

    assert "gke-resource-quotas" in caught.value.why


def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(connect, waited: list[float]) -> None:
    with Scripted(refusal(429, "too many requests", Retry_After="7"), page({"metadata": {"uid": "1"}})) as server:
        connect(server).get(kube_client.JOB, "kinetic-a")

    assert waited == [7.0]


def test_pauses_grow_while_a_server_fails_and_then_it_is_said(connect, waited: list[float]) -> None:
    with (
        Scripted(refusal(500, "etcdserver: leader changed")) as server,
        pytest.raises(BackendUnavailableError) as caught,
    ):
        connect(server).get(kube_client.JOB, "kinetic-a")

    assert waited == [0.25, 0.5, 1.0]
    assert "leader changed" in caught.value.why
    assert caught.value.what == "the context test does not respond"


def test_a_look_is_tried_once_while_the_server_is_known_to_be_away_and_a_change_as_often_as_ever(connect) -> None:
    busy = [refusal(503, "busy")] * 4
    with Scripted(*busy, busy[0], *busy, page(JOB), busy[0], page(JOB)) as server:
        client = connect(server)
        for asked in (4, 5):
            with pytest.raises(BackendUnavailableError):
                client.get(kube_client.JOB, "kinetic-a")
            assert len(server.asked) == asked
        with pytest.raises(BackendUnavailableError):
            client.delete(kube_client.JOB, "kinetic-a")
        assert len(server.asked) == 9

        assert client.get(kube_client.JOB, "kinetic-a") == JOB
        assert client.get(kube_client.JOB, "kinetic-a") == JOB  # it answers: what fails is repeated again


def test_the_looks_of_a_submission_are_tried_as_often_as_a_change_also_while_the_server_is_known_to_be_away(
    connect,
) -> None:
    away = refusal(503, "away")
    with Scripted(*[away] * 7, page(JOB)) as server:
        client = connect(server)
        with pytest.raises(BackendUnavailableError):
            client.get(kube_client.JOB, "kinetic-a")
        with client.transport.submitting():
            assert client.get(kube_client.JOB, "kinetic-a") == JOB
        assert len(server.asked) == 8


def test_a_server_with_too_many_requests_is_not_away_and_looks_are_repeated(connect) -> None:
    away, busy = [refusal(503, "away")] * 4, [refusal(429, "too many requests")] * 4
    with Scripted(*busy, busy[0], page(JOB), *away, busy[0], page(JOB)) as server:
        client = connect(server)
        with pytest.raises(BackendUnavailableError):
            client.get(kube_client.JOB, "kinetic-a")
        assert client.get(kube_client.JOB, "kinetic-a") == JOB

        with pytest.raises(BackendUnavailableError):
            client.get(kube_client.JOB, "kinetic-a")
        assert client.get(kube_client.JOB, "kinetic-a") == JOB  # it has come back, and is busy
        assert len(server.asked) == 12


def test_an_admission_webhook_that_is_down_is_named_and_not_the_network_blamed(connect, waited: list[float]) -> None:
    said = (
        'Internal error occurred: failed calling webhook "validate.kyverno.svc-fail": failed to call webhook: refused'
    )
    with Scripted(refusal(500, said)) as server, pytest.raises(BackendUnavailableError) as caught:
        connect(server).create(kube_client.JOB, JOB)

    assert caught.value.what == "the admission webhook validate.kyverno.svc-fail of the context test does not respond"
    assert str(caught.value.why).endswith(f"HTTP 500: {said}")  # and not the page that it came in
    assert "ask an administrator" in str(caught.value.next)
    assert len(waited) == 3  # it may come back


def test_a_server_with_too_many_requests_is_not_said_to_be_away(connect) -> None:
    busy = Scripted(refusal(429, "Too many requests, please try again later."))
    with busy as server, pytest.raises(BackendUnavailableError, match="has too many requests, and refuses") as caught:
        connect(server).create(kube_client.JOB, JOB)

    assert "network" not in str(caught.value.next)


def test_nobody_listening_is_said_with_the_address(connect) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"

        with pytest.raises(BackendUnavailableError, match=url):
            connect(url).get(kube_client.JOB, "kinetic-a")


def test_a_token_that_ended_is_exchanged_once_and_the_request_repeated(connect) -> None:
    handed = iter(["old", "new"])
    with Scripted(refusal(401, "Unauthorized"), page(MADE)) as server:
        connect(server, credential=TokenFunction(lambda refused: next(handed))).get(kube_client.JOB, "kinetic-a")

    assert [each.headers["authorization"] for each in server.asked] == ["Bearer old", "Bearer new"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            page({"error": {"code": 403, "message": "Permission 'container.clusters.connect' denied"}}, 403),
            "container.clusters.connect",
        ),
        (Answer(403, b"<!DOCTYPE html><title>Error 403 (Forbidden)!!1</title>"), "no answer of an API server"),
    ],
)
def test_a_refusal_by_what_is_before_the_api_server_is_not_taken_for_a_missing_role_of_kubernetes(
    connect, answer, why: str
) -> None:
    with Scripted(answer) as server, pytest.raises(AccessDeniedError) as caught:
        connect(server).get(kube_client.JOB, "kinetic-a")

    assert why in caught.value.why
    assert "container.clusters.connect" in caught.value.next


def test_the_token_that_was_refused_is_named_when_a_new_one_is_asked_for(connect) -> None:
    refused: list[str] = []

    with Scripted(refusal(401, "Unauthorized")) as server, pytest.raises(CredentialsError):
        connect(server, credential=TokenFunction(lambda old: refused.append(old) or "same")).get(kube_client.JOB, "a")

    assert refused == ["", "same"]


REFUSALS = [
    (
        refusal(403, 'jobs.batch is forbidden: User "ann" cannot create resource "jobs" in API group "batch" in the '
                'namespace "research"', "Forbidden"),
        AccessDeniedError, "access-denied", "kubectl auth can-i create jobs.batch -n research",
    ),
    (
        refusal(403, 'jobs.batch "a" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used: '
                "count/jobs.batch=5, limited: count/jobs.batch=5", "Forbidden"),
        CapacityError, "capacity", "kubectl describe resourcequota -n research",
    ),
    (
        refusal(403, 'jobs.batch "a" is forbidden: exceeded quota: team, requested: count/jobs.batch=1, used: '
                "count/jobs.batch=5, limited: count/jobs.batch=5", "Forbidden"),
        CapacityError, "capacity", "kubectl get jobs -n research -l app=kinetic-warm",
    ),
    (
        refusal(403, 'jobs.batch "a" is forbidden: unable to create new content in namespace research because it is '
                "being terminated", "Forbidden"),
        LaunchError, "namespace-missing", "kubectl create namespace research",
    ),
    (refusal(404, 'namespaces "research" not found', "NotFound"), LaunchError, "namespace-missing",
     "KINETIC_NAMESPACE"),
    (refusal(404, "the server could not find the requested resource", "NotFound"), LaunchError, "kind-missing",
     "batch"),
    (
        refusal(400, 'admission webhook "policy.example.com" denied the request: images must be signed'),
        LaunchError, "admission", "change what the message names",
    ),
    (refusal(400, 'strict decoding error: unknown field "spec.podReplacementPolicy"', "BadRequest"), LaunchError,
     "launch", "older cluster"),
    (refusal(422, 'Job.batch "a" is invalid: spec.template: field is immutable', "Invalid"), LaunchError, "launch", ""),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "kind", "code", "step"), REFUSALS, ids=lambda value: str(value)[:20])
def test_a_refusal_says_what_it_means_and_what_to_do(connect, answer, kind, code: str, step: str) -> None:
    with Scripted(answer) as server, pytest.raises(KineticError) as caught:
        connect(server).create(kube_client.JOB, JOB)

    error = caught.value
    assert (type(error), error.code) == (kind, code)
    assert step in error.next
    assert json.loads(answer.body)["message"] in error.why
    assert [path.partition(" ")[0] for path in server.paths].count("POST") == 1


def test_a_right_that_no_role_of_a_namespace_grants_is_not_asked_for_in_one(connect) -> None:
    said = 'nodes is forbidden: User "ann" cannot list resource "nodes" in API group "" at the cluster scope'
    with Scripted(refusal(403, said, "Forbidden")) as server, pytest.raises(AccessDeniedError) as caught:
        connect(server).list(kube_client.NODE)

    assert caught.value.what.endswith(": list nodes")
    assert "in the namespace" not in caught.value.what
    assert str(caught.value.next).endswith("kubectl auth can-i list nodes")


def test_what_is_not_there_is_none_and_a_cluster_without_the_kind_is_an_error(connect) -> None:
    missing = refusal(404, 'jobsets.jobset.x-k8s.io "a" not found', "NotFound")
    with Scripted(missing, Answer(404, b"404 page not found\n")) as server:
        client = connect(server)

        assert client.get(kube_client.JOB_SET, "a") is None
        with pytest.raises(LaunchError, match="has no JobSet"):
            client.get(kube_client.JOB_SET, "a")


def test_a_long_list_comes_in_pages_as_one(connect) -> None:
    first = page({"metadata": {"continue": "next", "resourceVersion": "9"}, "items": [{"metadata": {"uid": "1"}}]})
    last = page({"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"uid": "2"}}]})

    with Scripted(first, last) as server:
        listing = connect(server).list(kube_client.JOB, "app=kinetic")

    assert [each["metadata"]["uid"] for each in listing.objects] == ["1", "2"]
    assert listing.objects[0]["kind"] == "Job"
    assert listing.version == "9"
    assert [each.query.get("continue") for each in server.asked] == [None, "next"]
    assert {each.query["labelSelector"] for each in server.asked} == {"app=kinetic"}


def test_pages_that_grew_stale_are_read_again_from_the_first(connect) -> None:
    first = page({"metadata": {"continue": "next"}, "items": [{"metadata": {"uid": "old"}}]})
    whole = page({"metadata": {"resourceVersion": "12"}, "items": [{"metadata": {"uid": "new"}}]})

    with Scripted(first, refusal(410, "the provided continue parameter is too old", "Expired"), whole) as server:
        listing = connect(server).list(kube_client.JOB)

    assert [each["metadata"]["uid"] for each in listing.objects] == ["new"]


def _cut_long_pages(request: Request) -> Answer:
    """Answer like a server with 1,000 Jobs that ends an answer in its middle if it has more than 120 of them."""
    start, most = int(request.query.get("continue") or 0), int(request.query["limit"])
    items = [{"metadata": {"uid": str(number)}} for number in range(start, min(start + most, 1000))]
    rest = {"continue": str(start + most)} if start + most < 1000 else {}
    whole = page({"metadata": {**rest, "resourceVersion": "9"}, "items": items})
    cut = whole._replace(body=whole.body[: len(whole.body) // 2], length=len(whole.body))
    return cut if len(items) > 120 else whole


def test_pages_get_smaller_where_the_server_does_not_finish_them(connect, waited: list[float]) -> None:
    with Scripted(_cut_long_pages) as server:
        listing = connect(server).list(kube_client.JOB)

    assert [each["metadata"]["uid"] for each in listing.objects] == [str(number) for number in range(1000)]
    assert [each.query["limit"] for each in server.asked] == ["500"] * 2 + ["100"] * 10
    assert len(waited) == 1


def test_a_server_that_finishes_no_page_at_all_is_reported(connect) -> None:
    cut = page({"items": [{"metadata": {}}]})._replace(length=1000)
    with Scripted(cut) as server, pytest.raises(BackendUnavailableError, match="does not respond"):
        connect(server).list(kube_client.JOB)

    assert [each.query["limit"] for each in server.asked] == ["500"] * 2 + ["100"] * 2 + ["20"] * 4


def test_a_connection_that_was_closed_meanwhile_does_not_make_pages_smaller(connect) -> None:
    whole = page({"metadata": {"resourceVersion": "9"}, "items": []})
    with Scripted(whole._replace(aborts=True), whole) as server:
        assert connect(server).list(kube_client.JOB).version == "9"

    assert [each.query["limit"] for each in server.asked] == ["500", "500"]


def test_removing_what_is_gone_is_no_error(connect) -> None:
    with Scripted(page({"status": "Success"}), refusal(404, 'jobs.batch "a" not found', "NotFound")) as server:
        client = connect(server)

        assert client.delete(kube_client.JOB, "a") is True
        assert client.delete(kube_client.JOB, "a") is False

    assert json.loads(server.asked[0].body) == {"propagationPolicy": "Background"}


def test_another_object_of_that_name_is_not_removed(connect) -> None:
    conflict = refusal(409, "Precondition failed: UID in precondition: uid-1, UID in object meta: uid-2", "Conflict")
    with Scripted(conflict) as server:
        assert connect(server).delete(kube_client.JOB, "a", uid="uid-1") is False

    assert json.loads(server.asked[0].body)["preconditions"] == {"uid": "uid-1"}


def test_whether_we_may_is_asked_for_our_namespace(connect) -> None:
    with Scripted(page({"status": {"allowed": False, "reason": "RBAC: no role"}})) as server:
        answer = connect(server).review_access("get", kube_client.POD, part="log")

    assert (answer.allowed, answer.why) == (False, "RBAC: no role")
    wanted = json.loads(server.asked[0].body)["spec"]["resourceAttributes"]
    assert wanted == {"verb": "get", "group": "", "resource": "pods", "subresource": "log", "namespace": "research"}


class Exchanged(FixedCredential):
    """A credential for which another thread closes all connections, between two steps of this one."""

    def __init__(self) -> None:
        super().__init__("Bearer t")
        self.others: list[Callable[[], None]] = []

    def header(self, *, rejected: str = "") -> str:
        while self.others:
            self.others.pop()()
        return super().header(rejected=rejected)


def test_connections_that_another_thread_closed_are_made_anew(connect) -> None:
    credential = Exchanged()
    with Scripted(page(MADE)) as server:
        client = connect(server, credential=credential)
        credential.others.append(client.close)

        found = client.get(kube_client.JOB, "kinetic-a")

    assert found == MADE


def test_a_watch_whose_connections_another_thread_closed_goes_on(connect) -> None:
    credential = Exchanged()
    listing = page({"metadata": {"resourceVersion": "7"}, "items": [MADE]})
    changed = {"metadata": {**MADE["metadata"], "resourceVersion": "8"}}
    with Scripted(listing, lines({"type": "MODIFIED", "object": changed})) as server:
        client = connect(server, credential=credential)
        events = Watch(client, kube_client.JOB).events()
        told = [next(events).kind, next(events).kind]
        credential.others.append(client.close)

        told.append(next(events).object["metadata"]["resourceVersion"])

    assert told == ["changed", "listed", "8"]


def test_a_cluster_that_moved_is_asked_for_once_and_found(connect) -> None:
    with socket.socket() as held, Scripted(page(MADE)) as server:
        held.bind(("127.0.0.1", 0))
        asked: list[str] = []

        def again() -> Access:
            asked.append("again")
            return Access(server=server.url, about="the new place", credential=FixedCredential())

        client = connect(f"http://127.0.0.1:{held.getsockname()[1]}", again=again)
        found = client.get(kube_client.JOB, "kinetic-a")

    assert found is not None
    assert asked == ["again"]
    assert client.about == "the new place"


def test_a_cluster_that_is_where_it_was_is_not_asked_for_twice(connect) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url, asked = f"http://127.0.0.1:{held.getsockname()[1]}", []

        def again() -> Access:
            asked.append("again")
            return Access(server=url, about="the same place", credential=FixedCredential())

        with pytest.raises(BackendUnavailableError):
            connect(url, again=again).get(kube_client.JOB, "kinetic-a")

    assert asked == ["again"]


def test_two_clusters_in_one_process_do_not_know_each_other(connect) -> None:
    with Scripted(page(MADE)) as one, Scripted(page(MADE)) as other:
        first, second = (
            connect(one, credential=FixedCredential("Bearer one")),
            connect(other, credential=FixedCredential("Bearer two")),
        )
        first.get(kube_client.JOB, "a")
        second.get(kube_client.JOB, "a")
        first.get(kube_client.JOB, "a")

    assert [each.headers["authorization"] for each in one.asked] == ["Bearer one", "Bearer one"]
    assert [each.headers["authorization"] for each in other.asked] == ["Bearer two"]


# -------------------------------------------------------------------------------------------------------------- proxies


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def test_a_proxy_of_the_context_is_gone_through(connect, no_proxies) -> None:
    with Scripted(page(MADE)) as proxy:
        connect("http://k8s.example.com", proxy=proxy.url).get(kube_client.JOB, "a")

    assert proxy.asked[0].headers["host"] == "k8s.example.com"


@pytest.mark.parametrize("past", ["127.0.0.1", "10.0.0.0/8, 127.0.0.0/8", "nonsense/8,127.0.0.0/8"])
def test_a_proxy_of_the_environment_is_gone_through_except_where_it_says_not_to(connect, no_proxies, past) -> None:
    with Scripted(page(MADE)) as proxy, Scripted(page(MADE)) as server:
        no_proxies.setenv("http_proxy", proxy.url)
        no_proxies.setenv("no_proxy", past)

        connect("http://k8s.example.com").get(kube_client.JOB, "a")
        connect(server).get(kube_client.JOB, "a")

    assert (len(proxy.asked), len(server.asked)) == (1, 1)


def test_a_cluster_of_this_machine_is_reached_without_the_proxy_of_the_environment_as_by_kubectl(
    connect, no_proxies
) -> None:
    with Scripted(page(MADE)) as proxy, Scripted(page(MADE)) as server:
        no_proxies.setenv("http_proxy", proxy.url)

        connect(server).get(kube_client.JOB, "a")

    assert (len(proxy.asked), len(server.asked)) == (0, 1)


def test_a_forked_process_makes_connections_of_its_own(connect) -> None:
    with Scripted(page(MADE)) as server:
        client = connect(server)
        client.get(kube_client.JOB, "a")
        before = client.transport._connected()
        client.transport._process = -1  # as after a fork

        client.get(kube_client.JOB, "a")

        assert client.transport._connected() is not before
        before.close()
