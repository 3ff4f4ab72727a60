"""Names such as ``config.floatx()``: attributes of attributes, and what calling them gives."""

from __future__ import annotations

import contextlib
from typing import Any


def get(owner: Any, name: str) -> Any:
    """Return what a dotted name of something stands for; "()" behind a part of it calls that."""
    for part in name.split("."):
        owner = getattr(owner, part.removesuffix("()"))
        if part.endswith("()"):
            owner = owner()
    return owner


def give(owner: Any, name: str, value: Any) -> None:
    """Give a value to what a dotted name stands for: call that if it can be called, a dict as keywords, else set it.

    Where another version of a library does not know one of the keywords, the others come one by one.
    """
    above, _, last = name.rpartition(".")
    owner = get(owner, above) if above else owner
    if not callable(setter := getattr(owner, last)):
        setattr(owner, last, value)
    elif isinstance(value, dict):
        try:
            setter(**value)
        except Exception:  # noqa: BLE001 - a library's own
            for keyword, each in value.items():
                with contextlib.suppress(Exception):
                    setter(**{keyword: each})
    else:
        setter(value)
