"""Batches: many jobs behind one handle, and how to find one again from any machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kinetic._batches.finding import attach_batch
from kinetic._batches.handle import BatchHandle
from kinetic._remote.callable import RemoteCallable
from kinetic.errors import BatchError, CallableError

__all__ = ["BatchError", "BatchHandle", "attach_batch", "map"]


def map(function: RemoteCallable[..., Any], inputs: Iterable[Any], **options: Any) -> BatchHandle:  # noqa: A001 - the documented name
    """Run a decorated function once for each input; the same as ``function.run_async_map(inputs, ...)``.

    Args:
        function: What ``kinetic.run`` decorated, or its ``run_async``.
        inputs: At least one.
        **options: Those of ``run_async_map``.

    Raises:
        CallableError: The function is not decorated (also a TypeError).
    """
    found = getattr(function, "__self__", function)  # of train.run_async: train
    if not isinstance(found, RemoteCallable):
        raise CallableError(
            f"{function!r} cannot be run as a batch",
            why="it was not decorated with kinetic.run",
            next="put @kinetic.run(...) above it",
        )
    return found.run_async_map(inputs, **options)
