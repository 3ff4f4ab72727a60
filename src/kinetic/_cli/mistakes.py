"""Mistakes on the command line that can say more than click does: why, and what to type instead."""

from __future__ import annotations

import click


class MistakeError(click.UsageError):
    """Say what is wrong with a command line, why, and what was probably meant.

    Args:
        message: What is wrong.
        ctx: The command that found it.
        why: The reason, or what there is to choose from.
        next: A command line.
    """

    def __init__(self, message: str, ctx: click.Context, *, why: str, next: str) -> None:  # noqa: A002 - as in errors.py
        super().__init__(message, ctx)
        self.why = why
        self.next = next
