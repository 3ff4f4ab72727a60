"""Preparing a batch: function, project and data go into the store once, the inputs packed, the manifest last.

Nothing is launched before everything is there, so another process can take over at any later moment. What kills us
before the manifest is written leaves objects that no batch names; the next sweep of the store removes them.
"""

from __future__ import annotations

import contextlib
import keyword
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic._batches import control, driver
from kinetic._batches.batch_handle import BatchHandle, handle_of_group
from kinetic._batches.driver import ChildLauncher, secrets_of
from kinetic._batches.state import BatchTracker
from kinetic._config.options import UNSET
from kinetic._jobs import data_refs, locate, submit_context
from kinetic._jobs import submit as job_submit
from kinetic._project import pickler
from kinetic._project.pickler import InputPacker
from kinetic._wire import digests, distribution, documents, keys, output_paths
from kinetic._wire.failpoints import step
from kinetic._wire.order import Artifact, Order
from kinetic._wire.records import Group, Input, Settings, Table
from kinetic.errors import BackendError, CallableError, KineticError, OptionError, OptionTypeError, PackingError

if TYPE_CHECKING:
    from kinetic._batches.control import Lease
    from kinetic._jobs.options import Options
    from kinetic._jobs.submit import Shipment
    from kinetic._project.archive import Shipped
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import DataRef


MODES = ("auto", "single", "args", "kwargs")
_REPR_CHARACTERS = 80  # characters of an input in tables and errors


