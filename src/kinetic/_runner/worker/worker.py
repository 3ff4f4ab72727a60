"""The worker: one process that rebuilds the project, calls the function and delivers what it returned or raised."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import io
import os
import signal
import sys
import threading
import time
from _io import _BufferedIOBase  # that of ``io`` asks metaclasses, which are the user's code
from collections.abc import Callable, Collection, Iterator
from os import _exit  # user code may put something else in its place
from pathlib import Path
from time import monotonic as _monotonic
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, worker_process
from kinetic._runner.supervisor.verdicts import ReportWriter, end_after
from kinetic._runner.worker import function_call, import_hooks, process_setup, workspace
from kinetic._runner.worker.function_call import Failure, Value
from kinetic._runner.worker.import_hooks import JaxProcess
from kinetic._runner.worker.workspace import Left, Unpacked
from kinetic._stores import connect, open_store
from kinetic._wire import folders, outcomes, python_runtime, references
from kinetic._wire import order as wire_order
from kinetic._wire.failpoints import step
from kinetic._wire.order import Artifact, Child, DataRef, Order
from kinetic._wire.task import (
    COMPILERS,
    DATA,
    DEBUGGER,
    DEVICES,
    ENVIRONMENT,
    EXECUTE,
    EXTRACT,
    INSTALL,
    SERIALIZE,
    UNPICKLE,
    VERIFICATION,
    Task,
)
from kinetic.errors import IntegrityError, KineticError

if TYPE_CHECKING:
    from kinetic._runner.worker.compile_cache import CompileCache
    from kinetic._stores.protocol import Store

T = TypeVar("T")
FILES_NAMED = 20
_OURS = frozenset({DATA, DEVICES, EXTRACT, INSTALL, VERIFICATION})  # phases in which no code of the user runs
_SOFTWARE = 70  # EX_SOFTWARE: only if everything below fails
_FEW_MODULES = 40  # new ones, below which no process imports them for the next job: a twentieth of a second
_POOL_SECONDS = 1.0  # for workers of a pool that have nothing to do, to end
_UNHEARD_SECONDS = 5.0  # for exit handlers, if the supervisor cannot know that they run; it gives as much


def main(words: list[str]) -> NoReturn:
    """Be a worker in an interpreter of its own: ``TASK REPORT``, two descriptors; see ``exec_worker``."""
    descriptor, report = (int(word) for word in words)
    with os.fdopen(descriptor, "rb") as file:
        task = worker_process.task_from(file.read())
    os.set_inheritable(report, False)
    title = processes.ProcessTitle(processes.load_libc())  # exec has reset it
    title.set(task.job_id, f"worker {task.folder}")
    work(task, report)


def preload() -> None:
    """Do in a supervisor, once, what each of its workers would have to do."""
    worker_process.preload()
    function_call.pickler_class()
    for kind in (Order, Artifact, Child, Value, JaxProcess):
        dataclasses.fields(kind)  # it is made now


def wait_for_a_task(last: Task, tasks: worker_process.Tasks, report: int) -> NoReturn:
    """Be a worker that knows nothing of its task, and do what comes before any; see ``worker_process.EarlyWorker``.

    ``last``: another task; the environment is mostly the same.
    """
    try:
        process_setup.prepare()
        process_setup.apply_environment(last.environment, last.umask)
        process_setup.keep_flushing()
        title = processes.ProcessTitle(processes.load_libc())
        if (task := next(tasks, None)) is not None:
            tasks.close()
            title.set(task.job_id, f"worker {task.folder}")
            work(task, report, is_ready=True)
    finally:
        _exit(_SOFTWARE)


def get_ready(tasks: worker_process.Tasks, report: int, *, store_url: str = "") -> NoReturn:
    """Be a worker that hears first only where its order is, and fetch that; see ``worker_process.EarlyWorker``.

    ``store_url``: of a warm pod, where no task has the right to mount, so threads may start before any is known.
    """
    found: list[function_call.Fetched] = []
    try:
        process_setup.prepare()
        connect(store_url)
        title = processes.ProcessTitle(processes.load_libc())
        if (task := next(tasks, None)) is not None:
            title.set(task.job_id, f"worker {task.folder}")
            process_setup.redirect(task.log)
            process_setup.keep_flushing()
            fetching = None
            if task.placed is None:  # mounts want no threads, and what opens a store in the cloud has some
                with contextlib.suppress(Exception):  # it is fetched again when there is somewhere to report an error
                    fetching = _begin_to_fetch(task, found)
            worker_process.preload()
            if fetching is not None:
                fetching.join()
            if (task := next(tasks, None)) is not None:
                tasks.close()
                work(task, report, found, is_ready=True)
    finally:
        _exit(_SOFTWARE)


def _begin_to_fetch(task: Task, found: list[function_call.Fetched]) -> threading.Thread | None:
    store = open_store(task.store_url)

    def fetch() -> None:
        with contextlib.suppress(Exception):  # as above
            found.append(function_call.fetch(store, task))

    return python_runtime.start_thread(fetch, "kinetic-order") if store.local is None else None


def work(
    task: Task, pipe: int, fetched: list[function_call.Fetched] | None = None, *, is_ready: bool = False
) -> NoReturn:
    """Carry out one order in this process, which ends here and never returns to its caller.

    Args:
        task: The order's, complete.
        pipe: Our end of the report.
        fetched: What was fetched already; it is taken out, since nothing needs it while the function runs.
        is_ready: Whether this process was prepared before its task was known.
    """
    code = _SOFTWARE
    try:
        report, body = ReportWriter(pipe, task.word), function_call.BodyFile(task.body)
        if task.pod is not None and task.pod.warm:
            processes.hide_memory(processes.load_libc(), on=False)  # what it was forked from is hidden
        process_setup.redirect(task.log)
        if not is_ready:
            process_setup.prepare()
        process_setup.apply_environment(task.environment, task.umask)
        if (preloaded := _preloaded()) is not None:
            if task.pod is None and preloaded.trace.changed_file():
                worker_process.exec_worker(task, pipe)
            preloaded.hidden.install()
        if ":" in task.coordinator:
            _name_meeting_point(task)
        os.environ["KINETIC_PROGRESS_FILE"] = str(task.progress)  # see _wire/progress.py, which few jobs load
        os.environ.setdefault("PYTHONUNBUFFERED", "1")  # of interpreters that the function starts
        if not is_ready:
            process_setup.keep_flushing()  # a thread that waits; before any code of the user's runs
        process_setup.open_dump_file(task)
        step("worker:begun")
        code = _run(task, report, body, fetched or [])
        _note_imports(task)
        _run_exit_handlers()
        step("worker:leaving")
        report.leave()
    except BaseException as error:  # noqa: BLE001 - nothing may reach the supervisor's frames below this fork
        _report_error(error, report)
    finally:
        try:
            process_setup.flush()
        finally:
            _exit(code)


def _run(task: Task, report: ReportWriter, body: function_call.BodyFile, fetched: list[function_call.Fetched]) -> int:
    times: dict[str, float] = {}
    function_call.pickler_class()
    references.is_opening_call = True
    try:
        order, unpacked, call = _prepare(task, report, times, fetched)
    except BaseException as error:  # noqa: BLE001 - whatever happens in a phase is reported with its name
        _end_a_forked_child(report, function_call.failure_of(error))
        failed = _phase_failed(error, report.phase, times)
        report.done(failed)
        process_setup.write_to_log(failed["error"]["traceback"] or f"kinetic: {error}\n")
        return 1
    _end_a_forked_child(report)  # of a module that forks while it is imported
    references.is_opening_call = False
    report.enter(EXECUTE)
    _note_the_begin(task)
    step("worker:calling")
    begun = _monotonic()
    ended = function_call.call_function(*call)  # never raises
    times[EXECUTE] = round(_monotonic() - begun, 6)
    _end_a_forked_child(report, ended)
    try:
        process_setup.restore_limits()
        if "kinetic._batches.driver" in sys.modules:
            sys.modules["kinetic._batches.driver"].finish_in_a_job()
        if "kinetic._wire.progress" in sys.modules:
            sys.modules["kinetic._wire.progress"].flush()
        step("worker:called")
        final = _deliver(report, body, ended, times)
        _end_a_forked_child(report)  # of a value that forks while it is pickled
        left = _files_left(task, order, unpacked, failed=final["status"] != outcomes.SUCCEEDED)
    except BaseException as error:  # noqa: BLE001 - a handler of a signal: the function has ended, and so has this
        final, left = _interrupted(error, times), []
    process_setup.flush()
    exited = {"exited": True} if getattr(ended, "exited", False) else {}
    code = 0 if final["status"] == outcomes.SUCCEEDED else 1
    if not report.done({**final, **exited, "files": left, "phases": times}):
        end_after(_UNHEARD_SECONDS, code)  # the supervisor does not know that only exit handlers are left
    step("worker:told")
    if isinstance(ended, Failure) and ended.cause == "exception":
        _call_excepthook(ended.exception)
    for finish in _at_the_end:
        with contextlib.suppress(Exception):  # the value is safe, and so it stays
            finish(succeeded=final["status"] == outcomes.SUCCEEDED)
    del ended  # an exception holds this frame: what its other frames have open is closed now, and not in a circle
    return code


def _call_excepthook(error: BaseException) -> None:
    """Call what has taken the place of ``sys.excepthook``: trackers such as W&B note there that the run has failed.

    What it prints is left out, since the log has the traceback. A debugger would stop there, with too little time.
    """
    if sys.excepthook is not sys.__excepthook__ and "pydevd" not in sys.modules:
        trace = error.__traceback__
        with contextlib.suppress(BaseException), contextlib.redirect_stderr(io.StringIO()):
            sys.excepthook(type(error), error, trace and trace.tb_next)  # the first frame is ours


def _note_the_begin(task: Task) -> None:
    """Make the file that says that the function begins: one more name of the log, since a new file takes longer."""
    try:
        os.link(task.log, task.began)
    except OSError:  # it is there, or there are no hard links here
        with contextlib.suppress(OSError):  # a full disk: the function may still be able to run
            os.close(os.open(task.began, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _prepare(
    task: Task, report: ReportWriter, times: dict[str, float], fetched: list[function_call.Fetched]
) -> tuple[Order, Any, tuple[Any, Any, Any]]:
    """Do everything that comes before the call, phase by phase."""

    @contextlib.contextmanager
    def phase(name: str) -> Iterator[None]:
        report.enter(name)
        begun = _monotonic()
        try:
            yield
        finally:
            times[name] = round(_monotonic() - begun, 6)

    if task.kind in {"gpu", "tpu"}:
        from kinetic._runner.pod import container  # in pods only

        report.enter(DEVICES)
        container.check_accelerator(task.kind, task.chips, required=task.require_accelerator)
    mounts = _mount(task, report)  # before the store is opened: one in the cloud has threads, and mounts want none
    store = open_store(task.store_url)
    with phase(VERIFICATION):
        fetch = functools.partial(function_call.fetch, store, task)
        order, function, arguments, last = fetched.pop() if fetched else _reach(store, task, fetch)
    step("worker:verified")
    if task.requirements is not None:
        with phase(INSTALL):
            _install(task, store, task.requirements)
    with phase(EXTRACT):
        unpacked = _reach(store, task, lambda: _unpack(task, store, order, last, report))
    step("worker:unpacked")
    with phase(ENVIRONMENT):
        process_setup.enter_workspace(task.folder, order.plan, task.runner)
        if task.is_in_a_pod:  # on the client's machine every module is there
            import_hooks.install_stand_ins(task.runner)
        script = getattr(process_setup.become_main(order.script, task.folder, order.plan), "__file__", None)
        _make_output_dir(task, order)
        hooks = _hook_imports(task, order, store)
        _measure_lines(task, order)
    if order.data:
        with phase(DATA):
            references.set_data_paths(_provide(task, order, mounts))
        step("worker:data-ready")
    if task.values is not None:
        from kinetic._runner.supervisor import predecessors  # only a job that follows others

        references.set_results(predecessors.opener(store, task.values, _load_value))
    moved = _relocating_unpickler(task, order)
    _watch_variables(task, report, hooks)
    with phase(UNPICKLE):
        call = function_call.open_payload(function, arguments, moved=moved)
        process_setup.complete_main(script)
        process_setup.continue_the_script(order.plan)
    step("worker:unpickled")
    if order.debug is not None:
        with phase(DEBUGGER):
            _wait_for_debugger(task, order, store, call[0])
    return order, unpacked, call


def _make_output_dir(task: Task, order: Order) -> None:
    """Make the folder for checkpoints, and with it the output folder above it, or what stands for an address here."""
    wire_order.make_output_dir(wire_order.checkpoints_of(order))
    if "://" in order.output_dir:
        from kinetic._runner.supervisor import output_files  # on this machine it is a folder

        output_files.prepare(task, process_setup.write_to_log)


def _reach(store: Store, task: Task, fetch: Callable[[], T]) -> T:
    """Fetch something; on a machine as patiently as its supervisor, since a pod is started again."""
    if store.local is not None or task.is_in_a_pod:
        return fetch()
    said: list[None] = []

    def say(error: Exception) -> None:
        if not said:
            process_setup.write_to_log(f"kinetic: the job waits for its store: {error}\n")
            said.append(None)

    def wait(seconds: float) -> bool:
        time.sleep(seconds)
        return False

    return attempts.keep_trying(fetch, attempts.TRANSIENT_ERRORS, wait=wait, say=say)


def _relocating_unpickler(task: Task, order: Order) -> Callable[[bytes], Any] | None:
    """Return what opens the call of a job with a debugger, which finds breakpoints by file."""
    if order.debug is None:
        return None
    from kinetic._runner.worker import debug_server  # as above

    return debug_server.relocating_unpickler(order.plan, task.folder)


def _wait_for_debugger(task: Task, order: Order, store: Store, function: Callable[..., Any]) -> None:
    from kinetic._runner.worker import debug_server  # as above

    before = dict(os.environ)
    debug_server.wait(task, order, store, function)
    if (preloaded := _preloaded()) is not None:
        preloaded.hidden.accept(before)


def _load_value(data: bytes) -> Any:
    process_setup.complete_main(None)  # of the function and of the values before: a value finds the same classes
    return function_call.load_value(data)


def _unpack(task: Task, store: Store, order: Order, last: bytes, report: ReportWriter) -> Unpacked | None:
    if not order.manifest:
        task.folder.mkdir(parents=True, exist_ok=True)
        if task.workspace:
            report.unpacked({})
        return None
    function_call.show_files_of_the_client(order, task.folder)
    found = workspace.unpack(
        store, order.manifest, order.packs, task.folder, last, folder=task.workspace, left=Left.of(task)
    )
    if task.workspace:
        report.unpacked(found.left._asdict())
    return found


def _install(task: Task, store: Store, requirements: dict[str, Any]) -> None:
    """Install what the job needs, in pods only; a warm pod keeps it."""
    if task.pod is not None and task.pod.warm:
        from kinetic._runner.pod import kept_packages  # most pods have one job

        kept_packages.provide(store, requirements, task.folder.parent)
    else:
        from kinetic._runner.pod import install  # of many, all is in the image

        install.install_requirements(store, requirements, task.folder.parent)


_at_the_end: list[Callable[..., None]] = []  # what is done when the function has ended, and its value is safe


def _hook_imports(task: Task, order: Order, store: Store) -> import_hooks.ImportHooks | None:
    """Let an import of JAX, or of another library that compiles, bring what belongs to it."""

    def begin() -> CompileCache | None:
        try:
            from kinetic._runner.worker import compile_cache  # only jobs that compile

            return compile_cache.CompileCache(task, order.accelerator, store, process_setup.write_to_log, order)
        except Exception as error:  # noqa: BLE001 - the job compiles
            process_setup.write_to_log(f"kinetic: there is no compile cache: {type(error).__name__}: {error}\n")
            return None

    if task.is_command:
        if task.cache_key:
            from kinetic._runner.worker import command_cache  # only commands

            _at_the_end.append(command_cache.CommandCache(task, begin).finish)
        return None  # it imports nothing here
    process = import_hooks.JaxProcess(task.host, task.hosts, task.coordinator)
    hooks = import_hooks.ImportHooks(process, COMPILERS if task.cache_key else {}, begin)
    hooks.install()
    _at_the_end.append(hooks.finish)
    return hooks


def _measure_lines(task: Task, order: Order) -> None:
    """Measure which lines the job runs where the client asks for it, which can read a file of this machine."""
    if task.is_in_a_pod or not os.environ.keys() & worker_process.OF_COVERAGE:
        return
    from kinetic._runner.worker import code_coverage  # only in tests

    try:
        here, parts = str(order.plan.get("root") or ""), task.folder.with_name(f"{task.folder.name}-coverage")
        measured = code_coverage.CodeCoverage(os.environ, function_call.copies, here, parts, task.runner)
        _at_the_end.append(measured.finish)
    except Exception as error:  # noqa: BLE001 - the job runs
        process_setup.write_to_log(f"kinetic: coverage.py measures nothing here: {type(error).__name__}: {error}\n")


def _name_meeting_point(task: Task) -> None:
    """Set the variables by which launchers of PyTorch on several machines find each other, beside JAX's port."""
    address, _, port = task.coordinator.rpartition(":")
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(int(port) + 1), "NODE_RANK": str(task.host)}
    for name, value in found.items():
        os.environ.setdefault(name, value)


