"""Making a forked keeper look like the interpreter that the user's code expects."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinetic._wire.task import LOG_STACKS_SIGNAL

_RECURSION = 1000  # Python's own default
_SPARE_DESCRIPTORS = 64  # more than user code may have used up
_RESET = ("SIGTERM", "SIGHUP", "SIGCHLD", "SIGUSR1", "SIGUSR2", "SIGQUIT")


def reset_signals() -> None:
    """Give the worker the signal handling of a fresh interpreter."""
    signal.set_wakeup_fd(-1)
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def apply_environment(environment: Mapping[str, str], umask: int) -> None:
    """Replace every variable, before anything of the user's is unpickled."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.umask(umask)
    random.seed()
    gc.unfreeze()
    gc.enable()


def arm_stacks() -> None:
    """Let a crash, and whoever asks, write the stacks of all threads into the log."""
    faulthandler.enable(file=2, all_threads=True)
    faulthandler.register(LOG_STACKS_SIGNAL, file=2, all_threads=True, chain=False)


def calm_down() -> None:
    """Take away what the function left that would hurt what is still to be done: delivering its value.

    Timers that ring on, hooks of tracers, a recursion limit too low for a pickler, and limits of this process on files,
    descriptors and memory, as far as they may be lifted.
    """
    import resource

    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    if "pydevd" not in sys.modules:  # a debugger watches over its own hooks
        sys.settrace(None)
        sys.setprofile(None)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
    for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_DATA"):
        limit = getattr(resource, name, None)
        soft, hard = resource.getrlimit(limit) if limit is not None else (-1, -1)
        wanted = min(soft + _SPARE_DESCRIPTORS, hard) if name == "RLIMIT_NOFILE" and soft != hard else hard
        if limit is not None and soft != wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(limit, (wanted, hard))


def enter_workspace(workspace: Path, plan: Mapping[str, Any], runner: str) -> None:
    """Rebuild ``sys.path`` in the client's order and the working directory, inside the workspace.

    Entries of the client's project are replaced by the workspace's; whatever else this interpreter searches stays.
    """
    root = str(plan.get("root") or "")
    ours = [str(workspace / entry) if entry else str(workspace) for entry in plan.get("sys_path_rel", ("",))]
    others = [entry for entry in sys.path if entry != runner and not _below(entry, root)]
    sys.path[:] = [*dict.fromkeys(ours), runner, *others]
    inside = plan.get("cwd_rel")
    folder = workspace / inside if isinstance(inside, str) and (workspace / inside).is_dir() else workspace
    os.chdir(folder)
    sys.path_importer_cache.clear()


def become_main(script: str, workspace: Path) -> types.ModuleType:
    """Put a fresh ``__main__`` in place: the namespace of the user's script, in the job."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if script:
        module.__file__ = str(workspace / script)
    sys.modules["__main__"] = module
    sys.argv = [getattr(module, "__file__", "") or ""]
    return module


def name_the_script_classes() -> None:
    """Make classes of the script findable in ``__main__``, so that pools and pickles of the user's code find them."""
    from cloudpickle import cloudpickle as inner  # loaded in the keeper already

    main = sys.modules["__main__"]
    for kind in list(getattr(inner, "_DYNAMIC_CLASS_TRACKER_BY_ID", {}).values()):
        name = getattr(kind, "__qualname__", "<")
        if kind.__module__ == "__main__" and "<" not in name and "." not in name and not hasattr(main, name):
            setattr(main, name, kind)


def _below(entry: str, root: str) -> bool:
    if not root or not entry or "site-packages" in entry or "dist-packages" in entry:
        return False
    return entry == root or entry.startswith(root.rstrip("/") + "/")
