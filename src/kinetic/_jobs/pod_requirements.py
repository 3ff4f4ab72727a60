"""What a job asks of a cluster besides hardware: its image, what is installed into it, and how much of a machine.

What the project needs is found as for an isolated environment on this machine. It travels as the lines of one file,
which uv installs in the pod before anything of the user's is opened; see ``_runner/pod/install.py``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from kinetic._config import options as config_options
from kinetic._config import project_options
from kinetic._config.cluster import PodRequirements
from kinetic._config.options import ResourceRequests
from kinetic._config.variables import read_variable
from kinetic._images import image_choice, uv
from kinetic._jobs import job_options, locate, option_sources, status
from kinetic._output import terminal as output
from kinetic._project import configured_indexes, dependencies, root
from kinetic._project.dependencies import Dependencies, Wanted
from kinetic._version import __version__
from kinetic._wire import addresses, digests, keys, python_runtime
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ImageBuildError, ImageUnavailableError, KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from kinetic._config.cluster import ClusterSettings
    from kinetic._config.profiles import Profile
    from kinetic._hardware.placement import Placement
    from kinetic._images.builders import RemoteBuilder, RemoteImage
    from kinetic._images.image_choice import Image
    from kinetic._images.lock_store import LockRequest
    from kinetic._images.request import BuildRequest
    from kinetic._jobs.job_options import Options
    from kinetic._project.dependencies import Export
    from kinetic._project.root import Plan
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord

# Why an image cannot be built, where a job that asked for none installs its packages when it starts.
_DOES_WITHOUT = frozenset(
    "source-only source-build index-login image-unavailable registry-denied registry-login registry-missing "
    "registry-silent registry-quota".split()
)
_GIVE_UP_SECONDS = 2.0  # for a build that is to end: its connections are closed
_SUBMIT_SECONDS = 10.0  # for a build elsewhere: it is submitted wholly, or not at all
_UNFINISHED = "the image is not finished: what was sent stays, and the next submission continues from there"
_FROM_GIT = r"(?:\A|[\s@=])git\+"


class Unfinished:
    """What a job asks of a cluster, while its image is found or built in a thread beside the packing of the job."""

    def __init__(self, find: Callable[[Unfinished], PodRequirements], found: Dependencies, *, beside: bool) -> None:
        self.stop = uv.Stop()
        self.dependencies = found  # what is installed for the job
        self._find = find
        self._packed, self._ended = threading.Event(), threading.Event()
        self._elsewhere: list[RemoteBuilder] = []  # builders that have begun
        self._found: PodRequirements | None = None
        self._error: BaseException | None = None
        self._thread = python_runtime.start_thread(self._run, "kinetic-image") if beside else None
        if self._thread is None:
            self._packed.set()
            self._found = find(self)

    def _run(self) -> None:
        try:
            self._found = self._find(self)
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self._error = error
        finally:
            self._ended.set()

    def check(self) -> None:
        """Raise the error that the image ended in, if it has."""
        if self._error is not None:
            raise self._error

    def result(self) -> PodRequirements:
        """Wait until the image is there; called once the job is packed."""
        self._packed.set()
        if self._thread is not None:
            self._ended.wait()  # not join(): one that Ctrl-C interrupts takes the thread for ended (Python 3.11)
        self.check()
        assert self._found is not None  # noqa: S101 - else there is an error
        return self._found

    def give_up(self) -> None:
        """End the build of an image that nobody needs any more, and say what stays and what keeps running."""
        if self._thread is None or self._ended.is_set():
            return
        left = [line for each in self._elsewhere for line in each.detach()]
        self.stop.set()
        self._packed.set()
        self._ended.wait(_SUBMIT_SECONDS if left else _GIVE_UP_SECONDS)
        if left:
            left.append("the next submission finds that build")
        for line in left or [_UNFINISHED]:
            output.report(line)

    def begins_elsewhere(self, builder: RemoteBuilder) -> None:
        """Note a builder that begins, once the job is packed: it may submit a job, which is packed as well."""
        self._packed.wait()
        self.stop.check()
        self._elsewhere.append(builder)

    def after_packing(self, remotes: Callable[[], Sequence[RemoteBuilder]]) -> Callable[[], list[RemoteBuilder]]:
        """Let builders elsewhere begin once this job is packed: they submit a job, which is packed as well."""
        return lambda: [_AfterPacking(each, self) for each in remotes()]


class _AfterPacking:
    """A builder elsewhere that begins when the job is packed."""

    def __init__(self, builder: RemoteBuilder, unfinished: Unfinished) -> None:
        self._builder, self._unfinished = builder, unfinished
        self.where, self.builds_sources = builder.where, builder.builds_sources

    def build(self, request: BuildRequest, *, waits: bool) -> RemoteImage:
        """Build it there."""
        self._unfinished.begins_elsewhere(self._builder)
        return self._builder.build(request, waits=waits)

    def detach(self) -> list[str]:
        """End what waits for it."""
        return self._builder.detach()


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
) -> Unfinished:
    """Return what a job asks of a cluster; what is wrong with its options is raised, and its image may still be built.

    What is too long to travel is in the store.
    """
    published = options.base_image_repo or read_variable("KINETIC_BASE_IMAGE_REPO", environ)
    choose = functools.partial(
        image_choice.choose,
        base_image_repo=published,
        image_repo=settings.image_repo,
        python=python_runtime.python_version(),
        kind=placement.kind,
        version=__version__,
    )
    image = choose(options.container_image)
    if options.container_image == image_choice.PREBUILT and published:
        image = _published(image, environ)
    is_wanted = functools.partial(option_sources.is_wanted, root=plan.root, profile=profile, environ=environ)
    asked = PodRequirements(
        needs=ResourceRequests(*config_options.read_resources(options.resources or {})),
        settings=settings,
        require_accelerator=is_wanted("require_accelerator"),
        python=python_runtime.python_minor(),
    )
    nodes = placement._replace(node_selector={**placement.node_selector, **(settings.node_selector or {})})
    found = _dependencies(function, plan, image, placement, environ, base=is_wanted("base_packages"))
    packages = _Packages(
        found.lines,
        asked,
        image,
        bool(options.container_image),
        functools.partial(choose, image_choice.PYTHON),
        is_wanted,
        nodes.machine,
        store,
        str(plan.root),
        environ,
        remotes,
        frozenset(job_options.capture(options.capture_env_vars or (), environ).values),
    )
    return Unfinished(packages.bring, found, beside=packages.takes_long)


@dataclass(frozen=True)
class _Packages:
    """The packages of a job, and the ways into its pods: from an index as they start, as layers, or in the image."""

    lines: Sequence[str]  # of a requirements file
    asked: PodRequirements  # of the job, without its image
    image: Image
    is_chosen: bool  # the user asked for this image
    plain_image: Callable[[], Image]  # of jobs that install what they need
    is_wanted: Callable[[str], bool]  # an option, by its name
    machine: str
    store: Store
    root: str
    environ: Mapping[str, str]
    remotes: Callable[[], Sequence[RemoteBuilder]]
    captured: frozenset[str]  # variables that the job takes along

    @property
    def takes_long(self) -> bool:
        """Return whether packages are locked, and fetched or built here, before the job can start."""
        return bool(self.image.repository or (self.image.unpacks and self.lines))

    def bring(self, unfinished: Unfinished) -> PodRequirements:
        """Make them ready, and return what the job asks for."""
        if not self.takes_long:
            return self._when_it_starts(self.image)
        return self._in_image(unfinished) if self.image.repository else self._as_layers(unfinished)

    def _when_it_starts(self, image: Image) -> PodRequirements:
        """Return what a job asks for that installs its packages when it starts."""
        _warn_of_secrets(self.lines)
        may_know = not self.lines or self.asked.settings.config_maps  # which may name an index to every pod
        if told := "" if may_know else configured_indexes.note_for_pods(self.lines, self.environ, self.captured):
            output.report_once(told)
        text = "".join(f"{line}\n" for line in self.lines).encode()
        requirements = asdict(_artifact(text, self.store)) if self.lines else None
        return replace(self.asked, image=image.uri, requirements=requirements)

    def _as_layers(self, unfinished: Unfinished) -> PodRequirements:
        """Bring the packages into the store, from where pods unpack them."""
        from kinetic._images import bundled, stored_layers, wheels  # here and below: only for images
        from kinetic._images import lock as locks

        try:
            lock, key = bundled.lock_without_image(self._lock_request(unfinished))
            logins = wheels.with_indexes(self.environ, locks.indexes(self.lines, self.environ))
            layers = stored_layers.page_of(stored_layers.ensure(lock, self.store, logins))
        except ImageBuildError as error:
            output.report_once(f"packages are installed when jobs start: {error.why or error.what}".splitlines()[0])
            return self._when_it_starts(self.image)
        requirements = {"layers": asdict(_artifact(layers, self.store))}
        return replace(self.asked, image=self.image.uri, lock=key, requirements=requirements)

    def _in_image(self, unfinished: Unfinished) -> PodRequirements:
        """Find or build an image with the packages in it."""
        from kinetic._google import login
        from kinetic._images import bundled
        from kinetic._images.builders import NotWaitingError

        try:
            found = bundled.ensure(
                self._lock_request(unfinished),
                self.image.repository,
                google_token=login.token_source(self.environ),
                base=read_variable("KINETIC_BASE_IMAGE", self.environ) or "",
                remotes=unfinished.after_packing(self.remotes),
                waits=self.is_wanted("wait_image"),
            )
        except KineticError as error:
            plain = self.plain_image()
            if isinstance(error, NotWaitingError):
                then = f"meanwhile this job starts in the image {plain.uri} and installs its packages"
                output.report(f"{error.what}; {then}")
            elif self.is_chosen or error.code not in _DOES_WITHOUT:
                raise
            else:  # nobody asked for an image: the job can still do without
                then = f"jobs start in {plain.uri} and install what they need"
                output.report_once(f"no image is built: {error.what}; {then}")
            return self._when_it_starts(plain)
        return replace(self.asked, image=found.uri, lock=found.lock_key)

    def _lock_request(self, unfinished: Unfinished) -> LockRequest:
        from kinetic._images.lock_store import LockRequest

        return LockRequest(
            self.lines, self.asked.python, self.machine, self.store, self.environ, self.root, unfinished.stop
        )


def _warn_of_secrets(lines: Sequence[str]) -> None:
    if any(addresses.secret_in(line, variables=True) for line in lines):
        output.warn_once(
            "the address of an index or a package has a password or token in it, which goes into the store and the "
            "cluster with the job; ${NAME} in its place is filled in when it is installed, from the environment of the "
            "job"
        )


def _published(image: Image, environ: Mapping[str, str]) -> Image:
    """Return a prebuilt image with the tag that its registry has, of this client's Python where there is one."""
    from kinetic._google import login
    from kinetic._images import bundled

    name, _, version = image.uri.rpartition(":")
    python = python_runtime.python_minor()
    token = login.token_source(environ)
    try:
        tag = bundled.find_published(name, version, python, token, environ)
    except ImageUnavailableError:
        raise
    except (KineticError, OSError) as error:
        why = error.what if isinstance(error, KineticError) else str(error)
        output.report_once(f"it is not known here whether {image.uri} exists: {why}")
        return image
    uri = f"{name}:{tag}"
    more = "" if tag != version else f", which must have Python {python}"
    return image._replace(uri=uri, note=f"jobs start in the prebuilt image {uri}{more}")