def _preloaded() -> Any:
    """Return ``preloaded_modules`` if this process was forked from one that has imported libraries, else None."""
    found = sys.modules.get("kinetic._runner.worker.preloaded_modules")
    return found if found is not None and found.hidden.groups else None


_watch: Any = None  # a VariableWatch, in a process that has imported no library


def _watch_variables(task: Task, report: ReportWriter, hooks: import_hooks.ImportHooks | None) -> None:
    """Let a task that changes a variable before it imports a library not have one that was imported without that."""
    global _watch  # noqa: PLW0603 - of this process
    if hooks is not None and (preloaded := _preloaded()) is not None:
        preloaded.hidden.watch(functools.partial(_begin_again, task, report), hooks.catch_up)
    elif hooks is not None and _may_be_preloaded(task):
        from kinetic._runner.worker import preloaded_modules  # not in most pods

        _watch = preloaded_modules.VariableWatch().install()
        hooks.accept = _watch.accept


def _may_be_preloaded(task: Task) -> bool:
    """Return whether the next job may be forked from a process that has imported what this one imports."""
    return task.pod.warm != "" if task.pod is not None else task.hosts == 1


def _note_imports(task: Task) -> None:
    if _may_be_preloaded(task) and not task.is_command:
        from kinetic._runner.worker import preloaded_modules  # as above

        own = (str(task.folder.parent), task.runner)
        few = 0 if task.is_in_a_pod else _FEW_MODULES
        preloaded_modules.note_imports(task.folder.with_name(preloaded_modules.IMPORTS_FILE), own, _watch, few=few)


