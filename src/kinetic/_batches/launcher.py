"""Launching children: first the key by which the batch knows them, then their record, then the backend."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic._backends.protocol import Launch
from kinetic._batches import state
from kinetic._batches.removal import run_all
from kinetic._jobs import locate, record
from kinetic._wire import keys, records, seal
from kinetic._wire.failpoints import step

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._config.resources import PodRequirements
    from kinetic._hardware.placement import Placement
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import Order
    from kinetic._wire.records import Group, JobRecord, Table

AT_ONCE = 200  # children to one call of the backend: each is locked by a descriptor while it is being submitted


@dataclass(frozen=True)
class Launcher:
    """Everything that launching a child of one batch needs.

    Attributes:
        group: The batch.
        table: Its inputs.
        order: What its children share.
        store: Where it lies.
        backend: The place.
        placement: The hardware.
        key: The namespace's sealing key.
        kept: What no store holds: "captured", "environ", "interpreter".
    """

    group: Group
    table: Table
    order: Order
    store: Store
    backend: Backend
    placement: Placement
    key: bytes = field(repr=False)
    kept: Mapping[str, Any] = field(repr=False)

    def launch(self, wanted: Sequence[tuple[int, int]]) -> list[JobRecord]:
        """Launch attempts at inputs, given as (index, attempt); what was launched before is success."""
        launched: list[JobRecord] = []
        for start in range(0, len(wanted), AT_ONCE):
            launched += self._launch(wanted[start : start + AT_ONCE])
        return launched

    def _launch(self, wanted: Sequence[tuple[int, int]]) -> list[JobRecord]:
        here = locate.machine_of(self.backend)
        jobs = [state.record_of(self.group, index, attempt, here) for index, attempt in wanted]
        run_all(self.store, [partial(self._write, job) for job in jobs])
        self.backend.launch([self._one(job) for job in jobs])
        step("driver:launched")
        return jobs

    def _write(self, job: JobRecord) -> None:
        """Make a child known: by its key in the batch's listing, and by its record under its own id."""
        assert job.group_index is not None  # noqa: S101 - it is a child
        stem = keys.child(self.group.group_id, job.group_index, job.group_attempt or 0)
        self.store.put(seal.mark(stem, job.host or "", self._key_of(self.group.group_id)), b"")
        step("driver:child-written")
        more = {**self.group.more, "machine": os.uname().nodename}
        page = record.to_bytes(records.plain(job), more, self._key_of(job.job_id))
        self.store.put(keys.record(job.job_id), page)
        step("driver:record-written")

    def _one(self, job: JobRecord) -> Launch:
        assert job.group_index is not None  # noqa: S101 - it is a child
        child = self.table.child(self.group, job.group_index, job.group_attempt or 0)
        return Launch(
            order=self.order.of_child(child),
            order_sha256=self.group.order_sha256,
            store_url=self.store.url,
            placement=self.placement,
            key=self._key_of(job.job_id),
            key_id=self.group.key_id,
            captured=self.kept["captured"],
            group=self.group.group_id,
            interpreter=self.interpreter,
            child=child,
            environ=self.kept["environ"],
            requirements=self.kept.get("pod"),
            owner=self.owner,
        )

    def _key_of(self, name: str) -> bytes:
        return seal.job_key(self.key, name, self.group.store)

    @functools.cached_property
    def owner(self) -> str:
        """Who submits, as jobs on a cluster are labelled; "" on a machine."""
        if not self.kept.get("pod"):
            return ""
        from kinetic._config import cluster

        return cluster.owner(os.environ)

    @property
    def interpreter(self) -> str:
        """The Python that the children run in; "" when it is this client's own."""
        chosen = str(self.kept["interpreter"])
        return "" if chosen == sys.executable else chosen


def secrets_of(
    captured: Mapping[str, str],
    environ: Mapping[str, str],
    interpreter: str,
    addresses: Sequence[str],
    pod: PodRequirements | None,
) -> dict[str, Any]:
    """Return what is kept beside the batch, for its owner only, so that another process can take it over."""
    return {
        "pod": pod.to_json() if pod is not None else None,
        "captured": dict(captured),
        "environ": dict(environ),
        "interpreter": interpreter or sys.executable,
        "addresses": list(addresses),
    }
