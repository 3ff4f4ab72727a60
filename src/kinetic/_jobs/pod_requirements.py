"""What a job asks of a cluster besides hardware: its image, what is installed into it, and how much of a machine.

What the project needs is found as for an isolated environment on this machine. It travels as the lines of one file,
which uv installs in the pod before anything of the user's is opened; see ``_runner/pod/install.py``.
"""

from __future__ import annotations

import contextlib
import functools
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from kinetic._config import options as config_options
from kinetic._config.cluster import PodRequirements
from kinetic._config.options import ResourceRequests, read_variable
from kinetic._images import image_choice
from kinetic._jobs import options as job_options
from kinetic._output import terminal as output
from kinetic._project import dependencies, root
from kinetic._version import __version__
from kinetic._wire import digests, keys, python_runtime
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ImageBuildError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from kinetic._config.cluster import ClusterSettings
    from kinetic._config.profiles import Profile
    from kinetic._hardware.placement import Placement
    from kinetic._images.builders import RemoteBuilder
    from kinetic._images.bundled import Bundled
    from kinetic._images.image_choice import Image
    from kinetic._jobs.options import Options
    from kinetic._project.dependencies import Dependencies, Export
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
    remotes: Callable[[], Sequence[RemoteBuilder]] = tuple,
) -> PodRequirements:
    """Return what a job asks of a cluster, with its image built and what is too long to travel in the store."""
    choose = functools.partial(
        image_choice.choose,
        base_image_repo=options.base_image_repo or read_variable("KINETIC_BASE_IMAGE_REPO", environ),
        image_repo=read_variable("KINETIC_IMAGE_REPO", environ),
        python=python_runtime.python_version(),
        kind=placement.kind,
        version=__version__,
    )
    image = choose(options.container_image)
    asked = config_options.read_resources(options.resources or {})
    base = job_options.is_wanted("base_packages", plan.root, profile, environ)
    lines = _lines(function, plan, image, placement, environ, base=base)
    lock = ""
    if image.repository:
        try:
            found = _bundle(lines, image.repository, plan, placement, store, environ, remotes)
            image, lines, lock = image._replace(uri=found.uri), (), found.lock_key
        except ImageBuildError as error:
            if options.container_image or error.code != "source-only":
                raise
            image = choose("python")  # nobody asked for an image: the job can still do without
            output.report_once(f"{error.what}; jobs start in the image {image.uri} and install it")
    return PodRequirements(
        image=image.uri,
        lock=lock,
        requirements=asdict(_artifact(lines, store)) if lines else None,
        needs=ResourceRequests(*asked),
        settings=settings,
        require_accelerator=job_options.is_wanted("require_accelerator", plan.root, profile, environ),
        python=".".join(python_runtime.python_version().split(".")[:2]),
    )


def find_dependencies(
    function: Callable[..., Any], plan: Plan, *, base: bool, export: Export | None = None, environ: Mapping[str, str]
) -> Dependencies:
    """Find what the project of a function, whose own file may say so as well, needs installed."""
    return dependencies.find(
        plan,
        script=root.source_file(root.innermost(function)),
        extras=config_options.read_project_options(plan.root).extras,
        export=export,
        base=base,
        environ=environ,
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
    """Return the lines of the file that is installed in the pod, and report where they come from."""
    if not image.installs and not image.repository:
        expected = "the project's dependencies"  # of a file that could not be installed from
        with contextlib.suppress(OptionError):
            found = find_dependencies(function, plan, base=base, environ=environ)
            if not (found.lines or found.filtered):
                return ()
            expected = f"the dependencies in {found.source}"
        output.report_once(f"nothing is installed into the image {image.uri}: it must hold {expected}")
        return ()
    found = find_dependencies(function, plan, base=base, export=_export, environ=environ)
    found.check_python(python_runtime.python_version())
    packages = image_choice.base_packages(placement.kind, found.names) if base and not image.has_base else ()
    notes = [image.note, *found.notes[:1], *base_note(packages, base=base or image.has_base)]
    output.report_once("; ".join(filter(None, notes)))
    for note in found.notes[1:]:
        output.report_once(note)
    if any(_has_secret(line) for line in found.lines):
        output.warn_once(
            f"an address in {found.source} has a password or token in it, which goes into the store and the cluster "
            "with the job; ${NAME} in its place is filled in when it is installed, from the environment of the job"
        )
    if image.repository:
        return (*found.lines, *packages)
    from_git = next((line for line in found.lines if _FROM_GIT.search(line)), None)
    if from_git and not image.has_base:  # said before the job waits for its machine
        shown = _USER.sub(r"\g<scheme>://***@", from_git)
        output.warn_once(f"{image.uri} has no git, which is needed to install {shown}: choose an image that has it")
    return (*found.lines, *packages)


def _bundle(
    lines: Sequence[str],
    repository: str,
    plan: Plan,
    placement: Placement,
    store: Store,
    environ: Mapping[str, str],
    remotes: Callable[[], Sequence[RemoteBuilder]],
) -> Bundled:
    """Find or build the image of these lines."""
    from kinetic._google import api  # only for images
    from kinetic._images import bundled

    tokens = api.Tokens(environ)
    return bundled.ensure(
        lines,
        repository,
        python=".".join(python_runtime.python_version().split(".")[:2]),
        machine=placement.machine,
        store=store,
        environ=environ,
        google_token=tokens.get if api.credentials_file(environ) else None,
        project=str(plan.root),
        base=read_variable("KINETIC_BASE_IMAGE", environ) or "",
        remotes=remotes,
    )


def base_note(packages: Sequence[str], *, base: bool) -> tuple[str, ...]:
    """Return which base packages are installed, as none or one sentence."""
    if not base:
        return ("base packages: none, as base_packages = false says",)
    return (f"base packages: {', '.join(packages)}",) if packages else ()


def _export(folder: Path, extras: Sequence[str]) -> list[str]:
    """Read the uv.lock of a project."""
    from kinetic._images import uv

    try:
        uv.uv_command()
    except ImageBuildError as error:
        raise ImageBuildError(
            f"{folder / 'uv.lock'} cannot be read without uv, which is not installed", why=error.why, next=error.next
        ) from None
    return uv.export_lock(folder, extras)


def _artifact(lines: Sequence[str], store: Store) -> Artifact:
    """Write the lines into a file that travels with the job, or is in the store under its digest."""
    data = "".join(f"{line}\n" for line in lines).encode()
    if len(data) <= INLINE_BYTES:
        return Artifact.within(data)
    sha256 = digests.of_bytes(data)
    key = keys.requirements(sha256)
    # What is there already is made young again: a bucket may delete what is old.
    if not store.put(key, data, if_absent=True) and not store.touch(key):
        store.put(key, data)
    return Artifact(sha256, len(data), key=key)


def _has_secret(line: str) -> bool:
    """Return whether an address in a line has user:password@ or token@ in it.

    A name alone is not a secret for an ssh server, and neither is "${NAME}", which uv fills in where it installs.
    """
    for address in _USER.finditer(line):
        user, _, password = address["user"].partition(":")
        secret = password or ("" if "ssh" in address["scheme"].lower() else user)
        if secret and not secret.startswith("${"):
            return True
    return False
