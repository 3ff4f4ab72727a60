"""`kinetic up` and `kinetic down` are killed, refused and cut off at each of their calls, and run again: the same end.

Killed is a process before each call from the first write on, and after the effect of each: the call that waits for an
operation is one of them, so "before its wait" is too. Refused and cut off is each call, reads included: each read by a
third of the faults. Of all these a sample is drawn; in `make nightly` they all run.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.cluster_maker import Killed, Maker, impatient, killed_at
from servers.google_cloud import Call, Fault, GoogleCloud, Refusal

from kinetic.errors import ClusterError, KineticError

FAULTS = {
    "403": Fault(status=403, word="PERMISSION_DENIED"),
    "409": Fault(status=409, word="ABORTED"),
    "412": Fault(status=412, word="conditionNotMet"),
    "429": Fault(status=429, retry_after="3"),
    "500": Fault(status=500),
    "503": Fault(status=503),
    "503 for ever": Fault(status=503, times=-1),
    "reset": Fault("reset"),
    "time-out": Fault("time-out"),
    "truncated": Fault("truncated"),
    "a page of HTML": Fault("html", status=200),
    "a page of HTML, 502": Fault("html", status=502),
}
FOREIGN = "other"
EACH = 3  # of the calls, one is killed by a test: there are as many tests


@pytest.fixture
def project() -> Iterator[Callable[[], Maker]]:
    """Return a function that makes a project with things of somebody else in it, and who works on it."""
    open_: list[GoogleCloud] = []

    def close() -> None:
        while open_:
            open_[0].close()
            assert open_.pop(0).wrong == []

    def make() -> Maker:
        close()  # the one before is done
        cloud = GoogleCloud()
        open_.append(cloud)
        cloud.compute.add("networks", FOREIGN)
        cloud.storage.add(FOREIGN, labels={"owner": "somebody"})
        cloud.container.add("us-central1", FOREIGN)
        cloud.projects.policy.grant("roles/editor", "user:somebody@example.com")
        return Maker(cloud)

    yield make
    close()


def up(maker: Maker) -> None:
    maker.up("v5litepod-4", standard=True, registry=True, limits=(("tpu", 16),))


def down(maker: Maker) -> None:
    remains = maker.down()
    if remains.errors:
        raise remains.errors[0]
    if remains.names:  # the command exits with 1
        raise ClusterError(f"left: {remains.names}")


def made(project: Callable[[], Maker]) -> Maker:
    maker = project()
    up(maker)
    maker.cloud.forget()
    return maker


# Policies are changed side by side: one that meets another change is asked again, in some runs and not in others.
ASKED_AGAIN = 6

COMMANDS: dict[str, tuple[Callable[[Callable[[], Maker]], Maker], Callable[[Maker], Any]]] = {
    "up": (lambda project: project(), up),
    "down": (made, down),
}


def calls_of(command: str, project: Callable[[], Maker]) -> tuple[list[Call], dict[str, Any]]:
    """Return the calls of a command, in order, and what exists after it."""
    prepare, run = COMMANDS[command]
    maker = prepare(project)
    run(maker)
    return maker.cloud.calls, maker.state()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("begin", range(EACH), ids=lambda begin: f"every {EACH}rd call from {begin}")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after its effect"])
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_any_call_and_run_again_the_end_is_the_same(
    command: str, after: bool, begin: int, project: Callable[[], Maker]
) -> None:
    calls, end = calls_of(command, project)
    prepare, run = COMMANDS[command]
    first = next(number for number, call in enumerate(calls) if call.writes)
    for index in range(first + begin, len(calls), EACH):
        maker = prepare(project)
        try:
            with killed_at(index, after=after):
                run(maker)
        except Killed:
            run(maker)
        else:
            assert index >= len(calls) - ASKED_AGAIN, f"nothing was killed at call {index} of {len(calls)}"

        assert maker.state() == end, f"killed at call {index}"
        maker.cloud.forget()
        maker.cloud.read_only = True
        run(maker)
        assert maker.cloud.writes == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after its effect"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_a_write_is_answered_the_end_is_the_same(
    command: str, fault: str, after: bool, project: Callable[[], Maker]
) -> None:
    calls, end = calls_of(command, project)
    prepare, run = COMMANDS[command]
    for index in [number for number, call in enumerate(calls) if call.writes]:
        maker, broken = prepare(project), FAULTS[fault]._replace(after=after)
        where = {"method": calls[index].method} if broken.times < 0 else {"at": index}
        maker.cloud.faults = [broken._replace(**where)]
        with impatient():
            with contextlib.suppress(KineticError):  # of ours, and no other: whatever else it raises fails the test
                run(maker)
            maker.cloud.faults = []
            run(maker)

        assert maker.state() == end, f"{fault} at call {index}"


def reads_of(calls: list[Call]) -> list[int]:
    """Return the index of each read; of those that are repeated, as of an operation, the first and the last."""
    indices: dict[tuple[str, str], list[int]] = {}
    for number, call in enumerate(calls):
        if not call.writes:
            path = re.sub(r"(operations)/[^/]+", r"\1/OPERATION", call.path)
            indices.setdefault((call.method, path), []).append(number)
    return sorted({number for found in indices.values() for number in (found[0], found[-1])})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_a_read_is_answered_nothing_foreign_is_touched_and_the_end_is_the_same(
    command: str, fault: str, share: int, project: Callable[[], Maker]
) -> None:
    calls, end = calls_of(command, project)
    prepare, run = COMMANDS[command]
    for index in reads_of(calls)[[*FAULTS].index(fault) % share :: share]:
        maker, broken = prepare(project), FAULTS[fault]
        where = {"method": calls[index].method} if broken.times < 0 else {"at": index}
        maker.cloud.faults = [broken._replace(**where)]
        with impatient():
            with contextlib.suppress(KineticError):
                run(maker)
            maker.cloud.faults = []
            run(maker)

        assert maker.state() == end, f"{fault} at call {index}: {calls[index]}"


FATES = {"fails half-way": ("error", "no machines"), "vanishes": "vanish", "never ends": "never"}
OPERATIONS = {
    "up": (
        "batchEnable",
        "networks.insert",
        "subnetworks.insert",
        "routers.insert",
        "CREATE_CLUSTER",
        "CREATE_NODE_POOL",
    ),
    "down": ("DELETE_CLUSTER", "routers.delete", "subnetworks.delete", "networks.delete"),
}


@pytest.mark.sampled(15)
@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize(("command", "operation"), [(name, each) for name in OPERATIONS for each in OPERATIONS[name]])
def test_however_an_operation_ends_the_same_command_ends_it(
    command: str, operation: str, fate: str, project: Callable[[], Maker]
) -> None:
    _, end = calls_of(command, project)
    prepare, run = COMMANDS[command]
    maker = prepare(project)
    cloud = maker.cloud
    if operation == "batchEnable":
        cloud.enabled = {"serviceusage.googleapis.com", "compute.googleapis.com"}
    cloud.fates[operation] = FATES[fate]

    with contextlib.suppress(KineticError):
        run(maker)
    cloud.fates.clear()
    for each in [*cloud.container.operations]:  # Google ends what it began
        with contextlib.suppress(Refusal):
            while cloud.container._operation(each)["status"] != "DONE":
                pass
    run(maker)

    assert maker.state() == end
