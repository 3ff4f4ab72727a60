"""``kinetic profile``: places that are saved under a name, and which of them holds."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from kinetic import _settings as settings
from kinetic._cli import completing, options, tables, values
from kinetic._cli.lazy import Later, LazyGroup, show_help_alone
from kinetic._cli.tables import Column
from kinetic._settings import profile_store, profiles
from kinetic._settings.profiles import FIELDS, LOCAL, REQUIRED, Profile
from kinetic._settings.target import BACKENDS, DEFAULT_CLUSTER, DEFAULT_NAMESPACE, DEFAULT_ZONE
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from kinetic._settings.profiles import Profiles

_HERE = "kinetic._cli.commands.profile"
_VARIABLE = "KINETIC_PROFILE"
_QUESTIONS = {"project": "Google Cloud project", "zone": "Zone of the cluster", "cluster": "Name of the cluster"}
_SUGGESTED = {"project": "", "zone": DEFAULT_ZONE, "cluster": DEFAULT_CLUSTER}
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
    later={
        "create": Later(f"{_HERE}:create", "Save a place under a name."),
        "list": Later(f"{_HERE}:list_", "List the profiles."),
        "use": Later(f"{_HERE}:use", "Make a profile the current one."),
        "unset": Later(f"{_HERE}:unset", "Leave no profile the current one."),
        "show": Later(f"{_HERE}:show", "Show what a profile says."),
        "rm": Later(f"{_HERE}:remove", "Remove a profile."),
    },
    aliases={"ls": "list", "remove": "rm"},
    epilog=f"The profile that holds is that of --profile, else of {_VARIABLE}, else the current one. It fills in what "
    "neither an argument nor an environment variable says. The profile 'local' is built in and means this machine.",
)
@click.pass_context
def profile(ctx: click.Context) -> None:
    """Save places under a name, and choose among them.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main
    """
    show_help_alone(ctx)


@click.command
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--project", metavar="NAME", help="Google Cloud project; else KINETIC_PROJECT.")
@click.option("--zone", metavar="NAME", help="Google Cloud zone; else KINETIC_ZONE.")
@click.option("--cluster", metavar="NAME", help="GKE cluster; else KINETIC_CLUSTER.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace; else KINETIC_NAMESPACE.")
@click.option("--backend", type=click.Choice(BACKENDS), help="Where jobs run; without it GKE, or a context's cluster.")
@click.option("--store", metavar="URL", help="The store that keeps jobs and results; without it the cluster's bucket.")
@click.option("--context", metavar="NAME", help="A kubeconfig context instead of GKE's own endpoint.")
@click.option("--option", "written", multiple=True, metavar="KEY=VALUE", help="A job option; may be given many times.")
@click.option("--force", is_flag=True, help="Replace a profile of this name.")
def create(name: str | None, written: tuple[str, ...], force: bool, **fields: str | None) -> None:
    """Save a place under a name.

    What is missing is asked for where there is a terminal. The first profile becomes the current one. Job options are
    accelerator, container_image, deadline (in seconds) and spot.

    Example: kinetic profile create team --project acme --zone us-west4-a --cluster main --option accelerator=gpu-l4
    """
    job_options = _job_options(written)
    given = {field: value or "" for field, value in fields.items()}
    if given["backend"] != LOCAL.backend and not given["context"]:
        given = {field: value or _from_environment(field) for field, value in given.items()}
        missing = [field for field in REQUIRED if not given[field]]
    else:
        missing = []
    name, given = _complete(name, given, missing)
    new = Profile(profiles.check_name(name), **given, options=job_options)
    _check(new)
    is_current = profile_store.save(os.environ, new, replace=force)
    click.echo(f"Saved the profile {name} in {profiles.profiles_file(os.environ)}", err=True)
    if is_current:
        click.echo("It is the first one, so it is the current one now; undo with: kinetic profile unset", err=True)
        _tell_if_masked(name)
    else:
        click.echo(f"Make it the current one with: kinetic profile use {name}", err=True)


@click.command("list")
@options.as_json
def list_(as_json: bool) -> None:
    """List the profiles.

    The one that holds has a star.

    Example: kinetic profile list
    """
    saved = profiles.load(os.environ)
    wanted, holds = os.environ.get(_VARIABLE, ""), _in_force(saved)
    if as_json:
        pages = [_page(found, saved, holds) for found in _all(saved)]
        tables.document(file=str(saved.file), current=saved.current or None, in_force=holds or None, profiles=pages)
    else:
        tables.show(_COLUMNS, [_cells(found, holds) for found in _all(saved)])
    if wanted and not saved.get(wanted):
        click.echo(f"{_VARIABLE}={wanted} names none of them: correct it or unset it", err=True)
    elif wanted and wanted != saved.current and saved.current:
        click.echo(f"{_VARIABLE}={wanted} holds; without it the current one would: {saved.current}", err=True)
    if LOCAL.name in saved.saved:
        click.echo(f"the profile 'local' that {saved.file} has is not used: the name is built in", err=True)


@click.command
@click.argument("name", metavar="NAME", shell_complete=completing.profiles)
def use(name: str) -> None:
    """Make a profile the current one.

    It holds from now on, in every terminal, where neither --profile nor KINETIC_PROFILE says otherwise.

    Example: kinetic profile use team
    """
    found = profile_store.use(os.environ, name)
    _show(found)
    click.echo(f"{name} is the current profile now", err=True)
    _tell_if_masked(name)


@click.command
def unset() -> None:
    """Leave no profile the current one.

    No profile is removed. Without any, jobs run on this machine unless the environment says otherwise.

    Example: kinetic profile unset
    """
    before = profile_store.unset(os.environ)
    told = f"No profile is the current one any more; it was {before}" if before else "No profile was the current one"
    click.echo(told, err=True)
    _tell_if_masked()


@click.command
@click.argument("name", required=False, metavar="[NAME]", shell_complete=completing.profiles)
@options.as_json
def show(name: str | None, as_json: bool) -> None:
    """Show what a profile says.

    The one that holds without a NAME.

    Example: kinetic profile show team
    """
    saved = profiles.load(os.environ)
    found = saved.get(name) if name else profiles.choose(os.environ).profile
    if name and found is None:
        raise profiles.unknown(name, saved, way="kinetic profile show {nearest}")
    if found is None:
        raise SettingsError(
            "no profile holds",
            why=f"there is no current one in {saved.file}, and {_VARIABLE} is not set",
            next=f"kinetic profile use {saved.names[0]}     or name one: kinetic profile show {saved.names[0]}",
        )
    if as_json:
        tables.document(profile=_page(found, saved, _in_force(saved)))
    else:
        _show(found)


@click.command
@click.argument("name", metavar="NAME", shell_complete=completing.profiles)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Remove a profile.

    Asks first; where there is no terminal, --yes is needed. Jobs and results stay where they are.

    Example: kinetic profile rm team --yes
    """
    saved = profiles.load(os.environ)
    if saved.get(name) is None:
        raise profiles.unknown(name, saved, way="kinetic profile list")
    if not yes and name != LOCAL.name:
        if not _can_ask():
            raise OptionError(
                f"the profile {name!r} was not removed",
                why="there is no terminal to ask in whether that is meant",
                next=f"kinetic profile rm {name} --yes",
            )
        if not _agreed(f"Remove the profile {name}?"):
            click.echo("It stays", err=True)
            return
    was_current = profile_store.remove(os.environ, name)
    told = "; it was the current one, and none is now" if was_current else ""
    click.echo(f"The profile {name} is removed{told}", err=True)
    _tell_if_masked()


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
        from kinetic._jobs import defaults  # only where there is an option

        found[key.strip()] = defaults.from_text(key.strip(), value.strip())
    return found


