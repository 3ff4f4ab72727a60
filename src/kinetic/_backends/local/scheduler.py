"""Which supervisors are woken and started for the queue, and the process template that each of them is started from.

A worker is a fork of its supervisor, so whatever takes effect when an interpreter starts must already be right in the
supervisor: interpreter, flags, start-up variables, limits, affinity, nice and the runner's code. That is its template.
Jobs with the same template can share supervisors; its digest is in each row.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posix
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._backends.local import limits, recovery, runtime_files
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._config.home import path_of
from kinetic._stores.protocol import ACCESS_VARIABLES, CLOUDS
from kinetic._wire import digests, documents, failpoints, python_runtime
from kinetic._wire import order as wire_order
from kinetic.errors import BackendUnavailableError, LaunchError

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement
    from kinetic._wire.order import Order

_STARTUP = "PATH HOME TMPDIR LANG LC_ALL LC_CTYPE VIRTUAL_ENV KINETIC_PORTABLE".split()
_TRIES = 3


def advance(
    paths: Paths, queue: Queue, *, ready: str = "", slots: int = 0, template_id: str = "", collect: bool = False
) -> None:
    """Do whatever the queue needs now: recover dead supervisors, wake idle ones, start missing ones.

    Args:
        paths: The runtime folder.
        queue: Its queue.
        ready: A template of which a supervisor should be starting even if no job is queued, and fewer than ``slots``
            supervisors are at work.
        slots: See ``ready``.
        template_id: The caller's own: an error when a supervisor is started is the caller's only if it is of this one.
        collect: Wait the 10 ms until a started supervisor has detached itself: for callers that must stay
            single-threaded.

    Inside a job nothing is started: it would be a child of the job, and end with it. The job's supervisor is asked.
    """
    if os.environ.get("KINETIC_JOB_ID"):
        _lend_again(queue, os.environ)
        _ask_supervisor(paths, os.environ)
        return
    for _ in range(_TRIES):
        recovery.recover_dead_supervisors(paths, queue)
        if queue.followers():
            from kinetic._backends.local import followers  # 10 ms; only where a job follows another

            followers.settle(paths, queue)
        wake, start = queue.plan(ready, slots)
        dead = [supervisor for supervisor in wake if not runtime_files.wake(paths.wake(supervisor))]
        for supervisor, its_template in start:
            try:
                pid = _start(paths, queue, supervisor, its_template)
            except LaunchError as error:
                if its_template == template_id:
                    raise
                passes = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE}
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in passes:
                    recovery.give_up_on_template(paths, queue, its_template, str(error.why))
                continue
            if collect or python_runtime.start_thread(partial(_collect, pid), "kinetic-start") is None:
                _collect(pid)  # it forks the supervisor and ends within milliseconds
        if not dead:  # else one has died just now: is there another one?
            return


_lenders: Counter[tuple[int, str]] = Counter()  # how many threads of a process wait, by process and job
_lending = python_runtime.free_in_child(threading.Lock())


@contextlib.contextmanager
def slot_lent(paths: Paths, queue: Queue, environ: Mapping[str, str]) -> Iterator[None]:
    """Let another job have the slot of the job that this process belongs to, as long as one of its threads waits."""
    job_id = environ["KINETIC_JOB_ID"]
    lender = os.getpid(), job_id
    with _lending:
        if not _lenders[lender]:
            queue.lend_slot(job_id, _attempt(environ))
            _ask_supervisor(paths, environ)
        _lenders[lender] += 1
    try:
        yield
    finally:
        with _lending:
            _lenders[lender] -= 1
            if not _lenders[lender]:
                with contextlib.suppress(BackendUnavailableError):  # what was waited for has ended; so does the job
                    queue.take_slot_back(job_id)


def _lend_again(queue: Queue, environ: Mapping[str, str]) -> None:
    """Lend a slot again while this process waits: the queue was rebuilt, or another process of the job took it back."""
    job_id = environ["KINETIC_JOB_ID"]
    with _lending:
        if _lenders[os.getpid(), job_id] and not queue.has_lent(job_id, _attempt(environ)):
            queue.lend_slot(job_id, _attempt(environ))


def _attempt(environ: Mapping[str, str]) -> int:
    return int(environ.get("KINETIC_ATTEMPT") or 0)


def _ask_supervisor(paths: Paths, environ: Mapping[str, str]) -> None:
    """Have the supervisor of this job look after the queue, unless it belongs to another home."""
    if supervisor := environ.get(recovery.SUPERVISOR_VARIABLE):
        runtime_files.wake(paths.wake(supervisor))


def _start(paths: Paths, queue: Queue, supervisor: str, template_id: str) -> int:
    template = queue.template(template_id)
    runner = Path(template["arguments"][-1]).parent
    if runner.parent == paths.runners and not (runner / "supervisor.py").exists():
        from kinetic._project import runner_bundle  # rare: after a power cut, for this folder is not synced

        runner_bundle.folder(paths.runners)
    environment = {name: os.environ[name] for name in (*_STARTUP, failpoints.VARIABLE) if name in os.environ}
    environment |= template["environment"] | {recovery.SUPERVISOR_VARIABLE: supervisor}
    if "PYTHONPATH" in environment:  # what is relative, is that to a client's folder: its jobs have it in their plans
        absolute = filter(os.path.isabs, environment["PYTHONPATH"].split(os.pathsep))
        environment["PYTHONPATH"] = os.pathsep.join(absolute)
    words = [*template["arguments"], supervisor, template_id, str(paths.runtime)]
    log = str(paths.supervisor_log(supervisor))
    inheritable, limit = list(_inheritable()), os.sysconf("SC_OPEN_MAX")
    above = [number for number in inheritable if number >= limit]  # as of a shell that has lowered it since
    _set_inheritable(above, to=False)  # posix_spawn refuses to close them
    try:
        return posix.posix_spawn(  # not of `os`, where a debugger of the client puts its own, which adds itself
            words[0],
            words,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                *((os.POSIX_SPAWN_CLOSE, number) for number in inheritable if number < limit),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM],
        )
    except OSError as error:
        queue.forget_supervisor(supervisor)
        step = "look at the limits of this shell with: ulimit -a"
        if isinstance(error, FileNotFoundError | PermissionError):
            step = f"check that {words[0]} is there and can be run, and that {log} can be written"
        raise LaunchError(
            "the supervisor process for this job could not be started", why=f"{words[0]}: {error.strerror}", next=step
        ) from error
    finally:
        _set_inheritable(above, to=True)


def _set_inheritable(numbers: Sequence[int], *, to: bool) -> None:
    for number in numbers:
        with contextlib.suppress(OSError):  # closed meanwhile
            os.set_inheritable(number, to)


def _inheritable() -> Iterator[int]:
    """Yield the descriptors that a new process would get: who reads from a pipe among them would wait for its end."""
    for number in map(int, os.listdir("/dev/fd") if os.path.exists("/dev/fd") else ()):
        with contextlib.suppress(OSError):  # closed meanwhile, as that of this folder
            if number > 2 and os.get_inheritable(number):
                yield number


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # other code in this process waits for every child
        os.waitpid(pid, 0)


_PREFIXES = ("PYTHON", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "KINETIC_PORTABLE")
_OF_ONE_INTERPRETER = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE"})  # would lead out of another one
_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK")
_FLAGS = {
    "optimize": "O",
    "dont_write_bytecode": "B",
    "no_user_site": "s",
    "no_site": "S",
    "ignore_environment": "E",
    "bytes_warning": "b",
}


def own_python(paths: Paths) -> str:
    """Return the interpreter of this process, or that of a copy which stays where its environment does not."""
    if not python_runtime.is_overlay():
        return python_runtime.own_python()
    from kinetic._images import isolated_environment  # 10 ms; only after `uv run --with`

    return str(isolated_environment.lasting_copy(paths.environments))


def make_template(
    runner: Path, environ: Mapping[str, str], interpreter: str = "", *, python: str = ""
) -> dict[str, Any]:
    """Describe how a supervisor for this client's jobs is started; ``python``: see ``own_python``.

    Returns:
        arguments (a command line), environment (variables that work at start-up), limits, affinity and nice (which
        a supervisor inherits from the process that starts it, or sets itself), groups (as after ``newgrp``) and session
        (what ends it: a job of Slurm must not run in another one, that may end before), needs (a file of a package:
        where an environment is made again, its Python is back before it can run jobs), and startup (a digest of what
        Python has read when it starts: what is installed as editable later is found by later processes only).
    """
    import resource  # POSIX only, as is everything in this room

    theirs = [each for each in sys.path if not each.startswith(str(runner.parent))]  # in a job, ours comes first
    found = None if interpreter else PathFinder.find_spec("cloudpickle", theirs)
    if python_runtime.is_overlay():  # what is in it, its copy has
        theirs = [each for each in theirs if not each.startswith(f"{sys.prefix}/")]
    flags = [f"-{letter * count}" for name, letter in _FLAGS.items() if (count := getattr(sys.flags, name))]
    flags += [f"-W{option}" for option in sys.warnoptions]
    for option, value in sys._xoptions.items():  # noqa: SLF001 - the documented way to read -X
        flags.append(f"-X{option}" if value is True else f"-X{option}={value}")
    numbers = {name: getattr(resource, f"RLIMIT_{name}", None) for name in _LIMITS}
    return {
        "arguments": [interpreter or python or sys.executable, *flags, str(runner / "supervisor.py")],
        "environment": {
            name: value
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and not (interpreter and name in _OF_ONE_INTERPRETER)
        }
        | _locks_of_gpus(environ),
        "limits": {name: resource.getrlimit(number) for name, number in numbers.items() if number is not None},
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "groups": [os.getegid(), *sorted(os.getgroups())],
        "session": limits.session(environ),
        "needs": [found.origin] if found is not None and found.has_location else [],
        "startup": "" if interpreter else digests.of_bytes("\n".join(_path_files(theirs)).encode(errors="replace")),
    }


def _path_files(folders: Iterable[str]) -> list[str]:
    """Return the folders of packages, and the ``*.pth`` files in them, which Python reads as it starts, with times."""
    found = []
    for folder in folders:
        if folder.endswith("-packages"):  # site-, and dist- of Debian
            with contextlib.suppress(OSError):
                paths = [f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(".pth")]
                found += [folder, *(f"{path} {os.stat(path).st_mtime_ns}" for path in paths)]
    return sorted(found)


def written_template(template: dict[str, Any]) -> tuple[str, str]:
    """Return the digest that names a template, and its text; equal ones are equal text."""
    text = documents.write_ascii(template)
    return digests.of_bytes(text)[:24], text.decode()


def apply_template(template: Mapping[str, Any]) -> None:
    """Set a template's limits, affinity and nice, as far as this process may: its starter may have had others.

    And the variable that it began without, for programs that its jobs start.
    """
    import resource

    if "PYTHONPATH" in template["environment"]:
        os.environ["PYTHONPATH"] = template["environment"]["PYTHONPATH"]
    for limit, (soft, hard) in template.get("limits", {}).items():
        number = getattr(resource, f"RLIMIT_{limit}", None)
        if number is None or resource.getrlimit(number) == (soft, hard):
            continue
        try:
            resource.setrlimit(number, (soft, hard))
        except (ValueError, OSError):  # only root raises a hard limit
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(number, (soft, resource.getrlimit(number)[1]))
    cores = template.get("affinity")
    if cores and hasattr(os, "sched_setaffinity") and sorted(os.sched_getaffinity(0)) != cores:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores)
    with contextlib.suppress(OSError):  # only root takes a smaller number
        os.setpriority(os.PRIO_PROCESS, 0, template.get("nice", 0))


_NAMES = frozenset(  # a string is read more easily than sixty quoted words
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TERM COLUMNS NO_COLOR VIRTUAL_ENV CONDA_PREFIX "
    "CONDA_DEFAULT_ENV SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HTTP_PROXY HTTPS_PROXY NO_PROXY "
    "ALL_PROXY http_proxy https_proxy no_proxy all_proxy XLA_FLAGS "
    # Where libraries keep what they have fetched, on this machine: else a job fetches it again, into the home folder.
    "HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_ENDPOINT HF_HUB_OFFLINE TRANSFORMERS_CACHE SENTENCE_TRANSFORMERS_HOME "
    "TORCH_HOME KERAS_HOME TFDS_DATA_DIR TFHUB_CACHE_DIR NLTK_DATA TIKTOKEN_CACHE_DIR SCIKIT_LEARN_DATA MPLCONFIGDIR "
    "NUMBA_CACHE_DIR WANDB_CACHE_DIR "
    # With what they compile, as Triton and PyTorch's extensions do.
    "CC CXX CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH PKG_CONFIG_PATH TORCH_CUDA_ARCH_LIST "
    # By which coverage.py asks new processes to be measured.
    "COVERAGE_PROCESS_CONFIG COVERAGE_PROCESS_START".split()
) | frozenset(python_runtime.VARIABLES)
_OURS = (
    *("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "KINETIC_PORTABLE", "KINETIC_VOLUME_ROOT"),
    *("KINETIC_LOCAL_SLOTS", "KINETIC_LOCAL_GPUS", "KINETIC_MACHINE_ID"),  # for the jobs that a job submits
    *("KINETIC_LOCAL_PRELOAD", "KINETIC_PROFILE"),  # and KINETIC_PROFILES_FILE
)
_COPIED_PREFIXES = ("LC_", "XDG_", "PYTHON", "LD_", "DYLD_", "CUDA_", "NVIDIA_", *_OURS)


def job_environment(
    order: Order,
    placement: Placement,
    captured: Mapping[str, str],
    environ: Mapping[str, str],
    interpreter: str = "",
    *,
    store_url: str = "",
    python: str = "",
) -> dict[str, str]:
    """Return all variables of a job's process; what the user captured takes precedence.

    What is in the cloud needs its credentials, as in a pod. ``python``: see ``own_python``.
    """
    cloud = is_cloud(store_url, order.output_dir, *(ref.uri for ref in order.data))
    chosen = allowed_variables(environ, cloud=cloud)
    for name in filter(chosen.get, ("KINETIC_HOME", "KINETIC_RUNTIME_DIR", "KINETIC_PROFILES_FILE")):
        chosen[name] = str(path_of(chosen[name], environ))  # a relative one means this process's folder, not the job's
    if interpreter:  # as if its environment had been activated
        binaries = os.path.dirname(interpreter)
        for name in [name for name in chosen if name in _OF_ONE_INTERPRETER or name.startswith("CONDA_")]:
            del chosen[name]
        chosen["VIRTUAL_ENV"] = os.path.dirname(binaries)
        chosen["PATH"] = os.pathsep.join(filter(None, (binaries, chosen.get("PATH", ""))))
    elif python and python != sys.executable:
        for name in filter(chosen.get, ("PATH", "VIRTUAL_ENV")):
            chosen[name] = chosen[name].replace(sys.prefix, os.path.dirname(os.path.dirname(python)))
    # As on a cluster; the GPUs that a job gets are set once it has them, and are its own: others must not see them.
    frameworks = {"CUDA_VISIBLE_DEVICES": ""}
    if interpreter or PathFinder.find_spec("jax") is not None:
        frameworks["KERAS_BACKEND"] = "jax"
    elif environ.get("KERAS_BACKEND"):
        frameworks["KERAS_BACKEND"] = environ["KERAS_BACKEND"]
    gpus = limits.read_gpus(environ)
    if placement.kind != "gpu":
        frameworks["JAX_NUM_CPU_DEVICES"] = str(max(1, placement.chips_per_host))
    if placement.kind != "gpu" or not gpus:
        frameworks["JAX_PLATFORMS"] = "cpu"  # else JAX writes an error about each GPU that it cannot use
    if order.cpu is not None:
        frameworks |= {
            name: value
            for name, value in python_runtime.thread_count_variables(order.cpu).items()
            if name not in chosen
        }
    own = {
        "KINETIC_JOB_ID": order.job_id,
        "KINETIC_OUTPUT_DIR": order.output_dir,
        "KINETIC_CHECKPOINT_DIR": wire_order.checkpoints_of(order),
        "KINETIC_HOST_INDEX": "0",
        "KINETIC_HOST_COUNT": str(order.hosts),
        **({"KINETIC_SLICE_COUNT": str(placement.slices)} if placement.slices > 1 else {}),
    }
    submits = {"KINETIC_BACKEND": registry.HERE.name, **({"KINETIC_STORE": store_url} if store_url else {})}
    if gpus:  # not those that the job itself sees
        submits |= {"KINETIC_LOCAL_GPUS": ",".join(gpus), **limits.order_of_gpus(environ), **_locks_of_gpus(environ)}
    return chosen | frameworks | submits | dict(captured) | own


def allowed_variables(environ: Mapping[str, str], *, cloud: bool = False) -> dict[str, str]:
    """Return what every job gets of a client's environment, with credentials for stores in the cloud if needed."""
    names = _NAMES | frozenset(ACCESS_VARIABLES) if cloud else _NAMES
    return {name: value for name, value in environ.items() if name in names or name.startswith(_COPIED_PREFIXES)}


def is_cloud(*addresses: str) -> bool:
    return any(address.startswith(CLOUDS) for address in addresses)


def _locks_of_gpus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a supervisor and a job are told of them, whose own variables would say something else."""
    if not limits.count_gpus() and not environ.get("KINETIC_GPU_LOCKS"):
        return {}
    from kinetic._backends.local import gpu_locks  # only where there are GPUs

    return {gpu_locks.VARIABLE: gpu_locks.folder_of(environ) or "off"}
