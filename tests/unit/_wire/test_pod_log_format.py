"""The output of a container gives back the log that was written into it, byte for byte, whatever runtime is between."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kinetic._wire import pod_log_format
from kinetic._wire.pod_log_format import Claim, Reader, Writer

CLAIM = Claim("job", 2, 1)
BEGINNING = pod_log_format.runner_lines("job job") + pod_log_format.runner_lines(pod_log_format.claim_line(CLAIM, 4))
PIECES = [
    b"kinetic|", b"kinetic", b"k", b"\n", b"\n\n", b"\r", b"\r\n", b"-", b"=", b" ", b"x", b"\xff", b"kinetic|-",
    b"kinetic|=", BEGINNING, pod_log_format.runner_lines(pod_log_format.VERDICT),
    pod_log_format.runner_lines(pod_log_format.LEFT_OUT),
]  # fmt: skip


def as_containerd_keeps_it(output: bytes) -> bytes:
    """Drop one carriage return before each line break."""
    *lines, rest = output.split(b"\n")
    return b"".join(line.removesuffix(b"\r") + b"\n" for line in lines) + rest


RUNTIMES = {"containerd": as_containerd_keeps_it, "others": lambda output: output}
each_runtime = pytest.mark.parametrize("runtime", RUNTIMES.values(), ids=list(RUNTIMES))


def written(log: bytes) -> bytes:
    """Return a container's whole output."""
    writer = Writer()
    return (
        BEGINNING
        + writer.write(log)
        + writer.write(b"", last=True)
        + writer.end_line()
        + pod_log_format.runner_lines("bye")
    )


def read(output: bytes) -> bytes:
    return Reader().read(output)


@each_runtime
@pytest.mark.parametrize(
    "log",
    [
        b"", b"one\n", b"one\ntwo\n", b"no end", b"\n\n\n", b"dos\r\nlines\r\n", b"50 %\r100 %\r", b"\r\r\n\r\n",
        b"\xff\x00\n", b"kinetic| mine\n" * 100_000,
        b"kinetic| not ours\n", b"kinetic|", b"kinetic|-", b"kinetic|-\n", b"a kinetic|-=\n", b"kinetic|=kinetic|\n",
        b"x" * 100_000 + b"\n", b"kinetic| attempt 9 of job, host 0 of 1\r\n",
    ],
)  # fmt: skip
def test_a_log_comes_out_as_it_went_in(log: bytes, runtime) -> None:
    assert read(runtime(written(log))) == log


@each_runtime
@pytest.mark.parametrize("seed", range(300))
def test_any_log_in_any_pieces_comes_out_as_it_went_in(seed: int, runtime) -> None:
    dice = random.Random(seed)
    log = b"".join(dice.choice(PIECES) for _ in range(dice.randrange(25)))
    writer, reader, output = Writer(), Reader(), BEGINNING
    for piece in cut(log, dice):
        output += writer.write(piece)
        if writer.is_at_start and dice.random() < 0.3:
            output += pod_log_format.runner_lines("a word\nof two lines kinetic|-")
    output += writer.write(b"", last=True) + writer.end_line() + pod_log_format.runner_lines(pod_log_format.VERDICT)

    found = b"".join(reader.read(piece) for piece in cut(runtime(output), dice))

    assert found == log
    assert reader.claim == CLAIM
    assert reader.has_verdict
    assert not reader.is_lost


def cut(data: bytes, dice: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        at, before = at + dice.choice((1, 2, 3, 9, 50)), at
        yield data[before:at]


@each_runtime
def test_what_is_read_so_far_is_always_a_beginning_of_the_log(runtime) -> None:
    log = b"one\r\nkinetic|- two\rkinetic|-\nthree"
    output = runtime(written(log))

    for end in range(len(output)):
        assert log.startswith(read(output[:end]))


def test_a_whole_line_does_not_wait_for_the_next_one() -> None:
    assert read(BEGINNING + Writer().write(b"one\n")) == b"one\n"


def test_whatever_is_printed_before_the_attempt_is_named_does_not_count() -> None:
    assert read(b"a warning of the image\n" + written(b"one\n")) == b"one\n"


def test_a_log_that_names_no_attempt_is_lost() -> None:
    reader = Reader()

    assert reader.read(b"the middle of a log\n" * 10_000) == b""
    assert reader.is_lost


def test_a_user_who_prints_the_line_of_a_claim_claims_nothing() -> None:
    reader = Reader()

    reader.read(Writer().write(pod_log_format.runner_lines(pod_log_format.claim_line(CLAIM, 4))))

    assert reader.claim is None


def test_nothing_comes_after_bytes_that_are_missing() -> None:
    reader = Reader()
    gap = pod_log_format.runner_lines(f"{pod_log_format.LEFT_OUT}17 bytes")

    assert reader.read(BEGINNING + b"one\n" + gap + b"eighteen\n") == b"one\n"
    assert reader.read(b"nineteen\n") == b""
    assert reader.is_lost


def test_a_verdict_is_seen_as_soon_as_its_line_is_whole() -> None:
    reader = Reader()

    reader.read(BEGINNING + pod_log_format.runner_lines(f"{pod_log_format.VERDICT}: the job succeeded")[:-1])
    assert not reader.has_verdict
    reader.read(b"\n")
    assert reader.has_verdict
