"""`kinetic jobs cleanup --all`: finished jobs only, never without being asked, and it says what went."""

from __future__ import annotations

import json
import re
import threading

import pytest
from servers.distant import DistantStore
from servers.sealed import put_history

from kinetic._cli import shared_options
from kinetic._jobs import collect, find, locate
from kinetic._stores.files import FileStore
from kinetic.errors import AccessDeniedError, BackendUnavailableError


@pytest.fixture
def terminal(monkeypatch) -> None:
    """Make the code under test believe that a person sits there; CliRunner replaces the streams themselves."""
    monkeypatch.setattr(shared_options, "is_interactive", lambda: True)


def live() -> set[str]:
    return {handle.job_id for handle in find.list_jobs()}


def test_only_jobs_that_ended_long_enough_ago_are_removed(kinetic, made_job, home) -> None:
    old, bad, new = made_job(days=8), made_job("failed", days=9), made_job(days=6)

    told = kinetic("jobs", "cleanup", "--all", "--older-than", "7d", "--yes")

    assert told.exit_code == 0
    assert live() == {new}
    assert [line.split()[0] for line in told.stdout.splitlines()[1:]] == [old, bad]
    assert told.stderr.startswith("2 jobs removed, ")
    assert not (home / "store" / old).exists()


def test_what_is_kept_of_cancelled_jobs_is_removed_as_well(kinetic, made_job, home) -> None:
    job_id = made_job("cancelled", days=8)
    put_history(FileStore(home / "store"), {"job_id": job_id, "status": "CANCELLED"})
    assert live() == set()

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert [line.split()[:3] for line in told.stdout.splitlines()[1:]] == [[job_id, "train", "CANCELLED"]]
    assert not (home / "store" / job_id).exists()


def test_a_job_that_has_not_ended_stays(kinetic, made_job, monkeypatch) -> None:
    from kinetic._jobs import status
    from kinetic._jobs.status import Snapshot
    from kinetic.job_status import JobStatus

    running = made_job("", days=30)
    monkeypatch.setattr(status, "observe_many", lambda handles: [Snapshot(JobStatus.RUNNING) for _ in handles])

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert told.stderr.startswith("nothing to remove: 0 jobs")
    assert live() == {running}


def test_jobs_in_a_distant_store_are_listed_side_by_side(kinetic, made_job, home, monkeypatch) -> None:
    from kinetic._jobs import status
    from kinetic._jobs.status import Snapshot
    from kinetic.job_status import JobStatus

    jobs = [made_job(days=8), made_job(days=9)]
    far = DistantStore(FileStore(home / "store"), *jobs)
    monkeypatch.setattr(status, "observe_many", lambda handles: [Snapshot(JobStatus.FAILED) for _ in handles])
    monkeypatch.setattr(locate, "store_of", lambda _: far)

    told = kinetic("jobs", "cleanup", "--all", "--dry-run")

    assert told.stderr.startswith("2 jobs would be removed, ")
    assert not far.waiting_for


def test_without_a_terminal_nothing_is_removed_unless_yes_is_said(kinetic, made_job) -> None:
    job_id = made_job(days=8)

    told = kinetic("jobs", "cleanup", "--all", "--older-than", "7d")

    assert told.exit_code == 2
    assert live() == {job_id}
    assert told.stderr.startswith("error: nothing was removed: 1 job would be removed")
    assert told.stderr.endswith("next:  kinetic jobs cleanup --all --older-than 7d --yes\n")


@pytest.mark.parametrize(("answer", "stays"), [("y\n", False), ("n\n", True), ("\n", True)])
def test_a_person_is_asked_and_told_how_many_results_would_be_lost(answer, stays, kinetic, made_job, terminal) -> None:
    job_id = made_job()
    made_job("failed")

    told = kinetic("jobs", "cleanup", "--all", input=answer)

    assert "Remove 2 jobs, with 1 uncollected result? [y/N]" in told.stderr
    assert (job_id in live()) is stays
    assert told.exit_code == 0


