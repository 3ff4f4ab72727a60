"""Make data appear at the paths that the job was promised: volumes at their mount paths, views without a copy.

| | if private mounts work | if not |
|---|---|---|
| a volume | a mount that only this job sees | a link at the path, if the path is free; else an error |
| a view | a read-only mount in the job's folder | a link to the user's own files, and a message that says so |

With KINETIC_VOLUME_ROOT, and if the folder above a missing path is one that programs write into (what would cover it is
read-only), a volume is always a link.

A link's path is the same for every process of the machine, so a second job waits until the first is over. The hosts of
one slice share the link of the first of them, once its data is there. The lock of a path is held until the process
ends, however it ends: exclusively while the data is being fetched, shared from then on. A link that was left behind
points into the folder of a job, and the holder of the exclusive lock replaces it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from kinetic._runner import processes
from kinetic._runner.data.file_cache import LINKED_PAGE, Cache, hold_lock, relinked, stamp_of
from kinetic._runner.data.transfer import say
from kinetic._runner.worker import mount_namespace
from kinetic._runner.worker.mount_namespace import Mount
from kinetic._wire import NamedTuple, dataclass, folders
from kinetic._wire.order import DataRef
from kinetic.errors import DataError, DataMissingError

LINKS_PAGE = "links"  # in a job's folder: the links and folders that it made

_MOST_BYTES = 1 << 20  # of that page
_READY = "\nready"
_WRITTEN_TO = ("/tmp", "/var/tmp", "/dev/shm", "/dev", "/run")  # noqa: S108 - named so as not to cover them
_TRIES = 5  # to make a link in a folder that other jobs may remove
_TRY_SECONDS = 0.05
_held: list[tuple[int, str]] = []  # locks of this process and their owners; they stay for as long as it lives


class JobFolders(NamedTuple):
    """What one host of a job has for its data."""

    folder: Path  # new, of its own, on the disk of the cache; removed with the job
    cache: Path  # what this machine keeps
    environ: Mapping[str, str]  # of the job
    workspace: Path = Path()  # the user's project, which libraries that load data must not see
    shared: Path | None = None  # which the hosts of an emulated slice share; None for one host
    function: str = ""  # the user's, for messages


@dataclass
class MountPoint:
    """One reference and where it is."""

    ref: DataRef
    home: Path  # a folder of the job's own for it
    path: Path  # the file or folder itself, inside of ``home``
    shown: str = ""  # the path that the job gets
    is_elsewhere: bool = False  # the job finds it in the folder of another host of its slice

    @property
    def source(self) -> Path:
        """What a volume shows: a folder itself, or the folder that holds the single file."""
        return self.path if self.ref.is_dir else self.home


def place_mounts(mounts: Sequence[MountPoint], here: JobFolders) -> None:
    """Prepare everything that the job reads, and note where the job will find it.

    Raises DataError if a volume cannot be where it should be; the message shows the same call with an argument.
    """
    for each in mounts:
        _prepare(each)
        each.shown = str(each.path)
    root = here.environ.get("KINETIC_VOLUME_ROOT") or ""
    volumes = [each for each in mounts if each.ref.mount]
    targets = {id(each): _target(each, root, here) for each in volumes}
    volumes.sort(key=lambda each: (targets[id(each)].count("/"), targets[id(each)]))  # the same order in every process
    paths = list(targets.values())
    linked = [each for each in volumes if root or _must_be_a_link(targets[id(each)], paths, here.workspace)]
    views = list({each.path: each for each in mounts if each.ref.kind == "view"}.values())
    private = [Mount(each.ref.uri, str(each.path), read_only=True) for each in views]
    private += [Mount(str(each.source), os.path.realpath(targets[id(each)])) for each in volumes if each not in linked]
    refused = ""
    if private:
        staging = here.folder / ".staging"
        staging.mkdir(mode=0o700, exist_ok=True)
        refused = mount_namespace.mount_privately(private, str(staging))
    if refused:
        for each in views:
            _link_view(each, refused)
        linked = volumes
    for each in linked:
        _link_volume(each, targets[id(each)], here, "" if root else refused)
    for each in volumes:
        each.shown = targets[id(each)] if each.ref.is_dir else f"{targets[id(each)]}/{each.path.name}"


def _prepare(mount: MountPoint) -> None:
    mount.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if mount.ref.kind == "view":
        if not os.path.exists(mount.ref.uri):
            raise DataMissingError(f"{mount.ref.path!r} does not exist any more", why=f"there is no {mount.ref.uri}")
        if not mount.ref.is_dir:
            mount.path.touch()
            return
    if mount.ref.is_dir:
        mount.path.mkdir(exist_ok=True)


def _target(mount: MountPoint, root: str, here: JobFolders) -> str:
    """Return the path of a volume, and reject one that would hide what the job needs."""
    path = os.path.normpath(mount.ref.mount)
    why = ""
    if root:
        if os.path.isabs(os.path.expanduser(root)):
            return os.path.normpath(f"{os.path.expanduser(root)}/{path}")
        why = f"KINETIC_VOLUME_ROOT={root!r} is not an absolute path"
    else:
        ours = (str(here.folder), os.path.abspath(here.workspace), sys.prefix, sys.base_prefix)
        needed = (*ours, "/proc/self", "/dev/null", *sys.path)
        hidden = [each for each in needed if each and Path(each).is_relative_to(os.path.realpath(path))]
        if hidden:
            why = f"it would hide {hidden[0]}, which the job needs"
        elif os.path.lexists(path) and not os.path.isdir(path) and not os.path.islink(path):
            why = "there is a file already"
    if why:
        raise _volume_error(path, why, _as_argument(here.function, mount))
    return path


def _must_be_a_link(target: str, others: Sequence[str], workspace: Path) -> bool:
    """Return whether a path cannot be mounted at: missing in a folder that programs write into, or a broken link."""
    if os.path.islink(target) and not os.path.isdir(target):  # left behind, or not ours
        return True
    if os.path.isdir(target) or any(target.startswith(f"{other}/") for other in others):
        return False
    written = {*_WRITTEN_TO, tempfile.gettempdir(), os.path.expanduser("~"), str(workspace)}
    return os.path.realpath(mount_namespace.above(target)) in {os.path.realpath(path) for path in written}


def _link_view(mount: MountPoint, why: str) -> None:
    if mount.ref.is_dir:
        mount.path.rmdir()
    else:
        mount.path.unlink()
    mount.path.symlink_to(mount.ref.uri)
    say(f"{mount.ref.path} is shown to the job by a link and is not write-protected ({why})")


def _link_volume(mount: MountPoint, target: str, here: JobFolders, refused: str) -> None:
    owner = f"{here.environ.get('KINETIC_JOB_ID', here.folder)} {here.environ.get('KINETIC_ATTEMPT', '')}"
    if refused:
        say(f"{target} becomes a link, which every process of this machine sees: {refused}")
    try:
        instead = _as_argument(here.function, mount)
        ours = put_link(target, mount.source, cache=here.cache, home=here.folder, owner=owner, instead=instead)
    except DataError as error:
        error.why = f"{error.why}; a private mount was refused, too: {refused}" if refused else error.why
        raise
    mount.is_elsewhere = not ours


def _as_argument(function: str, mount: MountPoint) -> str:
    return f"{function or 'train'}(..., data=kinetic.Data({mount.ref.path!r}))"


def _volume_error(target: str, why: str, instead: str) -> DataError:
    return DataError(
        f"the volume {target} cannot be made on this machine",
        why=why,
        next=f"pass the data as an argument, which works everywhere: {instead}",
        code="volume",
    )


# --------------------------------------------------------------------------------------------------------------- links


def put_link(target: str, source: Path, *, cache: Path, home: Path, owner: str, instead: str) -> bool:
    """Make a job find its data at a path, by a link; the hosts of one attempt give the same ``owner``.

    Returns True when the link is ours, and ``share_links`` is to be called once the data is there; False when another
    host of the same slice made it, and the data is there. It is noted in ``home``, and removed with the job.
    """
    lock = _lock_path(cache, target)
    folders.make(lock.parent)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not _has_exclusive_lock(descriptor, target, owner):
        fcntl.lockf(descriptor, fcntl.LOCK_SH)  # once the host that makes the link has its data
        if _owner(descriptor) == owner + _READY:
            _held.append((descriptor, ""))
            return False
        fcntl.lockf(descriptor, fcntl.LOCK_UN)  # that host died before it was ready
    _make_link(target, source, home, instead)
    _set_owner(descriptor, owner)
    _held.append((descriptor, owner))
    return True


def share_links() -> None:
    """Note that the data is there: other hosts of the same slice may use the links that this process made."""
    for descriptor, owner in _held:
        if owner:
            _set_owner(descriptor, owner + _READY)
            fcntl.lockf(descriptor, fcntl.LOCK_SH)


def _has_exclusive_lock(descriptor: int, target: str, owner: str) -> bool:
    """Take the lock for this process alone; False when another host of the same slice has it.

    It is tried again and again: who waited inside of the kernel would not see that a host of its own slice was faster,
    or that the holder had not yet written whose it is.
    """
    is_told = False
    while True:
        with contextlib.suppress(BlockingIOError, PermissionError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        holder = _owner(descriptor).removesuffix(_READY)
        if holder == owner:
            return False
        if holder and not is_told:
            is_told = True
            say(f"waiting for another job that has its data at {target}")
        time.sleep(_TRY_SECONDS)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 1024, 0).decode(errors="replace")


def _set_owner(descriptor: int, owner: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, owner.encode(), 0)


def _lock_path(cache: Path, target: str) -> Path:
    return cache / "links" / hashlib.sha256(os.fsencode(target)).hexdigest()


def _make_link(target: str, source: Path, home: Path, instead: str) -> None:
    if os.path.lexists(target) and not _is_left_over(target, home):
        what = "a folder that is not kinetic's" if os.path.isdir(target) else "a file"
        raise _volume_error(target, f"there is {what} already, and nothing is ever written into it", instead)
    beside = f"{target}.kinetic-{os.getpid():x}"
    try:
        for left in reversed(range(_TRIES)):
            _note_link(home, target)
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.symlink(source, beside)
                break
            except FileNotFoundError:  # a job that ends has just removed a folder that it had made for its own links
                if not left:
                    raise
        try:
            os.replace(beside, target)  # over a link that was left behind
        except OSError:
            os.unlink(beside)
            raise
    except OSError as error:
        raise _volume_error(target, str(error), instead) from error


def _is_left_over(target: str, home: Path) -> bool:
    """Return whether a path is a link into the folder of a job of this machine, which is over: we hold its lock."""
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
        lines = folders.read_file(home, LINKS_PAGE, _MOST_BYTES).splitlines()
    except OSError:
        return
    for line in reversed(lines):  # folders of an earlier link may hold a later one
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):  # a job can write there
            target, *made = json.loads(line)
            with hold_lock(_lock_path(cache, target), patient=False) as held:
                if held and os.path.islink(target) and Path(os.readlink(target)).is_relative_to(home):
                    os.unlink(target)
                    for folder in made:
                        os.rmdir(folder)


def release(folder: Path, cache: Path) -> None:
    """Remove a job's folder for data, and its links; never fails: what stays is swept.

    Removing a hard link changes the ctime of the kept file. So that it need not be read again for that, the stamps of
    files that were right before are noted anew.
    """
    if not processes.detach_mounts(folder):
        return
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            return
        remove_links(folder, cache)
        with contextlib.ExitStack() as locked:
            before = []
            for name in _linked(folder):
                kept = Cache(cache)
                if locked.enter_context(kept.lock(name, patient=False)) and (manifest := kept.manifest(name)):
                    known = kept.seen(name)
                    now = {file.digest: stamp_of(kept.path(file)) for file in manifest.files}
                    right = {digest: stamp for digest, stamp in known.items() if now.get(digest) == stamp}
                    before.append((kept, name, manifest, right))
            shutil.rmtree(folder, ignore_errors=True)
            for kept, name, manifest, right in before:
                kept.note(name, manifest.files, relinked(kept, manifest, right))
    shutil.rmtree(folder, ignore_errors=True)


def _linked(folder: Path) -> list[str]:
    try:
        return sorted(set((folder / LINKED_PAGE).read_text().split()))
    except OSError:
        return []
