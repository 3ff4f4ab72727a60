"""What must be right before jobs run on a cluster: one list of checks, asked from the login to the accelerator.

A check that needs another one is skipped where that failed: ten consequences of one cause help no reader. What a
submission would refuse is refused by the same functions here, in the same three parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from kinetic._google.api import ApiError
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._google.api import Page

Level = Literal["PASS", "WARN", "FAIL", "SKIP"]
_AT_ONCE = 16  # threads, of which some wait for the answers of others


class Finding(NamedTuple):
    """What a check found."""

    key: str  # the check
    group: str  # what it is about, e.g. "rights"
    level: Level  # "PASS"; "WARN" where jobs may run nevertheless; "FAIL"; "SKIP" where it was not asked
    what: str  # a sentence without a full stop
    why: str = ""  # the evidence; "" for none
    next: str = ""  # the command or call that repairs it; "" for none
    repair: Callable[[], object] | None = None  # what ``--fix`` does; None where only a person can decide

    def to_json(self) -> dict[str, object]:
        """Return it as plain JSON."""
        return {**self._asdict(), "repair": self.repair is not None}


class Problem(Exception):  # noqa: N818 - what a check says, not a fault of ours
    """A check's answer other than PASS: level, what, why, next and how it is repaired."""

    def __init__(
        self,
        level: Level,
        what: str,
        *,
        why: str = "",
        next: str = "",
        repair: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(what)
        self.level, self.what, self.why, self.next, self.repair = level, what, why, next, repair


class Check(NamedTuple):
    """One thing that must be right."""

    key: str  # its one word
    group: str  # what it is about
    # returns a sentence about what is right, or raises a Problem, an error of ours or Google's refusal
    ask: Callable[[], str]
    needs: tuple[str, ...] = ()  # keys of checks without which it cannot be asked
    lenient: bool = False  # whether an error of ours or Google's is a warning only
    repairs: Mapping[str, Callable[[], object]] = {}  # functions that repair an error of ours, by its code


def run(checks: Iterable[Check]) -> Iterator[Finding]:
    """Ask the checks side by side, each after those that it needs, and yield what they find in their own order.

    Each comes after what it needs, so the first that is not done never waits for one without a thread. Ctrl-C waits for
    none of them.
    """
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="kinetic-check")
    answers: dict[str, Future[Finding]] = {}
    try:
        for check in checks:
            needed = {key: answers[key] for key in check.needs if key in answers}
            answers[check.key] = pool.submit(_asked_after, check, needed)
        for answer in answers.values():
            yield answer.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _asked_after(check: Check, needed: Mapping[str, Future[Finding]]) -> Finding:
    return _asked(check, {key: answer.result().level for key, answer in needed.items()})


def _asked(check: Check, levels: Mapping[str, Level]) -> Finding:
    blocked = next((key for key in check.needs if levels.get(key) in {"FAIL", "SKIP"}), "")
    if blocked:
        return Finding(check.key, check.group, "SKIP", f"not asked, because of {blocked}")
    try:
        return Finding(check.key, check.group, "PASS", check.ask())
    except Problem as problem:
        about = (problem.what, problem.why, problem.next, problem.repair)
        return Finding(check.key, check.group, problem.level, *about)
    except KineticError as error:
        level: Level = "WARN" if check.lenient else "FAIL"
        repair = check.repairs.get(error.code)
        return Finding(check.key, check.group, level, error.what, error.why or "", error.next or "", repair)
    except ApiError as error:
        level = "SKIP" if check.lenient else "FAIL"
        return Finding(check.key, check.group, level, f"Google refused the question ({error.status})", error.message)


def repair(checks: Sequence[Check], found: Sequence[Finding]) -> Iterator[Finding]:
    """Repair what can be, ask those checks again, and yield what they find now."""
    by_key = {check.key: check for check in checks}
    for finding in found:
        if finding.repair is None or finding.level in {"PASS", "SKIP"}:
            continue
        try:
            finding.repair()
        except (KineticError, ApiError) as error:
            yield finding._replace(why=f"the repair failed: {error.args[0] if error.args else error}", repair=None)
        else:
            yield _asked(by_key[finding.key]._replace(needs=()), {})


def fix(checks: Sequence[Check], found: Sequence[Finding]) -> Iterator[Finding]:
    """Repair what can be, ask what was skipped again, until nothing more can be repaired; yield what is found then."""
    now, tried = {each.key: each for each in found}, set[str]()
    while todo := [each for each in now.values() if each.repair is not None and each.key not in tried]:
        tried |= {each.key for each in todo}
        for each in repair(checks, todo):
            now[each.key] = each
            yield each
        if any(each.level == "SKIP" for each in now.values()):
            for each in [each for each in run(checks) if each.level != now[each.key].level]:
                now[each.key] = each
                yield each


def is_usable(found: Iterable[Finding]) -> bool:
    """Return whether nothing failed."""
    return not any(each.level == "FAIL" for each in found)


def texts_of(page: Page, *names: str) -> str:
    """Return the field that a path of names leads to, as text; "" where there is none."""
    value: object = page
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)
