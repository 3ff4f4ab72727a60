"""What jobs wrote: listing it, and copying it here.

Outputs outlive everything else of a job; ``output_search`` finds those of any job that ever existed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._jobs import locate, status
from kinetic._output import terminal as output
from kinetic._output.format import names_text, size_text
from kinetic._stores import open_store, parallel
from kinetic._stores.protocol import check_key
from kinetic._wire import NamedTuple, folders, keys, order
from kinetic.errors import (
    DataMissingError,
    KeyMissingError,
    KineticError,
    OptionError,
    StoreError,
)

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord


_RUN = 0o111
_MANY = 5  # names in a message
_SAME_SECONDS = 1e-5  # a time that went through a float and back
_COARSE_SECONDS = 2.0  # the coarsest times of a file system, as of a memory stick
_SCRATCH = ".kinetic-get-"


class OutputLocation(NamedTuple):
    """Where the outputs of one job are."""

    job_id: str
    address: str  # the folder, or the address in a bucket
    host: str = ""  # another machine that shares the home and that the job ran on


class OutputFile(NamedTuple):
    """One file that a job wrote."""

    path: str  # below the output directory, with forward slashes
    size: int
    modified: float  # Unix time, by the store's clock
    key: str  # in the store; "" of what cannot be copied
    runs: bool = False  # whether it may be executed; only folders know


class FoundOutputs(NamedTuple):
    """What a job wrote, in the order of the paths."""

    store: Store
    files: tuple[OutputFile, ...]
    others: tuple[str, ...] = ()


class OutputRow(NamedTuple):
    """A file, or a folder (its path ends in "/") with all that is in it: how many files, bytes, and the latest time."""

    path: str
    files: int
    size: int
    modified: float


def find_files(place: OutputLocation, path: str = "") -> FoundOutputs:
    """Return what a job wrote, at and below one path of its output directory."""
    wanted = relative_path(path, place.job_id)
    store, prefix = _open(place.address)
    found = list(_files(store, prefix, wanted))
    if wanted and not found and (known := [file.path for file in _files(store, prefix)]):
        from difflib import get_close_matches  # 5 ms; only on the way to an error

        names = {path.rsplit("/", count)[0] for path in known for count in range(path.count("/") + 1)}
        near = get_close_matches(wanted, sorted(names), 3)
        raise DataMissingError(
            f"{place.job_id} wrote nothing at {wanted!r}",
            why=f"looked in {place.address}" + (f"; nearest: {', '.join(near)}" if near else ""),
            next=f"kinetic outputs ls {place.job_id}",
        )
    others = tuple(file.path for file in found if not file.key)
    return FoundOutputs(store, tuple(file for file in found if file.key), others)


def no_files_text(place: OutputLocation) -> str:
    """Say that a job has not written anything."""
    elsewhere = place.host if order.local_folder(place.address) else ""  # a bucket is the same from every machine
    ran = f"; it ran on {elsewhere}, and the folder can be there" if elsewhere else ""
    return f"{place.job_id} has not written any files to {place.address}{ran}"


def listing_rows(files: Iterable[OutputFile], path: str = "") -> list[OutputRow]:
    """Return one level of a listing: the files directly below a path, and the folders there."""
    start = f"{wanted}/" if (wanted := relative_path(path)) else ""
    found: dict[str, OutputRow] = {}
    for file in files:
        name, slash, _ = file.path.removeprefix(start).partition("/")
        shown = file.path if file.path == wanted else f"{start}{name}{slash}"
        before = found.get(shown, OutputRow(shown, 0, 0, file.modified))
        latest = max(before.modified, file.modified)
        found[shown] = OutputRow(shown, before.files + 1, before.size + file.size, latest)
    return list(found.values())


def relative_path(path: str, job_id: str = "@last") -> str:
    """Return a path below an output directory as files are named there; "" for all of it."""
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if path.startswith("/") or ".." in parts:
        raise OptionError(
            f"{path!r} is not a path below the output directory",
            why="it is absolute, or goes up with '..'",
            next=f"kinetic outputs ls {job_id}     lists what exists",
        )
    return "/".join(parts)


def location_of(job: JobRecord) -> OutputLocation:
    """Return where the outputs of a job are."""
    own = job.output_dir or default_address(locate.store_of(job), job.job_id)
    return OutputLocation(job.job_id, own, "" if locate.is_here(job) else status.place_of(job))


def default_address(store: Store, job_id: str) -> str:
    return order.output_address(f"{store.url}/{keys.outputs(job_id)}")


def _open(address: str) -> tuple[Store, str]:
    """Return the store of an output directory, and its prefix there."""
    folder = order.local_folder(address)
    if not folder:
        own = locate.local_store()
        inside_own = address.startswith(f"{own.url}/")
        return (own, f"{address.removeprefix(f'{own.url}/')}/") if inside_own else (open_store(address), "")
    above, name = os.path.split(folder.rstrip("/"))
    # The folder above: a store keeps a name directly below its own folder to itself, and a job may use every name.
    return open_store(above or "/"), f"{name}/" if name else ""


def _files(store: Store, prefix: str, wanted: str = "") -> Iterator[OutputFile]:
    """Yield what is below a prefix, or at and below one path there; what cannot be copied has no key."""
    if store.local is not None:
        yield from _files_here(store.local.root, prefix, wanted)
        return
    itself = store.entry(f"{prefix}{wanted}") if wanted else None
    below = store.entries(f"{prefix}{wanted}/" if wanted else prefix)
    for entry in (*filter(None, [itself]), *below):
        path = entry.key.removeprefix(prefix)
        if path.endswith("/") or order.is_output_page(path):  # some tools mark a folder by an empty object
            continue
        copies = not {"", ".", ".."} & set(path.split("/"))
        yield OutputFile(path, entry.size, entry.modified, entry.key if copies else "")


def _files_here(root: Path, prefix: str, wanted: str) -> Iterator[OutputFile]:
    """Yield what is in a folder. A link to a file of the same outputs is that file; any other is not followed."""
    itself: list[tuple[str, os.stat_result]] = []
    if wanted:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            itself = [(f"{prefix}{wanted}", folders.lstat(root, f"{prefix}{wanted}"))]
    below = folders.walk(root, f"{prefix}{wanted}/" if wanted else prefix)
    for found, about in (*itself, *below):
        key, seen = found, about
        if stat.S_ISLNK(about.st_mode):
            try:
                key, seen = _behind(root, prefix, found)
            except (FileNotFoundError, NotADirectoryError):  # nothing is there
                continue
        elif stat.S_ISDIR(about.st_mode):  # the wanted one
            continue
        copies = stat.S_ISREG(seen.st_mode) and _is_key(key)
        path = found.removeprefix(prefix)
        yield OutputFile(path, seen.st_size, seen.st_mtime, key if copies else "", bool(seen.st_mode & _RUN))


def _is_key(key: str) -> bool:
    """Return whether a store can name a file so; a line break, for example, is allowed in folders only."""
    try:
        check_key(key)
    except OptionError:
        return False
    return True


def _behind(root: Path, prefix: str, link: str) -> tuple[str, os.stat_result]:
    """Return what a link names inside the same outputs; itself where it leads out of them."""
    with folders.opened_parent(root, link) as folder:
        name = folders.name_of(link)
        target, itself = os.readlink(name, dir_fd=folder), os.stat(name, dir_fd=folder, follow_symlinks=False)
    inside = os.path.normpath(os.path.join(os.path.dirname(link.removeprefix(prefix)), target))
    if os.path.isabs(target) or inside.split("/")[0] == "..":
        return link, itself
    return prefix + inside, folders.lstat(root, prefix + inside)


def default_folder(job_id: str) -> Path:
    """Return where all outputs of a job are copied to: a folder that is left out of git and of this project's jobs."""
    with _writing(Path(order.DEFAULT_OUTPUT_FOLDER).absolute()):
        return Path(order.make_default_output_dir(), job_id)


