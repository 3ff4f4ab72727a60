"""Which batch is meant, and what is told of one, whatever its size."""

from __future__ import annotations

import functools
import json
import os

import pytest

from kinetic._batches import batch_handle, driver
from kinetic._batches.state import Poll
from kinetic._cli import shared_options
from kinetic._stores.files import FileStore
from kinetic._wire import keys
from kinetic.errors import StoreUnreachableError


def test_a_batch_is_meant_by_its_id_the_beginning_of_it_or_as_the_newest(kinetic, made_batch) -> None:
    old, new = made_batch("succeeded", created=1e9), made_batch("succeeded", "failed")

    for word, meant in ((old, old), (new, new), ("@last", new), ("-", new)):
        assert kinetic("batch", "status", word).stdout.startswith(f"{meant}: ")
    unique = next(new[:length] for length in range(5, 13) if not old.startswith(new[:length]))
    assert kinetic("batch", "status", unique).stdout.startswith(f"{new}: ")


def test_batches_are_listed_newest_first_and_only_so_many(kinetic, made_batch) -> None:
    made = [made_batch("succeeded", created=1e9 + number) for number in range(4)]

    every = json.loads(kinetic("batch", "list", "--json").stdout)["batches"]
    two = json.loads(kinetic("batch", "ls", "--limit", "2", "--json").stdout)["batches"]

    assert [page["group_id"] for page in every] == made[::-1]
    assert every[:2] == two


def test_a_home_without_batches_says_how_one_is_made(kinetic) -> None:
    told = kinetic("batch", "list")

    assert (told.exit_code, told.stdout) == (0, "")
    assert "run_async_map" in told.stderr
    assert json.loads(kinetic("batch", "list", "--json").stdout)["batches"] == []


def test_a_batch_that_cannot_be_read_does_not_hide_the_others(kinetic, made_batch, home) -> None:
    good, bad = made_batch("succeeded"), made_batch("succeeded")
    (home / "store" / "_groups" / bad / "manifest.json").write_text("{")

    told = kinetic("batch", "list")

    assert told.exit_code == 0
    assert good in told.stdout
    assert bad in told.stderr


def test_inputs_that_were_never_submitted_wait_for_somebody_who_does(kinetic, made_batch, monkeypatch) -> None:
    monkeypatch.setattr(batch_handle, "Poll", functools.partial(Poll, 0.05))  # else a driver may come for ten seconds
    group_id = made_batch("succeeded", "", "")

    listed, shown, results = (kinetic("batch", *words) for words in (["list"], ["status", group_id], ["results", "-"]))

    assert "1 succeeded, 2 not submitted  none" in listed.stdout
    assert "2 inputs are not submitted, and no process drives this batch" in shown.stderr
    assert results.stdout == "[0] 0\n"
    assert results.exit_code == 125
    for told in (listed, shown, results):
        assert f"kinetic batch resume {group_id}" in told.stderr


def test_ctrl_c_says_how_a_batch_is_resumed_though_its_store_does_not_answer(kinetic, made_batch, monkeypatch) -> None:
    group_id = made_batch("succeeded", "", "")

    def interrupted(*_: object, **__: object) -> None:
        monkeypatch.setattr(FileStore, "entries", away)
        raise KeyboardInterrupt

    def away(*_: object, **__: object) -> None:
        raise StoreUnreachableError("the store does not answer")

    monkeypatch.setattr(driver, "resume_batch", interrupted)

    told = kinetic("batch", "resume", group_id)

    assert f"detached from {group_id}: 1 succeeded, 2 not submitted\n" in told.stderr
    assert f"to submit the rest: kinetic batch resume {group_id}\n" in told.stderr


def test_a_look_at_a_batch_costs_the_same_number_of_listings_whatever_its_size(
    kinetic, made_batch, monkeypatch
) -> None:
    listed: list[str] = []
    real = FileStore.entries

    def entries(self, prefix: str):
        listed.append(prefix)
        return real(self, prefix)

    monkeypatch.setattr(FileStore, "entries", entries)
    made_batch(*["succeeded"] * 3)
    kinetic("batch", "list")
    few = len(listed)
    made_batch(*["succeeded"] * 60)
    listed.clear()

    kinetic("batch", "list", "--limit", "1")

    assert len(listed) == few


def test_a_result_that_cannot_be_opened_does_not_hide_the_others(kinetic, made_batch, home) -> None:
    group_id = made_batch("succeeded", "succeeded", "succeeded")
    shown = json.loads(kinetic("batch", "status", group_id, "--json").stdout)["jobs"]
    file = home / "store" / shown[1]["job_id"] / "result.pkl"
    file.write_bytes(b"x" + file.read_bytes()[1:])

    told = kinetic("batch", "results", group_id)

    assert told.stdout == "[0] 0\n[2] 20\n"
    assert told.exit_code == 125
    assert "[1] input x=1" in told.stderr


def test_what_was_collected_says_so_and_is_no_failure_of_the_job(kinetic, made_batch) -> None:
    group_id = made_batch("succeeded", "succeeded")
    kinetic("batch", "results", group_id, "--cleanup")

    again = kinetic("batch", "results", group_id)

    assert (again.exit_code, "[result-missing]" in again.stderr) == (1, True)
    shown = json.loads(kinetic("batch", "results", group_id, "--json").stdout)
    assert [each["error"]["code"] for each in shown["results"]] == ["collected"] * 2