def test_an_end_of_the_input_is_no_consent(kinetic, made_job, terminal) -> None:
    job_id = made_job()

    assert kinetic("jobs", "cleanup", "--all", input="").exit_code == 130
    assert live() == {job_id}


def test_a_dry_run_removes_nothing_and_asks_nobody(kinetic, made_job) -> None:
    job_id = made_job(days=8)

    told = kinetic("jobs", "cleanup", "--all", "--dry-run")

    assert told.exit_code == 0
    assert job_id in told.stdout
    assert told.stderr.startswith("1 job would be removed, ")
    assert live() == {job_id}


@pytest.mark.parametrize("dry", [True, False])
def test_as_json_each_job_says_whether_it_was_removed(dry, kinetic, made_job) -> None:
    job_id = made_job(days=8)

    told = kinetic("jobs", "cleanup", "--all", "--json", *(["--dry-run"] if dry else ["--yes"]))

    page = json.loads(told.stdout)
    assert [(job["job_id"], job["removed"]) for job in page["jobs"]] == [(job_id, not dry)]


def test_jobs_are_removed_at_the_same_time(kinetic, made_job, monkeypatch) -> None:
    for _ in range(4):
        made_job(days=8)
    both, real = threading.Barrier(2), collect.remove

    def remove(handle, *more, **named):
        both.wait(timeout=15)  # for another one that is being removed
        real(handle, *more, **named)

    monkeypatch.setattr(collect, "remove", remove)

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert told.stderr.startswith("4 jobs removed, ")
    assert live() == set()


def test_who_interrupts_a_removal_reads_how_far_it_came(kinetic, made_job, monkeypatch) -> None:
    made_job(days=8)
    last, is_first_gone, real = made_job(days=9), threading.Event(), collect.remove

    def remove(handle, *more, **named):
        if handle.job_id == last and is_first_gone.wait(timeout=15):
            raise KeyboardInterrupt
        real(handle, *more, **named)
        is_first_gone.set()

    monkeypatch.setattr(collect, "remove", remove)

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert told.exit_code == 130
    assert re.search("interrupted: [01] of 2 jobs removed; repeat the command to remove the rest", told.stderr)
    assert live() == {last}


def test_one_that_cannot_be_removed_does_not_keep_the_others(kinetic, made_job, monkeypatch) -> None:
    stuck, other = made_job(days=8), made_job(days=8)
    real = collect.remove

    def remove(handle, *more, **named):
        if handle.job_id == stuck:
            raise BackendUnavailableError("it holds on")
        real(handle, *more, **named)

    monkeypatch.setattr(collect, "remove", remove)

    told = kinetic("jobs", "cleanup", "--all", "-y", "--older-than", "7d")

    assert live() == {stuck}
    assert f"warning: {stuck} could not be removed: it holds on" in told.stderr
    assert "1 job removed" in told.stderr
    assert other not in live()
    assert told.exit_code == 1
    assert "error: 1 of 2 jobs could not be removed [not-removed]\nwhy:   it holds on\n" in told.stderr
    assert told.stderr.endswith("only what is stored: kinetic jobs cleanup --all --older-than 7d --no-k8s\n")


@pytest.mark.parametrize("has_ended", [True, False])
def test_what_is_stored_of_one_job_that_has_ended_can_be_removed_without_its_cluster(
    has_ended, kinetic, made_job, monkeypatch
) -> None:
    from kinetic._jobs import status
    from kinetic._jobs.status import Snapshot
    from kinetic.job_status import JobStatus

    job_id = made_job()
    seen = Snapshot(JobStatus.SUCCEEDED if has_ended else JobStatus.RUNNING)

    def remove(*_, **__):
        raise BackendUnavailableError("no answer", next="wait")

    monkeypatch.setattr(collect, "remove", remove)
    monkeypatch.setattr(status, "observe_many", lambda _: [seen])

    told = kinetic("jobs", "cleanup", "@last")

    step = f"next:  wait     or, if the cluster is gone, only what is stored: kinetic jobs cleanup {job_id} --no-k8s\n"
    assert told.exit_code == 1
    assert told.stderr.endswith(step if has_ended else "next:  wait\n")


