"""Which files of a project got new contents, of those that would be sent with a job.

On Linux the kernel reports changes (inotify). Elsewhere, and where it has no watches left, all files are looked at
twice a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import select
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinetic._blobs.file_tree import File
from kinetic._output import terminal as output
from kinetic._project import archive, ignore, root
from kinetic._project.ignore import Rules
from kinetic._project.root import Plan
from kinetic._runner import processes
from kinetic._wire import NamedTuple, folders

LOOK_SECONDS = 0.5  # between two looks at all files, where the kernel reports nothing
SETTLE_SECONDS = 0.1  # one save is several events, and `git checkout` is many
_LONGEST_SECONDS = 2.0  # then a burst counts as over: something writes all the time
_LARGE_BYTES = 64 << 20  # a larger file is not read: it counts as changed when its times are

# What editors write beside a file while it is open: vim, emacs, nano, JetBrains, GNOME.
_OF_AN_EDITOR = re.compile(r"\..*\.sw[a-z]|4913|.*~|#.*#|\.#.*|.*___jb_(tmp|old|bak)___|\.goutputstream-.*")

_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name behind it
_CLOSE_WRITE, _ATTRIB, _MOVED, _CREATE, _DELETE = 0x8, 0x4, 0xC0, 0x100, 0x200
_OVERFLOW, _IGNORED, _ONLY_FOLDERS, _OF_A_FOLDER = 0x4000, 0x8000, 0x1000000, 0x40000000
_WATCHED = _CLOSE_WRITE | _ATTRIB | _MOVED | _CREATE | _DELETE | _ONLY_FOLDERS
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})


class Event(NamedTuple):
    """Something that happened in a folder; without a name it concerns the folder itself, or everything."""

    folder: str  # as it was watched
    name: str
    is_folder: bool


class _Content(NamedTuple):
    stamp: bytes  # b"" where a later change may leave it as it is
    executable: bool
    digest: bytes


class Inotify:
    """The kernel's reports about folders; `descriptor` becomes readable when there is one.

    Raises:
        OSError: The kernel has no more watches.
    """

    def __init__(self, libc: Any) -> None:
        self._libc = libc
        self._folders: dict[int, str] = {}
        self.descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify")

    def watch(self, folders: Iterable[str]) -> bool:
        """Watch these folders and no others; return whether one of them was not watched before."""
        before, self._folders = self._folders, {}
        for folder in folders:
            number = self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), _WATCHED)
            if number >= 0:
                self._folders.setdefault(number, folder)  # a link leads to the same watch as the folder itself
            elif ctypes.get_errno() not in _GONE:
                raise OSError(ctypes.get_errno(), "inotify")
        for number in before.keys() - self._folders.keys():
            self._libc.inotify_rm_watch(self.descriptor, number)
        return not self._folders.keys() <= before.keys()

    def read(self) -> Iterator[Event]:
        """Yield what happened since the last call; waits for nothing."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, 1 << 16):
                position = 0
                while position < len(data):
                    number, mask, _, length = _EVENT.unpack_from(data, position)
                    start = position + _EVENT.size
                    position = start + length
                    name = os.fsdecode(data[start:position].rstrip(b"\0"))
                    if mask & _OVERFLOW or number in self._folders:  # not: of a watch that was removed meanwhile
                        is_lost = bool(mask & (_OVERFLOW | _IGNORED))
                        folder = self._folders.get(number, "")
                        yield Event(folder, "" if is_lost else name, bool(mask & _OF_A_FOLDER))
                    if mask & _IGNORED:
                        self._folders.pop(number, None)

    def close(self) -> None:
        """Stop watching."""
        os.close(self.descriptor)