class Arguments(NamedTuple):
    """The arguments of one child's call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def input_list(inputs: Iterable[Any]) -> list[Any]:
    """Return all inputs as a list.

    Raises:
        OptionError: There is none (also a ValueError).
        OptionTypeError: They cannot be gone through (also a TypeError).
    """
    try:
        found = list(inputs)
    except TypeError as error:
        raise OptionTypeError(
            f"inputs={inputs!r} is not a collection of inputs", why=str(error), next="run_async_map([0.1, 0.01])"
        ) from None
    if not found:
        raise OptionError("there are no inputs", why="a batch has at least one", next="run_async_map([0.1, 0.01])")
    return found


def check_mode(mode: object) -> None:
    """Refuse an input mode that is none.

    Raises:
        OptionError: It names those that are.
    """
    if mode not in MODES:
        raise OptionError(
            f"input_mode={mode!r} is not known", why=f"modes are {', '.join(MODES)}", next='input_mode="auto"'
        )


def arguments_of(item: Any, mode: str) -> Arguments:
    """Say how the function is called with one input.

    Args:
        item: The input.
        mode: "single" passes it as the one argument. "args" spreads a list or tuple, "kwargs" a dict. "auto" spreads
            lists, tuples, and dicts whose keys can all be names of parameters, and passes anything else as it is.

    Raises:
        OptionTypeError: The mode needs another type (also a TypeError).
    """
    if isinstance(item, Arguments):  # of a call that was recorded
        return item
    if mode == "args" and not isinstance(item, list | tuple):
        raise OptionTypeError(f"the input {input_repr(item)} is neither a list nor a tuple", next='input_mode="single"')
    if mode == "kwargs" and not isinstance(item, dict):
        raise OptionTypeError(f"the input {input_repr(item)} is not a dict", next='input_mode="single"')
    if mode == "kwargs" or (mode == "auto" and isinstance(item, dict) and _are_names(item)):
        return Arguments((), dict(item))
    if mode == "args" or (mode == "auto" and isinstance(item, list | tuple)):
        return Arguments(tuple(item), {})
    return Arguments((item,), {})


def checked_arguments(
    item: Any, mode: str, leading: Sequence[Any], check: Callable[[Sequence[Any], Mapping[str, Any]], None]
) -> Arguments:
    """Return the arguments of one input, checked against the function's signature.

    Raises:
        OptionTypeError: The mode needs another type.
        CallableError: The function does not take them.
    """
    found = arguments_of(item, mode)
    whole = Arguments((*leading, *found.args), found.kwargs)
    for name in whole.kwargs:
        if not isinstance(name, str):
            raise CallableError(
                f"the input {input_repr(item)} has the key {name!r}, which is no name", code="arguments"
            )
    check(whole.args, whole.kwargs)
    return whole


def input_repr(item: object) -> str:
    """Return a short text of an input, on one line."""
    try:
        text = _call_of(item) if isinstance(item, Arguments) else repr(item)
    except Exception as error:  # noqa: BLE001 - a repr is user code
        text = f"<{type(item).__name__}, whose repr raises {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _REPR_CHARACTERS else f"{text[: _REPR_CHARACTERS - 1]}…"


def _call_of(item: Arguments) -> str:
    if len(item.args) == 1 and not item.kwargs:
        return repr(item.args[0])
    return f"({', '.join([*map(repr, item.args), *(f'{name}={value!r}' for name, value in item.kwargs.items())])})"


def _are_names(item: Mapping[Any, Any]) -> bool:
    return all(isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key) for key in item)


MAX_CONCURRENT = 64  # documented
_MANY = 100  # documented: more than this without a limit is worth a warning


class BatchRequest(NamedTuple):
    """What the user wants called, how often, and how.

    Attributes:
        function: The plain function.
        leading: Arguments that come before each input's: the instance of a bound method.
        name: The function's, for humans.
        options: How each child is to run.
        inputs: One for each child.
        input_mode: How an input becomes arguments.
        settings: How the batch is driven.
        retries_given: Whether the caller said how often to try again; else the project or the profile may.
        group_name: As the user calls it, or None.
        tags: The user's own words.
    """

    function: Callable[..., Any]
    leading: tuple[Any, ...]
    name: str
    options: Options
    inputs: Sequence[Any]
    input_mode: str
    settings: Settings
    retries_given: bool
    group_name: str | None
    tags: Mapping[str, str]


def request_of(
    function: Callable[..., Any],
    leading: tuple[Any, ...],
    name: str,
    options: Options,
    inputs: Iterable[Any],
    *,
    input_mode: str = "auto",
    max_concurrent: int | None = MAX_CONCURRENT,
    retries: int = UNSET,
    fail_fast: bool = False,
    cancel_running_on_fail: bool = False,
    group_name: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> BatchRequest:
    """Check what run_async_map was given, before anything is packed."""
    check_mode(input_mode)
    given = retries is not UNSET
    settings = _checked_settings(
        max_concurrent, retries if given else 0, fail_fast=fail_fast, cancel_running_on_fail=cancel_running_on_fail
    )
    text, words = _names(group_name, tags)
    collected = input_list(inputs)
    if max_concurrent is None and len(collected) > _MANY:
        output.warn(f"{len(collected)} jobs are submitted at once; max_concurrent=64 would submit them bit by bit")
    return BatchRequest(function, leading, name, options, collected, input_mode, settings, given, text, words)


def _checked_settings(
    max_concurrent: object, retries: object, *, fail_fast: object, cancel_running_on_fail: object
) -> Settings:
    """Check how a batch is to be driven.

    Raises:
        OptionError: A number that cannot work (also a ValueError).
        OptionTypeError: Something of the wrong type (also a TypeError).
    """
    for name, value in (("max_concurrent", max_concurrent), ("retries", retries)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise OptionTypeError(f"{name}={value!r} is not a whole number")
    for name, value in (("fail_fast", fail_fast), ("cancel_running_on_fail", cancel_running_on_fail)):
        if not isinstance(value, bool):
            raise OptionTypeError(f"{name}={value!r} is neither True nor False")
    if max_concurrent is not None and max_concurrent < 1:  # type: ignore[operator] # an int
        raise OptionError(
            f"max_concurrent={max_concurrent!r} would launch nothing",
            why="it is how many jobs of the batch may be active at once",
            next="a positive number, or None for no limit",
        )
    if retries is None or retries < 0:  # type: ignore[operator] # an int
        raise OptionError(
            f"retries={retries!r} is less than none",
            why="it is how many further attempts an input gets that failed",
            next="retries=0, or how often to try again",
        )
    return Settings(max_concurrent, retries, bool(fail_fast), bool(cancel_running_on_fail))  # type: ignore[arg-type]


def _names(name: object, tags: object) -> tuple[str | None, dict[str, str]]:
    """Check the name and the tags of a batch.

    Raises:
        OptionTypeError: The name is not a text, or the tags are not texts by texts.
    """
    if name is not None and not isinstance(name, str):
        raise OptionTypeError(f"name={name!r} is not a string")
    if tags is None:
        return name, {}
    if not isinstance(tags, Mapping) or not all(isinstance(word, str) for item in tags.items() for word in item):
        raise OptionTypeError(f"tags={tags!r} are not strings by strings", next='tags={"sweep": "lr"}')
    return name, dict(tags)


_NO_ARGUMENTS = Artifact.within(b"")  # of the order itself; each child brings its own
_REFUSALS = (CallableError, OptionError, PackingError)  # one input's own fault


class Prepared(NamedTuple):
    """A batch of which nothing runs yet.

    Attributes:
        launcher: Launches its children.
        errors: For each input that could not be submitted, why.
    """

    launcher: ChildLauncher
    errors: dict[int, Exception]


def prepare(wish: BatchRequest) -> Prepared:
    """Bring a batch into the store.

    Raises:
        KineticError: Nothing was launched; of what was written nothing can be found.
    """
    submit_context.check_not_debug(wish.options)
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
    while not store.put(keys.group_clock(group_id := keys.new_group_id()), b"", if_absent=True):
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
                arguments = checked_arguments(item, wish.input_mode, wish.leading, check)
                kwargs = data_refs.with_defaults(wish.function, arguments.args, arguments.kwargs)
                placed = packer.add(arguments.args, kwargs, found)
                found.check(arguments.args, kwargs)
            except _REFUSALS as error:
                errors[index] = error
                rows.append(Input(input_repr(item), error=f"{type(error).__name__}: {error}"))
                continue
            rows.append(Input(input_repr(item), placed))
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
    group_key = documents.job_key(context.key, group_id, context.store.url)
    context.store.put(keys.group_manifest(group_id), group.to_bytes(group_key))
    step("driver:manifest-written")
    placed = ChildLauncher(
        group, packed.table, order, context.store, context.backend, context.placement, context.key, kept
    )
    return Prepared(placed, packed.errors)


def _keys_of(group: Group, key: bytes) -> list[bytes]:
    """Return the keys of the first attempts at all inputs."""
    return [documents.job_key(key, group.child_id(index, 0), group.store) for index in range(group.total_expected)]


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
    return output_paths.resolve(shipment.options.output_dir, os.environ) or output_paths.address(own)


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
    held = _take_lease(launcher)
    step("driver:leased")
    settings = launcher.group.settings
    at_once = settings.max_concurrent is None and settings.retries == 0
    watches = settings.fail_fast and settings.cancel_running_on_fail
    driver.start_driver(batch, launcher, held, here=at_once and not watches)
    _report(batch, prepared.errors)
    return batch


def _take_lease(launcher: ChildLauncher) -> Lease:
    """Take the right to drive what was prepared; from here on a failure leaves a batch that can be resumed."""
    group_id = launcher.group.group_id
    try:
        held = control.take_lease(launcher.store, group_id, locate.group_key(launcher.group))
    except KineticError as error:
        error.add_note(driver.resume_hint(group_id))
        raise
    if held is None:  # somebody saw the manifest and was quicker
        raise BackendError(f"{group_id} is driven by somebody else", code="batch-driven")
    return held


def _handle(prepared: Prepared) -> BatchHandle:
    launcher, group = prepared.launcher, prepared.launcher.group
    batch = handle_of_group(group)
    batch._submission_errors = dict(prepared.errors)
    batch._tracker = BatchTracker(group, launcher.store, launcher.backend)
    batch._table = launcher.table
    return batch


def _report(batch: BatchHandle, errors: Mapping[int, Exception]) -> None:
    output.report(f"submitted {batch.group_id}: {len(batch.jobs) - len(errors)} jobs")
    output.report(f"follow:   kinetic batch status {batch.group_id}")
    output.report(f"cancel:   kinetic batch cancel {batch.group_id}")
