"""Submitting: from a call, options and where it goes to a job that runs somewhere else."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic import _hardware as hardware
from kinetic._backends.local import limits
from kinetic._backends.protocol import Launch
from kinetic._config import options as config_options
from kinetic._config import project_options, variables
from kinetic._config import target as settings
from kinetic._config.options import ResourceRequests
from kinetic._config.target import IN_CLUSTER
from kinetic._config.variables import read_variable
from kinetic._jobs import data_refs, environment, job_options, locate, option_sources, script_state, submit_context
from kinetic._jobs.submit_context import SubmitContext
from kinetic._output import terminal as output
from kinetic._output.format import count_text, seconds_text, size_text
from kinetic._project import root
from kinetic._stores import open_store, put_many
from kinetic._stores.protocol import CLOUDS, parse_address
from kinetic._wire import NamedTuple, digests, documents, folders, keys, loading, python_runtime, records
from kinetic._wire import order as wire_order
from kinetic._wire.failpoints import step
from kinetic._wire.order import Order
from kinetic.errors import DebugError, KineticError, OptionError, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._config.cluster import PodRequirements
    from kinetic._data.data import Data
    from kinetic._images.builders import RemoteBuilder
    from kinetic._jobs.after import Followed, Here
    from kinetic._jobs.data_refs import FoundData, HandedOver
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.job_options import Captured, Options
    from kinetic._jobs.pod_requirements import Unfinished
    from kinetic._project.archive import Shipped
    from kinetic._project.dependencies import Dependencies
    from kinetic._project.pickler import Call
    from kinetic._project.root import Plan
    from kinetic._wire.order import DataRef
    from kinetic._wire.records import JobRecord


_TIMEOUT = "KINETIC_DEBUG_WAIT_TIMEOUT"
_IGNORED_HERE = ("container_image", "base_image_repo", "zone", "project", "cluster", "namespace")


def announce(context: SubmitContext, options: Options) -> None:
    """Report once in a process where jobs run, what is emulated, and which options have no effect here."""
    if context.backend.is_here:
        ignored = [name for name in _IGNORED_HERE if getattr(options, name) is not None]
        ignored += ["spot"] if context.placement.spot else []  # of a CPU job, a note says it
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
    if strange := variables.unknown_variables(os.environ, options.capture_env_vars or ()):
        output.warn_once(variables.describe_unknown_variables(strange))
    for sentence in variables.describe_misread_switches(os.environ):
        output.warn_once(sentence)
    if wrong := _wrong_variable(os.environ):
        output.warn_once(wrong.what, why=wrong.why or "", next=wrong.next or "")


def _wrong_variable(environ: Mapping[str, str]) -> OptionError | None:
    """Return what is wrong with a variable that stops no job: the job runs as if it was not set."""
    try:
        output.check_level(environ)
        if environ.get("KINETIC_STALL_AFTER"):
            from kinetic._jobs import activity  # 2 ms; rarely set

            activity.stall_seconds(environ)
    except OptionError as error:
        return error
    return None


def debug_wait_seconds(options: Options, environ: Mapping[str, str]) -> float | None:
    """Return how long a job waits for a debugger, or None for one that does not."""
    if not options.debug:
        return None
    from kinetic._wire import inspection  # only for a job that is debugged

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


def submit_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    options: Options,
    context: SubmitContext,
) -> JobHandle:
    """Submit a call of a user's function."""
    from kinetic._project import pickler

    pickler.check_arguments(function, args, kwargs, name)
    kwargs = data_refs.with_defaults(function, args, kwargs)
    return submit(pickler.Call(function, args, kwargs, name), options, context)


_SLOW_SECONDS = 1.0  # packing that takes longer is reported
_FORCED_AT_ONCE = 3  # beside this thread; more gain nothing for the nine forced writes of a job
_UNDO_SECONDS = 6.0  # for a job that began and is asked to end: 5 s until it is killed


