"""The board: how every child stands, for one observation and one listing a look, whatever their number."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from servers.distant import DistantStore
from servers.sealed import put_history

from kinetic._backends.local.backend import LocalBackend
from kinetic._backends.local.limits import Limits
from kinetic._backends.protocol import Observation
from kinetic._batches import control, report
from kinetic._batches import tracker as tracker_module
from kinetic._batches.control import ControlLog
from kinetic._batches.driver import Driver
from kinetic._batches.tracker import BatchTracker
from kinetic._config import home as config_home
from kinetic._jobs import locate
from kinetic._jobs.status import Snapshot
from kinetic._runner.supervisor import attempts
from kinetic._stores.files import FileStore
from kinetic._wire import documents, keys
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.records import Group, Settings
from kinetic.errors import StoreUnreachableError
from kinetic.job_status import JobStatus

GROUP = "grp-00000001"
PENDING, RUNNING, SUCCEEDED, FAILED, NOT_FOUND = (
    JobStatus.PENDING,
    JobStatus.RUNNING,
    JobStatus.SUCCEEDED,
    JobStatus.FAILED,
    JobStatus.NOT_FOUND,
)
TEMPLATE = ("earth", '{"arguments":["/bin/false"],"environment":{}}', Limits(1, ()))


def child_key(index, attempt=0):
    return keys.children_of(GROUP, range(index, index + 1), attempt)


class Ground:
    """A batch of which nothing runs: its rows and keys are written by hand."""

    def __init__(self, tmp_path, count, **settings):
        self.store = FileStore(tmp_path / "store")
        key_id, self.root = config_home.own_key(locate.home())
        self.backend = LocalBackend(locate.runtime(), {"KINETIC_LOCAL_SLOTS": "2"})
        self.backend._advanced = time.monotonic() + 3600  # nobody carries these jobs out
        self.group = Group(
            group_id=GROUP,
            group_name=None,
            tags={},
            created=1_800_000_000.0,
            total_expected=count,
            submit_fn_name="act",
            slug="cpu",
            handle={**_handle(self.store), "key_id": key_id},
            more={},
            settings=Settings(**settings),
            order_sha256="",
            table_sha256="",
            outputs="/outputs",
            key_id=key_id,
        )
        self.asked = Counter()
        self._count_requests()

    def key_of(self, name):
        return documents.job_key(self.root, name, self.store.url)

    def tracker(self):
        return BatchTracker(self.group, self.store, self.backend)

    def look(self):
        found = self.tracker()
        found.refresh(whole=True)
        return found

    def submit(self, index, attempt=0, *, machine="here", row=True):
        self.store.put(documents.sealed_name(child_key(index, attempt), machine, self.key_of(GROUP)), b"")
        if row:
            self.backend.queue.add([(self.group.child_id(index, attempt), GROUP, 0)], *TEMPLATE)

    def mark(self, index, word, attempt=0):
        self.backend.queue.forget([self.group.child_id(index, attempt)])
        self.store.put(
            documents.sealed_name(
                keys.mark(GROUP, index, attempt), word, self.key_of(self.group.child_id(index, attempt))
            ),
            b"",
        )

    def outcome(self, index, status, attempt=0):
        """Create an Outcome as a supervisor does that is killed before it could mark it."""
        job_id = self.group.child_id(index, attempt)
        self.backend.queue.forget([job_id])
        key = self.key_of(job_id)
        attempts.seal_outcome(self.store, Outcome(job_id, status, ended=1_800_000_100.0, witness="supervisor"), key)

    def note(self, index, machine, attempt=0):
        job_id = self.group.child_id(index, attempt)
        note = AttemptNote(job_id, 0, machine, 0.0, details={"machine_id": machine})
        self.store.put(note.key, note.to_bytes(self.key_of(job_id)))

    def _count_requests(self):
        for name in ("put", "get", "size", "entry", "entries", "delete"):
            setattr(self.store, name, self._counted(name, getattr(self.store, name)))

    def _counted(self, name, whole):
        def counted(*words, **more):
            self.asked[name] += 1
            return whole(*words, **more)

        return counted


def _handle(store):
    names = "project cluster_name zone namespace bucket_name image_uri accelerator func_name created_at".split()
    return {**dict.fromkeys(names, ""), "backend": "local", "store": store.url, "host": "here", "key_id": ""}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")


@pytest.fixture
def site(tmp_path):
    def make(count=4, **settings):
        return Ground(tmp_path, count, **settings)

    return make


def statuses(tracker):
    return [tracker.status(index) for index in range(tracker.group.total_expected)]


def test_each_child_stands_as_its_row_or_its_mark_says(site):
    batch = site(6)
    for index in range(5):
        batch.submit(index)
    batch.mark(0, "succeeded")
    batch.mark(1, "failed")
    batch.mark(2, "cancelled")
    batch.backend.queue.claim("k", "earth")
    batch.backend.queue.running(batch.group.child_id(3, 0), "k", 0)

    found = batch.look()

    assert statuses(found) == [SUCCEEDED, FAILED, NOT_FOUND, RUNNING, PENDING, None]
    assert found.active == {3, 4}
    assert sorted(found.ended) == [0, 1, 2]
    assert [found.is_final(index) for index in range(6)] == [True, True, True, False, False, False]
    assert found.record(5) is None
    assert found.record(0).group_index == 0


@pytest.mark.parametrize("count", [10, 300])
def test_a_look_takes_as_many_requests_for_hundreds_as_for_ten(site, count):
    batch = site(count)
    batch.backend.queue.add([(batch.group.child_id(index, 0), GROUP, 0) for index in range(count)], *TEMPLATE)
    for index in range(count):
        batch.store.put(documents.sealed_name(child_key(index), "here", batch.key_of(GROUP)), b"")
    for index in range(0, count, 2):
        batch.mark(index, "succeeded")
    watched = batch.tracker()
    watched.refresh(whole=True)
    asked, batch.asked = batch.asked, Counter()

    watched.refresh(whole=True)

    assert batch.asked == {"entries": 3}  # what was submitted, what has ended, whether it was stopped
    assert asked["get"] == 0
    assert Counter(statuses(watched)) == {SUCCEEDED: count // 2, PENDING: count // 2}


def test_who_finds_a_batch_that_has_ended_asks_the_backend_nothing(site, monkeypatch):
    batch = site(3)
    for index in range(3):
        batch.submit(index)
        batch.mark(index, "succeeded")
    monkeypatch.setattr(batch.backend, "observe_group", pytest.fail)

    found = batch.look()
    found.refresh(whole=True)

    assert statuses(found) == [SUCCEEDED] * 3


def test_what_a_batch_in_a_distant_store_has_is_listed_side_by_side(site):
    batch = site(3)
    for index in range(2):
        batch.submit(index)
    batch.mark(0, "succeeded")
    far = DistantStore(batch.store, keys.children(GROUP), keys.marks(GROUP), keys.control_entries(GROUP))

    found = BatchTracker(batch.group, far, batch.backend)
    found.refresh()

    assert statuses(found) == [SUCCEEDED, PENDING, None]
    assert not far.waiting_for


def test_how_a_batch_in_a_distant_store_goes_on_is_listed_side_by_side(site):
    batch = site(3)
    batch.submit(0)
    found = batch.look()
    found.clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600)
    found.store = far = DistantStore(batch.store, keys.marks(GROUP), keys.control_entries(GROUP))
    batch.mark(0, "failed")
    ControlLog(batch.store, GROUP, batch.key_of(GROUP)).stop("cancelled")

    found.refresh()

    assert statuses(found) == [FAILED, None, None]
    assert found.stopped
    assert not far.waiting_for


def test_a_driver_asks_a_distant_store_side_by_side_whether_it_may_still_drive_and_shall(site):
    batch = site(1)
    found = batch.look()
    lease = control.take_lease(batch.store, GROUP, batch.key_of(GROUP))
    found.store = lease._store = found.control._store = far = DistantStore(
        batch.store, keys.leases(GROUP), keys.control_entries(GROUP)
    )
    driving = Driver(SimpleNamespace(group=batch.group, backend=batch.backend), found, lease, on_launch=pytest.fail)

    assert not driving._round()
    assert not driving.superseded
    assert not far.waiting_for


def test_who_drives_a_batch_in_a_distant_store_is_asked_while_its_children_are_listed(site):
    batch = site(1)
    control.take_lease(batch.store, GROUP, batch.key_of(GROUP))
    found = batch.tracker()
    found.store = far = DistantStore(batch.store, keys.leases(GROUP), keys.children(GROUP))
    handle = SimpleNamespace(
        _get_tracker=lambda: found, _refreshed=lambda: found.refresh(whole=True) or found, submission_failures={}
    )

    seen = report.batch_state(report.FoundBatch(batch.group, handle))

    assert seen.driver is not None
    assert seen.open == 1
    assert not far.waiting_for


def test_a_driver_that_submits_the_rest_and_leaves_between_two_looks_has_not_abandoned_its_batch(site, monkeypatch):
    batch, real = site(2), control.lease_holder
    batch.submit(0)
    lease, found = control.take_lease(batch.store, GROUP, batch.key_of(GROUP)), batch.tracker()
    handle = SimpleNamespace(
        _get_tracker=lambda: found, _refreshed=lambda: found.refresh(whole=True) or found, submission_failures={}
    )

    def holder(*words):
        batch.submit(1)
        lease.release()
        return real(*words)

    monkeypatch.setattr(control, "lease_holder", holder)

    seen = report.batch_state(report.FoundBatch(batch.group, handle))

    assert not seen.driver.lives
    assert not seen.is_abandoned


def test_one_key_names_many_children_that_were_launched_together(site):
    batch = site(10)
    whole = documents.sealed_name(keys.children_of(GROUP, range(2, 7), 0), "here", batch.key_of(GROUP))
    batch.store.put(whole, b"")
    batch.store.put(whole.replace("0000006", "0000009"), b"")  # the same seal for more children

    found = batch.look()

    assert [index for index in range(10) if found.attempts[index] == 0] == [2, 3, 4, 5, 6]
    assert found.children() == [(index, 0, "here") for index in range(2, 7)]


def test_while_little_is_open_what_has_ended_is_not_listed_again(site):
    batch = site(3000)
    tracker = batch.tracker()
    tracker.set_only_submitter()
    for index in range(0, 3000, 100):  # of each thousand, whose marks are together, a few
        tracker.submitted(index, 0)
        batch.mark(index, "succeeded") if index != 2500 else batch.submit(index)
    tracker.refresh(whole=True)
    listed = []
    whole = batch.store.entries
    batch.store.entries = lambda prefix, **more: listed.append(prefix) or whole(prefix, **more)

    tracker._refreshed_at = 0.0
    tracker.refresh()

    assert tracker.active == {2500}
    assert [prefix for prefix in listed if "/marks/" in prefix] == [keys.marks(GROUP, 2)]


def test_looks_that_follow_each_other_closely_are_one(site):
    batch = site()
    tracker = batch.tracker()
    tracker.refresh()
    tracker._cost = 10.0
    batch.asked.clear()

    for _ in range(5):
        tracker.refresh()

    assert not batch.asked


def test_a_look_in_which_the_process_was_stopped_is_not_of_now_and_makes_no_later_one_rarer(site):
    tracker, now = site().tracker(), 100.0
    tracker.clock = SimpleNamespace(monotonic=lambda: now)
    observe, stopped = tracker.backend.observe_group, iter([0.1, 60.0, 0.1, 0.1])

    def take(group):
        nonlocal now
        now += next(stopped)
        return observe(group)

    tracker.backend.observe_group = take
    tracker.submitted(0, 0)
    pauses = []
    for _ in range(4):
        tracker.refresh(whole=True)
        pauses.append(max(0.0, tracker._next_refresh() - now))

    assert pauses == pytest.approx([0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(("running", "pause"), [(2, 0.1), (40, 0.05)])
def test_looks_are_rarer_while_the_backend_has_work_for_long(site, monkeypatch, running, pause):
    tracker = site(100).tracker()
    tracker.set_only_submitter()
    for index in range(100):
        tracker.submitted(index, 0)
    names = [tracker.record(index).job_id for index in range(100)]
    seen = {name: Observation(name, RUNNING if name in names[:running] else PENDING) for name in names}
    monkeypatch.setattr(tracker.backend, "observe_group", lambda group: seen)

    tracker.refresh()
    tracker._cost = 0.005

    assert tracker._next_refresh() - tracker._refreshed_at == pytest.approx(pause)


def test_jobs_of_warm_pods_are_not_taken_for_jobs_that_wait_and_are_read_unless_their_pods_tell(site, monkeypatch):
    tracker = site(4).tracker()
    tracker.set_only_submitter()
    for index in range(4):
        tracker.submitted(index, 0)
    names = [tracker.record(index).job_id for index in range(4)]
    warm = Observation(names[0], PENDING, warm="cpu-warm-20261121-143000-1a2b3c4")
    told = replace(warm, name=names[1], status=RUNNING, is_told=True)
    with_other_packages = replace(told, name=names[3], may_come_back=True)
    seen = [warm, told, Observation(names[2], PENDING), with_other_packages]
    monkeypatch.setattr(tracker.backend, "observe_group", lambda group: {each.name: each for each in seen})
    read = list[str]()

    def observe(jobs, **_):
        read.extend(job.job_id for job in jobs)
        return [Snapshot(PENDING)] * len(jobs)

    monkeypatch.setattr(tracker_module, "observe_many", observe)

    tracker.refresh()
    tracker.refresh(whole=True)

    assert tracker.pending == 1
    assert read == [names[0], names[3]], "once in five seconds; the last one may have been given back"
    assert statuses(tracker) == [PENDING, RUNNING, PENDING, PENDING]
    assert tracker.unlaunched == [], "who waits would not wait for it"


def test_an_outcome_without_a_mark_is_found_and_its_mark_made_good(site):
    batch = site()
    batch.submit(0)
    batch.submit(1)
    batch.outcome(0, "succeeded")
    batch.outcome(1, "failed")

    found = batch.look()

    assert statuses(found)[:2] == [SUCCEEDED, FAILED]
    marks = [entry.key.rpartition("/")[2].rpartition(".")[0] for entry in batch.store.entries(keys.marks(GROUP))]
    assert marks == ["0000000.0.succeeded", "0000001.0.failed"]


def test_of_a_child_that_the_backend_still_sees_running_the_outcome_is_found_before_its_mark_is_set(site):
    batch = site(2)
    batch.outcome(0, "failed")
    for index in range(2):
        batch.submit(index)
    batch.backend.queue.claim("k", "earth")
    batch.backend.queue.running(batch.group.child_id(0, 0), "k", 0)
    found = batch.look()
    before = statuses(found)

    found.read_unmarked()

    assert before == [RUNNING, PENDING]
    assert statuses(found) == [FAILED, PENDING]
    assert found.active == {1}


def test_a_child_that_was_never_launched_waits_for_its_driver_and_one_that_began_and_is_gone_has_failed(site):
    batch = site()
    batch.submit(0, row=False)
    batch.submit(1, row=False)
    batch.note(1, "here")

    found = batch.look()

    assert statuses(found)[:2] == [PENDING, FAILED]
    assert found.unseen() == [0]


def test_a_child_that_was_removed_is_not_found_even_where_no_mark_says_so(site):
    batch = site()
    batch.submit(0)
    batch.backend.queue.forget([batch.group.child_id(0, 0)])
    put_history(batch.store, {"job_id": batch.group.child_id(0, 0)})

    found = batch.look()

    assert statuses(found)[0] is NOT_FOUND
    assert found.end(0).word == "removed"
    assert found.is_final(0)


def test_a_success_that_was_collected_stays_a_success_for_who_asks_how_it_ended(site):
    batch = site(retries=3)
    batch.submit(0)
    batch.mark(0, "succeeded")
    batch.mark(0, "removed")

    found = batch.look()

    assert (found.status(0), found.end(0).word, found.is_final(0)) == (NOT_FOUND, "succeeded", True)


def test_only_the_latest_attempt_counts_and_a_failure_counts_when_no_other_may_follow(site):
    batch = site(retries=1)
    batch.submit(0)
    batch.mark(0, "failed")
    tracker = batch.look()
    before = tracker.is_final(0)
    batch.submit(0, 1)
    tracker.refresh(whole=True)
    during = tracker.status(0), tracker.is_final(0)
    batch.mark(0, "failed", attempt=1)
    tracker.refresh(whole=True)

    assert before is False
    assert during == (PENDING, False)
    assert (tracker.status(0), tracker.is_final(0), [*tracker.ended]) == (FAILED, True, [0, 0])


def test_a_stop_makes_a_failure_count_and_what_is_wanted_again_does_not(site):
    batch = site(retries=5)
    for index in range(2):
        batch.submit(index)
        batch.mark(index, "failed")
    tracker = batch.look()

    tracker.control.stop("fail-fast")
    stopped = [tracker.is_final(index) for index in range(2)]
    tracker.allow_retry([1])

    assert stopped == [True, True]
    assert [tracker.is_final(index) for index in range(2)] == [True, False]
    assert [batch.look().may_launch(index) for index in range(3)] == [False, True, False]


def test_one_child_that_cannot_be_judged_does_not_hide_the_others(site):
    batch = site()
    batch.submit(0)
    batch.submit(1)
    batch.outcome(0, "succeeded")
    key = keys.result(batch.group.child_id(0, 0))
    batch.store.put(key, batch.store.get(key)[:-3])  # cut off
    batch.mark(1, "succeeded")

    assert statuses(batch.look())[:2] == [FAILED, SUCCEEDED]


def test_a_store_that_does_not_answer_makes_no_child_a_failed_one(site, monkeypatch):
    batch = site()
    batch.submit(0, row=False)  # so that only a look of its own can tell

    def no_answer(*_):
        raise StoreUnreachableError("503")

    monkeypatch.setattr("kinetic._jobs.locate.read_outcome", no_answer)
    tracker = batch.tracker()
    with pytest.raises(StoreUnreachableError):
        tracker.refresh(whole=True)

    assert (tracker.end(0), tracker.active) == (None, {0})


def test_children_of_another_machine_are_told_by_their_notes_and_marks_and_never_fail_here(site):
    batch = site(5)
    for index in range(4):
        batch.submit(index, machine="there", row=False)
    batch.note(1, "there")
    batch.mark(2, "succeeded")
    batch.submit(3, machine="here", row=False)  # launched on both, and begun there
    batch.note(3, "there")

    found = batch.look()

    assert statuses(found) == [PENDING, RUNNING, SUCCEEDED, RUNNING, None]
    assert found.record(1).host == "there"
    assert found.record(3).host == "here"
    assert 0 in found.unseen()
    assert 1 not in found.unseen()  # it has begun there


def test_a_look_asks_about_some_of_many_lost_children_and_about_the_others_later(site):
    batch = site(120)
    for index in range(120):
        batch.submit(index, machine="there", row=False)
        batch.outcome(index, "succeeded")
    tracker = batch.tracker()

    found = []
    for _ in range(3):
        batch.asked.clear()
        tracker.refresh(whole=True)
        found.append((len(tracker.ended), batch.asked["entry"]))

    assert found == [(50, 50), (100, 50), (120, 20)]


def test_who_waits_is_told_by_whoever_watches(site):
    batch = site()
    batch.submit(0)
    tracker = batch.tracker()
    tracker.refresh(whole=True)
    told = threading.Event()

    def follow():
        while not tracker.ended:
            tracker.wait(60, read=0)
        told.set()

    assert tracker._watching.acquire()  # as if another thread watched
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    batch.mark(0, "succeeded")
    tracker.refresh(whole=True)

    assert told.wait(30)
    tracker._watching.release()


def test_who_has_not_read_everything_need_not_wait(site):
    batch = site()
    batch.submit(0)
    batch.mark(0, "succeeded")
    tracker = batch.look()

    begun = time.monotonic()
    tracker.wait(60, read=0)

    assert time.monotonic() - begun < 30


def test_what_others_put_among_children_and_marks_says_nothing(site):
    batch = site()
    batch.submit(0)
    honest = documents.sealed_name(keys.mark(GROUP, 1, 0), "failed", batch.key_of(batch.group.child_id(1, 0)))
    tag, another = honest.rpartition(".")[2], "0" * 24
    for stem in (keys.mark(GROUP, 0, 0), keys.mark(GROUP, 3, 0), keys.mark(GROUP, 999_999, 0)):
        for name in ("succeeded", "removed", f"failed.{tag}", f"failed.{another}", "..", "failed.\u00e9"):
            batch.store.put(f"{stem}.{name}", b"")
    for name in (
        "0000003.0.here",
        f"0000003.0.here.{tag}",
        f"0000000-0000003.0.here.{tag}",
        f"0000000.999999999.here.{tag}",
        "x",
        "0.0",
        "1e9.0.a.b",
    ):
        batch.store.put(f"{keys.children(GROUP)}0000/{name}", b"")
        batch.store.put(f"{keys.marks(GROUP)}0000/{name}", b"")

    found = batch.look()

    assert statuses(found) == [PENDING, None, None, None]
    assert found.attempts == [0, -1, -1, -1]
    assert found.children() == [(0, 0, "here")]
