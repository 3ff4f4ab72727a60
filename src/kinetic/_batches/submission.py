"""Preparing a batch: function, project and data go into the store once, the inputs packed, the manifest last.

Nothing is launched before everything is there, so another process can take over at any later moment. What kills us
before the manifest is written leaves objects that no batch names; the next sweep of the store removes them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic._batches import lease, request, resume
from kinetic._batches.batch_handle import BatchHandle, of_group
from kinetic._batches.launcher import Launcher, secrets_of
from kinetic._batches.state import BatchTracker
from kinetic._jobs import data_refs, locate, submit_context
from kinetic._jobs import submit as job_submit
from kinetic._project import pickler
from kinetic._project.pickler import InputPacker
from kinetic._wire import digests, distribution, keys, names, output_paths, seal
from kinetic._wire.failpoints import step
from kinetic._wire.order import Artifact, Order
from kinetic._wire.records import Group, Input, Settings, Table
from kinetic.errors import BackendError, CallableError, KineticError, OptionError, PackingError

if TYPE_CHECKING:
    from kinetic._batches.lease import Lease
    from kinetic._batches.request import BatchRequest
    from kinetic._jobs.submit import Shipment
    from kinetic._project.archive import Shipped
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import DataRef


_NO_ARGUMENTS = Artifact.within(b"")  # of the order itself; each child brings its own
_REFUSALS = (CallableError, OptionError, PackingError)  # one input's own fault


class Prepared(NamedTuple):
    """A batch of which nothing runs yet.

    Attributes:
        launcher: Launches its children.
        errors: For each input that could not be submitted, why.
    """

    launcher: Launcher
    errors: dict[int, Exception]


def prepare(wish: BatchRequest) -> Prepared:
    """Bring a batch into the store.

    Raises:
        KineticError: Nothing was launched; of what was written nothing can be found.
    """
    submit_context.refuse_batches(wish.options)
    context = submit_context.prepare(wish.options)
    shipment = job_submit.resolve(wish.function, wish.options, context)
    context = shipment.context
    group_id = _new_group(context.store)
    context.backend.begin(group_id)  # while it is held, nobody sweeps what no order names yet
    try:
        with output.phase("packing", summary=False):
            packed = _pack(wish, shipment, group_id)
        packed = _ship_data(packed, shipment)
        with output.phase("uploading"):
            prepared = _write(wish, shipment, packed, group_id)
    except BaseException:
        _undo(shipment, group_id)
        raise
    finally:
        context.backend.finish_submitting(group_id, leave_nothing=True)
    job_submit.report_notes(tuple(shipment.captured.notes))
    return prepared


def _new_group(store: Store) -> str:
    """Take an id that no other batch of this store has: among ten thousand, two drawn ones are the same in 1 of 86."""
    while not store.put(keys.group_clock(group_id := names.new_group_id()), b"", if_absent=True):
        pass
    return group_id


class _Packed(NamedTuple):
    """What a batch is made of, in the store.

    ``found`` is the data that the function refers to, ``theirs`` that of each input; once it is shipped, the references
    stand in ``data`` and in the table.
    """

    function: Artifact
    table: Table
    project: Shipped
    errors: dict[int, Exception]
    found: data_refs.FoundData
    theirs: dict[int, data_refs.FoundData]
    data: tuple[DataRef, ...] = ()


def _pack(wish: BatchRequest, shipment: Shipment, group_id: str) -> _Packed:
    context, options = shipment.context, shipment.options
    call = pickler.Call(wish.function, wish.leading, {}, wish.name)
    found = data_refs.FoundData()
    function, notes = pickler.pack_function(
        call, shipment.plan, context.store, keys.group_function(group_id), by_value=shipment.by_value, swap=found
    )
    job_submit.report_notes(notes)
    volumes = options.volumes or {}
    errors: dict[int, Exception] = {}
    rows, theirs = _pack_inputs(wish, shipment, group_id, len(found.data) + len(volumes), errors)
    step("driver:inputs-written")
    data = [*found.local_paths(volumes), *(path for item in theirs.values() for path in item.local_paths(None))]
    project = job_submit.ship_project(shipment, data)
    return _Packed(function, Table(tuple(rows)), project, errors, found, theirs)


def _ship_data(packed: _Packed, shipment: Shipment) -> _Packed:
    """Bring the data of function, volumes and inputs into the store."""
    shared = shipment.ship_data(packed.found, shipment.options.volumes)
    rows = list(packed.table.inputs)
    for index, refs in _ship_theirs(packed.theirs, shipment).items():
        rows[index] = replace(rows[index], data=refs)
    return packed._replace(table=Table(tuple(rows)), data=shared)


def _ship_theirs(theirs: Mapping[int, data_refs.FoundData], shipment: Shipment) -> dict[int, tuple[DataRef, ...]]:
    """Ship the data of all inputs, each only once however many inputs have it, and return what belongs to which."""
    together = data_refs.FoundData()
    for item in theirs.values():
        for data in item.data:
            together(data)
    refs = shipment.ship_data(together, None)
    by_data = {id(data): ref for data, ref in zip(together.data, refs, strict=True)}
    return {index: tuple(by_data[id(data)] for data in item.data) for index, item in theirs.items()}


def _pack_inputs(
    wish: BatchRequest, shipment: Shipment, group_id: str, first: int, errors: dict[int, Exception]
) -> tuple[list[Input], dict[int, data_refs.FoundData]]:
    """Pickle every input; one that cannot be is an error of its own and harms no other."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        pickler.check_arguments(wish.function, args, kwargs, wish.name)

    rows: list[Input] = []
    theirs: dict[int, data_refs.FoundData] = {}
    with InputPacker(
        shipment.plan,
        shipment.context.store,
        lambda number: keys.group_inputs(group_id, number),
        by_value=shipment.by_value,
    ) as packer:
        for index, item in enumerate(wish.inputs):
            found = data_refs.FoundData(first)
            try:
                arguments = request.fitting(item, wish.input_mode, wish.leading, check)
                kwargs = data_refs.with_defaults(wish.function, arguments.args, arguments.kwargs)
                placed = packer.add(arguments.args, kwargs, found)
                found.check(arguments.args, kwargs)
            except _REFUSALS as error:
                errors[index] = error
                rows.append(Input(request.shown(item), error=f"{type(error).__name__}: {error}"))
                continue
            rows.append(Input(request.shown(item), placed))
            if found.data:
                theirs[index] = found
        job_submit.report_notes(packer.notes())
    return rows, theirs