def test_save_replaces_nothing_by_itself_and_leaves_nothing_half_written(kinetic, made_batch, tmp_path) -> None:
    group_id, file = made_batch("succeeded"), tmp_path / "values.pkl"
    file.write_text("mine")

    os.mkfifo(device := tmp_path / "device")  # as root, /dev/null would be a file from then on

    refused = kinetic("batch", "results", group_id, "--save", str(file))
    kept = kinetic("batch", "results", group_id, "--save", str(device), "--force")
    forced = kinetic("batch", "results", group_id, "--save", str(file), "--force")

    assert (refused.exit_code, "[file-exists]" in refused.stderr) == (2, True)
    assert (kept.exit_code, device.is_fifo(), "is not a regular file" in kept.stderr) == (2, True, True)
    assert forced.exit_code == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".values")] == []


@pytest.mark.parametrize(("answer", "exit_code", "there"), [("y\n", 0, False), ("n\n", 0, True), ("", 130, True)])
def test_a_person_is_asked_before_a_batch_goes(answer, exit_code, there, kinetic, made_batch, monkeypatch) -> None:

    group_id = made_batch("succeeded", "failed")
    monkeypatch.setattr(shared_options, "is_interactive", lambda: True)

    told = kinetic("batch", "cleanup", group_id, input=answer)

    assert told.exit_code == exit_code
    assert "with 2 jobs, with 1 uncollected result?" in told.stderr
    assert (group_id in kinetic("batch", "list").stdout) is there


def test_the_tab_key_offers_batches_newest_first(made_batch, home) -> None:
    made = [made_batch("succeeded") for _ in range(3)]
    for when, group_id in enumerate(made):  # three of one moment have no order
        os.utime(home / "store" / keys.group_manifest(group_id), (when, when))

    assert shared_options.complete_batches(None, None, "") == ["@last", *made[::-1]]
    assert shared_options.complete_batches(None, None, made[1]) == [made[1]]


def test_the_tab_key_offers_nothing_where_there_is_nothing(home) -> None:
    assert shared_options.complete_batches(None, None, "") == []


@pytest.mark.parametrize(
    ("states", "saved"),
    [
        (["failed", "failed"], "0 of 2 results"),
        (["succeeded", "failed"], "1 of 2 results"),
        (["succeeded", "succeeded"], "2 results"),
    ],
)
def test_saved_results_are_counted_without_those_that_failed(states, saved, kinetic, made_batch, tmp_path) -> None:
    told = kinetic("batch", "results", made_batch(*states), "--save", str(tmp_path / "b.pkl"))

    assert f"saved {saved} to " in told.stderr


def test_a_batch_of_this_machine_is_found_while_a_profile_selects_a_cluster(kinetic, made_batch, tmp_path) -> None:
    group_id = made_batch("succeeded", "succeeded")
    place = ("--backend", "gke", "--context", "away", "--store", f"file://{tmp_path}/bucket")
    assert kinetic("profile", "create", "away", *place).exit_code == 0

    listed = json.loads(kinetic("batch", "list", "--json").stdout)["batches"]
    told = [kinetic("batch", "status", word) for word in (group_id, group_id[:8], "@last")]
    missing = kinetic("batch", "status", "grp-00000000")

    assert [page["group_id"] for page in listed] == [group_id]
    assert all(each.stdout.startswith(f"{group_id}: 2 succeeded") for each in told)
    assert batch_handle.attach_batch(group_id).results(cleanup=False) == [0, 10]
    assert f"{tmp_path}/bucket and file://" in missing.stderr


def test_the_command_that_confirms_keeps_every_option_and_names_the_batch_that_was_shown(kinetic, made_batch) -> None:
    group_id = made_batch("succeeded")

    refused = kinetic("batch", "cleanup", "@last", "--no-gcs")

    assert refused.exit_code == 2
    assert refused.stderr.endswith(f"next:  kinetic batch cleanup {group_id} --no-gcs --yes\n")


def test_the_id_of_a_job_leads_to_the_command_for_jobs(kinetic) -> None:
    for words, meant in ((["results"], "result"), (["cancel"], "cancel"), (["resume"], "status")):
        refused = kinetic("batch", *words, "cpu-train-20261120-134402-1f0c9ab")

        assert refused.exit_code == 2
        assert refused.stderr.endswith(f"next:  kinetic jobs {meant} cpu-train-20261120-134402-1f0c9ab\n")


def test_the_name_of_a_batch_leads_to_the_command_for_batches(kinetic, made_batch) -> None:
    group_id = made_batch("succeeded", name="my sweep")

    for word, meant in (("result", "results"), ("cancel", "cancel"), ("status", "status")):
        refused = kinetic("jobs", word, "my sweep")

        assert f"why:   it is the name of the batch {group_id}; this command takes a job\n" in refused.stderr
        assert refused.stderr.endswith(f"next:  kinetic batch {meant} {group_id}\n")
