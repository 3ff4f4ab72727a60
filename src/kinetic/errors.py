"""Every exception that kinetic raises.

Built-in exceptions are among the bases, so that the documented ``except TimeoutError``, ``except RuntimeError`` and
``except ValueError`` keep working. ``str()`` of a kinetic error is complete plain text in three parts: what
happened, why, and what to do next.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, ClassVar

__all__ = [
    "AccessDeniedError",
    "ArgumentNotPicklableError",
    "BackendError",
    "BackendUnavailableError",
    "BatchError",
    "BatchNotFoundError",
    "CallableError",
    "CapacityError",
    "CheckFailedError",
    "ClusterError",
    "CommandError",
    "CredentialsError",
    "DataChangedError",
    "DataError",
    "DataMissingError",
    "DebugError",
    "ImageBuildError",
    "ImageError",
    "ImageUnavailableError",
    "IntegrityError",
    "JobCancelledError",
    "JobError",
    "JobNotFoundError",
    "JobTimeoutError",
    "KeyMissingError",
    "KineticError",
    "LaunchError",
    "OptionError",
    "OptionTypeError",
    "PackingError",
    "PredecessorError",
    "Preempted",
    "ProjectRootError",
    "ResultMissingError",
    "ResultNotPicklableError",
    "ResultUnreadableError",
    "RunnerError",
    "SettingsError",
    "StoreError",
    "StoreUnreachableError",
]


class KineticError(Exception):
    """An error with what happened, why, and what to do next.

    Attributes:
        what: One sentence: what happened.
        why: The evidence: a value, a limit, a place. May be None.
        next: What to do now, if possible a command that can be pasted. May be None.
        code: A short kebab-case word for searching, e.g. "job-not-found".
    """

    default_code: ClassVar[str] = "kinetic"

    def __init_subclass__(cls, *, code: str = "", **options: Any) -> None:
        """Set the code of a class; without one it has its base's."""
        super().__init_subclass__(**options)
        if code:
            cls.default_code = code

    def __init__(self, what: str, *, why: str | None = None, next: str | None = None, code: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the whole message: what, why and next, a line each."""
        parts = (("", f"{self.what} [{self.code}]"), ("why:   ", self.why), ("next:  ", self.next))
        return "\n".join(label + indented(str(text), len("next:  ")) for label, text in parts if text)

    @property
    def _render_traceback_(self) -> Any:
        """Show an error in a notebook as its message only: IPython calls what it finds under this name.

        Raises:
            AttributeError: A job failed, or KINETIC_DEBUG is set: then IPython shows the traceback.
        """
        if isinstance(self, JobError) or is_debug():
            raise AttributeError("_render_traceback_")
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}: {self}".splitlines

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts, so that keyword arguments survive the trip out of a job."""
        return rebuilt, (type(self), self.args, self.__dict__.copy())


def what_of(error: BaseException) -> str:
    """Return what an error says in one sentence: of another one than ours, its class and its text."""
    return error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"


def reason_of(error: BaseException) -> str:
    """Return what an error says in one line, with the reason: of another one than ours, its class and its text."""
    why = error.why if isinstance(error, KineticError) else ""
    return f"{what_of(error)}: {why}" if why else what_of(error)


def is_debug() -> bool:
    """Return whether the user wants to see tracebacks with our frames."""
    return os.environ.get("KINETIC_DEBUG") == "1"


def correct_advice(error: KineticError) -> None:
    """Replace the next step of an error about a file that a limit of this process has refused."""
    number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
    if number in {errno.EMFILE, errno.ENFILE}:
        error.next = "close files that this program has open, or allow more: ulimit -n 4096"
    elif number == errno.EFBIG:
        error.next = "allow larger files: ulimit -f unlimited"


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Return a text that does nothing to a terminal: except `keep`, what is not printable is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def indented(text: str, columns: int) -> str:
    """Return a printable text, its lines after the first indented: none of them begins like a line of ours."""
    first, *others = printable(text).split("\n")
    return "\n".join([first, *(line if line[:1] in {"", " "} else " " * columns + line for line in others)])


def rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Make an exception again without calling its ``__init__``, whose parameters need not be its ``args``."""
    built_in: Any = kind
    while built_in.__flags__ & _DEFINED_IN_PYTHON:  # of two built-in bases only one's __new__ is allowed: __base__'s
        built_in = built_in.__base__
    taken = 2 if issubclass(kind, BaseExceptionGroup) else None  # those of cattrs, for one, have more in their args
    error: BaseException = built_in.__new__(kind, *args[:taken])
    with contextlib.suppress(TypeError, ValueError):  # fewer arguments than the built-in wants: then without its fields
        built_in.__init__(error, *args)
    for name, value in state.items():
        object.__setattr__(error, name, value)  # its class may be frozen
    return error


_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class OptionError(KineticError, ValueError, code="option"):
    """A value passed to kinetic is not valid."""


class OptionTypeError(OptionError, TypeError, code="option-type"):
    """A value passed to kinetic has the wrong type."""


class CallableError(KineticError, TypeError, code="callable"):
    """This object cannot run as a job."""


class SettingsError(KineticError, code="settings"):
    """A profile or a setting cannot be read."""


class CredentialsError(KineticError, RuntimeError, code="credentials"):
    """No usable credentials were found."""


class PackingError(KineticError, code="packing"):
    """A call does not fit into a bundle."""


class ArgumentNotPicklableError(PackingError, TypeError, ValueError, code="not-picklable"):
    """An argument cannot be pickled; the message names the path to the value."""


class ProjectRootError(PackingError, ValueError, code="project-root"):
    """A folder cannot be the project that is sent."""


class DataError(KineticError, code="data"):
    """Data for a job is not valid."""


class DataMissingError(DataError, FileNotFoundError, code="data-missing"):
    """Data for a job does not exist."""


class DataChangedError(DataError, code="data-changed"):
    """Data changed between hashing and upload."""


class DebugError(KineticError, RuntimeError, code="debug"):
    """No debugger can be attached to a job, or the call would wait for one that cannot come."""


class ImageError(KineticError, RuntimeError, code="image"):
    """The image of a job is not usable."""


class ImageBuildError(ImageError, code="image-build"):
    """An image could not be built."""


class ImageUnavailableError(ImageError, code="image-unavailable"):
    """An image could not be pulled."""


class StoreError(KineticError, code="store"):
    """A request to the store failed."""


class KeyMissingError(StoreError, KeyError, code="key-missing"):
    """The store has nothing under a key."""

    __str__ = KineticError.__str__  # KeyError would show the repr of the first argument only


class StoreUnreachableError(StoreError, code="store-unreachable"):
    """The store cannot be reached, or rejected our credentials."""


class IntegrityError(StoreError, code="integrity"):
    """Bytes do not match their digest or seal; they are not used."""


class BackendError(KineticError, RuntimeError, code="backend"):
    """A request to the place where jobs run failed."""


class CapacityError(BackendError, code="capacity"):
    """The accelerator is not available there."""

    launched: tuple[str, ...] = ()  # the ids of the jobs of a batch that were started, where others found no room


class AccessDeniedError(BackendError, code="access-denied"):
    """A permission is missing; the message names it."""


class LaunchError(BackendError, code="launch"):
    """A job could not be started."""


class BackendUnavailableError(BackendError, code="backend-unavailable"):
    """This place cannot be used now, or with this installation."""


class JobError(KineticError, RuntimeError, code="job-failed"):
    """A job failed, and there is no exception of the user's to raise."""


class CommandError(JobError, code="command-failed"):
    """The command of a job could not be started, ended with another exit code than 0, or was ended by a signal.

    Attributes:
        exit_code: As a shell reports it: of a signal 128 and its number, 127 for a program that does not exist, 126 for
            one that cannot be started.
    """

    def __init__(
        self,
        what: str,
        *,
        exit_code: int = 1,
        why: str | None = None,
        next: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what, why=why, next=next, code=code)
        self.exit_code = exit_code


class JobNotFoundError(JobError, code="job-not-found"):
    """No job has this id."""


class BatchNotFoundError(JobNotFoundError, FileNotFoundError, code="batch-not-found"):
    """No batch has this id; a FileNotFoundError as well, since its manifest is missing."""


class JobCancelledError(JobError, code="job-cancelled"):
    """The job was cancelled."""


class PredecessorError(JobError, code="predecessor"):
    """A job cannot start, because a job or batch that it follows did not succeed."""


class ResultMissingError(JobError, code="result-missing"):
    """A job has ended and left no result."""


class ResultNotPicklableError(JobError, ValueError, code="serialization"):
    """A returned value cannot be pickled; the message names the path to the part.

    Attributes:
        partial: What could be pickled of the value, with a text in place of each part that could not; or None.
    """

    partial: Any = None


class ResultUnreadableError(JobError, code="result-unreadable"):
    """A result exists and cannot be loaded here; its bytes are kept.

    Attributes:
        partial: What could be loaded of the value, with a text in place of each part that could not; or None.
    """

    partial: Any = None


class RunnerError(JobError, code="runner"):
    """A job failed before or after the user's function, in a named phase.

    Attributes:
        phase: Which phase of the runner failed, e.g. "payload unpickle".
    """

    def __init__(
        self,
        what: str,
        *,
        phase: str = "",
        why: str | None = None,
        next: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(what, why=why, next=next, code=code)
        self.phase = phase


class JobTimeoutError(JobError, TimeoutError, code="timeout"):
    """Waiting ended before the job did; the job keeps running."""


class ClusterError(KineticError, code="cluster"):
    """A cluster is not as jobs need it."""


class CheckFailedError(ClusterError, code="check-failed"):
    """A prerequisite is missing; the message names it."""


class BatchError(Exception):
    """Jobs of a batch failed.

    Attributes:
        group_id: The batch.
        failures: Handles of the failed jobs.
        partial_results: Aligned with the inputs; None where a job failed.
    """

    def __init__(self, group_id: str, failures: list[Any], partial_results: list[Any]) -> None:
        head = f"batch {group_id}: {len(failures)} of {len(partial_results)} jobs failed"
        ids = [job.job_id for job in failures[:5] if hasattr(job, "job_id")]
        super().__init__("\n".join([head, *(f"    kinetic jobs logs {job_id}" for job_id in ids)]))
        self.group_id = group_id
        self.failures = failures
        self.partial_results = partial_results

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the three documented parts, with message and notes."""
        return type(self), (self.group_id, self.failures, self.partial_results), {**vars(self), "args": self.args}


class Preempted(Exception):  # noqa: N818 - a state that user code announces, not a mistake
    """Raised by user code that saved its work because its machine is preempted; on this machine a plain failure."""
