"""Finding batches again: by id, by the beginning of one, or all of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic import _settings as settings
from kinetic._batches import resuming
from kinetic._batches.board import Board
from kinetic._batches.handle import BatchHandle, of_group
from kinetic._batches.waiting import Poll
from kinetic._jobs import places, trust
from kinetic._output import tracebacks
from kinetic._stores import open_store
from kinetic._wire import keys, names
from kinetic._wire.group import MANIFEST, Group, Table, read_table
from kinetic.errors import BatchNotFoundError, IntegrityError, KeyMissingError, KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_BEGINNING = re.compile(r"g(r(p(-[0-9a-f]{0,8})?)?)?")


@tracebacks.door
def attach_batch(
    group_id: str,
    project: str | None = None,
    cluster: str | None = None,
    poll_interval: float = 10.0,
    poll_timeout: float | None = None,
    *,
    resume: bool = False,
) -> BatchHandle:
    """Rebuild the handle of a batch from its manifest.

    Args:
        group_id: E.g. "grp-a1b2c3d4".
        project: Google Cloud project; falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        cluster: GKE cluster; falls back to KINETIC_CLUSTER, then the profile.
        poll_interval: Seconds between two looks at who submits, while inputs are still missing.
        poll_timeout: Seconds after which waiting makes do with what was submitted; None looks for ever.
        resume: Take over the submission of what is missing, if the process that submitted it is gone.

    Returns:
        A handle, with None in ``jobs`` for inputs that were not submitted.

    Raises:
        BatchNotFoundError: There is no batch with this id.
        CredentialsError: ``resume`` needs values of captured variables, or a key, that this machine does not have.
        OptionError: This cannot be an id; or the batch was stopped and cannot be resumed.
    """
    names.check_group_id(group_id)
    store = store_of(project, cluster)
    group = load(store, group_id)
    batch = handle_of(group, store, Poll(poll_interval, poll_timeout, attached=True))
    batch._refreshed()  # noqa: SLF001
    if resume:
        resuming.resume(batch, group)
        return batch
    missing = sum(job is None for job in batch.jobs) - len(batch.submission_failures)
    if missing > 0:
        output.warn(f"{missing} of {len(batch.jobs)} inputs of {group_id} were not submitted so far")
    return batch


def handle_of(group: Group, store: Store, poll: Poll | None = None) -> BatchHandle:
    """Build a handle that only watches; it has not looked yet."""
    batch = of_group(group)
    _equip(batch, group, store)
    batch._poll = poll or Poll(attached=True)  # noqa: SLF001 - one room
    return batch


def find_again(batch: BatchHandle, store: str) -> None:
    """Give a handle that was unpickled its batch; one that was removed meanwhile has only its jobs."""
    opened = open_store(store)
    with contextlib.suppress(BatchNotFoundError):
        _equip(batch, load(opened, batch.group_id), opened)
        batch._poll = Poll(attached=True)  # noqa: SLF001


def _equip(batch: BatchHandle, group: Group, store: Store) -> None:
    """Give a handle what shows how its children stand, and what their inputs were."""
    batch._board = Board(group, store, places.backend_for(group.handle))  # noqa: SLF001
    table = _table(group, store)
    batch._table = table  # noqa: SLF001
    if table is not None and not batch._submission_errors:  # noqa: SLF001
        refused = {index: item.error for index, item in enumerate(table.inputs) if item.arguments is None}
        batch._submission_errors = {index: OptionError(text) for index, text in refused.items()}  # noqa: SLF001


def load(store: Store, group_id: str) -> Group:
    """Read and verify the manifest of a batch.

    Raises:
        BatchNotFoundError: There is none.
        KineticError: It is damaged, or cannot be verified here.
    """
    group = _read(store, group_id)
    if isinstance(group, trust.Untrusted):
        raise group.error()
    return group


def _read(store: Store, group_id: str) -> Group | trust.Untrusted:
    """Read the manifest of a batch, or what can be shown of one that cannot be verified here."""
    try:
        group = trust.open_claimed(MANIFEST, store, keys.group_manifest(group_id), group_id)
    except KeyMissingError:
        raise BatchNotFoundError(
            f"no batch {group_id} was found",
            why=f"looked in {store.url}; a batch that was cleaned up cannot be attached any more",
            next="kinetic batch list",
        ) from None
    if not isinstance(group, trust.Untrusted) and group.group_id != group_id:
        raise IntegrityError(f"the manifest of {group_id} is about {group.group_id}")
    return group


def find(word: str, store: Store) -> Group:
    """Return the batch that a user means: by its id, or by the beginning of one if only one batch begins so.

    Raises:
        BatchNotFoundError: There is none.
        OptionError: It cannot be the beginning of an id, or several batches begin so.
    """
    if _BEGINNING.fullmatch(word) is None:
        names.check_group_id(word)
    found = [name for name in store.folders(keys.GROUPS) if names.is_group_id(name) and name.startswith(word)]
    return load(store, names.the_one(word, found, "ids of batches") or word)


def newest(store: Store) -> Group | None:
    """Return the batch that was made last, or None where there is none."""
    return max(groups(store), key=lambda group: group.created, default=None)


def groups(store: Store | None = None) -> Iterator[Group]:
    """Yield the batches of a store, this machine's own by default; one that cannot be read is a warning."""
    store = store or store_of(None, None)
    untrusted: list[trust.Untrusted] = []
    for name in filter(names.is_group_id, store.folders(keys.GROUPS)):
        try:
            found = _read(store, name)
            if isinstance(found, trust.Untrusted):
                untrusted.append(found)
            else:
                yield found
        except BatchNotFoundError:
            continue  # being made, or being removed this moment
        except KineticError as error:
            output.warn(f"{name} is not listed: {error.what}")
    for line in trust.told(untrusted, "batch"):
        output.warn(line)


def _table(group: Group, store: Store) -> Table | None:
    with contextlib.suppress(KineticError):
        return read_table(store, group)
    return None


def store_of(project: str | None, cluster: str | None) -> Store:
    """Return the store in which batches are looked for."""
    return open_store(settings.resolve(project=project, cluster=cluster).store.value)
