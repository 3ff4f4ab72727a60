"""Batches: many jobs behind one handle, and how to find one again from any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from kinetic._batches.batch_handle import BatchHandle, attach_batch
from kinetic._jobs.handle import JobHandle
from kinetic._remote.callable import RemoteCallable
from kinetic.errors import BatchError

__all__ = ["BatchError", "BatchHandle", "attach_batch", "map"]


R = TypeVar("R")


@overload
def map(function: RemoteCallable[..., R], inputs: Iterable[Any], **options: Any) -> BatchHandle[R]: ...  # noqa: A001
@overload
def map(function: Callable[..., JobHandle[R]], inputs: Iterable[Any], **options: Any) -> BatchHandle[R]: ...  # noqa: A001
def map(function: Callable[..., Any], inputs: Iterable[Any], **options: Any) -> BatchHandle[Any]:  # noqa: A001 - the documented name
    """Run a decorated function once for each input; the same as ``function.run_async_map(inputs, ...)``.

    Args:
        function: What ``kinetic.run`` decorated, or its ``run_async``; or any function that submits one job for each
            input, such as ``lambda x: train.run_async(x, epochs=3)``. That one is called for every input first, and
            the jobs are submitted together afterwards: they must be of one function, with one set of options.
        inputs: At least one.
        **options: Those of ``run_async_map``; ``input_mode`` says how ``function`` is called.

    Raises:
        CallableError: The function is not decorated and submits no job (also a TypeError).
        OptionError: The jobs are of several functions, or have different options.
    """
    found = getattr(function, "__self__", function)  # of train.run_async: train
    if isinstance(found, RemoteCallable):
        return found.run_async_map(inputs, **options)
    from kinetic._batches import submission
    from kinetic._remote import recorded_calls

    mode = options.pop("input_mode", "auto")
    submission.check_mode(mode)
    remote, calls = recorded_calls.record_inputs(function, submission.input_list(inputs), mode)
    batch: BatchHandle[Any] = remote.run_async_map(calls, **options)
    return batch
