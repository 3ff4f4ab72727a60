"""Submitting: from a call and options to a job that runs somewhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic import _settings as settings
from kinetic._backends.protocol import Launch
from kinetic._jobs import defaults, interpreting, places, record
from kinetic._jobs import ground as grounds
from kinetic._jobs import options as options_
from kinetic._jobs.handle import JobHandle
from kinetic._packing import archive, environment, root
from kinetic._packing import call as calls
from kinetic._packing.root import Plan
from kinetic._settings import project_file
from kinetic._wire import digests, fingerprint, keys, names, seal
from kinetic._wire.order import Order
from kinetic._wire.steps import step
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.ground import Ground
    from kinetic._jobs.options import Options
    from kinetic._packing.call import Call

_SLOW_SECONDS = 1.0  # a phase that takes longer is named
_UNDO_SECONDS = 6.0  # for a job that began and is told to end: 5 s until it is killed


def submit(call: Call, options: Options, ground: Ground) -> JobHandle:
    """Pack a call, write its order and record, and launch it.

    Args:
        call: The call.
        options: How it is to run.
        ground: Where it goes.

    Returns:
        The job's handle, as soon as the job no longer needs this process.

    Raises:
        KineticError: Nothing was launched, and nothing of it is left.
    """
    plan = root.find_root(call.function)
    options = defaults.applied(options, plan.root, ground.target.profile, os.environ)
    if options.placement() != ground.placement:
        ground = grounds.prepare(options)  # the place had been told before the project was read
    grounds.announce(ground, options)
    captured = environment.capture(options.capture_env_vars or (), os.environ)
    interpreter = interpreting.interpreter_for(call, plan, ground)
    job_id = names.new_job_id(hardware.slug(options.accelerator), call.name)
    ground.backend.begin(job_id)
    step("client:begun")
    try:
        with output.phase("packing", summary=False):  # _pack says more than how long it took
            order = _pack(call, options, plan, ground, job_id, tuple(captured.values))
        step("client:packed")
        with output.phase("uploading"):
            handle = _write(order, call, options, ground)
        _launch(order, ground, captured.values, interpreter)
        step("client:launched")
    except BaseException:
        _undo(ground, job_id)
        raise
    for note in captured.notes:
        output.once(note)
    return handle


def _pack(call: Call, options: Options, plan: Plan, ground: Ground, job_id: str, names_: tuple[str, ...]) -> Order:
    begun = time.monotonic()
    by_value = project_file.read_project_options(plan.root).by_value
    home = settings.kinetic_home(os.environ)
    shipped = archive.ship(plan, ground.store, cache=home / "cache", exclude=(home, ground.backend.paths.runtime))
    payload = calls.pack(call, plan, ground.store, (keys.function(job_id), keys.arguments(job_id)), by_value=by_value)
    took = time.monotonic() - begun
    if took > _SLOW_SECONDS:
        output.say(f"packed {shipped.files} files, {shipped.bytes / 1e6:.1f} MB, in {took:.1f} s")
    for note in (*shipped.notes, *payload.notes, *_stale(plan)):
        output.once(note)
    return Order(
        job_id=job_id,
        function_name=call.name,
        function=payload.function,
        arguments=payload.arguments,
        tree=shipped.tree,
        packs=shipped.packs,
        plan=plan.to_json(),
        script=calls.script_of(plan),
        environment=names_,
        output_dir=_output_dir(options, ground, job_id),
        accelerator=ground.placement.name,
        hosts=ground.placement.hosts,
        deadline=options_.deadline_of(options, os.environ),
        fingerprint=_fingerprint(),
    )


def _write(order: Order, call: Call, options: Options, ground: Ground) -> JobHandle:
    """Write order and record: from here on the job can be found."""
    target, job_id = ground.target, order.job_id
    handle = JobHandle(
        job_id=job_id,
        backend=target.backend.value,
        project=target.project.value,
        cluster_name=target.cluster.value,
        zone=target.zone.value,
        namespace=target.namespace.value,
        bucket_name=target.bucket_name,
        k8s_name=f"kinetic-{job_id}",
        image_uri=options.container_image or "",
        accelerator=options.accelerator,
        func_name=call.name,
        display_name=f"kinetic-{call.name}-{job_id}",
        created_at=names.utc(time.time()),
        store=ground.store.url,
        host=places.machine(),
        key_id=ground.key_id,
        output_dir=order.output_dir,
    )
    more = {"spot": ground.placement.spot, "machine": os.uname().nodename, "python": fingerprint.python()}
    job_key = seal.job_key(ground.key, job_id)
    ground.store.put(keys.order(job_id), order.to_bytes())
    step("client:order-written")
    ground.store.put(keys.record(job_id), record.to_bytes(handle.to_dict(), more, job_key))
    step("client:record-written")
    return handle


def _launch(order: Order, ground: Ground, captured: dict[str, str], interpreter: str) -> None:
    launch = Launch(
        order=order,
        order_sha256=digests.of_bytes(order.to_bytes()),
        store_url=ground.store.url,
        placement=ground.placement,
        key=seal.job_key(ground.key, order.job_id),
        key_id=ground.key_id,
        captured=captured,
        interpreter=interpreter,
    )
    ground.backend.launch([launch])


def _undo(ground: Ground, job_id: str) -> None:
    """Leave nothing of a submission that did not come to its end."""
    with contextlib.suppress(KineticError, OSError):  # what went wrong is about to be told; this must not hide it
        ground.backend.stop(job_id, wait=_UNDO_SECONDS)  # it may have been claimed already
        ground.backend.remove(job_id)
        ground.store.delete(keys.job(job_id))
    ground.backend.finish_submitting(job_id)


def _output_dir(options: Options, ground: Ground, job_id: str) -> str:
    chosen = options.output_dir or settings.read("KINETIC_OUTPUT_DIR", os.environ)
    if chosen:
        return chosen if "://" in chosen else os.path.abspath(os.path.expanduser(chosen))
    address = f"{ground.store.url}/{keys.outputs(job_id).rstrip('/')}"
    return address.removeprefix("file://")


def _stale(plan: Plan) -> tuple[str, ...]:
    from kinetic._packing import modules

    stale = modules.stale_modules(plan)
    if not stale:
        return ()
    return (f"edited since it was imported here: {', '.join(stale[:5])}; the job runs what is on disk now",)


def _fingerprint() -> dict[str, str]:
    from kinetic._version import __version__

    return {"python": fingerprint.python(), "kinetic": __version__, "platform": sys.platform}
