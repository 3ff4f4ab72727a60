"""Submitting: from a call and options to a job that runs somewhere else."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic._backends.protocol import Launch
from kinetic._jobs import debugging, record, referring, shipping
from kinetic._jobs.handle import JobHandle, handle_of
from kinetic._packing import call as calls
from kinetic._wire import debug, digests, fingerprint, handles, keys, names, outputs, seal
from kinetic._wire.order import Order
from kinetic._wire.steps import step
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.options import Options
    from kinetic._jobs.shipping import Shipment
    from kinetic._jobs.submit_context import SubmitContext
    from kinetic._packing.call import Call
    from kinetic._wire.handles import JobRecord

_UNDO_SECONDS = 6.0  # for a job that began and is told to end: 5 s until it is killed


def submit(call: Call, options: Options, context: SubmitContext) -> JobHandle:
    """Pack a call, write its order and record, and launch it.

    Args:
        call: The call.
        options: How it is to run.
        context: Where it goes.

    Returns:
        The job's handle, as soon as the job no longer needs this process.

    Raises:
        KineticError: Nothing was launched, and nothing of it is left.
    """
    shipment = shipping.settle(call.function, options, context)
    options, context = shipment.options, shipment.context
    debugging.check(options, context, shipment.interpreter)
    job_id = names.new_job_id(hardware.slug(options.accelerator), call.name)
    context.backend.begin(job_id)
    step("client:begun")
    try:
        with output.phase("packing", summary=False):  # _pack says more than how long it took
            order, found = _pack(call, shipment, job_id)
        data = shipment.ship_data(found, options.volumes)
        order = replace(order, data=data)
        if data:
            step("client:data-sent")
        step("client:packed")
        with output.phase("uploading"):
            job = _write(order, call, shipment)
        _launch(order, shipment)
        step("client:launched")
    except BaseException:
        _undo(context, job_id)
        raise
    shipping.tell(tuple(shipment.captured.notes))
    return handle_of(job)


def _pack(call: Call, shipment: Shipment, job_id: str) -> tuple[Order, referring.Found]:
    """Bring call and project into the store, and say so in the order; return the data that the call refers to as well.

    The call first: only then it is known what of the project ships as data.
    """
    options, context, plan = shipment.options, shipment.context, shipment.plan
    found = referring.Found()
    payload = calls.pack(
        call,
        plan,
        context.store,
        (keys.function(job_id), keys.arguments(job_id)),
        by_value=shipment.by_value,
        swap=found,
    )
    shipping.tell(payload.notes)
    found.check(call.args, call.kwargs)
    shipped = shipping.ship_project(shipment, found.local_paths(options.volumes))
    order = Order(
        job_id=job_id,
        function_name=call.name,
        function=payload.function,
        arguments=payload.arguments,
        tree=shipped.tree,
        packs=shipped.packs,
        plan=plan.to_json(),
        script=calls.script_of(plan),
        environment=tuple(shipment.captured.values),
        output_dir=_output_dir(options, context, job_id),
        accelerator=context.placement.name,
        hosts=context.placement.hosts,
        deadline=None if options.debug else options.deadline,
        debug=debugging.seconds(options, os.environ),
        retries=0 if options.debug else options.retries or 0,
        fingerprint=shipping.versions(),
        cpu=shipment.resources.cpu,
        memory_bytes=shipment.resources.memory_bytes,
    )
    return order, found


def _write(order: Order, call: Call, shipment: Shipment) -> JobRecord:
    """Write order and record: from here on the job can be found."""
    options, context = shipment.options, shipment.context
    job_id = order.job_id
    shared = shipment.shared_fields(call.name)
    job = record.make(shared, job_id, debug=options.debug, output_dir=order.output_dir)
    written = order.to_bytes()
    more = {
        "spot": context.placement.spot,
        "machine": os.uname().nodename,
        "python": fingerprint.python(),
        "order_sha256": digests.of_bytes(written),
    }
    job_key = seal.job_key(context.key, job_id, context.store.url)
    context.store.put(keys.order(job_id), written)
    step("client:order-written")
    context.store.put(keys.record(job_id), record.to_bytes(handles.plain(job), more, job_key))
    step("client:record-written")
    return job


def _launch(order: Order, shipment: Shipment) -> None:
    context = shipment.context
    job_key = seal.job_key(context.key, order.job_id, context.store.url)
    token = {} if order.debug is None else {debug.TOKEN_VARIABLE: debug.token(job_key)}
    launch = Launch(
        order=order,
        order_sha256=digests.of_bytes(order.to_bytes()),
        store_url=context.store.url,
        placement=context.placement,
        key=job_key,
        key_id=context.key_id,
        captured={**shipment.captured.values, **token},
        interpreter=shipment.interpreter,
        requirements=shipment.pod.to_json() if shipment.pod is not None else None,
        owner=_owner(shipment),
    )
    context.backend.launch([launch])


def _owner(shipment: Shipment) -> str:
    if shipment.pod is None:
        return ""
    from kinetic._settings import cluster  # only for clusters

    return cluster.owner(os.environ)


def _undo(context: SubmitContext, job_id: str) -> None:
    """Leave nothing of a submission that did not come to its end."""
    with contextlib.suppress(KineticError, OSError):  # what went wrong is about to be told; this must not hide it
        context.backend.stop([job_id], wait=_UNDO_SECONDS)  # it may have been claimed already
        context.backend.remove([job_id])
        context.store.delete(keys.job(job_id))
    context.backend.finish_submitting(job_id)


def _output_dir(options: Options, context: SubmitContext, job_id: str) -> str:
    """Return the argument, else the variable, else a folder of the job's own."""
    own = f"{context.store.url}/{keys.outputs(job_id)}"
    return outputs.chosen(options.output_dir, os.environ) or outputs.address(own)
