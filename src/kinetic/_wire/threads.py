"""Threads where they can be had; who gets none does the work alone."""

from __future__ import annotations

import threading
from collections.abc import Callable


def begin(work: Callable[[], object], name: str, *, daemon: bool = True) -> threading.Thread | None:
    """Start a thread.

    Args:
        work: What it does.
        name: Its name, as a dump of all threads shows it.
        daemon: The interpreter does not wait for it.

    Returns:
        The thread; None where none can be had. A process may have too many; and in Python 3.12.0 and 3.12.1 nobody may
        start one once the main thread has ended, though others that keep the interpreter are still at work.
    """
    thread = threading.Thread(target=work, name=name, daemon=daemon)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread
