"""kinetic: run a function on an accelerator as if it were here.

    @kinetic.run(accelerator="tpu-v5e-1")
    def train(lr): ...

    loss = train(0.001)                  # runs there, returns here
    job = train.run_async(0.001)         # detached: status, logs, result, cancel, attach from any machine

Names are imported on first use (PEP 562), so that ``import kinetic`` costs almost nothing.
"""

TYPE_CHECKING = False  # what type checkers take for True; importing typing would cost 5 ms
if TYPE_CHECKING:
    from kinetic import collections, debug, errors, job_status, jobs, testing
    from kinetic._data.data import Data
    from kinetic._jobs.command_jobs import run_command
    from kinetic._remote.callable import RemoteCallable, run
    from kinetic._remote.current_job import current, is_remote
    from kinetic._remote.function_paths import checkpoint_dir, output_dir
    from kinetic._version import __version__
    from kinetic._wire.progress import progress
    from kinetic.collections import BatchHandle, attach_batch
    from kinetic.errors import BatchError
    from kinetic.jobs import JobHandle, JobStatus, attach, list_jobs

__all__ = [
    "BatchError",
    "BatchHandle",
    "Data",
    "JobHandle",
    "JobStatus",
    "RemoteCallable",
    "__version__",
    "attach",
    "attach_batch",
    "checkpoint_dir",
    "collections",
    "current",
    "debug",
    "errors",
    "is_remote",
    "job_status",
    "jobs",
    "list_jobs",
    "output_dir",
    "progress",
    "run",
    "run_command",
    "testing",
]

_MODULE_OF = {
    "BatchError": "errors",
    "BatchHandle": "collections",
    "Data": "_data.data",
    "JobHandle": "jobs",
    "JobStatus": "job_status",
    "RemoteCallable": "_remote.callable",
    "__version__": "_version",
    "attach": "jobs",
    "attach_batch": "collections",
    "checkpoint_dir": "_remote.function_paths",
    "current": "_remote.current_job",
    "is_remote": "_remote.current_job",
    "list_jobs": "jobs",
    "output_dir": "_remote.function_paths",
    "progress": "_wire.progress",
    "run": "_remote.callable",
    "run_command": "_jobs.command_jobs",
}
_SUBMODULES = frozenset({"collections", "debug", "errors", "job_status", "jobs", "testing"})


def __getattr__(name: str) -> object:
    """Import a name on its first use."""
    if name not in _MODULE_OF and name not in _SUBMODULES:
        raise AttributeError(f"module 'kinetic' has no attribute {name!r}")
    from kinetic._wire import loading  # first: a user's file must not replace a module of Python's

    try:
        with loading():
            from importlib import import_module

            module = import_module(f"kinetic.{_MODULE_OF.get(name, name)}")
        found = globals()[name] = module if name in _SUBMODULES else getattr(module, name)
    except (ImportError, AttributeError) as error:
        from kinetic._output import tracebacks

        if why := tracebacks.why_replaced():
            error.add_note(why)
        raise
    return found


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
