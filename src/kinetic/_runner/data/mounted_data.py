"""Making data appear at the paths that the job was promised: volumes at their mount paths, views without a copy.

| | a private place can be had | it cannot |
|---|---|---|
| a volume | a mount that only this job sees | a link at the path, if the path is free; else an error |
| a view | a read-only mount in the job's folder | a link to the user's own files, and a line that says so |

With KINETIC_VOLUME_ROOT, and where the folder above a missing path is one that programs write into (a shadow of it
would be read-only), a volume is always a link.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinetic._runner.data import file_cache
from kinetic._runner.data.file_cache import hold_lock
from kinetic._runner.worker import mount_namespace
from kinetic._runner.worker.mount_namespace import Mount
from kinetic._wire import folders
from kinetic._wire.order import DataRef
from kinetic.errors import DataError, DataMissingError

LINKS_PAGE = "links"  # in a job's folder: the links and folders that it made
_READY = "\nready"
_held: list[tuple[int, str]] = []  # locks of this process and who owns them; they stay for as long as it lives


def put_link(target: str, source: Path, *, cache: Path, home: Path, owner: str, instead: str) -> bool:
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
    _make_link(target, source, home, instead)
    _set_owner(descriptor, owner)
    _held.append((descriptor, owner))
    return True


def share_links() -> None:
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
        file_cache.say(f"waiting for another job that has its data at {target}")
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
    return True


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 1024, 0).decode(errors="replace")


def _set_owner(descriptor: int, owner: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode(), 0)


def _lock_path(cache: Path, target: str) -> Path:
    return cache / "links" / hashlib.sha256(os.fsencode(target)).hexdigest()


def _make_link(target: str, source: Path, home: Path, instead: str) -> None:
    """Make the link; nobody else has the lock."""
    if os.path.lexists(target) and not _is_left_over(target, home):
        what = "a folder that is not kinetic's" if os.path.isdir(target) else "a file"
        raise volume_error(target, f"there is {what} already, and nothing is ever written into it", instead)
    beside = f"{target}.kinetic-{os.getpid():x}"
    try:
        _note_link(home, target)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(source, beside)
        try:
            os.replace(beside, target)  # over a link that was left behind
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise volume_error(target, str(error), instead) from error


def _is_left_over(target: str, home: Path) -> bool:
    """Say whether a path is a link into the folder of a job of this machine; we hold its lock, so that job is over."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(target)).is_relative_to(home.parent.parent)
    return False


def _note_link(home: Path, target: str) -> None:
    """Write down a link, and which folders above it are ours, before they are made."""
    made = []
    above = os.path.dirname(target)
    while not os.path.lexists(above):
        made.append(above)
        above = os.path.dirname(above)
    with open(home / LINKS_PAGE, "a", encoding="ascii") as page:
        page.write(json.dumps([target, *made]) + "\n")


def remove_links(home: Path, cache: Path) -> None:
    """Remove the links of a job that is over, if they are still its own."""
    try:
        lines = (home / LINKS_PAGE).read_text().splitlines()
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


def volume_error(target: str, why: str, instead: str) -> DataError:
    """Make the error of a volume that cannot be, with the call that works in its place."""
    return DataError(
        f"the volume {target} cannot be made on this machine",
        why=why,
        next=f"pass the data as an argument, which works everywhere: {instead}",
        code="volume",
    )


_WRITTEN_TO = ("/tmp", "/var/tmp", "/dev/shm", "/dev", "/run")  # noqa: S108 - named so as not to cover them


@dataclass
class MountPoint:
    """One reference and where it lies.

    Attributes:
        ref: The reference.
        home: A folder of the job's own for it.
        path: The file or folder itself, inside of ``home``.
        shown: The path that the job is told.
        is_elsewhere: Whether the job finds it in the folder of another host of its slice.
    """

    ref: DataRef
    home: Path
    path: Path
    shown: str = ""
    is_elsewhere: bool = False

    @property
    def source(self) -> Path:
        """What a volume shows: a folder itself, or the folder in which the single file lies."""
        return self.path if self.ref.is_dir else self.home


