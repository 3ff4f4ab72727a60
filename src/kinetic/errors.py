"""Every exception that kinetic raises, and what each one means to the reader.

    KineticError(what, *, why=None, next=None, code=None)
    ├── OptionError(ValueError)            the call as written cannot work: a value
    │   └── OptionTypeError(TypeError)     … or the type of a value
    ├── CallableError(TypeError)           this object cannot be run as a job
    ├── SettingsError                      where am I pointing?
    ├── CredentialsError(RuntimeError)     who am I?
    ├── PackingError                       the call does not fit into a bundle
    │   ├── ArgumentNotPicklableError(TypeError, ValueError)
    │   └── ProjectRootError(ValueError)
    ├── DataError
    │   ├── DataMissingError(FileNotFoundError)
    │   └── DataChangedError
    ├── DebugError(RuntimeError)           no debugger can be attached
    ├── ImageError
    │   ├── ImageBuildError
    │   └── ImageUnavailableError
    ├── StoreError                         bytes by key
    │   ├── KeyMissingError(KeyError)
    │   ├── StoreUnreachableError
    │   └── IntegrityError                 bytes that are not what was promised
    ├── BackendError(RuntimeError)         a place where jobs run
    │   ├── CapacityError
    │   ├── AccessDeniedError
    │   ├── LaunchError
    │   └── BackendUnavailableError
    ├── JobError(RuntimeError)             one job
    │   ├── JobNotFoundError
    │   │   └── BatchNotFoundError(FileNotFoundError)
    │   ├── JobCancelledError
    │   ├── ResultMissingError
    │   ├── ResultNotPicklableError(ValueError)
    │   ├── ResultUnreadableError
    │   ├── RunnerError                    the job failed before the function began; has .phase
    │   └── JobTimeoutError(TimeoutError)
    └── ClusterError
        └── CheckFailedError
    BatchError(Exception)                  documented signature: group_id, failures, partial_results
    Preempted(Exception)                   user code raises it after saving its work

Built-ins stay among the bases, so that the documented ``except TimeoutError``, ``except RuntimeError`` and
``except ValueError`` keep working. ``str()`` of a kinetic error is complete plain text in three parts: what
happened, why, and what to do next.
"""

from __future__ import annotations

import contextlib
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
    """Tell what happened, why, and what to do next.

    Attributes:
        what: One sentence: what happened.
        why: The evidence: a value, a limit, a place. May be None.
        next: What to do now, best as a command that can be pasted. May be None.
        code: A short kebab-case word for searching, e.g. "job-not-found".
    """

    default_code: ClassVar[str] = "kinetic"

    def __init__(self, what: str, *, why: str | None = None, next: str | None = None, code: str | None = None) -> None:  # noqa: A002 - the documented name
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        self.code = code or self.default_code

    def __str__(self) -> str:
        """Return the whole message: what, why and next, a line each."""
        lines = [f"{_part(self.what)} [{self.code}]"]
        if self.why:
            lines.append(f"why:   {_part(self.why)}")
        if self.next:
            lines.append(f"next:  {_part(self.next)}")
        return "\n".join(lines)

    @property
    def _render_traceback_(self) -> Any:
        """Show a mistake in a notebook as its message only: IPython calls what it finds under this name.

        Raises:
            AttributeError: A job failed, or KINETIC_DEBUG is set: then IPython shows the traceback.
        """
        if isinstance(self, JobError) or os.environ.get("KINETIC_DEBUG", "") not in {"", "0"}:
            raise AttributeError("_render_traceback_")
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}: {self}".splitlines

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by parts, so that keyword arguments survive the trip out of a job."""
        return rebuilt, (type(self), self.args, self.__dict__.copy())


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Return a text that does nothing to a terminal: what is not printable is written as Python writes it.

    Args:
        text: E.g. a name from a store, or what a cluster said.
        keep: What stays although it is not printable.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def _part(text: str) -> str:
    """Return one part of a message: none of its lines after the first can be taken for another part."""
    first, *others = printable(str(text)).split("\n")
    return "\n".join([first, *(line if line[:1] in {"", " "} else f"{_INDENT}{line}" for line in others)])


_INDENT = " " * len("next:  ")


def rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Make an exception again without calling its ``__init__``, whose parameters need not be its ``args``."""
    built_in: Any = kind
    while built_in.__flags__ & _DEFINED_IN_PYTHON:  # of two built-in bases only one's __new__ is allowed: __base__'s
        built_in = built_in.__base__
    error: BaseException = built_in.__new__(kind, *args)
    with contextlib.suppress(TypeError, ValueError):  # fewer arguments than the built-in wants: then without its fields
        built_in.__init__(error, *args)
    BaseException.__setstate__(error, state)
    return error


_DEFINED_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class OptionError(KineticError, ValueError):
    """Say that a value given to kinetic cannot work."""

    default_code = "option"


class OptionTypeError(OptionError, TypeError):
    """Say that a value given to kinetic is of the wrong type."""

    default_code = "option-type"


