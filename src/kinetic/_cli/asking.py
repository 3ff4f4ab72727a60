"""Asking a person, where there is one: whoever presses Ctrl-C or ends the input wants to leave."""

from __future__ import annotations

import sys

import click


def can_ask() -> bool:
    """Say whether a person sits there: both what is typed and what is asked are on a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, suggested: str = "") -> str:
    """Ask for a word, on standard error; the suggested one is taken for an empty answer.

    Raises:
        KeyboardInterrupt: There will be no answer.
    """
    try:
        return str(click.prompt(question, default=suggested or None, err=True))
    except click.Abort:
        raise KeyboardInterrupt from None


def is_agreed(question: str) -> bool:
    """Ask whether something is meant, on standard error.

    Raises:
        KeyboardInterrupt: There will be no answer.
    """
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        raise KeyboardInterrupt from None