class Environment(NamedTuple):
    """Where a job of this machine finds packages."""

    interpreter: str = ""  # the Python of an environment of its own; "" for the client's
    lock: str = ""  # the key of the lock that it was built from
    dependencies: Dependencies | None = None  # what is installed in it; None in the client's


def environment_for(function: Callable[..., Any], plan: Plan, context: SubmitContext) -> Environment:
    """Return the environment that a job needs, built if need be."""
    if not context.backend.is_here or os.environ.get("KINETIC_LOCAL_ENV", "") in {"", "same"}:
        _warn_of_foreign_package()
        return Environment()
    from kinetic._images import image_choice, isolated_environment, lock_store
    from kinetic._jobs import pod_requirements

    isolated_environment.wanted(os.environ)  # rejects any other word
    base = option_sources.is_wanted("base_packages", plan.root, context.target.profile, os.environ)
    export = functools.partial(lock_store.exported, environ=os.environ)
    found = pod_requirements.find_dependencies(function, plan, base=base, export=export, environ=os.environ)
    backend = locate.local()
    kind = "gpu" if context.placement.kind == "gpu" and backend.limits.gpus else "cpu"  # others are emulated
    packages = image_choice.base_packages(kind, found.names) if base else ()
    output.report_once("; ".join([*found.notes[:1], *pod_requirements.base_note(packages, base=base)]))
    report_notes(found.notes[1:])
    found.check_python(python_runtime.python_version())
    with output.phase("preparing the environment", summary=False):  # what was built, and in what time, is reported
        built = isolated_environment.ready(
            found.lines,
            cache=backend.paths.environments,
            python=python_runtime.python_version(),
            say=output.report,
            store=context.store,
            environ=os.environ,
            project=str(plan.root),
            base=packages,
            source=found.source,
        )
    brought = image_choice.BROUGHT_BY_BASE if base else ()
    return Environment(str(built.python), built.lock, replace(found, brought=brought))


@functools.cache
def _warn_of_foreign_package() -> None:
    """Warn of another company's package that writes its files over ours."""
    folders = [folder for folder in sys.path if folder.endswith("-packages")]
    if found := python_runtime.foreign_distribution(folders):
        output.warn(
            f"this environment has another package whose import name is kinetic, too: {found}; the two overwrite each "
            f"other's files. Repair it: pip uninstall {python_runtime.FOREIGN_NAME}; pip install --force-reinstall "
            f"{python_runtime.NAME}"
        )


