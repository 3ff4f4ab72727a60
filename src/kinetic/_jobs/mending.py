"""Mending: when a job found its data damaged or gone, what promised it is doubted before anybody relies on it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._stores import open_store
from kinetic._wire import digests, keys
from kinetic._wire.order import Order
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store
    from kinetic._wire.outcome import Outcome

_DOUBTS = frozenset({"integrity", "key-missing"})
_done: set[str] = set()


def is_needed(outcome: Outcome) -> bool:
    """Say whether a job failed because bytes in a store were not what was promised."""
    return outcome.cause == "runner" and outcome.error.get("code") in _DOUBTS and outcome.job_id not in _done


def mend(store: Store, outcome: Outcome) -> str:
    """Look at all data of a job again, and take back what cannot be kept, so that the next submission sends it anew.

    Returns:
        A sentence for the user, or "" when the data is as it should be.
    """
    _done.add(outcome.job_id)
    broken = 0
    with contextlib.suppress(KineticError), output.phase("looking again at the data"):
        page = store.get(keys.order(outcome.job_id))
        order = Order.from_bytes(page, sha256=digests.of_bytes(page))
        shipped = [ref for ref in order.data if ref.kind == "shipped"]
        if shipped:
            from kinetic import _data  # only when something is wrong

            broken = sum(_data.recheck(ref, open_store(ref.uri)) for ref in dict.fromkeys(shipped))
    return "what was damaged in the store was removed: submit again, and it is sent anew" if broken else ""
