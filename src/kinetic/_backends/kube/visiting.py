"""Looking into a job's pods: a command beside the worker, the stacks of the workers.

Both start a visitor in the container, out of the runner that lies there already: see ``_runner/pod/visitor.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kinetic._backends.kube import executing, names, reading
from kinetic._backends.kube.kinds import POD
from kinetic._backends.kube.request import RUNNER_PATH
from kinetic._backends.kube.tailing import is_running
from kinetic._backends.protocol import Stacks
from kinetic._wire import visits
from kinetic.errors import AccessDeniedError, BackendError, RunnerError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

_AT_ONCE = 8  # hosts that are asked side by side
_TRIES = 3
_VISITOR = (
    f"import sys; sys.path.insert(0, {RUNNER_PATH!r}); import unpack; unpack.install(); "
    "from kinetic._runner.pod.visitor import main; main(sys.argv[1:])"
)
_COMMAND = ("python3", "-P", "-c", _VISITOR)


def pods_of(client: Client, job_id: str) -> dict[int, str]:
    """Return the name of the newest pod of each host whose container runs."""
    found = client.list(POD, f"{names.JOB_LABEL}={names.label_value(job_id)}").objects
    running = [pod for pod in found if is_running(pod) and not (pod.get("metadata") or {}).get("deletionTimestamp")]
    running.sort(key=lambda pod: (reading.made(pod), reading.name(pod)))
    return {reading.host(pod): reading.name(pod) for pod in running}


def stacks(client: Client, job_id: str, hosts: Sequence[int]) -> list[Stacks]:
    """Ask the workers of some hosts for their stacks; see the protocol."""
    pods = pods_of(client, job_id)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda host: _stacks_of(client, pods.get(host, ""), host), hosts))


def _stacks_of(client: Client, pod: str, host: int) -> Stacks:
    if not pod:
        return Stacks(host, "", "it has no pod whose container runs")
    try:
        said = _patiently(client, pod, [*_COMMAND, "stacks"])
    except AccessDeniedError:
        raise
    except BackendError as error:
        return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))
    if said.code == 0:
        return Stacks(host, said.out.decode(errors="replace"))
    return Stacks(host, "", said.err.decode(errors="replace").strip() or f"the visitor ended with {said.code}")


def _patiently(client: Client, pod: str, command: Sequence[str]) -> executing.Said:
    """Run a command that may be run twice, again after what passes: a connection that was cut, a server in trouble."""
    for attempt in range(_TRIES - 1):
        try:
            return executing.capture(client, pod, command)
        except AccessDeniedError:
            raise
        except BackendError:
            client.transport.pause(attempt)
    return executing.capture(client, pod, command)


def run(
    client: Client, job_id: str, command: Sequence[str], *, host: int, tty: bool, environ: Mapping[str, str]
) -> int:
    """Run a command beside the worker of a host; see ``run_in`` of the protocol.

    Raises:
        RunnerError: The host has no pod, or its image no such command.
    """
    pod = pods_of(client, job_id).get(host)
    if pod is None:
        raise RunnerError(
            "the job does not run", why=f"host {host} has no pod whose container runs", code="not-running"
        )
    term = (environ.get("TERM") or "xterm") if tty else ""
    said = executing.run(client, pod, [*_COMMAND, "run", term, *command], tty=tty, mark=visits.MARK)
    trouble = visits.read(said.err) if said.code == visits.TROUBLE else None
    if trouble is not None:
        raise trouble
    executing.write_to(1 if tty else 2)(said.err)  # it was a command's own after all
    return said.code
