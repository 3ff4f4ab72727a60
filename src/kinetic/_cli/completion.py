"""``kinetic completion``, and the words that the Tab key offers."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_NAMED = 100  # the newest jobs whose names are offered
_PLAIN_WORD = re.compile(r"@?[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)  # what names of jobs and profiles are made of
_VARIABLE = "_KINETIC_COMPLETE"  # click's own name for it: the script sets it, and click answers
_NEW_BASH = "complete -o nosort -F _kinetic_completion kinetic"
_ANY_BASH = "complete -F _kinetic_completion kinetic"  # bash before 4.4, such as that of macOS, sorts what is offered
_REPAIRED = {  # in click's scripts; that for fish cuts a sentence at its first comma, and sorts the ids of jobs
    'string split "," $': 'string split --max 1 "," $',
    "complete --no-files ": "complete --no-files --keep-order ",
    _NEW_BASH: f"{_NEW_BASH} 2>/dev/null || {_ANY_BASH}",
}
_SETUP = {
    "bash": 'put this into ~/.bashrc: eval "$(kinetic completion bash)"',
    "zsh": 'put this into ~/.zshrc, below compinit: eval "$(kinetic completion zsh)"',
    "fish": "run this once: kinetic completion fish > ~/.config/fish/completions/kinetic.fish",
}


@click.command(epilog="; ".join(f"{shell}: {setup}" for shell, setup in _SETUP.items()) + ".")
@click.argument("shell", type=click.Choice([*_SETUP]), metavar="bash|zsh|fish")
def completion(shell: str) -> None:
    """Print a script for shell completion.

    It completes commands, options, ids and names of jobs and batches, profiles and accelerators.

    Example: kinetic completion bash >> ~/.bashrc
    """
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"  # noqa: S101 - it knows the three that are offered
    # Not kind.source(): for bash, that starts one to ask for its version, and it need not even be installed here.
    script = ShellComplete.source(kind(click.get_current_context().find_root().command, {}, "kinetic", _VARIABLE))
    for theirs, ours in _REPAIRED.items():
        script = script.replace(theirs, ours)
    print(script)
    if sys.stdout.isatty():
        click.echo(f"To use it, {_SETUP[shell]}", err=True)


def words_that_begin(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names that begin so and are one plain word, since a shell does not quote them."""
    with contextlib.suppress(Exception):  # the command itself reports what is wrong, not the Tab key
        return [word for word in names() if word.startswith(incomplete) and _PLAIN_WORD.fullmatch(word)]
    return []


def job_ids() -> Iterator[str]:
    """Yield the ids of jobs in the local store, and of those that were listed in the target's, newest first; names."""
    from kinetic._jobs import locate
    from kinetic._wire import keys

    store, elsewhere = locate.local_store(), _known_elsewhere()
    found = {*elsewhere, *(name for name in store.folders("") if name not in keys.RESERVED)}
    if found:
        yield "@last"
    # An id says when it was made: …-20261120-134402-1f0c9ab.
    newest = sorted(found, key=lambda job_id: job_id.split("-")[-3:-1], reverse=True)
    yield from newest
    here = [keys.record(job_id) for job_id in newest[:_NAMED] if job_id not in elsewhere]
    yield from _names([*(name for name, _ in elsewhere.values()), *_read_names(store, here, "name")])


def group_ids() -> Iterator[str]:
    """Yield the ids of batches as ``job_ids`` does those of jobs."""
    from kinetic._jobs import locate
    from kinetic._wire import keys

    store = locate.local_store()
    manifests = [(store.entry(keys.group_manifest(name)), name) for name in store.folders(keys.GROUPS)]
    found = sorted(((entry.modified, name) for entry, name in manifests if entry is not None), reverse=True)
    elsewhere = dict.fromkeys(group for _, group in _known_elsewhere().values() if group)
    if found or elsewhere:
        yield "@last"
    yield from (name for _, name in found)
    yield from elsewhere
    yield from _names(_read_names(store, [keys.group_manifest(name) for _, name in found[:_NAMED]], "group_name"))


def _known_elsewhere() -> dict[str, tuple[str | None, str | None]]:
    """Return the jobs of the target's store that were listed before: the Tab key asks no network."""
    from kinetic._config import target as settings
    from kinetic._jobs import index, locate

    with contextlib.suppress(Exception):  # jobs of this machine are offered all the same
        url = settings.resolve().store.value
        if url != locate.local_store().url:
            return index.known_jobs(url)
    return {}


def _read_names(store: Store, pages: Iterable[str], field: str) -> Iterator[str | None]:
    import json

    for at in pages:
        with contextlib.suppress(Exception):  # being submitted or removed this moment, or damaged
            yield json.loads(store.get(at)).get(field)


def _names(found: Iterable[object]) -> Iterator[str]:
    """Yield the names that only one has: the others do not say which one is meant."""
    from collections import Counter

    yield from (name for name, count in Counter(found).items() if isinstance(name, str) and count == 1)


def profile_names() -> list[str]:
    from kinetic._config import profiles

    return profiles.load(os.environ).names


def accelerator_names() -> Iterator[str]:
    """Yield each GPU with its counts, and each TPU with its usual sizes."""
    from kinetic import _hardware as hardware

    yield "cpu"
    for gpu in hardware.GPUS.values():
        yield from (f"gpu-{gpu.name}" if count == 1 else f"gpu-{gpu.name}x{count}" for count in gpu.machines)
    for tpu in hardware.TPUS.values():
        yield from (tpu.canonical(topology) for _, topology in tpu.usual_sizes())
