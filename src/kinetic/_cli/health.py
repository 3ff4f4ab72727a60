"""``kinetic status`` and ``kinetic doctor``: how a cluster is, and whether all is right for jobs."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._cli.error_output import ERROR, SuggestionError
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, count_text, names_text
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetic._cluster.checks import Check, Finding
    from kinetic._cluster.cluster_checks import ClusterChecks
    from kinetic._cluster.live_status import Status
    from kinetic._cluster.quotas import QuotaRequest
    from kinetic._config.target import Target
    from kinetic._google.api import Page
    from kinetic._hardware import Placement

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
@click.option(
    "--try",
    "tried",
    metavar="NAME",
    shell_complete=shared_options.complete_accelerators,
    help="Also run a job on this accelerator, which writes to the store; asks first, since it costs.",
)
@click.option(
    "--request-quota",
    "more",
    type=click.IntRange(min=1),
    metavar="N",
    help="Ask Google for a quota of N chips or GPUs of the accelerator; asks you first.",
)
@click.option("--contact", metavar="EMAIL", help="Where Google writes about the quota.  [default: asked]")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before --try and --request-quota.")
@shared_options.json_option
def doctor(
    accelerator: str | None,
    fix: bool,
    tried: str | None,
    more: int | None,
    contact: str | None,
    yes: bool,
    as_json: bool,
    **place: str | None,
) -> None:
    """Check everything that jobs need, and say how each fault is repaired.

    The login, the project, its APIs and rights, the cluster, the namespace, the store, and with --accelerator the
    quota and the nodes. Works on any cluster, and without Google. Nothing is changed without --fix, --try or
    --request-quota. A check is PASS, WARN (jobs may run nevertheless), FAIL, or SKIP (it needs one that failed). The
    exit code is 1 if one has failed.

    Example: kinetic doctor --try v5litepod-4
    """
    from kinetic._cluster import checks
    from kinetic._cluster.cluster_checks import ClusterChecks

    target = shared_options.target_of(place)
    try:
        asked = ClusterChecks(target, os.environ, _accelerator(accelerator, tried))
    except OptionError as error:
        if tried and error.next:
            error.next = re.sub(r'accelerator="(.+?)"', r"--try \1", error.next)
        raise
    if more is not None:
        _check_request(asked, more, contact, yes=yes)
    is_asked = shared_options.is_interactive()
    yes_to_job = yes or (asked.is_here and not is_asked)  # a job on this machine costs nothing
    if tried and not yes_to_job and not is_asked:
        why = "a job on a cluster costs, and this is not a terminal: pass --yes to confirm"
        raise OptionError("no job was run", why=why, next=shared_options.typed_again("--yes"))
    found: dict[str, Finding] = {}

    def note(finding: Finding, *, after: bool = False) -> None:
        found[finding.key] = finding
        if not as_json:
            _print_finding(finding, after=after)

    for finding, after in _checked(asked.checks(), fix=fix):
        note(finding, after=after)
    for finding in _request_quota(asked, more, contact, yes=yes) if more is not None else ():
        note(finding)
    if tried:
        failed = next((each.key for each in found.values() if each.level == "FAIL"), "")
        note(_tried(asked.placement, place, target, failed, yes=yes_to_job))
    answers = list(found.values())
    if as_json:
        output_format.print_document(checks=[each.to_json() for each in answers], usable=checks.is_usable(answers))
    else:
        click.echo(_summary(answers), err=True)
    if not checks.is_usable(answers):
        sys.exit(ERROR)


def _checked(asked: list[Check], *, fix: bool) -> Iterator[tuple[Finding, bool]]:
    """Yield what the checks find, and after that what repairs have changed."""
    from kinetic._cluster import checks

    found = []
    with output.phase("checking", summary=False):
        for finding in checks.run(asked):
            found.append(finding)
            yield finding, False
    if fix:
        with output.phase("repairing", summary=False):
            for finding in checks.fix(asked, found):
                yield finding, True


def _tried(wanted: Placement, place: dict[str, str | None], target: Target, failed: str, *, yes: bool) -> Finding:
    """Run a job on the accelerator after a yes, unless a check has failed."""
    from kinetic._cli import trial

    if failed:
        return trial.skipped(f"{failed} failed")
    question = f"Run a job on {wanted.name}, {trial.price_text(wanted)}?"
    if not yes and not shared_options.confirm(question, refused="no job was run"):
        return trial.skipped("you said no")
    return trial.run_trial(wanted, place, target.store.value)


def _accelerator(named: str | None, tried: str | None) -> str:
    if named and tried and named != tried:
        raise OptionError(
            f"--accelerator {named} and --try {tried} name different hardware",
            why="what is tried is also what is checked",
            next=f"kinetic doctor --try {tried}",
        )
    return tried or named or ""


def _check_request(asked: ClusterChecks, more: int, contact: str | None, *, yes: bool) -> None:
    """Refuse a request for quota that cannot be made, before anything is asked."""
    wanted = asked.placement
    if asked.is_here or not asked.is_google:
        why = "quotas belong to projects of Google Cloud, and jobs do not run in one"
        raise OptionError("--request-quota needs a GKE cluster", why=why, next="kinetic doctor")
    if wanted.kind == "cpu":
        why = "a quota is that of an accelerator"
        raise OptionError(
            "--request-quota needs --accelerator", why=why, next=f"kinetic doctor -a l4 --request-quota {more}"
        )
    again = f"kinetic doctor -a {wanted.name} --request-quota {max(more, wanted.chips)} --contact"
    if more < wanted.chips:
        why = f"one job on {wanted.name} takes {wanted.chips}"
        step = f"kinetic doctor -a {wanted.name} --request-quota {wanted.chips}"
        raise OptionError(f"--request-quota {more} is too small", why=why, next=step)
    if contact is not None and not re.fullmatch(r"[^@\s]+@[^@\s]+", contact):
        why = "Google needs an address to answer to"
        raise OptionError(f"--contact {contact} is not an e-mail address", why=why, next=f"{again} you@example.com")
    if not shared_options.is_interactive() and not (contact and yes):
        raise OptionError(
            "nothing was requested",
            why="Google needs an e-mail address to answer to, and this is not a terminal: pass --contact and --yes",
            next=f"{again} you@example.com --yes",
        )


def _request_quota(asked: ClusterChecks, more: int, contact: str | None, *, yes: bool) -> Iterator[Finding]:
    """Ask Google for each quota that is too small, after a yes to it."""
    from kinetic._cluster import quotas
    from kinetic._cluster.checks import Finding
    from kinetic.errors import KineticError

    key, group = "quota-request", "accelerator"
    try:
        requests = quotas.requests_for(asked.apis, asked.placement, asked.region, more)
        if not requests:
            yield Finding(key, group, "PASS", f"the quota is {more} or more already; nothing was requested")
        for number, request in enumerate(requests, 1):
            key = f"quota-request-{number}" if len(requests) > 1 else key
            if not request.was_sent:
                if not yes and not shared_options.confirm(f"Ask Google for {request}?", refused=""):
                    yield Finding(key, group, "SKIP", f"not requested: {request}")
                    continue
                contact = contact or shared_options.ask("Your e-mail address, to which Google answers")
            page = request.earlier if request.was_sent else quotas.send_request(asked.apis, request, contact or "")
            yield _answer(Finding(key, group, "PASS", ""), request, page)
    except KineticError as error:
        yield Finding(key, group, "FAIL", error.what, error.why or "", error.next or "")


def _answer(finding: Finding, request: QuotaRequest, page: Page) -> Finding:
    """Return what Google says to a request: granted, refused, or not decided yet."""
    from kinetic._cluster import quotas

    config = page.get("quotaConfig") or {}
    granted, detail = int(config.get("grantedValue") or 0), str(config.get("stateDetail") or "")
    if granted >= request.amount:
        return finding._replace(what=f"granted: {request}")
    verb = "requested before" if request.was_sent else "requested"
    step = f"wait for Google's e-mail, and see {quotas.console(str(page['name']).split('/')[1])}"
    state = "decided yet" if page.get("reconciling") else "granted"
    return finding._replace(level="WARN", what=f"{verb}, and not {state}: {request}", why=detail, next=step)


def _print_finding(finding: Finding, *, after: bool) -> None:
    word = "repaired" if after and finding.level == "PASS" else finding.level
    print(output_format.plain(f"{word}  {finding.key}: {finding.what}"))
    if finding.level not in {"PASS", "SKIP"}:
        for name, text in (("why:  ", finding.why), ("next: ", finding.next)):
            if text:
                print(output_format.plain(f"      {name} {text}"))


def _summary(found: list[Finding]) -> str:
    counts = {level: sum(each.level == level for each in found) for level in ("PASS", "WARN", "FAIL", "SKIP")}
    return ", ".join(f"{count} {level}" for level, count in counts.items() if count)


class _NoJob(click.Command):
    """A command about the cluster, to which the id of a job is given by mistake."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Lead to the status of the job."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            found = re.search(r"unexpected extra arguments? \((.*)\)", error.message)
            if found is None:
                raise
            first = found[1].split()[0]
            kind, group = ("batch", "batch") if first.startswith("grp-") else ("job", "jobs")
            why = f"it shows the cluster; the status of a {kind} is another command"
            next_ = f"kinetic {group} status {first}"
            raise SuggestionError(f"kinetic status takes no {kind}, got {first!r}", ctx, why=why, next=next_) from error


