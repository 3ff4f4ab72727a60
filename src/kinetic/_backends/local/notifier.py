"""Notifications that a job has ended: kept on the machine that submitted it, and sent once when one sees the end.

    {runtime folder}/notifications/{job}.json     what to send, and where to: for the owner only, and in no store
    {runtime folder}/notifications/{job}.claimed  the same with how the job ended, while one process sends it
    {runtime folder}/notifications/{job}.due      the same, seen by another job, whose supervisor sends it
    {runtime folder}/notifications/log            what could not be sent, without the secret part of an address

The supervisor of a job of this machine, an observer that closes a job, and every client of this machine that sees the
end rename the first into the second. A rename succeeds once, so a notification is sent at most once: of a process that
is killed in between it is lost, and never sent twice. A process of its own sends it, so that no job waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic._backends.local import runtime_files
from kinetic._wire import NamedTuple, folders, keys, order
from kinetic._wire.outcomes import Outcome
from kinetic.errors import printable

DESKTOP = "desktop"
FOLDER = "notifications"
_PENDING, _CLAIMED, _DUE = ".json", ".claimed", ".due"
_WEBHOOKS = ("https://", "http://")
_MARK = "KINETIC_SUPERVISOR"  # in the environment of what is ended with a supervisor
_REQUEST_SECONDS, _LIMIT_SECONDS, _COMMAND_SECONDS = 10.0, 120, 60.0
_TRIES = 3
_CLAIMED_SECONDS, _PENDING_SECONDS = 24 * 3600.0, 30 * 24 * 3600.0
_MOST_LOG_BYTES = 1 << 18
_START = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
sys.path.insert(0, sys.argv[1])
from kinetic._backends.local import notifier
notifier.main(sys.argv[2])
"""


class Ended(NamedTuple):
    """How a job or batch ended."""

    status: str  # SUCCEEDED, FAILED or CANCELLED
    reason: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None


def is_webhook(target: str) -> bool:
    """Return whether a target is the address of a webhook; any other but "desktop" is a command."""
    return target.startswith(_WEBHOOKS) and not target.endswith("://")


def names_a_host(target: str) -> bool:
    """Return whether the address of a webhook names a host, and a port that there can be."""
    from urllib.parse import urlsplit  # here and below: few jobs have a webhook

    with contextlib.suppress(ValueError):
        parts = urlsplit(target)
        return bool(parts.hostname) and parts.port != 0
    return False


@runtime_files.launch_errors()
def keep(runtime: Path, job_id: str, targets: Sequence[str], about: Mapping[str, Any]) -> None:
    """Write down, before a job is launched, what is to be sent at its end; for its owner only."""
    folder = runtime / FOLDER
    folders.make(folder)
    here = order.outside_of_a_copy(os.getcwd(), os.environ)  # a job's own folder may be gone by then
    page = {"targets": [*targets], "about": about, "environment": dict(os.environ), "folder": here}
    folders.write_whole(folder / f"{job_id}{_PENDING}", json.dumps(page).encode())


def forget(runtime: Path, job_id: str) -> None:
    """Forget it again: the job was not launched."""
    with contextlib.suppress(OSError):
        (runtime / FOLDER / f"{job_id}{_PENDING}").unlink()


def is_pending(runtime: Path, job_id: str) -> bool:
    """Return whether something is to be sent at the end of a job, and was not sent."""
    return (runtime / FOLDER / f"{job_id}{_PENDING}").exists()


def ended_of(outcome: Outcome, *, is_command: bool) -> Ended:
    """Return how a job ended by its verdict."""
    error = outcome.error
    message, *_ = str(error.get("message", "")).splitlines() or [""]
    reason = ": ".join(filter(None, (str(error.get("type") or ""), message)))
    code = 0 if outcome.succeeded and is_command else error.get("exit_code")
    return Ended(
        outcome.status.upper(), reason, code if isinstance(code, int) else None, outcome.started, outcome.ended
    )


def pending(runtime: Path) -> list[str]:
    """Return the jobs and batches whose end no process of this machine has seen yet."""
    with contextlib.suppress(OSError):
        return [name.removesuffix(_PENDING) for name in os.listdir(runtime / FOLDER) if name.endswith(_PENDING)]
    return []


def send(runtime: Path, job_id: str, ended: Ended) -> bool:
    """Send what is kept for a job that has ended; False where there is nothing, or another process sends it."""
    folder = runtime / FOLDER
    claimed = folder / f"{job_id}{_CLAIMED}"
    try:
        (folder / f"{job_id}{_PENDING}").rename(claimed)
    except OSError:
        return False
    with contextlib.suppress(OSError, ValueError):  # a full disk: a job never fails because of this
        folders.sync(folder)
        page = json.loads(claimed.read_bytes())
        folders.write_whole(claimed, json.dumps({**page, "body": body_of(page["about"], ended)}).encode())
        if "KINETIC_JOB_ID" not in os.environ or _MARK not in os.environ:
            _start(claimed)
            return True
        claimed.rename(claimed.with_suffix(_DUE))  # what a job starts is ended with it
        if not runtime_files.wake(runtime_files.Paths(runtime).wake(os.environ[_MARK])):
            start_due(runtime)  # a job of another home
    return True


def start_due(runtime: Path) -> None:
    """Start the processes that send what jobs have seen; not in a job."""
    for due in folders.listed(runtime / FOLDER):
        if due.suffix == _DUE:
            with contextlib.suppress(OSError):  # another process was faster
                due.rename(claimed := due.with_suffix(_CLAIMED))
                _start(claimed)