def _begin_again(task: Task, report: ReportWriter, why: str) -> None:
    """Be a new interpreter for the same task: what this one has imported does not fit."""
    if not report.is_the_worker:
        return  # a process of the function's
    process_setup.write_to_log(f"kinetic: the job begins again in an interpreter of its own: {why}\n")
    report.begins_again()
    process_setup.flush()
    process_setup.restore_limits()  # its timers would end the new one
    for child in processes.children_of(os.getpid()):
        for process in processes.tree_of(child):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)
    os.chdir("/")
    if task.data.is_dir():
        from kinetic._runner.data import mounted_data  # only jobs with data

        mounted_data.remove_links(task.data, Path(task.cache))
        if task.placed is not None:  # a folder is mounted at each volume's path, and only what exists is mounted over
            task.data.rename(task.data.with_name(f"{task.data.name}-before"))  # goes with the job
    for made in (task.folder, task.data):
        if processes.detach_mounts(made):  # what is mounted there is never emptied
            folders.remove(made.parent, made.name)
    os.environ.clear()
    os.environ.update(task.environment)
    worker_process.exec_worker(task, report.descriptor)


def _mount(task: Task, report: ReportWriter) -> Any:
    """Make volumes and views appear at their paths; nothing is in them yet."""
    if task.placed is None:
        return None
    from kinetic._runner.data import provision  # 5 ms; most jobs read no data

    report.enter(DATA)
    return provision.place([DataRef.from_json(dict(page)) for page in task.placed], _folders(task, task.function))


