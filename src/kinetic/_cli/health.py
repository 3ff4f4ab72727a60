"""``kinetic status`` and ``kinetic doctor``: how a cluster is, and whether all is right for jobs."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._cli.error_output import ERROR
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, count_text, names_text
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._cluster.checks import Finding
    from kinetic._cluster.live_status import Status
    from kinetic._config.target import Target

_WATCH_SECONDS = 5.0
_NAMED = 5  # nodes in a sentence
_WAITING = (Column("POD"), Column("JOB", spare=1), Column("WHY", flexible=True))
_NODES = (
    Column("NODES", right=True),
    Column("MACHINE"),
    Column("POOL", spare=1),
    Column("CHIPS", right=True),
    Column("$/HOUR", right=True),
)


@click.command
@shared_options.place_options
@click.option(
    "-a",
    "--accelerator",
    metavar="NAME",
    shell_complete=shared_options.complete_accelerators,
    help="Also check what this accelerator needs.  [default: none]",
)
@click.option("--fix", is_flag=True, help="Repair what can be repaired without a decision of yours.")
@shared_options.json_option
def doctor(accelerator: str | None, fix: bool, as_json: bool, **place: str | None) -> None:
    """Check everything that jobs need, and say how each fault is repaired.

    The login, the project, its APIs and rights, the cluster, the namespace, the store, and with --accelerator the
    quota and the nodes. Works on any cluster, and without Google. Nothing is changed without --fix. A check is PASS,
    WARN (jobs may run nevertheless), FAIL, or SKIP (it needs one that failed). The exit code is 1 if one has failed.

    Example: kinetic doctor --accelerator v5litepod-4
    """
    from kinetic._cluster import checks
    from kinetic._cluster.cluster_checks import ClusterChecks

    asked = ClusterChecks(_target(place), os.environ, accelerator or "").checks()
    found: list[Finding] = []
    with output.phase("checking", summary=False):
        for finding in checks.run(asked):
            found.append(finding)
            if not as_json:
                _print_finding(finding)
    if fix:
        with output.phase("repairing", summary=False):
            for finding in checks.repair(asked, list(found)):
                found = [finding if each.key == finding.key else each for each in found]
                if not as_json:
                    _print_finding(finding, after=True)
    if as_json:
        output_format.print_document(checks=[each.to_json() for each in found], usable=checks.is_usable(found))
    else:
        click.echo(_summary(found), err=True)
    if not checks.is_usable(found):
        sys.exit(ERROR)


def _target(place: dict[str, str | None]) -> Target:
    from kinetic._config import target as settings

    return settings.resolve(project=place["project"], zone=place["zone"], cluster=place["cluster"])


def _print_finding(finding: Finding, *, after: bool = False) -> None:
    word = "repaired" if after and finding.level == "PASS" else finding.level
    print(output_format.plain(f"{word}  {finding.key}: {finding.what}"))
    if finding.level not in {"PASS", "SKIP"}:
        for name, text in (("why:  ", finding.why), ("next: ", finding.next)):
            if text:
                print(output_format.plain(f"      {name} {text}"))


def _summary(found: list[Finding]) -> str:
    counts = {level: sum(each.level == level for each in found) for level in ("PASS", "WARN", "FAIL", "SKIP")}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


@click.command
@shared_options.place_options
@click.option("--watch", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@click.option("--costs", is_flag=True, help="Also show what each kind of node costs per hour.")
@shared_options.json_option
def status(watch: bool, costs: bool, as_json: bool, **place: str | None) -> None:
    """Show how a cluster is now: its nodes, their cost, what waits.

    Read from Google and from the cluster at this moment. Prices are list prices from a dated table, of the control
    plane and TPUs only; the bill of Google counts. The exit code is 1 if the cluster cannot take jobs.

    Example: kinetic status --costs
    """
    import time

    if watch and as_json:
        raise OptionError(
            "--watch and --json exclude each other", why="one document has one moment", next="kinetic status --json"
        )
    target = _target(place)
    if registry.is_here(target.backend.value):
        raise OptionError(
            "no cluster is configured: jobs run on this machine",
            why=f"the backend is {target.backend.value} ({target.backend.source})",
            next="for jobs: kinetic jobs list; for a cluster: kinetic up makes one, kinetic init joins one",
        )
    while True:
        with output.phase("asking the cluster", summary=False):
            found = _read(target)
        if as_json:
            output_format.print_document(**_page(found))
        else:
            if watch and sys.stdout.isatty():
                click.clear()
            _print_status(found, costs=costs)
        if not watch:
            break
        time.sleep(_WATCH_SECONDS)
    if not found.is_usable:
        sys.exit(ERROR)


def _read(target: Target) -> Status:
    from kinetic._backends.kube.connection import ClusterAddress, client_of
    from kinetic._cluster.live_status import read_status
    from kinetic._cluster.project_apis import ProjectApis
    from kinetic._google import api

    place = (target.project.value, target.zone.value, target.cluster.value)
    client = client_of(ClusterAddress(*place, target.namespace.value, target.context.value))
    is_google = bool(target.project.value) and not target.context.value
    apis = ProjectApis(target.project.value, api.Tokens(os.environ), os.environ) if is_google else None
    return read_status(client, apis, *place)


def _page(found: Status) -> dict[str, Any]:
    return {
        **found._asdict(),
        "nodes": [each._asdict() for each in found.nodes],
        "waiting": [each._asdict() for each in found.waiting],
        "quotas": [{"metric": metric, "limit": limit, "used": used} for metric, limit, used in found.quotas],
        "dollars_per_hour": found.dollars_per_hour,
        "usable": found.is_usable,
    }


def _print_status(found: Status, *, costs: bool) -> None:
    price = f"about ${found.dollars_per_hour:.2f} per hour now, at list price"
    price += f", without {count_text(len(found.without_price), 'node')}" if found.without_price else ""
    idle = f"{count_text(len(found.idle), 'node')} with an accelerator: {names_text(found.idle, _NAMED)}"
    output_format.print_fields(
        [
            ("cluster", found.about),
            ("status", " ".join(filter(None, (found.state or "unknown", found.mode, found.version)))),
            ("nodes", str(len(found.nodes))),
            ("cost", price),
            ("idle", idle if found.idle else ""),
            ("running", count_text(found.running, "pod")),
            ("waiting", count_text(len(found.waiting), "pod")),
            ("quota", ", ".join(f"{metric} {used:g} of {limit:g}" for metric, limit, used in found.quotas)),
            ("not known", "; ".join(found.unknown)),
        ]
    )
    if costs and found.nodes:
        print()
        output_format.print_table(_NODES, _by_kind(found))
    if found.waiting:
        print()
        output_format.print_table(_WAITING, [[each.pod, each.job, each.why] for each in found.waiting])


def _by_kind(found: Status) -> list[list[str]]:
    kinds: dict[tuple[str, str, bool], list[Any]] = {}
    for node in found.nodes:
        kinds.setdefault((node.machine, node.pool, node.spot), []).append(node)
    rows = []
    for (machine, pool, spot), nodes in sorted(kinds.items()):
        known = [node.dollars_per_hour for node in nodes]
        price = "not known" if None in known else f"{sum(filter(None, known)):.2f}"
        chips = sum(node.chips for node in nodes)
        rows.append([str(len(nodes)), machine + (" (spot)" if spot else ""), pool, str(chips or ""), price])
    return rows
