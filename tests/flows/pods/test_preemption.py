"""A pod that is taken away: its user code has time, and another attempt may follow."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from servers.faults import Fault
from waiting import until

from kinetic._wire import keys
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT

from .conftest import JOB, KEY, WAITS, Bucket, Pods, act, children_of, ends_of, start_all


def take_away_without_a_verdict(pods: Pods, pod: Any) -> None:
    """Tell a pod to end, as before its node goes; it leaves the job to the next pod."""
    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_pod_that_is_taken_away_leaves_a_note_and_its_log_and_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)

    take_away_without_a_verdict(pods, pod)
    assert "taken away" in pods.note().details["why"]
    assert pods.log() == "waiting\n"


def test_nothing_is_written_of_a_job_that_was_removed_while_it_ran(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.delete(keys.job(JOB))

    pod.send_signal(signal.SIGTERM)  # as the cluster does when its Job is deleted
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.keys_below(keys.job(JOB)) == []


def test_the_next_pod_is_the_next_attempt(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS + "        ", str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)
    (tmp_path / "flag.go").touch()

    code, _ = pods.run()

    assert code == 0
    assert pods.value() == "went on"
    assert pods.outcome().attempt == 1
    assert pods.log(attempt=1) == "waiting\n"


def test_a_failure_of_a_pod_that_was_replaced_is_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS.replace('return "went on"', 'raise OSError("cut off from the world")'), str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.put(keys.attempt(JOB, 1), AttemptNote(JOB, 1, "replacement", time.time()).to_bytes(KEY), if_absent=True)

    (tmp_path / "flag.go").touch()
    out, _ = pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT, out
    assert pods.outcome() is None
    assert "another attempt has taken its place" in out
    assert pods.log() != ""


def test_a_value_of_a_pod_that_was_replaced_counts(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.put(keys.attempt(JOB, 1), AttemptNote(JOB, 1, "replacement", time.time()).to_bytes(KEY), if_absent=True)

    (tmp_path / "flag.go").touch()
    pod.communicate(timeout=30)

    assert pods.value() == "went on"


def test_user_code_has_time_to_save_its_work(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time, kinetic.errors
        def train(folder):
            def save(*_):
                time.sleep(0.5)
                open(folder + "/saved", "w").close()
                raise kinetic.errors.Preempted("saved")
            signal.signal(signal.SIGTERM, save)
            open(folder + "/begun", "w").close()
            time.sleep(60)
    """, str(tmp_path))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "begun").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert (tmp_path / "saved").exists()
    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_command_saves_its_work_when_its_pod_is_taken_away_and_the_next_pod_goes_on(
    pods: Pods, tmp_path: Path
) -> None:
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    script = f"""
    if [ -e {saved} ]; then echo resumed; exit 0; fi
    trap 'sleep 0.5; echo half > {saved}; echo saved; exit 0' TERM
    touch {begun}; while :; do sleep 0.1; done
    """
    first = pods.command("sh", "-c", script).start()
    until(begun.exists)

    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=60)
    between = pods.outcome()
    code, again = pods.run()

    assert first.returncode == INFRASTRUCTURE_EXIT, out
    assert "saved" in out
    assert saved.exists()
    assert between is None
    assert (code, "resumed" in again) == (0, True), again
    found = pods.outcome()
    assert found is not None
    assert (found.status, found.attempt, pickle.loads(pods.body(found))) == ("succeeded", 1, 0)


def test_the_exit_code_of_a_command_is_the_verdict_of_its_pod(pods: Pods) -> None:
    code, out = pods.command("python", "-c", "import kinetic, sys; print('here'); sys.exit(3)").run()

    found = pods.outcome()
    assert found is not None
    assert (code, found.status, found.cause, found.error["exit_code"]) == (FAILED_EXIT, "failed", "exit", 3)
    assert "here" in out
    assert "Traceback" not in out


def test_preempted_is_no_verdict_without_a_signal_either(pods: Pods) -> None:
    pods.order("def train():\n    from kinetic.errors import Preempted\n    raise Preempted('the notice came')")

    code, _ = pods.run()

    assert code == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None
    assert "Preempted" in pods.note().details["why"]


