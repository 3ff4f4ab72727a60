"""Somebody who can write to a store changes the log of a job that has ended: it is shown, and never in silence."""

from __future__ import annotations

import os

import pytest

from kinetic._config import home
from kinetic._jobs import find, locate, logs, wait
from kinetic._wire import digests, documents, keys, outcomes
from kinetic._wire.outcomes import AttemptNote
from kinetic.errors import BackendUnavailableError

LINES = "".join(f"line {number}\n" for number in range(20_000))
ATTACKS = {
    "one byte": lambda data: b"L" + data[1:],
    "the end": lambda data: data[:-2] + b"?\n",
    "added": lambda data: data + b"accuracy 0.99\n",
    "cut": lambda data: data[:-100],
    "replaced": lambda _: b"nothing happened\n",
}
COMMANDS = {
    "logs": ["jobs", "logs"],
    "logs --tail": ["jobs", "logs", "--tail", "3"],
    "logs --follow": ["jobs", "logs", "--follow"],
    "explain": ["jobs", "explain"],
}


@pytest.fixture
def store(folder_or_bucket, home, monkeypatch):
    """Return the store that this caller's jobs lie in, and in which others write."""
    monkeypatch.setenv("KINETIC_STORE", folder_or_bucket.url)
    return folder_or_bucket


def changed(job_id: str) -> str:
    return f"kinetic: the log of {job_id} was changed after the job ended: "


@pytest.mark.parametrize("attack", [*ATTACKS, "another segment"])
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_that_shows_a_log_says_once_that_it_was_changed(command, attack, kinetic, made_job, store) -> None:
    job_id = made_job("failed", log=LINES, cause="exception", error={"type": "E", "message": "m"})
    place = keys.log_segment(job_id, 0, 0, 0)
    if attack == "another segment":
        store.put(keys.log_segment(job_id, 0, 0, len(LINES)), b"more\n")
    else:
        store.put(place, ATTACKS[attack](LINES.encode()))

    found = kinetic(*COMMANDS[command], job_id)

    assert [line for line in found.stderr.splitlines() if line.startswith(changed(job_id))] != []
    assert found.stderr.count(changed(job_id)) == 1
    assert "was changed" not in found.stdout


@pytest.mark.parametrize("noted", [True, False])
def test_a_log_of_an_attempt_after_the_one_with_the_verdict_is_neither_shown_nor_kept(
    noted, kinetic, made_job, store
) -> None:
    job_id = made_job("succeeded", log=LINES)
    for attempt in (0, 1) if noted else (0,):
        store.put(keys.attempt(job_id, attempt), b"{}")
    store.put(keys.log_segment(job_id, 1, 0, 0), b"accuracy 0.99\n")

    shown = kinetic("jobs", "logs", job_id)
    collected = kinetic("jobs", "result", job_id, "--cleanup")
    kept = kinetic("jobs", "logs", job_id)

    assert collected.exit_code == 0
    assert shown.stdout == kept.stdout == LINES
    assert "attempt           0" in kinetic("jobs", "show", job_id).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_of_an_honest_log_nothing_is_said(command, kinetic, made_job) -> None:
    job_id = made_job("failed", log=LINES, cause="exception", error={"type": "E", "message": "m"})

    found = kinetic(*COMMANDS[command], job_id)

    assert "changed" not in found.stderr


def test_a_log_that_was_deleted_is_missed(kinetic, made_job, store) -> None:
    job_id = made_job(log="words\n")
    store.delete(keys.log_segment(job_id, 0, 0, 0))

    found = kinetic("jobs", "logs", job_id)

    assert f"{changed(job_id)}0 of its 6 bytes are there" in found.stderr


def test_who_wants_no_warnings_is_told_too(kinetic, made_job, store, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "ERROR")
    job_id = made_job(log="words\n")
    store.put(keys.log_segment(job_id, 0, 0, 0), b"WORDS\n")

    assert changed(job_id) in kinetic("jobs", "logs", job_id).stderr


