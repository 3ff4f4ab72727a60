"""What ``kinetic up`` would do, what that costs and takes, and what is missing; and how the plan is carried out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from kinetic._cluster import regions, rights
from kinetic._cluster.accounts import Billing, Project
from kinetic._cluster.control_plane import FREE_DOLLARS_A_MONTH, SYSTEM_DOLLARS, Cluster, Pool
from kinetic._cluster.inventory import Inventory, nothing, read_all, resources_of
from kinetic._cluster.network import choose_subnet
from kinetic._cluster.project_apis import COMPUTE, billing_error, explaining
from kinetic._cluster.quotas import Quota
from kinetic._cluster.resource import Change, Found, Resource, Setup, State, foreign_error
from kinetic._config import profiles
from kinetic._config.profiles import AUTOPILOT_DISK, Profile
from kinetic._google.api import ApiError
from kinetic._google.artifacts import Repository
from kinetic._google.clusters import NOT_ON_AUTOPILOT, accelerator_label, standard_command
from kinetic._google.locations import region_of
from kinetic._hardware import prices
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, KineticError, OptionError

Action = Literal["make", "change", "keep", "foreign", "remake", "wait"]
_SIGNS = {"make": "+", "remake": "~", "wait": "~", "change": "~", "keep": "=", "foreign": "!"}
_ACTIONS: dict[State, Action] = {  # by the state of a thing; one of ours may have to be changed
    "missing": "make",
    "failed": "remake",
    "pending": "wait",
    "given": "keep",
    "ours": "keep",
    "foreign": "foreign",
}
_HOURS = 730  # of a month
_AT_ONCE = 6
_LONGEST_PROFILE = 64  # characters


class Step(NamedTuple):
    """One thing, and what is done about it."""

    resource: Resource
    found: Found
    action: Action
    changes: tuple[Change, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether anything is sent to change it."""
        return self.action not in {"keep", "foreign"}

    def __str__(self) -> str:
        line = f"  {_SIGNS[self.action]} {self.resource.title}"
        if self.action in {"make", "remake"}:
            low, high = self.resource.seconds
            price = f", ${self.resource.dollars_per_hour:.2g} per hour" if self.resource.dollars_per_hour else ""
            line += f"    {low}–{high} s{price}"
        if self.resource.key == "services" and self.action == "make":
            line += f": {', '.join(each.partition('.')[0] for each in self.found.page['off'])}"
        if self.action == "remake":
            line += f"; it is removed first: {self.found.why}"
        elif self.action == "foreign" or (self.resource.key in {"billing", "services"} and self.found.why):
            line += f": {self.found.why}"
        elif self.action == "wait":
            line += f": {self.found.why.lower()}"
        return line + "".join(f"; {each}" for each in self.changes)