class Copy:
    """A copy of outputs into a folder, with the same paths there; a thread may ask for its progress while it runs."""

    @classmethod
    def of(cls, place: OutputLocation, path: str, to: str | os.PathLike[str] | None, *, force: bool = False) -> Copy:
        """Prepare a copy of what a job wrote at and below a path, to ``outputs/JOB_ID`` if no folder is named."""
        found = find_files(place, path)
        if found.others and not found.files:
            raise DataMissingError(
                f"{place.job_id} has nothing to copy there: {names_text(found.others, _MANY)}",
                why="it is not a file, as a link to a folder, or has control characters in its name",
                next=f"kinetic outputs ls {place.job_id} --recursive",
            )
        if not found.files:
            why = "only files in the output folder are kept; the end of the log lists what a job wrote elsewhere"
            raise DataMissingError(no_files_text(place), why=why, next=f"kinetic jobs logs {place.job_id}")
        return cls(found, default_folder(place.job_id) if to is None else to, force=force)

    def __init__(self, found: FoundOutputs, to: str | os.PathLike[str], *, force: bool = False) -> None:
        self.to, self.others = Path(os.path.abspath(os.path.expanduser(to))), found.others
        self.missing: list[str] = []
        self._store = found.store
        with _writing(self.to):
            states = [(file, _state(file, self.to)) for file in found.files]
        self.same = [file for file, state in states if state == "same"]
        self.todo = [file for file, state in states if state != "same"]
        self.done: list[OutputFile] = []
        self._scratch: Path | None = None
        in_the_way = [file.path for file, state in states if state == "folder" or (state == "other" and not force)]
        if in_the_way:
            raise _in_the_way(in_the_way, self.to)

    def run(self) -> None:
        """Copy. Each file appears under its name when it is complete, with its time and its executable bits."""
        with _writing(self.to), output.phase("copying", detail=self.progress_text, summary=False):
            self.to.mkdir(parents=True, exist_ok=True)
            with _scratch_in(self.to) as scratch:
                self._scratch = scratch
                tasks = (self._task(file, scratch / str(number)) for number, file in enumerate(self.todo))
                for file, came in parallel.in_parallel(self._store, tasks):
                    self.done.append(file) if came else self.missing.append(file.path)
                self._scratch = None

    def progress_text(self) -> str:
        """Return how many files and bytes have been copied."""
        size = sum(file.size for file in self.done)
        with contextlib.suppress(OSError):  # incomplete files come and go
            for entry in list(os.scandir(self._scratch)) if self._scratch else ():
                size += entry.stat().st_size
        whole = sum(file.size for file in self.todo)
        return f"{len(self.done)} of {len(self.todo)} files, {size_text(min(size, whole))} of {size_text(whole)}"

    def _task(self, file: OutputFile, beside: Path) -> Callable[[], tuple[OutputFile, bool]]:
        def fetch() -> tuple[OutputFile, bool]:
            try:
                self._store.fetch(file.key, beside)
            except KeyMissingError:
                return file, False
            if file.runs:
                mode = beside.stat().st_mode
                beside.chmod(mode | ((mode & 0o444) >> 2 & _RUN))  # for whoever may read it
            os.utime(beside, (file.modified, file.modified))
            with folders.opened_parent(self.to, file.path, make=0o777) as folder:  # never through a link
                os.replace(beside, folders.name_of(file.path), dst_dir_fd=folder)
            return file, True

        return fetch


