"""Cancelling jobs, and cleaning up after them."""

from __future__ import annotations

import json


def test_a_cancelled_job_keeps_its_log_and_becomes_history(submit, start, kinetic) -> None:
    job_id = submit("slow", "60")
    following = start("jobs", "logs", job_id, "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == b"started\n"

    told = kinetic("jobs", "cancel", job_id)

    _, said = following.communicate(timeout=20)
    assert (told.code, told.out) == (0, "")
    assert f"{job_id} is cancelled" in told.err
    assert following.returncode == 125
    assert "was cancelled" in said.decode()
    assert kinetic("jobs", "status", job_id).out == f"{job_id}: NOT_FOUND\n"
    assert kinetic("jobs", "logs", job_id).out == "started\n"
    assert kinetic("jobs", "list").out == ""
    assert kinetic("jobs", "list", "--all").rows[0][:4] == [job_id, "slow", "CANCELLED", "cancelled"]
    assert kinetic("jobs", "result", job_id).code == 125


def test_cancelling_a_job_that_has_ended_changes_nothing(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "cancel", job_id)

    assert told.code == 0
    assert "had ended before it could be cancelled: it is SUCCEEDED" in told.err
    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"


def test_cleaning_up_removes_a_job_and_leaves_its_history(submit, kinetic, home) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    told = kinetic("jobs", "cleanup", job_id)

    assert (told.code, told.out) == (0, "")
    assert not (home / "store" / job_id).exists()
    (page,) = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    assert (page["job_id"], page["status"], page["where"]) == (job_id, "SUCCEEDED", "this machine")
    assert page["removed_at"]


def test_cleaning_up_the_resource_alone_keeps_the_result(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "result", job_id)

    assert kinetic("jobs", "cleanup", job_id, "--no-gcs").code == 0

    assert kinetic("jobs", "result", job_id).out == "{'sum': 3}\n"
    assert kinetic("jobs", "list").out == ""

    removed = kinetic("jobs", "cleanup", job_id, "--no-k8s").err
    assert removed == f"{job_id} is removed; its history: kinetic jobs list --all\n"  # no resource is kept


def test_cleaning_up_nothing_is_a_mistake_on_the_command_line(submit, kinetic) -> None:
    assert kinetic("jobs", "cleanup", submit("add"), "--no-k8s", "--no-gcs").code == 2


def test_cleaning_up_a_running_job_ends_it_and_says_so(submit, kinetic) -> None:
    job_id = submit("slow", "60")

    told = kinetic("jobs", "cleanup", job_id)

    assert told.code == 0
    assert "and was stopped" in told.err
    assert kinetic("jobs", "list").out == ""
    (page,) = json.loads(kinetic("jobs", "list", "--all", "--json").out)["jobs"]
    assert (page["status"], bool(page["removed_at"])) == ("CANCELLED", True)


def test_what_ended_is_removed_by_status_function_name_and_tag(project, kinetic) -> None:
    lines = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu", name="try-one", tags={"phase": "dev"})
        def train(x):
            return x

        @kinetic.run(accelerator="cpu")
        def other(x):
            raise ValueError(x)

        jobs = [train.run_async(1), other.run_async(2)]
        batch = train.run_async_map([3, 4], name="letters", tags={"phase": "paper"})
        batch.wait()
        for job in [*jobs, *batch.jobs]:
            try:
                job.result(cleanup=False)
            except ValueError:
                pass
            print(job.job_id)
        """
    ).splitlines()
    tried, failed, *of_batch = lines

    def found(*words: str) -> list[str]:
        told = kinetic("jobs", "cleanup", "--all", "--dry-run", "--json", *words)
        assert told.code == 0
        return sorted(page["job_id"] for page in json.loads(told.out)["jobs"])

    assert found("--status", "failed") == [failed]
    assert found("--function", "train") == sorted([tried, *of_batch])
    assert found("--name", "try-*") == [tried]
    assert found("--name", "letters") == sorted(of_batch)
    assert found("--tag", "phase=paper") == sorted(of_batch)
    assert found("--tag", "phase", "--status", "succeeded") == sorted([tried, *of_batch])
    assert found("--tag", "phase=dev", "--function", "other") == []
    assert found("--status", "cancelled", "--status", "failed") == [failed]
    assert kinetic("jobs", "cleanup", tried, "--status", "failed").code == 2

    assert kinetic("jobs", "cleanup", "--all", "--tag", "phase", "--yes").code == 0
    assert found() == [failed]
