"""Secrets in addresses: a password or token before the host, and fields of the query, as ``sig`` of Azure."""

from __future__ import annotations

import re

LOGIN = r"(?<=://)[^\s/?#\"']*@"  # up to the last @ before the path, which a password may have, too
_ADDRESS = r"([A-Za-z][A-Za-z0-9+.-]*)://([^\s/?#\"']*)@"
_FIELD = r"([?&]([^\s=&#?\"']*)=)([^\s&#\"']+)"
_FIELDS_WITH_SECRETS = r"(?i)token|secret|password|signature|credential|api_?key|\Asig\Z"


def without_secrets(text: str) -> str:
    """Return a text in which no address has a secret."""

    def hidden(login: re.Match[str]) -> str:
        return login[0] if _is_only_a_user(login[1], login[2]) else f"{login[1]}://***@"

    def hidden_field(field: re.Match[str]) -> str:
        return f"{field[1]}***" if re.search(_FIELDS_WITH_SECRETS, field[2]) else field[0]

    if "://" in text:  # else long runs of letters, as hashes, are slow to search
        text = re.sub(_ADDRESS, hidden, text)
    return re.sub(_FIELD, hidden_field, text)


def _is_only_a_user(scheme: str, login: str) -> bool:
    """Return whether a login is the name of a user by SSH: it only says how to connect."""
    return "ssh" in scheme.lower() and ":" not in login


def secret_in(text: str, *, variables: bool = False) -> str:
    """Return what in the addresses of a text is a secret, or "".

    With ``variables``, "${NAME}" is none, which uv fills in where it installs.
    """
    if "://" not in text:  # as above
        return ""
    known = ("${",) if variables else ()
    for scheme, login in re.findall(_ADDRESS, text):
        user, _, password = login.partition(":")
        secret = "" if _is_only_a_user(scheme, login) else password or user
        if secret and not secret.startswith(known):
            return "a user or a password"
    fields = re.findall(_FIELD, text)
    found = (name for _, name, value in fields if re.search(_FIELDS_WITH_SECRETS, name) and not value.startswith(known))
    return next((f"the field {name!r}" for name in found), "")