@click.command(cls=_NoJob)
@shared_options.place_options
@click.option("-w", "--watch", is_flag=True, help="Show it again every few seconds, until Ctrl-C.")
@click.option("--costs", is_flag=True, help="Also show what each kind of node costs per hour.")
@shared_options.json_option
def status(watch: bool, costs: bool, as_json: bool, **place: str | None) -> None:
    """Show how a cluster is now: its nodes, their cost, what waits.

    Read from Google and from the cluster at this moment. Prices are list prices from a dated table, of the control
    plane, TPUs and usual machines with GPUs; the bill of Google counts. The exit code is 1 if the cluster cannot take
    jobs.

    Example: kinetic status --costs
    """
    import time

    if watch and as_json:
        raise OptionError(
            "--watch and --json exclude each other", why="one document has one moment", next="kinetic status --json"
        )
    target = shared_options.target_of(place)
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
    from kinetic._config import cluster as cluster_settings

    place = (target.project.value, target.zone.value, target.cluster.value)
    client = client_of(ClusterAddress(*place, target.namespace.value, target.context.value))
    is_google = bool(target.project.value) and not target.context.value
    apis = shared_options.google_apis(target.project.value) if is_google else None
    settings = cluster_settings.read_settings(target.profile, os.environ)
    return read_status(client, apis, *place, gpu_resource=settings.gpu_resource)


