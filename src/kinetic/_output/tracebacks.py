"""What is shown of an error: the user's frames and not ours, wherever a traceback is shown.

Public functions remove our own frames from an exception that leaves them; so debuggers, notebooks, pytest and
``logging`` show what the user wrote, and the exception stays as it was. And unless a program has its own hook, an
uncaught error of a script is printed in one piece: a usage error in its three parts, with the user's line, a failed
job with one traceback that leads from the script into the job. KINETIC_DEBUG=1 switches both off.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._version import __version__
from kinetic.errors import BatchError, JobError, KineticError, correct_advice, is_debug, printable

if TYPE_CHECKING:
    from kinetic._output.signal_handlers import HandlerWatch

REMOTE = "Remote traceback:\n"  # how the note begins that carries the traceback of a job
LOG = "The job's log: "  # how the last line of that note begins
_HEADER = "Traceback (most recent call last):"
_MARGINS = {_HEADER: "", f"  + Exception Group {_HEADER}": "  | "}  # what its lines begin with
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_JUST_SECONDS = 2.0  # what a job's log wrote so recently is right above
_TAIL = 8192  # characters
_MOST_REPORTED = 3  # of which all is said
_TOLD = "_kinetic_told"
_INTERRUPTED = ("repl_future_interrupted", "keyboard_interrupted")  # of asyncio/__main__.py to Python 3.12, and later
_GENERATOR = 0x20  # inspect.CO_GENERATOR; importing inspect costs 8 ms

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
Error = TypeVar("Error", bound=BaseException)
_seen_last = ""  # what a job's log wrote to standard output last
_seen_at = float("-inf")
_awaits: list[tuple[float, Callable[[], object]]] = []  # those that were cancelled: when, and what reports it
_waits: list[Callable[[], object]] = []  # what reports the jobs for which a thread waits now


def hides_frames(function: Function) -> Function:
    """Let what a public function raises begin where the user called it."""
    code: CodeType = function.__code__
    if code.co_flags & _GENERATOR:

        @functools.wraps(function)
        def generates(found: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            __tracebackhide__ = True
            with Leaving():
                return (yield from found)

        @functools.wraps(function)
        def begins(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            __tracebackhide__ = True
            with Leaving():  # a wrong call is an error at once, as that of any generator function
                return generates(function(*args, **kwargs))

        return begins  # type: ignore[return-value] # it has the same signature

    @functools.wraps(function)
    def calls(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with Leaving():
            return function(*args, **kwargs)

    return calls  # type: ignore[return-value] # as above


def hides_frames_of_methods(kind: Class) -> Class:
    """Let every public method of a class hide our frames."""
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType) and not name.startswith("_"):
            setattr(kind, name, hides_frames(value))
    return kind


def interrupt(words: str) -> KeyboardInterrupt:
    """Return Ctrl-C for a caller who may catch it; all messages were written, so nothing more is shown.

    It has no class of its own: Python tells a shell that Ctrl-C ended the program (130) only if it was exactly this.
    """
    error = mark_told(KeyboardInterrupt(words))
    if not is_debug():
        error.__dict__["_render_traceback_"] = list  # what IPython shows in place of a traceback: no lines
    install()
    return error


class Detaching:
    """A context for waiting: at Ctrl-C, ``report`` prints what keeps running, and returns that in one line.

    It leaves as an ordinary KeyboardInterrupt; where it is not caught, nothing more is printed. What a signal handler
    or another library's timeout raises into the wait leaves as it is. What a wait inside has told is not told once
    more, unless ``again``. A class, because a generator would add frames of its own.
    """

    def __init__(self, report: Callable[[], str], *, again: bool = False) -> None:
        self._report, self._again = report, again
        self._handlers: HandlerWatch | None = None

    def __enter__(self) -> None:
        from kinetic._output.signal_handlers import HandlerWatch  # 1 ms, with signal: a decorator needs neither

        self._handlers = HandlerWatch(sys._getframe(1))  # noqa: SLF001 - whose caller waits

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            _free_import_lock(error)
        raised = self._handlers.end() if self._handlers is not None else None
        if raised is not None and isinstance(error, Exception) and error is not raised:  # our code took it for its own
            self._report()
            raise mark_told(raised) from None
        if error is None or (was_told(error) and not self._again):
            return
        if isinstance(error, KeyboardInterrupt):
            raise interrupt(self._report()) from None
        is_own = isinstance(error, KineticError | BatchError | GeneratorExit | BrokenPipeError)
        is_stop = isinstance(error, Exception) and type(error).__name__ == "CancelledError"  # of a stopped build
        if not is_own and not is_stop:
            self._report()
            mark_told(error)


def _free_import_lock(error: BaseException) -> None:
    if isinstance(error, GeneratorExit):  # of a coroutine that is collected, maybe while its thread imports something
        return
    from kinetic._wire import python_runtime  # only where something was raised

    python_runtime.free_import_lock()


def mark_told(error: Error) -> Error:
    """Have a wait that an exception ends report nothing more, and return the exception."""
    with contextlib.suppress(AttributeError):  # it has no attributes
        error.__dict__[_TOLD] = True
    return error


def was_told(error: BaseException) -> bool:
    """Return whether this is such a Ctrl-C, which an inner wait has told of."""
    return bool(getattr(error, "__dict__", {}).get(_TOLD))


def note_cancelled_await(report: Callable[[], object], error: BaseException) -> None:
    """Record that an ``await`` was cancelled, and what says so if that was Ctrl-C: asyncio tells only at the end.

    In a notebook, what is shown of the cancelled cell says so.
    """
    now = time.monotonic()
    _awaits[:] = [(at, earlier) for at, earlier in _awaits if now - at < _JUST_SECONDS] + [(now, report)]
    if len(_awaits) <= _MOST_REPORTED and _is_asyncio_prompt_interrupted():
        report()

    def lines() -> list[str]:  # IPython asks several times
        error.__dict__[_TOLD] = was_told(error) or _report_awaits()
        return [] if was_told(error) else _last_lines(error).splitlines()

    if not is_debug():
        error.__dict__["_render_traceback_"] = lines
    install()


def _is_asyncio_prompt_interrupted() -> bool:
    """Return whether this is the prompt of ``python -m asyncio`` at a Ctrl-C, of which it shows no traceback."""
    main = sys.modules.get("__main__")
    is_prompt = getattr(getattr(main, "__spec__", None), "name", "") == "asyncio.__main__"
    return is_prompt and any(getattr(main, name, False) for name in _INTERRUPTED)


def note_wait(report: Callable[[], object]) -> Callable[[], object]:
    """Record what says for which job a thread waits, should Ctrl-C end the main thread; return what undoes it."""
    _waits.append(report)
    install()
    return functools.partial(_waits.remove, report)


def note_log_output(text: str) -> None:
    """Record what a job's log has just written to standard output."""
    global _seen_last, _seen_at
    _seen_last, _seen_at = (_seen_last + text)[-_TAIL:], time.monotonic()


