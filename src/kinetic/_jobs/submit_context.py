"""Where a job goes, resolved and prepared before anything else is imported or packed.

A supervisor needs as long to start as a client needs to import its pickler. So the backend is prepared first, and both
run side by side.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, NamedTuple

from kinetic import _config as settings
from kinetic import _output as output
from kinetic._backends import registry
from kinetic._backends.local import limits
from kinetic._config import keyring
from kinetic._config import options as config_options
from kinetic._config.target import IN_CLUSTER
from kinetic._jobs import history, locate
from kinetic._stores import open_store, protocol
from kinetic._wire import inspection
from kinetic.errors import DebugError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.protocol import Backend
    from kinetic._config import Target
    from kinetic._config.cluster import ClusterSettings
    from kinetic._hardware.placement import Placement
    from kinetic._jobs.options import Options
    from kinetic._stores.protocol import Store


_TIMEOUT = "KINETIC_DEBUG_WAIT_TIMEOUT"
_IGNORED_HERE = ("container_image", "base_image_repo", "zone", "project", "cluster", "namespace")


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


def prepare(options: Options) -> SubmitContext:
    """Resolve where a job goes, refuse what cannot work there, and let the backend prepare."""
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
        backend = locate.backend_at(target, strict=strict)
        target = target._replace(namespace=target.namespace._replace(value=backend.namespace))
        wanted = None
        if registry.find(backend.name).containers:
            from kinetic._config import cluster  # only for clusters

            wanted = cluster.read_settings(target.profile, os.environ)
        backend.check_store(target.store.value)
        notes = (*target.notes, *placement.notes, *backend.check(placement, wanted and {"settings": wanted.to_json()}))
    home = settings.ensure_home(os.environ)
    backend.prepare()
    key_id, key = keyring.own_key(home)
    store = locate.warn_if_shared(open_store(target.store.value))
    with output.phase("asking the store", summary=False):
        protocol.check_conditional_writes(store)
    backend.sweep(store.local.scratch() if store.local is not None else None, history.read_page)
    return SubmitContext(target, backend, store, placement, key_id, key, notes, wanted)


def announce(context: SubmitContext, options: Options) -> None:
    """Report once in a process where jobs run, what is emulated, and which options have no effect here.

    Only once the options are final: the project may have said what the decorator did not.
    """
    if context.backend.is_here:
        ignored = [name for name in _IGNORED_HERE if getattr(options, name) is not None]
        ignored += ["spot"] if options.spot else []
        more = f"; recorded, and without meaning here: {', '.join(ignored)}" if ignored else ""
        bound = limits.ends_with(os.environ)
        is_news = bound and output.is_notice_due(f"end {bound}", settings.kinetic_home(os.environ) / "notices")
        here = "jobs run on this machine"
        output.report_once(f"{here}{f' and end {bound}' if is_news else ''}{more}", about=f"{here}{more}")
    else:
        target = context.target
        where = f"the cluster {target.cluster.value} of {target.project.value}"
        if name := target.context.value:
            where = "the cluster of this pod" if name == IN_CLUSTER else f"the context {name}"
        output.report_once(f"jobs run in the namespace {target.namespace.value} of {where}")
    for note in context.notes:
        output.report_once(note)
    if strange := config_options.unknown_variables(os.environ, options.capture_env_vars or ()):
        output.warn_once(config_options.describe_unknown_variables(strange))


def debug_wait_seconds(options: Options, environ: Mapping[str, str]) -> float | None:
    """Return how long a job waits for a debugger, or None for one that does not."""
    if not options.debug:
        return None
    setting = settings.read_variable(_TIMEOUT, environ)
    try:
        found = float(setting) if setting is not None else inspection.WAIT_SECONDS
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise OptionError(
            f"{_TIMEOUT}={setting!r} is not a number of seconds",
            next=f"give it seconds, e.g. 3600, 0 not to wait at all, or leave it out for {inspection.WAIT_SECONDS:g}",
        )
    return found


def check_debug(options: Options, context: SubmitContext, interpreter: str) -> None:
    """Refuse to debug a job that runs in this environment if it has no debugger; others get one when the job begins."""
    debug_wait_seconds(options, context.backend.environ)
    if options.debug and context.backend.is_here and not interpreter and importlib.util.find_spec("debugpy") is None:
        raise DebugError(
            "debug=True needs debugpy, which is not installed here",
            why="the job would run in this environment",
            next='pip install "kinetic-jobs[debug]"',
            code="extra-missing",
        )
    if options.debug and options.deadline is not None:
        output.report(f"the deadline of {options.deadline:g} s does not hold with debug=True")


def check_not_debug(options: Options) -> None:
    """Refuse to debug all inputs of a batch at once."""
    if options.debug:
        raise OptionError(
            "a batch cannot be submitted with debug=True",
            why="each of its jobs would wait for a debugger of its own",
            next="debug one input: run_async(input); and leave the batch .with_options(debug=False)",
        )
