"""The feed of jobs: each place for itself, changes with versions, nothing looked at while nobody listens."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace

import pytest

from kinetic._dashboard import job_feed
from kinetic._dashboard.job_feed import JobFeed
from kinetic._dashboard.places import Changes, Known
from kinetic.errors import JobNotFoundError, StoreUnreachableError


class FakePlace:
    """A place whose looks are what a test puts in, each when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.target = SimpleNamespace(store=SimpleNamespace(value=f"memory://{name}"))
        self.jobs: dict[str, Known] = {}
        self.order: list[str] = []
        self.looks = 0
        self._next: queue.Queue[object] = queue.Queue()
        self._done = threading.Semaphore(0)

    def refresh(self) -> Changes:
        found = self._next.get()
        self.looks += 1
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Changes)
        for page in found.changed:
            self.jobs = {**self.jobs, page["job_id"]: Known(object(), page, is_final=False)}  # type: ignore[arg-type]
        self.jobs = {name: known for name, known in self.jobs.items() if name not in found.gone}
        self.order = [*self.jobs]
        return found

    def handle_of(self, job_id: str) -> object:
        return self.jobs[job_id].handle if job_id in self.jobs else None

    def wait(self) -> None:
        self._done.release()

    def notify(self) -> None: ...

    def end(self) -> None:
        self._next.put(Changes([], []))

    def look(self, found: object) -> None:
        """Let one look find something, and wait until it is known."""
        self._next.put(found)
        assert self._done.acquire(timeout=10)


def job(name: str, created_at: str = "2026-11-23T00:00:00Z", group: str | None = None) -> dict[str, object]:
    return {"job_id": name, "created_at": created_at, "group_id": group, "status": "RUNNING"}


@pytest.fixture
def feed(monkeypatch):
    monkeypatch.setattr(job_feed, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(job_feed, "_FIRST_LOOK_SECONDS", 0.0)
    made = JobFeed([FakePlace("here"), FakePlace("away")])
    made.start()
    yield made
    made.end()


def test_jobs_of_all_places_are_one_list_newest_first(feed):
    here, away = feed.places

    here.look(Changes([job("b", "2026-11-23T00:00:02Z")], []))
    away.look(Changes([job("c", "2026-11-23T00:00:03Z"), job("a", "2026-11-23T00:00:01Z")], []))

    page = json.loads(feed.document(wait_seconds=0))
    assert [each["job_id"] for each in page["jobs"]] == ["c", "b", "a"]
    assert page["looking"] == []


def test_a_place_that_does_not_answer_is_named_and_hides_nothing(feed):
    here, away = feed.places

    here.look(Changes([job("a")], []))
    assert feed.looking() == ["away"]
    away.look(StoreUnreachableError("the bucket does not answer", why="timed out", next="look"))

    page = json.loads(feed.document(wait_seconds=0))
    assert [each["job_id"] for each in page["jobs"]] == ["a"]
    assert page["problems"] == [
        {
            "place": "away",
            "code": "store-unreachable",
            "what": "the bucket does not answer",
            "why": "timed out",
            "next": "look",
        }
    ]
    away.look(Changes([], []))
    assert feed.problems() == []


def test_a_place_is_away_until_its_store_answers_again(feed):
    here, away = feed.places

    here.look(RuntimeError("a bug"))
    away.look(StoreUnreachableError("the bucket does not answer"))

    assert {name: problem["what"] for name, problem in feed.away().items()} == {"away": "the bucket does not answer"}
    away.look(Changes([], []))
    assert feed.away() == {}


def test_what_was_known_of_a_place_stays_while_it_is_away(feed):
    here, _ = feed.places
    here.look(Changes([job("a")], []))

    here.look(StoreUnreachableError("away"))

    assert feed.handle("a") is not None
    assert [each["job_id"] for each in json.loads(feed.document(wait_seconds=0))["jobs"]] == ["a"]


def test_an_unexpected_error_of_one_place_ends_nothing(feed):
    here, _ = feed.places

    here.look(ZeroDivisionError("oh"))
    here.look(Changes([job("a")], []))

    assert feed.handle("a") is not None
    assert feed.problems() == []


def test_listeners_hear_each_change_once_with_a_version_that_grows(feed):
    here, away = feed.places
    heard: list[dict[str, object]] = []
    feed.subscribe(heard.append)

    here.look(Changes([job("a", group="grp-1")], []))
    here.look(Changes([], []))  # nothing new: no event
    away.look(Changes([], []))  # the first look says that the place was seen
    here.look(Changes([], ["a"]))

    assert [(each["version"], len(each["changed"]), each["gone"]) for each in heard] == [
        (1, 1, []),
        (2, 0, []),
        (3, 0, ["a"]),
    ]
    assert [each["looking"] for each in heard] == [["away"], [], []]
    assert feed.version_of("grp-1") == 1
    with pytest.raises(JobNotFoundError):
        feed.handle("a")


def test_nothing_is_looked_at_while_nobody_listens(feed):
    here, _ = feed.places
    here.look(Changes([], []))
    heard: list[object] = []
    feed.subscribe(heard.append)
    feed.unsubscribe(heard.append)  # another bound method, and equal

    here._next.put(Changes([job("late")], []))  # the look that had begun ends
    assert here._done.acquire(timeout=10)
    here._next.put(Changes([job("never")], []))

    assert not here._done.acquire(timeout=0.3)
    feed.subscribe(heard.append)
    assert here._done.acquire(timeout=10)
