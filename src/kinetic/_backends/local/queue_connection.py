"""The connection to the database of a queue: opened, locked for a change, and repaired.

A damaged database is renamed, and a new one is built from what is durable beside it (``queue_database.py``). On a full
disk, a file beside it gives its room to the changes by which jobs end and are removed: a job may have filled the disk.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from kinetic._backends.local import runtime_files
from kinetic._wire import folders, python_runtime
from kinetic.errors import BackendUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

_SCHEMA = 1
_LOCK_SECONDS = 1.0  # how long SQLite itself waits for a lock, before we look at its holder
_MOST_SECONDS = 3600.0  # as long as a supervisor waits for a store
_FORK_SECONDS = 5.0  # how long a fork waits for the change of another thread
_REPORT_SECONDS = 5.0  # after which a waiting process reports which process it waits for
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_RESERVE_BYTES = 1 << 18  # some sixty changes
_FREE_BYTES = 1 << 24  # below, no reserve is made: the room that it has just given is for the change that needs it
_TRIAL = "SELECT 1 FROM jobs, supervisors, templates, predecessors, lent_slots WHERE jobs.template_id = '' LIMIT 0"


def again_if_repaired(change: Callable[P, T]) -> Callable[P, T]:
    """Repeat a change, which must be safe to repeat, if the database was damaged in its middle, or its disk full."""

    @functools.wraps(change)
    def changed(*args: P.args, **named: P.kwargs) -> T:
        try:
            return change(*args, **named)
        except BackendUnavailableError as error:
            if not _may_be_repaired(error.__cause__):
                raise
        return change(*args, **named)

    return changed


class QueueConnection:
    """The database of a queue, for any thread of one process; opened again after a fork, or where it was renamed.

    A caller that needs the database while another process changes it waits as long as for a store; a process that was
    stopped in the middle of a change is continued for that moment.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = python_runtime.free_in_child(threading.RLock())
        self._pid = os.getpid()
        self._file = (0, 0)
        self._db: sqlite3.Connection | None = None
        self._is_forced = True
        self.is_read_only = False  # then jobs can be looked at, and nothing else
        self._connection()

    @contextmanager
    def change(self, *, forced: bool = True) -> Iterator[sqlite3.Connection]:
        """Run one transaction that no other process can interrupt.

        It outlives any process. Only a power cut can undo one that was not ``forced`` to the disk, by itself or by a
        later one, and never the earlier of two alone: for what a restart makes void, or finds out anew
        (docs/design/decisions/0024-what-is-forced-to-the-disk.md).
        """
        is_forced_later = forced and folders.is_forced_later()
        with self._lock:
            try:
                db = self._patiently(functools.partial(self._begin, forced and not is_forced_later))
                yield db
                _patiently(self._path, lambda: db.execute("COMMIT"))
                if is_forced_later:
                    with contextlib.suppress(FileNotFoundError):  # not in WAL: SQLite has forced it
                        folders.sync(f"{self._path}-wal")
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    self._repair_after(error)
                    raise _unusable(self._path, _why(error)) from error
                raise

    def _roll_back(self) -> None:
        """End a transaction, if one has begun: Ctrl-C may come while its beginning waits for another process."""
        if self._db is not None and self._pid == os.getpid():
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:  # SQLite itself rolls back when the disk is full
                    self._db.execute("ROLLBACK")

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the database something that changes nothing."""
        with self._lock:
            return self._patiently(lambda: question(self._connection()))

    def read(self, question: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows that a question in SQL finds."""
        return self.ask(lambda db: db.execute(question, values).fetchall())

    def check_writable(self) -> None:
        """Raise if the file system is read-only: what waits or runs has no end there."""
        if self.is_read_only:
            raise _unusable(self._path, os.strerror(errno.EROFS))

    def close(self) -> None:
        """Close the database until it is used again; in a forked child, leave it to the parent."""
        with self._lock:
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
                self._db = None

    def close_at_forks(self) -> None:
        """Have no thread within SQLite and no database open at the moment when this process is forked.

        SQLite remembers which locks its process has, and a child takes its parent's for its own: it would wait forever
        for a transaction of a thread that it does not have, or write to files that others have removed as unused.
        """
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork)

    def _before_fork(self) -> None:
        is_mine = self._lock.acquire(timeout=_FORK_SECONDS)
        if is_mine and self._db is not None and not self._db.in_transaction:
            self.close()

    def _after_fork(self) -> None:
        if getattr(self._lock, "_is_owned")():  # noqa: B009 - as threading.Condition asks it
            self._lock.release()

    def _begin(self, forced: bool) -> sqlite3.Connection:
        db = self._connection()
        self.check_writable()
        if forced != self._is_forced:
            db.execute(f"PRAGMA synchronous = {'FULL' if forced else 'NORMAL'}")  # in WAL, NORMAL forces no commit
            self._is_forced = forced
        db.execute("BEGIN IMMEDIATE")
        return db

    def _patiently(self, do: Callable[[], T]) -> T:
        """Use the database; once more if it was damaged and has been repaired, or has room now."""
        try:
            return _patiently(self._path, do)
        except sqlite3.Error as error:
            if not self._repair_after(error):
                raise _unusable(self._path, _why(error)) from error
        try:
            return _patiently(self._path, do)
        except sqlite3.Error as error:
            raise _unusable(self._path, _why(error)) from error

    def _repair_after(self, error: sqlite3.Error) -> bool:
        """Rename a damaged database unless another process has done so; return whether using it again may help."""
        if _is_full(error):
            self._make_room()
            return True
        if not _is_damage(error):
            return False
        damaged = self._file
        self.close()
        with _gate(self._path):
            if folders.file_id(self._path) == damaged:
                from kinetic._backends.local import queue_database  # rare

                queue_database.set_aside(self._path)
        return True

    def _make_room(self) -> None:
        """Free the room of the reserve, and that of the journal, which begins anew."""
        with contextlib.suppress(OSError, sqlite3.Error):
            _reserve(self._path).unlink(missing_ok=True)
            self._connection().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _connection(self) -> sqlite3.Connection:
        if self._pid != os.getpid():  # after a fork: a connection must not cross it
            _connections_of_parents.append(self._db)  # nor be closed by the child
            self._db, self._pid = None, os.getpid()
        if self._db is not None and folders.file_id(self._path) != self._file:
            self.close()  # it was renamed or removed
        if self._db is None:
            try:
                with _gate(self._path):
                    self._db, self._is_forced = _open(self._path), True
                    self._file = folders.file_id(self._path)
                    _make_reserve(self._path)
            except (OSError, sqlite3.Error) as error:
                self.is_read_only = getattr(error, "errno", None) == errno.EROFS and self._path.exists()
                if not self.is_read_only:
                    raise _unusable(self._path, _why(error)) from error
                self._db = _open_read_only(self._path)
                self._file = folders.file_id(self._path)
        return self._db