class Shipment(NamedTuple):
    """Everything that is settled before a job, or a batch, has a name."""

    plan: Plan  # the project that ships
    options: Options  # final: what the decorator left open is filled in
    context: SubmitContext
    captured: Captured  # the environment variables that are sent
    interpreter: str  # the Python of an isolated environment, or "" for this client's own
    by_value: tuple[str, ...]  # modules that the user wants by value
    pod: PodRequirements | None = None  # of a job on a cluster
    resources: ResourceRequests = ResourceRequests()
    lock: str = ""  # the key of the lock of its environment, on this machine or in its image
    unfinished: Unfinished | None = None  # what ``pod`` will be, while an image is being built

    def check(self) -> None:
        """Raise the error of an image that could not be built: what is packed meanwhile is not needed any more."""
        if self.unfinished is not None:
            self.unfinished.check()

    def finished(self) -> Shipment:
        """Wait until the image is there; called once everything is packed."""
        if self.unfinished is None:
            return self
        pod = self.unfinished.result()
        return self._replace(pod=pod, lock=pod.lock, unfinished=None)

    def order(self, shipped: Shipped, outputs: str, called: object, **own: Any) -> Order:
        """Make an order of what all jobs of this submission have in common, and of its own fields.

        ``outputs``: where outputs go, below the store, if the options do not say so. ``called``: the function.
        """
        context, named = self.context, _output_folder(self.options)
        return Order(
            manifest=shipped.manifest,
            packs=shipped.packs,
            plan=self.plan_page() | {"module": str(getattr(called, "__module__", ""))},
            script=root.script_of(self.plan),
            environment=tuple(self.captured.values),
            output_dir=named or wire_order.output_address(f"{context.store.url}/{outputs}"),
            accelerator=context.placement.name,
            hosts=context.placement.hosts,
            fingerprint=versions(),
            cpu=self.resources.cpu,
            memory_bytes=self.resources.memory_bytes,
            **own,
        )

    def recorded(self) -> dict[str, Any]:
        """Return what the records of this submission say besides the fields of a handle."""
        return {
            "spot": self.context.placement.spot,
            "machine": os.uname().nodename,
            "python": python_runtime.python_version(),
            **({"lock": self.lock} if self.lock else {}),
        }

    def variables(self) -> dict[str, str]:
        """Return the variables that jobs get and no store does."""
        captured = self.captured
        return {**captured.values, **({wire_order.WORDS_VARIABLE: captured.words} if captured.words else {})}

    def plan_page(self) -> dict[str, Any]:
        """Return the plan for the order, with logging and settings; a job in this environment also gets folders."""
        page = self.plan.to_json() | script_state.console_logging() | script_state.library_settings()
        if self.captured.words:
            page["words"] = True  # a job to which they do not come says so
        if root.script_of(self.plan) and (module := root.module_of_script()):
            page["main"] = module
        if (origin := wire_order.outside_of_a_copy(page["root"], os.environ)) != page["root"]:
            page["origin"] = origin
        from kinetic._project import modules  # the pickler has loaded it

        if self.context.settings is not None or self.interpreter:
            page["distributions"] = modules.own_distributions(self.plan)
        else:
            added = {"python_path": modules.relative_path(self.plan), "libraries": modules.added_libraries(self.plan)}
            page |= {name: folders for name, folders in added.items() if folders}
        return page

    def cache_key(self) -> bytes:
        """Return the key of the compile cache; empty where that is off."""
        if not option_sources.is_wanted("compile_cache", self.plan.root, self.context.target.profile, os.environ):
            return b""
        return documents.cache_key(self.context.key, self.context.store.url)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """End the build of the image if what runs inside fails, or is interrupted."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                output.leave_line()
            if self.unfinished is not None:
                self.unfinished.give_up()
            raise

    def ship_data(
        self, found: FoundData, volumes: Mapping[str, Data] | None, followed: Followed | None
    ) -> tuple[DataRef, ...]:
        """Bring data into the store; return what the order says of it: arguments by their numbers, then volumes."""
        if not found.data and not volumes:
            return ()
        from kinetic._data import ship  # hashing, for calls that read data

        context, cache = self.context, settings.kinetic_home(os.environ) / "cache"
        is_here, awaited = context.backend.is_here, [*followed.outputs.values()] if followed is not None else ()
        return ship.ship_all(found.data, volumes or {}, context.store, cache=cache, is_here=is_here, awaited=awaited)

    def here(self) -> Here:
        """Return where jobs of this submission run, for what they follow."""
        from kinetic._jobs.after import Here  # only for jobs that follow others

        return Here(self.context.store.url, self.shared_fields(""), self.context.backend.is_here)

    def shared_fields(self, function: str, command: Sequence[str] = ()) -> dict[str, Any]:
        """Return what the records of all jobs of this submission have in common; see ``record.make_record``."""
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
            # For people; the words that run need not be UTF-8, and are in the arguments of the call.
            **({"command": [word.encode(errors="backslashreplace").decode() for word in command]} if command else {}),
            "created_at": keys.format_utc(time.time()),
            "store": context.store.url,
            "context": target.context.value or None,
            "host": locate.machine_of(context.backend) or None,
            "key_id": context.key_id,
            locate.LONGEST_NAME: locate.longest_name(context.backend, context.placement.hosts),
        }


def resolve(
    function: Callable[..., Any], options: Options, context: SubmitContext, *, plan: Plan | None = None
) -> Shipment:
    """Find the project of a function unless it is given, fill in its options, and begin to make its environment ready.

    What follows runs in ``Shipment.building``, and ends with ``Shipment.finished``.
    """
    plan = plan or root.find_root(function)
    options = option_sources.applied(options, plan.root, context.target.profile, os.environ)
    if options.placement() != context.placement:
        context = submit_context.prepare(options)  # the backend was chosen before the project was read
    if not context.backend.is_here:
        from kinetic._jobs import job_cost  # only for clusters

        options = job_cost.limited(options, context.placement, context.target, plan.root, os.environ)
    announce(context, options)
    _check_outputs(options, context)
    _check_volumes(options, context)
    captured = job_options.capture(options.capture_env_vars or (), os.environ)
    by_value = tuple(project_options.read_project_options(plan.root).by_value)
    captured = captured._replace(words=script_state.command_line(function, plan, by_value))
    if missing := job_options.unset(options.capture_env_vars or (), os.environ):
        what = "it" if len(missing) == 1 else "them"
        unset = f"{', '.join(missing)} {'is' if what == 'it' else 'are'} not set here"
        output.warn_once(f"capture_env_vars: {unset}, so the job will not have {what}")
    interpreter, lock, dependencies = environment_for(function, plan, context)
    if not context.backend.is_here or interpreter or importlib.util.find_spec("jax") is not None:
        script_state.report_keras(captured.values)  # else jobs have it as it is here
    unfinished = None
    if context.settings is not None:
        from kinetic._jobs import pod_requirements  # only for clusters

        unfinished = pod_requirements.requirements_of(
            function,
            plan,
            options,
            context.placement,
            store=context.store,
            settings=context.settings,
            profile=context.target.profile,
            environ=os.environ,
            remotes=functools.partial(_remote_builders, options, context),
        )
    if unfinished is not None:
        dependencies = unfinished.dependencies
    if context.backend.is_here and not interpreter:
        plan = replace(plan, same_python=True)
    else:
        plan = _for_elsewhere(function, plan, dependencies)
    asked = config_options.read_resources(options.resources or {})
    return Shipment(
        plan, options, context, captured, interpreter, by_value, resources=asked, lock=lock, unfinished=unfinished
    )


def _for_elsewhere(function: object, plan: Plan, found: Dependencies | None) -> Plan:
    """Return the plan for a job in another environment, and warn of what it will lack before it waits for a machine."""
    from kinetic._project import missing_packages, modules, other_projects  # only for such jobs

    for value in [*getattr(root.innermost(function), "__globals__", {}).values()]:
        modules.imported(value)  # of other projects: what is imported is looked at
    plan = other_projects.with_them(plan, found.projects if found is not None else ())
    if plan.beside:
        output.report_once(f"sent beside the project: {', '.join(folder for _, folder in plan.beside)}")
    if found is not None and (warning := missing_packages.warning(function, plan, found)) is not None:
        output.warn_once(*warning)
    return plan


def _output_folder(options: Options) -> str:
    """Return the output folder that the user chose, "" for none; of a bucket, the one spelling of its address."""
    named = wire_order.resolve_output_dir(options.output_dir, os.environ)
    return parse_address(named).url if named.startswith(CLOUDS) else named


def _check_outputs(options: Options, context: SubmitContext) -> None:
    """Reject an output folder that a job could not write, or that would be removed with its pod; warn of its bucket."""
    outputs, is_here = _output_folder(options), context.backend.is_here
    if is_here and (why := wire_order.why_not_made(outputs)):
        raise OptionError(
            f"the output folder {outputs} cannot be made",
            why=why,
            next="name another one in output_dir, or leave it out",
        )
    is_shared = is_here or read_variable("KINETIC_SHARED_STORE", os.environ) == "1"
    folder = wire_order.local_folder(outputs)
    volume = context.settings.volume_at(folder) if context.settings is not None else ""
    if folder and not is_shared and not volume:
        raise OptionError(
            f"a job on a cluster cannot leave its outputs in {outputs}",
            why="the folder would be in its pod, and be removed with it",
            next=f"output_dir={context.store.url + '/my-outputs'!r}, or leave it out",
            code="output-elsewhere",
        )
    if is_here and outputs.startswith(CLOUDS) and not outputs.startswith(f"{context.store.url}/"):
        _look_at_outputs(outputs)


@functools.cache
def _look_at_outputs(address: str) -> None:
    """Warn, once in a process, of a bucket that cannot be used now: a job finds that out after its work."""
    try:
        with submit_context.phase("looking at the output folder", is_remote=True):
            next(open_store(address).entries(""), None)
    except KineticError as error:
        what = f"files that the job writes may not get to {address}, which cannot be looked at: {error.what}"
        output.warn(what, why=error.why or "", next=error.next or "")


def _check_volumes(options: Options, context: SubmitContext) -> None:
    """Reject a volume inside a claim of the cluster: pods of several jobs would replace each other's link there."""
    claims = context.settings.volume_claims if context.settings is not None else ()
    for path in (each.rstrip("/") for each in options.volumes or ()):
        for each in claims:
            if f"{path}/".startswith(f"{each.path}/") or each.path.startswith(f"{path}/"):
                raise OptionError(
                    f"a volume cannot be mounted at {path!r}",
                    why=f"KINETIC_VOLUME_CLAIMS has {each.claim} at {each.path}, which other jobs see as well",
                    next="choose a path outside of it, or pass the data as an argument",
                )


