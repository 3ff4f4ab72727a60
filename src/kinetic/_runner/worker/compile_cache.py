"""The compile cache in a worker: a folder for each library, filled from the store and written back as programs appear.

Nothing of this is loaded before the job imports a library that compiles. Then a thread lists the store once and fetches
what the listing proves to be ours, while the library is still being imported; its first compilation waits for that.
Whatever fails costs one line in the log, and the job compiles.

JAX keys a program by all that its compilation depends on, also by paths in its options; see ``compilers.py``. Process
0 writes, so of a slice only the first host has something to send. A file is sent once it is complete: JAX's own writes
are over when it reports the duration of a compilation, others' when the function has ended, or a while after. Its
other processes report nothing, so of each program of JAX's it is read whether it ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType

from kinetic._runner.worker import compilers, small_programs
from kinetic._runner.worker.compilers import Library
from kinetic._runner.worker.small_programs import SmallPrograms
from kinetic._stores.parallel import in_parallel, parallelism
from kinetic._stores.protocol import Store, put_hint
from kinetic._wire import cache_entries, digests, documents, keys, python_runtime
from kinetic._wire.cache_entries import CacheEntry, Group, Measurement
from kinetic._wire.failpoints import step
from kinetic._wire.order import Order
from kinetic._wire.task import CACHE_KEY_FILE, Task
from kinetic.errors import KeyMissingError, KineticError, StoreUnreachableError, reason_of

MOST_FETCHED = 2 << 30  # bytes for one library of one job, those that were used last
MOST_SENT = 4 << 30  # bytes of one job
MOST_FILES = 5000
USE_SECONDS = 24 * 3600.0  # how often a use is noted in the store
STALL_SECONDS = 60.0  # without a byte; then the job compiles what is missing
LAST_SECONDS = 4.0  # for what is not in the store yet when the function has ended; its supervisor gives five
_REPORT_SECONDS = 5.0  # of waiting, after which a line says for what
_SETTLED_SECONDS = 1.0  # a file of JAX's that was not touched for so long is complete
_LINKED_SECONDS = 60.0  # the same of others: a linker pauses; half of a library, in a job that is killed, would be kept
_LOOK_SECONDS = 5.0  # between two looks for files of libraries that report nothing
_LEAST_BYTES_A_SECOND = 4 << 20  # what arrives slower than this is given up after a minute more
_MOST_OUTAGES = 3  # of the store; then new programs are not kept
_LEAST_SECONDS = 1.0  # of compiling, which is worth a line
_LIST_SECONDS = 30.0  # how long a program on another host of a slice waits for the first one's listing
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.1, 10.0  # between two looks for that listing
_HALF = 0.5  # of a second, which rounding takes on average
_NOT_KEPT = (".lock", ".tmp", ".part", compilers.LAST_USE)


class CompileCache:
    """What one worker knows of the compile cache; made at the first import of a library that compiles.

    ``log`` writes a line into the log of the job.
    """

    def __init__(
        self, task: Task, accelerator: str, store: Store, log: Callable[[str], object], order: Order | None = None
    ) -> None:
        self.task, self._accelerator, self.store, self._log, self.order = task, accelerator, store, log, order
        self._begun = time.monotonic()
        self.key = read_key(task)
        self.libraries: dict[str, LibraryCache] = {}
        self._pid = os.getpid()
        self._said: set[str] = set()

    def begin(self, name: str) -> LibraryCache | None:
        """Set the variables of a library that is about to be imported, and begin to fetch; None if it is off."""
        library = compilers.LIBRARIES[name]
        if self.is_forked:  # it has what it inherits
            return None
        if name in self.libraries:
            return self.libraries[name]
        folder = compilers.folder_of(self.task, library)
        if folder is None:
            where = compilers.shared_folder()
            self.say(f"compile cache: nothing of {name} is kept: {where} cannot be made, or others can write to it")
            return None
        if not compilers.set_variables(library, folder):
            return None  # the user's own settings
        self.libraries[name] = found = LibraryCache(self, library, folder)
        found.start_fetching()
        return found

    def group_of(self, library: Library, folder: Path) -> Group:
        """Return what the programs of a library are found by on this hardware, in this folder if it keeps paths."""
        from importlib import metadata  # 20 ms, on a thread

        versions = [f"at-{digests.of_bytes(os.fsencode(folder))[:8]}"] if library.keeps_paths else []
        for name in library.distributions:
            with contextlib.suppress(Exception):  # not installed, or a damaged installation
                versions.append(f"{name}-{metadata.version(name)}")
        text = cache_entries.word("+".join(versions))
        return Group(library.name, cache_entries.word(self._accelerator), text, machine_digest())

    def say(self, text: str) -> None:
        """Write a line into the log, once."""
        if text not in self._said:
            self._said.add(text)
            self._log(f"kinetic: {text}\n")

    @property
    def is_forked(self) -> bool:
        """Whether user code forked this process, which has none of the cache's threads."""
        return os.getpid() != self._pid

    @property
    def is_awaited(self) -> bool:
        """Whether other jobs wait for the programs of this one."""
        return self.task.pod is not None and bool(self.task.pod.awaited_seconds) and not self.task.host

    def note_compiled(self, seconds: float) -> None:
        """Note for how many seconds of compiling the programs are in the store, where other jobs wait for them."""
        if self.is_awaited:
            part = self.task.compiled.with_suffix(".part")
            part.write_text(f"{seconds:.3f}")
            part.replace(self.task.compiled)

    def measure(self, tally: Tally) -> None:
        """Write down how long compiling took, for the client that submits the next batch of this function.

        Of a batch, its first child does. On a machine, and on CPUs of a cluster, jobs do not wait for each other.
        """
        order, task, pod = self.order, self.task, self.task.pod
        waits = task.kind in {"gpu", "tpu"} or task.hosts > 1
        if order is None or pod is None or task.host or not waits:
            return
        kept, saved = tally.kept, tally.saved
        with contextlib.suppress(Exception):  # the next batch does not wait
            if pod.waited and kept > saved:
                self.store.put(cache_entries.differs_key(order), b"")
            if pod.awaited_seconds or not order.index:
                seconds = time.monotonic() - self._begun + saved
                found = Measurement(cache_entries.code_of(order), kept + saved, seconds)
                at = cache_entries.measurement_key(order)
                self.store.put(at, documents.seal_page(cache_entries.MEASUREMENT, asdict(found), at, self.key))

    def finish(self, *, succeeded: bool = True) -> None:
        """Send what is not in the store yet, for a few seconds, and say what the cache was worth."""
        if self.is_forked:
            return
        limit = time.monotonic() + LAST_SECONDS
        for name in self.libraries:
            compilers.note_end(name)
        for library in self.libraries.values():
            library.finish(limit, succeeded=succeeded)
        for library in self.libraries.values():
            if line := library.summary():
                self.say(line)
            compilers.give_back(library.library.name)


