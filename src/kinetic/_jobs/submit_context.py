"""Where a job goes, resolved and asked to get ready before anything else is imported or packed.

A keeper needs as long to start as a client needs to import its pickler. So the place is told first, and both go on side
by side.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from kinetic import _output as output
from kinetic import _settings as settings
from kinetic._backends import registry
from kinetic._backends.local import session
from kinetic._jobs import places, tombstones
from kinetic._settings import keyring, variables
from kinetic._settings.target import IN_CLUSTER
from kinetic._stores import open_store, probing

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._hardware.placement import Placement
    from kinetic._jobs.options import Options
    from kinetic._settings import Target
    from kinetic._settings.cluster import ClusterSettings
    from kinetic._stores.protocol import Store

_IGNORED_HERE = ("container_image", "base_image_repo", "zone", "project", "cluster", "namespace")


class SubmitContext(NamedTuple):
    """Where one job goes, and everything of this client that it needs.

    Attributes:
        target: Where we point.
        backend: The place.
        store: Where its objects lie.
        placement: The hardware.
        key_id: Name of the sealing key.
        key: The sealing key.
        notes: What the user should know about this place and this hardware; told by ``announce``.
        settings: What holds for all jobs of a cluster; None on a machine.
    """

    target: Target
    backend: Backend
    store: Store
    placement: Placement
    key_id: str
    key: bytes
    notes: tuple[str, ...]
    settings: ClusterSettings | None


def prepare(options: Options) -> SubmitContext:
    """Resolve where a job goes, refuse what cannot work there, and let the place begin to get ready."""
    placement = options.placement()
    target = settings.resolve(
        backend=options.backend,
        project=options.project,
        zone=options.zone,
        cluster=options.cluster,
        namespace=options.namespace,
        multi_host=placement.hosts > 1,
    )
    strict = target.backend.source == "argument"
    where = "looking at this machine" if registry.is_here(target.backend.value) else "asking the cluster"
    with output.phase(where, summary=False):
        backend = places.backend_at(target, strict=strict)
        target = target._replace(namespace=target.namespace._replace(value=backend.namespace))
        wanted = _settings_of(target) if registry.find(backend.name).containers else None
        backend.check_store(target.store.value)
        notes = (*target.notes, *placement.notes, *backend.check(placement, wanted and {"settings": wanted.to_json()}))
    home = settings.ensure_home(os.environ)
    backend.prepare()
    key_id, key = keyring.own_key(home)
    store = places.name_if_open(open_store(target.store.value))
    with output.phase("asking the store", summary=False):
        probing.check(store)
    backend.sweep(store.local.scratch() if store.local is not None else None, tombstones.seen)
    return SubmitContext(target, backend, store, placement, key_id, key, notes, wanted)


def _settings_of(target: Target) -> ClusterSettings:
    from kinetic._settings import cluster  # only for clusters

    return cluster.read(target.profile, os.environ)


def announce(context: SubmitContext, options: Options) -> None:
    """Say once in a process where jobs run, what is emulated, and what of the options has no meaning here.

    Only once the options are final: the project may have said what the decorator did not.
    """
    if context.backend.is_here:
        ignored = [name for name in _IGNORED_HERE if getattr(options, name) is not None]
        ignored += ["spot"] if options.spot else []
        told = f"; recorded, and without meaning here: {', '.join(ignored)}" if ignored else ""
        bound = session.bound_to(os.environ)
        is_news = bound and output.is_due(f"end {bound}", settings.kinetic_home(os.environ) / "notices")
        here = "jobs run on this machine"
        output.once(f"{here}{f' and end {bound}' if is_news else ''}{told}", about=f"{here}{told}")
    else:
        output.once(f"jobs run in {_place(context.target)}")
    for note in context.notes:
        output.once(note)
    if strange := variables.unknown(os.environ, options.capture_env_vars or ()):
        output.warn_once(variables.told(strange))


def _place(target: Target) -> str:
    """Say in which cluster jobs run, in the words of its errors: whoever meant another one sees it in time."""
    context, cluster = target.context.value, target.cluster.value
    if context:
        where = "the cluster of this pod" if context == IN_CLUSTER else f"the context {context}"
    else:
        where = f"the cluster {cluster} of {target.project.value}"
    return f"the namespace {target.namespace.value} of {where}"