def _page(found: Status) -> dict[str, Any]:
    return {
        **found._asdict(),
        "nodes": [each._asdict() for each in found.nodes],
        "waiting": [each._asdict() for each in found.waiting],
        "quotas": [{"metric": metric, "limit": limit, "used": used} for metric, limit, used in found.quotas],
        "running": found.running if found.knows("pods") else None,
        "dollars_per_hour": found.dollars_per_hour,
        "usable": found.is_usable,
    }


def _print_status(found: Status, *, costs: bool) -> None:
    dollars, knows_pods = found.dollars_per_hour, found.knows("pods")
    price = "not known" if dollars is None else f"about ${dollars:.2f} per hour now, at list price"
    price += f", without {count_text(len(found.without_price), 'node')}" if found.without_price else ""
    idle = f"{count_text(len(found.idle), 'node')} with an accelerator: {names_text(found.idle, _NAMED)}"
    warm = f"{names_text(found.warm, _NAMED)}: kinetic warm list"
    if found.warm_dollars_per_hour:
        warm += f"; about ${found.warm_dollars_per_hour:.2f} per hour"
    output_format.print_fields(
        [
            ("cluster", found.about),
            ("status", " ".join(filter(None, (found.state or "unknown", found.mode, found.version)))),
            ("nodes", str(len(found.nodes)) if found.knows("nodes") else "not known"),
            ("cost", price),
            ("idle", idle if found.idle else ""),
            ("running", count_text(found.running, "pod") if knows_pods else "not known"),
            ("warm pods", warm if found.warm else ""),
            ("waiting", count_text(len(found.waiting), "pod") if knows_pods else "not known"),
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