def _provide(task: Task, order: Order, mounts: Any) -> list[str]:
    from kinetic._runner.data import provision  # as above

    here = _folders(task, order.function_name)
    if mounts is None:
        return provision.provide(order.data, here)
    if [each.ref for each in mounts] != list(order.data):
        raise IntegrityError("the launch page names other data than the order", next="submit the job again")
    return provision.fill(mounts, here)


def _folders(task: Task, function: str) -> Any:
    from kinetic._runner.data.mounted_data import JobFolders  # as above

    return JobFolders(task.data, Path(task.cache), task.environment, task.folder, task.data_shared, function)


def _deliver(
    report: ReportWriter, body: function_call.BodyFile, ended: Value | Failure, times: dict[str, float]
) -> dict[str, Any]:
    if isinstance(ended, Failure):
        process_setup.write_to_log(ended.error["traceback"])
    process_setup.flush()
    report.enter(SERIALIZE)
    begun = _monotonic()
    final = function_call.deliver(ended, body)  # never raises
    times[SERIALIZE] = round(_monotonic() - begun, 6)
    step("worker:body-written")
    return {**final, "phase": EXECUTE if final["cause"] in outcomes.OF_THE_FUNCTION else SERIALIZE}


def _end_a_forked_child(report: ReportWriter, ended: Value | Failure | None = None) -> None:
    """End a child that user code forked and that comes out of it here, as Python ends it: it never reports for the job.

    The process that was started as the worker continues. ``ended``: how the child came out of the function.
    """
    if report.is_the_worker:
        return
    code = 0
    try:
        if isinstance(ended, Failure):
            code = ended.exit_status
            if ended.cause != "exit":
                process_setup.write_to_log(ended.error["traceback"])
        process_setup.flush()
    finally:
        _exit(code)