def _from_environment(field: str) -> str:
    """Return what the environment says of the four fields that name a cluster."""
    return os.environ.get(f"KINETIC_{field.upper()}", "") if field in {*REQUIRED, "namespace"} else ""


def _complete(name: str | None, given: dict[str, str], missing: list[str]) -> tuple[str, dict[str, str]]:
    """Ask for what is missing, or refuse where nobody can be asked."""
    if (missing or not name) and not _can_ask():
        raise _incomplete(name, given, missing)
    name = name or _ask("Name of the profile")
    asked = {field: _ask(_QUESTIONS[field], _SUGGESTED[field]) for field in missing}
    if missing and not given["namespace"]:
        asked["namespace"] = _ask("Kubernetes namespace", DEFAULT_NAMESPACE)
    return name, given | asked


def _incomplete(name: str | None, given: dict[str, str], missing: list[str]) -> OptionError:
    flags = [*([] if name else ["NAME"]), *(f"--{field}" for field in missing)]
    shown = " ".join(f"--{field} {given[field] or _SUGGESTED[field] or 'YOUR-PROJECT'}" for field in REQUIRED)
    return OptionError(
        f"{' and '.join(flags)} {'is' if len(flags) == 1 else 'are'} missing",
        why="there is no terminal to ask in",
        next=f"kinetic profile create {name or 'NAME'} {shown}     or, for this machine, --backend local",
    )


def _check(new: Profile) -> None:
    """Refuse a profile that could not say where jobs run: its values are tried as arguments, with no other source."""
    if new.context and not (new.store or new.project):
        raise OptionError(
            "--store is missing",
            why="a cluster that is reached by a kubeconfig context has no bucket of its own",
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
        backend=new.backend or "gke",
        project=new.project,
        zone=new.zone,
        cluster=new.cluster,
        namespace=new.namespace,
        environ=alone,
    )


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(question: str, suggested: str = "") -> str:
    """Ask; whoever presses Ctrl-C or ends the input wants to leave."""
    try:
        return str(click.prompt(question, default=suggested or None, err=True))
    except click.Abort:
        raise KeyboardInterrupt from None


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None


def _tell_if_masked(name: str = "") -> None:
    """Say so if the environment names another profile: that one holds, whatever is the current one."""
    wanted = os.environ.get(_VARIABLE, "")
    if wanted not in {"", name}:
        click.echo(f"{_VARIABLE}={wanted} is set and holds all the same: unset {_VARIABLE}", err=True)


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
        "store": values.without_secrets(found.store) or None,
        "options": dict(found.options),
    }


def _cells(found: Profile, holds: str) -> list[str]:
    star = "*" if found.name == holds else ""
    place = [found.backend, found.project, found.zone, found.cluster, found.namespace]
    return [star, found.name, *place, _written(found)]


def _written(found: Profile) -> str:
    return " ".join(f"{name}={values.text_of(value)}" for name, value in found.options.items())


def _show(found: Profile) -> None:
    fields = {"name": found.name, **{field: getattr(found, field) for field in FIELDS}}
    fields["store"] = values.without_secrets(found.store)
    rows = [[name, value] for name, value in fields.items() if value]
    rows += [[f"option {name}", values.text_of(value)] for name, value in found.options.items()]
    tables.show([Column("SETTING"), Column("VALUE", flexible=True)], rows)
