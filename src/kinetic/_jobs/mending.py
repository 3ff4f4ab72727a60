"""Mending: when a job found its data damaged or gone, what promised it is doubted before anybody relies on it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._jobs import record, trust
from kinetic._stores import open_store
from kinetic._wire import keys
from kinetic._wire import order as orders
from kinetic._wire.group import MANIFEST, read_table
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetic._stores.protocol import Store
    from kinetic._wire.data import DataRef
    from kinetic._wire.outcome import Outcome

_DOUBTS = frozenset({"integrity", "key-missing", "data-missing"})
_broken: dict[tuple[str, str], int] = {}  # by the batch or job that complained, and the manifest: looked at once


def is_needed(outcome: Outcome) -> bool:
    """Say whether a job failed because bytes in a store were not what was promised, or not there."""
    return outcome.cause == "runner" and outcome.error.get("code") in _DOUBTS


def mend(store: Store, outcome: Outcome) -> str:
    """Look at all data of a job again, and take back what cannot be kept, so that the next submission sends it anew.

    Returns:
        A sentence for the user, or "" when the data is as it should be.
    """
    broken = 0
    with contextlib.suppress(KineticError), output.phase("looking again at the data"):
        page = record.read(store, outcome.job_id)
        if isinstance(page, trust.Untrusted):
            return ""
        for ref in dict.fromkeys(_data_of(store, page)):
            if ref.kind == "shipped":
                broken += _recheck(ref, str(page.get("group_id") or outcome.job_id))
    return "what was damaged in the store was removed: submit again, and it is sent anew" if broken else ""


def _recheck(ref: DataRef, complaint: str) -> int:
    which = complaint, ref.manifest
    if which not in _broken:
        from kinetic import _data  # only when something is wrong

        _broken[which] = _data.recheck(ref, open_store(ref.uri))
    return _broken[which]


def _data_of(store: Store, page: dict[str, object]) -> Iterable[DataRef]:
    """Return what the order of a job refers to; of a batch's child, what all of them have, and what is its own.

    Each page is the one whose digest the one before it promised, from the sealed record on: an order names addresses.
    """
    group_id, index = str(page.get("group_id") or ""), page.get("group_index")
    if not group_id:
        return orders.read(store, keys.order(str(page["job_id"])), str(page.get("order_sha256"))).data
    group = trust.open_claimed(MANIFEST, store, keys.group_manifest(group_id), group_id)
    if isinstance(group, trust.Untrusted):
        return ()
    shared = orders.read(store, keys.group_order(group_id), group.order_sha256).data
    inputs = read_table(store, group).inputs
    return (*shared, *inputs[index].data) if isinstance(index, int) and index < len(inputs) else shared
