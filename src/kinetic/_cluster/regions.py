"""Where a cluster is made: a region, or a zone, that sells the hardware that was named and where quota allows it."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence

from kinetic._cluster import quotas
from kinetic._cluster.project_apis import COMPUTE, ProjectApis
from kinetic._cluster.quotas import Quota
from kinetic._cluster.resource import DEFAULT_REGION, Setup
from kinetic._google.api import Page
from kinetic._google.locations import parent_zone, region_of
from kinetic._hardware import Placement
from kinetic._wire import NamedTuple
from kinetic.errors import CapacityError, KineticError, OptionError

# The order in which regions are tried: cheap ones with much hardware first. All others follow by name.
_PREFERRED = (
    "us-central1", "us-east5", "us-west4", "us-east1", "us-west1", "us-south1", "us-central2", "europe-west4",
)  # fmt: skip
# Where TPUs are sold, for a project in which Google cannot be asked yet. General knowledge, not verified.
_USUAL = {
    "v4": "us-central2", "v5p": "us-east5", "v6e": "us-east5", "v5litepod": "us-west4", "tpu7x": "us-central1",
    "h200": "us-central1", "b200": "us-central1",
}  # fmt: skip
_WITHOUT_A = frozenset({"us-east1", "europe-west1"})  # their zones begin with b
_MOST_ASKED = 6  # regions whose quota is read
_SHOWN = 6  # regions in a message


class Choice(NamedTuple):
    """Where, and what is known of the hardware there."""

    location: str  # a region, or a zone for a Standard cluster
    # the zones of its region that sell each hardware, by name, the best first; nothing where Google could not be asked
    zones: dict[str, tuple[str, ...]]
    quotas: tuple[Quota, ...] = ()  # what limits each hardware there
    notes: tuple[str, ...] = ()  # sentences for the user


def choose(setup: Setup, *, is_made: bool, can_ask: bool = True) -> Choice:
    """Return where the cluster is made, or what is known of where it is.

    Args:
        setup: Its location is that of what exists already, else the one that the user named, else "".
        is_made: Whether the cluster exists: then its place is settled.
        can_ask: Whether there is a project in which Google can be asked.

    Raises:
        CapacityError: No region sells all of the hardware, or the named one does not.
    """
    wanted = [each for each in setup.spec.hardware if each.kind != "cpu"]
    sold = {each.name: zones_selling(setup.apis, str(each.machine_type)) if can_ask else () for each in wanted}
    unknown = [each for each in wanted if not sold[each.name]]
    notes = [
        f"where {each.name} is sold is not known yet: Compute Engine is off, or does not list it" for each in unknown
    ]
    if setup.location:
        if can_ask and not is_made:
            _check_place(setup.apis, setup.location)
        # A pool may be in any zone of the region; who names the zone of a new Standard cluster wants its pools there.
        place = setup.location if setup.spec.standard and not is_made else setup.region
        away = [each.name for each in wanted if sold[each.name] and not _in(sold[each.name], place)]
        if away and not is_made:
            raise _not_sold(away[0], place, sold[away[0]])
        notes += [f"{place} does not sell {name}; {_regions_text(sold[name])} do" for name in away]
        region, limits = setup.region, _quotas(setup.apis, wanted, setup.region) if can_ask else []
    else:
        region, limits = _best(setup.apis, wanted, sold)
    location = setup.location or region
    if not is_made and not setup.spec.standard:
        location = region  # Google takes no zone for an Autopilot cluster
    elif not is_made:
        if location == region:
            location = _zone(setup.apis if can_ask else None, region, list(sold.values()))
        location = parent_zone(location)

    def rank(zone: str) -> tuple[bool, bool, bool]:
        return zone != setup.location, zone != location, zone != parent_zone(zone)

    zones = {
        name: sorted((each for each in found if region_of(each) == region), key=rank) for name, found in sold.items()
    }
    return Choice(location, {name: tuple(found) for name, found in zones.items()}, tuple(limits), tuple(notes))


def _check_place(apis: ProjectApis, location: str) -> None:
    """Raise OptionError for a region or a zone that does not exist, as far as Google lists them."""
    page: Page = {}
    with contextlib.suppress(KineticError):  # who may not list them finds out later
        page = apis.read(COMPUTE, f"compute/v1/projects/{apis.project}/regions", fields="items(name,zones)") or {}
    zones = [str(each).rpartition("/")[2] for item in page.get("items") or () for each in item.get("zones") or ()]
    places = {*zones, *map(region_of, zones)}
    if not places or not places.isdisjoint({location, parent_zone(location)}):
        return
    near = difflib.get_close_matches(location, sorted(places), n=3) or [DEFAULT_REGION]
    raise OptionError(
        f"Google has no region or zone {location}",
        why=f"the nearest names are {', '.join(near)}",
        next=f"kinetic up --region {near[0]}",
    )


def zones_selling(apis: ProjectApis, machine: str, *, must_answer: bool = False) -> tuple[str, ...]:
    """Return every zone of the world that sells a machine type, sorted; one request.

    None where Compute Engine is off, unless it ``must_answer``: then that is an ApiError.
    """
    path = f"compute/v1/projects/{apis.project}/aggregated/machineTypes"
    query = {"filter": f"name={machine}", "fields": "items/*/machineTypes(name,zone)"}
    page = apis.call(COMPUTE, "GET", path, query=query) if must_answer else apis.read(COMPUTE, path, **query)
    items = (page or {}).get("items") or {}
    return tuple(sorted(zone.rpartition("/")[2] for zone, each in items.items() if each.get("machineTypes")))


def _best(apis: ProjectApis, wanted: Sequence[Placement], sold: dict[str, tuple[str, ...]]) -> tuple[str, list[Quota]]:
    # An Autopilot cluster makes nodes in AI zones only for pods that ask for such a zone.
    usual = [[zone for zone in zones if zone == parent_zone(zone)] or zones for zones in sold.values()]
    known = [{region_of(zone) for zone in zones} for zones in usual if zones]
    if not known:
        return next((_USUAL[each.family] for each in wanted if each.family in _USUAL), DEFAULT_REGION), []
    common = set.intersection(*known)
    if not common:
        texts = "; ".join(f"{name}: {_regions_text(zones)}" for name, zones in sold.items())
        raise CapacityError(
            "no region sells all of this hardware", why=texts, next="make a cluster for each: kinetic up --cluster NAME"
        )
    order = sorted(common, key=lambda each: (_PREFERRED.index(each) if each in _PREFERRED else 99, each))
    first: tuple[str, list[Quota]] | None = None
    for region in order[:_MOST_ASKED]:
        limits = _quotas(apis, wanted, region)
        first = first or (region, limits)
        if not any(each.is_short for each in limits):
            return region, limits
    return first or (order[0], [])


def _quotas(apis: ProjectApis, wanted: Sequence[Placement], region: str) -> list[Quota]:
    return [found for each in wanted for found in quotas.quotas_of(apis, each, region)]


def _in(zones: Sequence[str], location: str) -> bool:
    return any(location in {zone, region_of(zone)} for zone in zones)


def _zone(apis: ProjectApis | None, region: str, sold: Sequence[Sequence[str]]) -> str:
    """Return the zone of a region that sells the most of what was named, else its first."""
    known = sorted({zone for zones in sold for zone in zones if region_of(zone) == region})
    if not known and apis is not None:
        page = apis.read(COMPUTE, f"compute/v1/projects/{apis.project}/regions/{region}", fields="zones") or {}
        known = sorted(str(each).rpartition("/")[2] for each in page.get("zones") or ())
    usual = f"{region}-{'b' if region in _WITHOUT_A else 'a'}"
    return max(known, key=lambda zone: sum(zone in zones for zones in sold), default=usual)


def _regions_text(zones: Sequence[str]) -> str:
    regions = sorted({region_of(zone) for zone in zones})
    more = f" and {len(regions) - _SHOWN} more" if len(regions) > _SHOWN else ""
    return ", ".join(regions[:_SHOWN]) + more


def _not_sold(name: str, location: str, zones: Sequence[str]) -> CapacityError:
    first = region_of(zones[0])
    return CapacityError(
        f"{location} does not sell {name}", why=f"these do: {_regions_text(zones)}", next=f"kinetic up --region {first}"
    )
