"""``kinetic profile``: places that are saved under a name, and which of them holds."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import asking, completing, options, tables, tree, values
from kinetic._cli.lazy import LazyGroup, show_help_alone
from kinetic._cli.tables import Column
from kinetic._settings import profile_store, profiles
from kinetic._settings.profiles import FIELDS, LOCAL, Profile
from kinetic.errors import OptionError, SettingsError

if TYPE_CHECKING:
    from kinetic._settings.profiles import Profiles

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
    later=tree.below("profile"),
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
@options.as_json
def list_(as_json: bool) -> None:
    """List the profiles.

    A star marks the active profile.

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
        click.echo(f"{_VARIABLE}={wanted} is not one of them: correct it or unset it", err=True)
    elif wanted and wanted != saved.current and saved.current:
        click.echo(f"{_VARIABLE}={wanted} is active instead of the current profile {saved.current}", err=True)
    if LOCAL.name in saved.saved:
        click.echo(f"the profile {LOCAL.name!r} that {saved.file} has is not used: the name is built in", err=True)


@click.command
@click.argument("name", metavar="NAME", shell_complete=completing.profiles)
@options.as_json
def use(name: str, as_json: bool) -> None:
    """Make a profile the current one.

    It is used in every terminal, unless --profile or KINETIC_PROFILE selects another one.

    Example: kinetic profile use team
    """
    found = profile_store.use(os.environ, name)
    _tell(found, as_json=as_json)
    click.echo(f"{name} is now the current profile", err=True)
    tell_if_masked(name)


@click.command
def unset() -> None:
    """Clear the current profile.

    No profile is removed. Without a current profile, jobs run on this machine unless environment variables are set.

    Example: kinetic profile unset
    """
    before = profile_store.unset(os.environ)
    told = f"there is no current profile now; it was {before}" if before else "there was no current profile"
    click.echo(told, err=True)
    tell_if_masked()


@click.command
@click.argument("name", required=False, metavar="[NAME]", shell_complete=completing.profiles)
@options.as_json
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
@click.argument("name", metavar="NAME", shell_complete=completing.profiles)
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
        if not asking.can_ask():
            raise OptionError(
                f"the profile {name!r} was not removed",
                why="not a terminal: pass --yes to confirm",
                next=f"kinetic profile rm {name} --yes",
            )
        if not asking.is_agreed(f"Remove the profile {name}?"):
            click.echo("not removed", err=True)
            return
    was_current = profile_store.remove(os.environ, name)
    told = "; there is no current profile now" if was_current else ""
    click.echo(f"removed the profile {name}{told}", err=True)
    tell_if_masked()


def tell_if_masked(name: str = "") -> None:
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
        "store": values.without_secrets(found.store) or None,
        "options": dict(found.options),
    }


def _cells(found: Profile, holds: str) -> list[str]:
    star = "*" if found.name == holds else ""
    place = [found.backend, found.project, found.zone, found.cluster, found.namespace]
    return [star, found.name, *place, _written(found)]


def _written(found: Profile) -> str:
    return " ".join(f"{name}={values.text_of(value)}" for name, value in found.options.items())


def _tell(found: Profile, *, as_json: bool) -> None:
    """Print what a profile says."""
    if as_json:
        saved = profiles.load(os.environ)
        tables.document(profile=_page(found, saved, _in_force(saved)))
        return
    fields = {"name": found.name, **{field: getattr(found, field) for field in FIELDS}}
    fields["store"] = values.without_secrets(found.store)
    rows = [[name, value] for name, value in fields.items() if value]
    rows += [[f"option {name}", values.text_of(value)] for name, value in found.options.items()]
    tables.show([Column("SETTING"), Column("VALUE", flexible=True)], rows)