def install() -> None:
    """Print uncaught errors of ours in one piece, unless the program has its own hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show


def show(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    """Print an error that ends a program; one that has nothing to do with us as Python does."""
    try:
        text = None if is_debug() else _text_of(error, at)
    except Exception:  # noqa: BLE001 - `str` of an exception is user code, too
        text = None
    if text is None:
        sys.__excepthook__(kind, error, at)
    elif text:
        from kinetic._output import colors, terminal

        terminal.clear()
        colors.write(sys.stderr, printable(text))


def why_replaced() -> str:
    """Return a sentence if the files of this kinetic are not those that this process began with, else ""."""
    try:
        with open(os.path.join(_OURS, "_version.py"), encoding="utf-8") as file:
            there = "replaced by another version" if f'"{__version__}"' not in file.read() else ""
    except OSError:
        there = "removed"
    return there and (
        f"kinetic {__version__} was {there} while this process ran. "
        "Start it again (in a notebook, restart the kernel); jobs are kept: kinetic jobs list"
    )


class Leaving:
    """Remove our frames from what leaves; a class, because a generator would add frames of its own."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            _free_import_lock(error)
        if error is None or is_debug():
            return
        is_told = isinstance(error, KineticError | BatchError | KeyboardInterrupt) or _remote_of(error) is not None
        is_told |= type(error).__name__ == "CancelledError"  # of asyncio, which is not imported for this
        if isinstance(error, GeneratorExit | StopIteration) and not is_told:
            return  # of a generator, that is its end
        install()
        if isinstance(error, KineticError):
            correct_advice(error)
        if is_told:
            _shorten(error, {id(error)})  # it says by itself what happened
        elif (
            isinstance(error, TypeError)
            and at is not None
            and at.tb_next is None
            and "function" in at.tb_frame.f_locals
        ):
            _suggest_name(error, at.tb_frame.f_locals["function"])
        else:  # a bug of ours, or of code that we call, e.g. of the user's iterator of inputs
            error.with_traceback(_without_ours(error.__traceback__) or error.__traceback__)
            if (why := why_replaced()) and why not in getattr(error, "__notes__", ()):
                error.add_note(why)


