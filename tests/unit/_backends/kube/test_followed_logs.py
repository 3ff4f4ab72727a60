"""The log of a pod that runs: its bytes at the positions of the stored log, whatever happens to connections."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from servers.container_log import ContainerLog
from servers.scripted import Scripted, page
from waiting import until

from kinetic._backends.kube import pod_logs
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.pod_logs import PodLog
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry
from kinetic._wire import pod_log_format
from kinetic._wire.pod_log_format import Claim, Writer

ODD = b"\xff\x00\n\n10 %\r100 %\r\nkinetic| mine\n" + b"x" * 100_000 + b"\n"


def claimed(attempt: int = 0, host: int = 0) -> bytes:
    return pod_log_format.runner_lines("job job") + pod_log_format.runner_lines(
        pod_log_format.claim_line(Claim("job", attempt, host), 2)
    )


@pytest.fixture
def served() -> Iterator[ContainerLog]:
    with ContainerLog() as log:
        yield log


@pytest.fixture
def client(served: ContainerLog) -> Iterator[Client]:
    with contextlib.closing(connected(served.url)) as made:
        yield made


def connected(url: str) -> Client:
    access = Access(server=url, about="the test", credential=FixedCredential())
    return Client(access, "research", Retry(4, sleep=lambda _: time.sleep(0.001)))


def opened(
    client: Client, *pods: dict[str, Any], host: int = 0, attempt: int = 0, told: list[str] | None = None
) -> Any:
    """Open a log as whoever asks once a second would."""
    say = (told if told is not None else []).append
    return until(
        lambda: pod_logs.follow_live(client, pods, host=host, attempt=attempt, on_verdict=lambda: say("verdict"))
    )


def reads(log: PodLog, wanted: bytes) -> bool:
    """Wait until a log has so many bytes; say whether they are the right ones."""
    until(lambda: log.size() >= len(wanted))
    return log.read(0, len(wanted) + 1) == wanted


def followers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "kinetic-pod-log"]


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    gc.collect()
    until(lambda: not followers())


# --------------------------------------------------------------------------------------------------------- following


def test_a_log_is_read_as_it_grows(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    log = opened(client, served.pod)
    assert reads(log, b"one\n")

    served.write(pod_log_format.runner_lines("something of ours") + b"two\n")

    assert reads(log, b"one\ntwo\n")
    assert log.read(4, 2) == b"tw"
    assert log.read(8, 10) == b""
    assert not log.is_complete


def test_bytes_are_those_of_the_spool(served: ContainerLog, client: Client) -> None:
    writer = Writer()
    served.write(claimed() + writer.write(ODD) + writer.write(b"half", last=True) + writer.end_line())

    assert reads(opened(client, served.pod), ODD + b"half")


def test_a_log_that_ends_sends_its_reader_to_the_store(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    log = opened(client, served.pod)

    served.write(b"two\n")
    served.end()

    assert reads(log, b"one\ntwo\n")
    with pytest.raises(OSError, match="no more of this log"):
        until(lambda: log.read(8, 10))
    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None


def test_each_byte_comes_once_through_cut_connections(served: ContainerLog, client: Client) -> None:
    served.write(claimed())
    log = opened(client, served.pod)
    expected = b""

    for number in range(20):
        served.write(b"line %d\n" % number)
        expected += b"line %d\n" % number
        assert reads(log, expected)
        served.cut()

    assert log.read(0, 10_000) == expected
    assert served.asked > 10


def test_a_line_that_was_cut_goes_on_where_it_was(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"x" * 70_000)
    log = opened(client, served.pod)
    assert reads(log, b"x" * 70_000)

    served.cut()
    served.write(b"y" * 70_000 + b"\n")

    assert reads(log, b"x" * 70_000 + b"y" * 70_000 + b"\n")


def test_a_server_that_is_busy_is_asked_again(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    log = opened(client, served.pod)
    assert reads(log, b"one\n")

    served.status = 503
    served.cut()
    until(lambda: served.asked > 2)
    served.status = 200
    served.write(b"two\n")

    assert reads(log, b"one\ntwo\n")


def test_a_log_that_was_rotated_meanwhile_is_not_gone_on_with(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n" * 100)
    log = opened(client, served.pod)
    assert reads(log, b"one\n" * 100)

    served.replace(b"two\n" * 1000)

    with pytest.raises(OSError, match="no more of this log"):
        until(lambda: log.read(400, 10))
    assert log.read(0, 10_000) == b"one\n" * 100
    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None


def test_a_log_that_will_be_rotated_is_left_to_the_store(
    served: ContainerLog, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "MOST_BYTES", 5_000)
    served.write(claimed() + b"one\n" * 1000)

    log = opened(client, served.pod)

    with pytest.raises(OSError, match="no more of this log"):
        until(lambda: log.read(log.size(), 1) or None)
    assert (b"one\n" * 1000).startswith(log.read(0, 10_000))
    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None


def test_bytes_that_the_pod_left_out_end_it(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n" + pod_log_format.runner_lines(f"{pod_log_format.LEFT_OUT}9 bytes") + b"three\n")

    log = opened(client, served.pod)

    with pytest.raises(OSError, match="no more of this log"):
        until(lambda: log.read(4, 1) or None)


def test_whoever_waits_is_told_of_the_verdict_once(served: ContainerLog, client: Client) -> None:
    told: list[str] = []
    served.write(claimed())
    log = opened(client, served.pod, told=told)
    assert told == []

    served.write(pod_log_format.runner_lines(f"{pod_log_format.VERDICT}: the job succeeded"))
    until(lambda: told)
    served.write(pod_log_format.runner_lines(pod_log_format.VERDICT) + b"more\n")

    assert reads(log, b"more\n")
    assert told == ["verdict"]


def test_a_verdict_that_is_there_already_is_told_at_once(served: ContainerLog, client: Client) -> None:
    told: list[str] = []
    served.write(claimed() + pod_log_format.runner_lines(pod_log_format.VERDICT))

    log = opened(client, served.pod, told=told)

    until(lambda: told)
    assert log.size() == 0


def test_the_end_of_a_log_is_followed_to_its_verdict_alone(served: ContainerLog, client: Client) -> None:
    told: list[str] = []
    served.write(claimed() + b"x" * 100_000 + b"\nkinetic|=kinetic| " + pod_log_format.VERDICT.encode() + b"\n")

    follower = pod_logs.follow_verdict(client, [served.pod], lambda: told.append("verdict"))
    until(lambda: served.open)
    assert told == []
    served.write(pod_log_format.runner_lines(pod_log_format.VERDICT))

    until(lambda: told)
    until(lambda: follower is not None and follower.is_over)
    assert (follower.size(), served.asked) == (0, 1)


def test_a_cut_or_refused_end_of_a_log_is_left_to_the_watch(served: ContainerLog, client: Client) -> None:
    served.write(claimed())
    follower = pod_logs.follow_verdict(client, [served.pod], print)
    until(lambda: served.open)

    served.cut()
    until(lambda: follower is not None and follower.is_over)
    served.status = 403
    refused = pod_logs.follow_verdict(client, [served.pod], print)
    until(lambda: refused is not None and refused.is_over)

    assert pod_logs.follow_verdict(client, [served.pod], print) is None
    assert served.asked == 2


def test_a_listener_that_fails_does_not_end_the_log(
    served: ContainerLog, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    served.write(claimed())
    log = until(lambda: pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=lambda: 1 // 0))

    served.write(pod_log_format.runner_lines(pod_log_format.VERDICT) + b"more\n")

    assert reads(log, b"more\n")
    until(lambda: "ZeroDivisionError" in caplog.text)


# ----------------------------------------------------------------------------------------------------- which log it is


def test_a_pod_that_has_not_named_its_attempt_has_no_log_yet(served: ContainerLog, client: Client) -> None:
    served.write(pod_log_format.runner_lines("job job"))
    ask = lambda: pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print)  # noqa: E731

    assert [ask() for _ in range(3)] == [None, None, None]
    served.write(claimed() + b"one\n")

    assert reads(until(ask), b"one\n")
    assert served.asked == 1


def test_what_nobody_asks_for_any_more_is_closed(
    served: ContainerLog, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "_FORGET_SECONDS", 0.01)
    served.write(pod_log_format.runner_lines("job job"))

    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None

    until(lambda: not followers())


def test_another_attempt_or_host_is_not_taken_for_the_one_asked_for(served: ContainerLog, client: Client) -> None:
    served.write(claimed(attempt=1) + b"one\n")
    until(lambda: pod_logs.follow_live(client, [served.pod], host=0, attempt=1, on_verdict=print))

    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None
    assert pod_logs.follow_live(client, [served.pod], host=1, attempt=1, on_verdict=print) is None
    assert pod_logs.snapshot(client, [served.pod], host=0, attempt=0) is None
    assert served.asked == 1


def test_a_pod_that_does_not_run_is_not_asked(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    served.end()

    assert pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print) is None
    assert pod_logs.snapshot(client, [served.pod], host=0, attempt=0) is None
    assert served.asked == 0


def test_two_readers_share_nothing(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    first, second = opened(client, served.pod), opened(client, served.pod)
    assert reads(first, b"one\n")

    first.close()
    served.write(b"two\n")

    assert reads(second, b"one\ntwo\n")
    with pytest.raises(OSError, match="no more of this log"):
        first.read(4, 1)


def test_a_log_that_is_dropped_lets_go_of_its_connection(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    log = opened(client, served.pod)
    assert reads(log, b"one\n")

    del log

    gc.collect()
    until(lambda: not followers())


def test_who_may_not_read_logs_reads_the_store(served: ContainerLog, client: Client) -> None:
    served.status = 403
    ask = lambda: pod_logs.follow_live(client, [served.pod], host=0, attempt=0, on_verdict=print)  # noqa: E731

    assert [ask() for _ in range(3)] == [None, None, None]
    assert pod_logs.snapshot(client, [served.pod], host=0, attempt=0) is None
    assert served.asked == 2


# ----------------------------------------------------------------------------------------------------------- snapshots


def test_a_snapshot_has_what_there_is_now(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + Writer().write(ODD))

    log = pod_logs.snapshot(client, [served.pod], host=0, attempt=0)

    assert log is not None
    assert log.read(0, log.size()) == ODD
    assert not log.is_complete


@pytest.mark.parametrize(
    "output", [b"", pod_log_format.runner_lines("job job"), b"rotated\n" * 10_000], ids=["new", "early", "late"]
)
def test_there_is_no_snapshot_without_the_beginning(served: ContainerLog, client: Client, output: bytes) -> None:
    served.write(output)

    assert pod_logs.snapshot(client, [served.pod], host=0, attempt=0) is None


def test_a_log_that_lost_its_beginning_is_asked_for_once(served: ContainerLog, client: Client) -> None:
    served.write(b"rotated\n" * 10_000)

    for _ in range(3):
        pod_logs.snapshot(client, [served.pod], host=0, attempt=0)

    assert served.asked == 1


def test_of_several_pods_the_one_with_the_attempt_is_read(client: Client, served: ContainerLog) -> None:
    newer = {**served.pod, "metadata": {"name": "b", "uid": "b", "creationTimestamp": "2026-11-21T11:00:00Z"}}
    outputs = {"pod-a": claimed(0) + b"first\n", "b": claimed(1) + b"second\n"}
    answers = [lambda request: page("")._replace(body=outputs[request.path.split("/")[-2]])]

    with Scripted(*answers) as server, contextlib.closing(connected(server.url)) as several:
        found = [pod_logs.snapshot(several, [served.pod, newer], host=0, attempt=each) for each in (0, 1, 2)]

    assert [log and log.read(0, 100) for log in found] == [b"first\n", b"second\n", None]


# --------------------------------------------------------------------------------------------------- what is left over


@pytest.mark.parametrize("code", [137, 143, 1, 139, 255])
def test_the_log_of_a_container_that_was_killed_as_a_whole_is_read_while_its_pod_is_there(
    served: ContainerLog, client: Client, code: int
) -> None:
    served.write(
        claimed() + b"one\n" + pod_log_format.runner_lines("something of ours") + b"two, and half of a word kine"
    )
    served.end(code)

    log = pod_logs.last_log(client, [served.pod], host=0, attempt=0)

    assert log is not None
    assert log.read(0, 100) == b"one\ntwo, and half of a word kine"


@pytest.mark.parametrize("code", [0, 82])
def test_what_a_runner_brought_into_the_store_itself_is_not_read_again(
    served: ContainerLog, client: Client, code: int
) -> None:
    served.write(claimed() + b"one\n")
    served.end(code)

    assert pod_logs.last_log(client, [served.pod], host=0, attempt=0) is None
    assert served.asked == 0


def test_the_log_of_another_attempt_or_host_is_not_mistaken_for_it(served: ContainerLog, client: Client) -> None:
    served.write(claimed(attempt=3) + b"one\n")
    served.end(137)

    assert pod_logs.last_log(client, [served.pod], host=0, attempt=2) is None
    assert pod_logs.last_log(client, [served.pod], host=1, attempt=3) is None
    assert pod_logs.last_log(client, [served.pod], host=0, attempt=3) is not None
    assert served.asked == 2  # whose log it is, is remembered


def test_of_a_pod_that_is_gone_or_runs_nothing_is_left_over(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\n")
    assert pod_logs.last_log(client, [served.pod], host=0, attempt=0) is None

    served.end(137)
    served.status = 404

    assert pod_logs.last_log(client, [served.pod], host=0, attempt=0) is None


@pytest.mark.parametrize(
    "output", [b"no beginning\n" * 9000, claimed() + pod_log_format.runner_lines(f"{pod_log_format.LEFT_OUT}9 bytes")]
)
def test_a_log_without_its_beginning_or_with_a_hole_is_not_taken(
    served: ContainerLog, client: Client, output: bytes
) -> None:
    served.write(output + b"one\n")
    served.end(137)

    log = pod_logs.last_log(client, [served.pod], host=0, attempt=0)

    assert log is None or log.size() == 0


def test_a_pod_that_has_finished_says_what_it_waits_for(served: ContainerLog, client: Client) -> None:
    served.write(claimed() + b"one\nkinetic|=kinetic| finished; waiting for Godot\n")
    assert pod_logs.waiting_reason(client, "pod-a") == ""

    served.write(pod_log_format.runner_lines("finished; waiting for credentials: 403"))
    assert pod_logs.waiting_reason(client, "pod-a") == "finished; waiting for credentials: 403"

    served.write(pod_log_format.runner_lines(f"{pod_log_format.VERDICT}: the job succeeded"))
    assert pod_logs.waiting_reason(client, "pod-a") == ""