def _report_error(error: BaseException, report: ReportWriter) -> None:
    """Report an error of ours, or of a signal handler at a bad moment, if nothing was reported yet."""
    with contextlib.suppress(BaseException):
        if report.is_the_worker:
            report.done(_interrupted(error, {}))
        process_setup.write_to_log(function_call.describe(error)["traceback"])


def _interrupted(error: BaseException, times: dict[str, float]) -> dict[str, Any]:
    failure = function_call.failure_of(error)
    why = "it was raised after the function had ended, while the result was being delivered"
    described = {"error": {**failure.error, "not_delivered": why}, "cause": failure.cause}
    return {"status": outcomes.FAILED, "phase": SERIALIZE, "phases": times, **described}


def _phase_failed(error: BaseException, phase: str, times: dict[str, float]) -> dict[str, Any]:
    described = function_call.describe(error)
    for note in map(str, getattr(error, "__notes__", ())):
        if note.startswith(function_call.OPENING):
            described["why"] = note
            if not isinstance(error, ImportError):
                described["next"] = "create it inside the function, or pass what it is made from"
    if isinstance(error, KineticError):
        described |= {"what": error.what, "why": error.why, "next": error.next, "code": error.code}
        if phase in _OURS:
            described["traceback"] = ""
    return {"status": outcomes.FAILED, "cause": "runner", "phase": phase, "error": described, "phases": times}


