"""``kinetic image`` and ``kinetic build-image``: the images that jobs start from."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._config.variables import read_variable
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, count_text, size_text
from kinetic.errors import ImageError, KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kinetic._images.container_registry import Registry
    from kinetic._images.image_notes import ImageNote, Listed

_COLUMNS = (
    Column("IMAGE"),
    Column("PYTHON"),
    Column("PACKAGES", right=True),
    Column("SIZE", right=True),
    Column("AGE", right=True),
    Column("LAST USE", right=True),
    Column("REPOSITORY", flexible=True, spare=1),
)
_LOCK_COLUMNS = (
    Column("PACKAGE"),
    Column("VERSION"),
    Column("SIZE", right=True),
    Column("FILE", flexible=True, spare=1),
)
_VERIFIED_COLUMNS = (Column("STATE"), Column("LAYER"), Column("CONTENTS", flexible=True))
_PYTHON = re.compile(r"3\.[0-9]+")
_REFUSED = "nothing was built"
_KINDS = ("cpu", "gpu", "tpu")
_MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}


@click.group(cls=LazyGroup, path=("image",))
def image() -> None:
    """List, inspect, verify and remove images of jobs.

    Example: kinetic image list
    """


@click.command("list")
@shared_options.json_option
def list_(as_json: bool) -> None:
    """List the images that were built for jobs, last used first.

    Example: kinetic image list
    """
    from kinetic._images import image_notes

    found, others = image_notes.images(shared_options.target_store(), os.environ)
    now = time.time()
    if as_json:
        output_format.print_document(images=[_page(each) for each in found], of_others=others)
        return
    if not found:
        click.echo('There are no images; jobs with container_image="bundled" build them', err=True)
    else:
        output_format.print_table(_COLUMNS, [_row(each, now) for each in found])
    if others:
        click.echo(f"{count_text(others, 'image')} of other users not shown: their notes have another key", err=True)


def _row(listed: Listed, now: float) -> list[str]:
    note = listed.image
    return [
        note.tag.removeprefix("env-")[:12],
        note.python,
        str(note.packages),
        size_text(note.size_bytes),
        age_text(now - note.built_at),
        age_text(now - listed.used_at),
        note.uri.partition("@")[0],
    ]


def _page(listed: Listed) -> dict[str, Any]:
    from dataclasses import asdict

    from kinetic._wire import keys

    page = asdict(listed.image)
    return {**page, "built_at": keys.format_utc(page["built_at"]), "used_at": keys.format_utc(listed.used_at)}


@click.command
@click.argument("name", metavar="IMAGE")
@shared_options.json_option
def show(name: str, as_json: bool) -> None:
    """Show which packages an image has: its lock.

    Example: kinetic image show 3f1c0a9b2d44
    """
    from kinetic._images import lock_store

    note = _find(name)
    locked = lock_store.read_lock(shared_options.target_store(), note.lock, os.environ)
    if as_json:
        wheels = [{"name": each.name, "version": each.version, "file": each.filename, "sha256": each.sha256}
                  for each in locked.lock.wheels]  # fmt: skip
        output_format.print_document(image=note.uri, base=f"{locked.source}", packages=wheels)
        return
    click.echo(f"image   {note.uri}\nbase    {locked.source}\npython  {note.python}, {note.machine}\n")
    rows = [[each.name, each.version, size_text(each.size_bytes), each.filename] for each in locked.lock.wheels]
    output_format.print_table(_LOCK_COLUMNS, rows)


@click.command
@click.argument("name", metavar="IMAGE")
@shared_options.json_option
def verify(name: str, as_json: bool) -> None:
    """Verify that an image is what its lock makes.

    Its packages are fetched from their index, and each layer of them is written once more and compared. IMAGE is a name
    from kinetic image list, or the address of an image with a digest or a tag. Exits with 1 if a layer is different.

    Example: kinetic image verify us-docker.pkg.dev/team/kinetic/jobs@sha256:...
    """
    from kinetic._config import home
    from kinetic._images import verify as verification
    from kinetic._images.container_registry import Reference
    from kinetic._images.wheels import WheelCache

    reference = Reference.parse(name if "/" in name else _find(name).uri)
    cache = WheelCache(home.kinetic_home(os.environ) / "cache" / "wheels")
    with _registry(f"{reference.host}/{reference.name}") as registry:
        found = verification.verify(registry, reference.digest or reference.tag, cache)
    if as_json:
        output_format.print_document(image=str(reference), layers=[each._asdict() for each in found])
    else:
        output_format.print_table(_VERIFIED_COLUMNS, [[each.state, each.layer[7:19], each.contents] for each in found])
    if different := [each for each in found if each.state == "different"]:
        click.echo(f"{count_text(len(different), 'layer')} not made from the lock", err=True)
        sys.exit(1)


@click.command
@shared_options.prune_options("30d")
@shared_options.json_option
def prune(older: float, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove images that no job has used for long.

    Layers that no image has any more are removed as well. A job that still waits for one has it built again.

    Example: kinetic image prune --older-than 7d
    """
    from kinetic._images import image_notes

    store, now = shared_options.target_store(), time.time()
    found, _ = image_notes.images(store, os.environ)
    old = [each for each in found if now - each.used_at > older]
    if old:
        used = _images_in_use()
        kept = [each for each in old if each.image.uri in used]
        old = [each for each in old if each.image.uri not in used]
        if kept:
            click.echo(f"{count_text(len(kept), 'image')} kept: jobs that have not ended use them", err=True)
    if not old:
        click.echo("there was nothing to remove", err=True)
    elif not as_json:
        output_format.print_table(_COLUMNS, [_row(each, now) for each in old])
    if dry_run or not old:
        if as_json:
            output_format.print_document(images=[_page(each) for each in old], removed=False)
        return
    removed = count_text(len(old), "image")
    refused = f"nothing was removed: {removed} would be removed"
    if not yes and not shared_options.confirm(f"Remove {removed}?", refused=refused):
        return
    repositories = {each.image.uri.partition("@")[0] for each in old}
    count = 0
    for repository in sorted(repositories):
        with _registry(repository) as registry:
            for each in old:
                if each.image.uri.startswith(f"{repository}@"):
                    image_notes.remove(each.image, registry, store)
            count += image_notes.remove_unused_layers(registry)
    if as_json:
        output_format.print_document(images=[_page(each) for each in old], removed=True)
    click.echo(f"removed {removed} and {count_text(count, 'layer')}", err=True)


