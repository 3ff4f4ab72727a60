"""Submitting a batch: its arguments are checked; function, project and data are stored once; the manifest comes last.

Nothing is launched before everything is stored, so another process can take over at any later moment. A process that
dies before the manifest is written leaves objects that no batch names; garbage collection of the store removes them.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import keyword
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic import _hardware as hardware
from kinetic._batches import collection, control, driver
from kinetic._batches.batch_handle import BatchHandle, handle_of_group
from kinetic._batches.driver import ChildLauncher
from kinetic._batches.tracker import BatchTracker
from kinetic._config.options import UNSET
from kinetic._jobs import after, data_refs, job_options, locate, notifications, submit_context
from kinetic._jobs import submit as job_submit
from kinetic._jobs.handle import JobHandle
from kinetic._output import signal_handlers, tracebacks
from kinetic._output import terminal as output
from kinetic._output.format import count_text, seconds_text
from kinetic._output.signal_handlers import HandlerWatch
from kinetic._project import pickler
from kinetic._project.pickler import InputPacker
from kinetic._stores import put_many
from kinetic._wire import NamedTuple, cache_entries, digests, documents, keys, python_runtime
from kinetic._wire.failpoints import step
from kinetic._wire.input_table import Input, Inputs, Table
from kinetic._wire.order import Artifact, Order
from kinetic._wire.records import Group, Settings
from kinetic.errors import BackendError, CallableError, KineticError, OptionError, OptionTypeError, PackingError

if TYPE_CHECKING:
    from kinetic._jobs.after import Followed
    from kinetic._jobs.job_options import Options
    from kinetic._jobs.submit import Shipment
    from kinetic._project.archive import Shipped
    from kinetic._project.root import Plan
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import DataRef

MODES = ("auto", "single", "args", "kwargs")
MAX_CONCURRENT = 64  # documented
_MANY = 100  # documented: more than this without a limit is worth a warning
_REPR_CHARACTERS = 80  # of an input in tables and errors
_DIFFERS_SECONDS = 30 * 24 * 3600.0  # so long children of a function do not wait that were seen to differ
_NO_ARGUMENTS = Artifact.within(b"")  # of the order itself; each child brings its own
_INPUT_ERRORS = (CallableError, OptionError, PackingError)  # one input's own fault


class Arguments(NamedTuple):
    """The arguments of one child's call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class BatchRequest(NamedTuple):
    """What run_async_map was given, checked."""

    function: Callable[..., Any]
    leading: tuple[Any, ...]  # arguments that come before each input's: the instance of a bound method
    name: str  # of the function, for humans
    options: Options
    inputs: Sequence[Any]
    input_mode: str
    settings: Settings
    retries_given: bool  # else the project or the profile may say how often to try again
    group_name: str | None
    tags: Mapping[str, str]
    plan: Plan | None = None  # the project of a command, which is not that of the function
    command: tuple[str, ...] = ()  # its words, with {name} for what the inputs replace


def input_list(inputs: Iterable[Any]) -> list[Any]:
    """Return all inputs as a list.

    Raises:
        OptionError: There is none (also a ValueError).
        OptionTypeError: They are not iterable, or one text (also a TypeError).
    """
    if isinstance(inputs, str | bytes):
        raise OptionTypeError(
            f"inputs={inputs!r:.60} is one text",
            why="a batch has a job for each element of its inputs, here for each letter",
            next="run_async_map([text]), or run_async_map(list(text)) for the letters",
        )
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
    """Refuse an unknown input mode."""
    if mode not in MODES:
        raise OptionError(
            f"input_mode={mode!r} is not known", why=f"modes are {', '.join(MODES)}", next='input_mode="auto"'
        )