def _write(wish: BatchRequest, shipment: Shipment, packed: _Packed, group_id: str) -> Prepared:
    """Write order and table, and then the manifest: from here on the batch can be found, and taken over."""
    context = shipment.context
    order = _order(wish, shipment, packed, group_id)
    table = packed.table.to_bytes()
    group = Group(
        group_id=group_id,
        group_name=wish.group_name,
        tags=dict(wish.tags),
        created=time.time(),
        total_expected=len(wish.inputs),
        submit_fn_name=wish.name,
        slug=hardware.slug(shipment.options.accelerator),
        handle=shipment.shared_fields(wish.name),
        more={"spot": context.placement.spot, "machine": os.uname().nodename, "python": distribution.python_version()},
        settings=_settings(wish, shipment),
        order_sha256=digests.of_bytes(order.to_bytes()),
        table_sha256=digests.of_bytes(table),
        outputs=_outputs(shipment),
        key_id=context.key_id,
        spot=context.placement.spot,
    )
    addresses = sorted({context.store.url, *(ref.uri for ref in packed.data), *packed.table.addresses()})
    kept = secrets_of(shipment.captured.values, context.backend.environ, shipment.interpreter, addresses, shipment.pod)
    context.backend.keep(group_id, kept, lambda: _keys_of(group, context.key))
    context.store.put(keys.group_order(group_id), order.to_bytes())
    step("driver:order-written")
    context.store.put(keys.group_table(group_id), table)
    step("driver:table-written")
    group_key = seal.job_key(context.key, group_id, context.store.url)
    context.store.put(keys.group_manifest(group_id), group.to_bytes(group_key))
    step("driver:manifest-written")
    placed = Launcher(group, packed.table, order, context.store, context.backend, context.placement, context.key, kept)
    return Prepared(placed, packed.errors)