@click.command("build-image")
@click.option("--repo", metavar="REPOSITORY", help="Where the images go (KINETIC_BASE_IMAGE_REPO).")
@click.option("--category", "categories", multiple=True, type=click.Choice(_KINDS), help="Hardware; may be repeated.")
@click.option("--tag", metavar="TAG", help="Instead of kinetic's version.")
@click.option(
    "--dockerfile",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Build this Dockerfile in Cloud Build, in the folder of its project.",
)
@click.option("--python", metavar="X.Y", help="The Python of the images: the one that runs this command.")
@click.option(
    "--platform", type=click.Choice(tuple(_MACHINES)), default="x86_64", help="Of the hosts.", show_default=True
)
@click.option("--dry-run", is_flag=True, help="Only show what would be built.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def build_image(
    repo: str | None,
    categories: tuple[str, ...],
    tag: str | None,
    dockerfile: str | None,
    python: str | None,
    platform: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Build the images of the prebuilt mode.

    Jobs with container_image="prebuilt" start from them: JAX and Keras for each kind of hardware. No cluster, no Docker
    and no build service is needed. Without --category all three are built.

    Ctrl-C ends it: what was sent stays in the repository, and the same command continues from there.

    With --dockerfile, Cloud Build builds one image, which gets the names of these categories. It needs a Google login
    and a store in gs://. Its log is shown; Ctrl-C detaches, and a second one cancels the build.

    Example: kinetic build-image --repo us-docker.pkg.dev/team/kinetic --category tpu
    """
    from kinetic._version import __version__
    from kinetic._wire import python_runtime

    repository = repo or read_variable("KINETIC_BASE_IMAGE_REPO", os.environ)
    if not repository:
        raise OptionError(
            "--repo is missing",
            why="it says where the images go",
            next="kinetic build-image --repo us-docker.pkg.dev/PROJECT/kinetic",
        )
    here = python_runtime.python_minor()
    names = {kind: f"{repository.rstrip('/')}/base-{kind}" for kind in categories or _KINDS}
    tags = [f"{tag or __version__}-py{python or here}", tag or __version__]
    if dockerfile:
        if python and not _PYTHON.fullmatch(python):
            raise OptionError(f"--python={python!r} is not a version", next=f"write it as in {here}")
        if platform != "x86_64":
            raise OptionError(
                f"a Dockerfile cannot be built for {platform}",
                why="the machines of Cloud Build have x86_64 processors",
                next="build it on such a machine, and name the image: container_image=",
            )
        _build_dockerfile(dockerfile, repository, [*names.values()], tags, dry_run=dry_run, yes=yes)
        return
    if python not in {None, here}:
        raise OptionError(
            f"images for Python {python} cannot be built with Python {here}",
            why="their bytecode is compiled by the Python that runs this command",
            next=f"install kinetic for Python {python}, and run the command there",
        )
    if platform != "x86_64" and not tag:
        raise OptionError(
            f"--platform={platform} needs --tag",
            why="the images for x86_64 hosts would lose their tags to these",
            next=f"kinetic build-image --repo {repository} --platform {platform} --tag {__version__}-{platform}",
        )
    _build_prebuilt(names, tags, here, platform, dry_run=dry_run, yes=yes)


def _build_prebuilt(
    names: Mapping[str, str], tags: Sequence[str], python: str, platform: str, *, dry_run: bool, yes: bool
) -> None:
    """Build the image of each kind of hardware, and give it each tag."""
    from kinetic._google import login
    from kinetic._images import bundled, image_choice, lock_store

    for kind, name in names.items():
        lines = ", ".join(image_choice.base_packages(kind, ()))
        click.echo(f"{name}:{tags[1]}  Python {python}, {platform}, {lines}", err=True)
    if dry_run or not (yes or shared_options.confirm("Build these?", refused=_REFUSED)):
        return
    for kind, name in names.items():
        token = login.token_source(os.environ)
        try:
            packages, store = image_choice.base_packages(kind, ()), shared_options.target_store()
            request = lock_store.LockRequest(packages, python, _MACHINES[platform], store, os.environ)
            base = read_variable("KINETIC_BASE_IMAGE", os.environ) or ""
            found = bundled.ensure(request, name, google_token=token, base=base)
            bundled.publish(found, tags, token, os.environ)
        except KeyboardInterrupt:
            output.leave_line()
            output.report(f"interrupted: {name} is not finished, and has no new tag")
            output.report("what was sent stays, and the same command continues from there")
            raise
        click.echo(f"{name}:{tags[1]}")


def _build_dockerfile(
    dockerfile: str, repository: str, names: Sequence[str], tags: Sequence[str], *, dry_run: bool, yes: bool
) -> None:
    """Build a Dockerfile in Cloud Build, and push it under each name with each tag."""
    from kinetic._backends import registry
    from kinetic._config import home
    from kinetic._config import target as settings
    from kinetic._images import cloud_build
    from kinetic._project import build_context
    from kinetic._stores import open_store

    context = build_context.find(dockerfile, exclude=(home.kinetic_home(os.environ),))
    for note in context.notes:
        output.report(note)
    for name in names:
        click.echo(f"{name}:{tags[1]}  {tags[0]}, from {context.dockerfile}", err=True)
    files = f"{count_text(context.found.files, 'file')}, {size_text(context.found.bytes)}"
    click.echo(f"Cloud Build gets {files} of {context.folder}", err=True)
    if dry_run or not (yes or shared_options.confirm("Build this?", refused=_REFUSED)):
        return
    target = settings.resolve()
    project = "" if registry.is_here(target.backend.value) else target.project.value
    store = open_store(target.store.value)
    cloud = cloud_build.connect(project, target.zone.value, repository, store, os.environ)
    with tempfile.TemporaryDirectory(prefix="kinetic-build-image-") as folder:
        packed = Path(folder) / "context.tar.gz"
        with output.phase("packing and sending the folder", summary=False):
            skipped = context.pack(packed)
            size = packed.stat().st_size
            running = cloud.start_dockerfile(
                packed, [f"{name}:{each}" for name in names for each in tags], context.dockerfile
            )
    for note in skipped:
        output.report(note)
    output.report(f"sent {size_text(size)}; {running.build.id} builds it: {running.build.show_command}")
    cloud.finish(running)
    for name in names:
        click.echo(f"{name}:{tags[1]}")


def _registry(repository: str) -> Registry:
    from kinetic._google import login
    from kinetic._images import bundled
    from kinetic._images.container_registry import Reference

    connect = bundled.connector(login.token_source(os.environ), os.environ)
    return connect(Reference.parse(f"{repository}:env"))


def _images_in_use() -> set[str]:
    """Return the images of jobs that have not ended, and of all batches; a job that cannot be seen has not ended."""
    from kinetic._jobs import find as job_find
    from kinetic._jobs import locate
    from kinetic._jobs.status import observe_many
    from kinetic._wire import keys

    jobs = [job for job in job_find.list_stored_jobs(shared_options.target_of({})) if job.image_uri]
    used = {job.image_uri for job, seen in zip(jobs, observe_many(jobs), strict=True) if not seen.status.is_final}
    store = shared_options.target_store()
    for group_id in store.folders(keys.GROUPS):
        with contextlib.suppress(KineticError):  # being removed, or damaged
            if (group := locate.verified_group(store, group_id)) is not None:
                used.add(str(group.handle.get("image_uri") or ""))
    return used


def _find(name: str) -> ImageNote:
    from kinetic._images import image_notes

    found = image_notes.find(name, shared_options.target_store(), os.environ)
    if found is None:
        raise ImageError(
            f"no image is named {name!r}",
            why="an image is named by its address, its tag, or at least 6 characters with which only its tag begins",
            next="kinetic image list",
            code="no-image",
        )
    return found
