"""``kinetic profile``: places that are saved under a name, and which of them holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from kinetic import _config as settings
from kinetic._backends import registry
from kinetic._cli import command_tree, shared_options
from kinetic._cli import tables as cli_tables
from kinetic._cli.command_tree import LazyGroup, show_help_alone
from kinetic._config import cluster, profile_store, profiles
from kinetic._config.options import BY_NAME
from kinetic._config.profiles import FIELDS, LOCAL, REQUIRED, Profile
from kinetic._output import format as output_format
from kinetic._output.format import Column
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from kinetic._config.profiles import Profiles


_VARIABLE = "KINETIC_PROFILE"
_COLUMNS = (
    Column(" "),
    Column("NAME"),
    Column("BACKEND", spare=3),
    Column("PROJECT", flexible=True),
    Column("ZONE", spare=2),
    Column("CLUSTER", flexible=True, spare=1),
    Column("NAMESPACE", spare=4),
    Column("OPTIONS", flexible=True, spare=5),
)


@click.group(
    cls=LazyGroup,
    later=command_tree.below("profile"),
    aliases={"ls": "list", "remove": "rm"},
    epilog=f"The active profile is the one of --profile, else of {_VARIABLE}, else the current one. It provides "
    "values that neither an argument nor an environment variable sets. The profile 'local' is built in: this machine.",
)
@click.pass_context
def profile(ctx: click.Context) -> None:
    """Save and select profiles: where jobs run, and their options.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main
    """
    show_help_alone(ctx)


@click.command("list")
@shared_options.as_json
def list_(as_json: bool) -> None:
    """List the profiles.

    A star marks the active profile.

    Example: kinetic profile list
    """
    saved = profiles.load(os.environ)
    wanted, holds = os.environ.get(_VARIABLE, ""), _in_force(saved)
    if as_json:
        pages = [_page(found, saved, holds) for found in _all(saved)]
        output_format.document(
            file=str(saved.file), current=saved.current or None, in_force=holds or None, profiles=pages
        )
    else:
        output_format.show(_COLUMNS, [_cells(found, holds) for found in _all(saved)])
    if wanted and not saved.get(wanted):
        click.echo(f"{_VARIABLE}={wanted} is not one of them: correct it or unset it", err=True)
    elif wanted and wanted != saved.current and saved.current:
        click.echo(f"{_VARIABLE}={wanted} is active instead of the current profile {saved.current}", err=True)
    if LOCAL.name in saved.saved:
        click.echo(f"the profile {LOCAL.name!r} that {saved.file} has is not used: the name is built in", err=True)


@click.command
@click.argument("name", metavar="NAME", shell_complete=shared_options.profiles)
@shared_options.as_json
def use(name: str, as_json: bool) -> None:
    """Make a profile the current one.

    It is used in every terminal, unless --profile or KINETIC_PROFILE selects another one.

    Example: kinetic profile use team
    """
    found = profile_store.use(os.environ, name)
    _tell(found, as_json=as_json)
    click.echo(f"{name} is now the current profile", err=True)
    warn_if_overridden(name)


@click.command
def unset() -> None:
    """Clear the current profile.

    No profile is removed. Without a current profile, jobs run on this machine unless environment variables are set.

    Example: kinetic profile unset
    """
    before = profile_store.unset(os.environ)
    told = f"there is no current profile now; it was {before}" if before else "there was no current profile"
    click.echo(told, err=True)
    warn_if_overridden()


@click.command
@click.argument("name", required=False, metavar="[NAME]", shell_complete=shared_options.profiles)
@shared_options.as_json
def show(name: str | None, as_json: bool) -> None:
    """Show a profile.

    Without NAME, it shows the active profile.

    Example: kinetic profile show team
    """
    saved = profiles.load(os.environ)
    found = saved.get(name) if name else profiles.choose(os.environ).profile
    if name and found is None:
        raise profiles.unknown(name, saved, way="kinetic profile show {nearest}")
    if found is None:
        raise SettingsError(
            "no profile is active",
            why=f"{saved.file} has no current profile, and {_VARIABLE} is not set",
            next=f"kinetic profile use {saved.names[0]}     or name one: kinetic profile show {saved.names[0]}",
        )
    _tell(found, as_json=as_json)


@click.command
@click.argument("name", metavar="NAME", shell_complete=shared_options.profiles)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def remove(name: str, yes: bool) -> None:
    """Remove a profile.

    It asks for confirmation; without a terminal, --yes is required. Jobs and results are kept.

    Example: kinetic profile rm team --yes
    """
    saved = profiles.load(os.environ)
    if saved.get(name) is None:
        raise profiles.unknown(name, saved, way="kinetic profile list")
    if not yes and name != LOCAL.name:
        if not shared_options.can_ask():
            raise OptionError(
                f"the profile {name!r} was not removed",
                why="not a terminal: pass --yes to confirm",
                next=f"kinetic profile rm {name} --yes",
            )
        if not shared_options.is_agreed(f"Remove the profile {name}?"):
            click.echo("not removed", err=True)
            return
    was_current = profile_store.remove(os.environ, name)
    told = "; there is no current profile now" if was_current else ""
    click.echo(f"removed the profile {name}{told}", err=True)
    warn_if_overridden()


def warn_if_overridden(name: str = "") -> None:
    """Say so if the environment names another profile: that one holds, whatever is the current one."""
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in {"", name}:
        click.echo(f"{_VARIABLE}={wanted} is still set: unset {_VARIABLE}", err=True)


def _all(saved: Profiles) -> list[Profile]:
    return [found for name in saved.names if (found := saved.get(name))]


def _in_force(saved: Profiles) -> str:
    """Name the profile that holds, "" for none; one that is asked for and does not exist holds nothing."""
    found = saved.get(os.environ.get(_VARIABLE) or saved.current)
    return found.name if found else ""


def _page(found: Profile, saved: Profiles, holds: str) -> dict[str, Any]:
    return {
        "name": found.name,
        "is_current": found.name == saved.current,
        "is_in_force": found.name == holds,
        "is_built_in": found is LOCAL,
        **{field: getattr(found, field) or None for field in FIELDS if field != "store"},
        "store": cli_tables.without_secrets(found.store) or None,
        "options": dict(found.options),
    }


def _cells(found: Profile, holds: str) -> list[str]:
    star = "*" if found.name == holds else ""
    place = [found.backend, found.project, found.zone, found.cluster, found.namespace]
    return [star, found.name, *place, _written(found)]


def _written(found: Profile) -> str:
    return " ".join(f"{name}={cli_tables.text_of(value)}" for name, value in found.options.items())


def _tell(found: Profile, *, as_json: bool) -> None:
    """Print what a profile says."""
    if as_json:
        saved = profiles.load(os.environ)
        output_format.document(profile=_page(found, saved, _in_force(saved)))
        return
    fields = {"name": found.name, **{field: getattr(found, field) for field in FIELDS}}
    fields["store"] = cli_tables.without_secrets(found.store)
    rows = [[name, value] for name, value in fields.items() if value]
    rows += [[f"option {name}", cli_tables.text_of(value)] for name, value in found.options.items()]
    output_format.show([Column("SETTING"), Column("VALUE", flexible=True)], rows)


_QUESTIONS = {"project": "Google Cloud project", "zone": "Zone of the cluster", "cluster": "Name of the cluster"}
_DEFAULTS = registry.CLUSTER.defaults
_SUGGESTED = {"project": "", "zone": _DEFAULTS["zone"], "cluster": _DEFAULTS["cluster"]}


@click.command(epilog=f"Job options: {', '.join(BY_NAME)}; as in --option resources=cpu=4,memory=16Gi.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--project", metavar="NAME", help="Google Cloud project.  [default: KINETIC_PROJECT]")
@click.option("--zone", metavar="NAME", help="Google Cloud zone.  [default: KINETIC_ZONE]")
@click.option("--cluster", metavar="NAME", help="GKE cluster.  [default: KINETIC_CLUSTER]")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE]")
@click.option(
    "--backend",
    type=click.Choice(registry.names()),
    help="Where jobs run.  [default: the cluster of the project or context]",
)
@click.option("--store", metavar="URL", help="The store for jobs and results.  [default: the cluster's bucket]")
@click.option("--context", metavar="NAME", help="A kubeconfig context, instead of GKE's endpoint.")
@click.option("--service-account", metavar="NAME", help="The service account of the pods.")
@click.option("--queue", metavar="NAME", help="The LocalQueue (Kueue) for the jobs.")
@click.option("--priority-class", metavar="NAME", help="The priority class of pods.")
@click.option("--pull-secret", multiple=True, metavar="NAME", help="A Secret for pulling images; can be repeated.")
@click.option("--store-secret", metavar="NAME", help="A Secret with credentials for the store.")
@click.option(
    "--node-selector", metavar="KEY=VALUE,…", help="Node labels to require instead of Google's; none for any node."
)
@click.option("--ttl-hours", metavar="HOURS", help="Hours until the cluster removes the objects of an ended job.")
@click.option("--most-attempts", metavar="N", help="How many attempts of a job may be interrupted.")
@click.option("--option", "written", multiple=True, metavar="KEY=VALUE", help="A job option; can be repeated.")
@click.option("--force", is_flag=True, help="Replace an existing profile of this name.")
def create(
    name: str | None, written: tuple[str, ...], pull_secret: tuple[str, ...], force: bool, **fields: str | None
) -> None:
    """Save a profile.

    In a terminal, it prompts for missing values. The first profile becomes the current one.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main --option accelerator=gpu-l4
    """
    job_options = _job_options(written)
    given = {field: value or "" for field, value in fields.items()} | {"pull_secrets": ",".join(pull_secret)}
    _check_cluster_fields(given)
    if not registry.is_here(given["backend"]) and not given["context"]:
        given = {field: value or _from_environment(field) for field, value in given.items()}
        missing = [field for field in REQUIRED if not given[field]]
    else:
        missing = []
    name, given = _complete(name, given, missing)
    new = Profile(profiles.check_name(name), **given, options=job_options)
    _check(new)
    is_current = profile_store.save(os.environ, new, replace=force)
    click.echo(f"saved the profile {name} in {profiles.profiles_file(os.environ)}", err=True)
    if is_current:
        click.echo("it is now the current profile; to undo: kinetic profile unset", err=True)
        warn_if_overridden(name)
    else:
        click.echo(f"to make it the current profile: kinetic profile use {name}", err=True)


def _job_options(written: tuple[str, ...]) -> dict[str, object]:
    """Read what ``--option`` says."""
    found: dict[str, object] = {}
    for text in written:
        key, separator, value = text.partition("=")
        if not separator or not value:
            raise OptionError(
                f"--option {text!r} is not KEY=VALUE",
                why="it takes the name of a job option and its value",
                next="write --option accelerator=gpu-l4, for example",
            )
        from kinetic._jobs import options  # only where there is an option

        found[key.strip()] = options.of_text(key.strip(), value.strip())
    return found


def _check_cluster_fields(given: dict[str, str]) -> None:
    """Refuse what no cluster would take, by the names of the flags."""
    from kinetic._config import cluster_values

    for field in cluster.FIELDS:
        if given[field]:
            flag = f"--{field.removesuffix('s') if field == 'pull_secrets' else field}".replace("_", "-")
            way = f"write {flag} {cluster_values.example(field)}, for example"
            cluster_values.checked(field, given[field], f"{flag} {given[field]!r}", way)


def _from_environment(field: str) -> str:
    """Return what the environment says of the four fields that name a cluster."""
    return os.environ.get(f"KINETIC_{field.upper()}", "") if field in {*REQUIRED, "namespace"} else ""


def _complete(name: str | None, given: dict[str, str], missing: list[str]) -> tuple[str, dict[str, str]]:
    """Ask for what is missing, or refuse where nobody can be asked."""
    if (missing or not name) and not shared_options.can_ask():
        raise _incomplete(name, given, missing)
    name = name or shared_options.ask("Name of the profile")
    asked = {field: shared_options.ask(_QUESTIONS[field], _SUGGESTED[field]) for field in missing}
    if missing and not given["namespace"]:
        asked["namespace"] = shared_options.ask("Kubernetes namespace", _DEFAULTS["namespace"])
    return name, given | asked


def _incomplete(name: str | None, given: dict[str, str], missing: list[str]) -> OptionError:
    flags = [*([] if name else ["NAME"]), *(f"--{field}" for field in missing)]
    shown = " ".join(f"--{field} {given[field] or _SUGGESTED[field] or 'YOUR-PROJECT'}" for field in REQUIRED)
    return OptionError(
        f"{' and '.join(flags)} {'is' if len(flags) == 1 else 'are'} missing",
        why="not a terminal: pass the options",
        next=f"kinetic profile create {name or 'NAME'} {shown}     or, for this machine, --backend local",
    )


def _check(new: Profile) -> None:
    """Refuse a profile that could not say where jobs run: its values are tried as arguments, with no other source."""
    if new.context and not (new.store or new.project):
        raise OptionError(
            "--store is missing",
            why="a kubeconfig context has no default bucket",
            next=f"add --store gs://your-bucket to: kinetic profile create {new.name} --context {new.context}",
        )
    alone = {
        "KINETIC_HOME": str(settings.kinetic_home(os.environ)),
        "KINETIC_PROFILE": "",
        "KINETIC_PROFILES_FILE": os.path.join(os.sep, "nonexistent", "kinetic-profiles.json"),
        "KINETIC_STORE": new.store,
        "KINETIC_KUBE_CONTEXT": new.context,
    }
    settings.resolve(
        backend=new.backend or registry.CLUSTER.name,
        project=new.project,
        zone=new.zone,
        cluster=new.cluster,
        namespace=new.namespace,
        environ=alone,
    )
