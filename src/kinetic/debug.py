"""The debugger inside a job: the steps of ``JobHandle.debug_attach``, one by one.

job = train.run_async()  # decorated with @kinetic.run(debug=True)
kinetic.debug.wait_for_debug_server(job)
process = kinetic.debug.start_port_forward(job)
kinetic.debug.print_attach_instructions(job)
value = job.result()
kinetic.debug.cleanup_port_forward(process)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic._wire.inspection import PORT as DEBUGPY_PORT

if TYPE_CHECKING:
    from subprocess import Popen

    from kinetic._jobs.handle import JobHandle

__all__ = [
    "DEBUGPY_PORT",
    "cleanup_port_forward",
    "print_attach_instructions",
    "start_port_forward",
    "wait_for_debug_server",
]


def wait_for_debug_server(job: JobHandle, timeout: float | None = None, *, host: int = 0) -> None:
    """Wait until the debug server of a job can be reached.

    Args:
        job: Submitted with ``debug=True``.
        timeout: Seconds; None waits as long as the job has not ended.
        host: Which host of a slice, from 0.

    Raises:
        DebugError: The job has no debug server, or has ended.
        JobTimeoutError: The time is over (also a TimeoutError).
    """
    from kinetic._inspect import debugger

    debugger.wait_for_server(job, host=host, timeout=timeout)


def start_port_forward(job: JobHandle, local_port: int = DEBUGPY_PORT, *, host: int = 0) -> Popen[bytes]:
    """Start the process that forwards a port of this machine to the debug server of a job; it outlives this process.

    Args:
        job: Submitted with ``debug=True``; its server must be running.
        local_port: The port for the editor.
        host: Which host of a slice, from 0.

    Raises:
        DebugError: The port is in use; the message names a free one.
    """
    from kinetic._inspect import port_forward

    return port_forward.start(job, host=host, local_port=local_port)


def print_attach_instructions(
    job: JobHandle, local_port: int = DEBUGPY_PORT, working_dir: str | None = None, *, host: int = 0
) -> None:
    """Print the launch.json with which VS Code attaches, with the folders as they are.

    Args:
        job: Submitted with ``debug=True``; its server must be running.
        local_port: Where the port forward listens.
        working_dir: The project's folder on this machine; None means where it was when the job was submitted.
        host: Which host of a slice, from 0.

    Raises:
        DebugError: The job has no debug server, or has ended.
    """
    from kinetic._inspect import debugger

    address = debugger.wait_for_server(job, host=host)
    debugger.print_instructions(job, address, local_port=local_port, working_dir=working_dir, host=host)


def cleanup_port_forward(proc: Popen[Any] | None) -> None:
    """End a port forward; None and one that has already ended are accepted.

    Args:
        proc: From ``start_port_forward`` or ``JobHandle.debug_attach``.
    """
    if proc is not None:
        from kinetic._inspect import port_forward

        port_forward.stop(proc)
