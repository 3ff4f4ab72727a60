"""The worker: one process that rebuilds the project, calls the function and delivers what became of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from os import _exit  # user code may put something else in its place
from pathlib import Path
from time import monotonic as _monotonic
from typing import Any, NoReturn

from kinetic._runner import processes
from kinetic._runner.supervisor import supervise
from kinetic._runner.supervisor.verdicts import ReportWriter, end_after
from kinetic._runner.worker import function_call, process_setup, stack_dump, workspace
from kinetic._stores import open_store
from kinetic._wire import outcomes, output_paths, references
from kinetic._wire.failpoints import step
from kinetic._wire.order import DataRef, Order
from kinetic._wire.task import (
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

_FILES_NAMED = 20
_SOFTWARE = 70  # EX_SOFTWARE: only if everything below fails
_UNHEARD_SECONDS = 5.0  # for exit handlers, where the supervisor cannot know that they run; it gives as much


def main(words: list[str]) -> NoReturn:
    """Be a worker in an interpreter of its own: ``TASK REPORT``, two descriptors; see ``afresh``."""
    descriptor, report = (int(word) for word in words)
    with os.fdopen(descriptor, "rb") as file:
        task = supervise.receive_task(file)
    os.set_inheritable(report, False)  # noqa: FBT003 - Python's own signature
    processes.ProcessTitle(processes.load_libc()).set(
        task.job_id, f"worker {task.folder}"
    )  # the one before went with exec
    work(task, report)


def work(task: Task, pipe: int) -> NoReturn:
    """Carry out one order in this process, which ends here and never returns to its caller."""
    code = _SOFTWARE
    try:
        teller, body = ReportWriter(pipe, task.word), function_call.BodyFile(task.body)
        process_setup.reset_signals()
        process_setup.redirect(task.log)
        process_setup.apply_environment(task.environment, task.umask)
        process_setup.register_faulthandler()
        stack_dump.open_dump_file(task)
        process_setup.keep_flushing(stack_dump.answer_in)  # a thread that waits; before any code of the user's runs
        step("worker:begun")
        code = _run(task, teller, body)
        _run_exit_handlers()
        step("worker:leaving")
    except BaseException as error:  # noqa: BLE001 - nothing may climb into the supervisor's frames below this fork
        _report_error(error, teller)
    finally:
        try:
            process_setup.flush()
        finally:
            _exit(code)


def _run(task: Task, teller: ReportWriter, body: function_call.BodyFile) -> int:
    times: dict[str, float] = {}
    function_call.pickler_class()
    try:
        order, unpacked, call = _prepare(task, teller, times)
    except BaseException as error:  # noqa: BLE001 - whatever happens in a phase is told with its name
        _end_a_forked_child(teller, function_call.failure_of(error))
        teller.done(_phase_failed(error, teller.phase, times))
        process_setup.write_to_log(function_call.describe(error)["traceback"])
        return 1
    _end_a_forked_child(teller)  # of a module that forks while it is imported
    teller.enter(EXECUTE)
    _mark_as_begun(task)
    step("worker:calling")
    with _timed(times, EXECUTE):
        ended = function_call.call_function(*call)
    _end_a_forked_child(teller, ended)
    try:
        process_setup.restore_limits()
        step("worker:called")
        word = _deliver(teller, body, ended, times)
        _end_a_forked_child(teller)  # of a value that forks while it is pickled
        left = _files_left(task, order, unpacked, failed=word["status"] != outcomes.SUCCEEDED)
    except BaseException as error:  # noqa: BLE001 - a handler of a signal: the function has ended, and so has this
        word, left = _cut_short(error, times), []
    process_setup.flush()
    exited = {"exited": True} if getattr(ended, "exited", False) else {}
    code = 0 if word["status"] == outcomes.SUCCEEDED else 1
    if not teller.done({**word, **exited, "files": left, "phases": times}):
        end_after(_UNHEARD_SECONDS, code)  # the supervisor does not know that exit handlers are all that is left
    step("worker:told")
    return code


def _deliver(
    teller: ReportWriter,
    body: function_call.BodyFile,
    ended: function_call.Value | function_call.Failure,
    times: dict[str, float],
) -> dict[str, Any]:
    if isinstance(ended, function_call.Failure):
        process_setup.write_to_log(ended.error["traceback"])
    process_setup.flush()
    teller.enter(SERIALIZE)
    with _timed(times, SERIALIZE):
        word = function_call.deliver(ended, body)
    step("worker:body-written")
    return {**word, "phase": EXECUTE if word["cause"] in {"value", "exception", "exit"} else SERIALIZE}


def _end_a_forked_child(teller: ReportWriter, ended: function_call.Value | function_call.Failure | None = None) -> None:
    """End a child that user code forked and that comes out of it here, as Python ends it: it never speaks for the job.

    Args:
        teller: It knows which process was started as the worker; that one goes on.
        ended: How the child came out of the function.
    """
    if teller.is_the_worker:
        return
    code = 0
    try:
        if isinstance(ended, function_call.Failure):
            code = ended.exit_status
            if ended.cause != "exit":
                process_setup.write_to_log(ended.error["traceback"])
        process_setup.flush()
    finally:
        _exit(code)


def _report_error(error: BaseException, teller: ReportWriter) -> None:
    """Tell an error of ours, or of a signal handler at a bad moment, if nothing was told yet; it must not get lost."""
    with contextlib.suppress(BaseException):
        if teller.is_the_worker:
            teller.done(_cut_short(error, {}))
        process_setup.write_to_log(function_call.describe(error)["traceback"])


def _cut_short(error: BaseException, times: dict[str, float]) -> dict[str, Any]:
    failure = function_call.failure_of(error)
    why = "it was raised after the function had ended, while the result was being delivered"
    told = {"error": {**failure.error, "not_delivered": why}, "cause": failure.cause}
    return {"status": outcomes.FAILED, "phase": SERIALIZE, "phases": times, **told}


def _mark_as_begun(task: Task) -> None:
    """Leave the sign after which a killed job is lost; before it, it can be started again unharmed."""
    with contextlib.suppress(OSError):  # a full disk: the function may still be able to run
        os.close(os.open(task.began, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _prepare(task: Task, teller: ReportWriter, times: dict[str, float]) -> tuple[Order, Any, tuple[Any, Any, Any]]:
    if task.kind in {"gpu", "tpu"}:
        from kinetic._runner.pod import container  # in pods only

        teller.enter(DEVICES)
        container.check_accelerator(task.kind, task.chips, required=task.require_accelerator)
    spots = _place(task, teller)  # before the store is opened: one in the cloud has threads, and mounts want none
    store = open_store(task.store_url)
    with _timed(times, VERIFICATION):
        teller.enter(VERIFICATION)
        order = workspace.fetch_order(store, task.job_id, task.order_sha256, key=task.order_key, child=task.child)
        function, arguments = workspace.fetch_payload(store, order)
    step("worker:verified")
    if task.requirements is not None:
        from kinetic._runner.pod import install  # in pods only

        with _timed(times, INSTALL):
            teller.enter(INSTALL)
            install.install_requirements(store, task.requirements, task.folder.parent)
    with _timed(times, EXTRACT):
        teller.enter(EXTRACT)
        unpacked = _rebuild(store, order, task.folder)
    step("worker:unpacked")
    with _timed(times, ENVIRONMENT):
        teller.enter(ENVIRONMENT)
        process_setup.enter_workspace(task.folder, order.plan, task.runner)
        process_setup.install_stand_ins(task.runner)
        process_setup.become_main(order.script, task.folder)
        output_paths.make_folder(output_paths.checkpoints_of(order))  # and with it the output folder above it
        process_setup.join_when_jax_is_imported(process_setup.JaxProcess(task.host, task.hosts, task.coordinator))
    if order.data:
        with _timed(times, DATA):
            teller.enter(DATA)
            references.set_data_paths(_provide(task, order, spots))
        step("worker:data-ready")
    with _timed(times, UNPICKLE):
        teller.enter(UNPICKLE)
        call = workspace.open_payload(function, arguments, moved=_moved(order, task))
        process_setup.name_the_script_classes()
    step("worker:unpickled")
    if order.debug is not None:
        from kinetic._runner.worker import debug_server  # most jobs have none

        with _timed(times, DEBUGGER):
            teller.enter(DEBUGGER)
            debug_server.wait(task, order, store, call[0])
    return order, unpacked, call


def _moved(order: Order, task: Task) -> Any:
    """Return what moves code that came by value to its file in this job: a debugger finds breakpoints by file."""
    if order.debug is None:
        return None
    from kinetic._runner.worker import debug_server

    return debug_server.relocating_unpickler(order.plan, task.folder)


def _rebuild(store: Any, order: Order, folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return workspace.unpack(store, order.tree, order.packs, folder) if order.tree else None


def _place(task: Task, teller: ReportWriter) -> Any:
    """Make volumes and views stand at their paths; nothing is in them yet."""
    if task.placed is None:
        return None
    from kinetic._runner import data  # 5 ms; most jobs read no data

    teller.enter(DATA)
    refs = [DataRef.from_json(dict(page)) for page in task.placed]
    return data.place(
        refs,
        folder=task.data,
        cache=Path(task.cache),
        environ=task.environment,
        workspace=task.folder,
        function=task.function,
    )


def _provide(task: Task, order: Order, spots: Any) -> list[str]:
    from kinetic._runner import data  # as above

    where: dict[str, Any] = {"folder": task.data, "cache": Path(task.cache), "workspace": task.folder}
    if spots is None:
        spots = data.place(order.data, **where, environ=task.environment, function=order.function_name)
    elif [spot.ref for spot in spots] != list(order.data):
        raise IntegrityError("the launch page names other data than the order", next="submit the job again")
    return data.fill(spots, **where, shared=task.data_shared)


def _phase_failed(error: BaseException, phase: str, times: dict[str, float]) -> dict[str, Any]:
    described = function_call.describe(error, skip=0)
    if isinstance(error, KineticError):
        described |= {"what": error.what, "why": error.why, "next": error.next, "code": error.code}
    return {
        "status": outcomes.FAILED,
        "cause": "runner",
        "phase": phase,
        "error": described,
        "phases": times,
    }


def _files_left(task: Task, order: Order, unpacked: Any, *, failed: bool) -> list[str]:
    """Name what the function wrote into its working folder, as far as user code has left us the means to look."""
    try:
        return _name_files_left(task, order, unpacked, failed=failed)
    except Exception:  # noqa: BLE001 - a module that user code patched; the value counts more than these names
        return []


def _name_files_left(task: Task, order: Order, unpacked: Any, *, failed: bool) -> list[str]:
    """Name what the function wrote into its working folder, which does not outlive the job."""
    if unpacked is None:
        found = sorted(str(path.relative_to(task.folder)) for path in task.folder.rglob("*") if path.is_file())
    else:
        found = workspace.written_since(task.folder, unpacked)
    if found:
        shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        which = "it is" if len(found) == 1 else "they are"
        where = f"{which} kept for 24 h in {task.folder}" if failed and not task.is_in_a_pod else f"{which} not kept"
        hint = f"write into KINETIC_OUTPUT_DIR ({order.output_dir}) what should outlive the job"
        process_setup.write_to_log(f"kinetic: the job wrote {shown} into its working folder; {where}; {hint}\n")
    return found[:_FILES_NAMED]


def _run_exit_handlers() -> None:
    """Do what an interpreter does at its end, without waiting for anybody: the supervisor ends what is left over."""
    _warn_of_threads()
    _end_children()
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no other way to run them and live on
    process_setup.flush()


def _warn_of_threads() -> None:
    pools = _pool_threads()
    left = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.daemon and thread not in pools
    ]
    if left:
        names = ", ".join(sorted(left)[:5])
        process_setup.write_to_log(f"kinetic: {len(left)} thread(s) still ran and were ended with the job: {names}\n")


def _pool_threads() -> set[threading.Thread]:
    """Threads of executors that idle: Python itself ends those without a word."""
    module = sys.modules.get("concurrent.futures.thread")
    return set(getattr(module, "_threads_queues", ()))


def _end_children() -> None:
    module = sys.modules.get("multiprocessing.process")
    children = list(getattr(module, "_children", ()))
    for child in children:
        with contextlib.suppress(Exception):
            if child.daemon:
                continue  # multiprocessing ends those itself; a pool's worker that we killed would keep the pool's lock
            if child.is_alive():
                process_setup.write_to_log(f"kinetic: process {child.name} still ran and was ended with the job\n")
            child.kill()


class _timed:  # noqa: N801 - reads as a statement
    def __init__(self, times: dict[str, float], phase: str) -> None:
        self._times, self._phase = times, phase

    def __enter__(self) -> None:
        self._begun = _monotonic()

    def __exit__(self, *_: object) -> None:
        self._times[self._phase] = round(_monotonic() - self._begun, 6)