def rebuild_image(job: JobRecord) -> bool:
    """Build the image of a job again, which was removed from its registry; return whether it is the very same.

    Raises:
        KineticError: It cannot be built here.
    """
    at = status.lock_key(job)
    if not at:
        return False
    from kinetic._google import login
    from kinetic._images import bundled

    token = login.token_source(os.environ)
    return bundled.rebuild(job.image_uri, at, locate.store_of(job), os.environ, token)


def find_dependencies(
    function: Callable[..., Any], plan: Plan, *, base: bool, export: Export | None = None, environ: Mapping[str, str]
) -> Dependencies:
    """Find what the project of a function, whose own file may say so as well, needs installed."""
    options = project_options.read_project_options(plan.root)
    found = dependencies.find(
        plan,
        script=root.source_file(root.innermost(function)) if plan.source is None else plan.source or None,
        wanted=Wanted(options.extras, options.groups),
        export=export,
        base=base,
        environ=environ,
    )
    is_resolved = found.kind != "lock" and (found.lines or base)
    told = configured_indexes.note_of_pip(found.lines, environ) if is_resolved else ""
    return replace(found, notes=(*found.notes, told)) if told else found


def _dependencies(
    function: Callable[..., Any],
    plan: Plan,
    image: Image,
    placement: Placement,
    environ: Mapping[str, str],
    *,
    base: bool,
) -> Dependencies:
    """Return what is installed in the pod, with base packages, and report where that comes from."""
    if not image.installs and not image.repository:
        expected, found = "the project's dependencies", Dependencies(None, "none")  # where no file can be read
        with contextlib.suppress(OptionError):
            found = find_dependencies(function, plan, base=base, environ=environ)
            expected = f"the dependencies in {found.source}" if found.lines or found.filtered else ""
        if expected:
            output.report_once(f"nothing is installed into the image {image.uri}: it must hold {expected}")
        return replace(found, lines=(), brought=None)
    export = functools.partial(read_lock, environ=environ)
    found = find_dependencies(function, plan, base=base, export=export, environ=environ)
    found.check_python(python_runtime.python_version())
    packages = image_choice.base_packages(placement.kind, found.names) if base and not image.has_base else ()
    notes = [image.note, *found.notes[:1], *base_note(packages, base=base or image.has_base)]
    output.report_once("; ".join(filter(None, notes)))
    for note in found.notes[1:]:
        output.report_once(note)
    from_git = next((line for line in found.lines if re.search(_FROM_GIT, line)), None)
    if from_git and not image.repository and not image.has_base:  # said before the job waits for its machine
        shown = addresses.without_secrets(from_git)
        output.warn_once(f"{image.uri} has no git, which is needed to install {shown}: choose an image that has it")
    brought = image_choice.BROUGHT_BY_BASE if base or image.has_base else ()
    own = image.repository and read_variable("KINETIC_BASE_IMAGE", environ)  # which may hold anything
    return replace(found, lines=(*found.lines, *packages), brought=None if own else brought)


