"""A watch tells everything once, whatever breaks it."""

from __future__ import annotations

import contextlib
import itertools

import pytest
from servers.http11 import Answer
from servers.scripted import Scripted, lines, open_lines, page, refusal

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import informer
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.informer import Watch
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, BackendUnavailableError


def job(uid: str, version: str) -> dict:
    return {"metadata": {"uid": uid, "name": f"job-{uid}", "resourceVersion": version}}


def listing(version: str, *jobs: dict) -> Answer:
    return page({"metadata": {"resourceVersion": version}, "items": list(jobs)})


def connected(server: Scripted) -> contextlib.closing:
    access = Access(server=server.url, about="the test", credential=FixedCredential())
    return contextlib.closing(Client(access, "research", Retry(4, sleep=lambda _: None)))


def told(server: Scripted, count: int) -> list[tuple[str, str]]:
    """Return the first events: their kinds, and the versions of their objects."""
    with (
        connected(server) as client,
        contextlib.closing(Watch(client, kube_client.JOB, "app=kinetic").events()) as events,
    ):
        first = itertools.islice(events, count)
        return [(event.kind, event.object.get("metadata", {}).get("resourceVersion", "")) for event in first]


def test_what_is_there_comes_first_and_then_what_happens() -> None:
    stream = lines({"type": "MODIFIED", "object": job("a", "11")}, {"type": "DELETED", "object": job("a", "12")})

    with Scripted(listing("10", job("a", "9")), stream) as server:
        assert told(server, 4) == [("changed", "9"), ("listed", ""), ("changed", "11"), ("deleted", "12")]

    assert server.asked[1].query["resourceVersion"] == "10"
    assert server.asked[1].query["allowWatchBookmarks"] == "true"
    assert int(server.asked[1].query["timeoutSeconds"]) < 300


def test_a_watch_that_ended_goes_on_from_the_last_event() -> None:
    first = lines({"type": "ADDED", "object": job("a", "11")})
    second = lines({"type": "MODIFIED", "object": job("a", "15")})

    with Scripted(listing("10"), first, second) as server:
        assert told(server, 3) == [("listed", ""), ("changed", "11"), ("changed", "15")]

    assert [each.query.get("resourceVersion") for each in server.asked] == [None, "10", "11"]


def test_bookmarks_move_a_quiet_watch_on() -> None:
    quiet = lines({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "99"}}})

    with Scripted(listing("10"), quiet, lines({"type": "ADDED", "object": job("a", "100")})) as server:
        assert told(server, 2) == [("listed", ""), ("changed", "100")]

    assert server.asked[2].query["resourceVersion"] == "99"


@pytest.mark.parametrize(
    "expired",
    [
        refusal(410, "too old resource version", "Expired"),
        lines({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}),
    ],
    ids=["as an answer", "as an event"],
)
def test_a_version_that_was_forgotten_means_the_difference_is_told(expired: Answer) -> None:
    before = listing("10", job("same", "1"), job("changed", "2"), job("removed", "3"))
    after = listing("20", job("same", "1"), job("changed", "12"), job("new", "13"))

    with Scripted(before, expired, after, lines({"type": "ADDED", "object": job("late", "21")})) as server:
        events = told(server, 9)

    assert events[:4] == [("changed", "1"), ("changed", "2"), ("changed", "3"), ("listed", "")]
    assert events[4:] == [("changed", "12"), ("changed", "13"), ("deleted", "3"), ("listed", ""), ("changed", "21")]


def test_a_line_that_was_cut_is_told_whole_the_next_time() -> None:
    cut = Answer(200, b'{"type":"ADDED","object":{"metadata":{"uid":"a","res')

    with Scripted(listing("10"), cut, lines({"type": "ADDED", "object": job("a", "11")})) as server:
        assert told(server, 2) == [("listed", ""), ("changed", "11")]

    assert server.asked[2].query["resourceVersion"] == "10"


def test_a_server_that_restarts_is_waited_for() -> None:
    answers = [listing("10"), refusal(503), refusal(503), lines({"type": "ADDED", "object": job("a", "11")})]

    with Scripted(*answers, listing("11")) as server:
        assert told(server, 2) == [("listed", ""), ("changed", "11")]


def test_a_server_whose_data_was_restored_from_a_backup_is_asked_for_all_again() -> None:
    silent, version, after = lines(), listing("400"), listing("400", job("back", "300"))
    restarts = [refusal(503), silent, version, after]

    with Scripted(listing("900", job("lost", "899")), *restarts, open_lines()) as server:
        events = told(server, 5)

    assert events == [("changed", "899"), ("listed", ""), ("changed", "300"), ("deleted", "899"), ("listed", "")]
    assert server.asked[3].query["limit"] == "1"


def test_a_server_that_does_not_come_back_is_said_after_many_tries() -> None:
    with (
        Scripted(listing("10"), refusal(503)) as server,
        pytest.raises(BackendUnavailableError, match="cannot watch"),
    ):
        told(server, 2)

    assert 10 < len(server.asked) < 20


def test_a_list_that_is_forbidden_after_a_watch_was_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "_POLL_SECONDS", 0.0)
    with Scripted(listing("10"), refusal(403, "cannot watch", "Forbidden")) as server, pytest.raises(AccessDeniedError):
        told(server, 2)

    assert [each.query.get("watch") for each in server.asked] == [None, "true", None]


def test_a_watch_stops_when_told_to() -> None:
    seen: list[str] = []

    with Scripted(listing("10", job("a", "1"))) as server, connected(server) as client:
        seen.extend(event.kind for event in Watch(client, kube_client.JOB).events(stopped=lambda: "listed" in seen))

    assert seen == ["changed", "listed"]
    assert len(server.asked) == 1
