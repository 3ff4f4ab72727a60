"""Files that a job writes with ``open()`` below an output directory that is an address: ``gs://bucket/outputs/JOB_ID``.

Python takes an address for a relative path. In the working folder of a job there is a folder of that name: what is
written there is sent to the address, every few seconds and at the end, and is there again for a later attempt.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kinetic._stores import Store, open_anew, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire import documents, folders
from kinetic._wire.order import OUTPUT_PAGES
from kinetic._wire.task import Task
from kinetic.errors import (
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    OptionError,
    StoreUnreachableError,
    reason_of,
)

State = tuple[int, int]  # of a file: its bytes, and when it was changed, in nanoseconds

# A bucket may have files "a" and "a/b", of two hosts; a page that others wrote may name anything.
_OF_A_NAME = {errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOTEMPTY}

PAUSE_SECONDS = 10.0  # between two looks; a file that has not changed between them is not half-written
_LONGEST_SECONDS = 60.0  # for one that is written all the time, as a log may be
_AGAIN_SECONDS = 1.0  # at the end, after the store did not take everything
_PATIENCE_SECONDS = 600.0  # of the end: a right that was just given is known everywhere by then
_LOOK_SECONDS = 0.1  # between two looks whether the cluster ends the pod meanwhile
_LAST_SECONDS = 1.5  # once the cluster ends the pod: the log and the note need the rest


def address_of(task: Task) -> str:
    """Return the address to which this job's files go; "" where its output directory is a folder."""
    address = task.environment.get("KINETIC_OUTPUT_DIR", "")
    return address if "://" in address else ""


def path_of(address: str) -> str:
    """Return what an address is as a relative path: one slash is left of two."""
    return str(Path(address))


# -------------------------------------------------------------------------------------------------------- in the worker


def prepare(task: Task, say: Callable[[str], object]) -> None:
    """Make the folder, with what an earlier attempt wrote into its own; the function has not begun.

    Raises:
        StoreUnreachableError: What it wrote cannot be fetched now. Beginning without it would compute it again.
        OSError: The disk has no room for it.
    """
    if not (address := address_of(task)):
        return
    folder, found = Path.cwd() / path_of(address), dict[str, State]()
    try:
        for name in (address, task.environment.get("KINETIC_CHECKPOINT_DIR", address)):
            (Path.cwd() / path_of(name)).mkdir(parents=True, exist_ok=True)
    except OSError as error:  # the project has a file of this name
        say(f"kinetic: files that are written to {address} with open() are not sent there: {error}\n")
        return
    try:
        if task.attempt or not address.endswith(f"/{task.job_id}"):  # else nothing was written there
            found = _fetched(open_store(address), folder)
    except StoreUnreachableError:
        raise
    except KineticError as error:
        say(f"kinetic: what earlier attempts wrote to {address} could not be fetched: {error}\n")
    if found:
        say(f"kinetic: fetched {len(found)} file(s) that an earlier attempt wrote to {address}\n")
    task.sent.write_bytes(_page(found, folder=str(folder)))


def _fetched(store: Store, folder: Path) -> dict[str, State]:
    """Fetch the files that the pages of all hosts name, as far as they are still there."""
    named: dict[str, State] = {}
    for entry in store.entries(OUTPUT_PAGES):
        named |= _read_page(store.get(entry.key, length=documents.MOST_BYTES + 1), entry.key)

    def fetch(path: str, changed: int) -> tuple[str, State] | None:
        place = folder / path
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            store.fetch(path, place)
            os.utime(place, ns=(changed, changed))
            return path, (place.stat().st_size, changed)
        except StoreUnreachableError:
            raise
        except (KeyMissingError, OptionError, ValueError, OverflowError):
            return None
        except OSError as error:
            if error.errno not in _OF_A_NAME:
                raise
            return None

    tasks = (functools.partial(fetch, path, changed) for path, (_, changed) in named.items())
    return dict(each for each in in_parallel(store, tasks) if each is not None)


def _page(files: dict[str, State], **more: str) -> bytes:
    return documents.write_ascii({"schema": documents.SCHEMA, "files": files, **more})


def _read_page(data: bytes, what: str) -> dict[str, State]:
    """Return what a page names; nothing of one that says something else, or leads out of the folder."""
    try:
        files = documents.read(data, what)["files"]
        found = {str(path): (int(size), int(changed)) for path, (size, changed) in files.items()}
    except (IntegrityError, KeyError, TypeError, ValueError, AttributeError):
        return {}
    return {path: state for path, state in found.items() if not {"", ".", ".."} & set(path.split("/"))}


# ---------------------------------------------------------------------------------------------------- in the supervisor


class _Seen:
    """A file at one look: whether it is a whole one follows from the look before."""

    def __init__(self, state: State, number: int, before: _Seen | None) -> None:
        now = time.monotonic()
        self.state, self.number, self.is_whole = state, number, False
        self.changing_since: float = now
        if before is None:
            return
        is_replaced = before.number != number  # by another file, as os.replace does it
        self.is_whole = before.state == state or is_replaced or now > before.changing_since + _LONGEST_SECONDS
        if not self.is_whole:
            self.changing_since = before.changing_since