class CallableError(KineticError, TypeError):
    """Say that this object cannot run as a job."""

    default_code = "callable"


class SettingsError(KineticError):
    """Say that a profile or a setting cannot be read."""

    default_code = "settings"


class CredentialsError(KineticError, RuntimeError):
    """Say that no usable credentials were found."""

    default_code = "credentials"


class PackingError(KineticError):
    """Say that a call does not fit into a bundle."""

    default_code = "packing"


class ArgumentNotPicklableError(PackingError, TypeError, ValueError):
    """Name the path to the value that cannot be pickled."""

    default_code = "not-picklable"


class ProjectRootError(PackingError, ValueError):
    """Say why a folder cannot be the project that ships."""

    default_code = "project-root"


class DataError(KineticError):
    """Say that data for a job is not as it should be."""

    default_code = "data"


class DataMissingError(DataError, FileNotFoundError):
    """Say that data for a job does not exist."""

    default_code = "data-missing"


class DataChangedError(DataError):
    """Say that data changed between hashing and upload."""

    default_code = "data-changed"


class DebugError(KineticError, RuntimeError):
    """Say that no debugger can be attached to a job, or that the call would wait for one that cannot come."""

    default_code = "debug"


class ImageError(KineticError):
    """Say that the image of a job is not usable."""

    default_code = "image"


class ImageBuildError(ImageError):
    """Say that an image could not be built."""

    default_code = "image-build"


class ImageUnavailableError(ImageError):
    """Say that an image could not be pulled."""

    default_code = "image-unavailable"


class StoreError(KineticError):
    """Say that the store did not do what it was asked to."""

    default_code = "store"


class KeyMissingError(StoreError, KeyError):
    """Say that nothing lies under a key."""

    default_code = "key-missing"

    __str__ = KineticError.__str__  # KeyError would show the repr of the first argument only


class StoreUnreachableError(StoreError):
    """Say that the store cannot be reached, or refuses us."""

    default_code = "store-unreachable"


class IntegrityError(StoreError):
    """Say that bytes are not what was promised: they are not used."""

    default_code = "integrity"


class BackendError(KineticError, RuntimeError):
    """Say that the place where jobs run did not do what it was asked to."""

    default_code = "backend"


class CapacityError(BackendError):
    """Say that the accelerator cannot be had there."""

    default_code = "capacity"


class AccessDeniedError(BackendError):
    """Say which permission is missing."""

    default_code = "access-denied"


class LaunchError(BackendError):
    """Say that a job could not be started."""

    default_code = "launch"


class BackendUnavailableError(BackendError):
    """Say that this place cannot be used now, or with this installation."""

    default_code = "backend-unavailable"


class JobError(KineticError, RuntimeError):
    """Say that a job failed without an exception of the user's to raise."""

    default_code = "job-failed"


class JobNotFoundError(JobError):
    """Say that no job has this id."""

    default_code = "job-not-found"


class BatchNotFoundError(JobNotFoundError, FileNotFoundError):
    """Say that there is no batch of this id; a FileNotFoundError as well, since its manifest is what is missing."""

    default_code = "batch-not-found"


class JobCancelledError(JobError):
    """Say that the job was cancelled."""

    default_code = "job-cancelled"


class ResultMissingError(JobError):
    """Say that a job has ended and left no result."""

    default_code = "result-missing"


class ResultNotPicklableError(JobError, ValueError):
    """Name the path to the part of a returned value that cannot be pickled."""

    default_code = "serialization"


class ResultUnreadableError(JobError):
    """Say that a result is there and cannot be opened here; its bytes stay."""

    default_code = "result-unreadable"


class RunnerError(JobError):
    """Say that a job failed before or after the user's function, in a named phase.

    Attributes:
        phase: Which phase of the runner failed, e.g. "payload unpickle".
    """

    default_code = "runner"

    def __init__(
        self,
        what: str,
        *,
        phase: str = "",
        why: str | None = None,
        next: str | None = None,  # noqa: A002 - the documented name
        code: str | None = None,
    ) -> None:
        super().__init__(what, why=why, next=next, code=code)
        self.phase = phase


class JobTimeoutError(JobError, TimeoutError):
    """Say that waiting ended before the job did; the job goes on."""

    default_code = "timeout"


class ClusterError(KineticError):
    """Say that the ground under the jobs is not as it should be."""

    default_code = "cluster"


class CheckFailedError(ClusterError):
    """Say which prerequisite is missing."""

    default_code = "check-failed"


class BatchError(Exception):
    """Say that children of a batch failed.

    Attributes:
        group_id: The batch.
        failures: Handles of the failed children.
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
        """Pickle by the three documented parts; the words and the notes come along."""
        return type(self), (self.group_id, self.failures, self.partial_results), {**vars(self), "args": self.args}


class Preempted(Exception):  # noqa: N818 - a state that user code announces, not a mistake
    """Raised by user code that saved its work because its machine is taken away; on this machine a plain failure."""
