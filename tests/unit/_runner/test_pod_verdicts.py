"""What the end of a worker in a pod means, and which host of a slice was the cause."""

from __future__ import annotations

import signal

import pytest

from kinetic._runner.supervisor import verdicts
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._wire.outcomes import Outcome

RETURNED = {"status": "succeeded"}
LEFT = {"status": "succeeded", "exited": True}
RAISED = {"status": "failed", "error": {"type": "ValueError", "module": "builtins"}}
PREEMPTED = {"status": "failed", "error": {"type": "Preempted", "module": "kinetic.errors"}}
THEIRS = {"status": "failed", "error": {"type": "Preempted", "module": "theirs"}}
AWAY = {"status": "failed", "cause": "runner", "error": {"type": "StoreUnreachableError", "module": "kinetic.errors"}}
TAMPERED = {"status": "failed", "cause": "runner", "error": {"type": "IntegrityError", "module": "kinetic.errors"}}
KILLED = Ending(status=signal.SIGKILL, phase="execute")
ENDED = Ending(status=0, phase="execute")


@pytest.mark.parametrize(
    ("word", "ending", "told", "began", "has_a_verdict"),
    [
        (RETURNED, ENDED, False, True, True),
        (RETURNED, ENDED, True, True, True),
        (LEFT, ENDED, False, True, True),
        (LEFT, ENDED, True, True, False),
        (RAISED, ENDED, False, True, True),
        (RAISED, ENDED, True, True, False),
        (PREEMPTED, ENDED, False, True, False),
        (PREEMPTED, ENDED, True, True, False),
        (THEIRS, ENDED, False, True, True),
        (AWAY, ENDED, False, False, False),
        (AWAY, ENDED, False, True, True),
        (TAMPERED, ENDED, False, False, True),
        (None, KILLED, False, True, True),
        (None, KILLED, False, False, False),
        (None, KILLED, True, True, False),
        (None, Ending(status=signal.SIGKILL, phase="execute", deadline=True), False, True, True),
        (None, Ending(status=signal.SIGSEGV, phase="order"), False, False, True),
    ],
)
def test_which_ends_are_a_verdict(
    word: dict[str, object] | None, ending: Ending, told: bool, began: bool, has_a_verdict: bool
) -> None:
    why = verdicts.reason_without_verdict(word, ending, end_requested=told, began=began)

    assert (why == "") == has_a_verdict


@pytest.mark.parametrize(
    "text",
    [
        "UNAVAILABLE: Failed to send RPC to coordination service",
        "The following tasks are unhealthy (stopped sending heartbeats)",
        "Barrier timed out. Id: jax_shutdown_barrier",
        "[Gloo] Connection closed by peer [10.0.0.3]:4321",
        "NCCL error: remote process exited or there was a network error",
        "[Errno 104] Connection reset by peer",
        "task /job:jax_worker/task:3 disconnected",
    ],
)
def test_words_that_tell_of_a_lost_peer(text: str) -> None:
    assert verdicts.is_peer_loss(failed(0, 1.0, text))
    assert verdicts.is_peer_loss(Outcome("job", "failed", error={"message": "ended by SIGABRT", "log": text}))


@pytest.mark.parametrize("text", ["invalid literal for int()", "loss is NaN", "CUDA out of memory", "no such file"])
def test_words_that_tell_of_something_else(text: str) -> None:
    assert not verdicts.is_peer_loss(failed(0, 1.0, text))


def test_the_cause_is_the_earliest_failure_that_is_no_lost_peer() -> None:
    lost, early, late = failed(0, 1.0, "heartbeat timeout"), failed(2, 2.0, "NaN"), failed(1, 3.0, "NaN")

    assert verdicts.first_failure([lost, late, early]) is early


def test_when_all_complain_of_a_peer_the_earliest_is_the_cause() -> None:
    first, second = failed(1, 1.0, "heartbeat timeout"), failed(0, 2.0, "heartbeat timeout")

    assert verdicts.first_failure([second, first]) is first


def failed(host: int, ended: float, message: str) -> Outcome:
    error = {"type": "RuntimeError", "message": message}
    return Outcome("job", "failed", host=host, ended=ended, error=error)