class OutputFiles(threading.Thread):
    """Sends the files of one host, until `finish`; a thread, so that a slow store does not delay what is watched."""

    def __init__(self, task: Task) -> None:
        super().__init__(name="kinetic-outputs", daemon=True)
        self._task, self._address = task, address_of(task)
        self._folder = ""  # "" until the function begins
        self._sent: dict[str, State] = {}
        self._numbers: dict[str, int] = {}  # of files that were sent: one may replace another within one second
        self._seen: dict[str, _Seen] = {}  # at the last look
        self._listed: dict[str, State] = {}  # in our page, from which a later attempt knows what to fetch
        self._refused: dict[str, str] = {}  # what cannot be read, or has a name that no bucket takes, and why
        self._trouble = ""
        self._look_seconds = 0.0  # of the processor, so without those in which this process was stopped
        self._last = threading.Event()

    def run(self) -> None:
        pause = PAUSE_SECONDS
        while not self._last.wait(pause):
            self._look_seconds = 0.0
            self._send(last=False)
            pause = max(PAUSE_SECONDS, 10 * self._look_seconds)  # for hundreds of thousands of files
        while not self._send(last=True):
            time.sleep(_AGAIN_SECONDS)

    def finish(self, wait: Callable[[float], bool]) -> str:
        """Send the rest, now that nothing writes any more; return what did not arrive, or "".

        ``wait`` waits for so many seconds, and returns whether there is no time left.
        """
        limit = time.monotonic() + _PATIENCE_SECONDS
        before, self._trouble = self._trouble, ""  # what did not arrive then is being sent now
        self._last.set()
        is_told = False
        while self._is_alive_after(_LOOK_SECONDS) and time.monotonic() < limit and not wait(0.0):
            if self._trouble and not is_told:
                words = f"its files cannot be sent to {self._address} yet, which is tried for ten minutes"
                folders.append(self._task.log, f"kinetic: the job has ended; {words}: {self._trouble}\n")
                is_told = True
        self.join(_LAST_SECONDS)
        lost = [f"{path}: {why}" for path, why in self._refused.items()]
        if self.is_alive():
            lost.append(self._trouble or before or "there was no time left")
        return "; ".join(lost)

    def _is_alive_after(self, seconds: float) -> bool:
        self.join(seconds)
        return self.is_alive()

    def _send(self, *, last: bool) -> bool:
        """Send what is new, or only what has settled; return whether everything is there."""
        try:
            if not self._has_begun():
                return True
            begun = time.thread_time()
            now = {path: _Seen(state, number, self._seen.get(path)) for path, state, number in self._files()}
            self._look_seconds = time.thread_time() - begun
            if not os.path.isdir(self._folder):
                return True  # who removes the folder means a clean disk, and not what is stored
            new = [path for path, each in now.items() if not self._is_sent(path, each) and (last or each.is_whole)]
            gone, self._seen = self._sent.keys() - now.keys(), now
            if new or gone or self._sent != self._listed:
                store = open_store(self._address)
                for path in in_parallel(store, (functools.partial(self._send_file, store, path) for path in new)):
                    if path not in self._refused:
                        self._sent[path], self._numbers[path] = now[path].state, now[path].number
                for path in in_parallel(store, (functools.partial(self._remove_file, store, path) for path in gone)):
                    del self._sent[path]
                if self._sent != self._listed:
                    store.put(f"{OUTPUT_PAGES}{self._task.host}.json", _page(self._sent))
                    self._listed = dict(self._sent)
            self._trouble = ""
        except Exception as error:  # noqa: BLE001 - whatever it is, the next time may succeed
            self._trouble = str(error)
            if isinstance(error, CredentialsError):
                with contextlib.suppress(KineticError):
                    open_anew(self._address)  # with those that there are by now
            return False
        return True

    def _is_sent(self, path: str, file: _Seen) -> bool:
        return self._sent.get(path) == file.state and self._numbers.get(path, file.number) == file.number

    def _has_begun(self) -> bool:
        if not self._folder and self._task.began.exists() and self._task.sent.exists():
            data = self._task.sent.read_bytes()
            self._sent = _read_page(data, str(self._task.sent))
            self._listed = dict(self._sent)
            self._folder = documents.read(data, str(self._task.sent))["folder"]
        return self._folder != ""

    def _files(self) -> Iterator[tuple[str, State, int]]:
        for path, about in folders.walk(self._folder):
            with contextlib.suppress(OSError):  # it was removed, or is a link that leads nowhere
                found = os.stat(f"{self._folder}/{path}") if stat.S_ISLNK(about.st_mode) else about
                if stat.S_ISREG(found.st_mode):
                    yield path, (found.st_size, found.st_mtime_ns), found.st_ino

    def _send_file(self, store: Store, path: str) -> str:
        self._refused.pop(path, None)
        try:
            with open(f"{self._folder}/{path}", "rb"):  # one that cannot be read holds up no other
                pass
            store.put(path, Path(self._folder, path))
        except FileNotFoundError:  # removed meanwhile: the next look notices
            pass
        except (OptionError, OSError) as error:
            self._refused[path] = reason_of(error)
        return path

    def _remove_file(self, store: Store, path: str) -> str:
        store.delete(path)
        return path