class Plan(NamedTuple):
    """All steps, in the order of the list, and what is known about them."""

    setup: Setup
    steps: tuple[Step, ...]
    # permissions that our account does not have; None where Google could not be asked
    missing_rights: tuple[str, ...] | None
    quotas: tuple[Quota, ...]  # what limits the named hardware in the region
    notes: tuple[str, ...]  # sentences for the user

    @property
    def to_do(self) -> list[Step]:
        return [each for each in self.steps if each.writes]

    @property
    def dollars_idle(self) -> float:
        """What it costs per hour while no job runs, at list price."""
        system = SYSTEM_DOLLARS if self.setup.spec.standard else 0.0
        return sum(each.resource.dollars_per_hour for each in self.steps) + system

    @property
    def seconds(self) -> tuple[int, int]:
        """How long all of it usually takes: what can be made side by side is."""
        ends: dict[str, tuple[int, int]] = {}
        for each in self.steps:
            before = [ends.get(key, (0, 0)) for key in each.resource.needs]
            low, high = each.resource.seconds if each.writes else (0, 0)
            ends[each.resource.key] = (
                low + max((each[0] for each in before), default=0),
                high + max((each[1] for each in before), default=0),
            )
        return max(low for low, _ in ends.values()), max(high for _, high in ends.values())

    @property
    def blocking(self) -> KineticError | None:
        """Return why nothing can be made, or None."""
        for each in self.steps:
            if isinstance(each.resource, Billing):
                if each.writes and not self.setup.spec.billing_account:
                    return billing_error(self.setup.project, each.found.why)
                if each.action == "foreign":
                    return OptionError(
                        f"--billing-account {self.setup.spec.billing_account} was not linked",
                        why=each.found.why,
                        next="kinetic up     without --billing-account, or change the account in the console first",
                    )
            if each.action == "foreign" and isinstance(each.resource, Project):
                step = "kinetic up --create-project --project another-id"
                return KineticError(f"the {each.resource.title} cannot be used", why=each.found.why, next=step,
                                    code="not-ours")  # fmt: skip
            if each.action == "foreign":
                if isinstance(each.resource, Cluster):
                    return KineticError(
                        f"the cluster {self.setup.spec.cluster} exists and was not made by kinetic up",
                        why=each.found.why,
                        next="make another: kinetic up --cluster NAME     or use it as it is: kinetic profile create",
                        code="not-ours",
                    )
                return foreign_error(each.resource, each.found)
        missing = [each for each in self.missing_rights or () if each != rights.ACT_AS]
        return _rights_error(self.setup, missing) if missing else None

    def lines(self) -> list[str]:
        """Write the plan."""
        spec, setup = self.setup.spec, self.setup
        kind = "Standard" if spec.standard else "Autopilot"
        lines = [f"{kind} cluster {spec.cluster} in {setup.location} of the project {spec.project}"]
        lines += [str(each) for each in self.steps]
        if not self.to_do:
            lines.append("everything is there")
        else:
            low, high = self.seconds
            lines.append(f"usually takes {low // 60} to {-(-high // 60)} min")
        lines.append(
            f"idle: about ${self.dollars_idle:.2f} per hour, ${self.dollars_idle * _HOURS:.0f} per month; Google's "
            f"free tier takes off ${FREE_DOLLARS_A_MONTH:.2f} for one {'zonal' if spec.standard else 'Autopilot'} "
            "cluster of a billing account"
        )
        for each in spec.hardware:
            price = prices.dollars_per_hour(each)
            known = f"about ${price:.2f} per hour" if price else "price not known here"
            spot = ", less as Spot" if each.spot and price else ""
            lines.append(f"a job on {each.name}: {known}{spot} while it runs (list price, {prices.READ_ON})")
        lines += [f"quota too small: {each}" for each in self.quotas if each.is_short]
        lines += [f"quota unknown: {each}" for each in self.quotas if each.limit is None]
        if self.missing_rights:
            for role, permissions in rights.by_role(self.missing_rights).items():
                lines.append(f"missing right: {role} ({', '.join(permissions)})")
        elif self.missing_rights is None and any(isinstance(each.resource, Project) for each in self.to_do):
            lines.append("whether this account may make a project is not known before it is tried; --parent asks first")
        elif self.missing_rights is None:
            lines.append("whether rights are missing is not known: Google did not say")
        return lines + [f"note: {each}" for each in self.notes]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON."""
        return {
            "project": self.setup.project,
            "cluster": self.setup.spec.cluster,
            "location": self.setup.location,
            "steps": [
                {
                    "key": each.resource.key,
                    "title": each.resource.title,
                    "action": each.action,
                    "changes": [change._asdict() for change in each.changes],
                    "seconds": list(each.resource.seconds),
                    "dollars_per_hour": each.resource.dollars_per_hour,
                    "why": each.found.why,
                }
                for each in self.steps
            ],
            "dollars_per_hour_idle": self.dollars_idle,
            "hardware": [
                {"name": each.name, "dollars_per_hour": prices.dollars_per_hour(each)}
                for each in self.setup.spec.hardware
            ],
            "missing_rights": None if self.missing_rights is None else list(self.missing_rights),
            "quotas": [
                each._asdict() | {"is_short": each.is_short} for each in self.quotas if each.limit != float("inf")
            ],
            "notes": list(self.notes),
        }


def make_plan(setup: Setup) -> Plan:
    """Read everything at once, choose where the cluster is, and compare; nothing is written."""
    resources = resources_of(setup)
    try:
        inventory = read_all(setup, resources)
        if _take_kind(setup, inventory.of("cluster")):  # its pools belong to the list then
            resources = resources_of(setup)
            inventory = read_all(setup, resources)
    except AccessDeniedError as error:  # for accounts that may not even look, all that is missing is listed at once
        try:
            missing = rights.missing(setup.apis, [right for each in resources for right in each.rights])
        except ApiError as refused:
            raise _unseen_error(setup, error, refused) from error
        if not missing:
            raise
        raise _rights_error(setup, missing) from error
    _check_hardware(setup)
    notes = _check_region(setup, inventory.of("cluster"))
    is_new = setup.spec.create_project and inventory.of("project").state == "missing"
    with explaining("show where the hardware is sold", setup.project):
        choice = regions.choose(setup, is_made=inventory.of("cluster").state != "missing", can_ask=not is_new)
    setup.location = choice.location
    is_off = is_new or COMPUTE in inventory.of("services").page.get(
        "off", ()
    )  # then the subnet is chosen when it is on
    if setup.spec.network and inventory.of("cluster").state == "missing" and not is_off:
        choose_subnet(setup)
    for each in resources:
        if isinstance(each, Pool) and (zones := choice.zones.get(each.wanted.name)) and zones[0] != setup.location:
            each.zone = zones[0]
    steps = tuple(_step(each, inventory) for each in resources)
    absent = _missing_rights(setup, steps, is_new=is_new)
    return Plan(setup, steps, None if absent is None else tuple(absent), choice.quotas, choice.notes + notes)


def plan_from_nothing(setup: Setup) -> Plan:
    """Return what would be made in a project that has nothing; nothing is asked."""
    _check_hardware(setup)
    resources = resources_of(setup)
    inventory = nothing(setup, resources)
    setup.location = regions.choose(setup, is_made=False, can_ask=False).location
    return Plan(setup, tuple(_step(each, inventory) for each in resources), (), (), ())


def _missing_rights(setup: Setup, steps: Sequence[Step], *, is_new: bool) -> list[str] | None:
    """Ask with one request; of a project that is not made yet, its parent: who makes a project is its owner."""
    parent = setup.spec.parent
    if is_new and not parent:
        return None
    # What is in a cluster that exists may be allowed by its own roles, which this question does not see.
    is_made = any(isinstance(each.resource, Cluster) and not each.writes for each in steps)
    writing = [each.resource for each in steps if each.writes and not (is_made and each.resource.in_cluster)]
    needed = {right for each in writing for right in each.rights}
    try:
        return rights.missing(setup.apis, [rights.CREATE_PROJECT] if is_new else needed, parent=parent * is_new)
    except ApiError:
        return None


def _take_kind(setup: Setup, cluster: Found) -> bool:
    """Let a cluster that exists decide whether it is a Standard one; return whether that was not asked for."""
    if cluster.state not in {"ours", "pending", "failed"}:
        return False
    is_autopilot = bool((cluster.page.get("autopilot") or {}).get("enabled"))
    if is_autopilot and setup.spec.standard:
        raise OptionError(
            f"the cluster {setup.spec.cluster} is an Autopilot cluster",
            why="--standard was given; the kind of a cluster cannot be changed",
            next="kinetic up     or make another: kinetic up --standard --cluster NAME",
        )
    if is_autopilot or setup.spec.standard:
        return False
    setup.spec = replace(setup.spec, standard=True)
    return True


def _check_region(setup: Setup, cluster: Found) -> tuple[str, ...]:
    """Return a note where the cluster is not in the region that was named; refuse to make it elsewhere than that."""
    named, region, name = setup.spec.location, setup.region, setup.spec.cluster
    if not named or not region or region_of(named) == region:
        return ()
    if cluster.state not in {"missing", "failed"}:
        return (f"the cluster {name} is in {setup.location}; another one in {named} needs another name: --cluster",)
    raise OptionError(
        f"a cluster {name} cannot be made in {named}: what is left of an earlier one is in {region}",
        why="its bucket, its subnet or a cluster that failed is there, and cannot move; kinetic down keeps the bucket "
        "with the results",
        next=f"kinetic up --region {region}     or kinetic up --cluster another-name --region {named}     or remove "
        "what is left: kinetic down --delete-data",
    )


def _check_hardware(setup: Setup) -> None:
    """Refuse hardware that an Autopilot cluster never gets."""
    for each in setup.spec.hardware:
        if not setup.spec.standard and accelerator_label(each) in NOT_ON_AUTOPILOT:
            raise OptionError(
                f"{each.name} needs a Standard cluster",
                why=f"Autopilot, which {setup.spec.cluster} is or would be, has no {accelerator_label(each)}",
                next=standard_command(each),
            )


def _rights_error(setup: Setup, missing: Sequence[str]) -> AccessDeniedError:
    roles = rights.by_role(missing)
    where = setup.spec.parent if [*missing] == [rights.CREATE_PROJECT] else setup.project
    count = f"{len(missing)} permission{'s are' if len(missing) > 1 else ' is'} missing"
    return AccessDeniedError(
        f"this account may not make the cluster {setup.spec.cluster}: {count}",
        why="; ".join(f"{role} for {', '.join(each)}" for role, each in roles.items()),
        next=f"ask an administrator of {where} for {', '.join(roles)}",
    )


def _unseen_error(setup: Setup, error: AccessDeniedError, refused: ApiError) -> AccessDeniedError:
    """Return why not even our rights could be asked: Google says the same of a missing project and of a stranger's."""
    is_about_quota = refused.reason == "USER_PROJECT_DENIED"
    if refused.status not in {403, 404} or is_about_quota or error.code == "organization-policy":
        return error
    return AccessDeniedError(
        f"there is no project {setup.project} that this account may see",
        why=refused.message,
        next="check its id: https://console.cloud.google.com/cloud-resource-manager     or ask its administrator for "
        "roles/viewer     or make it: kinetic up --create-project",
    )


