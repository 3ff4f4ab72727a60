"""What the documents promise and a later release brings: asking for it says so, at once and by name."""

from __future__ import annotations

from typing import NoReturn

from kinetic.errors import OptionError


def refuse(what: str, instead: str) -> NoReturn:
    """Say that something is not part of this release.

    Raises:
        OptionError: Always.
    """
    raise OptionError(f"{what} is not part of this release of kinetic", next=instead, code="not-yet")
