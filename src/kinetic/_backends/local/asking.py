"""From a launch to what its keeper is told. Keepers have no use for this, so it does not travel with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._backends.local import environment
from kinetic._settings import home
from kinetic._wire.task import Task

if TYPE_CHECKING:
    from kinetic._backends.protocol import Launch


def task_of(launch: Launch, umask: int, environ: Mapping[str, str], queued: dict[str, Any]) -> Task:
    """Return what the keeper of a job is told.

    Args:
        launch: The job.
        umask: The client's.
        environ: The client's environment; a batch has the one of whoever made it.
        queued: What the queue is told.
    """
    return Task(
        job_id=launch.order.job_id,
        order_sha256=launch.order_sha256,
        store_url=launch.store_url,
        key_id=launch.key_id,
        umask=umask,
        deadline=launch.order.deadline,
        environment=environment.of_job(
            launch.order,
            launch.placement,
            launch.captured,
            environ if launch.environ is None else launch.environ,
            launch.interpreter,
            store_url=launch.store_url,
        ),
        hosts=launch.placement.hosts,
        order_key=launch.order.key if launch.child else "",
        child=launch.child.to_json() if launch.child else None,
        mark=launch.order.mark,
        machine=home.machine_id(environ),
        function=launch.order.function_name,
        placed=launch.order.placed_early(),
        memory_bytes=launch.order.memory_bytes,
        retries=launch.order.retries,
        queued=queued,
    )
