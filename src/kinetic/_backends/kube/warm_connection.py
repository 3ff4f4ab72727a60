"""A connection to the first process of a warm pod: one message and its answer, or kept open between jobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, ClassVar, TypeVar

from kinetic._wire import python_runtime, warm_pods
from kinetic._wire.warm_pods import Greeting
from kinetic.errors import BackendError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Object
    from kinetic._backends.kube.pod_exec import Tunnel

T = TypeVar("T")
_CLEAR_SECONDS = 15.0  # for a warm pod to remove what is left of a task, where much runs: a new one takes longer
_LATE_SECONDS = 60.0  # a pod may end so much later than it said
_ANSWER_SECONDS = 20.0  # for the greeting and the answers of a warm pod, on a connection that stays open


class WarmConnection:
    """A connection to the first process of a warm pod: lines of JSON."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel, self._rest = tunnel, b""

    def greeting(self) -> Greeting:
        """Return what it says first."""
        return Greeting.from_bytes(self.line())

    def ask(self, message: bytes) -> str:
        """Send a message, and return why it is not done, or ""."""
        self.send(message)
        while (why := warm_pods.refusal(self.line())) is None:
            pass  # a greeting: the pod's state has changed
        return why

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._tunnel.send(message + b"\n")

    def close(self) -> None:
        """Close it, from any thread."""
        self._tunnel.close()

    def line(self) -> bytes:
        """Wait for what it says next."""
        while b"\n" not in self._rest:
            data = self._tunnel.receive()
            if not data:
                raise BackendError("the warm pod closed the connection", why="it ended, or is about to")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