class LibraryCache:
    """The cache of one library; its threads are the only ones that touch the store for it."""

    def __init__(self, cache: CompileCache, library: Library, folder: Path) -> None:
        self._cache, self.library, self.folder = cache, library, folder
        self.filled = threading.Event()
        self._awaited = threading.Event()  # whether a program waits for what the store has
        self._word_limit = float("inf")  # until when another host of a slice waits for the first one's listing
        self.entries: Sequence[CacheEntry] = ()  # what is fetched, in this order
        self.group: Group | None = None
        self.tally = Tally()
        self._reports = library.name == "jax"  # each program
        self._small = SmallPrograms(folder, cache.order) if self._reports and cache.order is not None else None
        self._used: dict[str, float] = {}  # when the entries were used last, by their keys
        self._known: dict[str, tuple[int, int]] = {}  # files of which nothing is to be sent, and their size and time
        self._fetched: dict[str, CacheEntry] = {}  # by path
        self._damaged: set[str] = set()  # digests of what must be written anew
        self._found = self._sent = self._sent_bytes = 0
        self._moved = time.monotonic()  # when something arrived last
        self._news, self._over = threading.Event(), threading.Event()
        self._sender: threading.Thread | None = None
        self._is_read_only = cache.task.host > 0  # of a slice, the first host writes
        self._outages = 0
        self._shows_reads: bool | None = None  # whether the file system notes when a file was read
        self._lock = threading.RLock()  # held while the folder is read

    # ---------------------------------------------------------------------------------------------------- fetching

    def start_fetching(self) -> None:
        """Fetch what the store has, and then send what appears, on a thread."""

        def fetch() -> None:
            try:
                self.group = self._cache.group_of(self.library, self.folder)
                self.entries = self.list_entries() if self._cache.task.hosts == 1 else self._agree()
                self._fetch(self.entries)
            except Exception as error:  # noqa: BLE001 - the job compiles
                self._cache.say(f"compile cache: {reason_of(error)}; the job compiles what it needs")
            finally:
                self.filled.set()
            self._send_until_the_end()

        self._sender = python_runtime.start_thread(fetch, f"kinetic-compiled-{self.library.name}")
        if self._sender is None:
            self.filled.set()

    def _agree(self) -> Sequence[CacheEntry]:
        """Return what all hosts of a slice use: hosts that run different programs may wait for each other.

        That is what a key says that is created once: by the first host with what it lists, or, where a program of
        another host has waited too long for that, by this one with nothing.
        """
        cache, task = self._cache, self._cache.task
        at = keys.compiled(task.job_id, task.attempt, self.library.name)

        def decide(entries: Sequence[CacheEntry]) -> Sequence[CacheEntry]:
            is_ours = cache.store.put(at, cache_entries.state_page(entries, at, cache.key), if_absent=True)
            return entries if is_ours else cache_entries.read_state(cache.store, at, cache.key)

        if task.host == 0:
            try:
                found = self.list_entries()
            except Exception:
                decide(())  # else the others would wait for it
                raise
            return decide(found)
        pause = _FIRST_PAUSE_SECONDS
        while cache.store.size(at) is None:
            if time.monotonic() > self._word_limit:
                cache.say("compile cache: the first host of the slice does not say what it found; the job compiles")
                return decide(())
            if (self._over if self._awaited.is_set() else self._awaited).wait(pause) and self._over.is_set():
                return ()
            pause = min(2 * pause, 1.0 if self._awaited.is_set() else _LAST_PAUSE_SECONDS)
        found = cache_entries.read_state(cache.store, at, cache.key)
        is_usable = not self.library.fails_elsewhere or all(entry.group == self.group for entry in found)
        return found if is_usable else ()  # from another folder, where hosts of a slice share a machine

    def list_entries(self) -> Sequence[CacheEntry]:
        """List the store: the newest of each path, those that were used last first, as far as there is room."""
        assert self.group is not None  # noqa: S101 - set just before
        newest: dict[str, tuple[float, CacheEntry]] = {}
        foreign = 0
        for each in self._cache.store.entries(self.group.prefix):
            entry = cache_entries.verified(each.key, self._cache.key)
            if entry is None:
                foreign += 1
            elif entry.path.startswith(small_programs.PREFIX) and not self._is_small(entry):
                continue  # of another function
            elif entry.path not in newest or newest[entry.path][0] < each.modified:
                newest[entry.path] = each.modified, entry
        if foreign:
            self._cache.say(
                f"compile cache: {foreign} of its entries in {self._cache.store.url} cannot be verified and are not "
                "used: they were written without this namespace's key; look at who can write there"
            )
        chosen: list[CacheEntry] = []
        room = MOST_FETCHED
        for used, entry in sorted(
            newest.values(), key=lambda pair: (not self._is_small(pair[1]), -pair[0], pair[1].path)
        ):
            if entry.size <= room and len(chosen) < MOST_FILES:
                room -= entry.size
                chosen.append(entry)
                self._used[entry.key] = used
        return chosen

    def _is_small(self, entry: CacheEntry) -> bool:
        """Return whether an entry is the archive with this function's small programs."""
        return self._small is not None and entry.path == self._small.path

    def _fetch(self, entries: Sequence[CacheEntry]) -> None:
        if not entries:
            return
        parts = self.folder / f".parts-{self._cache.task.host}"
        parts.mkdir(parents=True, exist_ok=True, mode=0o700)
        tasks = (partial(self._fetch_one, entry, parts / str(at)) for at, entry in enumerate(entries))
        for fetched in in_parallel(self._cache.store, tasks, limit=min(8, parallelism(self._cache.store))):
            self._found += fetched
            self._moved = time.monotonic()
        with contextlib.suppress(OSError):
            parts.rmdir()

    def _fetch_one(self, entry: CacheEntry, part: Path) -> bool:
        """Fetch one program, and put it into its place if it is what its entry promises."""
        try:
            self._cache.store.fetch(keys.compiled_blob(entry.sha256), part)
            if part.stat().st_size != entry.size or _digest(part) != entry.sha256:
                self._damaged.add(entry.sha256)
                self._cache.say("compile cache: programs whose bytes are not what their entries promise are not used")
                return False
            if self._shows_reads is None:
                self._shows_reads = _shows_reads(part)
            if self._small is not None and self._is_small(entry):
                with self._lock:
                    for path in self._small.unpack(part, entry):
                        self._note_fetched(path)
                    self.tally.small_seconds = self._small.seconds or self.tally.small_seconds
                return True
            place = self.folder / entry.path
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # The kernel sets the first of these when the file is read. The second is the same on all hosts of a slice:
            # where they share a machine, each of them may put it there.
            os.utime(part, (1, 1))
            with self._lock:
                os.replace(part, place)
                self._note_fetched(entry.path)
                self._fetched[entry.path] = entry
        except KeyMissingError:  # removed meanwhile
            return False
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
        return True

    def _note_fetched(self, path: str) -> None:
        self._known[path] = _stamp((self.folder / path).stat())
        if self._reports and path.endswith(compilers.PROGRAM):
            # With a maximum size, JAX (0.10.2) writes nothing where a program has no such file. An empty one: never.
            (self.folder / (path.removesuffix(compilers.PROGRAM) + compilers.LAST_USE)).touch()

    def wait(self) -> None:
        """Wait until what the store had is here, as long as something arrives."""
        if self.filled.is_set():
            return
        begun = self._moved = time.monotonic()
        self._word_limit = min(self._word_limit, begun + _LIST_SECONDS)
        self._awaited.set()
        while not self.filled.wait(0.5):
            now = time.monotonic()
            slow_seconds = max((entry.size for entry in self.entries), default=0) / _LEAST_BYTES_A_SECOND
            if now > begun + _REPORT_SECONDS:
                self._cache.say(f"compile cache: waiting for {len(self.entries)} files of {self.library.name}")
            if now > self._moved + STALL_SECONDS + slow_seconds:
                self._cache.say("compile cache: nothing comes from the store any more; the job compiles")
                return

    # ----------------------------------------------------------------------------------------------------- sending

    def _send_until_the_end(self) -> None:
        while True:
            waits_for_small = self._waits_for_small()
            is_told = self._news.wait(self._pause())
            if self._over.is_set():
                return
            self._news.clear()
            if waits_for_small and not is_told:
                self.send_new(_SETTLED_SECONDS, with_small=True)
                continue
            if self._over.wait(_SETTLED_SECONDS):  # programs that are written together are sent together
                return
            kept = self.tally.kept + self.tally.saved
            if self.send_new(_SETTLED_SECONDS if self._reports else _LINKED_SECONDS, with_small=self._cache.is_awaited):
                self._news.set()
            else:
                self._cache.note_compiled(kept)

    def _pause(self) -> float | None:
        """Return for how long to wait for reports before there is something to do without any."""
        if not self._reports:
            return _LOOK_SECONDS
        return small_programs.SEND_SECONDS if self._waits_for_small() else None

    def _waits_for_small(self) -> bool:
        return self._small is not None and self._small.is_new and not self._is_read_only

    def send_new(self, settled_seconds: float, *, with_small: bool) -> bool:
        """Send what the store does not have; return whether some file was still being written.

        Without ``with_small``, small programs are only noted: they are sent together.
        """
        left = False
        try:
            with self._lock:
                for path, about in list(self._files()):
                    if self._known.get(path) == _stamp(about):
                        self._note_use(path, about)
                    elif abs(time.time() - about.st_mtime) < settled_seconds:  # a clock may have gone back since
                        left = True
                    elif not self._is_read_only:
                        with contextlib.suppress(FileNotFoundError):  # JAX removed it, for a maximum size
                            self._keep(path, about)
                if with_small:
                    self._send_small()
        except Exception as error:  # noqa: BLE001 - a store that cannot be written, a full disk
            self._outages += 1
            left = isinstance(error, StoreUnreachableError) and self._outages < _MOST_OUTAGES
            self._is_read_only = not left
            self._cache.say(f"compile cache: the store does not take new programs: {reason_of(error)}")
        return left

    def _keep(self, path: str, about: os.stat_result) -> None:
        """Send a file, or note it as a small program; half of a program is looked at again when it has changed.

        Another process writes it, or was killed. JAX never replaces a file, so half of one would stay for everybody.
        """
        is_program = self._reports and path.endswith(compilers.PROGRAM)
        seconds = compilers.whole_seconds(self.folder / path) if is_program else None
        if is_program and seconds is None:
            self._known[path] = _stamp(about)
        elif self._small is not None and seconds == 0:
            self._small.take(path)
            self._known[path] = _stamp(about)
        elif self._sent_bytes + about.st_size <= MOST_SENT:
            self._send(path, about)

    def _send_small(self) -> None:
        """Send the archive with the small programs if there are new ones; else note that the one there was used."""
        small = self._small
        if small is None or self._is_read_only or self.group is None:
            return
        store, was = self._cache.store, small.entry
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        others = list(self._unpack_others(small)) if small.is_new else []
        if small.is_new:
            archive = self.folder / ".archive"
            small.pack(archive, *self.tally.small, shows_reads=self._shows_reads)
            small.entry = self._put(small.path, archive, archive.stat().st_size)
            small.is_new = False
            archive.unlink()
            for entry in filter(None, (was, *others)) if small.entry else ():
                if entry != small.entry:
                    with contextlib.suppress(KineticError):  # it is removed when it was not used for long
                        store.delete(entry.key)
        elif (
            was is not None
            and not others
            and self.tally.found
            and time.time() - self._used.get(was.key, 0.0) > USE_SECONDS
        ):
            self._used[was.key] = time.time()
            store.touch(was.key)

    def _unpack_others(self, small: SmallPrograms) -> Iterator[CacheEntry]:
        """Take in what other jobs of the function have sent since this one began; yield their archives.

        A batch begins many jobs at once, and all of them compile the same. Not on a slice: what its first host took in
        now, the others would not have.
        """
        assert self.group is not None  # noqa: S101 - the caller looks
        if self._cache.task.hosts > 1:
            return
        known = small.entry
        since = self._used.get(known.key, 0.0) if known else 0.0  # older ones are left where nothing can be removed
        for each in self._cache.store.entries(f"{self.group.prefix}{small.path}/"):
            entry = cache_entries.verified(each.key, self._cache.key)
            if entry is not None and entry != known and each.modified >= since and small.is_new:
                self._fetch_one(entry, self.folder / ".other")
                yield entry

    def _files(self) -> Iterable[tuple[str, os.stat_result]]:
        top = str(self.folder)
        for above, below, names in os.walk(top):
            below[:] = [name for name in below if not name.startswith((".", "tmp"))]
            for name in names:
                path = os.path.relpath(f"{above}/{name}", top)
                if path.startswith(self.library.only) and not name.endswith(_NOT_KEPT):
                    with contextlib.suppress(OSError):
                        about = os.lstat(f"{above}/{name}")
                        if stat.S_ISREG(about.st_mode):
                            yield path, about

    def _send(self, path: str, about: os.stat_result) -> None:
        file = self.folder / path
        if self.group is None:
            return
        sha256 = _digest(file)
        if _stamp(file.stat()) != _stamp(about):  # it is being written
            return
        is_sent = about.st_size <= cache_entries.MOST_BYTES and self._put(path, file, about.st_size, sha256)
        self._known[path] = _stamp(about)
        if is_sent:
            self._sent += 1
            self._sent_bytes += about.st_size

    def _put(self, path: str, file: Path, size: int, sha256: str = "") -> CacheEntry | None:
        """Write a file and its entry; return the entry, or None if its name cannot be one."""
        assert self.group is not None  # noqa: S101 - the callers look
        sha256 = sha256 or _digest(file)
        entry = cache_entries.sealed(self.group, path, sha256, size, self._cache.key)
        if entry is None:
            return None
        store, at = self._cache.store, keys.compiled_blob(sha256)
        if not store.put(at, file, if_absent=sha256 not in self._damaged):
            store.touch(at)  # it is not about to be removed as one that no entry has
        step("worker:program-sent")
        put_hint(store, entry.key)
        step("worker:program-listed")
        return entry

    def _note_use(self, path: str, about: os.stat_result) -> None:
        """Make an entry young that this job read, once a day: what was not used for longest is removed first."""
        entry = self._fetched.get(path)
        is_used = about.st_atime >= 2 if self._shows_reads else bool(self.tally.found) or not self._reports
        if entry is None or not is_used or self._is_read_only:
            return
        del self._fetched[path]
        if time.time() - self._used.get(entry.key, 0.0) > USE_SECONDS:
            self._cache.store.touch(entry.key)

    def finish(self, limit: float, *, succeeded: bool = True) -> None:
        """Send the rest, until a point in time; a job that failed is not measured."""
        self._over.set()
        self._awaited.set()
        self._news.set()
        if not self.filled.is_set():
            return
        is_complete = self._reports and not self.tally.is_writing()  # whatever is there

        def send() -> None:
            settled_seconds = 0.0 if is_complete else _SETTLED_SECONDS / 2
            if self.send_new(settled_seconds, with_small=True):  # the index of PyTorch is written last of all
                time.sleep(settled_seconds)
                self.send_new(settled_seconds, with_small=False)
            if self._reports and succeeded:
                self._cache.measure(self.tally)

        last = python_runtime.start_thread(send, "kinetic-compiled-last")
        for thread in filter(None, (last, self._sender)):
            thread.join(max(0.0, limit - time.monotonic()))
            if thread.is_alive():
                self._cache.say("compile cache: the last programs are not kept: sending them takes too long")
                return

    # --------------------------------------------------------------------------------------------------------- JAX

    def listen(self, jax: ModuleType) -> None:
        """Have JAX tell of each program; its first one waits until the folder is filled."""

        def on_event(event: str) -> None:
            if not self._cache.is_forked:
                if event == compilers.REQUEST:
                    self.wait()
                self.tally.on_event(event)

        def on_duration(event: str, seconds: float) -> None:
            if not self._cache.is_forked:
                self.take_duration(event, seconds)

        compilers.listen(jax, on_event, on_duration)

    def take_duration(self, event: str, seconds: float, who: object = None) -> None:
        """Take note of a duration that JAX reports; ``who``: of another process, which thread."""
        if self.tally.on_duration(event, seconds, who):
            self._news.set()

    def summary(self) -> str:
        """Return one line about what the cache was worth, or ""."""
        if self._reports:
            return self.tally.summary()
        if self._found or self._sent:
            return f"compile cache of {self.library.name}: {self._found} files found, {self._sent} added"
        return ""


