"""A job that fails in a pod: what is a verdict, what is tried again, and what begins nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

from kinetic._wire import documents, keys
from kinetic._wire.records import HISTORY
from kinetic._wire.task import FAILED_EXIT, IMAGE_EXIT, INFRASTRUCTURE_EXIT

from .conftest import JOB, KEY, WAITS, Pods, act, children_of, ends_of


def test_an_exception_is_a_verdict_and_fails_the_job_at_once(pods: Pods) -> None:
    pods.order("def fails():\n    raise ValueError('no such file')")

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "no such file" in pods.last_words.read_text()
    assert "no such file" in out
    read = pods.outcome()
    assert (read.status, read.cause) == ("failed", "exception")
    assert repr(pods.value()) == "ValueError('no such file')"


def test_a_worker_that_is_killed_is_a_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)

    os.kill(children_of(pod.pid)[0], signal.SIGKILL)
    pod.communicate(timeout=30)

    assert pod.returncode == FAILED_EXIT
    assert pods.outcome().cause == "signal"
    assert "waiting" in pods.outcome().error["log"]


def test_os_exit_with_0_in_user_code_is_no_success(pods: Pods) -> None:
    pods.order("import os\ndef leave():\n    os._exit(0)")

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert pods.outcome().cause == "exit"


FORKS = """
    import os, sys, time
    def train(end):
        if os.fork() == 0:
            if end == "exits":
                sys.exit(0)
            if end == "raises":
                raise ValueError("the child's")
            return "the child's"
        time.sleep(6 if end == "exits" else 0.3)  # longer than a job is given for its exit handlers
        return "the parent's"
"""


@pytest.mark.parametrize("end", ["exits", "raises", "returns"])
def test_a_forked_child_does_not_speak_for_the_job(pods: Pods, end: str) -> None:
    pods.order(FORKS, end)

    code, _ = pods.run()

    assert (code, pods.value()) == (0, "the parent's")


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_function_that_closes_every_descriptor_and_opens_its_own_files_is_heard(
    pods: Pods, tmp_path: Path, ends: str
) -> None:
    (tmp_path / "theirs").mkdir()
    pods.order(
        """
        import os
        def train(folder, ends):
            os.closerange(0, 256)
            for number in range(40):
                os.write(os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT), b"theirs")
            if ends == "raises":
                raise ValueError("with files of mine")
            return "done"
        """,
        str(tmp_path / "theirs"),
        ends,
    )

    code, _ = pods.run()

    found = pods.value()
    assert code == (FAILED_EXIT if ends == "raises" else 0)
    assert found == "done" if ends == "returns" else found.args == ("with files of mine",)
    assert {path.read_bytes() for path in (tmp_path / "theirs").iterdir()} == {b"theirs"}


def test_a_deadline_is_a_verdict(pods: Pods) -> None:
    pods.order("import time\ndef sleep():\n    time.sleep(60)")
    pods.tell(deadline=0.5)

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert pods.outcome().cause == "deadline"


def test_another_order_than_the_launched_one_is_not_carried_out(pods: Pods, tmp_path: Path) -> None:
    pods.order("def touch(path):\n    open(path, 'w')", str(tmp_path / "touched"))
    pods.tell(order_sha256="0" * 64)

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert not (tmp_path / "touched").exists()
    read = pods.outcome()
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "artifact verification", "integrity")


def test_another_python_than_the_clients_opens_nothing(pods: Pods) -> None:
    pods.order("def one():\n    return 1", fingerprint={"python": "3.9.1"})

    code, _ = pods.run()

    assert code == FAILED_EXIT
    read = pods.outcome()
    assert (read.phase, read.error["code"]) == ("artifact verification", "python-mismatch")
    assert "3.9.1" in read.error["why"]


def test_a_python_that_is_too_old_says_so(zipped: Path, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.version_info, sys.argv = (3, 8, 2), [{str(zipped)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == IMAGE_EXIT
    assert "this image has Python 3.8" in done.stdout


def test_an_image_with_another_python_than_the_clients_says_so_and_begins_nothing(pods: Pods, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.version_info, sys.argv = (3, 99, 2), [{str(pods.zipped)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == IMAGE_EXIT
    ours = ".".join(map(str, sys.version_info[:2]))
    assert f"this image has Python 3.99, and the job was submitted with Python {ours}" in done.stdout.splitlines()[-1]
    assert "choose another container_image" in done.stdout.splitlines()[-1]


def test_an_image_whose_python_has_no_lzma_says_so(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "lzma.py").write_text("raise ImportError('No module named _lzma')")

    done = subprocess.run(
        [sys.executable, str(pods.zipped)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == IMAGE_EXIT
    assert "the Python of this image has no lzma" in done.stdout


def test_a_pod_without_the_key_begins_nothing(pods: Pods, tmp_path: Path) -> None:
    pods.order("def touch(path):\n    open(path, 'w')", str(tmp_path / "touched"))
    (pods.secret / "job-key").unlink()

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "the key of this job is missing" in out
    assert not (tmp_path / "touched").exists()


def test_a_job_that_was_removed_is_not_brought_back(pods: Pods) -> None:
    pods.order("def one():\n    return 1")
    at = keys.history(JOB)
    pods.store.put(at, documents.seal_page(HISTORY, {"job_id": JOB, "resource_removed": True}, at, KEY))

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "removed" in out
    assert pods.outcome() is None


def test_a_page_that_is_none_fails_at_once(pods: Pods) -> None:
    done = subprocess.run([sys.executable, str(pods.zipped), "{"], capture_output=True, text=True, check=False)

    assert done.returncode == FAILED_EXIT
    assert "the launch page of this pod is damaged" in done.stdout


FAILS_TWICE = """
    import os
    def train():
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        print("this is attempt", attempt)
        if attempt < 2:
            raise ValueError(f"attempt {attempt}")
        return attempt
