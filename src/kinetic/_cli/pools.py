"""``kinetic pool``: the node pools of a Standard cluster, added, changed, removed and listed."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import error_output, shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.error_output import ERROR
from kinetic._config.variables import read_variable
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, names_text
from kinetic.errors import ClusterError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._cluster.node_pools import AddedPool
    from kinetic._cluster.resource import Change, Found, Setup

_LIST = (
    Column("POOL"),
    Column("MACHINE"),
    Column("CAPACITY", spare=1),
    Column("MIN", right=True),
    Column("MAX", right=True),
    Column("STATUS", flexible=True),
)
_NAMED = 5  # jobs in a sentence
_UNCHANGED = "nothing was changed"


@click.group(cls=LazyGroup, path=("pool",))
def pool() -> None:
    """Add, change, remove and list the node pools of a Standard cluster.

    An Autopilot cluster needs none: its nodes come with the pods that ask for them.

    Example: kinetic pool add v5litepod-4 --spot --max 4
    """


@click.command
@click.argument("name", metavar="ACCELERATOR", required=False, shell_complete=shared_options.complete_accelerators)
@click.option("-a", "--accelerator", metavar="NAME", help="The same as ACCELERATOR.")
@shared_options.place_options
@click.option("--spot", is_flag=True, help="Nodes that may be taken away with about 30 s notice, and are cheaper.")
@click.option(
    "--reservation",
    metavar="NAME",
    help="Nodes of a reservation, which is checked first.  [default: KINETIC_RESERVATION]",
)
@click.option("--flex-start", is_flag=True, help="Nodes when Google has them, for at most 7 days.")
@click.option("--queued", is_flag=True, help="All nodes of a job at once; needs Kueue.")
@click.option(
    "--min",
    "--min-nodes",
    "least",
    type=click.IntRange(min=0),
    metavar="N",
    help="Nodes that always run.  [default: 0]",
)
@click.option("--max", "most", type=click.IntRange(min=1), metavar="N", help="Most nodes.  [default: 1, or a slice]")
@click.option("--slices", type=click.IntRange(min=1), metavar="N", help="Pools, one for each slice.  [default: 1]")
@click.option("--dry-run", "--preview", is_flag=True, help="Only print what would be done.")
@shared_options.yes_option
def add(name: str | None, accelerator: str | None, spot: bool, dry_run: bool, yes: bool, **given: Any) -> None:
    """Add a node pool for an accelerator, or change how far one grows.

    The pool starts without nodes, and nodes come with jobs. Its name says what it is, so the same command finds it
    again; then only --min and --max are changed, for nothing else of a pool can be. A pool of a TPU slice of several
    hosts is exactly one slice: --slices makes several, which are numbered, and so does a name such as 2xv5e-16.

    Example: kinetic pool add v5litepod-16 --spot
    """
    from kinetic import _hardware as hardware
    from kinetic._cluster import node_pools
    from kinetic._cluster.node_pools import AddedPool, PoolOptions
    from kinetic._cluster.project_apis import explaining

    if (name is None) == (accelerator is None):
        raise click.UsageError("exactly one accelerator is needed, as in: kinetic pool add l4")
    wanted = hardware.place(name or accelerator or "", spot=spot)
    reservation = given["reservation"]
    if not (reservation or wanted.spot or given["flex_start"] or given["queued"]):
        reservation = read_variable("KINETIC_RESERVATION", os.environ)
    options = PoolOptions(reservation or "", *(given[each] for each in ("flex_start", "queued", "least", "most")))
    slices: int = (given["slices"] or 1) * wanted.slices
    wanted = wanted.one_slice
    if slices > 1 and wanted.hosts == 1 and not given["slices"]:  # slices of one host are nodes of one pool
        options, slices = options._replace(most=options.most or max(slices, options.least or 0)), 1
    node_pools.check_options(wanted, options, slices=slices)
    setup = _setup(given)
    with output.phase("reading the cluster", summary=False), explaining("read the cluster", setup.project):
        cluster = node_pools.read_cluster(setup.apis, setup.spec)
        if node_pools.is_autopilot(cluster):
            click.echo(
                f"{setup.spec.cluster} is an Autopilot cluster: it needs no node pools. Nodes come with the jobs that "
                f"ask for {wanted.name}, and go after them.",
                err=True,
            )
            return
        zone = node_pools.zone_for(setup.apis, cluster, wanted)
        account = node_pools.account_of(cluster)
        pools = [
            AddedPool(setup, wanted, options._replace(number=number), zone=zone, account=account)
            for number in range(1, slices + 1)
        ]
        planned = [(each, each.read()) for each in pools]
        if options.reservation and any(found.state == "missing" for _, found in planned):
            click.echo(node_pools.check_reservation(setup.apis, zone, wanted, options.reservation), err=True)
    steps = _steps(planned, zone)
    if not steps:
        return
    _warn_of_price(wanted, (options.least or 0) * len(steps))
    if dry_run:
        return
    if not yes and not shared_options.confirm("Do this?", refused=_UNCHANGED):
        sys.exit(ERROR)
    for added, found, changes in steps:  # one after the other: a cluster has one operation at a time
        with output.phase(f"making {added.name}"):
            _do(setup, partial(added.settle, found, changes), f"make {added.name}")


def _steps(planned: Sequence[tuple[AddedPool, Found]], zone: str) -> list[tuple[AddedPool, Found, list[Change]]]:
    """Print what is done with each pool, and return those with which something is done."""
    steps = []
    for added, found in planned:
        if found.state == "foreign":
            raise ClusterError(
                f"a node pool {added.name} exists and was not made by kinetic",
                why=found.why,
                next="kinetic pool list     or remove it yourself",
                code="not-ours",
            )
        changes = added.diff(found) if found.state == "ours" else []
        if found.state == "ours" and not changes:
            click.echo(f"= {added.name} is there")
            continue
        sign = "+" if found.state == "missing" else "~"
        click.echo(output_format.plain(f"{sign} {added.title} in {zone}{''.join(f'; {each}' for each in changes)}"))
        steps.append((added, found, changes))
    return steps


def _warn_of_price(wanted: Any, least: int) -> None:
    from kinetic._hardware import prices

    if not least:
        return
    slice_ = prices.price_of(wanted)
    price = (
        "at a price that is not known"
        if slice_ is None
        else f"about ${slice_.dollars_per_hour / wanted.hosts * least:.2f} per hour"
    )
    click.echo(f"--min {least}: so many nodes run always, {price} (list price, without Spot)", err=True)


@click.command
@click.argument("name", metavar="POOL")
@shared_options.place_options
@shared_options.yes_option
def remove(name: str, yes: bool, **given: Any) -> None:
    """Remove a node pool that kinetic made; its jobs are named before.

    Example: kinetic pool remove tpu-v5litepod-2x2
    """
    from kinetic._cluster import node_pools
    from kinetic._cluster.node_pools import RemovedPool
    from kinetic._cluster.project_apis import explaining

    setup = _setup(given)
    removed = RemovedPool(setup, name)
    with output.phase("reading the cluster", summary=False), explaining("read the cluster", setup.project):
        node_pools.read_cluster(setup.apis, setup.spec)
        found = removed.read()
    if found.state == "missing":
        click.echo(f"= there is no node pool {name}")
        return
    if found.state == "foreign":
        raise ClusterError(
            f"the node pool {name} was not made by kinetic",
            why=found.why,
            next=f"gcloud container node-pools delete {name} --cluster {setup.spec.cluster} "
            f"--location {setup.location} --project {setup.project}",
            code="not-ours",
        )
    jobs = _jobs_on(setup, name)
    click.echo(f"- {removed.title}")
    if jobs:
        click.echo(f"jobs on its nodes, which will be interrupted: {names_text(jobs, _NAMED)}", err=True)
    if not yes and not shared_options.confirm("Remove it?", refused=_UNCHANGED):
        sys.exit(ERROR)
    with output.phase(f"removing {name}"):
        _do(setup, lambda: removed.remove(found), f"remove {name}")


def _jobs_on(setup: Setup, name: str) -> list[str]:
    """Return the jobs whose pods are on nodes of a pool; none where the cluster does not tell."""
    from kinetic._backends.kube.client import NODE, POD
    from kinetic._backends.kube.job_manifests import JOB_LABEL, NODE_POOL
    from kinetic.errors import KineticError

    try:
        client = setup.client()
        nodes = {each["metadata"]["name"] for each in client.list(NODE, f"{NODE_POOL}={name}").objects}
        pods = client.list(POD, JOB_LABEL).objects if nodes else []
    except KineticError as error:
        click.echo(f"warning: jobs on its nodes are not known: {output_format.plain(error.what)}", err=True)
        return []
    return sorted({each["metadata"]["labels"][JOB_LABEL] for each in pods if each["spec"].get("nodeName") in nodes})


@click.command(name="list")
@shared_options.place_options
@shared_options.json_option
def list_(as_json: bool, **given: Any) -> None:
    """List the node pools of the cluster.

    Example: kinetic pool list
    """
    from kinetic._cluster import node_pools
    from kinetic._cluster.project_apis import explaining

    setup = _setup(given)
    with output.phase("reading the cluster", summary=False), explaining("read the cluster", setup.project):
        cluster = node_pools.read_cluster(setup.apis, setup.spec)
    pages = [_pool_page(each) for each in cluster.get("nodePools") or ()]
    if as_json:
        output_format.print_document(autopilot=node_pools.is_autopilot(cluster), pools=pages)
        return
    if node_pools.is_autopilot(cluster):
        click.echo(f"{setup.spec.cluster} is an Autopilot cluster: it needs no node pools", err=True)
    cells = ("name", "machine", "capacity", "least", "most", "status")
    output_format.print_table(_LIST, [[str(page[cell]) for cell in cells] for page in pages])


def _pool_page(page: dict[str, Any]) -> dict[str, Any]:
    config, scaling = page.get("config") or {}, page.get("autoscaling") or {}
    reserved = (config.get("reservationAffinity") or {}).get("values") or ()
    ways = [
        "spot" if config.get("spot") else "",
        "flex-start" if config.get("flexStart") else "",
        "queued" if (page.get("queuedProvisioning") or {}).get("enabled") else "",
        f"reservation {reserved[0]}" if reserved else "",
    ]
    count = int(page.get("initialNodeCount") or 0)  # of a pool that does not grow
    least, most = (
        int(scaling.get(f"total{side}NodeCount") or scaling.get(f"{side.lower()}NodeCount") or 0)
        if scaling.get("enabled")
        else count
        for side in ("Min", "Max")
    )
    return {
        "name": str(page.get("name", "")),
        "machine": str(config.get("machineType", "")),
        "capacity": " ".join(filter(None, ways)) or "on demand",
        "least": least,
        "most": most,
        "status": str(page.get("status", "")),
    }


def _setup(given: dict[str, Any]) -> Setup:
    from kinetic._cluster.resource import Setup, Spec

    target = shared_options.target_of({name: given[name] for name in shared_options.PLACE})
    if registry.is_here(target.backend.value) or target.context.value:
        raise OptionError(
            "node pools exist in GKE clusters only",
            why=f"the context is {target.context.value}" if target.context.value else "jobs run on this machine",
            next="export KINETIC_PROJECT=your-project     or kinetic up --standard",
        )
    project, zone, cluster = target.project.value, target.zone.value, target.cluster.value
    spec = Spec(project, cluster, location=zone, standard=True, namespace=target.namespace.value or "default")
    return Setup(spec, shared_options.google_apis(project))


def _do(setup: Setup, work: Any, doing: str) -> None:
    """Do something with a pool; Ctrl-C says what Google continues with."""
    from kinetic._cluster.project_apis import explaining

    setup.report = output.report
    try:
        with explaining(doing, setup.project):
            work()
    except KeyboardInterrupt:
        why = "an operation on a cluster cannot be cancelled"
        error_output.stop_waiting_for_google(why, "run the same command again: it continues")
