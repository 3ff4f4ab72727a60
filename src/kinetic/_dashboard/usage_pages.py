"""What a job uses, as JSON for the page, and pushed to the pages that show it while it changes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kinetic._jobs import activity, locate, resource_usage
from kinetic._wire import python_runtime
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle

Page = dict[str, Any]
Offer = Callable[[dict[str, Any]], object]

_SECONDS, _SECONDS_AWAY = 1.0, 5.0  # between two looks: pods write what they use every 10 s
_MOST_SAMPLES = 480  # of all hosts of a job together: what a page draws and a stream carries


def usage_page(handle: JobHandle, *, is_final: bool) -> Page:
    """Return what a job used so far, how far it is, and whether it seems to hang.

    ``usage`` is as ``job.usage().to_dict()``, with fewer samples where it has many hosts; ``progress`` is as in
    ``kinetic jobs show --json``, or None; ``stalled`` is a sentence, or "".
    """
    attempt, measured = resource_usage.measurements_of(handle)
    found = activity.progress_from(handle, attempt, measured)
    usage = resource_usage.usage_from(handle, attempt, measured, most_samples=_MOST_SAMPLES)
    return {
        "usage": usage.to_dict(),
        "progress": activity.progress_page(found, found.at, is_final=is_final) if found is not None else None,
        "stalled": "" if is_final else activity.stall_text(measured, os.environ),
    }


class UsageFeed:
    """Reads the usage of jobs that pages show, each page one, and offers it to their streams when it has changed."""

    def __init__(self, is_over: Callable[[str], bool]) -> None:
        self._is_over = is_over  # of a job, by its id
        self._offers: dict[str, Offer] = {}
        self._shown: dict[str, tuple[JobHandle, Page]] = {}  # by stream: the job that its page shows, and what it has
        self._lock = threading.Lock()
        self._names = itertools.count()
        self._is_at_work = False
        self._ended = threading.Event()

    def add(self, offer: Offer) -> str:
        """Take a stream, and return its name: with it, its page says which job it shows."""
        with self._lock:
            name = str(next(self._names))
            self._offers[name] = offer
        return name

    def remove(self, name: str) -> None:
        """Forget a stream."""
        with self._lock:
            self._offers.pop(name, None)
            self._shown.pop(name, None)

    def show(self, name: str, handle: JobHandle, page: Page) -> None:
        """Offer what changes of a job from now on, to the stream of a page that shows this much of it."""
        with self._lock:
            if name not in self._offers:
                return
            self._shown[name] = handle, page
            if self._is_at_work:
                return
            self._is_at_work = python_runtime.start_thread(self._work, "kinetic-usage") is not None

    def end(self) -> None:
        """Stop reading."""
        self._ended.set()

    def _work(self) -> None:
        """Look as long as a page shows a job that has not ended."""
        looks = 0
        while not self._ended.wait(_SECONDS):
            looks += 1
            with self._lock:
                shown = [*self._shown.items()]
                if not shown:
                    self._is_at_work = False
                    return
            for name, (handle, page) in shown:
                if locate.is_here(handle) or looks % round(_SECONDS_AWAY / _SECONDS) == 0:
                    self._look(name, handle, page)

    def _look(self, name: str, handle: JobHandle, before: Page) -> None:
        try:
            is_over = self._is_over(handle.job_id)  # first: what is read then is all there will be
            found = usage_page(handle, is_final=is_over)
        except (KineticError, OSError):  # the page says elsewhere what is wrong with the place
            return
        with self._lock:
            offer, shown = self._offers.get(name), self._shown.get(name)
            if offer is None or shown is None or shown[0] is not handle:
                return
            if is_over:
                del self._shown[name]
            else:
                self._shown[name] = handle, found
        if found != before:
            offer(found)
