"""A claim in the store is a witness: a job whose attempt has begun runs, however late a cluster counts its pods."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from servers.distant import DistantStore

from kinetic._backends.protocol import DebugAddress, Diagnosis, Observation
from kinetic._config import home
from kinetic._jobs import collect, handle, locate, logs, status
from kinetic._jobs.handle import JobHandle
from kinetic._runner.supervisor import attempts
from kinetic._stores import parallel
from kinetic._stores.memory import MemoryStore
from kinetic._stores.protocol import Entry
from kinetic._wire import digests, keys, outcomes
from kinetic._wire.digests import LogHasher
from kinetic._wire.measurements import Measurements
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.records import REQUIRED
from kinetic.errors import AccessDeniedError, BackendUnavailableError, StoreUnreachableError
from kinetic.job_status import JobStatus

JOB_ID = "cpu-train-20261121-143000-1a2b3c4"
SEGMENTS = [keys.log_segment(JOB_ID, 0, host, 0) for host in range(3)]
SAYS_PENDING = Observation(JOB_ID, JobStatus.PENDING, attempt=None, reason="nothing is ready")


@dataclass
class Cluster:
    """A cluster as far as it is asked here: which pod runs host 0."""

    pod: str = ""
    is_here: bool = False
    asked: list[str] = field(default_factory=list)
    error: Exception | None = None
    diagnosis: Diagnosis | None = None

    def explain(self, name: str) -> Diagnosis | None:
        return self.diagnosis

    def last_log(self, name: str, *, host: int, attempt: int) -> None:
        """Has none."""

    def debug_addresses(self, name: str, *, hosts: list[int]) -> dict[int, DebugAddress]:
        self.asked.append(name)
        if self.error:
            raise self.error
        return {host: DebugAddress(5678, machine=self.pod) for host in hosts if self.pod}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobHandle:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))
    key_id, _ = home.own_key(tmp_path)
    fields = dict.fromkeys(REQUIRED, "") | {"job_id": JOB_ID, "store": f"file://{tmp_path}/store", "key_id": key_id}
    return JobHandle.from_dict(fields)


@pytest.fixture
def far(job: JobHandle, monkeypatch: pytest.MonkeyPatch) -> list[JobHandle]:
    """Three jobs of a distant store."""
    ids = [f"{JOB_ID[:-1]}{number}" for number in range(3)]
    monkeypatch.setattr(locate, "store_of", lambda _: SimpleNamespace(url="gs://far/away", local=None))
    return [JobHandle.from_dict(job.to_dict() | {"job_id": each, "store": "gs://far/away"}) for each in ids]


def claim(job: JobHandle, attempt: int, pod: str, **details: object) -> None:
    note = AttemptNote(JOB_ID, attempt, pod, 1_790_000_000.0, details={"pod": pod, "host": 0, **details})
    locate.store_of(job).put(note.key, note.to_bytes(locate.key_to_seal(job)))


def test_a_claimed_job_runs_although_the_cluster_counts_nothing_that_is_ready(job: JobHandle) -> None:
    claim(job, 0, "train-x-abcde")

    seen = status.with_claim(job, Cluster("train-x-abcde"), SAYS_PENDING)

    assert (seen.status, seen.reason, seen.started) == (JobStatus.RUNNING, "", 1_790_000_000.0)


@pytest.mark.parametrize(
    ("held", "what", "next_"),
    [
        (None, "it was killed (exit code 137)", "look at its log"),
        (1 << 30, "it was killed (exit code 137; it held 1.1 GB of 4.3 GB of memory when last measured)", "look"),
        (15 << 28, "it was killed, most likely because it ran out of memory (exit code 137; it held 4.0 GB", "32Gi"),
    ],
)
def test_a_job_that_was_killed_says_what_it_held_when_it_was_last_measured(
    job: JobHandle, held: int | None, what: str, next_: str
) -> None:
    if held is not None:
        rows = ((1.0, 0.5, 3 << 30, 0, 0, 0), (6.0, 0.9, held, 0, 0, 0))
        measured = Measurements(JOB_ID, 0, 0, 1.8e9, "cgroup", 2.0, 4 << 30, 1 << 40, rows=rows)
        locate.store_of(job).put(keys.usage(JOB_ID, 0, 0), measured.to_bytes(locate.key_to_seal(job)))
    killed = Diagnosis(f"{JOB_ID}: it was killed", "exit code 137", "look at its log", code="killed")

    seen, outcome = status._explain_failure(
        job, Cluster(diagnosis=killed), Observation(JOB_ID, JobStatus.FAILED, attempt=None)
    )

    assert seen.reason.startswith(what)
    assert next_ in outcome.error["next"]


def test_a_job_that_left_no_verdict_keeps_the_logs_of_all_its_attempts(job: JobHandle, monkeypatch) -> None:
    cluster = Cluster(diagnosis=Diagnosis(f"{JOB_ID}: its pods were preempted", "3 times", "", code="preempted"))
    monkeypatch.setattr(locate, "backend_of", lambda _: cluster)
    for attempt in range(3):
        claim(job, attempt, f"train-x-{attempt}")
        locate.store_of(job).put(keys.log_segment(JOB_ID, attempt, 0, 0), b"step %d\n" % attempt)

    seen, outcome = status._explain_failure(job, cluster, Observation(JOB_ID, JobStatus.FAILED, attempt=None))
    page = collect.collected_page(job, status.Snapshot(JobStatus.FAILED, outcome, seen))

    assert page["attempts"] == 3
    assert [each["attempt"] for each in page["logs"]] == [0, 1, 2]
    assert logs.text_of(logs.history_log(locate.store_of(job), JOB_ID, attempt=None, host=0)) == "step 2\n"


def with_logs_of_hosts(job: JobHandle) -> JobHandle:
    for host, segment in enumerate(SEGMENTS):
        locate.store_of(job).put(segment, b"host %d\n" % host)
    return JobHandle.from_dict(job.to_dict() | {"backend": "gke"})


def test_logs_of_all_hosts_are_read_side_by_side_from_a_distant_store(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, far = with_logs_of_hosts(job), DistantStore(locate.store_of(job), *SEGMENTS)
    monkeypatch.setattr(locate, "store_of", lambda _: far)
    monkeypatch.setattr(locate, "backend_of", lambda _: Cluster())

    page = collect.collected_page(job, status.Snapshot(JobStatus.SUCCEEDED, Outcome(JOB_ID, outcomes.SUCCEEDED)))

    assert [each["host"] for each in page["logs"]] == [0, 1, 2]
    assert logs.text_of(logs.history_log(far, JOB_ID, attempt=0, host=2)) == "host 2\n"
    assert not far.waiting_for


def test_long_logs_of_many_hosts_are_read_one_after_the_other_which_takes_the_memory_of_one(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, near, readers = with_logs_of_hosts(job), locate.store_of(job), set[threading.Thread]()

    class Watched(DistantStore):
        def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
            readers.add(threading.current_thread())
            return super().get(key, start=start, length=length)

    monkeypatch.setattr(collect, "_LOGS_IN_MEMORY", 10)
    monkeypatch.setattr(locate, "store_of", lambda _: Watched(near))
    monkeypatch.setattr(locate, "backend_of", lambda _: Cluster())

    page = collect.collected_page(job, status.Snapshot(JobStatus.SUCCEEDED, Outcome(JOB_ID, outcomes.SUCCEEDED)))

    assert len(page["logs"]) == 3
    assert readers == {threading.main_thread()}


@pytest.mark.parametrize(("size", "requests"), [(100, ["get"]), (100_000, ["get", "size", "get"])])
def test_a_verdict_in_a_distant_store_is_read_with_one_request_where_the_result_is_small(
    job: JobHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, requests: list[str]
) -> None:
    near, body, asked = locate.store_of(job), tmp_path / "body", list[str]()
    body.write_bytes(b"v" * size)
    verdict = Outcome(JOB_ID, outcomes.SUCCEEDED, body_length=size, body_sha256=digests.of_bytes(b"v" * size))

    class Counted(DistantStore):
        def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
            asked.append("get")
            return super().get(key, start=start, length=length)

        def size(self, key: str) -> int | None:
            asked.append("size")
            return near.size(key)

    monkeypatch.setattr(locate, "store_of", lambda _: Counted(near))
    attempts.seal_outcome(near, verdict, locate.key_to_seal(job), body=body)

    found = locate.read_outcome(job)

    assert found is not None
    assert (found.status, found.body_length) == (outcomes.SUCCEEDED, size)
    assert asked == requests


def test_a_job_that_its_warm_pod_has_not_claimed_waits_although_the_pod_runs(job: JobHandle) -> None:
    said = replace(SAYS_PENDING, status=JobStatus.RUNNING, warm="cpu-warm-1")

    before = status.with_claim(job, Cluster("cpu-warm-1"), said)
    claim(job, 0, "cpu-warm-1-abcde")

    assert (before.status, before.reason) == (JobStatus.PENDING, "its warm pod cpu-warm-1 has not begun with it")
    assert status.with_claim(job, Cluster("cpu-warm-1"), said) is said


@pytest.mark.parametrize("body", [b"value", None], ids=["small", "large"])
def test_what_the_end_of_a_job_needs_is_read_side_by_side_from_a_distant_store(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch, body: bytes | None
) -> None:
    all_three = threading.Barrier(3, timeout=10)  # the result, the page of the history, and the listing
    outcome = Outcome(JOB_ID, outcomes.SUCCEEDED)

    class Distant:
        url, local = "gs://far/away", None

        def entries(self, prefix: str) -> list[str]:
            all_three.wait()
            return [f"{prefix}result.pkl"]

    def read(what: object) -> object:
        all_three.wait()
        return what

    monkeypatch.setattr(locate, "store_of", lambda _: Distant())
    monkeypatch.setattr(locate, "read_ended", lambda _: read((outcome, body)))
    monkeypatch.setattr(locate, "read_page", lambda *_: read(None))

    seen = status.observe(job, expected=True, collects=True)

    assert (seen.status, seen.body) == (JobStatus.SUCCEEDED, body)
    assert seen.inside is not None
    assert seen.inside.entries == [f"{JOB_ID}/result.pkl"]


def test_the_end_of_a_log_is_kept_that_came_between_the_listing_and_the_verdict_which_are_read_side_by_side(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    segment, listed = keys.log_segment(JOB_ID, 0, 0, 0), threading.Event()

    class Distant(MemoryStore):
        def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
            found = list(super().entries(prefix, after=after))
            listed.set()
            return iter(found)

        def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
            if key == keys.result(JOB_ID) and not listed.is_set():
                assert listed.wait(10)
                self.put(segment, b"begins\nends\n")
                self.put(key, verdict.footer(locate.key_to_seal(job)))
            return super().get(key, start=start, length=length)

    store, hasher = Distant("far"), LogHasher()
    store.url = "gs://far/away"
    hasher.update(b"begins\nends\n")
    verdict = Outcome(JOB_ID, outcomes.SUCCEEDED, logs=(hasher.digest(0, 0),), key_id=job.key_id or "")
    store.put(segment, b"begins\n")
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "backend_of", lambda _: Cluster())

    seen = status.observe(job, expected=True, collects=True)
    collect.collected_page(job, seen, collect._inside(job, seen, store))

    assert logs.text_of(logs.history_log(store, JOB_ID, attempt=None, host=0)) == "begins\nends\n"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("error", [StoreUnreachableError("the store does not answer"), ValueError("garbage")])
def test_jobs_in_a_distant_store_are_read_side_by_side_and_one_that_cannot_be_read_hides_no_other(
    far: list[JobHandle], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    verdicts, pages, asked = threading.Barrier(3, timeout=10), threading.Barrier(3, timeout=10), list[str]()

    def read(of: JobHandle) -> Outcome:
        verdicts.wait()
        return Outcome(of.job_id, outcomes.SUCCEEDED)

    def page(_: object, job_id: str) -> None:
        asked.append(job_id)
        if len(asked) <= 3:  # what has failed is asked again, by itself
            pages.wait()
        if job_id == far[1].job_id:
            raise error

    monkeypatch.setattr(locate, "read_outcome", read)
    monkeypatch.setattr(locate, "read_page", page)

    seen = status.observe_many(far)

    assert [each.status for each in seen] == [JobStatus.SUCCEEDED, JobStatus.PENDING, JobStatus.SUCCEEDED]
    assert seen[1].error is error


@pytest.mark.parametrize("error", [StoreUnreachableError("the store does not answer"), ValueError("garbage")])
def test_values_in_a_distant_store_are_read_side_by_side_and_one_that_cannot_be_read_is_left_to_its_own_look(
    far: list[JobHandle], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    together = threading.Barrier(3, timeout=10)

    def read(of: JobHandle) -> tuple[Outcome, bytes]:
        together.wait()
        if of is far[1]:
            raise error
        return Outcome(of.job_id, outcomes.SUCCEEDED), b"value"

    monkeypatch.setattr(locate, "read_ended", read)

    found = handle.read_ahead(far)

    assert [found[each.job_id] is not None for each in far] == [True, False, True]
    assert handle.read_ahead(far[:1]) == {}, "one is read where it is needed"


def test_a_store_that_is_away_is_waited_for_once_and_not_for_each_of_the_values_that_are_read_ahead(
    far: list[JobHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def read(of: JobHandle) -> NoReturn:
        asked.append(of.job_id)
        raise StoreUnreachableError("the store does not answer")  # after minutes

    monkeypatch.setattr(locate, "read_ended", read)
    many = [JobHandle.from_dict(far[0].to_dict() | {"job_id": f"{JOB_ID[:-2]}{number}"}) for number in range(10, 74)]

    found = handle.read_ahead(many)

    assert set(found.values()) == {None}
    assert len(asked) <= parallel.CLOUD_PARALLELISM < len(many)


def test_pages_of_collected_jobs_in_a_distant_store_are_made_side_by_side(
    far: list[JobHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, together = threading.Barrier(3, timeout=10), threading.Barrier(3, timeout=10)
    written = dict[str, bytes]()

    class Distant:
        url, local = "gs://far/away", None

        def entries(self, prefix: str) -> list[str]:
            together.wait()
            return []

        def put(self, key: str, data: bytes, *, if_absent: bool) -> bool:
            written[key] = data
            return True

    def look() -> status.Snapshot:  # of very many, their handles do not keep how they ended
        looks.wait()
        return status.Snapshot(JobStatus.SUCCEEDED, Outcome("", outcomes.SUCCEEDED))

    monkeypatch.setattr(collect, "_history_logs", lambda *_: ([], []))

    collect.write_collected_pages([(each, look) for each in far], Distant())

    assert written.keys() == {keys.history(each.job_id) for each in far}


def test_long_logs_of_collected_jobs_are_read_one_after_the_other_and_written_before_the_next(
    far: list[JobHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, all_listed, in_memory = [], threading.Barrier(3, timeout=10), list[str]()

    class Distant:
        url, local = "gs://far/away", None

        def entries(self, prefix: str) -> list[Entry]:
            all_listed.wait()
            return [Entry(keys.log_segment(prefix.rstrip("/"), 0, 0, 0), 2 << 20, 0.0)]

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> bool:
            in_memory[:] = [name for name in in_memory if name not in key]
            return True

    def history_logs(of: JobHandle, *_: object) -> tuple[list[object], list[tuple[str, bytes]]]:
        in_memory.append(of.job_id)
        at_once.append(len(in_memory))
        return [], [(keys.history_log(of.job_id, 0, 0), b"the end")]

    monkeypatch.setattr(collect, "_LOGS_IN_MEMORY", 3)
    monkeypatch.setattr(collect, "_history_logs", history_logs)
    ended = status.Snapshot(JobStatus.SUCCEEDED, Outcome("", outcomes.SUCCEEDED))

    collect.write_collected_pages([(each, lambda: ended) for each in far], Distant())

    assert at_once == [1, 1, 1]


def test_clusters_are_asked_side_by_side_and_one_that_is_away_hides_no_job_of_another(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)  # nobody gets past it alone

    class Namespace(Cluster):
        __hash__ = object.__hash__

        def observe(self, names: list[str]) -> dict[str, Observation]:
            both.wait(timeout=10)
            if self.error:
                raise self.error
            return {name: replace(SAYS_PENDING, name=name) for name in names}

    places = {"a": Namespace(), "b": Namespace(error=BackendUnavailableError("the context b does not respond"))}
    jobs = [replace(job, job_id=f"{JOB_ID}-{name}", namespace=name, backend="gke") for name in places]
    monkeypatch.setattr(locate, "backend_of", lambda asked: places[asked.namespace])

    first, second = status.observe_many(jobs)

    assert (first.status, first.error) == (JobStatus.PENDING, None)
    assert (second.status, second.reason) == (JobStatus.PENDING, "the context b does not respond")


def end(job: JobHandle, outcome_status: str = outcomes.SUCCEEDED) -> None:
    verdict = Outcome(JOB_ID, outcome_status)
    locate.store_of(job).put(keys.result(JOB_ID), verdict.footer(locate.key_to_seal(job)))


@pytest.mark.parametrize("told", [None, JobStatus.FAILED, JobStatus.SUCCEEDED, JobStatus.NOT_FOUND])
@pytest.mark.parametrize("look", ["alone", "with others"])
def test_an_outcome_that_came_after_the_first_look_wins_over_what_the_backend_says(
    job: JobHandle, monkeypatch: pytest.MonkeyPatch, told: JobStatus | None, look: str
) -> None:
    class Ending(Cluster):
        __hash__ = object.__hash__

        def observe(self, names: list[str]) -> dict[str, Observation]:
            end(job)  # between the two looks into the store
            return {} if told is None else {name: Observation(name, told) for name in names}

    claim(job, 0, "train-x-abcde")
    cluster = Ending()
    monkeypatch.setattr(locate, "backend_of", lambda _: cluster)
    on_cluster = replace(job, backend="gke")

    seen = status.observe(on_cluster) if look == "alone" else status.observe_many([on_cluster])[0]

    assert (seen.status, seen.error) == (JobStatus.SUCCEEDED, None)


@pytest.mark.parametrize(("machine", "elsewhere"), [("another", True), ("", False), (None, False)])
def test_a_child_that_another_machine_has_begun_is_not_lost_because_this_one_does_not_know_it(
    job: JobHandle, machine: str | None, elsewhere: bool
) -> None:
    here = replace(job, backend="local")
    claim(job, 0, "host", machine_id=locate.machine() if machine is None else machine)

    assert status.attempt_state(here) == {"attempted": True, "elsewhere": elsewhere}


def test_a_list_does_not_show_a_removed_job_as_it_had_ended(job: JobHandle) -> None:
    here = replace(job, backend="local")
    end(job)
    listed_before = status.observe_many([here], from_index=True)[0]
    page = {"job_id": JOB_ID, "key_id": job.key_id, "status": "SUCCEEDED", "resource_removed": True}
    locate.write_page(locate.store_of(job), page, locate.key_to_seal(job))

    listed = status.observe_many([here], from_index=True)[0]

    assert (listed_before.status, listed.status) == (JobStatus.SUCCEEDED, JobStatus.NOT_FOUND)


def test_of_many_attempts_the_last_one_counts(job: JobHandle) -> None:
    for attempt in range(15):
        claim(job, attempt, f"train-x-{attempt}")

    note = status.last_attempt_note(job)

    assert note is not None
    assert note.attempt == 14


def test_the_pod_of_a_slice_has_more_in_its_name_than_its_host_knows(job: JobHandle) -> None:
    claim(job, 0, "train-x-s-0-0")

    assert status.with_claim(job, Cluster("train-x-s-0-0-fghij"), SAYS_PENDING).status is JobStatus.RUNNING


def test_a_job_that_nobody_has_claimed_waits_and_the_cluster_is_not_asked_again(job: JobHandle) -> None:
    cluster = Cluster("train-x-abcde")

    assert status.with_claim(job, cluster, SAYS_PENDING) is SAYS_PENDING
    assert cluster.asked == []


def test_an_attempt_that_has_ended_runs_no_more(job: JobHandle) -> None:
    claim(job, 0, "train-x-abcde", ended=1_790_000_050.0, why="taken away")

    assert status.with_claim(job, Cluster("train-x-abcde"), SAYS_PENDING) is SAYS_PENDING


def test_the_claim_of_a_machine_that_lost_its_power_counts_no_more(job: JobHandle) -> None:
    claim(job, 9, "train-x-abcde")
    claim(job, 10, "train-x-fghij")

    assert status.with_claim(job, Cluster("train-x-abcde"), SAYS_PENDING) is SAYS_PENDING
    assert status.with_claim(job, Cluster(""), SAYS_PENDING) is SAYS_PENDING


def test_who_may_not_see_pods_hears_what_the_cluster_says_of_the_job(job: JobHandle) -> None:
    claim(job, 0, "train-x-abcde")
    cluster = Cluster(error=AccessDeniedError("pods are forbidden"))

    assert status.with_claim(job, cluster, SAYS_PENDING) is SAYS_PENDING


@pytest.mark.parametrize("told", [JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.FAILED])
def test_only_what_is_called_pending_needs_a_second_witness(job: JobHandle, told: JobStatus) -> None:
    claim(job, 0, "train-x-abcde")
    said, cluster = Observation(JOB_ID, told), Cluster("train-x-abcde")

    assert status.with_claim(job, cluster, said) is said
    assert cluster.asked == []


def test_a_claim_that_nobody_of_ours_wrote_says_nothing(job: JobHandle) -> None:
    forged = AttemptNote(JOB_ID, 0, "train-x-abcde", 1.0, details={"pod": "train-x-abcde"})
    store = locate.store_of(job)
    store.put(forged.key, forged.to_bytes(b"k" * 32))
    for name, page in (("1", b"[" * 200_000), ("2", b"{}"), ("x", b""), ("9" * 40, b"")):
        store.put(f"{JOB_ID}/attempts/{name}", page)

    assert status.with_claim(job, Cluster("train-x-abcde"), SAYS_PENDING) is SAYS_PENDING
    assert status.attempt_state(job) == {"attempted": False, "elsewhere": False}