def place_mounts(
    spots: Sequence[MountPoint],
    *,
    folder: Path,
    cache: Path,
    environ: Mapping[str, str],
    workspace: Path,
    function: str,
) -> None:
    """Prepare every spot, and say where the job will find it.

    Args:
        spots: What the job reads.
        folder: The job's folder for data.
        cache: The folder of this machine's cache.
        environ: The job's environment.
        workspace: Where the job runs.
        function: The name of the user's function, for messages.

    Raises:
        DataError: A volume cannot be where it shall be; the message has the same call with an argument.
    """
    for spot in spots:
        _make_ready(spot)
        spot.shown = str(spot.path)
    root = environ.get("KINETIC_VOLUME_ROOT") or ""
    volumes = [spot for spot in spots if spot.ref.mount]
    targets = {id(spot): _target(spot, root, folder, workspace, function) for spot in volumes}
    volumes.sort(key=lambda spot: (targets[id(spot)].count("/"), targets[id(spot)]))  # the same order for everybody
    linked = [spot for spot in volumes if root or _must_be_a_link(targets[id(spot)], list(targets.values()), workspace)]
    views = list({spot.path: spot for spot in spots if spot.ref.kind == "view"}.values())
    mounted = [spot for spot in volumes if spot not in linked]
    if refused := _mount(views, mounted, targets, folder):
        for spot in views:
            _link_view(spot, refused)
        linked = volumes
    for spot in linked:
        _link_volume(spot, targets[id(spot)], folder, cache, environ, function, "" if root else refused)
    for spot in volumes:
        spot.shown = targets[id(spot)] if spot.ref.is_dir else f"{targets[id(spot)]}/{spot.path.name}"


def _make_ready(spot: MountPoint) -> None:
    """Make what a mount or a file can stand on."""
    spot.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if spot.ref.kind == "view":
        if not os.path.exists(spot.ref.uri):
            raise DataMissingError(f"{spot.ref.path!r} is not there any more", why=f"{spot.ref.uri} does not exist")
        if not spot.ref.is_dir:
            spot.path.touch()
            return
    if spot.ref.is_dir:
        spot.path.mkdir(exist_ok=True)


def _target(spot: MountPoint, root: str, folder: Path, workspace: Path, function: str) -> str:
    """Return the path of a volume, and refuse one that would cover what the job stands on."""
    mount = os.path.normpath(spot.ref.mount)
    instead = file_cache.rewritten(function, spot.ref.path)
    if root:
        if not os.path.isabs(os.path.expanduser(root)):
            raise volume_error(mount, f"KINETIC_VOLUME_ROOT={root!r} is no absolute path", instead)
        return os.path.normpath(f"{os.path.expanduser(root)}/{mount}")
    needed = (str(folder), str(workspace), sys.prefix, sys.base_prefix, "/proc/self", "/dev/null", *sys.path)
    hidden = [path for path in needed if path and Path(path).is_relative_to(os.path.realpath(mount))]
    if hidden:
        raise volume_error(mount, f"it would hide {hidden[0]}, which the job needs", instead)
    if os.path.lexists(mount) and not os.path.isdir(mount) and not os.path.islink(mount):
        raise volume_error(mount, "there is a file already", instead)
    return mount


def _must_be_a_link(target: str, others: Sequence[str], workspace: Path) -> bool:
    """Say whether a path cannot be mounted at: it is missing in a folder that programs write into, or a broken link."""
    if os.path.islink(target) and not os.path.isdir(target):  # left behind, or none of our business
        return True
    if os.path.isdir(target) or any(target.startswith(f"{other}/") for other in others):
        return False
    written = {*_WRITTEN_TO, tempfile.gettempdir(), os.path.expanduser("~"), str(workspace)}
    return os.path.realpath(mount_namespace.above(target)) in {os.path.realpath(path) for path in written}


def _mount(views: Sequence[MountPoint], volumes: Sequence[MountPoint], targets: Mapping[int, str], folder: Path) -> str:
    """Mount what is to be mounted; return why that was refused, or ""."""
    showings = [Mount(spot.ref.uri, str(spot.path), read_only=True) for spot in views]
    showings += [Mount(str(spot.source), os.path.realpath(targets[id(spot)])) for spot in volumes]
    if not showings:
        return ""
    staging = folder / ".staging"
    staging.mkdir(mode=0o700, exist_ok=True)
    return mount_namespace.mount_privately(showings, str(staging))


def _link_view(spot: MountPoint, why: str) -> None:
    if spot.ref.is_dir:
        spot.path.rmdir()
    else:
        spot.path.unlink()
    spot.path.symlink_to(spot.ref.uri)
    file_cache.say(f"{spot.ref.path} is shown to the job by a link and is not write-protected ({why})")


def _link_volume(
    spot: MountPoint, target: str, folder: Path, cache: Path, environ: Mapping[str, str], function: str, refused: str
) -> None:
    owner = f"{environ.get('KINETIC_JOB_ID', folder)} {environ.get('KINETIC_ATTEMPT', '')}"
    instead = file_cache.rewritten(function, spot.ref.path)
    if refused:
        file_cache.say(f"{target} becomes a link, which every process of this machine sees: {refused}")
    try:
        ours = put_link(target, spot.source, cache=cache, home=folder, owner=owner, instead=instead)
    except DataError as error:
        error.why = f"{error.why}; a private mount was refused, too: {refused}" if refused else error.why
        raise
    spot.is_elsewhere = not ours
