"""What a pod writes to its container's output: the log, and between its lines what the parent says."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic._runner.pod import log_pump
from kinetic._runner.pod.log_pump import Copier, LogSpool
from kinetic._wire import pod_log_format
from kinetic._wire.pod_log_format import Claim, Reader

CLAIMED = pod_log_format.runner_lines(pod_log_format.claim_line(Claim("job", 0, 0), 1))


class Output:
    """A pod's output: a pipe, a spool, and whoever copies."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.spool = LogSpool(self.log)
        self.ear, mouth = os.pipe()
        self.mouth = os.fdopen(mouth, "wb", buffering=0)
        self.copier = Copier(self.spool, mouth)
        self.read = b""

    def prints(self, data: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(data)

    def until(self, wanted: bytes) -> bytes:
        """Read until something was written; return all that was."""
        while wanted not in self.read:
            self.read += os.read(self.ear, 1 << 16)
        return self.read

    def ends(self) -> bytes:
        """End it, and return all that was written, as far as it was not read."""
        self.copier.announce_the_end()
        rest = bytearray()
        reading = threading.Thread(target=lambda: [rest.extend(data) for data in iter(self._more, b"")])
        reading.start()
        self.copier.join(20)
        self.mouth.close()
        reading.join(20)
        return self.read + bytes(rest)

    def _more(self) -> bytes:
        return os.read(self.ear, 1 << 16)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    made = Output(tmp_path)
    yield made
    made.copier.announce_the_end()
    os.close(made.ear)
    if not made.mouth.closed:
        made.copier.join(20)
        made.mouth.close()


def log_of(written: bytes) -> bytes:
    return Reader().read(CLAIMED + written)


def test_what_is_said_comes_between_two_lines(output: Output) -> None:
    output.prints(b"one\ntw")
    output.copier.start()
    output.until(b"tw")

    assert output.copier.take(b"kinetic| hello\n")
    output.prints(b"o\nthree\n")

    assert output.until(b"three\n") == b"one\ntwo\nkinetic| hello\nthree\n"


def test_what_is_said_does_not_wait_for_lines(output: Output) -> None:
    output.prints(b"one\n")
    output.copier.start()
    output.until(b"one\n")

    output.copier.take(b"kinetic| hello\n")

    assert output.until(b"hello\n") == b"one\nkinetic| hello\n"


def test_what_is_said_after_the_end_was_announced_comes_last(output: Output) -> None:
    output.prints(b"x\n" * 100_000 + b"no end")
    output.copier.announce_the_end()
    output.copier.take(b"kinetic| the verdict\n")

    output.copier.start()

    written = output.ends()
    assert written == b"x\n" * 100_000 + b"no endkinetic|-\nkinetic| the verdict\n"
    assert log_of(written) == output.log.read_bytes()


def test_after_the_end_lines_are_refused_and_the_last_line_can_be_ended(output: Output) -> None:
    output.prints(b"no end")
    output.copier.start()
    assert output.ends() == b"no end"

    assert not output.copier.take(b"kinetic| late\n")
    assert output.copier.end_line() == b"kinetic|-\n"
    assert output.copier.end_line() == b""


def test_what_looks_like_ours_is_marked_as_the_users(output: Output) -> None:
    output.prints(b"kinetic| not ours\r\n")
    output.copier.start()

    written = output.ends()

    assert written == b"kinetic|=kinetic| not ours\r\r\n"
    assert log_of(written) == b"kinetic| not ours\r\n"


def test_where_bytes_are_left_out_a_line_says_so(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_pump, "MOST_BEHIND", 4)
    output.prints(b"0123456789\n")
    output.copier.start()

    written = output.ends()

    assert written.startswith(b"kinetic| left out here: 7 bytes")
    assert written.endswith(b"789\n")
    assert log_of(written) == b""


def test_nobody_who_reads_does_not_keep_anything_from_ending(tmp_path: Path) -> None:
    spool = LogSpool(tmp_path / "log")
    ear, mouth = os.pipe()
    os.close(ear)
    copier = Copier(spool, mouth)
    copier.take(b"kinetic| one\n")
    (tmp_path / "log").write_bytes(b"x" * 200_000)
    copier.announce_the_end()

    copier.start()
    copier.join(20)

    assert not copier.is_alive()
    os.close(mouth)


class Voice:
    """Takes lines as long as it is open."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open, self.taken = is_open, b""

    def take(self, lines: bytes) -> bool:
        self.taken += lines if self.is_open else b""
        return self.is_open

    def end_line(self) -> bytes:
        return b"kinetic|-\n"

    def drain(self, seconds: float) -> None:
        """Have nothing to write."""


def test_lines_go_through_whoever_writes_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    voice = Voice(is_open=True)
    monkeypatch.setattr(log_pump, "_output", voice)

    log_pump.say("one\ntwo")

    assert voice.taken == b"kinetic| one\nkinetic| two\n"
    assert capfd.readouterr().out == ""


def test_after_the_log_lines_go_straight_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(log_pump, "_output", Voice(is_open=False))

    log_pump.say("one")

    assert capfd.readouterr().out == "kinetic|-\nkinetic| one\n"