def _suggest_name(error: TypeError, function: Callable[..., Any]) -> None:
    """Add to the error of a call with a misspelt keyword what was probably meant, as Python does from 3.13 on."""
    import difflib  # only on the way to an error

    text = str(error)
    if "unexpected keyword argument" in text and text.endswith("'"):
        name = text.rsplit("'", 2)[1]
        code: CodeType = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for near in difflib.get_close_matches(name, known, 1):
            error.args = (f"{error}. Did you mean '{near}'?",)


def _shorten(error: BaseException, seen: set[int]) -> None:
    error.with_traceback(_without_ours(error.__traceback__))  # of a frozen class, it cannot be set
    for other in (error.__cause__, error.__context__):
        at = other.__traceback__ if other is not None else None
        if other is not None and at is not None and id(other) not in seen and _is_ours(at):
            seen.add(id(other))
            _shorten(other, seen)


def _is_ours(at: TracebackType) -> bool:
    return at.tb_frame.f_code.co_filename.startswith(_OURS)


def _without_ours(at: TracebackType | None) -> TracebackType | None:
    """Return a traceback without our frames, and without those of libraries that we called."""
    kept: list[TracebackType] = []
    is_theirs = False
    while at is not None:
        name = at.tb_frame.f_code.co_filename
        is_library = name.startswith((_LIBRARY, "<frozen ")) or f"{os.sep}site-packages{os.sep}" in name
        is_theirs = not _is_ours(at) and (is_theirs or not is_library)
        if is_theirs:
            kept.append(at)
        at = at.tb_next
    shorter: TracebackType | None = None
    for each in reversed(kept):
        shorter = TracebackType(shorter, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shorter


def _remote_of(error: BaseException) -> str | None:
    """Return the traceback of the job that failed, and the line about its log; None for all other errors."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, str) and note.startswith(REMOTE) and f"\n{LOG}" in note:
            return note.removeprefix(REMOTE)
    return None


def _text_of(error: BaseException, at: TracebackType | None) -> str | None:
    """Return what is printed of an error that ends a program; None where Python prints it."""
    if isinstance(error, KeyboardInterrupt):
        if "_render_traceback_" in error.__dict__:
            return ""
        is_told = type(error.__context__).__name__ == "CancelledError" and _report_awaits()
        if not is_told and not hasattr(sys, "ps1") and _report_first(_waits):  # at a prompt, its threads still wait
            from kinetic._output import terminal

            terminal.report("this process ends after its threads, or at the next Ctrl-C")
            is_told = True
        return "" if is_told else None
    remote = _remote_of(error)
    if remote is not None:
        return _text_of_job(error, at, remote)
    if isinstance(error, BatchError | JobError):
        return _frames(at) + _last_lines(error)
    if isinstance(error, KineticError):
        return _last_lines(error) + _place(at)
    last = at
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if isinstance(error, TypeError) and last is not None and _is_ours(last) and last.tb_frame.f_code.co_name == "calls":
        return _frames(at) + _last_lines(error)  # the call did not fit the signature of a public function
    return None


def _report_awaits() -> bool:
    """Report which awaits Ctrl-C cancelled, as a wait does that is no ``await``; return whether there were any."""
    now = time.monotonic()
    return _report_first([report for at, report in _awaits if now - at < _JUST_SECONDS])  # not a time that was over


def _report_first(reports: Sequence[Callable[[], object]]) -> bool:
    if not reports:
        return False
    from kinetic._output import terminal

    for report in reports[:_MOST_REPORTED]:
        report()
    if (more := len(reports) - _MOST_REPORTED) > 0:
        terminal.report(f"and {more} more keep running: kinetic jobs list")
    return True


def _text_of_job(error: BaseException, at: TracebackType | None, remote: str) -> str:
    """Return one traceback that leads from the script into the job, and the line about its log.

    Where the job's log has just written the job's traceback to the same place, it is not shown again.
    """
    job, _, log = remote.rstrip("\n").rpartition(f"\n{LOG}")
    last = f"kinetic: {LOG[0].lower()}{LOG[1:]}{log}\n"
    is_shown = _was_just_shown(job)
    told = _last_lines(error).rstrip("\n")
    if isinstance(error, KineticError) and not job.rstrip().endswith(told):
        # Not what the function itself raised: e.g. an exception whose class is not here; its message says more.
        return ("" if is_shown else f"{job.rstrip()}\n") + _last_lines(error) + _place(at) + last
    if is_shown:
        return last
    notes = [note for note in error.__notes__ if not note.startswith(REMOTE) and note not in job]
    return "\n".join([_with_frames(job, error, at).rstrip("\n"), *notes, last])


def _with_frames(job: str, error: BaseException, at: TracebackType | None) -> str:
    """Put the script's frames into the traceback of the job; of several, the last is the error's own."""
    lines = job.removesuffix(_last_lines(error).rstrip("\n")).splitlines()  # a message may hold a traceback, too
    number = next((n for n in reversed(range(len(lines))) if lines[n] in _MARGINS), None)
    if number is None:
        return job
    frames = [_MARGINS[lines[number]] + line for line in _frames(at).splitlines()[1:]]
    return "\n".join([*lines[: number + 1], *frames, *job.splitlines()[number + 1 :]])


def _was_just_shown(job: str) -> bool:
    """Return whether the log has written this traceback, and standard output and error are read together."""
    lines = job.rstrip().splitlines()
    if time.monotonic() - _seen_at > _JUST_SECONDS or not lines:
        return False
    try:  # one terminal, one file or one pipe
        is_one = os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (AttributeError, ValueError, OSError):  # none, or closed, or not a file
        return False
    return is_one and _HEADER in _seen_last and lines[-1] in _seen_last


def _frames(at: TracebackType | None) -> str:
    import traceback  # 5 ms; only on the way to an error

    theirs = _without_ours(at)
    return f"{_HEADER}\n{''.join(traceback.format_tb(theirs))}" if theirs is not None else ""


def _place(at: TracebackType | None) -> str:
    """Return the line that names where the user's code called us; without a file, nothing."""
    theirs = _without_ours(at)
    while theirs is not None and theirs.tb_next is not None:
        theirs = theirs.tb_next
    file = theirs.tb_frame.f_code.co_filename if theirs is not None else "<"
    return "" if theirs is None or file.startswith("<") else f"where: {file}:{theirs.tb_lineno}\n"


def _last_lines(error: BaseException) -> str:
    """Return an error's own lines, with its own notes, as Python writes them below a traceback."""
    import traceback

    shown = traceback.TracebackException.from_exception(error)
    notes: list[str] = getattr(error, "__notes__", [])
    shown.__notes__ = [note for note in notes if not str(note).startswith(REMOTE)]
    return "".join(shown.format_exception_only())
