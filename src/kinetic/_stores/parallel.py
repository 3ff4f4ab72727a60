"""Requests to a store: many at once, bounded in number and in memory; and how often a failed one is repeated."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from kinetic._wire import NamedTuple, python_runtime

T = TypeVar("T")


class Addressed(Protocol):
    """What is known of a store here: its address."""

    url: str


CLOUD_PARALLELISM = 16  # a request waits for the network nearly all its time; more than this, and the provider says 429
WAKE_SECONDS = 0.5
MAX_FILE_PARALLELISM = 8  # a disk gains little from more, and each thread holds a chunk in memory


def parallelism(store: Addressed) -> int:
    """Return how many requests to this store are worth having under way at once."""
    if store.url.startswith(("file://", "memory://")):
        return min(MAX_FILE_PARALLELISM, python_runtime.allowed_cores())
    return CLOUD_PARALLELISM


def in_parallel(store: Addressed | None, tasks: Iterable[Callable[[], T]], *, limit: int | None = None) -> Iterator[T]:
    """Run tasks on threads and yield their results in the order in which they finish.

    The tasks are drawn by the thread that reads the results, and only while fewer than twice ``limit`` are under way
    or finished and not yet read: what a reader does not take does not pile up.

    The first error of a task (or of ``tasks`` itself) starts no further task, waits for those that run, so that
    nothing runs on behind the caller's back, and is raised. A reader that stops early (Ctrl-C, another signal whose
    handler raises, ``break``) does not wait: what runs then ends on a thread that does not keep the process alive.

    Where no thread can be started, the reader's own runs one task after the other.

    Args:
        store: Whose requests these are; it says how many at once are sensible. None: ``limit`` does.
        tasks: Functions without arguments; may be endless.
        limit: How many run at once, instead of what suits the store.
    """
    many = max(1, limit or (1 if store is None else parallelism(store)))
    return (task() for task in tasks) if many == 1 else _on_threads(iter(tasks), many)


class _Share(threading.local):
    requests = 4 * CLOUD_PARALLELISM  # that a thread may have under way at once, with all that it runs side by side


_share = _Share()


def in_shares(tasks: Iterable[Callable[[], T]], *, most: int) -> Iterator[T]:
    """Run tasks that read from distant stores, at most so many at once, and yield their results as `in_parallel` does.

    Each has a part of what the thread that calls this may have under way: tasks may use this as well.
    """
    whole = _share.requests
    limit = max(1, min(most, whole, CLOUD_PARALLELISM))

    def run(task: Callable[[], T]) -> T:
        before, _share.requests = _share.requests, whole // limit
        try:
            return task()
        finally:  # where no thread can be started, this is the caller's own
            _share.requests = before

    return in_parallel(None, (functools.partial(run, task) for task in tasks), limit=limit)


def wait_for_item(queue: SimpleQueue[T]) -> T:
    """Wait for an item, and let Ctrl-C through: a signal just before a wait begins would else be seen after it."""
    while True:
        try:
            return queue.get(timeout=WAKE_SECONDS)
        except Empty:
            continue


class _Done(NamedTuple):
    result: object
    error: BaseException | None


def _on_threads(tasks: Iterator[Callable[[], T]], many: int) -> Iterator[T]:
    pool: ThreadPool[T] = ThreadPool(many)
    exhausted = is_drawing = False
    try:
        while True:
            while not exhausted and pool.under_way < 2 * many:
                is_drawing = True
                task = next(tasks, None)
                is_drawing, exhausted = False, task is None
                if task is not None:
                    pool.give(task)
            if not pool.under_way:
                return
            yield pool.take()
    except Exception:  # not GeneratorExit, of a reader that stopped
        if is_drawing or pool.has_failed:  # else a signal handler raised it
            pool.drain()
        raise
    finally:
        pool.dismiss()


class ThreadPool(Generic[T]):
    """Threads that run tasks; at most so many, started as they are needed.

    Not ``concurrent.futures``, whose threads the interpreter waits for when it ends: after a Ctrl-C, for minutes.
    """

    def __init__(self, many: int) -> None:
        self.under_way = 0  # given and not yet taken
        self.has_failed = False  # a task, whose error was taken
        self._many = many
        self._threads: list[threading.Thread] = []
        self._dismissed = threading.Event()
        self._tasks: SimpleQueue[Callable[[], T] | None] = SimpleQueue()
        self._done: SimpleQueue[_Done] = SimpleQueue()

    def give(self, task: Callable[[], T]) -> None:
        self.under_way += 1
        self._tasks.put(task)
        if len(self._threads) < min(self._many, self.under_way):
            started = python_runtime.start_thread(self._work, f"kinetic-transfer-{len(self._threads) + 1}")
            self._threads += [] if started is None else [started]

    def take(self) -> T:
        done = self._next()
        if done.error is not None:
            self.has_failed = True
            raise done.error
        return done.result  # type: ignore[return-value]  # of the task, whose result is a T

    def drain(self) -> None:
        """Wait for what runs; what has not begun is dropped."""
        self._dismissed.set()
        while self.under_way:
            self._next()

    def dismiss(self) -> None:
        self._dismissed.set()
        for _ in self._threads:
            self._tasks.put(None)

    def close(self) -> None:
        """Dismiss the threads, and wait until they have ended: a process may fork afterwards."""
        self.dismiss()
        for thread in self._threads:
            thread.join()

    def _next(self) -> _Done:
        """Wait for a task that has ended; without a single thread, run one."""
        done = wait_for_item(self._done) if self._threads else self._run(wait_for_item(self._tasks))
        self.under_way -= 1
        return done

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            done = self._run(task)
            self._done.put(done)
            del task, done  # they may hold megabytes while this thread waits

    def _run(self, task: Callable[[], T] | None) -> _Done:
        if task is None or self._dismissed.is_set():
            return _Done(None, None)
        try:
            return _Done(task(), None)
        except BaseException as error:  # noqa: BLE001 - raised again where the results are read
            return _Done(None, error)


def _random() -> float:
    import random  # 3 ms, and only a request that failed needs it

    return random.random()  # noqa: S311 - spreads retries, protects nothing


class Retry(NamedTuple):
    """How often a request is repeated; growing pauses of random length keep clients from coming back at once."""

    attempts: int = 8  # the most requests for one answer
    first_seconds: float = 0.25  # the longest first pause; each further one may be twice as long
    most_seconds: float = 10.0  # the longest pause
    total_seconds: float = 120.0  # after this, no further attempt
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = _random  # a number from 0 to 1

    def pause(self, attempt: int, *, at_least: float = 0.0) -> None:
        """Wait after a failed attempt, numbered from 0; never less than the server asked for."""
        longest = min(self.most_seconds, self.first_seconds * 2**attempt)
        self.sleep(max(at_least, longest * (0.5 + self.random() / 2)))
