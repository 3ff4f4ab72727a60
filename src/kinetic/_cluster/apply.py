"""Carry out a plan: make what is missing in the order of what needs what, side by side where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kinetic._cluster.plan import Plan, Step, levels_of
from kinetic._cluster.project_apis import explained
from kinetic._cluster.resource import Setup
from kinetic._config import profiles
from kinetic._config.profiles import AUTOPILOT_DISK, Profile
from kinetic._google.api import ApiError
from kinetic._google.artifacts import Repository
from kinetic._stores.parallel import in_parallel

_AT_ONCE = 6
_LONGEST_PROFILE = 64  # characters


def make(plan: Plan, report: Callable[[Step], object] = lambda _: None) -> None:
    """Make and change what the plan says, and wait until all of it exists.

    Killed at any point, a new plan has the rest. What is made is never made twice: each thing has one name.

    Args:
        plan: What to do.
        report: Called with each step that is done.

    Raises:
        KineticError: Google refused a step; what was made stays, and those that run have ended.
    """
    for level in levels_of(plan.steps):
        tasks = [partial(_make, plan.setup, each) for each in level if each.writes]
        # Google allows one operation of a cluster at a time, so its pools follow each other.
        pools = [each for each in level if each.resource.key.startswith("pool ")]
        for step in in_parallel(None, tasks, limit=1 if pools else _AT_ONCE):
            report(step)


def _make(setup: Setup, step: Step) -> Step:
    resource, found = step.resource, step.found
    try:
        if step.action == "change":
            resource.change(found, step.changes)
        else:
            resource.make(found)
    except ApiError as error:
        raise explained(error, f"make the {resource.title}", setup.project) from error
    return step


def save_profile(setup: Setup, environ: dict[str, str]) -> str:
    """Save a profile that leads to the cluster, unless one is there; return its name.

    A profile of that name which leads elsewhere stays as it is: then the name has the project behind it.
    """
    spec = setup.spec
    saved = profiles.load(environ).saved
    for name in (spec.cluster, f"{spec.cluster}-{spec.project}"[:_LONGEST_PROFILE]):
        before = saved.get(name)
        if before is None or (before.project, before.cluster) == (spec.project, spec.cluster):
            break
    wanted = (before or Profile(name))._replace(
        project=spec.project, zone=setup.location, cluster=spec.cluster, namespace=spec.namespace
    )
    if spec.registry and not wanted.image_repo:
        repository = Repository(spec.project, setup.region, spec.own_name)
        wanted = wanted._replace(image_repo=f"{repository.image_prefix}/jobs")
    if not spec.standard and not wanted.cpu_disk:
        wanted = wanted._replace(cpu_disk=AUTOPILOT_DISK)
    if wanted != before:
        profiles.save(environ, wanted, replace=before is not None)
    return name