def arguments_of(item: Any, mode: str) -> Arguments:
    """Return the arguments of the call with one input.

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
    if mode == "kwargs" or (mode == "auto" and isinstance(item, dict) and all(map(_is_parameter_name, item))):
        return Arguments((), dict(item))
    if mode == "args" or (mode == "auto" and isinstance(item, list | tuple)):
        return Arguments(tuple(item), {})
    return Arguments((item,), {})


def _is_parameter_name(key: object) -> bool:
    return isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key)


def checked_arguments(
    item: Any, mode: str, leading: Sequence[Any], check: Callable[[Sequence[Any], Mapping[str, Any]], None]
) -> Arguments:
    """Return the arguments of one input, checked against the function's signature.

    Raises:
        OptionTypeError: The mode needs another type.
        CallableError: The function does not take them.
    """
    found = arguments_of(item, mode)
    for name in found.kwargs:
        if not isinstance(name, str):
            raise CallableError(
                f"the input {input_repr(item)} has the key {name!r}, which is not a string", code="arguments"
            )
    whole = Arguments((*leading, *found.args), found.kwargs)
    try:
        check(whole.args, whole.kwargs)
    except CallableError as error:
        if mode == "auto" and isinstance(item, list | tuple | dict):
            error.next = 'if each input is one argument: run_async_map(…, input_mode="single")'
        raise
    return whole


class _Id(str):
    """What is shown of a handle: it means the value of that job or batch."""

    __slots__ = ()
    __repr__ = str.__str__


def _with_ids(value: Any, depth: int = 2) -> Any:
    """Return a value, with their ids in the place of handles, also of those in lists, tuples and dicts."""
    if isinstance(value, JobHandle | BatchHandle):
        return _Id(value.job_id if isinstance(value, JobHandle) else value.group_id)
    if depth and type(value) in {list, tuple}:
        return type(value)(_with_ids(each, depth - 1) for each in value)
    if depth and type(value) is dict:
        return {name: _with_ids(each, depth - 1) for name, each in value.items()}
    return value


def input_repr(item: object) -> str:
    """Return a short text of an input, on one line."""
    try:
        if not isinstance(item, Arguments):
            text = repr(_with_ids(item))
        elif len(item.args) == 1 and not item.kwargs:
            text = repr(_with_ids(item.args[0]))
        else:
            args, kwargs = _with_ids(item.args), _with_ids(item.kwargs)
            text = f"({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"
    except Exception as error:  # noqa: BLE001 - a repr is user code
        text = f"<{type(item).__name__}, whose repr raises {type(error).__name__}>"
    text = " ".join(text.split())
    return text if len(text) <= _REPR_CHARACTERS else f"{text[: _REPR_CHARACTERS - 1]}…"


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
    """Check what run_async_map was given, before anything is packed.

    Raises:
        OptionError: A value that cannot work (also a ValueError).
        OptionTypeError: A value of the wrong type (also a TypeError).
    """
    check_mode(input_mode)
    given = retries is not UNSET
    checked = _checked_settings(max_concurrent, retries if given else 0, fail_fast, cancel_running_on_fail)
    if group_name is not None and not isinstance(group_name, str):
        raise OptionTypeError(f"name={group_name!r} is not a string")
    group_name = options.name if group_name is None else group_name
    tags = (options.tags or {}) if tags is None else job_options.checked_tags(tags)
    collected = input_list(inputs)
    if max_concurrent is None and len(collected) > _MANY:
        output.warn(f"{len(collected)} jobs are submitted at once; max_concurrent=64 submits them as others end")
    return BatchRequest(function, leading, name, options, collected, input_mode, checked, given, group_name, dict(tags))


def _checked_settings(
    max_concurrent: object, retries: object, fail_fast: object, cancel_running_on_fail: object
) -> Settings:
    if max_concurrent is not None:
        max_concurrent = job_options.whole_number("max_concurrent", max_concurrent)
    if retries is not None:
        retries = job_options.whole_number("retries", retries)
    for name, value in (("fail_fast", fail_fast), ("cancel_running_on_fail", cancel_running_on_fail)):
        job_options.check_flag(name, value)
    if max_concurrent is not None and max_concurrent < 1:
        raise OptionError(
            f"max_concurrent must be 1 or more, got {max_concurrent!r}",
            why="it is how many jobs of the batch may be active at once",
            next="a positive number, or None for no limit",
        )
    if retries is None or retries < 0:
        raise OptionError(
            f"retries must be 0 or more, got {retries!r}",
            why="it is how many further attempts an input gets that failed",
            next="retries=0, or how often to try again",
        )
    job_options.check_not_huge("max_concurrent", max_concurrent or 1, "max_concurrent=None for no limit")
    job_options.check_not_huge("retries", retries)
    return Settings(max_concurrent, retries, bool(fail_fast), bool(cancel_running_on_fail))


class _Packed(NamedTuple):
    """What a batch is made of, in the store, with the data that the function and each input refer to."""

    function: Artifact
    rows: Inputs
    project: Shipped
    errors: dict[int, Exception]
    found: data_refs.FoundData
    found_by_input: dict[int, data_refs.FoundData]
    handed: data_refs.HandedOver  # handles among the arguments: the batch follows all of them


def _stored(request: BatchRequest) -> tuple[ChildLauncher, dict[int, Exception]]:
    """Bring a batch into the store, of which nothing runs yet; return why inputs could not be submitted, too.

    Where an error is raised, nothing of what was written can be found.
    """
    job_submit.check_not_debug(request.options)
    context = submit_context.prepare(request.options, may_be_warm=True)
    shipment = job_submit.resolve(request.function, request.options, context, plan=request.plan)
    with shipment.building():
        return _store(request, shipment)


def _store(request: BatchRequest, shipment: Shipment) -> tuple[ChildLauncher, dict[int, Exception]]:
    context = shipment.context
    targets = notifications.resolve(request.options.on_done or (), os.environ)
    group_id = _new_group_id(context.store)
    followed = after.Followed()
    context.backend.begin(group_id)  # while it is held, garbage collection spares what no order names yet
    try:
        with output.phase("packing", summary=False):
            packed = _pack(request, shipment, group_id)
        followed = after.resolve(packed.handed, request.options.after, shipment.here())
        for item in (packed.found, *packed.found_by_input.values()):
            after.refuse_early(followed, item.copied_paths(request.options.volumes), context.store)
        data = _ship_data(packed, shipment, followed)
        shipment = shipment.finished()
        with output.phase("uploading"):
            if followed.after:
                after.follow(followed, context.store, group_id)
            launcher = _write(request, shipment, packed, data, followed, group_id, targets)
    except BaseException:
        with contextlib.suppress(KineticError, OSError):  # this must not hide what went wrong
            notifications.forget(group_id)
            context.store.delete(keys.group(group_id))
            context.backend.forget_kept(group_id)
            after.withdraw(followed, context.store, group_id)
        raise
    finally:
        context.backend.finish_submitting(group_id, leave_nothing=True)
    job_submit.report_notes(tuple(shipment.captured.notes))
    return launcher, packed.errors


def _new_group_id(store: Store) -> str:
    """Take an id that no other batch of this store has: among ten thousand, two drawn ones are the same in 1 of 86."""
    while not store.put(keys.group_clock(group_id := keys.new_group_id()), b"", if_absent=True):
        pass
    return group_id


def _pack(request: BatchRequest, shipment: Shipment, group_id: str) -> _Packed:
    """Pickle the function and every input, and ship the project; an input that cannot be pickled affects no other."""
    plan, store, by_value = shipment.plan, shipment.context.store, shipment.by_value
    found, handed, volumes = data_refs.FoundData(), data_refs.HandedOver(), shipment.options.volumes or {}
    call, at = pickler.Call(request.function, request.leading, {}, request.name), keys.group_function(group_id)
    pack = functools.partial(pickler.pack_function, call, plan, store, at, by_value=by_value, swap=found)
    function, notes = pack()
    job_submit.report_notes(notes)
    first = len(found.data) + len(volumes)
    rows, errors = Inputs(), dict[int, Exception]()
    found_by_input: dict[int, data_refs.FoundData] = {}
    calls: list[pickler.Call] = []  # of the first two inputs

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        pickler.check_arguments(request.function, args, kwargs, request.name)

    with InputPacker(plan, store, lambda number: keys.group_inputs(group_id, number), by_value=by_value) as packer:
        for index, item in enumerate(request.inputs):
            own = data_refs.FoundData(first)
            try:
                arguments = checked_arguments(item, request.input_mode, request.leading, check)
                kwargs = data_refs.with_defaults(request.function, arguments.args, arguments.kwargs)
                placed = packer.add(arguments.args, kwargs, handed.swap(own))
                own.check(arguments.args, kwargs)
            except _INPUT_ERRORS as error:
                errors[index] = error
                rows.append(Input(input_repr(item), error=f"{type(error).__name__}: {error}"))
                continue
            rows.append(Input(input_repr(item), placed))
            if len(calls) < 2:  # the note comes before all of them are stored
                calls.append(replace(call, args=arguments.args, kwargs=kwargs))
                if len(calls) > 1:
                    job_submit.report_notes(packer.repeated(calls[0], calls[1], len(request.inputs)))
            if own.data:
                found_by_input[index] = own
        job_submit.report_notes(packer.notes())
    if packer.opens_pickles:
        function, _ = pack(opens_pickles=True)
    step("driver:inputs-written")
    data = [*found.local_paths(volumes), *(path for item in found_by_input.values() for path in item.local_paths(None))]
    shipped = job_submit.ship_project(shipment, data, request.function)
    return _Packed(function, rows, shipped, errors, found, found_by_input, handed)


def _ship_data(packed: _Packed, shipment: Shipment, followed: Followed) -> tuple[DataRef, ...]:
    """Bring all data into the store, each only once however many inputs have it; note in the rows what they refer to.

    Returns:
        The data of the function and the volumes.
    """
    shared = shipment.ship_data(packed.found, shipment.options.volumes, followed)
    together = data_refs.FoundData()
    for data in (data for item in packed.found_by_input.values() for data in item.data):
        together(data)
    refs = shipment.ship_data(together, None, followed)
    by_data = {id(data): ref for data, ref in zip(together.data, refs, strict=True)}
    for index, item in packed.found_by_input.items():
        packed.rows[index] = replace(packed.rows[index], data=tuple(by_data[id(data)] for data in item.data))
    return shared


def _write(
    request: BatchRequest,
    shipment: Shipment,
    packed: _Packed,
    data: tuple[DataRef, ...],
    followed: Followed,
    group_id: str,
    targets: Sequence[str],
) -> ChildLauncher:
    """Write order and table, and then the manifest: from here on the batch can be found, and taken over."""
    context, options = shipment.context, shipment.options
    order = shipment.order(
        packed.project,
        keys.OUTPUTS,  # each child has a folder there, the same for every attempt
        request.function,
        job_id=group_id,
        function_name=request.name,
        function=packed.function,
        arguments=_NO_ARGUMENTS,
        deadline=options.deadline,
        data=data,
        group=group_id,
        is_command=bool(request.command),
        after=followed.after,
    )
    table = Table(packed.rows)
    table_bytes = table.to_bytes()
    retries = request.settings.retries if request.retries_given else options.retries or 0
    group = Group(
        group_id=group_id,
        group_name=request.group_name,
        tags=dict(request.tags),
        created=time.time(),
        total_expected=len(request.inputs),
        submit_fn_name=request.name,
        slug=hardware.slug(options.accelerator),
        handle=shipment.shared_fields(request.name, request.command)
        | ({"after": followed.names} if followed.after else {}),
        more=shipment.recorded(),
        settings=replace(request.settings, retries=retries),
        order_sha256=digests.of_bytes(order.to_bytes()),
        table_sha256=digests.of_bytes(table_bytes),
        outputs=order.output_dir,
        key_id=context.key_id,
        spot=context.placement.spot,
    )
    rows = [index for index, row in enumerate(packed.rows) if row.arguments is not None]
    if seconds := _seconds_of_first(order, group, len(rows), shipment):
        group = replace(group, first_seconds=seconds, first_index=rows[0])
    kept = _kept(shipment, {*(ref.uri for ref in data), *table.addresses()}, followed)
    first_attempts = [group.child_id(index, 0) for index in range(group.total_expected)]
    context.backend.keep(
        group_id, kept, lambda: [documents.job_key(context.key, job_id, group.store) for job_id in first_attempts]
    )
    about = {**group.handle, "name": group.group_name, "tags": group.tags, "func_name": group.submit_fn_name}
    notifications.keep("batch", group_id, about, targets)  # who takes it over has no other way to know
    group_key = documents.job_key(context.key, group_id, context.store.url)
    pages = [
        (keys.group_order(group_id), order.to_bytes()),
        (keys.group_table(group_id), table_bytes),
        (keys.group_manifest(group_id), group.to_bytes(group_key)),
    ]
    put_many(context.store, pages)
    step("driver:manifest-written")
    return ChildLauncher(group, table, order, context.store, context.backend, context.placement, context.key, kept)


def _kept(shipment: Shipment, addresses: set[str], followed: Followed) -> dict[str, Any]:
    """Return what is kept beside the batch, for its owner only, so that another process can take it over."""
    context = shipment.context
    return {
        "pod": shipment.pod.to_json() if shipment.pod is not None else None,
        "captured": shipment.variables(),
        "cache_key": shipment.cache_key().hex(),
        "environ": dict(context.backend.environ),
        "keep_warm": shipment.options.keep_warm,
        "interpreter": shipment.interpreter or ("" if python_runtime.is_overlay() else python_runtime.own_python()),
        "addresses": sorted({context.store.url, *addresses}),
        **({"followed": base64.b64encode(followed.keys).decode()} if followed.after else {}),
    }


def _seconds_of_first(order: Order, group: Group, count: int, shipment: Shipment) -> float:
    """Return how long the first child is expected to compile, where the others shall wait for that; else 0.

    So it is where compiling was the larger part of the newest job, and the code has changed since then. Without a
    measurement nothing waits; a batch that follows others waits for those only.
    """
    context = shipment.context
    placement, key = context.placement, shipment.cache_key()
    at_once = min(count, group.settings.max_concurrent or count)
    is_slice = placement.kind != "cpu" or placement.hosts > 1
    if not key or at_once < 2 or order.after or not is_slice or (order.is_command and placement.hosts > 1):
        return 0.0
    requirements = shipment.pod.to_json() if shipment.pod is not None else None
    store, at = context.store, cache_entries.measurement_key(order)
    try:
        measured = documents.open_page(cache_entries.MEASUREMENT, store, at, key)
        if not measured.is_mostly_compiling or measured.code == cache_entries.code_of(order):
            return 0.0
        differs = store.entry(cache_entries.differs_key(order))
        if differs is not None and time.time() - differs.modified < _DIFFERS_SECONDS:
            return 0.0
        if not context.backend.can_hold(placement, requirements):
            return 0.0
    except KineticError:  # there is none, or it cannot be read
        return 0.0
    whole, part = seconds_text(measured.seconds), seconds_text(measured.compile_seconds)
    output.report(f"compiling took {part} of {whole} the last time: the first job compiles, and the others wait for it")
    return measured.compile_seconds


def submit(request: BatchRequest) -> BatchHandle:
    """Submit a batch.

    Without a limit and without retries everything is launched before this returns; otherwise a thread keeps launching
    while others are running, and keeps the interpreter alive until it is done.

    Raises:
        KineticError: Nothing was launched; or the batch is stored and could not be launched completely: then a note
            names the command that submits the rest.
    """
    with HandlerWatch(sys._getframe()) as watch:
        try:
            launcher, errors = _stored(request)
        except KeyboardInterrupt:
            raise submit_context.interrupted() from None
        group = launcher.group
        batch = handle_of_group(group)
        batch._submission_errors = errors
        batch._tracker = BatchTracker(group, launcher.store, launcher.backend)
        batch._table = launcher.table
        try:
            _begin(batch, launcher)
        except KeyboardInterrupt:
            raise tracebacks.interrupt(collection.report_detached(batch)) from None
        if watch.error is not None:  # which our code passed over
            with collection.detaching(batch):
                signal_handlers.check()
        return batch


def _begin(batch: BatchHandle, launcher: ChildLauncher) -> None:
    group = launcher.group
    try:
        held = control.take_lease(launcher.store, group.group_id, locate.group_key(group))
    except KineticError as error:
        error.add_note(driver.resume_hint(group.group_id))
        raise
    if held is None:  # another process saw the manifest and was faster
        raise BackendError(f"{group.group_id} is driven by another process", code="batch-driven")
    step("driver:leased")
    settings = group.settings
    at_once = settings.max_concurrent is None and settings.retries == 0
    watches = settings.fail_fast and settings.cancel_running_on_fail
    driver.start_driver(batch, launcher, held, here=at_once and not watches)
    output.report(f"submitted {group.group_id}: {count_text(len(batch.jobs) - len(batch._submission_errors), 'job')}")
    output.report(f"follow:   kinetic batch status {group.group_id}")
    output.report(f"cancel:   kinetic batch cancel {group.group_id}")
    if batch._submission_errors:
        collection.warn_of_submission_failures(batch)