class FileWatcher:
    """Watches the files of a project that would be sent with a job, without those of some excluded paths.

    Without ``libc``, which has inotify, it looks at all files instead.

    Raises:
        ProjectRootError: The project is too large to send.
    """

    def __init__(
        self,
        plan: Plan,
        exclude: Sequence[Path] = (),
        *,
        environ: Mapping[str, str] = os.environ,
        libc: Any = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan, self._exclude, self._environ = plan, exclude, environ
        self._clock, self._sleep = clock, sleep
        self._rules: dict[str, Rules] = {}  # what is not sent, of each folder that is
        self._inotify: Inotify | None = None
        if libc is not None:
            with self._without_inotify():
                self._inotify = Inotify(libc)
        archive.scan(plan, exclude, environ)  # refuses what a job would refuse
        self._seen = self._look()
        self._known = {name: _content_of(file) for name, file in self._seen.items()}

    @classmethod
    def of(cls, plan: Plan, exclude: Sequence[Path]) -> FileWatcher:
        """Return a watcher that uses the best that this system has."""
        return cls(plan, exclude, libc=processes.load_libc())

    @property
    def descriptor(self) -> int | None:
        """What becomes readable with the next news; None where `has_news` must be asked each `LOOK_SECONDS`."""
        return self._inotify.descriptor if self._inotify is not None else None

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self._plan.root

    @property
    def count(self) -> int:
        """How many files are watched."""
        return len(self._known)

    def watch_too(self, beside: Mapping[str, str], since: float) -> bool:
        """Watch other projects as well, from which the last run has imported modules; see ``Plan.beside``.

        Args:
            beside: Their folders, by name.
            since: When that run began, in seconds since 1970: what was saved later, it may have imported before.

        Returns:
            Whether there are files that were saved later, which are the next ``changes``.
        """
        both = dict(self._plan.beside) | {name: folder for name, folder in beside.items() if os.path.isdir(folder)}
        if len(both) == len(self._plan.beside):
            return False
        self._plan = replace(self._plan, beside=tuple(both.items()))
        self._seen = self._look()
        new = [(name, file) for name, file in self._seen.items() if name not in self._known]
        before = {name: _content_of(file) for name, file in new if not _was_saved(file, since)}
        self._known |= before
        return len(before) < len(new)

    def has_news(self) -> bool:
        """Return whether files may have changed since the last call; waits for nothing."""
        if self._inotify is not None:
            happened = [*self._inotify.read()]
            return any(map(self._concerns, happened))
        unsure = [file for name, file in self._seen.items() if name in self._known and not self._known[name].stamp]
        return self._has_other_stamps() or any(map(self._has_other_content, unsure))

    def changes(self) -> list[str]:
        """Wait until a burst of saves is over; return which files are new, gone or have other contents than before."""
        self._settle()
        self._seen = self._look()
        changed = []
        for name, file in self._seen.items():
            known = self._known.get(name)
            if known is not None and known.stamp == file.stamp:
                continue
            content = self._known[name] = _content_of(file)
            if known is None or known[1:] != content[1:]:
                changed.append(name)
        for name in self._known.keys() - self._seen.keys():
            del self._known[name]
            changed.append(name)
        return [self._plan.here(name) if name.startswith(f"{root.BESIDE}/") else name for name in changed]

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            self._inotify.close()

    def _settle(self) -> None:
        now = self._clock()
        quiet, end = now + SETTLE_SECONDS, now + _LONGEST_SECONDS
        while (pause := min(quiet, end) - now) > 0:
            if self._inotify is None:
                self._sleep(pause)
            else:
                poller = select.poll()
                poller.register(self._inotify.descriptor, select.POLLIN)
                poller.poll(pause * 1000)
            is_quiet = not (self._has_other_stamps() if self._inotify is None else self.has_news())
            now = self._clock()
            if not is_quiet:
                quiet = now + SETTLE_SECONDS

    def _has_other_stamps(self) -> bool:
        before, self._seen = self._seen, self._look()
        return _stamps(before) != _stamps(self._seen)

    def _has_other_content(self, file: File) -> bool:
        content = _content_of(file)
        if content[1:] != self._known[file.relative][1:]:
            return True
        self._known[file.relative] = content
        return False

    def _look(self) -> dict[str, File]:
        """Return the files that would be sent now, and watch their folders."""
        while True:
            self._rules = {folder: ignore.read_rules(folder, self._environ)[0] for _, folder in self._plan.sent()}
            _, found, _ = archive.scan(self._plan, self._exclude, self._environ, limited=False)
            is_new = False
            if self._inotify is not None:
                with self._without_inotify():
                    is_new = self._inotify.watch(folder.path for folder in found.folders)
            if not is_new:  # in a folder that was not watched yet, something may have changed since the scan
                break
        files = ((file, file.relative.rpartition("/")[2]) for file in found.all_files())
        return {file.relative: file for file, name in files if not _OF_AN_EDITOR.fullmatch(name)}

    @contextlib.contextmanager
    def _without_inotify(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            self._inotify = None
            output.report_once(
                f"the kernel cannot watch all folders ({os.strerror(error.errno or 0)}), so files are looked at twice "
                "a second; sysctl fs.inotify.max_user_watches is the limit"
            )

    def _concerns(self, event: Event) -> bool:
        if not event.name:
            return True
        for folder, rules in self._rules.items():
            if (relative := root.below(os.path.join(event.folder, event.name), folder)) is not None:
                if event.is_folder:
                    return rules.folder(relative, event.name) is None
                return not _OF_AN_EDITOR.fullmatch(event.name) and rules.file(relative, event.name) is None
        return True


def _stamps(files: Mapping[str, File]) -> dict[str, bytes]:
    return {name: file.stamp for name, file in files.items()}


def _was_saved(file: File, since: float) -> bool:
    """Return whether a file was saved since then, or may have been: times of a file system may be whole seconds."""
    with contextlib.suppress(OSError):  # it is gone
        return not folders.is_settled(os.stat(file.path).st_ctime_ns, int(since * 1e9))
    return True


def _content_of(file: File) -> _Content:
    if file.size > _LARGE_BYTES:
        return _Content(file.stamp, file.executable, file.stamp)
    stamp, digest, read_at = file.stamp, b"", time.time_ns()
    with contextlib.suppress(OSError), open(file.path, "rb") as opened:  # it is gone: the next look does not find it
        if not folders.is_settled(folders.changed_ns(os.fstat(opened.fileno())), read_at):
            stamp = b""
        digest = hashlib.file_digest(opened, "sha256").digest()
    return _Content(stamp, file.executable, digest)