def _files_left(task: Task, order: Order, unpacked: Any, *, failed: bool) -> list[str]:
    """Name what the function wrote into its working folder, which does not outlive the job."""
    try:
        found = workspace.written_since(task.folder, unpacked)
        if "://" in order.output_dir:  # what is below it in the working folder is sent there
            found = [each for each in found if f"{Path(order.output_dir)}/" not in each]
        if found:
            shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
            which = "it is" if len(found) == 1 else "they are"
            keeps = failed and not task.is_in_a_pod
            where = f"{which} kept for 24 h in {task.folder}" if keeps else f"{which} not kept"
            hint = f"write into KINETIC_OUTPUT_DIR ({order.output_dir}) what should outlive the job"
            process_setup.write_to_log(f"kinetic: the job wrote {shown} into its working folder; {where}; {hint}\n")
        return found[:FILES_NAMED]
    except Exception:  # noqa: BLE001 - a module that user code patched; the value counts more than these names
        return []


def _run_exit_handlers() -> None:
    """Do what an interpreter does at its end, without waiting: the supervisor ends what is left over."""
    idle = _end_idle_pools()
    frames = sys._current_frames()  # noqa: SLF001 - of threads of executors: Python ends idle ones silently
    for thread in getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ()):
        if thread.ident not in frames or frames[thread.ident].f_code.co_name == "_worker":
            idle.add(thread)
    idle.add(threading.main_thread())
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread not in idle]
    if left:
        names = ", ".join(sorted(left)[:5])
        process_setup.write_to_log(f"kinetic: {len(left)} thread(s) still ran and were ended with the job: {names}\n")
    _end_children(idle)
    if (preloaded := _preloaded()) is not None:
        preloaded.hidden.drop_exit_handlers()
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them and live on
    _write_open_files()
    process_setup.flush()


