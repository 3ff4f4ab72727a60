"""``kinetic cost``: what accelerators cost per hour, from Google's price list of the day or a dated table."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import shared_options
from kinetic._cli.error_output import ERROR
from kinetic._config.variables import read_variable
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic._hardware import Placement
    from kinetic._hardware.prices import Price, Rates

_HOURS = 24  # of a day
NOT_INCLUDED = (
    "disks and local SSDs",
    "traffic and NAT",
    "the cluster itself ($0.10 per hour)",
    "Autopilot's premium",
    "the time of a node before and after a job",
    "discounts and taxes",
)
_COLUMNS = (
    Column("ACCELERATOR"),
    Column("MACHINES", spare=2),
    Column("REGION", spare=1),
    Column("$/HOUR", right=True),
    Column("$/DAY", right=True, spare=3),
    Column("SOURCE", flexible=True, wraps=True),
)


@click.command
@click.argument(
    "names", nargs=-1, required=True, metavar="ACCELERATOR...", shell_complete=shared_options.complete_accelerators
)
@click.option("--region", metavar="NAME", help="Where.  [default: that of the profile, or the cheapest]")
@click.option("--spot", is_flag=True, help="As Spot, which can be taken away at short notice.")
@click.option(
    "--project", metavar="NAME", help="Google Cloud project that asks.  [default: KINETIC_PROJECT, or the profile]"
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, for a spreadsheet.")
@shared_options.json_option
def cost(
    names: tuple[str, ...], region: str | None, spot: bool, project: str | None, as_csv: bool, as_json: bool
) -> None:
    """Show what accelerators cost per hour.

    Prices are from Google's price list (the Cloud Billing Catalog), which is read once a day and kept. Without a login,
    or where Google does not answer, they are from a dated table, which has no prices of Spot and of the newest GPUs.
    The exit code is 1 if a price is not known. --csv has the columns of --json.

    Example: kinetic cost l4 v5litepod-16 --region us-west4
    """
    from kinetic import _hardware as hardware
    from kinetic._config import profiles
    from kinetic._google.locations import region_of
    from kinetic._hardware import prices

    if as_csv and as_json:
        raise click.UsageError("--csv and --json cannot be used together")
    wanted = [hardware.place(name, spot=spot) for name in names]
    for each in wanted:
        if each.kind == "cpu":
            why = "a CPU job runs on any node, and shares it with others"
            raise OptionError("a CPU job has no price of its own", why=why, next="kinetic cost l4")
    profile = profiles.choose(os.environ).profile
    where = region or read_variable("KINETIC_ZONE", os.environ) or getattr(profile, "zone", "")
    doing = [""]
    with output.phase("reading Google's price list", summary=False, detail=lambda: doing[0]):
        rates, problem = _rates(wanted, shared_options.named_project(project), lambda text: doing.__setitem__(0, text))
    found = [(each, prices.price_of(each, region_of(where or ""), rates)) for each in wanted]
    if as_json:
        pages = [_page(each, price) for each, price in found]
        output_format.print_document(prices=pages, not_included=[*NOT_INCLUDED], problem=problem)
    else:
        if as_csv:
            _print_csv([_page(each, price) for each, price in found])
        else:
            output_format.print_table(_COLUMNS, [_cells(each, price) for each, price in found])
        _explain(found, problem)
    if any(price is None for _, price in found):
        sys.exit(ERROR)


def _rates(wanted: list[Placement], project: str, report: Callable[[str], object]) -> tuple[Rates | None, str]:
    """Return Google's prices, kept or read now, and why they could not be read; "" for no reason."""
    from kinetic._jobs import job_cost

    kept, file = job_cost.kept_rates(os.environ), job_cost.rates_file(os.environ)
    machines = {str(each.machine_type) for each in wanted if each.kind == "gpu"}
    if kept is not None and machines <= {*kept.machines}:
        return kept, ""
    if not project:
        return kept, "it is read through a project, and none is set: pass --project"
    from kinetic._cluster import price_catalog
    from kinetic._cluster.project_apis import is_disabled
    from kinetic._google.api import ApiError
    from kinetic._stores.parallel import Retry

    retry = Retry(attempts=2, first_seconds=0.5, most_seconds=2.0)  # somebody waits, and there is a table
    apis = shared_options.google_apis(project, retry=retry)
    try:
        return price_catalog.refresh(apis, file, wanted, kept, report), ""
    except ApiError as error:
        if is_disabled(error):
            enable = f"gcloud services enable cloudbilling.googleapis.com compute.googleapis.com --project {project}"
            return kept, f"its API is off in {project}; turn it on: {enable}"
        return kept, f"Google refused ({error.status}): {error.message}"
    except KineticError as error:
        return kept, "; ".join(filter(None, (error.what, error.why)))
    except OSError as error:
        return kept, f"it cannot be kept in {file}: {error.strerror or error}"


def _page(wanted: Placement, price: Price | None) -> dict[str, Any]:
    return {
        "accelerator": wanted.name,
        "machine_type": wanted.machine_type,
        "hosts": wanted.hosts,
        "spot_wanted": wanted.spot,
        **(
            {"dollars_per_hour": None, "region": None, "spot": None, "read_on": None, "live": None}
            if price is None
            else {
                "dollars_per_hour": round(price.dollars_per_hour, 6),
                "region": price.region or None,
                "spot": price.spot,
                "read_on": price.read_on,
                "live": price.is_live,
            }
        ),
    }


def _print_csv(pages: list[dict[str, Any]]) -> None:
    """Print values as in JSON: true and false, and nothing for null."""
    import csv

    writer = csv.DictWriter(sys.stdout, [*pages[0]], lineterminator="\n")
    writer.writeheader()
    for page in pages:
        writer.writerow(
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in page.items()}
        )


def _cells(wanted: Placement, price: Price | None) -> list[str]:
    machines = f"{wanted.hosts} × {wanted.machine_type}"
    name = wanted.name + (":spot" if wanted.spot else "")
    if price is None:
        return [name, machines, "", "not known", "", ""]
    hour = price.dollars_per_hour
    above = "< " if wanted.spot and not price.spot else ""
    source = price.source + ("; on demand, Spot is cheaper" if above else "")
    return [name, machines, price.region or "any, US", f"{above}{hour:.2f}", f"{above}{hour * _HOURS:.2f}", source]


def _explain(found: list[tuple[Placement, Price | None]], problem: str) -> None:
    if problem:
        click.echo(f"Google's price list was not read: {output_format.plain(problem)}", err=True)
    unknown = [each.name for each, price in found if price is None]
    if unknown:
        click.echo(f"not known: {', '.join(unknown)}; see https://cloud.google.com/products/calculator", err=True)
    click.echo(f"not included: {', '.join(NOT_INCLUDED)}", err=True)
