"""What is seen of an error: the user's frames and not ours, on every way by which a traceback is shown.

Two things do it. A *door* (a public function) takes our own frames off an exception that leaves it; so debuggers,
notebooks, pytest and ``logging`` show what the user wrote, and the exception itself stays as it was. And where nobody
has installed a hook of their own, an uncaught error of a script is printed in one piece: a mistake in its three parts,
a failed job with one traceback that leads from the script into the job. KINETIC_DEBUG=1 switches both off.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, TypeVar

from kinetic._output import terminal
from kinetic.errors import BatchError, JobError, KineticError, printable

REMOTE = "Remote traceback:\n"  # how the note begins that carries the traceback of a job
LOG = "The job's log: "  # how the last line of that note begins
_HEADER = "Traceback (most recent call last):"
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_JUST_SECONDS = 2.0  # what a job's log wrote so lately stands right above
_TAIL = 8192  # characters

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
_seen_last = ""  # what a job's log wrote to standard output last
_seen_at = float("-inf")


def hides_frames(function: Function) -> Function:
    """Make a function one that our own frames do not leave: what it raises begins where the user called it."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generates(*args: Any, **kwargs: Any) -> Iterator[Any]:
            __tracebackhide__ = True
            with _Leaving():
                yield from function(*args, **kwargs)

        return generates  # type: ignore[return-value] # it has the same signature

    @functools.wraps(function)
    def calls(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with _Leaving():
            return function(*args, **kwargs)

    return calls  # type: ignore[return-value] # as above


def hides_frames_of_methods(kind: Class) -> Class:
    """Make every public method of a class a door."""
    for name, value in list(vars(kind).items()):
        if inspect.isfunction(value) and not name.startswith("_"):
            setattr(kind, name, hides_frames(value))
    return kind


def interrupt(words: str) -> KeyboardInterrupt:
    """Return Ctrl-C for a caller who may catch it; whoever pressed it has been told everything, so nothing is shown.

    It has no class of its own: Python tells a shell that Ctrl-C ended the program (130) only if it was exactly this.
    """
    error = KeyboardInterrupt(words)
    if not is_debug():
        error.__dict__["_render_traceback_"] = list  # what IPython shows in place of a traceback: no lines
    install()
    return error


def note_log_output(text: str) -> None:
    """Take note of what a job's log has just written to standard output."""
    global _seen_last, _seen_at
    _seen_last, _seen_at = (_seen_last + text)[-_TAIL:], time.monotonic()


def install() -> None:
    """Print uncaught errors of ours in one piece, unless somebody has a hook of their own."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def is_debug() -> bool:
    """Return whether the user wants to see our frames."""
    return os.environ.get("KINETIC_DEBUG", "") not in {"", "0"}


def show(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Print an error that ends a program; one that has nothing to do with us as Python does."""
    try:
        text = None if is_debug() else _text_of(error, at)
    except Exception:  # noqa: BLE001 - `str` of an exception is user code, too
        text = None
    if text is None:
        sys.__excepthook__(kind, error, at)
    elif text and sys.stderr is not None:
        terminal.clear()
        sys.stderr.write(printable(text))
        sys.stderr.flush()


class _Leaving:
    """Take our frames off what leaves; a class, because a generator's frames would be more of them."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or is_debug() or isinstance(error, GeneratorExit | StopIteration):
            return
        install()
        if _is_told(error):
            _shorten(error, {id(error)})
        else:  # a mistake of ours, or of code that we call, e.g. of the user's iterator of inputs
            theirs = _without_ours(error.__traceback__)
            error.__traceback__ = theirs or error.__traceback__


def _is_told(error: BaseException) -> bool:
    """Return whether an error says by itself what happened, so that no frame of ours could add to it."""
    return isinstance(error, KineticError | BatchError | KeyboardInterrupt) or _remote_of(error) is not None


def _shorten(error: BaseException, seen: set[int]) -> None:
    error.__traceback__ = _without_ours(error.__traceback__)
    for other in (error.__cause__, error.__context__):
        if other is not None and id(other) not in seen and _begins_here(other.__traceback__):
            seen.add(id(other))
            _shorten(other, seen)


def _begins_here(at: TracebackType | None) -> bool:
    return at is not None and _is_ours(at.tb_frame)


def _without_ours(at: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, and without those of libraries that we called."""
    kept: list[TracebackType] = []
    is_theirs = False
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        is_theirs = not _is_ours(at.tb_frame) and (is_theirs or not _is_library(name))
        if is_theirs:
            kept.append(at)
        at = at.tb_next
    shorter: TracebackType | None = None
    for each in reversed(kept):
        shorter = TracebackType(shorter, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shorter


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_OURS)


def _is_library(name: str) -> bool:
    return name.startswith((_LIBRARY, "<frozen ")) or f"{os.sep}site-packages{os.sep}" in name


def _remote_of(error: BaseException) -> str | None:
    """Return the traceback of the job that failed, and the line about its log; None for all other errors."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str) and note.startswith(REMOTE) and f"\n{LOG}" in note:
            return note.removeprefix(REMOTE)
    return None


def _text_of(error: BaseException, at: TracebackType | None) -> str | None:
    """Return what is printed of an error that ends a program; None where Python does that."""
    if isinstance(error, KeyboardInterrupt):
        return "" if "_render_traceback_" in error.__dict__ else None
    remote = _remote_of(error)
    if remote is not None:
        return _of_a_job(error, at, remote)
    if isinstance(error, BatchError | JobError):
        return _frames(at) + _last_lines(error)
    return _last_lines(error) if isinstance(error, KineticError) else None


def _of_a_job(error: BaseException, at: TracebackType | None, remote: str) -> str:
    """Return one traceback that leads from the script into the job, and the line about its log.

    Where the job's own traceback is what its log has just written to the same place, it is not shown again.
    """
    job, _, log = remote.rstrip("\n").rpartition(f"\n{LOG}")
    last = f"kinetic: {LOG[0].lower()}{LOG[1:]}{log}\n"
    if _stands_there(job):
        return last
    if isinstance(error, KineticError):  # e.g. an exception whose class is not here; its words say more than the job's
        return f"{job.rstrip()}\n{_last_lines(error)}"
    head, found, tail = job.rpartition(f"{_HEADER}\n")
    before = f"{head}{_frames(at)}{tail}" if found and not head[-1:].strip() else job
    notes = [note for note in error.__notes__ if not note.startswith(REMOTE) and note not in job]
    return "\n".join([before.rstrip("\n"), *notes, last])


def _stands_there(job: str) -> bool:
    if time.monotonic() - _seen_at > _JUST_SECONDS or not _go_to_one_place():
        return False
    lines = job.rstrip().splitlines()
    return bool(lines) and _HEADER in _seen_last and lines[-1] in _seen_last


def _go_to_one_place() -> bool:
    """Return whether standard output and error are read together: on one terminal, in one file, through one pipe."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (AttributeError, ValueError, OSError):  # none, or closed, or no file
        return False


def _frames(at: TracebackType | None) -> str:
    import traceback  # 5 ms; only on the way to an error

    theirs = _without_ours(at)
    return f"{_HEADER}\n{''.join(traceback.format_tb(theirs))}" if theirs is not None else ""


def _last_lines(error: BaseException) -> str:
    """Return an error's own lines, with its notes, as Python writes them below a traceback."""
    import traceback

    return "".join(traceback.TracebackException.from_exception(error).format_exception_only())
