"""Threads: our own, where they can be started, and how many the libraries of a job start."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "VECLIB_MAXIMUM_THREADS",
)


def start(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread | None:
    """Start a thread, and return it; None where the system refuses.

    A process may have too many; and in Python 3.12.0 and 3.12.1 no thread can be started once the main thread has
    ended, though others that keep the interpreter are still at work.
    """
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def thread_count_variables(cores: float) -> dict[str, str]:
    """Return what tells libraries how many threads to start in a job that asked for some cores.

    Without it they start one for each core of the machine, and jobs side by side slow each other down.
    """
    return dict.fromkeys(VARIABLES, str(max(1, math.ceil(cores))))