def base_note(packages: Sequence[str], *, base: bool) -> tuple[str, ...]:
    """Return which base packages are installed, as none or one sentence."""
    if not base:
        return ("base packages: none, as base_packages = false says",)
    return (f"base packages: {', '.join(packages)}",) if packages else ()


def read_lock(place: Path, extras: Sequence[str], groups: Sequence[str], *, environ: Mapping[str, str]) -> list[str]:
    """Read the uv.lock of a project in a folder, or the lock of a script."""
    from kinetic._images import lock_store  # only for projects with one

    try:
        uv.uv_command()
    except ImageBuildError as error:
        raise ImageBuildError(
            f"the lock of {place} cannot be read without uv, which is not installed", why=error.why, next=error.next
        ) from None
    return lock_store.exported(place, extras, groups, environ=environ)


def _artifact(data: bytes, store: Store) -> Artifact:
    """Return a file that travels with the job, or is in the store under its digest."""
    if len(data) <= INLINE_BYTES:
        return Artifact.within(data)
    sha256 = digests.of_bytes(data)
    key = keys.requirements(sha256)
    # What is there already is made young again: a bucket may delete what is old.
    if not store.put(key, data, if_absent=True) and not store.touch(key):
        store.put(key, data)
    return Artifact(sha256, len(data), key=key)
