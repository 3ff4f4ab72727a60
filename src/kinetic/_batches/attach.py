"""Finding batches again: by id, by the beginning of one, or all of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetic import _config as settings
from kinetic import _output as output
from kinetic._batches import resume as batch_resume
from kinetic._batches.batch import Poll, equip, load, read_manifest
from kinetic._batches.batch_handle import BatchHandle, of_group
from kinetic._jobs import trust
from kinetic._output import tracebacks
from kinetic._stores import open_store
from kinetic._wire import keys, names
from kinetic._wire.records import Group
from kinetic.errors import BatchNotFoundError, KineticError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_BEGINNING = re.compile(r"g(r(p(-[0-9a-f]{0,8})?)?)?")


@tracebacks.hides_frames
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
    batch._refreshed()
    if resume:
        batch_resume.resume(batch, group)
        return batch
    missing = sum(job is None for job in batch.jobs) - len(batch._refused())
    if missing > 0:
        output.warn(f"{missing} of {len(batch.jobs)} inputs of {group_id} were not submitted so far")
    return batch


def handle_of(group: Group, store: Store, poll: Poll | None = None) -> BatchHandle:
    """Build a handle that only watches; it has not looked yet."""
    batch = of_group(group)
    equip(batch, group, store)
    batch._poll = poll or Poll(attached=True)
    return batch


def find_batch(word: str, store: Store) -> Group:
    """Return the batch that a user means: by its id, or by the beginning of one if only one batch begins so.

    Raises:
        BatchNotFoundError: There is none.
        OptionError: It cannot be the beginning of an id, or several batches begin so.
    """
    if _BEGINNING.fullmatch(word) is None:
        names.check_group_id(word)
    found = [name for name in store.folders(keys.GROUPS) if names.is_group_id(name) and name.startswith(word)]
    return load(store, names.the_one(word, found, "ids of batches") or word)


def newest_batch(store: Store) -> Group | None:
    """Return the batch that was made last, or None where there is none."""
    return max(list_groups(store), key=lambda group: group.created, default=None)


def list_groups(store: Store | None = None) -> Iterator[Group]:
    """Yield the batches of a store, this machine's own by default; one that cannot be read is a warning."""
    store = store or store_of(None, None)
    untrusted: list[trust.Untrusted] = []
    for name in filter(names.is_group_id, store.folders(keys.GROUPS)):
        try:
            found = read_manifest(store, name)
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


def store_of(project: str | None, cluster: str | None) -> Store:
    """Return the store in which batches are looked for."""
    return open_store(settings.resolve(project=project, cluster=cluster).store.value)
