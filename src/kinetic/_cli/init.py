"""``kinetic init``: join a cluster that exists or make one, and repair what jobs lack on it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._cli.error_output import ERROR
from kinetic._config.variables import read_variable
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic.errors import ClusterError, OptionError

if TYPE_CHECKING:
    from kinetic._cluster.checks import Finding
    from kinetic._google.api import Page

_OURS = {"managed-by": "kinetic"}


@click.command
@click.option("--project", metavar="NAME", help="Google Cloud project.  [default: KINETIC_PROJECT, or your login's]")
@click.option("--cluster", metavar="NAME", help="The cluster to join.  [default: the only one, or asked]")
@click.option("--store", metavar="URL", help="The bucket of jobs.  [default: gs://PROJECT-kn-CLUSTER-jobs]")
@click.option("--name", "--profile-name", metavar="NAME", help="The name of the profile.  [default: the cluster's]")
@click.option("--namespace", metavar="NAME", help="The namespace of jobs.  [default: KINETIC_NAMESPACE, or default]")
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: repair all that can be repaired.")
def init(
    project: str | None, cluster: str | None, store: str | None, name: str | None, namespace: str | None, yes: bool
) -> None:
    """Join or make a cluster: save a profile, repair what jobs lack.

    All clusters of the project are offered, those that `kinetic up` made first, and a new one, whose plan and price
    `kinetic up` shows before anything is made. Each thing that is missing is offered with what it changes. A cluster
    that is joined is not marked as ours, so `kinetic down` never deletes it. Without a terminal nothing is asked: name
    the cluster, and pass --yes to repair.

    Example: kinetic init --cluster team --yes
    """
    from kinetic._cluster import checks
    from kinetic._cluster.cluster_checks import ClusterChecks
    from kinetic._config import target as settings

    chosen = shared_options.google_project(project)
    with output.phase("listing clusters", summary=False):
        found = _clusters(chosen)
    namespace = namespace or read_variable("KINETIC_NAMESPACE", os.environ)
    page = _choose(found, chosen, cluster, yes=yes) or _make(chosen, cluster, namespace)
    saved = _save(page, chosen, store, name, namespace)
    environ = {**os.environ, "KINETIC_PROFILE": saved}
    for variable in ("KINETIC_PROJECT", "KINETIC_ZONE", "KINETIC_CLUSTER", "KINETIC_STORE", "KINETIC_NAMESPACE"):
        environ.pop(variable, None)
    asked = ClusterChecks(settings.resolve(environ=environ), environ).checks()
    with output.phase("checking", summary=False):
        answers = list(checks.run(asked))
    answers = _repair(asked, answers, yes=yes)
    for each in answers:
        if each.level in {"WARN", "FAIL"}:
            click.echo(output_format.plain(f"{each.level}  {each.key}: {each.what}"), err=True)
            if each.next:
                click.echo(output_format.plain(f"      next:  {each.next}"), err=True)
    click.echo(f"profile {saved} leads to the cluster: kinetic profile use {saved}", err=True)
    if not checks.is_usable(answers):
        sys.exit(ERROR)


def _clusters(project: str) -> list[Page]:
    """Return the clusters of a project, ours first."""
    from kinetic._cluster.project_apis import CONTAINER, explaining

    apis = shared_options.google_apis(project)
    fields = "clusters(name,location,status,resourceLabels,autopilot/enabled),missingZones"
    with explaining("list the clusters", project):
        page = apis.call(CONTAINER, "GET", f"v1/projects/{project}/locations/-/clusters", query={"fields": fields})
    if missing := page.get("missingZones"):
        output.warn(f"the list of clusters is incomplete: {', '.join(missing)} do not answer")
    return sorted(page.get("clusters") or (), key=lambda each: (not _is_ours(each), each["name"], each["location"]))


def _is_ours(page: Page) -> bool:
    return _OURS.items() <= (page.get("resourceLabels") or {}).items()


def _choose(found: list[Page], project: str, cluster: str | None, *, yes: bool) -> Page | None:
    """Return the cluster that is joined or repaired; None for a new one."""
    named = [each for each in found if cluster in {None, each["name"]}]
    asks = not yes and shared_options.is_interactive()
    if not named and asks:
        question = f"The project {project} has no cluster{f' {cluster}' if cluster else ''}. Make one?"
        if shared_options.confirm(question, refused="", suggested=True):
            return None
    if not named:
        existing = ", ".join(f"{each['name']} in {each['location']}" for each in found)
        raise ClusterError(
            f"there is no cluster {cluster or ''} in the project {project}".replace("  ", " "),
            why=f"its clusters: {existing or 'none'}",
            next=f"kinetic init --cluster {found[0]['name']}" if found else f"kinetic up --project {project}",
            code="cluster-missing",
        )
    if len(named) == 1 and (cluster or not asks):
        return named[0]
    known = _joined(project)
    for number, each in enumerate(named, 1):
        verb = "repair" if (each["name"], each["location"]) in known else "join"
        mode = "Autopilot" if (each.get("autopilot") or {}).get("enabled") else "Standard"
        made = ", made by kinetic up" if _is_ours(each) else ""
        line = f"{number}  {verb} {each['name']} in {each['location']}: {mode}, {each.get('status', '')}{made}"
        click.echo(output_format.plain(line), err=True)
    if not asks:
        raise OptionError(
            f"{len(named)} clusters could be joined",
            why="none is named, and nothing may be asked",
            next=f"kinetic init --cluster {named[0]['name']} --yes",
        )
    offered = named
    if cluster is None:
        offered = [*named, {}]
        click.echo(f"{len(offered)}  make a new one: kinetic up shows its plan and price first", err=True)
    typed = shared_options.ask("Which one?", "1")
    if typed.isdecimal() and 1 <= int(typed) <= len(offered):
        return offered[int(typed) - 1] or None
    raise OptionError(f"{typed!r} is not one of them", why=f"1 to {len(offered)}", next="kinetic init")


def _joined(project: str) -> set[tuple[str, str]]:
    """Return name and place of the clusters of a project to which a profile leads already."""
    from kinetic._config import profiles

    saved = profiles.load(os.environ).saved.values()
    return {(str(each.cluster), str(each.zone)) for each in saved if each.project == project}


def _make(project: str, cluster: str | None, namespace: str | None) -> Page:
    """Make a cluster as ``kinetic up`` does, with its plan and its question, and return it."""
    from kinetic._cli.up import up

    name = cluster or shared_options.ask("Name of the new cluster", registry.CLUSTER.defaults["cluster"])
    click.get_current_context().invoke(up, project=project, cluster=name, namespace=namespace)
    with output.phase("listing clusters", summary=False):
        made = [each for each in _clusters(project) if each["name"] == name]
    if made:
        return made[0]
    raise ClusterError(
        f"the cluster {name} is gone",
        why="it was made, and the list of the project's clusters does not have it",
        next=f"kinetic init --project {project}",
        code="cluster-missing",
    )


def _save(page: Page, project: str, store: str | None, name: str | None, namespace: str | None) -> str:
    """Save the profile; one of that name which leads elsewhere stays as it is."""
    from kinetic._config import profiles
    from kinetic._config.profiles import Profile

    cluster, location = str(page["name"]), str(page["location"])
    wanted = name or cluster
    before = profiles.load(os.environ).saved.get(wanted)
    if before is not None and (before.project, before.cluster) != (project, cluster):
        raise OptionError(
            f"the profile {wanted} leads to another cluster",
            why=f"{before.cluster} of {before.project or before.context}",
            next=f"kinetic init --cluster {cluster} --name another-name",
        )
    profile = (before or Profile(wanted))._replace(project=project, zone=location, cluster=cluster)
    profile = profile._replace(store=store or profile.store, namespace=namespace or profile.namespace)
    if (page.get("autopilot") or {}).get("enabled") and not profile.cpu_disk:
        profile = profile._replace(cpu_disk=profiles.AUTOPILOT_DISK)
    if profile != before:
        profiles.save(os.environ, profile, replace=before is not None)
    return wanted


def _repair(asked: Any, found: list[Finding], *, yes: bool) -> list[Finding]:
    """Offer each repair by itself, do those that are wanted, and return what is found then."""
    from kinetic._cluster import checks

    wanted = []
    for each in found:
        if each.repair is None or each.level not in {"WARN", "FAIL"}:
            continue
        question = output_format.plain(f"{each.what}. Repair it?")
        asks = shared_options.is_interactive()
        if yes or (asks and shared_options.confirm(question, refused="", suggested=True)):
            wanted.append(each)
    after = {each.key: each for each in checks.repair(asked, wanted)}
    for each in after.values():
        if each.level == "PASS":
            click.echo(output_format.plain(f"repaired  {each.key}: {each.what}"))
    return list(checks.run(asked)) if after else found