def _remote_builders(options: Options, context: SubmitContext) -> list[RemoteBuilder]:
    from kinetic._jobs import image_job  # only where an image must be built

    return image_job.remote_builders(submit, options, context.target, context.store)


def ship_project(shipment: Shipment, data: Sequence[Path], function: object) -> Shipped:
    """Bring the project into the store, without what ships as data, and report what the user should know of it."""
    with loading():
        from kinetic._project import archive, modules

    begun = time.monotonic()
    plan, home = shipment.plan, settings.kinetic_home(os.environ)
    name = getattr(function, "__module__", None) or ""
    if name != "__main__" and (file := getattr(sys.modules.get(name), "__file__", None)):  # the job imports it
        data = [path for path in data if not f"{os.path.realpath(file)}/".startswith(f"{os.path.realpath(path)}/")]
    apart = environment.folders_not_sent(plan.folders(), shipment.options.output_dir, shipment.context.store)
    shipped = archive.ship(plan, shipment.context.store, cache=home / "cache", exclude=(*data, *apart))
    took = time.monotonic() - begun
    is_sent = shipment.context.store.local is None and shipped.sent_bytes
    if took > _SLOW_SECONDS or is_sent:
        sent = f": {size_text(shipped.sent_bytes)} sent" if is_sent else ""
        packed = f"{count_text(shipped.files, 'file')}, {size_text(shipped.bytes)}"
        output.report(f"packed {packed}, in {seconds_text(took)}{sent}")
    shipment.check()
    report_notes(shipped.notes)
    if stale := modules.stale_modules(plan):
        named = ", ".join(stale[:5])
        output.report_once(f"edited since it was imported here: {named}; the job runs what is on disk now")
    return shipped


