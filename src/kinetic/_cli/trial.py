"""The job of ``kinetic doctor --try``: real hardware for a moment, which writes an object of the store from inside."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kinetic._output.format import duration_text
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._cluster.checks import Finding
    from kinetic._hardware import Placement
    from kinetic._jobs.handle import JobHandle

KEY, _GROUP = "trial", "accelerator"
_DEADLINE = "10m"  # it takes a second; a node that hangs must not cost for long
_FILE = '''"""What `kinetic doctor --try` runs."""


def hello(word):
    import platform

    return [word, platform.node()]
'''


def price_text(wanted: Placement) -> str:
    """Return what the hardware of the job costs, as part of a sentence."""
    from kinetic._hardware import prices

    price = prices.dollars_per_hour(wanted)
    if price is None:
        return "at a price that kinetic does not know"
    return f"about ${price:.2f} per hour while its nodes run (list price of {prices.READ_ON})"


def skipped(why: str) -> Finding:
    """Return that no job was run."""
    from kinetic._cluster.checks import Finding

    return Finding(KEY, _GROUP, "SKIP", f"no job was run: {why}")


def run_trial(wanted: Placement, place: dict[str, str | None], store: str) -> Finding:
    """Run a job on some hardware, read the result that it wrote, and remove it; one that failed is kept to be read.

    ``store`` is where jobs write, for the sentence.
    """
    from kinetic._cli import target_function
    from kinetic._cluster.checks import Finding
    from kinetic._remote.callable import run as decorate

    given = {name: value for name, value in place.items() if value is not None}
    options = {"accelerator": wanted.name, "spot": wanted.spot, "deadline": _DEADLINE, "keep_warm": 0, **given}
    begun, word, handle = time.monotonic(), uuid.uuid4().hex, None
    with TemporaryDirectory(prefix="kinetic-hello-") as folder:
        file = Path(folder, "hello.py")
        file.write_text(_FILE, encoding="utf-8")
        try:
            hello = decorate()(target_function.find_function(f"{file}::hello", ()).function)
            handle = hello.with_options(**options).run_async(word)
            answer, host = handle.result(cleanup=False, stream_logs=False)
        except KeyboardInterrupt:
            if handle is not None:
                handle.cancel()
            raise
        except KineticError as error:
            step = error.next or (f"kinetic jobs explain {handle.job_id}" if handle is not None else "")
            return Finding(KEY, _GROUP, "FAIL", f"a job on {wanted.name} failed: {error.what}", error.why or "", step)
    if answer != word:  # never seen; a store that returns another job's object must not pass
        return Finding(KEY, _GROUP, "FAIL", f"the result of {handle.job_id} is not that of this job", f"in {store}")
    took = duration_text(time.monotonic() - begun)
    return _removed(handle, f"a job on {wanted.name} ran on {host} and wrote its result to {store} in {took}")


def _removed(handle: JobHandle, what: str) -> Finding:
    from kinetic._cluster.checks import Finding

    try:
        handle.cleanup()
    except KineticError as error:
        step = f"kinetic jobs cleanup {handle.job_id}"
        return Finding(KEY, _GROUP, "WARN", f"{what}, but it could not be removed", error.what, step)
    return Finding(KEY, _GROUP, "PASS", what)