def _write_open_files() -> None:
    """Write what files that were left open hold back, and end compressed ones, as Python does at its end."""
    objects = gc.get_objects()  # what was there before the job is frozen
    kinds = {id(kind): kind for kind in map(type, objects)}  # few, and not all can be hashed
    places = {  # texts before what compresses them, and that before what is in the file
        each: 0 if issubclass(kind, io.TextIOWrapper) else 2 if kind.__module__ == "_io" else 1
        for each, kind in kinds.items()
        if issubclass(kind, (io.TextIOWrapper, _BufferedIOBase))
    }
    files = [(places[id(type(each))], each) for each in objects if id(type(each)) in places]
    for place in range(3):
        for at, file in files:
            if at == place:
                with contextlib.suppress(Exception):
                    file.close() if place == 1 else file.flush()


def _end_idle_pools() -> set[Any]:
    """End pools of processes that have no work left, as Python does at its end: the workers write what they still hold.

    A worker that cannot end is left to the supervisor. joblib keeps such a pool for its next call, which nobody can
    close: return its threads and workers, of which some take seconds to end.
    """
    of_joblib = set[Any]()

    def end(module: Any) -> None:
        with contextlib.suppress(Exception):
            module._python_exit()  # noqa: SLF001 - as Python itself calls it

    for name in ("concurrent.futures.process", "joblib.externals.loky.process_executor", "loky.process_executor"):
        module = sys.modules.get(name)
        threads = list(getattr(module, "_threads_wakeups", ()))
        if threads and not any(getattr(thread, "pending_work_items", ()) for thread in threads):
            for thread in threads if "loky" in name else ():
                of_joblib |= {thread, *getattr(thread, "processes", {}).values()}
            ending = threading.Thread(target=end, args=(module,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads
                ending.start()
                ending.join(_POOL_SECONDS)
    return of_joblib


def _end_children(idle: Collection[Any]) -> None:
    module = sys.modules.get("multiprocessing.process")
    for child in list(getattr(module, "_children", ())):
        with contextlib.suppress(Exception):
            if child.daemon:
                continue  # multiprocessing ends those itself; a pool's worker that we killed would keep the pool's lock
            if child.is_alive() and child not in idle:
                process_setup.write_to_log(f"kinetic: process {child.name} still ran and was ended with the job\n")
            child.kill()