def report_notes(notes: Sequence[str]) -> None:
    """Report each sentence once."""
    for note in notes:
        output.report_once(note)


def versions() -> dict[str, str]:
    """Return the versions on this side: Python, cloudpickle, kinetic, platform."""
    from kinetic._project import pickler
    from kinetic._version import __version__

    return {
        "python": python_runtime.python_version(),
        "cloudpickle": pickler.pickler_version(),
        "kinetic": __version__,
        "platform": sys.platform,
    }


def submit(
    call: Call,
    options: Options,
    context: SubmitContext,
    *,
    plan: Plan | None = None,
    secrets: Mapping[str, str] | None = None,
    job_id: str = "",
) -> JobHandle:
    """Pack a call, write its order and record, and launch it; return once the job no longer needs this process.

    ``plan``, ``secrets`` and ``job_id`` are those of jobs of our own: their project, more variables, and their id.
    """
    from kinetic._jobs.handle import handle_of

    shipment = resolve(call.function, options, context, plan=plan)
    if secrets:
        captured = shipment.captured
        shipment = shipment._replace(captured=captured._replace(values={**captured.values, **secrets}))
    if not context.backend.is_here:
        with shipment.building():
            return handle_of(_send(call, shipment, job_id))
    from kinetic._stores import parallel  # 1 ms, with threads' queues

    # A supervisor of this machine begins a job while we force it to the disk: what has been accepted is there.
    with shipment.building(), folders.forced_later(parallel.ThreadPool(_FORCED_AT_ONCE)):
        return handle_of(_send(call, shipment, job_id))


