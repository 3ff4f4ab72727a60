"""A volume where no private place can be made: a link at its path, for one job at a time.

The path is the same for everybody on the machine, so a second job waits until the first is over. The hosts of one
slice share the link of the first of them, once its data is there. The lock of a path is held until the process ends,
however it ends: alone while the data is being fetched, shared from then on. A link that was left behind points into
the folder of a job, and whoever holds the lock alone replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path

from kinetic._runner.data import job_messages
from kinetic._runner.data.file_cache import hold_lock
from kinetic._wire import folders
from kinetic.errors import DataError

PAGE = "links"  # in a job's folder: the links and folders that it made
_READY = "\nready"
_held: list[tuple[int, str]] = []  # locks of this process and who owns them; they stay for as long as it lives


def put(target: str, source: Path, *, cache: Path, home: Path, owner: str, instead: str) -> bool:
    """See to it that a job finds its data at a path, by a link.

    Args:
        target: The path of the volume.
        source: Where the data will lie.
        cache: The folder of this machine's cache; the locks lie in it.
        home: This job's folder for data, in which the link is noted so that it goes with it.
        owner: Who asks: the hosts of one attempt give the same name.
        instead: The same call with an argument in place of the volume.

    Returns:
        True when the link is ours, and ``ready`` is to be called once the data is there; False when another host of
        the same slice made it, and the data is there.

    Raises:
        DataError: Something else is at the path, or no link can be made there.
    """
    lock = _lock_path(cache, target)
    folders.make(lock.parent)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not _is_alone(descriptor, target, owner):
        fcntl.lockf(descriptor, fcntl.LOCK_SH)  # once the host that makes the link has its data
        if _owner(descriptor) == owner + _READY:
            _held.append((descriptor, ""))
            return False
        fcntl.lockf(descriptor, fcntl.LOCK_UN)  # that host died on the way
    _make(target, source, home, instead)
    _set_owner(descriptor, owner)
    _held.append((descriptor, owner))
    return True


def ready() -> None:
    """Say that the data is there: other hosts of the same slice may use the links that this process made."""
    for descriptor, owner in _held:
        if owner:
            _set_owner(descriptor, owner + _READY)
            fcntl.lockf(descriptor, fcntl.LOCK_SH)


def _is_alone(descriptor: int, target: str, owner: str) -> bool:
    """Take the lock for this process alone; False when another host of the same slice has it."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        if _owner(descriptor).removesuffix(_READY) == owner:
            return False
        job_messages.say(f"waiting for another job that has its data at {target}")
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    return True


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 1024, 0).decode(errors="replace")


def _set_owner(descriptor: int, owner: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode(), 0)


def _lock_path(cache: Path, target: str) -> Path:
    return cache / "links" / hashlib.sha256(os.fsencode(target)).hexdigest()


def _make(target: str, source: Path, home: Path, instead: str) -> None:
    """Make the link; nobody else has the lock."""
    if os.path.lexists(target) and not _is_left_over(target, home):
        what = "a folder that is not kinetic's" if os.path.isdir(target) else "a file"
        raise impossible(target, f"there is {what} already, and nothing is ever written into it", instead)
    beside = f"{target}.kinetic-{os.getpid():x}"
    try:
        _note(home, target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(source, beside)
        try:
            os.replace(beside, target)  # over a link that was left behind
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise impossible(target, str(error), instead) from error


def _is_left_over(target: str, home: Path) -> bool:
    """Say whether a path is a link into the folder of a job of this machine; we hold its lock, so that job is over."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(target)).is_relative_to(home.parent.parent)
    return False


def _note(home: Path, target: str) -> None:
    """Write down a link, and which folders above it are ours, before they are made."""
    made = []
    above = os.path.dirname(target)
    while not os.path.lexists(above):
        made.append(above)
        above = os.path.dirname(above)
    with open(home / PAGE, "a", encoding="ascii") as page:
        page.write(json.dumps([target, *made]) + "\n")


def remove(home: Path, cache: Path) -> None:
    """Remove the links of a job that is over, if they are still its own."""
    try:
        lines = (home / PAGE).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(OSError, ValueError):
            target, *made = json.loads(line)
            with hold_lock(_lock_path(cache, target), patient=False) as held:
                if held and os.path.islink(target) and Path(os.readlink(target)).is_relative_to(home):
                    os.unlink(target)
                    for folder in made:
                        os.rmdir(folder)


def impossible(target: str, why: str, instead: str) -> DataError:
    """Make the error of a volume that cannot be, with the call that works in its place."""
    return DataError(
        f"the volume {target} cannot be made on this machine",
        why=why,
        next=f"pass the data as an argument, which works everywhere: {instead}",
        code="volume",
    )
