"""What a job asks of a cluster besides hardware: its image, what is installed into it, and how much of a machine.

What the project needs is found as for an isolated environment on this machine. It travels as the lines of one file,
which uv installs in the pod before anything of the user's is opened; see ``_runner/pod/requiring.py``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._config import options, resources
from kinetic._config.options import read_variable
from kinetic._config.resources import PodRequirements, ResourceRequests
from kinetic._images import image_choice
from kinetic._jobs import options as job_options
from kinetic._project import dependencies, root
from kinetic._version import __version__
from kinetic._wire import digests, distribution, keys
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ImageBuildError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from kinetic._config.cluster import ClusterSettings
    from kinetic._config.profiles import Profile
    from kinetic._hardware.placement import Placement
    from kinetic._images.image_choice import Image
    from kinetic._jobs.options import Options
    from kinetic._project.dependencies import Dependencies
    from kinetic._project.root import Plan
    from kinetic._stores.protocol import Store

_USER = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^\s/]*)@", re.IGNORECASE)
_FROM_GIT = re.compile(r"(?:\A|[\s@=])git\+")


def requirements_of(
    function: Callable[..., Any],
    plan: Plan,
    options: Options,
    placement: Placement,
    *,
    store: Store,
    settings: ClusterSettings,
    profile: Profile | None,
    environ: Mapping[str, str],
) -> PodRequirements:
    """Return what a job asks of a cluster, and bring what is too long to travel with it into the store.

    Args:
        function: What is to run; its file may say itself what it needs.
        plan: Its project.
        options: Final: what the decorator left open is filled in.
        placement: The hardware.
        store: Where a long list of requirements goes.
        settings: What holds for all jobs of the cluster.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        OptionError: There can be no such image, a dependency cannot be installed elsewhere, or the project wants
            another Python.
        ImageBuildError: The project's uv.lock cannot be read.
        SettingsError: The resources that the project or a profile asks for cannot be read.
    """
    image = image_choice.choose(
        options.container_image,
        options.base_image_repo or read_variable("KINETIC_BASE_IMAGE_REPO", environ),
        python=distribution.python_version(),
        kind=placement.kind,
        version=__version__,
    )
    asked = resources.read(options.resources or {})
    base = job_options.is_wanted("base_packages", plan.root, profile, environ)
    lines = _lines(function, plan, image, placement, environ, base=base)
    return PodRequirements(
        image=image.uri,
        requirements=asdict(_artifact(lines, store)) if lines else None,
        needs=ResourceRequests(*asked),
        settings=settings,
        require_accelerator=job_options.is_wanted("require_accelerator", plan.root, profile, environ),
        python=".".join(distribution.python_version().split(".")[:2]),
    )


def _lines(
    function: Callable[..., Any],
    plan: Plan,
    image: Image,
    placement: Placement,
    environ: Mapping[str, str],
    *,
    base: bool,
) -> tuple[str, ...]:
    """Return the lines of the file that is installed in the pod, and tell the user where they come from."""
    find = functools.partial(
        dependencies.find,
        plan,
        script=root.source_file(root.innermost(function)),
        extras=options.read_project_options(plan.root).extras,
        base=base,
        environ=environ,
    )
    if not image.installs:
        _tell_what_the_image_must_hold(image, find)
        return ()
    found = find(export=_export)
    found.check_python(distribution.python_version())
    packages = image_choice.base_packages(placement.kind, found.names) if base and not image.has_base else ()
    output.report_once("; ".join([image.note, *found.notes[:1], *base_note(packages, base=base or image.has_base)]))
    for note in found.notes[1:]:
        output.report_once(note)
    _tell_of_secrets(found)
    _tell_of_git(found, image)
    return (*found.lines, *packages)


def base_note(packages: Sequence[str], *, base: bool) -> tuple[str, ...]:
    """Say which base packages are installed, where there is something to say."""
    if not base:
        return ("base packages: none, as base_packages = false says",)
    return (f"base packages: {', '.join(packages)}",) if packages else ()


def _tell_what_the_image_must_hold(image: Image, find: Callable[[], Dependencies]) -> None:
    try:
        found = find()
    except OptionError:  # the file could not be installed from; nobody is going to
        told = "the project's dependencies"
    else:
        if not (found.lines or found.filtered):
            return
        told = f"the dependencies in {found.source}"
    output.report_once(f"nothing is installed into the image {image.uri}: it must hold {told}")


def _export(folder: Path, extras: Sequence[str]) -> list[str]:
    """Read the uv.lock of a project."""
    from kinetic._images import isolated_environment

    try:
        isolated_environment.uv_command()
    except ImageBuildError as error:
        raise ImageBuildError(
            f"{folder / 'uv.lock'} cannot be read without uv, which is not installed", why=error.why, next=error.next
        ) from None
    return isolated_environment.export_lock(folder, extras)


def _artifact(lines: Sequence[str], store: Store) -> Artifact:
    """Write the lines into a file that travels with the job, or lies in the store under its digest."""
    data = "".join(f"{line}\n" for line in lines).encode()
    if len(data) <= INLINE_BYTES:
        return Artifact.within(data)
    sha256 = digests.of_bytes(data)
    key = keys.requirements(sha256)
    # What is there already is made young again: a bucket may delete what is old.
    if not store.put(key, data, if_absent=True) and not store.touch(key):
        store.put(key, data)
    return Artifact(sha256, len(data), key=key)


def _tell_of_secrets(found: Dependencies) -> None:
    if any(_has_secret(line) for line in found.lines):
        _warn_once(
            f"an address in {found.source} has a password or token in it, which goes into the store and the cluster "
            "with the job; ${NAME} in its place is filled in when it is installed, from the environment of the job"
        )


def _has_secret(line: str) -> bool:
    """Say whether an address in a line has user:password@ or token@ in it.

    A name alone is no secret before an ssh server, and neither is "${NAME}", which uv fills in where it installs.
    """
    for address in _USER.finditer(line):
        user, _, password = address["user"].partition(":")
        secret = password or ("" if "ssh" in address["scheme"].lower() else user)
        if secret and not secret.startswith("${"):
            return True
    return False


def _tell_of_git(found: Dependencies, image: Image) -> None:
    """Say before the job waits for its machine what cannot work on it."""
    named = next((line for line in found.lines if _FROM_GIT.search(line)), None)
    if named and not image.has_base:  # the image of nobody's choice
        _warn_once(f"{image.uri} has no git, which is needed to install {_shown(named)}: choose an image that has it")


def _shown(line: str) -> str:
    return _USER.sub(r"\g<scheme>://***@", line)


@functools.cache
def _warn_once(text: str) -> None:
    output.warn(text)