def _send(call: Call, shipment: Shipment, job_id: str) -> JobRecord:
    options, context = shipment.options, shipment.context
    targets: tuple[str, ...] = ()
    if options.on_done:
        from kinetic._jobs import notifications  # only for jobs that have some

        targets = notifications.resolve(options.on_done, os.environ)
    check_debug(options, context, shipment.interpreter)
    followed: Followed | None = None
    job: JobRecord | None = None
    job_id = job_id or keys.new_job_id(hardware.slug(options.accelerator), options.name or call.name)
    context.backend.begin(job_id)
    step("client:begun")
    try:
        with output.phase("packing", summary=False):  # ship_project says more than how long it took
            order, found, handed = _pack(call, shipment, job_id)
        if options.after or handed.handles:
            from kinetic._jobs import after  # only for jobs that follow others

            followed = after.resolve(handed, options.after, shipment.here())
            order = replace(order, after=followed.after)
            after.refuse_early(followed, found.copied_paths(options.volumes), context.store)
        data = shipment.ship_data(found, options.volumes, followed)
        order = replace(order, data=data)
        if data:
            step("client:data-sent")
        step("client:packed")
        shipment = shipment.finished()
        begun = time.monotonic()
        with submit_context.phase("uploading", is_remote=context.store.local is None):
            written = order.to_bytes()
            job = _write(order, written, call, shipment)
            if followed is not None:
                after.follow(followed, context.store, job_id, None if context.backend.is_here else job)
        if (took := time.monotonic() - begun) > _SLOW_SECONDS:
            output.report(f"uploaded the order, {size_text(len(written))}, in {seconds_text(took)}")
        if targets:
            notifications.keep("job", job_id, vars(job), targets)
        _launch(order, digests.of_bytes(written), shipment, followed)
        if followed is not None and not context.backend.is_here:
            _see_who_starts(job_id, followed, shipment)
        _force()
        step("client:launched")
    except BaseException as error:
        left = _remove(job_id, context, followed, targets=targets)
        if left and job is not None:
            error.add_note(f"{job_id} could not be removed: {left}. Later: kinetic jobs cleanup {job_id}")
        context.backend.finish_submitting(job_id)
        raise
    report_notes(tuple(shipment.captured.notes))
    return job


def _see_who_starts(job_id: str, followed: Followed, shipment: Shipment) -> None:
    """Start a job on a cluster whose predecessors have ended meanwhile; of one that waits, say who will start it."""
    from kinetic._jobs import after  # as above

    context = shipment.context
    if not after.check(followed, context.store):
        context.backend.release([job_id])  # perhaps nobody else starts it
    elif not context.backend.can_hold(context.placement, shipment.pod.to_json() if shipment.pod else None):
        output.report_once(
            "pods there may not start jobs that follow theirs: once the jobs before it have ended, this one starts "
            "when a process looks at it, e.g. with kinetic jobs list; docs/chained-jobs.md has the Role"
        )


def _remove(job_id: str, context: SubmitContext, followed: Followed | None, *, targets: Sequence[str]) -> str:
    """Remove what a submission that failed has made; return what could not be done: it must not hide what failed."""
    try:
        context.backend.stop([job_id], wait=_UNDO_SECONDS)  # it may have been claimed already
        context.backend.remove([job_id])
        context.store.delete(keys.job(job_id))
        if targets:
            from kinetic._jobs import notifications  # as above

            notifications.forget(job_id)
        if followed is not None:
            from kinetic._jobs import after  # as above

            after.withdraw(followed, context.store, job_id)
    except (KineticError, OSError) as error:
        return error.what if isinstance(error, KineticError) else str(error)
    return ""