def test_leaving_by_sys_exit_when_told_to_end_is_no_success(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, sys, time
        def train(flag):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            open(flag, "w").close()
            time.sleep(60)
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    take_away_without_a_verdict(pods, pod)


def test_a_value_that_is_returned_in_time_counts(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time
        def train(flag):
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            return "in time"
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == 0
    assert pods.value() == "in time"


def test_a_value_does_not_wait_for_the_log_of_a_pod_that_must_go(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time
        def train(flag):
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            print("a log that no store takes", flush=True)
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            return "in time"
    """, str(tmp_path / "flag"))  # fmt: skip
    (tmp_path / "store" / JOB / "logs").touch()
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        pod.communicate(timeout=4)  # what Spot leaves of its 15 s when user code took 10, less one
    pod.kill()

    assert pods.value() == "in time"


def test_children_of_user_code_are_not_told_to_end_with_it(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, subprocess, sys, time
        def train(flag):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            time.sleep(0.3)
            return child.poll()
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pods.outcome().status == "succeeded"
    assert pods.outcome().value_type == "builtins.NoneType"


def test_a_pod_ends_at_once_when_it_is_told_to_before_the_job_began(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def one():\n    return 1")
    bucket.proxy.faults.append(Fault("status", times=1e9))
    pod = cloud_pods.start()
    until(lambda: len(bucket.proxy.requests) >= 2)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=5)

    assert pod.returncode == INFRASTRUCTURE_EXIT


def test_a_job_that_is_taken_away_too_often_fails(pods: Pods) -> None:
    pods.order("def train():\n    from kinetic.errors import Preempted\n    raise Preempted('again')")
    pods.tell(most_attempts=2)

    codes = [pods.run()[0] for _ in range(3)]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, FAILED_EXIT]
    assert pods.outcome().cause == "preempted"
    assert "2 times" in pods.outcome().error["message"]


def test_a_job_that_is_evicted_for_want_of_memory_again_and_again_fails(pods: Pods, tmp_path: Path) -> None:
    memory, much, little = tmp_path / "meminfo", "MemAvailable:   16000000 kB\n", "MemAvailable:     101000 kB\n"
    memory.write_text(much)
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    inside += [f'mount --bind {memory} /proc/meminfo && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives no namespaces to tests")
    flag = tmp_path / "flag"
    pods.inside = inside
    pods.order(WAITS, str(flag))

    codes = []
    for _ in range(3):
        pod = pods.start()
        until(flag.exists)
        memory.write_text(little)
        pod.send_signal(signal.SIGTERM)
        pod.communicate(timeout=15)
        codes.append(pod.returncode)
        flag.unlink()
        memory.write_text(much)
    codes.append(pods.run()[0])

    assert codes == [INFRASTRUCTURE_EXIT] * 3 + [FAILED_EXIT]
    assert [pods.note(attempt).details["short_of"] for attempt in range(3)] == ["memory"] * 3
    assert pods.outcome().cause == "evicted"
    assert "ran out of memory" in pods.outcome().error["message"]
    assert "ran out of memory" in pods.last_words.read_text()


def test_a_pod_that_is_taken_away_while_its_store_is_out_of_reach_ends_in_time(
    cloud_pods: Pods, bucket: Bucket, tmp_path: Path
) -> None:
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(Fault("status", times=1e9))

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=15)  # what Spot gives

    assert pod.returncode == INFRASTRUCTURE_EXIT


def test_a_worker_in_an_interpreter_of_its_own_is_told_to_end_too(cloud_pods: Pods, tmp_path: Path) -> None:
    cloud_pods.order(
        """
        import signal, time, kinetic.errors
        def train(folder):
            def save(*_):
                open(folder + "/saved", "w").close()
                raise kinetic.errors.Preempted("saved")
            signal.signal(signal.SIGTERM, save)
            open(folder + "/begun", "w").close()
            time.sleep(60)
        """,
        str(tmp_path),
    )
    pod = cloud_pods.start()
    until((tmp_path / "begun").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert (tmp_path / "saved").exists()
    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert cloud_pods.outcome() is None


class Slow:
    """An argument that takes its time to be opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        code = f"import time; open({str(self.folder / 'opening')!r}, 'w').close(); time.sleep(60)"
        return exec, (code,)


def test_a_pod_that_is_taken_away_while_arguments_are_opened_leaves_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order("def one(slow):\n    return 1", Slow(tmp_path))
    pod = pods.start()
    until((tmp_path / "opening").exists)

    take_away_without_a_verdict(pods, pod)


def test_a_worker_that_is_killed_before_the_function_began_may_be_repeated(pods: Pods, tmp_path: Path) -> None:
    pods.order("def one(slow):\n    return 1", Slow(tmp_path))
    pod = pods.start()
    until((tmp_path / "opening").exists)

    os.kill(children_of(pod.pid)[0], signal.SIGKILL)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_result_whose_store_is_out_of_reach_is_no_success_when_the_pod_must_go(
    cloud_pods: Pods, bucket: Bucket, tmp_path: Path
) -> None:
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(Fault("status", method="PUT", times=1e9, status=400))
    (tmp_path / "flag.go").touch()
    assert any("it is tried again" in line for line in iter(pod.stdout.readline, ""))

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert cloud_pods.outcome() is None


def test_a_job_that_somebody_cancelled_is_ended_and_keeps_that_verdict(slices: Pods, tmp_path: Path) -> None:
    act(slices, "open(flag + str(host), 'w').close()\ntime.sleep(60)")
    hosts = start_all(slices)
    until(lambda: len(list(tmp_path.glob("flag*"))) == 3)

    slices.store.put(keys.result(JOB), Outcome(JOB, "cancelled").footer(KEY), if_absent=True)

    assert ends_of(hosts) == [0, 0, 0]
    assert slices.outcome().status == "cancelled"
