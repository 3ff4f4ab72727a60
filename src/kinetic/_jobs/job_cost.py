"""What jobs cost: the deadline that a limit in dollars becomes, and the dollars of a job that ran.

Both are of list prices, for the hardware that the job held while its function ran. What Google bills is more: a node
runs before and after the job. CPU jobs have no price of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic import _hardware as hardware
from kinetic._backends import registry
from kinetic._config import home as config_home
from kinetic._hardware import prices
from kinetic._jobs import option_sources
from kinetic._output import terminal as output
from kinetic._output.format import duration_text
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._config.target import Target
    from kinetic._hardware import Placement
    from kinetic._hardware.prices import Rates
    from kinetic._jobs.job_options import Options
    from kinetic._wire.records import JobRecord

_HOUR = 3600.0  # seconds
_LEAST_SECONDS = 60.0  # a deadline below it ends a job before it did anything
_OPTION = "max_cost"


def rates_file(environ: Mapping[str, str]) -> Path:
    """Return where ``kinetic cost`` keeps what it read of Google's price list."""
    return config_home.kinetic_home(environ) / "cache" / "rates.json"


def kept_rates(environ: Mapping[str, str]) -> Rates | None:
    """Return what was read of Google's price list within a day; nothing is asked."""
    return prices.read_rates(rates_file(environ))


def limited(options: Options, placement: Placement, target: Target, root: Path, environ: Mapping[str, str]) -> Options:
    """Return options whose deadline keeps a job within what it may cost, if the project or a variable says so.

    Raises:
        OptionError: The price of the hardware is not known and there is no deadline, or the limit is for seconds.
    """
    found = option_sources.look_up(root, target.profile, environ, only=[_OPTION]).options[_OPTION]
    if found.value is None or registry.is_here(target.backend.value):
        return options
    limit = float(found.value)  # type: ignore[arg-type]  # checked to be a number
    if placement.kind == "cpu":
        output.report_once(f"{_OPTION} ({found.source}) does not limit CPU jobs: they have no price of their own")
        return options
    from kinetic._google.locations import region_of  # here and below: only where a price is asked for

    price = prices.price_of(placement, region_of(target.zone.value), kept_rates(environ))
    if price is None:
        if options.deadline is not None:
            note = (
                f"{_OPTION} ({found.source}) is not applied: the price of {placement.name} is not known; the deadline"
            )
            output.report_once(f"{note} of {duration_text(options.deadline)} holds")
            return options
        raise OptionError(
            f"{_OPTION}={limit:g} cannot be kept: the price of {placement.name} is not known",
            why=f"{_OPTION} is set by {found.source}; neither Google's price list of today nor kinetic's table has it",
            next=f"kinetic cost {placement.name}     reads the list; or give the job a deadline",
            code="price-unknown",
        )
    tries = (options.retries or 0) + 1
    seconds = limit / price.dollars_per_hour * _HOUR / tries
    if seconds < _LEAST_SECONDS:
        raise OptionError(
            f"{_OPTION}={limit:g} is {seconds:.0f} s on {placement.name}",
            why=f"it costs about ${price.dollars_per_hour:.2f} per hour ({price.source})"
            + (f", and {tries} attempts share the limit" if tries > 1 else ""),
            next=f"raise {_OPTION} ({found.source}), or use a smaller accelerator: kinetic accelerators",
        )
    if options.deadline is not None and options.deadline <= seconds:
        return options
    each = f" for each of {tries} attempts" if tries > 1 else ""
    output.report_once(
        f"{_OPTION} of ${limit:g} is a deadline of {duration_text(seconds)}{each}: {placement.name} costs about "
        f"${price.dollars_per_hour:.2f} per hour ({price.source})"
    )
    return options._replace(deadline=seconds)


def dollars_of(page: Mapping[str, Any], zone: str, rates: Rates | None, *, spot: bool = False) -> float | None:
    """Return what a job, as ``job_to_json`` has it, cost so far at list price in the zone of its cluster.

    None on this machine, for a CPU, and where no price is known.
    """
    seconds = page["duration_seconds"]
    if seconds is None or registry.is_here(page["backend"]):
        return None
    from kinetic._google.locations import region_of

    price = dollars_per_hour(str(page["accelerator"]), rates, spot=spot, region=region_of(zone))
    return None if price is None else price * float(seconds) / _HOUR


def so_far(job: JobRecord, page: Mapping[str, Any], environ: Mapping[str, str]) -> float | None:
    """Return what one job cost so far, on Spot if it asked for that; see ``dollars_of``."""
    from kinetic._jobs import status  # a list has its rows, and asks nothing of each job

    return dollars_of(page, job.zone, kept_rates(environ), spot=status.is_spot(job))


def dollars_per_hour(accelerator: str, rates: Rates | None, *, spot: bool, region: str = "") -> float | None:
    """Return what an accelerator costs, without a region where it is cheapest; None where no price is known."""
    wanted = _placement(accelerator, spot)
    price = None if wanted is None else prices.price_of(wanted, region, rates)
    return None if price is None else price.dollars_per_hour


@functools.cache
def _placement(accelerator: str, spot: bool) -> Placement | None:
    try:
        return hardware.place(accelerator, spot=spot)
    except KineticError:  # of another version of kinetic
        return None


def dollars_text(dollars: float | None) -> str:
    """Write an amount for a person; "" for none."""
    if dollars is None:
        return ""
    return f"${dollars:.2f}" if dollars >= 0.01 or dollars == 0 else "<$0.01"
