"""A follower of a log sees each line once and in order, however often its connection breaks."""

from __future__ import annotations

import contextlib

import pytest
from servers.http11 import Answer
from servers.scripted import Scripted, page, refusal

from kinetic._backends.kube import pod_logs
from kinetic._backends.kube.access import Access, Anonymous
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.pod_logs import Line
from kinetic._stores.retrying import Retry
from kinetic.errors import AccessDeniedError

RUNNING = page({"status": {"containerStatuses": [{"name": "kinetic-worker", "state": {"running": {}}}]}})
ENDED = page({"status": {"containerStatuses": [{"name": "kinetic-worker", "state": {"terminated": {"exitCode": 0}}}]}})


def at(second: int, nano: int = 0) -> str:
    return f"2026-11-21T10:00:{second:02}.{nano:09}Z"


def log(*lines: tuple[str, str]) -> Answer:
    return Answer(200, "".join(f"{time} {text}\n" for time, text in lines).encode())


def connected(server: Scripted) -> contextlib.closing:
    access = Access(server=server.url, about="the test", credential=Anonymous())
    return contextlib.closing(Client(access, "research", Retry(4, sleep=lambda _: None)))


def followed(server: Scripted, since: Line | None = None) -> list[str]:
    with connected(server) as client:
        return [line.text.decode() for line in pod_logs.follow(client, "pod-a", since=since)]


def test_a_log_is_followed_to_its_end() -> None:
    with Scripted(log((at(1), "one"), (at(2), "two")), ENDED) as server:
        assert followed(server) == ["one", "two"]

    assert server.asked[0].query == {"container": "kinetic-worker", "follow": "true", "timestamps": "true"}


def test_a_broken_connection_is_resumed_and_nothing_comes_twice() -> None:
    first = log((at(1), "one"), (at(2, 5), "two"), (at(2, 7), "three"))
    again = log((at(2, 5), "two"), (at(2, 7), "three"), (at(2, 7), "four"), (at(3), "five"))

    with Scripted(first, RUNNING, again, ENDED) as server:
        assert followed(server) == ["one", "two", "three", "four", "five"]

    assert server.asked[2].query["sinceTime"] == at(2, 7)


def test_the_same_words_in_the_same_moment_are_two_lines() -> None:
    first = log((at(1), "same"), (at(1), "same"))
    again = log((at(1), "same"), (at(1), "same"), (at(1), "same"))

    with Scripted(first, RUNNING, again, ENDED) as server:
        assert followed(server) == ["same", "same", "same"]


def test_a_line_that_was_cut_comes_whole() -> None:
    cut = Answer(200, f"{at(1)} one\n{at(2)} tw".encode())

    with Scripted(cut, RUNNING, RUNNING, log((at(1), "one"), (at(2), "two")), ENDED) as server:
        assert followed(server) == ["one", "two"]


def test_the_last_line_of_a_log_need_not_end() -> None:
    with Scripted(Answer(200, f"{at(1)} no newline".encode()), ENDED) as server:
        assert followed(server) == ["no newline"]


def test_a_follower_goes_on_where_another_left() -> None:
    again = log((at(1), "seen"), (at(1, 9), "last seen"), (at(2), "new"))

    with Scripted(again, ENDED) as server:
        assert followed(server, Line(at(1, 9), b"last seen")) == ["new"]


def test_times_that_lost_their_zeros_still_sort() -> None:
    again = log(
        ("2026-11-21T10:00:01.5Z", "before"), ("2026-11-21T10:00:01.55Z", "seen"), ("2026-11-21T10:00:01.6Z", "new")
    )

    with Scripted(again, ENDED) as server:
        assert followed(server, Line("2026-11-21T10:00:01.55Z", b"seen")) == ["new"]


def test_bytes_that_are_no_text_pass_unchanged() -> None:
    with Scripted(Answer(200, f"{at(1)} ".encode() + b"\xff\x00\n"), ENDED) as server, connected(server) as client:
        assert [line.text for line in pod_logs.follow(client, "pod-a")] == [b"\xff\x00"]


def test_a_pod_that_is_gone_or_has_not_started_has_no_log() -> None:
    waiting = refusal(400, 'container "kinetic-worker" in pod "pod-a" is waiting to start: ContainerCreating')

    with Scripted(waiting) as server:
        assert followed(server) == []
        with connected(server) as client:
            assert pod_logs.read(client, "pod-a", last_lines=10) is None


def test_who_may_not_read_logs_is_told() -> None:
    with Scripted(refusal(403, "cannot get pods/log", "Forbidden")) as server, pytest.raises(AccessDeniedError):
        followed(server)
