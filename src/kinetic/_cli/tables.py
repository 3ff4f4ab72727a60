"""How values of settings are written for a person: as they would be typed, and never with a secret in them."""

from __future__ import annotations

from collections.abc import Mapping


def text_of(value: object) -> str:
    """Write a value as somebody would type it; "" for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(text_of, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text_of(each)}" for key, each in value.items())
    return str(value)


def without_secrets(address: str) -> str:
    """Return an address without what may be a secret in it: ``user:password@`` and everything after ``?``."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    place, question, _ = rest.partition("?")
    host, slash, path = place.partition("/")
    user, at, host = host.rpartition("@")
    hidden = f"{'***' if user else ''}{at}{host}{slash}{path}"
    return f"{scheme}://{hidden}{'?***' if question else ''}"
