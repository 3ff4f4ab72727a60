"""What `kinetic jobs` says about a queue that nobody keeps."""

from __future__ import annotations

import pytest

from kinetic._cli import shared_options
from kinetic._jobs import find, locate
from kinetic._jobs.index import Row
from kinetic.errors import JobNotFoundError

WAITING = Row(**dict.fromkeys(Row._fields))._replace(status="PENDING", where="this machine")


@pytest.mark.parametrize(
    ("rows", "kept", "told"),
    [
        ([WAITING], False, "1 job is pending, and no supervisor is running"),
        ([WAITING, WAITING], False, "2 jobs are pending, and no supervisor is running"),
        ([WAITING], True, ""),
        ([], False, ""),
        ([WAITING._replace(status="RUNNING")], False, ""),
        ([WAITING._replace(where="host other")], False, ""),
    ],
)
def test_waiting_jobs_without_a_supervisor_are_told(rows, kept, told, monkeypatch, capsys) -> None:
    monkeypatch.setattr(locate, "is_supervised", lambda: kept)

    shared_options.warn_if_unsupervised(rows)

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(told)
    assert bool(said.err) is bool(told)


@pytest.mark.parametrize("shown", ["cpu-", "cpu-train-0-"])
def test_the_beginning_of_an_id_may_end_with_a_dash(shown, kinetic, made_job) -> None:
    job_id = made_job()

    told = kinetic("jobs", "status", shown)

    assert (told.exit_code, told.stdout.split(":")[0]) == (0, job_id), told.stderr
    assert find.attach(shown).job_id == job_id


def test_the_id_of_a_batch_leads_to_attach_batch() -> None:
    with pytest.raises(JobNotFoundError, match="no job grp-0a1b2c3d was found") as raised:
        find.attach("grp-0a1b2c3d")

    assert raised.value.next == 'kinetic.attach_batch("grp-0a1b2c3d")'


def test_no_job_is_found_by_a_beginning_with_a_dash_that_none_has(kinetic, made_job) -> None:
    made_job()

    with pytest.raises(JobNotFoundError, match="no job gpu- was found"):
        find.attach("gpu-")
    assert "'-cpu-' cannot be a job id" in kinetic("jobs", "status", "--", "-cpu-").stderr


def test_jobs_and_batches_of_this_machine_are_found_while_the_store_of_a_cluster_cannot_be_read(
    kinetic, made_job, made_batch, tmp_path, caplog
) -> None:
    job_id, group_id = made_job(), made_batch("succeeded")
    (tmp_path / "in-the-way").touch()
    place = ("--backend", "gke", "--context", "away", "--store", f"file://{tmp_path}/in-the-way")
    assert kinetic("profile", "create", "away", *place).exit_code == 0

    found = [kinetic(*words) for words in (("jobs", "status", job_id), ("batch", "status", group_id))]
    lists = [kinetic(noun, "list") for noun in ("jobs", "batch")]
    top, handles = kinetic("top", "--once"), find.list_jobs()

    assert [(each.exit_code, each.stdout.partition(":")[0]) for each in found] == [(0, job_id), (0, group_id)]
    assert job_id in lists[0].stdout
    assert group_id in lists[1].stdout
    assert job_id in {handle.job_id for handle in handles}
    assert "only jobs of this machine are listed" in caplog.text
    for listed in (*lists, top):
        assert listed.exit_code == 1
        assert "in-the-way" in listed.stderr
    assert kinetic("jobs", "list", "--function", "no_such_one").stdout == ""


def test_watching_without_a_terminal_advises_the_same_list_without_it(kinetic) -> None:
    for flag in ("--watch", "-w"):
        refused = kinetic("jobs", "list", "--status", "failed", flag)

        assert refused.exit_code == 2
        assert refused.stderr.endswith("next:  kinetic jobs list --status failed\n")