def _force() -> None:
    try:
        folders.force()
    except OSError as error:
        raise StoreError(
            "the disk did not take the job",
            why=str(error),
            next="free some space there, or point KINETIC_HOME at a folder on another disk, and submit again",
        ) from error


def _pack(call: Call, shipment: Shipment, job_id: str) -> tuple[Order, data_refs.FoundData, HandedOver]:
    """Bring the call and then its project into the store; return the order, and the data and jobs it refers to."""
    from kinetic._project import pickler

    options, context = shipment.options, shipment.context
    found, handed = data_refs.FoundData(), data_refs.HandedOver()
    payload = pickler.pack_call(
        call,
        shipment.plan,
        context.store,
        (keys.function(job_id), keys.arguments(job_id)),
        by_value=shipment.by_value,
        swap=found,
        swap_arguments=handed.swap(found),
    )
    report_notes(payload.notes)
    found.check(call.args, call.kwargs)
    shipment.check()
    shipped = ship_project(shipment, found.local_paths(options.volumes), call.function)
    order = shipment.order(
        shipped,
        keys.outputs(job_id),
        call.function,
        job_id=job_id,
        function_name=call.name,
        function=payload.function,
        arguments=payload.arguments,
        deadline=None if options.debug else options.deadline,
        debug=debug_wait_seconds(options, os.environ),
        retries=0 if options.debug else options.retries or 0,
        is_command=bool(call.command),
    )
    return order, found, handed


def _write(order: Order, written: bytes, call: Call, shipment: Shipment) -> JobRecord:
    """Write order and record: from here on the job can be found."""
    options, context = shipment.options, shipment.context
    job_id = order.job_id
    shared = shipment.shared_fields(call.name, call.command)
    own: dict[str, Any] = {"name": options.name, "tags": options.tags, "debug": options.debug}
    own |= {"output_dir": order.output_dir, "after": [each.job_id for each in order.after] or None}
    job = locate.make_record(shared, job_id, **own)
    more = {**shipment.recorded(), "created": time.time(), "order_sha256": digests.of_bytes(written)}
    job_key = documents.job_key(context.key, job_id, context.store.url)
    page = locate.seal_record(records.plain(job), more, job_key)
    put_many(context.store, [(keys.order(job_id), written), (keys.record(job_id), page)])
    step("client:record-written")
    return job


def _launch(order: Order, order_sha256: str, shipment: Shipment, followed: Followed | None) -> None:
    context, pod, owner = shipment.context, shipment.pod, ""
    if pod is not None:
        from kinetic._config import cluster  # only for clusters

        owner = cluster.owner(os.environ)
    job_key = documents.job_key(context.key, order.job_id, context.store.url)
    token = {}
    if order.debug is not None:
        from kinetic._wire import inspection  # as above

        token = {inspection.TOKEN_VARIABLE: inspection.token(job_key)}
    launch = Launch(
        order=order,
        order_sha256=order_sha256,
        store_url=context.store.url,
        placement=context.placement,
        key=job_key,
        key_id=context.key_id,
        captured={**shipment.variables(), **token},
        cache_key=shipment.cache_key(),
        interpreter=shipment.interpreter,
        requirements=pod.to_json() if pod is not None else None,
        owner=owner,
        followed=followed.keys if followed is not None else b"",
    )
    if not context.backend.is_here and pod is not None:
        from kinetic._jobs import warm_assignment  # only for clusters

        backend: Any = context.backend  # of the only kind with containers
        keep = shipment.options.keep_warm
        if warm_assignment.is_wanted(keep):
            place = warm_assignment.Place(backend, context.store, context.key, folders.read_umask())
            if warm_assignment.launch(launch, place, float(keep or 0.0)):
                return
    context.backend.launch([launch])
