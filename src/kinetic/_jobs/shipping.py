"""What a job and a batch have in common on their way into the store: the project, the settings, the environment."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from kinetic import _output as output
from kinetic import _settings as settings
from kinetic._jobs import defaults, interpreting, places, record, referring, resources, submit_context
from kinetic._jobs.resources import Resources
from kinetic._output.format import size_text
from kinetic._packing import archive, environment, root
from kinetic._settings import project_file
from kinetic._settings.variables import read
from kinetic._wire import fingerprint, names, outputs
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from kinetic._backends.wishes import PodWishes
    from kinetic._data.data import Data
    from kinetic._jobs.options import Options
    from kinetic._jobs.referring import Found
    from kinetic._jobs.submit_context import SubmitContext
    from kinetic._packing.archive import Shipped
    from kinetic._packing.environment import Captured
    from kinetic._packing.root import Plan
    from kinetic._wire.data import DataRef

_SLOW_SECONDS = 1.0  # a phase that takes longer is named


class Shipment(NamedTuple):
    """Everything that is settled before a job, or a batch, has a name.

    Attributes:
        plan: The project that ships.
        options: Final: what the decorator left open is filled in.
        context: Where it goes.
        captured: The environment variables that go along.
        interpreter: The Python of an isolated environment, or "" for this client's own.
        by_value: Modules that the user wants by value.
        pod: What the job asks of a cluster; None on this machine.
        resources: How much processor and memory each host asks for.
    """

    plan: Plan
    options: Options
    context: SubmitContext
    captured: Captured
    interpreter: str
    by_value: tuple[str, ...]
    pod: PodWishes | None = None
    resources: Resources = Resources()

    def ship_data(self, found: Found, volumes: Mapping[str, Data] | None) -> tuple[DataRef, ...]:
        """Bring data to where the jobs can get it; see ``referring.ship``."""
        return referring.ship(found, volumes, self.context.store, cache(), is_here=self.context.backend.is_here)

    def shared_fields(self, function: str) -> dict[str, Any]:
        """Return what the records of all jobs of this submission have in common; see ``record.make``."""
        context, target = self.context, self.context.target
        return {
            "backend": target.backend.value,
            "project": target.project.value,
            "cluster_name": target.cluster.value,
            "zone": target.zone.value,
            "namespace": target.namespace.value,
            "bucket_name": target.bucket_name,
            "image_uri": self.pod.image if self.pod is not None else self.options.container_image or "",
            "accelerator": str(self.options.accelerator),
            "func_name": function,
            "created_at": names.utc(time.time()),
            "store": context.store.url,
            "context": target.context.value or None,
            "host": places.machine_of(context.backend) or None,
            "key_id": context.key_id,
            record.LONGEST_NAME: record.longest_name(context.backend, context.placement.hosts),
        }


def settle(function: Callable[..., Any], options: Options, context: SubmitContext) -> Shipment:
    """Find the project of a function, fill in its options, and make its environment ready."""
    plan = root.find_root(function)
    options = defaults.applied(options, plan.root, context.target.profile, os.environ)
    if options.placement() != context.placement:
        context = submit_context.prepare(options)  # the place had been told before the project was read
    submit_context.announce(context, options)
    _refuse_folders_of_this_machine(options, context)
    captured = environment.capture(options.capture_env_vars or (), os.environ)
    if missing := environment.unset(options.capture_env_vars or (), os.environ):
        what = "it" if len(missing) == 1 else "them"
        unset = f"{', '.join(missing)} {'is' if what == 'it' else 'are'} not set here"
        output.warn_once(f"capture_env_vars: {unset}, so the job will not have {what}")
    interpreter = interpreting.interpreter_for(function, plan, context)
    by_value = tuple(project_file.read_project_options(plan.root).by_value)
    pod = None
    if context.settings is not None:
        from kinetic._jobs import podding  # only for clusters

        pod = podding.wishes(
            function,
            plan,
            options,
            context.placement,
            store=context.store,
            settings=context.settings,
            profile=context.target.profile,
            environ=os.environ,
        )
    asked = resources.read(options.resources or {})
    return Shipment(plan, options, context, captured, interpreter, by_value, pod, asked)


def _refuse_folders_of_this_machine(options: Options, context: SubmitContext) -> None:
    """Refuse an output folder that would lie in the pod, and go with it."""
    chosen = outputs.chosen(options.output_dir, os.environ)
    if context.backend.is_here or not outputs.folder_of(chosen) or read("KINETIC_SHARED_STORE", os.environ) == "1":
        return
    raise OptionError(
        f"a job on a cluster cannot leave its outputs in {chosen}",
        why="the folder would be one of its pod's, and be gone with it",
        next=f"output_dir={context.store.url + '/my-outputs'!r}, or leave it out",
        code="output-elsewhere",
    )


def ship_project(shipment: Shipment, data: Sequence[Path]) -> Shipped:
    """Bring the project into the store, without what ships as data, and tell what the user should know of it."""
    begun = time.monotonic()
    home, context = settings.kinetic_home(os.environ), shipment.context
    written = outputs.not_shipped(outputs.chosen(shipment.options.output_dir, os.environ), shipment.plan.folders())
    exclude = (home, places.runtime(), *data, *written)
    shipped = archive.ship(shipment.plan, context.store, cache=home / "cache", exclude=exclude)
    took = time.monotonic() - begun
    if took > _SLOW_SECONDS:
        output.say(f"packed {shipped.files} files, {size_text(shipped.bytes)}, in {took:.1f} s")
    tell((*shipped.notes, *_stale(shipment.plan)))
    return shipped


def tell(notes: tuple[str, ...]) -> None:
    """Tell the user what should be known, each sentence once."""
    for note in notes:
        output.once(note)


def versions() -> dict[str, str]:
    """Return what speaks on this side: Python, cloudpickle, kinetic, platform."""
    from kinetic._packing import function
    from kinetic._version import __version__

    pickler = function.pickler_version()
    return {"python": fingerprint.python(), "cloudpickle": pickler, "kinetic": __version__, "platform": sys.platform}


def cache() -> Path:
    """Return the folder in which this machine remembers what it sent where."""
    return settings.kinetic_home(os.environ) / "cache"


def _stale(plan: Plan) -> tuple[str, ...]:
    from kinetic._packing import modules

    stale = modules.stale_modules(plan)
    if not stale:
        return ()
    return (f"edited since it was imported here: {', '.join(stale[:5])}; the job runs what is on disk now",)