def test_a_handle_says_it_as_well(made_job, store, capsys) -> None:
    job_id = made_job(log="words\n")
    store.put(keys.log_segment(job_id, 0, 0, 0), b"WORDS\n")
    job = find.attach(job_id)

    assert (job.logs(), job.tail(1)) == ("WORDS\n", "WORDS")
    assert capsys.readouterr().err.count(changed(job_id)) == 2


def test_a_log_that_nobody_sealed_is_shown_without_a_word(kinetic, made_job) -> None:
    job_id = made_job(log="words\n", logs=())

    found = kinetic("jobs", "logs", job_id)

    assert (found.stdout, found.stderr) == ("words\n", "")


@pytest.mark.parametrize("status", ["cancelled", ""])
def test_the_log_of_a_cancelled_job_is_read_from_its_store_while_its_cluster_does_not_answer(
    status, made_job, monkeypatch
) -> None:
    job = find.attach(made_job(status, log="words\n", logs=(), backend="gke", zone="us-central1-a"))

    def no_answer(_):
        raise BackendUnavailableError("the cluster does not respond")

    monkeypatch.setattr(locate, "backend_of", no_answer)

    if status:
        assert logs.text_of(logs.log_of(job)) == "words\n"
    else:  # it may run, and then this is not all
        with pytest.raises(BackendUnavailableError):
            logs.log_of(job)


@pytest.mark.parametrize("options", [(), ("--timestamps",), ("--since", "2020-01-01"), ("--attempt", "0")])
def test_the_log_of_a_job_that_has_ended_is_read_while_its_cluster_does_not_answer(
    options, kinetic, made_job, monkeypatch
) -> None:
    job_id = made_job(log="words\n", backend="gke", zone="us-central1-a")

    def no_answer(_):
        raise BackendUnavailableError("the cluster does not respond")

    monkeypatch.setattr(locate, "backend_of", no_answer)

    assert kinetic("jobs", "logs", job_id, *options).stdout.endswith("words\n")


@pytest.mark.parametrize("honest", [True, False])
def test_the_log_of_an_attempt_that_was_tried_again_is_sealed_in_its_note(honest, kinetic, made_job, store) -> None:
    job_id = made_job(log="", attempt=1)
    key = documents.job_key(home.own_key(locate.home())[1], job_id, store.url)
    hasher = digests.LogHasher()
    hasher.update(b"first\n")
    sealed = hasher.digest(0, 0)
    logs_ = [{**vars(sealed), "blocks": []}]
    store.put(
        keys.attempt(job_id, 0), AttemptNote(job_id, 0, "m", 1.0, details={outcomes.LOGS_DETAIL: logs_}).to_bytes(key)
    )
    store.put(keys.attempt(job_id, 1), AttemptNote(job_id, 1, "m", 1.0).to_bytes(key))
    store.put(keys.log_segment(job_id, 0, 0, 0), b"first\n" if honest else b"First\n")

    found = kinetic("jobs", "logs", job_id, "--attempt", "0")

    assert (changed(job_id) in found.stderr) is not honest


def test_a_verdict_that_somebody_exchanged_vouches_for_no_log(kinetic, made_job, store) -> None:
    job_id = made_job(log="words\n")
    whole = bytearray(store.get(keys.result(job_id)))
    whole[-30] ^= 1
    store.put(keys.result(job_id), bytes(whole))

    found = kinetic("jobs", "logs", job_id)

    assert f"whether the log of {job_id} was changed is unknown" in found.stderr


@pytest.mark.parametrize("at", [5, (3 << 20) + 1, (13 << 20) + 2])
def test_of_a_long_log_every_byte_counts_where_all_of_it_is_read(at, made_job, store, capsys) -> None:
    whole = bytearray(os.urandom(1 << 16).hex().encode() * (14 * 8))
    job_id = made_job(log=whole.decode())
    whole[at] ^= 1
    store.put(keys.log_segment(job_id, 0, 0, 0), bytes(whole))
    job = find.attach(job_id)

    follower = wait.make_follower(job, attempt=lambda: 0)
    assert sum(map(len, follower.new_bytes(last=True))) == len(whole)
    assert capsys.readouterr().err.count(changed(job_id)) == 1
    assert len(logs.log_of(job).read(0, len(whole))) == len(whole)
    assert capsys.readouterr().err.count(changed(job_id)) == 1
