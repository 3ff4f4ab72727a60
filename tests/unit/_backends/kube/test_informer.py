"""One watch for all who wait: what it told is found without a request, and news wake those whom they concern."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from servers.informers import end_informers
from servers.scripted import Scripted, lines, open_lines, page, refusal

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import informer as kube_informer
from kinetic._backends.kube import object_status
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.informer import Informer, Informers
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry

if TYPE_CHECKING:
    from servers.http11 import Answer, Request


def job(uid: str, version: str, **status: object) -> dict:
    about = {"uid": uid, "name": f"kinetic-{uid}", "resourceVersion": version, "labels": {"job-id": uid}}
    return {"kind": "Job", "metadata": about, "spec": {}, "status": status}


def ended(uid: str, version: str) -> dict:
    return job(uid, version, conditions=[{"type": "Complete", "status": "True"}])


def listing(*jobs: dict):
    return page({"metadata": {"resourceVersion": "10"}, "items": list(jobs)})


@contextlib.contextmanager
def watching(*answers: object) -> Iterator[Informer]:
    with Scripted(*answers) as server:
        access = Access(server=server.url, about="the test", credential=FixedCredential())
        with contextlib.closing(Client(access, "research", Retry(2, sleep=lambda _: None))) as client:
            informer = Informer(client, (kube_client.JOB,), "app=kinetic")
            try:
                yield informer
            finally:
                end_informers(server, [informer])


def test_what_the_first_list_had_is_found_without_a_request() -> None:
    with watching(listing(job("a", "1", ready=1)), open_lines()) as informer:
        informer.start()

        assert informer.wait_until_current(10)
        found = informer.find("a")

    assert found is not None
    assert found["status"] == {"ready": 1}
    assert informer.find("b") is None


def test_whoever_waits_is_woken_by_news_of_the_job() -> None:
    told = open_lines({"type": "MODIFIED", "object": ended("a", "11")})

    with watching(listing(job("a", "1")), told) as informer:
        seen = informer.changes_of("a")
        informer.start()
        informer.wait("a", seen, 10)
        if informer.find("a") != ended("a", "11"):
            informer.wait("a", informer.changes_of("a"), 10)

        assert informer.changes_of("a") > seen


def test_ends_are_counted_once_and_what_goes_counts_as_well() -> None:
    told = open_lines(
        {"type": "MODIFIED", "object": ended("a", "11")},
        {"type": "MODIFIED", "object": ended("a", "12")},
        {"type": "DELETED", "object": job("b", "13")},
    )

    with watching(listing(job("a", "1"), job("b", "2")), told) as informer:
        informer.start()
        informer.wait_for_any_end(0, 10)
        informer.wait_for_any_end(1, 10)

        assert informer.ends == 2


def pod(uid: str, owner: str, version: str) -> dict:
    about = {"uid": uid, "name": uid, "resourceVersion": version, "ownerReferences": [{"kind": "Job", "uid": owner}]}
    return {"kind": "PartialObjectMetadata", "metadata": about}


def test_a_pod_of_a_batch_that_has_succeeded_is_the_end_of_its_job_before_the_job_says_so() -> None:
    """And what its Job says a second later is no further end."""
    answers = {
        "pods": [
            page({"metadata": {"resourceVersion": "10"}, "items": []}),
            open_lines(
                {"type": "ADDED", "object": pod("pod", "a", "11")},
                {"type": "MODIFIED", "object": pod("pod", "a", "12")},
                {"type": "ADDED", "object": pod("of-others", "c", "13")},
            ),
            open_lines(),
        ],
        "jobs": [
            listing(job("a", "1"), job("b", "2")),
            open_lines(),
            open_lines(
                {"type": "MODIFIED", "object": ended("a", "14")}, {"type": "MODIFIED", "object": ended("b", "15")}
            ),
        ],
    }

    def answer(request: Request) -> Answer:
        left = answers[request.path.rpartition("/")[2]]
        return left.pop(0) if len(left) > 1 else left[0]

    with Scripted(answer) as server:
        access = Access(server=server.url, about="the test", credential=FixedCredential())
        with contextlib.closing(Client(access, "research", Retry(2, sleep=lambda _: None))) as client:
            informer = Informer(client, (kube_client.JOB,), "app=kinetic", follows_pods=True)
            informer.add(job("a", "1"))
            informer.start()
            try:
                informer.wait_for_any_end(0, 10)
                early = informer.ends
                informer.wait_until_current(10)
                while len(answers["jobs"]) > 1 or len(answers["pods"]) > 1:
                    threading.Event().wait(0.01)
                server.hang_up()
                informer.wait_for_any_end(1, 10)
            finally:
                end_informers(server, [informer])

    assert (early, informer.ends) == (1, 2)
    watch = next(each for each in server.asked if each.path.endswith("/pods") and "watch" in each.query)
    assert watch.query["fieldSelector"] == "status.phase=Succeeded"
    assert watch.query["resourceVersion"] == "10"
    assert "as=PartialObjectMetadata" in watch.headers["accept"]


def test_what_this_process_made_is_there_before_the_watch_tells_of_it() -> None:
    with watching(listing()) as informer:
        informer.add(job("new", "5"))

        assert informer.find("new") is not None


def test_what_this_process_made_and_a_new_list_does_not_have_is_gone() -> None:
    forgotten = lines({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})

    with watching(listing(), forgotten, listing(), open_lines()) as informer:
        informer.add(job("made", "5"))  # and somebody removed it while the watch was away
        informer.start()

        assert informer.wait_until_current(10)
        informer.wait_for_any_end(0, 10)

        assert informer.find("made") is None


def test_what_the_watch_told_already_is_newer_than_the_answer_to_making_it() -> None:
    with watching(listing(job("a", "9", ready=1)), open_lines()) as informer:
        informer.start()
        informer.wait_until_current(10)

        informer.add(job("a", "1"))

        assert informer.find("a")["status"] == {"ready": 1}


def test_what_the_cluster_notes_in_the_suspended_job_of_a_warm_pods_task_wakes_no_thread() -> None:
    def task(version: str, **status: object) -> dict:
        found = job("a", version, **status) | {"spec": {"suspend": True}}
        found["metadata"]["labels"] |= {object_status.WARM_LABEL: "a-pod"}
        return found

    noted = task("11", conditions=[{"type": "Suspended", "status": "True"}])
    cold = job("a", "12")
    events = open_lines({"type": "MODIFIED", "object": noted}, {"type": "MODIFIED", "object": cold})

    with watching(listing(task("1")), events) as informer:
        informer.add(task("1"))
        made = informer.changes_of("a")
        informer.start()
        informer.wait("a", made, 10)

        assert informer.find("a")["spec"] == {}, "it was not woken by the first one"
        assert informer.changes_of("a") == made + 1


def test_news_that_are_not_of_the_object_wake_as_well() -> None:
    with watching() as informer:
        informer.add(job("a", "1"))
        seen = informer.changes_of("a")

        threading.Timer(0.05, informer.notify, ("a",)).start()
        informer.wait("a", seen, 10)

        assert informer.changes_of("a") == seen + 1


def test_an_informer_that_may_not_watch_ends_and_says_why() -> None:
    with watching(refusal(403, "jobs.batch is forbidden", "Forbidden")) as informer:
        informer.start()

        assert not informer.wait_until_current(10)
        assert not informer.is_alive
        assert ": list jobs" in str(informer.error)


def test_who_may_list_and_not_watch_hears_of_changes_from_the_next_list(monkeypatch) -> None:
    monkeypatch.setattr(kube_informer, "_POLL_SECONDS", 0.01)
    denied = refusal(403, "jobs.batch is forbidden", "Forbidden")

    later = [denied, listing()] * 500  # it goes on while the test looks at it
    with watching(listing(job("a", "1", ready=1)), denied, listing(ended("a", "2")), *later) as informer:
        informer.start()
        informer.wait_for_any_end(1, 10)

        assert (informer.ends, informer.find("a"), informer.is_alive) == (2, None, True)


def test_an_informer_that_has_ended_is_made_anew() -> None:
    with Scripted(listing(), listing()) as server:
        access = Access(server=server.url, about="the test", credential=FixedCredential())
        with contextlib.closing(Client(access, "research", Retry(2, sleep=lambda _: None))) as client:
            informers = Informers(lambda selector: Informer(client, (kube_client.JOB,), selector))
            first = informers.get("app=kinetic")
            assert informers.get("app=kinetic") is first

            first.end()
            second = informers.get("app=kinetic")

            assert second is not first
            assert informers.alive() == [second]
            end_informers(server, [second])


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_nobody_waits_longer_than_asked(seconds: float) -> None:
    with watching(listing(job("a", "1"))) as informer:
        informer.wait("a", 0, seconds)
        informer.wait_for_any_end(0, seconds)

        assert not informer.is_current
