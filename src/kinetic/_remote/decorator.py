"""``kinetic.run``: from a function to a function that runs elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from kinetic._config.options import UNSET, documented
from kinetic._jobs.options import Options
from kinetic._output import tracebacks
from kinetic._remote import callable as remote_callable
from kinetic._remote.callable import RemoteCallable
from kinetic.errors import OptionTypeError

if TYPE_CHECKING:
    from kinetic._data.data import Data

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What ``kinetic.run(...)`` returns: it keeps the signature of what it decorates."""

    def __call__(self, function: Callable[P, R], /) -> RemoteCallable[P, R]:
        """Decorate a function."""


@tracebacks.hides_frames
@documented
def run(
    accelerator: str = UNSET,
    container_image: str | None = None,
    base_image_repo: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    capture_env_vars: Sequence[str] | None = None,
    cluster: str | None = None,
    backend: str | None = None,
    namespace: str | None = None,
    volumes: Mapping[str, Data] | None = None,
    spot: bool = UNSET,
    output_dir: str | None = None,
    debug: bool = False,
    *,
    deadline: float | str | None = None,
    resources: Mapping[str, object] | str | None = None,
    retries: int | None = None,
) -> Decorator:
    """Run the decorated function on an accelerator.

    Without any configuration that is this machine; a project, a profile, KINETIC_BACKEND or ``backend=`` selects
    another place. Calling the function blocks and returns its value; ``.run_async(...)`` returns a JobHandle at once.

    Args:
        accelerator: What it runs on, e.g. "cpu", "gpu-l4", "gpu-a100x8", "tpu-v5e-1", "tpu-v5litepod-2x4". Falls
            back to the options of the profile, then to ``[tool.kinetic]`` in the project's pyproject.toml.
        container_image: None or "bundled", "prebuilt", or the address of an image. Recorded on this machine. Falls
            back like the accelerator.
        base_image_repo: Repository of prebuilt base images. Recorded on this machine.
        zone: Google Cloud zone. Falls back to KINETIC_ZONE, the profile, then "us-central1-a".
        project: Google Cloud project. Falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        capture_env_vars: Names of environment variables to take along; an entry may end in ``*``.
        cluster: GKE cluster. Falls back to KINETIC_CLUSTER, then the profile.
        backend: "local", "gke" or "pathways".
        namespace: Kubernetes namespace. Falls back to KINETIC_NAMESPACE, the profile, then "default".
        volumes: Absolute mount paths to ``kinetic.Data``.
        spot: Ask for capacity that may be taken away at short notice. Falls back like the accelerator.
        output_dir: Where outputs of the job are kept; the job sees it as KINETIC_OUTPUT_DIR.
        debug: Wait for a debugger before the function begins.
        deadline: How long the function may run: seconds, or a text such as "10m". Falls back to KINETIC_DEADLINE, then
            like the accelerator.
        resources: What it asks for of a machine: {"cpu": 4, "memory": "16Gi", "disk": "100Gi", "shm": "8Gi"}, or the
            text "cpu=4,memory=16Gi". Falls back to KINETIC_RESOURCES, then like the accelerator.
        retries: How many more times a job that failed is tried. Falls back to KINETIC_RETRIES, then like the
            accelerator.

    Returns:
        A decorator.

    Raises:
        OptionError: A value that cannot work (also a ValueError), or of the wrong type (also a TypeError).
    """
    if callable(accelerator):
        raise OptionTypeError(
            "@kinetic.run is used without parentheses",
            why=f"it received the function {getattr(accelerator, '__name__', accelerator)!r} as its accelerator",
            next="write @kinetic.run() or @kinetic.run(accelerator=…)",
        )
    options = Options.checked(
        accelerator=accelerator,
        container_image=container_image,
        base_image_repo=base_image_repo,
        zone=zone,
        project=project,
        capture_env_vars=capture_env_vars,
        cluster=cluster,
        backend=backend,
        namespace=namespace,
        volumes=volumes,
        spot=spot,
        output_dir=output_dir,
        debug=debug,
        deadline=deadline,
        resources=resources,
        retries=retries,
    )

    @tracebacks.hides_frames
    def decorate(function: Callable[P, R], /) -> RemoteCallable[P, R]:
        remote_callable.check(function)
        return RemoteCallable(function, options)

    return decorate
