"""Fetching the order and its artifacts: each verified before anything of it is used."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kinetic._wire import digests, fingerprint, keys
from kinetic._wire import order as orders
from kinetic._wire.order import Artifact, Child, Order
from kinetic.errors import RunnerError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store


def order(store: Store, job_id: str, sha256: str, *, key: str = "", child: Mapping[str, Any] | None = None) -> Order:
    """Fetch and verify the order, and refuse one that this Python cannot carry out.

    Args:
        store: Where it lies.
        job_id: The job.
        sha256: The digest that the launch promised.
        key: Where it lies, if it is one that the children of a batch share.
        child: What the launch adds to such an order.

    Raises:
        IntegrityError: It is not the one that was launched.
        RunnerError: Another Python made its pickles.
    """
    found = orders.read(store, key or keys.order(job_id), sha256)
    if child is not None:
        found = found.of_child(Child.from_json(dict(child)))
    why = fingerprint.mismatch(found.fingerprint.get("python", fingerprint.python()))
    if why:
        raise RunnerError(
            "this job cannot be opened by this Python",
            why=why,
            next="submit from the Python version that the job's environment has, or change container_image",
            code="python-mismatch",
        )
    return found


def payload(store: Store, order_: Order) -> tuple[bytes, bytes]:
    """Return the verified pickles of the function and of the arguments."""
    return _verified(store, order_.function, "the function"), _verified(store, order_.arguments, "the arguments")


def open_payload(
    function: bytes, arguments: bytes, *, moved: Callable[[bytes], Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Unpickle what was verified.

    Args:
        function: The pickled function.
        arguments: The pickled arguments.
        moved: What opens a pickle in place of ``pickle.loads``: for a debugger, see ``relocating``.
    """
    opened = moved or pickle.loads  # their digests are in the order
    called = opened(function)
    args, kwargs = opened(arguments)
    return called, args, kwargs


def _verified(store: Store, artifact: Artifact, what: str) -> bytes:
    if artifact.inline or not artifact.key:
        return artifact.unwrap(what)
    data = store.get(artifact.key, start=artifact.start, length=artifact.size)
    artifact.verify(digests.of_bytes(data), what)
    return data
