"""Making data appear at the paths that the job was promised: volumes at their mount paths, views without a copy.

| | a private place can be had | it cannot |
|---|---|---|
| a volume | a mount that only this job sees | a link at the path, if the path is free; else an error |
| a view | a read-only mount in the job's folder | a link to the user's own files, and a line that says so |

With KINETIC_VOLUME_ROOT, and where the folder above a missing path is one that programs write into (a shadow of it
would be read-only), a volume is always a link.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinetic._runner.data import job_messages, mount_links
from kinetic._runner.worker import mount_namespace
from kinetic._runner.worker.mount_namespace import Mount
from kinetic._wire.order import DataRef
from kinetic.errors import DataError, DataMissingError

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
    instead = job_messages.rewritten(function, spot.ref.path)
    if root:
        if not os.path.isabs(os.path.expanduser(root)):
            raise mount_links.impossible(mount, f"KINETIC_VOLUME_ROOT={root!r} is no absolute path", instead)
        return os.path.normpath(f"{os.path.expanduser(root)}/{mount}")
    needed = (str(folder), str(workspace), sys.prefix, sys.base_prefix, "/proc/self", "/dev/null", *sys.path)
    hidden = [path for path in needed if path and Path(path).is_relative_to(os.path.realpath(mount))]
    if hidden:
        raise mount_links.impossible(mount, f"it would hide {hidden[0]}, which the job needs", instead)
    if os.path.lexists(mount) and not os.path.isdir(mount) and not os.path.islink(mount):
        raise mount_links.impossible(mount, "there is a file already", instead)
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
    job_messages.say(f"{spot.ref.path} is shown to the job by a link and is not write-protected ({why})")


def _link_volume(
    spot: MountPoint, target: str, folder: Path, cache: Path, environ: Mapping[str, str], function: str, refused: str
) -> None:
    owner = f"{environ.get('KINETIC_JOB_ID', folder)} {environ.get('KINETIC_ATTEMPT', '')}"
    instead = job_messages.rewritten(function, spot.ref.path)
    if refused:
        job_messages.say(f"{target} becomes a link, which every process of this machine sees: {refused}")
    try:
        ours = mount_links.put(target, spot.source, cache=cache, home=folder, owner=owner, instead=instead)
    except DataError as error:
        error.why = f"{error.why}; a private mount was refused, too: {refused}" if refused else error.why
        raise
    spot.is_elsewhere = not ours