def expired(runtime: Path, live: Container[str], now: float) -> Iterator[Path]:
    """Yield what is not being sent: its process was killed, or none saw the end of a job that is gone here."""
    for file in folders.listed(runtime / FOLDER):
        kept = {_CLAIMED: _CLAIMED_SECONDS, _DUE: _CLAIMED_SECONDS, _PENDING: _PENDING_SECONDS}.get(file.suffix)
        if kept is not None and file.stem not in live and folders.age(file, now) > kept:
            yield file


def body_of(about: Mapping[str, Any], ended: Ended) -> dict[str, Any]:
    """Return the documented JSON of a notification."""
    seconds = round(ended.ended - ended.started, 3) if ended.started and ended.ended else None
    took = f" after {seconds:.0f} s" if seconds is not None else ""
    name = about.get("name") or about.get("function")
    why = f": {ended.reason}" if ended.reason and ended.status != "SUCCEEDED" else ""
    return {
        "schema_version": 1,
        "text": f"{name} {ended.status.lower()}{took}{why} ({about['id']})",
        **about,
        "status": ended.status,
        "reason": ended.reason,
        "exit_code": ended.exit_code,
        "started_at": keys.format_utc(ended.started) if ended.started else None,
        "ended_at": keys.format_utc(ended.ended) if ended.ended else None,
        "duration_seconds": seconds,
    }


def _start(claimed: Path) -> None:
    """Start the process that sends, which has no parent and belongs to no job."""
    import subprocess  # 5 ms; only where something is sent, here and below

    environ = {name: value for name, value in os.environ.items() if name != _MARK}
    package = str(Path(__file__).parents[3])
    subprocess.run(
        [sys.executable, "-I", "-c", _START, package, str(claimed)],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


# ------------------------------------------------------------------------------------------ the process that sends


def main(claimed: str) -> None:
    """Send one notification to all its targets, and forget it."""
    signal.alarm(_LIMIT_SECONDS)  # whatever a target does, this process ends
    path = Path(claimed)
    page = json.loads(path.read_bytes())
    os.environ.clear()  # a command, a notice of the desktop and proxies need those of who submitted
    os.environ.update(page["environment"])
    with contextlib.suppress(OSError):
        os.chdir(page["folder"])
    for target in page["targets"]:
        why = send_to(target, page["body"])
        if why:
            _log(
                path.with_name("log"), f"{keys.format_utc(time.time())} {page['body']['id']}: {shown(target)}: {why}\n"
            )
    path.unlink(missing_ok=True)


def send_to(target: str, body: Mapping[str, Any]) -> str:
    """Send a notification to a target; return why that failed, or ""."""
    try:
        if is_webhook(target):
            return _post(target, body)
        if target == DESKTOP:
            return _show(body)
        return _run(target, body)
    except Exception as error:  # noqa: BLE001 - the other targets are told all the same
        return f"{type(error).__name__}: {error}".replace(target, shown(target))


def shown(target: str) -> str:
    """Return a target for people: of an address only the host, since the rest may be a secret."""
    if not is_webhook(target):
        return target
    from urllib.parse import urlsplit

    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}/…"


def _post(url: str, body: Mapping[str, Any]) -> str:
    """Post to a webhook; try again where it was not reached or says that it cannot answer now."""
    from kinetic._wire.http_client import RETRYABLE, HttpClient

    client = HttpClient(plain_http=True, timeout_seconds=_REQUEST_SECONDS, most_bytes=4096)
    headers, data = {"Content-Type": "application/json", "User-Agent": "kinetic"}, json.dumps(body).encode()
    why = ""
    for number in range(_TRIES):
        if number:
            time.sleep(2.0**number)
        try:
            answer = client.send("POST", url, body=data, headers=headers, follow=False)
        except OSError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if answer.status < 300:
            return ""
        why = f"it answered {answer.status}"
        if answer.status not in RETRYABLE:
            break
    return why


def _run(command: str, body: Mapping[str, Any]) -> str:
    """Run a command of the user's: the JSON on its standard input, and what matters most in variables."""
    import subprocess

    named = {"JOB_ID": body["id"], "STATUS": body["status"], "TEXT": body["text"]}
    # No variable can hold a NUL or half of a character, as the message of an exception may.
    environ = {**os.environ, **{f"KINETIC_NOTICE_{name}": printable(str(value)) for name, value in named.items()}}
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        input=json.dumps(body).encode(),
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"it ended with exit code {done.returncode}: {''.join(said)}" if done.returncode else ""


def _show(body: Mapping[str, Any]) -> str:
    import shutil
    import subprocess

    title, text = f"kinetic: {body['status'].lower()}", printable(str(body["text"]))
    if sys.platform == "darwin":
        script = f"display notification {json.dumps(text)} with title {json.dumps(title)}"
        words = ["osascript", "-e", script]
    else:
        program = shutil.which("notify-send")
        if program is None:
            return "there is no program notify-send"
        words = [program, "--app-name=kinetic", title, text]
    done = subprocess.run(words, capture_output=True, timeout=_REQUEST_SECONDS, check=False)
    return f"{words[0]} ended with exit code {done.returncode}" if done.returncode else ""


def _log(file: Path, line: str) -> None:
    with contextlib.suppress(OSError):
        if file.exists() and file.stat().st_size > _MOST_LOG_BYTES:
            file.unlink()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with folders.closing(os.open(file, flags, 0o600)) as descriptor:
            os.write(descriptor, line.encode(errors="backslashreplace"))