def test_outputs_stay(kinetic, made_job, home) -> None:
    job_id = made_job()
    output = home / "store" / "outputs" / job_id / "model.bin"
    output.parent.mkdir(parents=True)
    output.write_bytes(b"weights")

    kinetic("jobs", "cleanup", "--all", "--yes")

    assert output.read_bytes() == b"weights"


@pytest.mark.parametrize("pattern", ["", "*"])  # of --name "$NAME" and --name "$PREFIX*" without such a variable
def test_a_job_without_a_name_is_not_removed_by_a_pattern_for_names(pattern, kinetic, made_job) -> None:
    unnamed, named = made_job(), made_job(name="try-1")

    told = kinetic("jobs", "cleanup", "--all", "--yes", "--name", pattern)

    assert told.exit_code == 0
    assert live() == ({unnamed} if pattern else {unnamed, named})


@pytest.mark.parametrize(
    "words", [(), ("--older-than", "7d"), ("a-job", "--all"), ("a-job", "--older-than", "7d"), ("a-job", "--dry-run")]
)
def test_it_must_be_clear_whether_one_or_all_are_meant(words, kinetic) -> None:
    assert kinetic("jobs", "cleanup", *words).exit_code == 2


def test_who_selects_jobs_without_all_gets_the_line_with_it(kinetic) -> None:
    refused = kinetic("jobs", "cleanup", "--older-than", "7d")

    assert refused.stderr.endswith("next:  kinetic jobs cleanup --older-than 7d --all\n")


def test_removing_neither_resource_nor_artifacts_is_refused(kinetic, made_job) -> None:
    job_id = made_job()

    assert kinetic("jobs", "cleanup", "--all", "--yes", "--no-k8s", "--no-gcs").exit_code == 2
    assert live() == {job_id}


@pytest.mark.parametrize(
    ("removes", "said"), [(2, "kinetic's code of 2 old versions removed from the cluster"), (0, "")]
)
def test_old_code_is_removed_from_each_cluster_once(kinetic, made_job, monkeypatch, removes, said) -> None:
    asked = []

    class Cluster:
        def remove_unused_code(self) -> int:
            asked.append(removes)
            if not removes:
                raise AccessDeniedError("nobody may list configmaps")
            return removes

    cluster = Cluster()
    made_job(days=8), made_job(days=9)
    monkeypatch.setattr(collect, "remove", lambda *_, **__: None)
    monkeypatch.setattr(locate, "backend_of", lambda _: cluster)

    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert (told.exit_code, asked) == (0, [removes])
    assert said in told.stderr
    assert "configmaps" not in told.stderr


def test_several_jobs_are_removed_by_one_command_and_no_other(kinetic, made_job) -> None:
    one, other, kept = made_job(), made_job("failed"), made_job()

    told = kinetic("jobs", "cleanup", one, other, "--json")

    assert told.exit_code == 0
    assert sorted(json.loads(told.stdout)["removed"]) == [one, other]
    assert live() == {kept}
    assert len(told.stderr.splitlines()) == 2


def test_what_cannot_be_removed_of_several_keeps_no_other(kinetic, made_job, monkeypatch) -> None:
    def remove(handle, seen, **more):
        if handle.job_id in bad:
            raise AccessDeniedError(f"{handle.job_id} may not be removed", why="403", next="ask")
        removing(handle, seen, **more)

    removing, bad, good = collect.remove, [made_job(), made_job()], made_job()
    monkeypatch.setattr(collect, "remove", remove)

    told = kinetic("jobs", "cleanup", *bad, good)

    assert told.exit_code == 1
    assert live() == set(bad)
    assert told.stderr.count("may not be removed") == 2
    assert sum(line.startswith("warning: ") for line in told.stderr.splitlines()) == 1
