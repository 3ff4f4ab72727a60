"""``kinetic key``: the keys that seal results, and taking one to another machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

import click

from kinetic._cli import command_tree, shared_options
from kinetic._cli.command_tree import LazyGroup, show_help_alone
from kinetic._output import format as output_format
from kinetic._output.format import Column


@click.group(
    cls=LazyGroup,
    later=command_tree.below("key"),
    aliases={"ls": "list"},
)
@click.pass_context
def key(ctx: click.Context) -> None:
    """Export and import the keys that seal results.

    Every result has a seal that can be made only with the key, so that write access to a store is not enough to make
    this machine run code. Import the key of another machine to load its results. A key is a secret: everyone who has
    it can make results that you trust.

    Example: kinetic key export | ssh laptop kinetic key import
    """
    show_help_alone(ctx)


@click.command("list")
@shared_options.as_json
def list_(as_json: bool) -> None:
    """List the keys of this machine.

    It prints their ids, not the keys.

    Example: kinetic key list
    """
    from kinetic._config import keyring

    found = keyring.listed(_home())
    if as_json:
        output_format.document(keys=[{"key_id": key_id} for key_id in found])
    elif found:
        output_format.show([Column("KEY ID")], [[key_id] for key_id in found])
    else:
        click.echo(f"There are no keys in {_home()}; the first job creates one", err=True)


@click.command
@click.argument("key_id", required=False, metavar="[KEY_ID]")
def export(key_id: str | None) -> None:
    """Print a key, for another machine.

    The key of this home without an id. Everyone who has it can make results that you trust: send it through a channel
    that only you can read.

    Example: kinetic key export > kinetic.key
    """
    from kinetic import _config as settings
    from kinetic._config import keyring
    from kinetic.errors import OptionError

    if key_id is None:
        key_id, found = keyring.own_key(settings.ensure_home(os.environ))
    else:
        other = keyring.find(_home(), key_id)
        if other is None:
            raise OptionError(
                f"there is no key {key_id!r} here",
                why=f"keys in {_home()}: {', '.join(keyring.listed(_home())) or 'none'}",
                next="kinetic key list",
                code="no-such-key",
            )
        found = other
    print(found.hex())
    click.echo(f"this is the key {key_id}; on the other machine run: kinetic key import", err=True)


@click.command("import")
@click.argument("file", type=click.File("r"), default="-", metavar="[FILE]")
def import_(file: IO[str]) -> None:
    """Add a key that another machine exported.

    It reads the key from FILE, or from standard input. Results sealed with it can then be loaded on this machine.

    Example: kinetic key import kinetic.key
    """
    from kinetic import _config as settings
    from kinetic._config import keyring
    from kinetic.errors import SettingsError

    if file is sys.stdin and sys.stdin.isatty():
        click.echo("Paste the key and press Return, then Ctrl-D:", err=True)
    try:
        key_id = keyring.add(settings.ensure_home(os.environ), file.read())
    except UnicodeDecodeError as error:
        raise SettingsError("this is not a valid key", why="it is not text") from error
    except SettingsError as error:
        error.next = error.next or "on the machine that has the key: kinetic key export"
        raise
    click.echo(f"imported the key {key_id}", err=True)


def _home() -> Path:
    from kinetic import _config as settings

    return settings.kinetic_home(os.environ)