"""


def test_a_failed_attempt_makes_room_for_another_pod_while_there_are_retries(pods: Pods) -> None:
    pods.tell(retries=2)
    pods.order(FAILS_TWICE)

    codes = [pods.run()[0] for _ in range(3)]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, 0]
    assert pods.value() == 2
    assert [pods.note(number).details.get("failed") for number in range(3)] == [
        "ValueError: attempt 0",
        "ValueError: attempt 1",
        None,
    ]
    logs = [pods.log(number) for number in range(3)]
    assert ["this is attempt" in log for log in logs] == [True] * 3
    assert logs[1].endswith("kinetic: attempt 1 failed: ValueError: attempt 1; trying again (retry 2 of 2)\n")


def test_the_last_retry_that_fails_is_the_verdict(pods: Pods) -> None:
    pods.tell(retries=1)
    pods.order(FAILS_TWICE)

    (first, out), (last, _) = pods.run(), pods.run()

    assert (first, last) == (INFRASTRUCTURE_EXIT, FAILED_EXIT)
    assert "kinetic| attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 1)\n" in out
    read = pods.outcome()
    assert (read.attempt, read.cause, read.error["message"]) == (1, "exception", "attempt 1")


def test_failures_are_not_taken_for_a_machine_that_is_taken_away_again_and_again(pods: Pods) -> None:
    pods.tell(retries=2, most_attempts=2)
    pods.order(FAILS_TWICE)

    assert [pods.run()[0] for _ in range(3)] == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, 0]


def test_hosts_that_cannot_tell_their_attempts_apart_are_not_tried_again(slices: Pods) -> None:
    slices.tell(retries=3)
    act(slices, "raise ValueError('boom')")

    assert ends_of([slices.start(JOB_COMPLETION_INDEX=str(host)) for host in range(3)]) == [FAILED_EXIT] * 3


def test_a_job_set_begins_anew_after_a_failure(slices: Pods) -> None:
    slices.tell(retries=1)
    act(slices, "raise ValueError('boom')")

    def life(restarts: str) -> list[int]:
        more = {"JOBSET_RESTART_ATTEMPT": restarts}
        hosts = [slices.start(JOB_COMPLETION_INDEX=str(host), **more) for host in range(3)]
        first = hosts[0].wait(60)
        for host in hosts[1:]:
            host.terminate()  # as JobSet does
        return [first, *(host.wait(60) for host in hosts[1:])]

    assert life("0")[0] == INFRASTRUCTURE_EXIT
    assert slices.outcome() is None
    assert life("1")[0] == FAILED_EXIT
    assert slices.outcome().attempt == 1
