"""What the Tab key offers besides commands and options: ids of jobs and batches, names of profiles, accelerators.

A shell waits for this on every Tab, so it asks the file system and nothing else, and never fails: a broken setting
offers nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import click

_NEWEST = "@last"
_PLAIN_WORD = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)  # what names of jobs and profiles are made of


def jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the ids of jobs whose record is in the local store, newest first."""
    return _beginning(incomplete, _quietly(_job_ids))


def batches(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the ids of batches whose manifest is in the local store, newest first."""
    return _beginning(incomplete, _quietly(_group_ids))


def profiles(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's signature
    """Offer the names of profiles."""
    return _beginning(incomplete, _quietly(_profile_names))


def accelerators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001 - click's
    """Offer names of accelerators: each GPU with its counts, each TPU with its usual sizes."""
    return _beginning(incomplete, _quietly(_accelerators))


def _beginning(incomplete: str, found: Iterable[str]) -> list[str]:
    """Return what begins so and is one plain word: a shell puts what is offered into the command line as it is."""
    return [word for word in found if word.startswith(incomplete) and _PLAIN_WORD.fullmatch(word)]


def _quietly(names: Callable[[], Iterable[str]]) -> list[str]:
    with contextlib.suppress(Exception):  # whatever is wrong is told by the command itself, not by the Tab key
        return list(names())
    return []


def _job_ids() -> Iterator[str]:
    from kinetic._jobs import places
    from kinetic._wire import keys

    store = places.local_store()
    found = [name for name in store.folders("") if name not in keys.RESERVED]
    if found:
        yield _NEWEST
    yield from sorted(found, key=_when, reverse=True)


def _group_ids() -> Iterator[str]:
    from kinetic._jobs import places
    from kinetic._wire import keys

    store = places.local_store()
    manifests = [(store.entry(keys.group_manifest(name)), name) for name in store.folders(keys.GROUPS)]
    found = sorted(((entry.modified, name) for entry, name in manifests if entry is not None), reverse=True)
    if found:
        yield _NEWEST
    yield from (name for _, name in found)


def _when(job_id: str) -> str:
    """Return the part of an id that says when it was made: …-20261120-134402-1f0c9ab."""
    return "-".join(job_id.split("-")[-3:-1])


def _profile_names() -> list[str]:
    from kinetic._settings import profiles as saved

    return saved.load(os.environ).names


def _accelerators() -> Iterator[str]:
    from kinetic import _hardware as hardware

    yield "cpu"
    for gpu in hardware.GPUS.values():
        yield from (f"gpu-{gpu.name}" if count == 1 else f"gpu-{gpu.name}x{count}" for count in gpu.machines)
    for tpu in hardware.TPUS.values():
        yield from (tpu.canonical(topology) for _, topology in tpu.ladder())
