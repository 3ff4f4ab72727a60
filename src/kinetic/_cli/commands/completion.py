"""``kinetic completion``: what makes a shell complete commands, options, ids of jobs and names of profiles."""

from __future__ import annotations

import sys

import click

_VARIABLE = "_KINETIC_COMPLETE"  # click's own name for it: the script sets it, and click answers
_NEW_BASH = "complete -o nosort -F _kinetic_completion kinetic"
_ANY_BASH = "complete -F _kinetic_completion kinetic"  # bash before 4.4, such as that of macOS, sorts what is offered
_HOW = {
    "bash": 'put this into ~/.bashrc: eval "$(kinetic completion bash)"',
    "zsh": 'put this into ~/.zshrc, below compinit: eval "$(kinetic completion zsh)"',
    "fish": "run this once: kinetic completion fish > ~/.config/fish/completions/kinetic.fish",
}


@click.command(epilog="; ".join(f"{shell}: {how}" for shell, how in _HOW.items()) + ".")
@click.argument("shell", type=click.Choice([*_HOW]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options, job ids, profiles and accelerators.

    Example: kinetic completion bash >> ~/.bashrc
    """
    from click.shell_completion import ShellComplete, get_completion_class

    from kinetic._cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"  # noqa: S101 - it knows the three that are offered
    # Not kind.source(): for bash, that starts one to ask for its version, and it need not even be installed here.
    script = ShellComplete.source(kind(cli, {}, "kinetic", _VARIABLE))
    print(script.replace(_NEW_BASH, f"{_NEW_BASH} 2>/dev/null || {_ANY_BASH}"))
    if sys.stdout.isatty():
        click.echo(f"To use it, {_HOW[shell]}", err=True)
