"""Sealing: the verdict becomes the one Outcome of a job, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path

from kinetic._stores.protocol import Store, put_file
from kinetic._wire import keys
from kinetic._wire import seal as wire_seal
from kinetic._wire.failpoints import step
from kinetic._wire.outcome import FAILED, Outcome
from kinetic.errors import KeyMissingError, StoreError

RESERVE_BYTES = 65_536  # a page with a long traceback; traceback texts are cut to fit
_TRIES = 3


class Reserve:
    """Space on the store's disk, so that a full disk can still be told; a file without a name, for nobody to replace.

    It is gone with this process.

    Raises:
        StoreError: The disk is full already.
    """

    def __init__(self, store: Store) -> None:
        self._descriptor = -1 if store.local is None else store.local.reserve(RESERVE_BYTES)

    def release(self) -> None:
        """Give the space back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def seal(
    store: Store,
    verdict: Outcome,
    key: bytes,
    *,
    body: Path | None = None,
    spare: Reserve | None = None,
    mark: str = "",
) -> bool:
    """Create the Outcome of a job, and the mark by which a batch sees it in a listing.

    Args:
        store: Where.
        verdict: What it says.
        key: The job's key.
        body: The complete file with the pickled value, on the store's file system if possible; it is consumed, but not
            before the store has it. Whoever was told of a store that is out of reach may try again, also when only the
            mark is missing.
        spare: Space for a verdict without a body.
        mark: Stem of the mark's key, for a batch's child. Whoever looks and finds an Outcome without one, makes it.

    Returns:
        True when the Outcome in the store is this one, False when another verdict was there first.
    """
    verdict, created = _seal(store, verdict, key, body, spare)
    if created and mark:
        step("keeper:unmarked")
        store.put(wire_seal.mark(mark, verdict.status, key), b"")
    return created


def _seal(store: Store, verdict: Outcome, key: bytes, body: Path | None, spare: Reserve | None) -> tuple[Outcome, bool]:
    if verdict.body_length and body is not None:
        try:
            return verdict, _with_body(store, verdict, key, body)
        except (OSError, StoreError) as error:
            if not _is_full(error):
                raise
            verdict = _does_not_fit(verdict, error)
    verdict = replace(verdict, body_length=0, body_sha256="")
    page = verdict.footer(key)
    if spare is not None:
        spare.release()
    return verdict, _create(store, keys.result(verdict.job_id), page)


def _with_body(store: Store, verdict: Outcome, key: bytes, body: Path) -> bool:
    page = verdict.footer(key)
    try:
        with body.open("r+b") as file:
            file.truncate(verdict.body_length)  # a keeper that died here may have appended a page already
            file.seek(verdict.body_length)
            file.write(page)
    except FileNotFoundError:
        if store.size(keys.result(verdict.job_id)) is None:
            raise
        return _is_ours(store, verdict, page)  # an earlier try handed it over, and failed after that
    step("keeper:page-appended")
    return put_file(store, keys.result(verdict.job_id), body, if_absent=True) or _is_ours(store, verdict, page)


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or getattr(error, "code", "") == "store-full"


def _does_not_fit(verdict: Outcome, error: Exception) -> Outcome:
    """Turn a verdict whose body found no place into one that says so; an exception keeps its words."""
    error = error.__cause__ if isinstance(error.__cause__, OSError) else error  # the system's own words
    if not verdict.succeeded:
        return replace(verdict, error={**verdict.error, "not_delivered": f"it does not fit on the disk: {error}"})
    message = f"the value does not fit on the disk: {error}"
    return replace(verdict, status=FAILED, cause="disk-full", error={"message": message}, value_type="")


def _create(store: Store, key: str, page: bytes) -> bool:
    for _ in range(_TRIES):
        if store.put(key, page, if_absent=True):
            return True
        with contextlib.suppress(KeyMissingError):  # removed between the two: try again
            return store.get(key) == page
    return False


def _is_ours(store: Store, verdict: Outcome, page: bytes) -> bool:
    """Say whether the Outcome that is there is this very one: our own earlier try whose answer was lost."""
    key = keys.result(verdict.job_id)
    with contextlib.suppress(KeyMissingError):
        size = store.size(key)
        return size == verdict.body_length + len(page) and store.get(key, start=verdict.body_length) == page
    return False
