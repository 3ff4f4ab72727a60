"""Where a job goes, prepared before most of this client is imported.

A supervisor needs as long to start as a client needs to import what packs a call. So this module loads little, lets the
backend start one, and both run side by side.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._jobs import environment
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._stores import open_store
from kinetic._stores.protocol import CLOUDS
from kinetic._wire import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic._backends.protocol import Backend
    from kinetic._config.cluster import ClusterSettings
    from kinetic._config.target import Target
    from kinetic._hardware.placement import Placement
    from kinetic._jobs.job_options import Options
    from kinetic._stores.protocol import Store


class SubmitContext(NamedTuple):
    """Where one job goes, and everything of this client that it needs."""

    target: Target
    backend: Backend
    store: Store
    placement: Placement
    key_id: str
    key: bytes  # the sealing key
    notes: tuple[str, ...]  # what the user should know about this backend and hardware; printed by ``announce``
    settings: ClusterSettings | None  # what holds for all jobs of a cluster; None on a machine


def prepare(options: Options, *, may_be_warm: bool = False) -> SubmitContext:
    """Resolve where a job goes, refuse what cannot work there, and let the backend prepare.

    ``may_be_warm``: a warm pod may take it.
    """
    placement = options.placement()
    target = settings.resolve(**options.place, multi_host=placement.hosts > 1)
    strict = target.backend.source == "argument"
    url = target.store.value
    with contextlib.ExitStack() as asked:
        opened: Callable[[], Store] = functools.partial(open_store, url)
        if is_bucket := url.startswith(CLOUDS):
            from kinetic._jobs import store_check  # only for buckets

            opened = asked.enter_context(store_check.begun(url))
        with phase("asking the cluster", is_remote=not registry.is_here(target.backend.value)):
            backend = environment.backend_at(target, strict=strict)
            target = target._replace(namespace=target.namespace._replace(value=backend.namespace))
            backend = environment.backend_at(target, strict=strict)  # by the same address as the job's: one for both
            wanted = None
            if registry.find(backend.name).containers:
                from kinetic._config import cluster  # only for clusters

                if may_be_warm and placement.hosts == 1:
                    from kinetic._jobs import warm_assignment  # as above

                    warm_assignment.begin(backend, options)
                wanted = cluster.read_settings(target.profile, os.environ)
            requirements = wanted and {"settings": wanted.to_json()}
            backend.check_store(url, requirements)
            notes = (*target.notes, *placement.notes, *backend.check(placement, requirements))
        home = settings.ensure_home(os.environ)
        backend.prepare()
        key_id, key = config_home.own_key(home)
        with phase("asking the store", is_remote=is_bucket):
            store = environment.warn_if_shared(opened())
    environment.note_store(store)
    backend.sweep(store.local.scratch() if store.local is not None else None, _read_page)
    return SubmitContext(target, backend, store, placement, key_id, key, notes, wanted)


def phase(name: str, *, is_remote: bool) -> contextlib.AbstractContextManager[None]:
    """Show what runs inside if it takes long, where a server is asked: each phase that can be shown starts a thread."""
    return output.phase(name, summary=False) if is_remote else contextlib.nullcontext()


def interrupted() -> KeyboardInterrupt:
    """Report that Ctrl-C came before there was a job, and return what is raised for it."""
    message = "interrupted; no job was submitted"
    output.report(message)
    return tracebacks.interrupt(message)


def _read_page(store: Store, job_id: str) -> Mapping[str, Any] | None:
    from kinetic._jobs import locate  # once an hour, for what was removed

    return locate.read_page(store, job_id)
