"""The leader of a warm slice hands a task to the hosts that say they are ready, and to no stranger."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic._runner.pod import warm_slice
from kinetic._wire import warm_pods
from kinetic._wire.task import KEY_FILE
from kinetic._wire.warm_pods import Ready, WarmPod
from kinetic.errors import IntegrityError

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
NONCE = "0f" * 16


class Process:
    """The first process of a leader: it forks, and reaps."""

    def __init__(self, page: WarmPod, base: Path) -> None:
        self.leader = warm_slice.Leader(page, base)
        self.children: dict[int, Callable[[int], None]] = {}

    def fork(self, do: Callable[[], int], then: Callable[[int], None]) -> int:
        pid = os.fork()
        if pid == 0:
            code = 70
            with contextlib.suppress(Exception):
                code = do()
            os._exit(code)
        self.children[pid] = then
        return pid

    def until(self, holds: Callable[[], bool]) -> None:
        limit = time.monotonic() + 15
        while not holds():
            assert time.monotonic() < limit
            select.select(self.leader.descriptors(), [], [], 0.02)
            self.leader.react(self.fork)
            for pid in list(self.children):
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.children.pop(pid)(os.waitstatus_to_exitcode(status))


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WarmPod:
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setattr(warm_pods, "HOSTS_PORT", free.getsockname()[1])
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    (tmp_path / KEY_FILE).write_bytes(KEY)
    return WarmPod("warm-1", "memory:", secret=str(tmp_path), hosts=2, leader="localhost")


@pytest.fixture
def process(page: WarmPod, tmp_path: Path) -> Iterator[Process]:
    made = Process(page, tmp_path)
    yield made
    made.leader.close()
    for pid in made.children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def follow(process: Process, page: WarmPod, told: Path, sequence: int = 3) -> list[int]:
    """Be host 1 in a process of its own; return the list that gets its exit code."""

    def stage(assignment: bytes) -> str:
        told.write_bytes(assignment)
        return ""

    codes: list[int] = []
    process.fork(lambda: warm_slice.wait_for_leader(page, 1, sequence, stage), codes.append)
    return codes


def test_a_task_reaches_the_other_host_as_it_was_assigned(process: Process, page: WarmPod, tmp_path: Path) -> None:
    (tmp_path / "assignment").write_bytes(b"what to do " * 10_000)
    codes = follow(process, page, tmp_path / "told")
    process.until(lambda: process.leader.is_complete)

    process.leader.hand_over(tmp_path / "assignment", 3, process.fork)
    process.until(lambda: bool(codes))

    assert (codes, (tmp_path / "told").read_bytes()) == ([warm_slice.TOLD], b"what to do " * 10_000)
    assert not process.leader.is_complete


def test_a_host_that_is_done_with_a_task_is_not_given_it_again(process: Process, page: WarmPod, tmp_path: Path) -> None:
    (tmp_path / "assignment").write_bytes(b"what to do")
    codes = follow(process, page, tmp_path / "told", sequence=4)
    process.until(lambda: process.leader.is_complete)

    process.leader.hand_over(tmp_path / "assignment", 3, process.fork)

    assert (process.leader.is_complete, codes) == (True, [])


def test_a_leader_that_ends_takes_the_others_along(process: Process, page: WarmPod, tmp_path: Path) -> None:
    codes = follow(process, page, tmp_path / "told")
    process.until(lambda: process.leader.is_complete)

    process.fork(process.leader.send_end, lambda _: None)
    process.until(lambda: bool(codes))

    assert codes == [warm_slice.ENDS]


def test_a_stranger_does_not_count_as_a_host_and_a_host_that_is_gone_no_longer(
    process: Process, page: WarmPod, tmp_path: Path
) -> None:
    with socket.create_connection(("localhost", warm_pods.HOSTS_PORT)) as stranger, stranger.makefile("rb") as lines:
        process.until(lambda: bool(process.children))
        nonce = warm_pods.leader_nonce(lines.readline())
        stranger.sendall(Ready(1, 0, NONCE).to_bytes(OTHER, nonce) + b"\n")
        process.until(lambda: not process.children)
        counted = process.leader.is_complete
    follow(process, page, tmp_path / "told")
    process.until(lambda: process.leader.is_complete)
    (pid,) = process.children

    os.kill(pid, 9)
    process.until(lambda: not process.leader.is_complete)

    assert not counted


def test_what_is_handed_over_is_hidden_sealed_and_good_for_one_host() -> None:
    message = warm_pods.handed_over(b"a secret value", KEY, NONCE)

    assert b"secret" not in message
    assert b"a secret value" not in message
    assert warm_pods.assignment_from_leader(message, KEY, NONCE) == b"a secret value"
    assert warm_pods.assignment_from_leader(warm_pods.end_request(KEY, NONCE), KEY, NONCE) == b""
    for key, nonce in ((OTHER, NONCE), (KEY, "f0" * 16)):
        with pytest.raises(IntegrityError):
            warm_pods.assignment_from_leader(message, key, nonce)
        with pytest.raises(IntegrityError):
            warm_pods.assignment_from_leader(warm_pods.end_request(KEY, NONCE), key, nonce)


def test_strangers_cost_few_processes_and_hosts_join_once_they_are_gone(
    process: Process, page: WarmPod, tmp_path: Path
) -> None:
    come = f"kept = [socket.create_connection(('localhost', {warm_pods.HOSTS_PORT})) for _ in range(30)]"
    words = [sys.executable, "-c", f"import socket, time; {come}; time.sleep(60)"]
    strangers = subprocess.Popen(words)  # what we forked would keep connections of ours open
    process.until(lambda: len(process.children) == page.hosts + 8)
    for _ in range(5):
        process.leader.react(process.fork)
    assert len(process.children) == page.hosts + 8

    strangers.kill()
    strangers.wait()
    follow(process, page, tmp_path / "told")

    process.until(lambda: process.leader.is_complete)
