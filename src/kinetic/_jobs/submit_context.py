"""Where a job goes, resolved and asked to get ready before anything else is imported or packed.

A supervisor needs as long to start as a client needs to import its pickler. So the place is told first, and
both run side by side.
"""

from __future__ import annotations

import importlib.util
import os
import sys
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
        backend = locate.backend_at(target, strict=strict)
        target = target._replace(namespace=target.namespace._replace(value=backend.namespace))
        wanted = _settings_of(target) if registry.find(backend.name).containers else None
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


def _settings_of(target: Target) -> ClusterSettings:
    from kinetic._config import cluster  # only for clusters

    return cluster.read_settings(target.profile, os.environ)


def announce(context: SubmitContext, options: Options) -> None:
    """Say once in a process where jobs run, what is emulated, and what of the options has no meaning here.

    Only once the options are final: the project may have said what the decorator did not.
    """
    if context.backend.is_here:
        ignored = [name for name in _IGNORED_HERE if getattr(options, name) is not None]
        ignored += ["spot"] if options.spot else []
        told = f"; recorded, and without meaning here: {', '.join(ignored)}" if ignored else ""
        bound = limits.ends_with(os.environ)
        is_news = bound and output.is_notice_due(f"end {bound}", settings.kinetic_home(os.environ) / "notices")
        here = "jobs run on this machine"
        output.report_once(f"{here}{f' and end {bound}' if is_news else ''}{told}", about=f"{here}{told}")
    else:
        output.report_once(f"jobs run in {_place(context.target)}")
    for note in context.notes:
        output.report_once(note)
    if strange := config_options.unknown_variables(os.environ, options.capture_env_vars or ()):
        output.warn_once(config_options.describe_unknown_variables(strange))


def _place(target: Target) -> str:
    """Say in which cluster jobs run, in the words of its errors: whoever meant another one sees it in time."""
    context, cluster = target.context.value, target.cluster.value
    if context:
        where = "the cluster of this pod" if context == IN_CLUSTER else f"the context {context}"
    else:
        where = f"the cluster {cluster} of {target.project.value}"
    return f"the namespace {target.namespace.value} of {where}"


_TIMEOUT = "KINETIC_DEBUG_WAIT_TIMEOUT"
_NO_TERMINAL = "KINETIC_NO_TTY_DEBUG"


def debug_wait_seconds(options: Options, environ: Mapping[str, str]) -> float | None:
    """Return how long a job waits for a debugger, or None for one that does not.

    Raises:
        OptionError: KINETIC_DEBUG_WAIT_TIMEOUT is not a number of seconds.
    """
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
    """Refuse a job on this machine whose environment has no debugger; other environments get one when the job begins.

    What does not hold with a debugger is said.

    Args:
        options: How it is to run.
        context: Where it goes.
        interpreter: The Python of an isolated environment, or "" for this one.

    Raises:
        DebugError: debugpy is not installed here.
        OptionError: KINETIC_DEBUG_WAIT_TIMEOUT is not a number of seconds.
    """
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


def check_debug_terminal(environ: Mapping[str, str]) -> None:
    """Refuse a blocking call that would wait for a human where there is none.

    Raises:
        DebugError: Standard input is no terminal, and KINETIC_NO_TTY_DEBUG does not say that this is meant.
    """
    stdin = sys.stdin
    if settings.read_variable(_NO_TERMINAL, environ) == "1" or (stdin is not None and stdin.isatty()):
        return
    raise DebugError(
        "a blocking call with debug=True needs a terminal; nothing was submitted",
        why="it waits until somebody attaches a debugger, and standard input is no terminal",
        next=f"set {_NO_TERMINAL}=1 if somebody will attach; or use run_async, and then: kinetic jobs debug JOB_ID",
        code="no-terminal",
    )


def check_not_debug(options: Options) -> None:
    """Refuse to debug all inputs of a batch at once.

    Raises:
        OptionError: debug=True.
    """
    if options.debug:
        raise OptionError(
            "a batch cannot be submitted with debug=True",
            why="each of its jobs would wait for a debugger of its own",
            next="debug one input: run_async(input); and leave the batch .with_options(debug=False)",
        )