def _state(file: OutputFile, to: Path) -> str:
    """Return what is at a file's target: "nothing", the "same", an "other" file, or a "folder" or a link on the way."""
    try:
        about = folders.lstat(to, file.path)
    except FileNotFoundError:
        return "nothing"
    except NotADirectoryError:  # on the way there; a target that is not a folder itself is reported by the copy
        return "folder" if to.is_dir() else "nothing"
    if stat.S_ISDIR(about.st_mode):
        return "folder"
    late = file.modified - about.st_mtime
    is_same = stat.S_ISREG(about.st_mode) and about.st_size == file.size and -_SAME_SECONDS < late < _COARSE_SECONDS
    if is_same and late >= _SAME_SECONDS:
        is_same = abs(_as_kept(file.modified, to) - about.st_mtime) < _SAME_SECONDS
    return "same" if is_same else "other"


def _as_kept(modified: float, to: Path) -> float:
    """Return what the file system of a folder makes of a time: some keep whole seconds, or every other of them."""
    with _scratch_in(to) as scratch:
        os.utime(scratch, (modified, modified))
        return scratch.stat().st_mtime


def _in_the_way(paths: list[str], to: Path) -> OptionError:
    return OptionError(
        f"{to} holds other files under these names; nothing was copied",
        why=names_text(paths, _MANY),
        next="choose another folder with --to (to=), or add --force (force=True) to replace files; a folder is never "
        "replaced, nor a link on the way",
        code="file-exists",
    )


@contextlib.contextmanager
def _scratch_in(to: Path) -> Iterator[Path]:
    """Yield a folder for incomplete files. It is locked while its copy lives; what dead copies left is removed."""
    for left in to.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError), _locked(left):  # held: another copy is at work
            shutil.rmtree(left, ignore_errors=True)
    while True:
        with contextlib.ExitStack() as held:
            scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=to, ignore_cleanup_errors=True)
            path = Path(held.enter_context(scratch))
            with contextlib.suppress(OSError):  # without locks, it is not taken for a dead one's either
                held.enter_context(_locked(path, waits=True))
            if path.is_dir():  # until it was locked, a copy that began just now took it for a dead one's
                yield path
                return


@contextlib.contextmanager
def _locked(folder: Path, *, waits: bool = False) -> Iterator[None]:
    """Hold the lock of a folder; OSError when another process does, or wait for it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _writing(to: Path) -> Iterator[None]:
    """Raise an error of ours where a folder here cannot be written."""
    try:
        yield
    except StoreError as error:
        if error.code != "store-full":
            raise
        raise _not_saved(to, error.why or error.what) from error
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        raise _not_saved(to, f"{type(error).__name__}: {error.filename or to}: {error.strerror or error}") from error


def _not_saved(to: Path, why: str) -> KineticError:
    return KineticError(
        f"not everything could be copied into {to}",
        why=why,
        next="choose another folder with --to (to=), or free some space there; what was copied is not copied again",
        code="not-saved",
    )
