"""Driving a batch: launch what there is room for, try again what failed, stop when that was asked for.

The driver holds the batch's lease. It decides only what the board shows, and everything it decides is a key that is
created once: an attempt, its end, the stop. So a driver can die at any step, and the next one goes on from there.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import control_log, removal
from kinetic._batches.launcher import AT_ONCE
from kinetic._wire import outcome as outcomes
from kinetic._wire.failpoints import step
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kinetic._batches.launcher import Launcher
    from kinetic._batches.lease import Lease
    from kinetic._batches.state import BatchTracker

_LOOK_SECONDS = 1.0  # told, not polled: this only finds what nobody told
_PATIENCE_SECONDS = 600.0  # a store or a queue that is out of reach this long ends the driving; it can be resumed
_LONGEST_PAUSE = 30.0
_LAST_WORDS_SECONDS = 10.0  # between the verdict of a job and the end of its keeper's work on it


class Driver:
    """Drive one batch, in a thread of its own or in the caller's.

    Args:
        launcher: Launches children.
        lease: The right to drive.
        on_launch: Told of the index of every child that was launched.
        only: Launch nothing for any other input; None drives them all.
    """

    def __init__(
        self,
        launcher: Launcher,
        tracker: BatchTracker,
        lease: Lease,
        on_launch: Callable[[int], None],
        only: Collection[int] | None = None,
    ) -> None:
        self._launcher = launcher
        self._tracker = tracker
        self._lease = lease
        self._on_launch = on_launch
        self._only = only
        self._settings = launcher.group.settings
        self._again: deque[tuple[int, int]] = deque()  # submitted by a driver that died before it launched them
        self._waiting: deque[tuple[int, int]] = deque()
        self._tried: set[tuple[int, int]] = set()  # what follows a failure: the board may tell of one end twice
        self._read = 0  # how much of the board's list of ends was looked at
        self._failed = False
        self.superseded = False

    def run(self) -> None:
        """Drive until nothing is left to be done, or somebody stops it or takes over."""
        try:
            self._begin()
            while self._round():
                if not self._can_launch():
                    self._tracker.wait(_LOOK_SECONDS, read=self._read)
        finally:
            self._lease.release()
            step("driver:released")

    def _begin(self) -> None:
        """Find out what is left to be launched: everything of a new batch, the rest of one that is taken over."""
        if self._lease.epoch:
            self._tracker.refresh(whole=True)
            self._again.extend((index, self._tracker.attempts[index]) for index in self._tracker.unseen())
        self._tracker.submit_alone()
        for index, item in enumerate(self._launcher.table.inputs):
            if not self._is_ours(index):
                continue
            if item.arguments is None:
                self._failed = True
            elif self._tracker.attempts[index] < 0:
                self._waiting.append((index, 0))

    def _is_ours(self, index: int) -> bool:
        return (self._only is None or index in self._only) and not self._tracker.turns.stops(index)

    def _round(self) -> bool:
        """Do what can be done now; True when there may be more to do. A place out of reach is waited for."""
        for pause in _pauses():
            try:
                return self._once()
            except KineticError as error:
                if isinstance(error, OptionError) or pause is None:
                    raise
                output.once(f"{self._launcher.group.group_id}: {error.what}; trying again")
                time.sleep(pause)
        return False

    def _once(self) -> bool:
        self.superseded = not self._lease.is_ours()
        if self.superseded:
            return False
        self._tracker.read_turns()
        self._tracker.refresh()
        if self._tracker.stopped:
            self._leave_nothing()
            return False
        self._take_ends()
        if self._failed and self._settings.fail_fast:
            self._stop_after_a_failure()
            return False
        launched = self._launch()  # then once more: somebody may have stopped the batch in between
        return launched or bool(self._again or self._waiting) or self._has_reason_to_look()

    def _take_ends(self) -> None:
        """Look at what has ended since the last time: what may be tried again is queued behind everything else."""
        ended = self._tracker.ended
        while self._read < len(ended):
            self._take_end(ended[self._read])
            self._read += 1

    def _take_end(self, index: int) -> None:
        end = self._tracker.end(index)
        if end is None or not self._is_ours(index):
            return
        following = index, self._tracker.attempts[index] + 1
        if end.word == outcomes.FAILED and self._tracker.may_launch(index):
            if following not in self._tried:
                step("driver:saw-an-end")
                self._close(index)
                self._tried.add(following)
                self._waiting.append(following)
        elif end.word in {outcomes.FAILED, outcomes.CANCELLED}:
            self._failed = True

    def _close(self, index: int) -> None:
        """See to it that a failed attempt can never succeed any more, and free what it held; its artifacts stay."""
        handle = self._tracker.record(index)
        if handle is not None:
            removal.close_attempt(handle, self._launcher.store)
            backend = self._launcher.backend
            backend.stop([handle.job_id], wait=_LAST_WORDS_SECONDS)  # it has ended; its log may be on its way yet
            backend.remove([handle.job_id])
            step("driver:attempt-closed")

    def _launch(self) -> bool:
        """Launch as many as there is room for; of very many only some, to look up in between."""
        source = self._again or self._waiting
        room = len(source) if source is self._again else self._room()
        wanted = [source.popleft() for _ in range(min(room, len(source), AT_ONCE))]
        if not wanted:
            return False
        try:
            self._launcher.launch(wanted)
        except BaseException:
            source.extendleft(reversed(wanted))  # ids are derived: launching once more what was is harmless
            raise
        for index, attempt in wanted:
            self._tracker.submitted(index, attempt)
            self._on_launch(index)
        return True

    def _can_launch(self) -> bool:
        return bool(self._again or (self._waiting and self._room()))

    def _room(self) -> int:
        limit = self._settings.max_concurrent
        return len(self._waiting) if limit is None else max(0, limit - len(self._tracker.active))

    def _has_reason_to_look(self) -> bool:
        """Say whether what still runs may give this driver something to do."""
        active = self._tracker.active
        if self._settings.fail_fast and self._settings.cancel_running_on_fail and active:
            return True
        return any(self._is_ours(index) and self._tracker.may_launch(index) for index in active)

    def _stop_after_a_failure(self) -> None:
        """Launch nothing more, and let nobody else do so; cancel what runs if that was asked for."""
        self._tracker.stop(control_log.FAIL_FAST)
        step("driver:stopped-the-rest")
        if self._settings.cancel_running_on_fail:
            removal.cancel_attempts(sorted(self._tracker.active), self._tracker)

    def _leave_nothing(self) -> None:
        """After somebody cancelled the batch, cancel what was launched in that very moment."""
        if self._tracker.turns.why == control_log.CANCELLED:
            removal.cancel_attempts(sorted(self._tracker.active), self._tracker)


def _pauses() -> Iterator[float | None]:
    """Yield how long to wait before each further try, and None when patience is at its end."""
    pause, spent = 0.5, 0.0
    while spent < _PATIENCE_SECONDS:
        yield pause
        spent += pause
        pause = min(pause * 2, _LONGEST_PAUSE)
    yield None
