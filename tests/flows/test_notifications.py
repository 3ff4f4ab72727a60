"""Who is told of the end of a job: real processes, a real server of webhooks, and each of them killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import kinetic
from kinetic._backends.local import notifier
from kinetic._jobs import locate
from kinetic.errors import OptionError, OptionTypeError

SECRET = "hooks/T0000/s3cret-part"


class Hook:
    """A server of webhooks: it keeps what it got, and answers as a test wants."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.tries = 0
        self.status, self.release = 200, threading.Event()
        self.release.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.tries += 1
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.release.wait(60)
                if hook.status == 200:
                    hook.got.append(body)
                self.send_response(hook.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/{SECRET}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    yield found
    found.close()


@pytest.fixture
def folder(project, monkeypatch) -> Path:
    monkeypatch.chdir(project.root)
    return project.root


def notices() -> list[str]:
    folder = locate.runtime() / notifier.FOLDER
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


def settled(wait_until) -> None:
    """Wait until no notification waits or is being sent."""
    wait_until(lambda: not [name for name in notices() if name != "log"], "that all is sent", seconds=60)


def test_a_detached_job_tells_a_webhook_once_when_its_client_is_long_dead(project, home, hook, wait_until):
    project.write(
        "client.py",
        f"""
        import os, signal
        import kinetic

        job = kinetic.run_command(["sh", "-c", "sleep 1; exit 3"], name="mine", tags={{"a": "b"}}, on_done={hook.url!r})
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )

    client = project.start("client.py")
    client.communicate(timeout=60)
    wait_until(lambda: hook.got, "that the webhook was told", seconds=60)
    settled(wait_until)

    assert client.returncode == -signal.SIGKILL
    [body] = hook.got
    [job] = kinetic.list_jobs()
    assert (body["schema_version"], body["id"], body["kind"]) == (1, job.job_id, "job")
    assert (body["status"], body["exit_code"], body["name"], body["tags"]) == ("FAILED", 3, "mine", {"a": "b"})
    assert body["command"] == ["sh", "-c", "sleep 1; exit 3"]
    assert body["duration_seconds"] >= 1
    assert body["text"].startswith("mine failed after ")
    assert job.job_id in body["text"]
    assert hook.tries == 1
    assert not [file for file in (home / "store").rglob("*") if file.is_file() and b"s3cret-part" in file.read_bytes()]


def test_whoever_sees_the_end_first_sends_and_nobody_else(folder, home, hook, wait_until):
    job = kinetic.run_command(["true"], on_done=hook.url)
    assert job.wait(timeout=60) is kinetic.JobStatus.SUCCEEDED
    kinetic.list_jobs()
    kinetic.attach(job.job_id).result()
    settled(wait_until)

    assert [(body["status"], body["exit_code"]) for body in hook.got] == [("SUCCEEDED", 0)]


def test_of_many_processes_one_sends(tmp_path, hook, wait_until):
    notifier.keep(tmp_path, "cpu-job-1", [hook.url], {"id": "cpu-job-1", "function": "f"})
    sent: list[bool] = []

    def send() -> None:
        sent.append(notifier.send(tmp_path, "cpu-job-1", notifier.Ended("SUCCEEDED")))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: not list((tmp_path / notifier.FOLDER).iterdir()), "that it is sent", seconds=60)

    assert sorted(sent) == [False] * 7 + [True]
    assert len(hook.got) == 1


def test_one_that_is_killed_after_the_claim_is_not_sent_twice(tmp_path, hook):
    notifier.keep(tmp_path, "cpu-job-1", [hook.url], {"id": "cpu-job-1", "function": "f"})
    if os.fork() == 0:  # it dies between the claim and the sending
        notifier._start = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        notifier.send(tmp_path, "cpu-job-1", notifier.Ended("SUCCEEDED"))
    os.wait()

    again = notifier.send(tmp_path, "cpu-job-1", notifier.Ended("SUCCEEDED"))

    assert not again
    assert notifier.pending(tmp_path) == []
    assert hook.got == []


@pytest.mark.parametrize("status", [500, 404])
def test_a_webhook_that_refuses_harms_no_job_and_its_secret_is_in_no_log(folder, home, hook, status, wait_until):
    hook.status = status

    job = kinetic.run_command(["true"], on_done=hook.url)
    assert job.result(timeout=60) == 0
    settled(wait_until)

    assert hook.tries == (3 if status == 500 else 1)
    said = (locate.runtime() / notifier.FOLDER / "log").read_text()
    assert f"it answered {status}" in said
    assert job.job_id in said
    assert "s3cret-part" not in said


def test_a_webhook_that_hangs_or_is_not_there_delays_nothing(folder, home, hook):
    hook.release.clear()

    first = kinetic.run_command(["true"], on_done=[hook.url, "http://127.0.0.1:9/none"])
    assert first.result(timeout=60) == 0
    second = kinetic.run_command(["true"])

    assert second.result(timeout=60) == 0
    assert f"{first.job_id}.claimed" in notices()  # it is still being sent
    assert hook.got == []


def test_a_command_gets_the_json_and_the_clients_folder_and_variables(folder, home, tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("MINE", "of the client")
    told = tmp_path / "told"

    job = kinetic.run_command(["true"], on_done=f'cat > {told}; echo "|$KINETIC_NOTICE_STATUS|$MINE|$PWD" >> {told}')
    job.wait()
    settled(wait_until)

    body, *others = told.read_text().strip().split("|")
    assert json.loads(body)["id"] == job.job_id
    assert others == ["SUCCEEDED", "of the client", str(folder)]


def test_a_command_is_told_of_a_message_that_no_variable_can_hold(folder, home, tmp_path, wait_until):
    told = tmp_path / "told"
    command = f'echo "$KINETIC_NOTICE_TEXT" > {told}'
    notifier.keep(tmp_path, "cpu-job-1", [command], {"id": "cpu-job-1", "function": "train"})

    notifier.send(tmp_path, "cpu-job-1", notifier.Ended("FAILED", "ValueError: \0 \ud800 \x1b[31m"))
    wait_until(lambda: not list((tmp_path / notifier.FOLDER).glob("*.claimed")), seconds=30)

    assert told.read_text() == "train failed: ValueError: \\x00 \\ud800 \\x1b[31m (cpu-job-1)\n"


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_command_for_slack_in_the_manual_sends_a_message_with_quotation_marks(
    folder, home, tmp_path, monkeypatch, wait_until
):
    manual = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    (command,) = re.findall(r"--notify '(.*\$SLACK_WEBHOOK.*)' -- ", manual)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "curl"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/sent\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLACK_WEBHOOK", "https://hooks.example/1")
    notifier.keep(tmp_path, "cpu-job-1", [command], {"id": "cpu-job-1", "function": "train"})

    notifier.send(tmp_path, "cpu-job-1", notifier.Ended("FAILED", 'KeyError: "lr", \\'))
    wait_until(lambda: not list((tmp_path / notifier.FOLDER).glob("*.claimed")), seconds=30)

    assert json.loads((tmp_path / "sent").read_text()) == {"text": 'train failed: KeyError: "lr", \\ (cpu-job-1)'}
    assert (tmp_path / "words").read_text().split()[-1] == "https://hooks.example/1"


@pytest.mark.skipif(sys.platform == "darwin", reason="it has another program for notices")
def test_a_notice_of_the_desktop_is_shown_by_its_program(folder, home, tmp_path, monkeypatch, wait_until):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    notifier.keep(tmp_path, "cpu-job-1", ["desktop"], {"id": "cpu-job-1", "function": "train"})

    notifier.send(tmp_path, "cpu-job-1", notifier.Ended("FAILED", "ValueError: no"))
    wait_until(lambda: (tmp_path / "shown").exists() and not list((tmp_path / notifier.FOLDER).iterdir()), seconds=30)

    assert (tmp_path / "shown").read_text().splitlines()[1:] == [
        "kinetic: failed",
        "train failed: ValueError: no (cpu-job-1)",
    ]


def test_a_cancelled_job_and_one_whose_supervisor_was_killed_are_told_of(folder, home, tmp_path, hook, wait_until):
    cancelled = kinetic.run_command(["sleep", "100"], on_done=hook.url)
    wait_until(lambda: cancelled.status() is kinetic.JobStatus.RUNNING, seconds=30)
    cancelled.cancel()
    wait_until(lambda: len(hook.got) == 1, seconds=60)
    lost = kinetic.run_command(["sh", "-c", f"echo > {tmp_path / 'begun'}; sleep 100"], on_done=hook.url)
    wait_until((tmp_path / "begun").exists, seconds=30)

    for row in locate.local().queue.supervisors():
        if row.pid:
            os.kill(row.pid, signal.SIGKILL)
    lost.wait(timeout=60)
    wait_until(lambda: len(hook.got) == 2, seconds=60)

    assert [(body["id"], body["status"]) for body in hook.got] == [
        (cancelled.job_id, "CANCELLED"),
        (lost.job_id, "FAILED"),
    ]


def test_a_function_and_a_batch_are_told_of_as_well(project, home, hook, wait_until):
    project.out(
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu", on_done=sys.argv[1])
        def half(number):
            return 1 / number

        if __name__ == "__main__":
            half(2)
            batch = half.run_async_map([1, 0])
            batch.results(return_exceptions=True, cleanup=False)
        """,
        hook.url,
    )
    wait_until(lambda: len(hook.got) == 2, seconds=60)
    settled(wait_until)

    of_batch, of_job = sorted(hook.got, key=lambda body: body["kind"])
    assert (of_job["kind"], of_job["function"], of_job["status"]) == ("job", "half", "SUCCEEDED")
    assert (of_batch["kind"], of_batch["status"], of_batch["reason"]) == ("batch", "FAILED", "1 succeeded, 1 failed")
    assert not [file for file in (home / "store").rglob("*") if file.is_file() and b"s3cret-part" in file.read_bytes()]


def test_what_a_job_submits_and_waits_for_is_told_of_although_that_job_ends_at_once(project, home, hook, wait_until):
    project.out(
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def half(number):
            return number / 2

        @kinetic.run(accelerator="cpu")
        def halves(target):
            return half.with_options(on_done=target).run_async_map([1, 2]).results()

        if __name__ == "__main__":
            assert halves(sys.argv[1]) == [0.5, 1.0]
        """,
        hook.url,
    )
    wait_until(lambda: hook.got, "that it is told", seconds=20)
    settled(wait_until)

    assert [(body["kind"], body["status"]) for body in hook.got] == [("batch", "SUCCEEDED")]


def test_of_a_batch_that_is_removed_no_address_stays_and_its_end_is_told(project, home, hook, wait_until):
    project.out(
        """
        import sys, time
        import kinetic

        @kinetic.run(accelerator="cpu", on_done=sys.argv[1])
        def pause(seconds):
            time.sleep(seconds)

        if __name__ == "__main__":
            pause.run_async_map([100]).cleanup()
            ended = pause.run_async_map([0], max_concurrent=None)
            ended.jobs[0].wait(timeout=60)
            ended.cleanup()
        """,
        hook.url,
    )
    settled(wait_until)

    assert [(body["kind"], body["status"]) for body in hook.got] == [("batch", "SUCCEEDED")]


def test_a_batch_that_is_removed_before_the_end_of_its_last_job_is_marked_is_told_of(
    project, home, hook, tmp_path, monkeypatch, wait_until
):
    monkeypatch.setenv("KINETIC_TEST_KILL", f"supervisor:unmarked@{tmp_path / 'killed'}")
    project.out(
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu", on_done=sys.argv[1])
        def half(number):
            return number / 2

        if __name__ == "__main__":
            batch = half.run_async_map([1], max_concurrent=None)
            batch.jobs[0].wait(timeout=60)
            batch.cleanup()
        """,
        hook.url,
    )
    settled(wait_until)

    assert (tmp_path / "killed").exists()
    assert [(body["kind"], body["status"]) for body in hook.got] == [("batch", "SUCCEEDED")]


def test_a_batch_whose_client_is_killed_as_soon_as_it_can_be_found_is_told_of(
    project, home, hook, tmp_path, monkeypatch, wait_until
):
    project.write(
        "halves.py",
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu", on_done=sys.argv[-1])
        def half(number):
            return number / 2

        if __name__ == "__main__":
            half.run_async_map([1, 2])
        """,
    )
    monkeypatch.setenv("KINETIC_TEST_KILL", f"driver:manifest-written@{tmp_path / 'killed'}")
    assert project.run("halves.py", hook.url).returncode == -signal.SIGKILL
    monkeypatch.delenv("KINETIC_TEST_KILL")

    (group,) = [path.name for path in (home / "store" / "_groups").iterdir()]
    kinetic.attach_batch(group, resume=True).wait(timeout=60)
    wait_until(lambda: hook.got, seconds=30)

    assert [(body["id"], body["status"]) for body in hook.got] == [(group, "SUCCEEDED")]


def test_what_cannot_be_told_is_refused(folder, home, monkeypatch):
    monkeypatch.delenv("NO_SUCH_HOOK", raising=False)
    with pytest.raises(OptionTypeError, match="is not a command"):
        kinetic.run(accelerator="cpu", on_done=print)  # type: ignore[arg-type] # on purpose
    with pytest.raises(OptionError, match=r"\$NO_SUCH_HOOK.* not set"):
        kinetic.run_command(["true"], on_done="$NO_SUCH_HOOK")
    with pytest.raises(OptionError, match=r"'https://' is not the address of a webhook"):
        kinetic.run_command(["true"], on_done="https://")
    for address in ("https://[::1/x", "https://example.org:port/x", "https://example.org:99999/x", "https:///x"):
        with pytest.raises(OptionError, match="is not the address of a webhook"):
            kinetic.run_command(["true"], on_done=address)
    with pytest.raises(OptionError, match=r"htp://example\.org/x. is not the address of a webhook"):
        kinetic.run_command(["true"], on_done=["desktop", "htp://example.org/x"])
    assert kinetic.list_jobs() == []
