"""What is said of a call that cannot be pickled: the path to the one value that is at fault."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic._wire import pickle_diagnosis
from kinetic.errors import ArgumentNotPicklableError


def refusal(
    roots: Sequence[tuple[str, object]], fails: pickle_diagnosis.Fails, error: BaseException
) -> ArgumentNotPicklableError:
    """Put a failed pickling into words."""
    found = pickle_diagnosis.find(roots, fails)
    if found is None:
        return ArgumentNotPicklableError(
            "the call cannot be pickled",
            why=f"{type(error).__name__}: {error}; each of its parts pickles alone",
            next='make the arguments less deeply nested, or write them to a file and pass kinetic.Data("file")',
        )
    path, value, reason = found
    if pickle_diagnosis.is_too_deep(reason):
        return ArgumentNotPicklableError(
            f"{path} is nested too deeply to be pickled",
            why=f"{type(reason).__name__}: {reason}",
            next='flatten it, or write it to a file, pass kinetic.Data("file") and load it inside the function',
        )
    return ArgumentNotPicklableError(
        f"{path} cannot be pickled",
        why=f"{pickle_diagnosis.short(value)} is a {type(value).__module__}.{type(value).__qualname__}: {reason}",
        next='create it inside the function, or pass what it is made from; files go along as kinetic.Data("path")',
    )
