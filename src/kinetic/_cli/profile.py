"""``kinetic profile``: settings that are saved under a name. No secret is printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.settings import value_text, without_secrets
from kinetic._config import cluster, profiles
from kinetic._config import target as settings
from kinetic._config.options import BY_NAME
from kinetic._config.profiles import FIELDS, LOCAL, REQUIRED, Profile
from kinetic._output import format as output_format
from kinetic._output.format import Column
from kinetic._stores.protocol import CLOUDS, parse_address
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from kinetic._config.profiles import Profiles

_VARIABLE = "KINETIC_PROFILE"
_PROFILE_COLUMNS = (
    Column(" "),
    Column("NAME"),
    Column("BACKEND", spare=3),
    Column("PROJECT", flexible=True),
    Column("ZONE", spare=2),
    Column("CLUSTER", flexible=True, spare=1),
    Column("NAMESPACE", spare=4),
    Column("OPTIONS", flexible=True, spare=5),
)
_QUESTIONS = {"project": "Google Cloud project", "zone": "Zone of the cluster", "cluster": "Name of the cluster"}
_DEFAULTS = registry.CLUSTER.defaults
_SUGGESTED = {"project": "", "zone": _DEFAULTS["zone"], "cluster": _DEFAULTS["cluster"]}


@click.group(
    cls=LazyGroup,
    path=["profile"],
    aliases={"remove": "rm"},
    epilog=f"The active profile is the one of --profile, else of {_VARIABLE}, else the current one. It provides "
    "values that neither an argument nor an environment variable sets. The profile 'local' is built in: this machine.",
)
def profile() -> None:
    """Save and select profiles: where jobs run, and their options.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main
    """


@click.command("list")
@shared_options.json_option
def list_(as_json: bool) -> None:
    """List the profiles.

    A star marks the active profile.

    Example: kinetic profile list
    """
    saved = profiles.load(os.environ)
    wanted, active = os.environ.get(_VARIABLE, ""), _active_name(saved)
    every = [found for name in saved.names if (found := saved.get(name))]
    if as_json:
        pages = [_page(found, saved, active) for found in every]
        current = saved.current or None
        output_format.print_document(file=str(saved.file), current=current, in_force=active or None, profiles=pages)
    else:
        rows = [
            [
                "*" if found.name == active else "",
                found.name,
                *(found.backend, found.project, found.zone, found.cluster, found.namespace),
                " ".join(f"{name}={value_text(value)}" for name, value in found.options.items()),
            ]
            for found in every
        ]
        output_format.print_table(_PROFILE_COLUMNS, rows)
    if wanted and not saved.get(wanted):
        click.echo(f"{_VARIABLE}={wanted} is not one of them: correct it or unset it", err=True)
    elif wanted and wanted != saved.current and saved.current:
        click.echo(f"{_VARIABLE}={wanted} is active instead of the current profile {saved.current}", err=True)
    if LOCAL.name in saved.saved:
        click.echo(f"the profile {LOCAL.name!r} that {saved.file} has is not used: the name is built in", err=True)


@click.command
@click.argument("name", metavar="NAME", shell_complete=shared_options.complete_profiles)
@shared_options.json_option
def use(name: str, as_json: bool) -> None:
    """Make a profile the current one.

    It is used in every terminal, unless --profile or KINETIC_PROFILE selects another one.

    Example: kinetic profile use team
    """
    found = profiles.use(os.environ, name)
    _print_profile(found, as_json=as_json)
    click.echo(f"{name} is now the current profile", err=True)
    _report_override(name)


@click.command
def unset() -> None:
    """Clear the current profile.

    No profile is removed. Without a current profile, jobs run on this machine unless environment variables are set.

    Example: kinetic profile unset
    """
    before = profiles.unset(os.environ)
    now = f"there is no current profile now; it was {before}" if before else "there was no current profile"
    click.echo(now, err=True)
    _report_override()


@click.command
@click.argument("name", required=False, metavar="[NAME]", shell_complete=shared_options.complete_profiles)
@shared_options.json_option
def show(name: str | None, as_json: bool) -> None:
    """Show a profile.

    Without NAME, it shows the active profile.

    Example: kinetic profile show team
    """
    saved = profiles.load(os.environ)
    found = saved.get(name) if name else profiles.choose(os.environ).profile
    if name and found is None:
        raise profiles.unknown_profile_error(name, saved, way="kinetic profile show {nearest}")
    if found is None:
        raise SettingsError(
            "no profile is active",
            why=f"{saved.file} has no current profile, and {_VARIABLE} is not set",
            next=f"kinetic profile use {saved.names[0]}     or name one: kinetic profile show {saved.names[0]}",
        )
    _print_profile(found, as_json=as_json)


@click.command
@click.argument("name", metavar="NAME", shell_complete=shared_options.complete_profiles)
@shared_options.yes_option
def remove(name: str, yes: bool) -> None:
    """Remove a profile.

    It asks for confirmation; without a terminal, --yes is required. Jobs and results are kept.

    Example: kinetic profile rm team --yes
    """
    saved = profiles.load(os.environ)
    if saved.get(name) is None:
        raise profiles.unknown_profile_error(name, saved, way="kinetic profile list")
    refused = f"the profile {name!r} was not removed"
    ask = not yes and name != LOCAL.name
    if ask and not shared_options.confirm(f"Remove the profile {name}?", refused=refused):
        click.echo("not removed", err=True)
        return
    was_current = profiles.remove(os.environ, name)
    now = "; there is no current profile now" if was_current else ""
    click.echo(f"removed the profile {name}{now}", err=True)
    _report_override()


def _report_override(name: str = "") -> None:
    """Report that the environment names another profile, which takes precedence over the current one."""
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in {"", name}:
        click.echo(f"{_VARIABLE}={wanted} is still set: unset {_VARIABLE}", err=True)


def _active_name(saved: Profiles) -> str:
    """Return the name of the active profile, "" for none or one that does not exist."""
    found = saved.get(os.environ.get(_VARIABLE) or saved.current)
    return found.name if found else ""


def _page(found: Profile, saved: Profiles, active: str) -> dict[str, Any]:
    return {
        "name": found.name,
        "is_current": found.name == saved.current,
        "is_in_force": found.name == active,
        "is_built_in": found is LOCAL,
        **{field: getattr(found, field) or None for field in FIELDS if field != "store"},
        "store": without_secrets(found.store) or None,
        "options": dict(found.options),
    }


def _print_profile(found: Profile, *, as_json: bool) -> None:
    if as_json:
        saved = profiles.load(os.environ)
        output_format.print_document(profile=_page(found, saved, _active_name(saved)))
        return
    fields = {"name": found.name, **{field: getattr(found, field) for field in FIELDS}}
    fields["store"] = without_secrets(found.store)
    rows = [[name, value] for name, value in fields.items() if value]
    rows += [[f"option {name}", value_text(value)] for name, value in found.options.items()]
    output_format.print_table([Column("SETTING"), Column("VALUE", flexible=True)], rows)


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
@click.option("--image-repo", metavar="REPOSITORY", help="Where images are built for the projects of jobs.")
@click.option("--cpu-disk", metavar="SIZE", help="Disk that jobs without an accelerator request, as in 10Gi.")
@click.option("--store-secret", metavar="NAME", help="A Secret with credentials for the store.")
@click.option(
    "--node-selector", metavar="KEY=VALUE,…", help="Node labels to require instead of Google's; none for any node."
)
@click.option(
    "--tolerations", metavar="TAINT,…", help="Taints that pods tolerate, as in dedicated=research:NoSchedule."
)
@click.option("--labels", metavar="KEY=VALUE,…", help="Labels of all that is made for a job.")
@click.option("--annotations", metavar="KEY=VALUE,…", help="Annotations of pods.")
@click.option("--config-maps", metavar="NAME,…", help="ConfigMaps whose entries are variables of all pods.")
@click.option(
    "--volume-claims", metavar="PATH=CLAIM,…", help="Volumes of all pods: /scratch=scratch,/datasets=datasets:ro."
)
@click.option("--gpu-resource", metavar="NAME", help="What nodes call a GPU, instead of nvidia.com/gpu.")
@click.option("--scheduler", metavar="NAME", help="The scheduler of the pods.")
@click.option("--runtime-class", metavar="NAME", help="The RuntimeClass of pods.")
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
    if name:
        profiles.check_new_name(name)
    job_options = _job_options(written)
    given = {field: value or "" for field, value in fields.items()} | {"pull_secrets": ",".join(pull_secret)}
    _check_cluster_fields(given)
    missing = []
    if not registry.is_here(given["backend"]) and not given["context"]:
        for field in (*REQUIRED, "namespace"):
            given[field] = given[field] or os.environ.get(f"KINETIC_{field.upper()}", "")
        missing = [field for field in REQUIRED if not given[field]]
    name, given = _complete(name, given, missing)
    if given["store"].startswith(CLOUDS):
        given["store"] = parse_address(given["store"]).url  # of Azure, also with the account of this shell
    new = Profile(profiles.check_new_name(name), **given, options=job_options)
    _check(new)
    is_current = profiles.save(os.environ, new, replace=force)
    click.echo(f"saved the profile {name} in {profiles.profiles_file(os.environ)}", err=True)
    if is_current:
        click.echo("it is now the current profile; to undo: kinetic profile unset", err=True)
        _report_override(name)
    else:
        click.echo(f"to make it the current profile: kinetic profile use {name}", err=True)


def _job_options(written: tuple[str, ...]) -> dict[str, object]:
    """Read the values of ``--option``."""
    if not written:
        return {}
    from kinetic._jobs import option_sources  # only where there is an option

    found: dict[str, object] = {}
    for text in written:
        key, separator, value = text.partition("=")
        if not separator or not value:
            raise OptionError(
                f"--option {text!r} is not KEY=VALUE",
                why="it takes the name of a job option and its value",
                next="write --option accelerator=gpu-l4, for example",
            )
        found[key.strip()] = option_sources.of_text(key.strip(), value.strip())
    return found


def _check_cluster_fields(given: dict[str, str]) -> None:
    """Refuse values that no cluster accepts, by the names of the flags."""
    for field in cluster.FIELDS:
        if given[field]:
            flag = f"--{field.removesuffix('s') if field == 'pull_secrets' else field}".replace("_", "-")
            way = f"write {flag} {cluster.example_of(field)}, for example"
            cluster.checked_value(field, given[field], f"{flag} {given[field]!r}", way)


def _complete(name: str | None, given: dict[str, str], missing: list[str]) -> tuple[str, dict[str, str]]:
    """Ask for what is missing."""
    if (missing or not name) and not shared_options.is_interactive():
        raise _incomplete(name, given, missing)
    name = name or shared_options.ask("Name of the profile")
    asked = {field: shared_options.ask(_QUESTIONS[field], _SUGGESTED[field]) for field in missing}
    if missing and not given["namespace"]:
        asked["namespace"] = shared_options.ask("Kubernetes namespace", _DEFAULTS["namespace"])
    return name, given | asked


def _incomplete(name: str | None, given: dict[str, str], missing: list[str]) -> OptionError:
    import shlex  # 2 ms; only on the way to an error

    flags = [*([] if name else ["NAME"]), *(f"--{field}" for field in missing)]
    values = {field: given[field] or _SUGGESTED[field] or "YOUR-PROJECT" for field in REQUIRED}
    shown = " ".join(f"--{field} {shlex.quote(value)}" for field, value in values.items())
    listed = " and ".join(filter(None, (", ".join(flags[:-1]), flags[-1])))
    return OptionError(
        f"{listed} {'is' if len(flags) == 1 else 'are'} missing",
        why="not a terminal: pass the options",
        next=f"kinetic profile create {name or 'NAME'} {shown}     or, for this machine, --backend local",
    )


def _check(new: Profile) -> None:
    """Refuse a profile that does not say where jobs run: resolve its values as arguments, without other sources."""
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