class KeptConnection:
    """A connection to a warm pod that stays open: the next job needs no other, and the pod tells on it how it is.

    A thread reads it. Python waits for the library's own threads before it calls what ``atexit`` has, so what is open
    then is closed by what ``concurrent.futures`` uses for its threads.
    """

    _open: ClassVar[set[KeptConnection]] = set()
    _closes_at_exit: ClassVar[bool] = False

    def __init__(
        self, dialed: AbstractContextManager[WarmConnection], pod: str, notify: Callable[[str], object]
    ) -> None:
        self.pod, self._dialed, self._notify = pod, dialed, notify
        self.turn = threading.Lock()  # of the thread that gives it a job: from what the pod says to its last answer
        self._changed = threading.Condition()
        self._connection: WarmConnection | None = None
        self._greeting: Greeting | None = None
        self._heard_at = 0.0  # when it said so, by our clock: the pod's may differ by minutes
        self._answer: bytes | None = None
        self._asked = ""  # the job that it was given last
        self._asked_after = 0.0  # and when it had said what it said last before, by its own clock
        self._known_decided = ""  # the job whose verdict was seen before the pod told of it
        self._outdated: Greeting | None = None  # what it said before it was given its last job
        self.pods: list[Object] = []  # once they were asked for
        self._error: KineticError | None = None
        self._process = os.getpid()
        self._open.add(self)
        self.is_over = not self._will_close()  # before the thread, which looks at it
        if not self.is_over and python_runtime.start_thread(self._read, "kinetic-warm-pod") is None:
            self.is_over = True

    @classmethod
    def _will_close(cls) -> bool:
        """Arrange that what is open is closed when the interpreter ends."""
        import concurrent.futures.thread  # noqa: F401 - whose own function is called after ours

        register = getattr(threading, "_register_atexit", None)
        if register is None:
            return False
        if not cls._closes_at_exit:
            with suppress(RuntimeError):  # the interpreter is about to end
                register(cls._close_all)
                cls._closes_at_exit = True
        return cls._closes_at_exit

    @classmethod
    def _close_all(cls) -> None:
        for each in list(cls._open):
            each.close()

    def close(self) -> None:
        """Close it, unless it is the one of a process that this one was forked from."""
        self.is_over = True
        connection = self._connection
        if connection is not None and self._process == os.getpid():
            connection.close()

    @property
    def is_lost(self) -> bool:
        """Whether it is over, or must be: the pod said that it would have ended by now, and was not heard of since."""
        found = self._greeting
        if found is None or found.state != warm_pods.IDLE:
            return self.is_over
        ends_at = found.until + self._heard_at - (found.said or self._heard_at)
        return self.is_over or time.time() > ends_at + _LATE_SECONDS

    @property
    def is_free(self) -> bool:
        """Whether the pod was idle when it was heard of last, or about to be so: its task was decided."""
        found = self._news()
        return not self.is_lost and found is not None and (found.state == warm_pods.IDLE or self._is_clearing())

    def greeting(self, is_decided: Callable[[str], bool] = lambda _: False) -> Greeting:
        """Return what the pod said last of itself; wait for it while it is about to be idle.

        ``is_decided``: whether a job has its verdict, which its log and the store may tell sooner than the pod does.
        """
        with self._changed:
            found = self._wait_for(self._news)
        if found.state == warm_pods.BUSY and found.decided != found.job_id and is_decided(found.job_id):
            self._known_decided = found.job_id
        with self._changed:
            self._changed.wait_for(lambda: self.is_over or not self._is_clearing(), _CLEAR_SECONDS)
            return self._wait_for(lambda: None if self.is_over else self._greeting)

    def has_taken(self, greeting: Greeting) -> None:
        """Note that the pod has taken a job: it is no longer as it said."""
        self._outdated = greeting

    def _news(self) -> Greeting | None:
        return None if self._greeting is self._outdated else self._greeting

    def _is_clearing(self) -> bool:
        found = self._greeting
        if found is None or found.state == warm_pods.IDLE:
            return False
        if found.state == warm_pods.STARTING:  # some hosts are not ready yet
            return True
        return found.job_id in {found.decided, self._known_decided}

    def ask(self, message: bytes, job_id: str) -> str:
        """Send a task, and return why it is not done, or ""."""
        with self._changed:
            if job_id != self._asked:
                self._asked, self._asked_after = job_id, self._greeting.said if self._greeting else 0.0
            why = warm_pods.refusal(self._exchange(message)) or ""
            self._asked = "" if why else job_id
            return why

    def installed(self) -> dict[str, str]:
        """Ask what is installed in the pod; return versions by normalized names."""
        with self._changed:
            return warm_pods.installed_versions(self._exchange(warm_pods.request(warm_pods.INSTALLED)))

    def _exchange(self, message: bytes) -> bytes:
        connection = self._wait_for(lambda: self._connection)
        self._answer = None
        connection.send(message)
        return self._wait_for(lambda: self._answer)

    def follows(self, job_id: str) -> bool:
        """Return whether a change of this job would be heard of."""
        return not self.is_over and job_id == self._asked

    def log_since(self, job_id: str) -> float:
        """Return a time before all that the pod's log has of a job, by the pod's clock; 0.0 where that is not known."""
        return self._asked_after if job_id == self._asked else 0.0

    def _wait_for(self, find: Callable[[], T | None]) -> T:
        """Wait until something is known, with the lock held, and return it; raise what ended the connection."""
        heard = self._changed.wait_for(lambda: find() is not None or self.is_over, _ANSWER_SECONDS)
        found = find()
        if found is not None:
            return found
        self.is_over = True
        why = "it ended, or is about to" if heard else f"no answer within {_ANSWER_SECONDS:g} s"
        raise self._error or BackendError(f"the warm pod {self.pod} closed the connection", why=why)

    def _read(self) -> None:
        try:
            with self._dialed as connection:
                self._connection = connection
                while not self.is_over:
                    line = connection.line()
                    is_answer = warm_pods.refusal(line) is not None
                    with self._changed:
                        if is_answer:
                            self._answer = line
                        else:
                            self._greeting, self._heard_at = Greeting.from_bytes(line), time.time()
                        self._changed.notify_all()
                    if not is_answer and self._has_decided():
                        self._notify(self._asked)
        except KineticError as error:
            self._error = error
        finally:
            self._open.discard(self)
            with self._changed:
                self.is_over = True
                self._changed.notify_all()
            if self._asked:
                self._notify(self._asked)  # who waits for it looks by itself from now on

    def _has_decided(self) -> bool:
        found = self._greeting
        return found is not None and bool(self._asked) and found.decided == self._asked