# ----------------------------------------------------------------------------------------------------- what JAX reports


class Tally:
    """Counts the programs of a job as JAX reports them, on the threads that compile."""

    def __init__(self) -> None:
        self.compiled = self.found = 0
        self.seconds = self.saved = 0.0
        self.kept = 0.0  # of the seconds, those of programs that JAX writes
        self.small_seconds = 0.1  # that a small program takes on average; a guess until an archive tells
        self.small = [0, 0.0]  # those that were compiled and written here: how many, and for how many seconds
        self._hits: set[object] = set()  # threads that have just found a program
        self._writing: set[object] = set()  # threads that are writing one
        self._lock = threading.Lock()

    def is_writing(self) -> bool:
        """Return whether some program is only half written."""
        return bool(self._writing)

    def on_event(self, event: str, who: object = None) -> None:
        """Take note of an event; ``who``: the thread, of another process."""
        if event == compilers.HIT:
            self._hits.add(who or threading.get_ident())
        elif event == compilers.WRITE:
            self._writing.add(who or threading.get_ident())

    def on_duration(self, event: str, seconds: float, who: object = None) -> bool:
        """Take note of a duration; return whether there may be a new file, or a new use of one."""
        if event == compilers.SAVED:  # JAX keeps whole seconds, rounded down
            with self._lock:
                self.saved += max(0.0, seconds + (_HALF if seconds > _HALF else self.small_seconds))
        if event != compilers.TOOK:
            return False
        me = who or threading.get_ident()
        is_hit, wrote = me in self._hits, me in self._writing
        self._hits.discard(me)
        self._writing.discard(me)
        with self._lock:
            if is_hit:
                self.found += 1
            else:
                self.compiled += 1
                self.seconds += seconds
                self.kept += seconds * wrote
                if wrote and seconds < 1:
                    self.small[0] += 1
                    self.small[1] += seconds
        return wrote or is_hit

    def summary(self) -> str:
        """Return one line, or "" where it would say nothing."""
        if not self.found and self.seconds < _LEAST_SECONDS:
            return ""
        words = [f"compiled {_count(self.compiled)} ({_seconds(self.seconds)})"] if self.compiled else []
        if self.found:
            words.append(f"{_count(self.found) if not words else self.found} from cache (saved {_about(self.saved)})")
        return ", ".join(words)


# ------------------------------------------------------------------------------------------------------------ the rest


def read_key(task: Task) -> bytes:
    """Return the key of the compile cache: from the job's Secret in a pod, from the task on this machine."""
    in_pod = task.pod is not None and Path(task.pod.secret, CACHE_KEY_FILE)
    key = in_pod.read_bytes() if in_pod else bytes.fromhex(task.cache_key)
    documents.check_key_length(len(key), "its file")
    return key


def machine_digest() -> str:
    """Return a digest of what this machine's processor can do: code for another one may be illegal here."""
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    found: dict[str, str] = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.setdefault(name.strip(), value.strip())
    text = "\n".join([platform.machine(), *(f"{name}={found.get(name, '')}" for name in wanted)])
    return f"{cache_entries.word(platform.machine())}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _shows_reads(file: Path) -> bool:
    os.utime(file, (1, time.time()))
    with file.open("rb") as reading:
        reading.read(1)
    return file.stat().st_atime > 1


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return digests.of_stream(file)


def _stamp(about: os.stat_result) -> tuple[int, int]:
    return about.st_size, about.st_mtime_ns


def _count(number: int) -> str:
    return f"{number} program{'' if number == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"


def _about(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else _seconds(seconds)
