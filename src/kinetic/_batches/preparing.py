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
from kinetic._batches import inputs as inputs_
from kinetic._batches.launching import Launcher, secrets_of
from kinetic._jobs import debugging, referring, shipping, submit_context
from kinetic._packing import call as calls
from kinetic._packing.inputs import InputPacker
from kinetic._wire import digests, fingerprint, keys, names, outputs, seal
from kinetic._wire.group import Group, Input, Settings, Table
from kinetic._wire.order import Artifact, Order
from kinetic._wire.steps import step
from kinetic.errors import CallableError, KineticError, OptionError, PackingError

if TYPE_CHECKING:
    from kinetic._batches.asking import Wish
    from kinetic._jobs.shipping import Shipment
    from kinetic._packing.archive import Shipped
    from kinetic._stores.protocol import Store
    from kinetic._wire.data import DataRef

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


def prepare(wish: Wish) -> Prepared:
    """Bring a batch into the store.

    Raises:
        KineticError: Nothing was launched; of what was written nothing can be found.
    """
    debugging.refuse_batches(wish.options)
    context = submit_context.prepare(wish.options)
    shipment = shipping.settle(wish.function, wish.options, context)
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
    shipping.tell(tuple(shipment.captured.notes))
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
    found: referring.Found
    theirs: dict[int, referring.Found]
    data: tuple[DataRef, ...] = ()


def _pack(wish: Wish, shipment: Shipment, group_id: str) -> _Packed:
    context, options = shipment.context, shipment.options
    call = calls.Call(wish.function, wish.leading, {}, wish.name)
    found = referring.Found()
    function, notes = calls.pack_function(
        call, shipment.plan, context.store, keys.group_function(group_id), by_value=shipment.by_value, swap=found
    )
    shipping.tell(notes)
    volumes = options.volumes or {}
    errors: dict[int, Exception] = {}
    rows, theirs = _pack_inputs(wish, shipment, group_id, len(found.data) + len(volumes), errors)
    step("driver:inputs-written")
    data = [*found.local_paths(volumes), *(path for item in theirs.values() for path in item.local_paths(None))]
    project = shipping.ship_project(shipment, data)
    return _Packed(function, Table(tuple(rows)), project, errors, found, theirs)


def _ship_data(packed: _Packed, shipment: Shipment) -> _Packed:
    """Bring the data of function, volumes and inputs into the store."""
    shared = shipment.ship_data(packed.found, shipment.options.volumes)
    rows = list(packed.table.inputs)
    for index, refs in _ship_theirs(packed.theirs, shipment).items():
        rows[index] = replace(rows[index], data=refs)
    return packed._replace(table=Table(tuple(rows)), data=shared)


def _ship_theirs(theirs: Mapping[int, referring.Found], shipment: Shipment) -> dict[int, tuple[DataRef, ...]]:
    """Ship the data of all inputs, each only once however many inputs have it, and return what belongs to which."""
    together = referring.Found()
    for item in theirs.values():
        for data in item.data:
            together(data)
    refs = shipment.ship_data(together, None)
    by_data = {id(data): ref for data, ref in zip(together.data, refs, strict=True)}
    return {index: tuple(by_data[id(data)] for data in item.data) for index, item in theirs.items()}


def _pack_inputs(
    wish: Wish, shipment: Shipment, group_id: str, first: int, errors: dict[int, Exception]
) -> tuple[list[Input], dict[int, referring.Found]]:
    """Pickle every input; one that cannot be is an error of its own and harms no other."""

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        calls.check_arguments(wish.function, args, kwargs, wish.name)

    rows: list[Input] = []
    theirs: dict[int, referring.Found] = {}
    with InputPacker(
        shipment.plan,
        shipment.context.store,
        lambda number: keys.group_inputs(group_id, number),
        by_value=shipment.by_value,
    ) as packer:
        for index, item in enumerate(wish.inputs):
            found = referring.Found(first)
            try:
                arguments = inputs_.fitting(item, wish.input_mode, wish.leading, check)
                kwargs = referring.with_defaults(wish.function, arguments.args, arguments.kwargs)
                placed = packer.add(arguments.args, kwargs, found)
                found.check(arguments.args, kwargs)
            except _REFUSALS as error:
                errors[index] = error
                rows.append(Input(inputs_.shown(item), error=f"{type(error).__name__}: {error}"))
                continue
            rows.append(Input(inputs_.shown(item), placed))
            if found.data:
                theirs[index] = found
        shipping.tell(packer.notes())
    return rows, theirs


def _write(wish: Wish, shipment: Shipment, packed: _Packed, group_id: str) -> Prepared:
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
        more={"spot": context.placement.spot, "machine": os.uname().nodename, "python": fingerprint.python()},
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


def _order(wish: Wish, shipment: Shipment, packed: _Packed, group_id: str) -> Order:
    context, plan = shipment.context, shipment.plan
    return Order(
        job_id=group_id,
        function_name=wish.name,
        function=packed.function,
        arguments=_NO_ARGUMENTS,
        tree=packed.project.tree,
        packs=packed.project.packs,
        plan=plan.to_json(),
        script=calls.script_of(plan),
        environment=tuple(shipment.captured.values),
        output_dir=_outputs(shipment),
        accelerator=context.placement.name,
        hosts=context.placement.hosts,
        deadline=shipment.options.deadline,
        fingerprint=shipping.versions(),
        data=packed.data,
        group=group_id,
        cpu=shipment.resources.cpu,
        memory_bytes=shipment.resources.memory_bytes,
    )


def _settings(wish: Wish, shipment: Shipment) -> Settings:
    if wish.retries_given:
        return wish.settings
    return replace(wish.settings, retries=shipment.options.retries or 0)


def _outputs(shipment: Shipment) -> str:
    """Return below which address each child has a folder of its own, the same for every attempt at its input."""
    own = f"{shipment.context.store.url}/{keys.OUTPUTS}"
    return outputs.chosen(shipment.options.output_dir, os.environ) or outputs.address(own)


def _undo(shipment: Shipment, group_id: str) -> None:
    """Leave nothing of a batch that did not come to its manifest."""
    with contextlib.suppress(KineticError, OSError):  # what went wrong is about to be told; this must not hide it
        shipment.context.store.delete(keys.group(group_id))
        shipment.context.backend.forget_kept(group_id)
