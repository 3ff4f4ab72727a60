"""A slice: several pods that carry out one job."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from servers.faults import Fault
from waiting import until

from kinetic._wire import digests, documents, inspection, keys
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT

from .conftest import HOST, JOB, KEY, Bucket, Pods, act, ends_of, start_all, wait_for_line


def test_the_leader_owns_the_value_of_a_slice(slices: Pods) -> None:
    act(slices, "print(f'host {host}')\nreturn host, os.environ['KINETIC_HOST_COUNT']")

    codes = ends_of(start_all(slices))

    assert codes == [0, 0, 0]
    assert slices.value() == (0, "3")
    assert [slices.log(host=host) for host in range(3)] == ["host 0\n", "host 1\n", "host 2\n"]
    assert slices.keys_below(keys.attempts(JOB)) == ["0"]


@pytest.mark.parametrize("body", ["return host", "if host == 2:\n    raise ValueError('two')\ntime.sleep(600)"])
def test_a_slice_ends_when_its_function_does_and_not_at_the_next_look(slices: Pods, body: str) -> None:
    slices.tell(poll_seconds=3600.0)
    act(slices, body)

    ends_of(start_all(slices))  # in well under a minute: hosts tell each other

    assert slices.outcome() is not None


def test_the_failure_of_a_host_is_noticed_while_the_leader_runs_and_is_told_with_its_name(slices: Pods) -> None:
    act(slices, "if host == 2:\n    raise ValueError('two')\ntime.sleep(60)")

    codes = ends_of(start_all(slices))

    assert codes == [FAILED_EXIT, 0, FAILED_EXIT]
    read = slices.outcome()
    assert (read.host, read.error["hosts"], read.cause) == (2, 3, "exception")
    assert "in act" in read.error["traceback"]
    assert repr(slices.value()) == "ValueError('two')"


def test_the_cause_is_the_host_that_does_not_complain_of_its_peers(slices: Pods, tmp_path: Path) -> None:
    act(
        slices,
        """
        if host == 0:
            open(flag, "w").close()
            raise RuntimeError("Connection reset by peer: heartbeat timed out")
        wait_for(flag)
        if host == 1:
            raise KeyError("the cause")
        time.sleep(60)
        """,
    )

    codes = ends_of(start_all(slices))

    assert codes == [FAILED_EXIT, FAILED_EXIT, 0]
    assert slices.outcome().host == 1


def test_a_host_that_fails_after_the_leader_returned_fails_the_job(slices: Pods, tmp_path: Path) -> None:
    act(
        slices,
        """
        if host == 1:
            wait_for(flag + ".go")
            raise ValueError("late")
        return host
        """,
    )
    hosts = start_all(slices)
    until(lambda: "succeeded" in str(slices.keys_below(keys.hosts(JOB, 0))))
    (tmp_path / "flag.go").touch()

    codes = ends_of(hosts)

    assert codes == [FAILED_EXIT, FAILED_EXIT, 0]
    assert slices.outcome().host == 1


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, INFRASTRUCTURE_EXIT), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_host_that_is_gone_with_or_without_a_word_leaves_no_verdict(
    slices: Pods, tmp_path: Path, how: signal.Signals, code: int
) -> None:
    act(
        slices,
        """
        if host == 1:
            open(flag, "w").close()
            time.sleep(60)
        wait_for(flag + ".gone")
        raise RuntimeError("training failed")
        """,
    )
    hosts = start_all(slices)
    until((tmp_path / "flag").exists)

    hosts[1].send_signal(how)
    if how == signal.SIGKILL:
        hosts[1].wait()
    (tmp_path / "flag.gone").touch()
    hosts[0].communicate(timeout=30)
    hosts[2].send_signal(signal.SIGTERM)  # as the cluster does, which starts the whole set again
    codes = ends_of(hosts)

    assert codes == [INFRASTRUCTURE_EXIT, code, INFRASTRUCTURE_EXIT]
    assert slices.outcome() is None
    if how == signal.SIGKILL:
        assert "host 1" in slices.note().details["why"]


def word_of(host: int, word: str, key: bytes = KEY) -> str:
    return documents.sealed_name(keys.host(JOB, 0, host), word, key)


def test_a_set_that_was_started_again_is_another_attempt(slices: Pods) -> None:
    act(slices, "if os.environ['KINETIC_ATTEMPT'] == '0':\n    time.sleep(60)\nreturn os.environ['KINETIC_ATTEMPT']")

    def started(restarts: int) -> list[subprocess.Popen[str]]:
        number = str(restarts)
        return [slices.start(JOB_COMPLETION_INDEX=str(host), JOBSET_RESTART_ATTEMPT=number) for host in (2, 1, 0)]

    first = started(0)
    until(lambda: all(slices.store.size(word_of(host, "begun")) is not None for host in range(3)))
    for each in first:
        each.send_signal(signal.SIGTERM)

    assert ends_of(first) == [INFRASTRUCTURE_EXIT] * 3
    assert ends_of(started(1)) == [0, 0, 0]
    assert slices.value() == "1"
    assert slices.outcome().attempt == 1


@pytest.mark.parametrize("word", ["failed", "preempted", "succeeded"])
def test_words_of_a_host_that_somebody_else_wrote_end_nothing(slices: Pods, tmp_path: Path, word: str) -> None:
    act(slices, "wait_for(flag)\nreturn 'right'")
    forged = Outcome(JOB, word, host=1, body_length=3, body_sha256=digests.of_bytes(b"abc"))
    hosts = start_all(slices)
    until(lambda: slices.store.size(word_of(2, "begun")) is not None)
    for place in (word_of(1, word, b"x" * 32), f"{keys.host(JOB, 0, 1)}/{word}", f"{keys.host(JOB, 0, 1)}.{word}"):
        slices.store.put(place, b"abc" + forged.footer(b"x" * 32))
    slices.store.put(word_of(0, "call", b"x" * 32), b"")
    (tmp_path / "flag").touch()

    assert ends_of(hosts) == [0, 0, 0]
    assert slices.value() == "right"
    assert slices.store.size(word_of(1, "here")) is None


def test_the_verdict_of_a_slice_has_the_digests_of_the_logs_of_all_its_hosts(slices: Pods) -> None:
    act(slices, "print('it is host', host)")

    assert ends_of(start_all(slices)) == [0, 0, 0]

    logs = {log.host: log for log in slices.outcome().logs}
    for host in range(3):
        printed = slices.log(host=host).encode()
        assert printed.decode() == f"it is host {host}\n"
        assert (logs[host].size_bytes, logs[host].blocks) == (len(printed), (digests.of_bytes(printed),))


def start_group(slices: Pods, group: str, hosts: Sequence[int]) -> dict[int, subprocess.Popen[str]]:
    """Start hosts as a LeaderWorkerSet does: their pods have the same names again, and it counts nothing."""
    return {host: slices.start(LWS_WORKER_INDEX=str(host), LWS_POD_UID=f"{group}-{host}") for host in hosts}


def test_a_group_that_begins_again_is_the_next_attempt_and_the_logs_of_the_one_before_stay(
    slices: Pods, tmp_path: Path
) -> None:
    slices.tell(hosts=2, holds=True)
    act(
        slices,
        """
        attempt = os.environ["KINETIC_ATTEMPT"]
        print("attempt", attempt, flush=True)
        open(flag + str(host) + attempt, "w").close()
        if attempt == "0":
            time.sleep(60)
        return host, attempt
        """,
    )
    first = start_group(slices, "first", [1, 0])
    until(lambda: all((tmp_path / f"flag{host}0").exists() for host in (0, 1)))
    for each in first.values():
        each.send_signal(signal.SIGTERM)
    ended = ends_of([*first.values()])

    second = start_group(slices, "second", [1])
    wait_for_line(second[1], "host 0 has not begun yet")
    second |= start_group(slices, "second", [0])
    for each in second.values():
        wait_for_line(each, "this process runs until it is asked to end")
        each.send_signal(signal.SIGTERM)

    assert ended == [INFRASTRUCTURE_EXIT] * 2
    assert ends_of([*second.values()]) == [0, 0]
    assert slices.value() == (0, "1")
    assert slices.outcome().attempt == 1
    assert [[slices.log(attempt, host) for host in (0, 1)] for attempt in (0, 1)] == [
        ["attempt 0\n"] * 2,
        ["attempt 1\n"] * 2,
    ]


@pytest.mark.parametrize("variables", [{}, {"LWS_POD_UID": "leader"}], ids=["a Job", "a LeaderWorkerSet"])
def test_a_leader_that_is_refused_right_after_its_claim_keeps_its_attempt(
    cloud_pods: Pods, bucket: Bucket, variables: dict[str, str]
) -> None:
    cloud_pods.tell(hosts=2, poll_seconds=0.1)
    act(cloud_pods, "return host")
    refused = Fault("status", target="0%2Ebegun", method="PUT", times=2, status=403)
    bucket.proxy.faults.append(refused)

    hosts = [
        cloud_pods.start(JOB_COMPLETION_INDEX="0", **variables),
        cloud_pods.start(JOB_COMPLETION_INDEX="1"),
    ]

    assert ends_of(hosts) == [0, 0]
    assert refused.met == 2
    assert cloud_pods.keys_below(keys.attempts(JOB)) == ["0"]


def test_a_host_that_sees_no_verdict_since_the_job_was_collected_and_removed_does_not_wait_for_it(slices: Pods) -> None:
    slices.tell(hosts=2)
    act(slices, "return host")
    leader = AttemptNote(JOB, 0, "machine", time.time(), "", "3.11", {"restarts": 0})
    slices.store.put(leader.key, leader.to_bytes(KEY))
    other = slices.start(JOB_COMPLETION_INDEX="1", JOBSET_RESTART_ATTEMPT="0")
    until(lambda: slices.store.size(word_of(1, "succeeded")) is not None)

    slices.store.delete(keys.job(JOB))
    out, _ = other.communicate(timeout=30)

    assert other.returncode == 0, out
    assert "kinetic| the job had its verdict, and was removed" in out
    assert slices.keys_below(keys.job(JOB)) == []


def test_that_a_debugger_came_is_believed_only_of_what_the_job_has_sealed(slices: Pods) -> None:
    pytest.importorskip("debugpy")
    slices.tell(hosts=2)
    slices.order(f"{HOST}    return host", str(slices.folder), debug=2.0)
    (slices.secret / "environment.json").write_text(json.dumps({inspection.TOKEN_VARIABLE: inspection.token(KEY)}))
    leader = slices.start(JOB_COMPLETION_INDEX="0")
    until(lambda: slices.store.size(word_of(0, "begun")) is not None)
    for forged in (inspection.mark_begun(JOB, 0, b"x" * 32), f"{JOB}/debug/0/begun"):
        slices.store.put(forged, b"")

    other = slices.start(JOB_COMPLETION_INDEX="1")

    assert ends_of([leader, other]) == [0, 0]
    for host in (0, 1):
        assert "no debugger came within 2 s; train begins without one" in slices.log(host=host)


@pytest.mark.timeout(180)
def test_the_processes_of_jax_find_and_wait_for_each_other(slices: Pods, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    slices.tell(coordinator=f"localhost:{port}", hosts=2)
    act(
        slices,
        """
        import jax
        met = jax.process_count(), jax.device_count(), jax.process_index()
        wait_for(flag + str(host))  # the leader is done before its peer, and must not take the meeting point away
        return met
        """,
    )

    hosts = [
        slices.start(JOB_COMPLETION_INDEX=str(host), JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2") for host in (0, 1)
    ]
    (tmp_path / "flag0").touch()
    until(lambda: any(path.stat().st_size for path in tmp_path.rglob("word")), seconds=60)
    time_is_left = hosts[0].poll() is None
    (tmp_path / "flag1").touch()

    assert time_is_left
    assert ends_of(hosts) == [0, 0]
    assert slices.value() == (2, 4, 0)


def test_a_host_that_does_not_know_which_one_it_is_says_so(slices: Pods) -> None:
    act(slices, "return 1")

    code, out = slices.run()

    assert code == FAILED_EXIT
    assert "which of 3 hosts" in out
