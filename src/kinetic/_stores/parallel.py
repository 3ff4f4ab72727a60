"""Many requests to a store at once: bounded in number and in memory, the first error ends them all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from kinetic._wire import threads

if TYPE_CHECKING:
    from kinetic._stores.protocol import Source, Store


T = TypeVar("T")


class Addressed(Protocol):
    """What is known of a store here: where it lies."""

    url: str


CLOUD_PARALLELISM = 16  # a request waits for the network nearly all its time; more than this, and the provider says 429
WAKE_SECONDS = 0.5
MAX_FILE_PARALLELISM = 8  # a disk gains little from more, and each lane holds a chunk in memory


def parallelism(store: Addressed) -> int:
    """Say how many requests to this store are worth having under way at once."""
    if store.url.startswith(("file://", "memory://")):
        return max(1, min(MAX_FILE_PARALLELISM, _processors()))
    return CLOUD_PARALLELISM


def in_parallel(store: Addressed, tasks: Iterable[Callable[[], T]], *, limit: int | None = None) -> Iterator[T]:
    """Carry out tasks on threads and yield their results in the order in which they finish.

    The tasks are drawn by the thread that reads the results, and only while fewer than twice ``limit`` are under way
    or finished and not yet read: what a reader does not take does not pile up.

    The first error of a task (or of ``tasks`` itself) starts no further task, waits for those that run, so that
    nothing goes on behind the caller's back, and is raised. A reader that stops early (Ctrl-C, ``break``) does not
    wait: what runs then goes on to its own end on a thread that does not hold the process.

    Where no thread can be had, the reader's carries out one task after the other.

    Args:
        store: Whose requests these are; it says how many at once are sensible.
        tasks: Functions without arguments; may be endless.
        limit: How many run at once, instead of what suits the store.
    """
    many = max(1, limit or parallelism(store))
    return _one_by_one(tasks) if many == 1 else _on_threads(iter(tasks), many)


def put_many(
    store: Store,
    items: Iterable[tuple[str, Source]],
    *,
    if_absent: bool = False,
    progress: Callable[[str], object] | None = None,
) -> int:
    """Write many objects at once.

    Args:
        store: Where.
        items: Keys and what to write there; drawn as they are sent.
        if_absent: Create only; those that are there are left as they are.
        progress: Called with each key when it is durable, on the calling thread.

    Returns:
        How many of them this call wrote.
    """

    def putting(key: str, source: Source) -> Callable[[], tuple[str, bool]]:
        return lambda: (key, store.put(key, source, if_absent=if_absent))

    written = 0
    for key, wrote in in_parallel(store, (putting(key, source) for key, source in items)):
        written += wrote
        if progress is not None:
            progress(key)
    return written


def fetch_many(
    store: Store, items: Iterable[tuple[str, os.PathLike[str]]], *, progress: Callable[[str], object] | None = None
) -> int:
    """Copy many objects into local files at once, whose folders exist.

    Args:
        store: From where.
        items: Keys and files; drawn as they are asked for.
        progress: Called with each key when its file is there, on the calling thread.

    Returns:
        How many were copied.

    Raises:
        KeyMissingError: Nothing lies under one of the keys.
    """

    def fetching(key: str, to: os.PathLike[str]) -> Callable[[], str]:
        def fetch() -> str:
            store.fetch(key, to)
            return key

        return fetch

    count = 0
    for key in in_parallel(store, (fetching(key, to) for key, to in items)):
        count += 1
        if progress is not None:
            progress(key)
    return count


def wait_for_item(queue: SimpleQueue[T]) -> T:
    """Wait for an item, and let Ctrl-C through: a signal just before a wait begins would else be seen after it."""
    while True:
        try:
            return queue.get(timeout=WAKE_SECONDS)
        except Empty:
            continue


class _Done(NamedTuple):
    """How one task ended."""

    result: object
    error: BaseException | None


def _one_by_one(tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
    for task in tasks:
        yield task()


def _on_threads(tasks: Iterator[Callable[[], T]], many: int) -> Iterator[T]:
    crew: _ThreadPool[T] = _ThreadPool(many)
    try:
        exhausted = False
        while True:
            while not exhausted and crew.under_way < 2 * many:
                task = next(tasks, None)
                exhausted = task is None
                if task is not None:
                    crew.give(task)
            if not crew.under_way:
                return
            yield crew.take()
    except GeneratorExit:  # the reader stopped
        raise
    except Exception:
        crew.drain()
        raise
    finally:
        crew.dismiss()


class _ThreadPool(Generic[T]):
    """Threads that carry out tasks; at most so many, started as they are needed.

    Not ``concurrent.futures``, whose threads the interpreter waits for when it ends: after a Ctrl-C, for minutes.
    """

    def __init__(self, many: int) -> None:
        self.under_way = 0  # given and not yet taken
        self._many = many
        self._threads = 0
        self._dismissed = threading.Event()
        self._tasks: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: SimpleQueue[_Done] = SimpleQueue()

    def give(self, task: Callable[[], T]) -> None:
        self.under_way += 1
        self._tasks.put(task)
        if self._threads < min(self._many, self.under_way):
            self._threads += threads.start(self._work, f"kinetic-transfer-{self._threads + 1}") is not None

    def take(self) -> T:
        done = self._next()
        if done.error is not None:
            raise done.error
        return done.result  # type: ignore[return-value]  # of the task, whose result is a T

    def drain(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        self._dismissed.set()
        while self.under_way:
            self._next()

    def dismiss(self) -> None:
        self._dismissed.set()
        for _ in range(self._threads):
            self._tasks.put(None)

    def _next(self) -> _Done:
        """Wait for a task that has ended; without a single thread, carry one out."""
        done = wait_for_item(self._done) if self._threads else self._carry_out(wait_for_item(self._tasks))
        self.under_way -= 1
        return done

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done = self._carry_out(task)
            self._done.put(done)
            del task, done  # they may hold megabytes while this thread waits

    def _carry_out(self, task: Callable[[], T] | None) -> _Done:
        if task is None or self._dismissed.is_set():
            return _Done(None, None)
        try:
            return _Done(task(), None)
        except BaseException as error:  # noqa: BLE001 - raised again where the results are read
            return _Done(None, error)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _random() -> float:
    import random  # 3 ms, and only a request that failed needs it

    return random.random()  # noqa: S311 - spreads retries, protects nothing


class Retry(NamedTuple):
    """Repeat what may pass, with growing pauses of random length, so that many clients do not come back at once.

    Attributes:
        attempts: The most requests for one answer.
        first_seconds: The longest first pause; each further one may be twice as long.
        most_seconds: The longest pause.
        total_seconds: After this, no further attempt.
        sleep: Waits so many seconds.
        random: A number from 0 to 1.
    """

    attempts: int = 8
    first_seconds: float = 0.25
    most_seconds: float = 10.0
    total_seconds: float = 120.0
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = _random

    def pause(self, attempt: int, *, at_least: float = 0.0) -> None:
        """Wait after a failed attempt, numbered from 0; never less than the server asked for."""
        longest = min(self.most_seconds, self.first_seconds * 2**attempt)
        self.sleep(max(at_least, longest * (0.5 + self.random() / 2)))