_connections_of_parents: list[sqlite3.Connection | None] = []
_opened_by = 0  # the process that has opened a database, or the one that it was forked from


def is_of_parent() -> bool:
    """Return whether this process is a fork of one that has used SQLite, and has not used it itself."""
    return _opened_by not in {0, os.getpid()}


def _patiently(path: Path, do: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> T:
    """Use a database, and try again while another process holds its lock, for at most an hour.

    Raises:
        sqlite3.Error: It failed for another reason, or was held for an hour.
    """
    begun, is_reported = clock(), False
    while True:
        try:
            return do()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock() > begun + _MOST_SECONDS:
                raise
        time.sleep(0.005)  # some locks are not waited for by SQLite itself
        from kinetic._backends.local import lock_holders  # 1 ms, only while another process holds the lock

        holder = lock_holders.release_stopped_holder(path)
        if holder and not is_reported and clock() > begun + _REPORT_SECONDS:
            is_reported = True
            lock_holders.report(path, holder)


@contextmanager
def _gate(path: Path) -> Iterator[None]:
    """Let one process at a time open, create or rename the database.

    SQLite opens the files beside a database by name, after the database itself. If it were renamed in between, what is
    left beside it would be taken for a part of the new one.
    """
    lock, begun = path.with_suffix(".lock"), time.monotonic()
    pause = 0.001
    while (held := runtime_files.take_lock(lock)) is None:
        if time.monotonic() > begun + _MOST_SECONDS:
            raise _unusable(path, f"{lock} is held by another process")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        if time.monotonic() > begun + _LOCK_SECONDS:
            from kinetic._backends.local import lock_holders  # as above

            lock_holders.release_stopped_holder(lock)
    try:
        yield
    finally:
        held.release()


def _open(path: Path) -> sqlite3.Connection:
    """Open the database, created if need be; a damaged one is renamed first."""
    global _opened_by  # noqa: PLW0603 - of this process
    _opened_by = os.getpid()
    while True:
        if not path.exists():
            from kinetic._backends.local import queue_database  # once in the life of a queue, as below

            queue_database.make_file(path)
        db = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            version = _patiently(path, functools.partial(_prepare, db, path))
            if version > _SCHEMA:
                why = f"a newer kinetic wrote it: version {version}, this one knows {_SCHEMA}"
                raise _unusable(path, why, next="pip install --upgrade kinetic-jobs")
        except BaseException as error:
            db.close()
            if _is_full(error) and _reserve(path).exists():  # the first to open it needs room for its shared memory
                _reserve(path).unlink(missing_ok=True)
                continue
            if not (isinstance(error, sqlite3.Error) and _is_damage(error)):
                raise
            from kinetic._backends.local import queue_database

            queue_database.set_aside(path)
        else:
            if "KINETIC_SUPERVISOR" not in os.environ and path.with_name(runtime_files.REPAIR_NOTE).exists():
                from kinetic._backends.local import queue_database  # rare; a supervisor has no terminal

                queue_database.show_note(path)
            return db


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open the database on a read-only file system: with its journal, or without one where SQLite was ended cleanly."""
    from urllib.parse import quote  # 2 ms; rare

    for how in ("mode=ro", "immutable=1"):
        db = sqlite3.connect(f"file:{quote(str(path))}?{how}", uri=True, isolation_level=None, check_same_thread=False)
        try:
            db.execute(_TRIAL)
        except sqlite3.Error as error:
            db.close()
            why = str(error)
        else:
            return db
    raise _unusable(path, f"{os.strerror(errno.EROFS)}; {why}")


def _prepare(db: sqlite3.Connection, path: Path) -> int:
    """Create the tables if need be, and return the version of the database."""
    db.execute("PRAGMA synchronous = FULL")  # 0.1 ms: a reboot must not forget what was submitted
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version == 0:
        from kinetic._backends.local import queue_database

        queue_database.create(db, path, _SCHEMA)
    elif version == _SCHEMA:
        _check_tables(db)
    return version or _SCHEMA


def _check_tables(db: sqlite3.Connection) -> None:
    """Treat other tables as damage: builds before the first release had others under the same version."""
    try:
        db.execute(_TRIAL)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:  # "no such table", "no such column"
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise


def _may_be_repaired(error: BaseException | None) -> bool:
    """Return whether ``_repair_after`` has renamed the database, or made room, after this error."""
    return isinstance(error, sqlite3.Error) and (_is_full(error) or _is_damage(error))


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def _is_full(error: BaseException) -> bool:
    """Return whether the disk has no room: for a page, or for the file beside the database that processes share.

    Where a quota is used up, SQLite speaks of a write that failed, as where the disk is broken: there, it fails again.
    """
    code = getattr(error, "sqlite_errorcode", 0)
    more = {sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_WRITE}
    return code & 0xFF == sqlite3.SQLITE_FULL or code in more


def _why(error: BaseException) -> str:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_WRITE:
        return f"{error}, or a quota is used up"
    return os.strerror(errno.ENOSPC) if _is_full(error) else str(error)


def _reserve(path: Path) -> Path:
    return path.with_suffix(".reserve")


def _make_reserve(path: Path) -> None:
    """Take some room of the disk while there is enough; the caller has the gate."""
    reserve, size = _reserve(path), 0
    with contextlib.suppress(FileNotFoundError):
        size = os.stat(reserve).st_size
    with contextlib.suppress(OSError):
        # A shorter one is of a process that was killed, or that met a quota.
        if size < _RESERVE_BYTES and (disk := os.statvfs(path.parent)).f_bavail * disk.f_frsize > _FREE_BYTES:
            with open(reserve, "wb", opener=folders.opener) as file:
                file.write(os.urandom(_RESERVE_BYTES))  # zeros may take no room


def _unusable(path: Path, why: str, *, next: str = "") -> BackendUnavailableError:
    is_full = "disk is full" in why or os.strerror(errno.ENOSPC) in why
    room = "free some space there, or " if is_full else ""
    if not next and os.strerror(errno.EROFS) in why and not os.environ.get("KINETIC_RUNTIME_DIR"):
        next = "make that file system writable, or set KINETIC_HOME to a folder that you can write to"
    return BackendUnavailableError(
        "the queue of this machine cannot be used",
        why=f"{path}: {why}",
        next=next or f"{room}point KINETIC_RUNTIME_DIR at a folder on a local disk",
        code="disk-full" if is_full else None,
    )
