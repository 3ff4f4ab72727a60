"""Telling how far data has come: nothing for what takes a moment, a line that moves on a terminal, plain lines else."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kinetic import _output as output
from kinetic._output import terminal
from kinetic._output.format import share_text, size_text
from kinetic._wire import threads

if TYPE_CHECKING:
    from kinetic._data.content_hash import Tree

_SLOW_SECONDS = 1.0
_LARGE_BYTES = 10 << 30  # above this, sending is worth a second thought
_NAMED = 5  # names in one line


class TransferProgress:
    """The progress of one piece of work on data; a context manager, and its counts may come from any thread.

    Args:
        doing: What is done, e.g. "sending".
        what: To what, as the user knows it.
        files: How many files there are to do.
        size: How many bytes.
    """

    def __init__(self, doing: str, what: str, files: int, size: int) -> None:
        self._doing, self._what = doing, what
        self._of_files, self._of_bytes = files, size
        self._files = self._done = self._there = 0
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = output.Progress()

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread = threads.begin(self._tick, "kinetic-data-progress")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._progress.clear()
        took = time.monotonic() - self._begun
        if kind is None and took >= _SLOW_SECONDS:
            output.report(f"{self._doing} {self._what} took {took:.1f} s: {self.detail(took)}")

    def add(self, *, files: int = 0, done: int = 0, there: int = 0) -> None:
        """Count files, bytes that were worked on, and bytes that needed no work because they were there already."""
        with self._lock:
            self._files += files
            self._done += done
            self._there += there

    def detail(self, seconds: float) -> str:
        """Say how far it has come."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        told = f"{files:,} of {self._of_files:,} files, {size_text(done + there)} of {size_text(self._of_bytes)}"
        rate = f", {size_text(done / seconds)}/s" if done and seconds > 0 else ""
        return told + rate + (f", {size_text(there)} there already" if there else "")

    def brief(self, seconds: float) -> str:
        """Say the same in the 80 columns of a terminal; what it is about comes last, where it may be cut off."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        told = [f"{files}/{self._of_files} files", share_text(done + there, self._of_bytes)]
        told += [f"{size_text(done / seconds)}/s"] if done and seconds > 0 else []
        told += [f"{size_text(there)} there"] if there else []
        return f"{', '.join(told)} ({self._what})"

    def _tick(self) -> None:
        progress, is_live = self._progress, terminal.is_possible()
        doing = self._doing if is_live else f"{self._doing} {self._what}"
        progress.enter(doing)
        while not self._over.wait(_SLOW_SECONDS):
            seconds = time.monotonic() - self._begun
            progress.enter(doing, self.brief(seconds) if is_live else self.detail(seconds))


def report_left_out(what: str, tree: Tree) -> None:
    """Say once what of the data does not travel."""
    if tree.left_out:
        more = len(tree.left_out) - _NAMED
        names = ", ".join(tree.left_out[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        output.once(f"{what} travels without {names}")


def warn_if_large(what: str, size: int, *, is_copied_here: bool = False) -> None:
    """Warn before a lot is sent."""
    if size > _LARGE_BYTES:
        hint = "; fuse=True shows it to jobs on this machine without a copy" if is_copied_here else ""
        output.warn(f"{size_text(size)} of {what} are copied into the store now{hint}")