def _keys_of(group: Group, key: bytes) -> list[bytes]:
    """Return the keys of the first attempts at all inputs."""
    return [seal.job_key(key, group.child_id(index, 0), group.store) for index in range(group.total_expected)]


def _order(wish: BatchRequest, shipment: Shipment, packed: _Packed, group_id: str) -> Order:
    context, plan = shipment.context, shipment.plan
    return Order(
        job_id=group_id,
        function_name=wish.name,
        function=packed.function,
        arguments=_NO_ARGUMENTS,
        tree=packed.project.tree,
        packs=packed.project.packs,
        plan=plan.to_json(),
        script=pickler.script_of(plan),
        environment=tuple(shipment.captured.values),
        output_dir=_outputs(shipment),
        accelerator=context.placement.name,
        hosts=context.placement.hosts,
        deadline=shipment.options.deadline,
        fingerprint=job_submit.versions(),
        data=packed.data,
        group=group_id,
        cpu=shipment.resources.cpu,
        memory_bytes=shipment.resources.memory_bytes,
    )


def _settings(wish: BatchRequest, shipment: Shipment) -> Settings:
    if wish.retries_given:
        return wish.settings
    return replace(wish.settings, retries=shipment.options.retries or 0)


def _outputs(shipment: Shipment) -> str:
    """Return below which address each child has a folder of its own, the same for every attempt at its input."""
    own = f"{shipment.context.store.url}/{keys.OUTPUTS}"
    return output_paths.chosen(shipment.options.output_dir, os.environ) or output_paths.address(own)


def _undo(shipment: Shipment, group_id: str) -> None:
    """Leave nothing of a batch that did not come to its manifest."""
    with contextlib.suppress(KineticError, OSError):  # what went wrong is about to be told; this must not hide it
        shipment.context.store.delete(keys.group(group_id))
        shipment.context.backend.forget_kept(group_id)


def submit(wish: BatchRequest) -> BatchHandle:
    """Submit a batch.

    Without a limit and without retries everything is launched before this returns; otherwise a thread goes on launching
    while others are running, and keeps the interpreter until it is done.

    Raises:
        KineticError: Nothing was launched; or the batch is there and could not be launched whole: then a note says how
            to go on with it.
    """
    prepared = prepare(wish)
    launcher = prepared.launcher
    batch = _handle(prepared)
    held = _lease(launcher)
    step("driver:leased")
    settings = launcher.group.settings
    at_once = settings.max_concurrent is None and settings.retries == 0
    watches = settings.fail_fast and settings.cancel_running_on_fail
    resume.start(batch, launcher, held, here=at_once and not watches)
    _tell(batch, prepared.errors)
    return batch


def _lease(launcher: Launcher) -> Lease:
    """Take the right to drive what was prepared; from here on a failure leaves a batch that can be resumed."""
    group_id = launcher.group.group_id
    try:
        held = lease.take(launcher.store, group_id, locate.group_key(launcher.group))
    except KineticError as error:
        error.add_note(resume.how_to_go_on(group_id))
        raise
    if held is None:  # somebody saw the manifest and was quicker
        raise BackendError(f"{group_id} is driven by somebody else", code="batch-driven")
    return held


def _handle(prepared: Prepared) -> BatchHandle:
    launcher, group = prepared.launcher, prepared.launcher.group
    batch = of_group(group)
    batch._submission_errors = dict(prepared.errors)
    batch._tracker = BatchTracker(group, launcher.store, launcher.backend)
    batch._table = launcher.table
    return batch


def _tell(batch: BatchHandle, errors: Mapping[int, Exception]) -> None:
    output.report(f"submitted {batch.group_id}: {len(batch.jobs) - len(errors)} jobs")
    output.report(f"follow:   kinetic batch status {batch.group_id}")
    output.report(f"cancel:   kinetic batch cancel {batch.group_id}")
