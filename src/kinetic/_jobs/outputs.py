"""What jobs wrote: finding it for any job that ever was, and listing it; ``copying`` brings it here.

Outputs outlive everything else of a job. So a job is looked for among those that are kept, then in the history of
removed ones, and in the end by the folder that it left: ``{store}/outputs/{job_id}``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kinetic._jobs import describing, finding, places, tombstones
from kinetic._stores import open_store
from kinetic._wire import descriptors, keys, names, outputs
from kinetic.errors import BackendUnavailableError, DataMissingError, JobNotFoundError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._stores.protocol import Store
    from kinetic._wire.handles import JobRecord

_RUN = 0o111


class Place(NamedTuple):
    """Where the outputs of one job lie.

    Attributes:
        job_id: The job.
        address: The folder, or the address in a bucket.
        host: Another machine that shares the home and that the job ran on, or "".
    """

    job_id: str
    address: str
    host: str = ""


class File(NamedTuple):
    """One file that a job wrote.

    Attributes:
        path: Below the output directory, with forward slashes.
        size: Bytes.
        modified: Unix time, by the store's clock.
        key: Where it lies in the store.
        runs: Whether it may be executed; only folders know.
    """

    path: str
    size: int
    modified: float
    key: str
    runs: bool = False


class Found(NamedTuple):
    """What a job wrote.

    Attributes:
        store: What holds it.
        files: In the order of their paths.
        others: Paths of what is no file and is never copied: sockets, links to folders or out of the outputs, names
            that lead elsewhere.
    """

    store: Store
    files: tuple[File, ...]
    others: tuple[str, ...] = ()


class Row(NamedTuple):
    """A file, or a folder with all that is in it.

    Attributes:
        path: Below the output directory; a folder's ends in "/".
        files: How many.
        size: What they hold, in bytes.
        modified: When the latest was written.
    """

    path: str
    files: int
    size: int
    modified: float


def newest(project: str | None = None, zone: str | None = None, cluster: str | None = None) -> Place | None:
    """Return the place of the job that was submitted last, collected, removed or not; None where there is none."""
    kept = finding.newest(project=project, zone=zone, cluster=cluster)
    store = places.local_store()
    removed = {str(page.get("job_id", "")): page for page in tombstones.listed(store)}
    if kept is not None:
        removed.pop(kept.job_id, None)
    first = next(iter(finding.order_of([kept] if kept else [], [*removed.values()])), "")
    if first in removed:
        return _place_of_page(store, removed[first])
    return _place_of(kept) if kept is not None else None


def find(job_id: str, project: str | None = None, cluster: str | None = None) -> Place:
    """Return the place of a job: one that is kept, one of the history, or one that only its outputs are left of.

    Args:
        job_id: Its id, or the beginning of it if only one job begins so.
        project: As for ``attach``.
        cluster: As for ``attach``.

    Raises:
        JobNotFoundError: There is no such job, and there are no outputs of one.
        OptionError: It cannot be an id, or several jobs begin so.
    """
    try:
        return _place_of(finding.attach(job_id, project=project, cluster=cluster))
    except (JobNotFoundError, BackendUnavailableError):
        removed = _find_removed(places.local_store(), job_id)
        if removed is None:
            raise
        return removed


def look(place: Place, path: str = "") -> Found:
    """Look at what a job wrote.

    Args:
        place: Of the job.
        path: A file or folder below the output directory; "" for all of it.

    Raises:
        DataMissingError: There is no such file or folder, though there are others.
        OptionError: The path leads out of the output directory.
    """
    wanted = inside(path)
    store, prefix = _open(place.address)
    found = list(_files(store, prefix, wanted))
    if wanted and not found and (known := [file.path for file in _files(store, prefix)]):
        raise _no_such(place, wanted, known)
    others = tuple(file.path for file in found if not file.key)
    return Found(store, tuple(file for file in found if file.key), others)


def rows(files: Iterable[File], path: str = "") -> list[Row]:
    """Put files together as one level of a listing shows them: those directly below a path, and the folders there."""
    start = f"{wanted}/" if (wanted := inside(path)) else ""
    found: dict[str, Row] = {}
    for file in files:
        name, slash, _ = file.path.removeprefix(start).partition("/")
        shown = file.path if file.path == wanted else f"{start}{name}{slash}"
        before = found.get(shown, Row(shown, 0, 0, file.modified))
        latest = max(before.modified, file.modified)
        found[shown] = Row(shown, before.files + 1, before.size + file.size, latest)
    return list(found.values())


def inside(path: str) -> str:
    """Return a path below an output directory as files are named there; "" for the whole of it.

    Raises:
        OptionError: It leads out of it.
    """
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts:
        raise OptionError(
            f"{path!r} is not a path below the output directory",
            why="it begins at the root, or goes up with '..'",
            next="kinetic outputs ls JOB     names what is there",
        )
    return "/".join(parts)


def _place_of(job: JobRecord) -> Place:
    own = job.output_dir or _default(places.store_of(job), job.job_id)
    return Place(job.job_id, own, "" if places.is_here(job) else describing.place_of(job))


def _place_of_page(store: Store, page: dict[str, object]) -> Place:
    job_id = str(page["job_id"])
    host = page.get("host")
    elsewhere = f"host {host}" if host not in {None, places.machine()} else ""
    return Place(job_id, str(page.get("output_dir") or _default(store, job_id)), elsewhere)


def _default(store: Store, job_id: str) -> str:
    return outputs.address(f"{store.url}/{keys.outputs(job_id)}")


def _find_removed(store: Store, job_id: str) -> Place | None:
    """Return the place of a removed job: from its tombstone, or by the folder that it left."""
    left = set(store.folders(keys.OUTPUTS))
    known = tombstones.ids(store) | left
    alike = [job_id] if job_id in known else sorted(name for name in known if name.startswith(job_id))
    found = names.the_one(job_id, alike, "ids of removed jobs")
    if found is None:
        return None
    page = tombstones.seen(store, found)
    return Place(found, _default(store, found)) if page is None else _place_of_page(store, page)


def _open(address: str) -> tuple[Store, str]:
    """Return the store that an output directory lies in, and its prefix there."""
    folder = outputs.folder_of(address)
    if not folder:
        own = places.local_store()
        inside_own = address.startswith(f"{own.url}/")
        return (own, f"{address.removeprefix(f'{own.url}/')}/") if inside_own else (open_store(address), "")
    above, name = os.path.split(folder.rstrip("/"))
    # The folder above: a store keeps a name directly below its own folder to itself, and a job may use every name.
    return open_store(above or "/"), f"{name}/" if name else ""


def _files(store: Store, prefix: str, wanted: str = "") -> Iterator[File]:
    """Yield what lies below a prefix, or at and below one path there; what cannot be copied has no key."""
    if store.local is not None:
        yield from _files_here(store.local.root, prefix, wanted)
        return
    itself = store.entry(f"{prefix}{wanted}") if wanted else None
    below = store.entries(f"{prefix}{wanted}/" if wanted else prefix)
    for entry in (*filter(None, [itself]), *below):
        path = entry.key.removeprefix(prefix)
        if path.endswith("/"):  # some tools mark a folder of a bucket by an empty object
            continue
        copies = not {"", ".", ".."} & set(path.split("/"))
        yield File(path, entry.size, entry.modified, entry.key if copies else "")


def _files_here(root: Path, prefix: str, wanted: str) -> Iterator[File]:
    """Yield what lies in a folder. A link to a file of the same outputs is that file; any other is not followed."""
    itself: list[tuple[str, os.stat_result]] = []
    if wanted:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            itself = [(f"{prefix}{wanted}", descriptors.about(root, f"{prefix}{wanted}"))]
    below = descriptors.walk(root, f"{prefix}{wanted}/" if wanted else prefix)
    for found, about in (*itself, *below):
        key, seen = found, about
        if stat.S_ISLNK(about.st_mode):
            try:
                key, seen = _behind(root, prefix, found)
            except (FileNotFoundError, NotADirectoryError):  # nothing is there
                continue
        elif stat.S_ISDIR(about.st_mode):  # the wanted one
            continue
        copies = stat.S_ISREG(seen.st_mode)
        path = found.removeprefix(prefix)
        yield File(path, seen.st_size, seen.st_mtime, key if copies else "", bool(seen.st_mode & _RUN))


def _behind(root: Path, prefix: str, link: str) -> tuple[str, os.stat_result]:
    """Return what a link names inside the same outputs; itself where it leads out of them."""
    with descriptors.above(root, link) as folder:
        name = descriptors.name_of(link)
        target, itself = os.readlink(name, dir_fd=folder), os.stat(name, dir_fd=folder, follow_symlinks=False)
    inside = os.path.normpath(os.path.join(os.path.dirname(link.removeprefix(prefix)), target))
    if os.path.isabs(target) or inside.split("/")[0] == "..":
        return link, itself
    return prefix + inside, descriptors.about(root, prefix + inside)


def _no_such(place: Place, wanted: str, paths: Iterable[str]) -> DataMissingError:
    from difflib import get_close_matches  # 5 ms; only on the way to an error

    known = {path.rsplit("/", count)[0] for path in paths for count in range(path.count("/") + 1)}
    near = get_close_matches(wanted, sorted(known), 3)
    return DataMissingError(
        f"{place.job_id} wrote nothing at {wanted!r}",
        why=f"looked in {place.address}" + (f"; nearest: {', '.join(near)}" if near else ""),
        next=f"kinetic outputs ls {place.job_id}",
    )