def _step(resource: Resource, inventory: Inventory) -> Step:
    found = inventory.of(resource.key)
    changes = tuple(resource.diff(found)) if found.state == "ours" else ()
    return Step(resource, found, "change" if changes else _ACTIONS[found.state], changes)


def levels_of(steps: Sequence[Step]) -> list[list[Step]]:
    """Return steps in groups: what is in one group needs nothing of it, and only what earlier groups have."""
    depth: dict[str, int] = {}
    groups: dict[int, list[Step]] = {}
    for each in steps:  # the list is in an order in which it can be made
        depth[each.resource.key] = 1 + max((depth.get(key, 0) for key in each.resource.needs), default=0)
        groups.setdefault(depth[each.resource.key], []).append(each)
    return [groups[level] for level in sorted(groups)]


# -------------------------------------------------------------------------------------------------------- carrying out


def carry_out(plan: Plan, report: Callable[[Step], object] = lambda _: None) -> None:
    """Make and change what the plan says, and wait until all of it exists.

    Killed at any point, a new plan has the rest. What is made is never made twice: each thing has one name.

    Raises:
        KineticError: Google refused a step; what was made stays, and those that run have ended.
    """
    for level in levels_of(plan.steps):
        tasks = [partial(_carry_out, plan.setup, each) for each in level if each.writes]
        # Google allows one operation of a cluster at a time, so its pools follow each other.
        pools = [each for each in level if each.resource.key.startswith("pool ")]
        for step in in_parallel(None, tasks, limit=1 if pools else _AT_ONCE):
            report(step)


def _carry_out(setup: Setup, step: Step) -> Step:
    resource, found = step.resource, step.found
    with explaining(f"make the {resource.title}", setup.project):
        if step.action == "change":
            resource.change(found, step.changes)
        else:
            resource.make(found)
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
