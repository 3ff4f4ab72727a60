"""Secrets in addresses: a password or token before the host, and fields of the query, as ``sig`` of Azure."""

from __future__ import annotations

import re

_LOGIN = r"(?<=://)[^\s/?#\"']*@"  # up to the last @ before the path, which a password may have, too
_ADDRESS = r"([A-Za-z][A-Za-z0-9+.-]*)://(?:([^\s/?#\"']*)@)?"
_FIELD = r"([?&]([^\s=&#?\"']*)=)([^\s&#\"']+)"
_FIELDS_WITH_SECRETS = r"(?i)token|secret|password|signature|credential|api_?key|\Asig\Z"


def without_secrets(text: str) -> str:
    """Return a text in which no address has a secret."""

    def hidden(field: re.Match[str]) -> str:
        return f"{field[1]}***" if re.search(_FIELDS_WITH_SECRETS, field[2]) else field[0]

    return re.sub(_FIELD, hidden, re.sub(_LOGIN, "***@", text))


def secret_in(text: str, *, variables: bool = False) -> str:
    """Return what in the addresses of a text is a secret, or "".

    A user alone is none where it only says how to connect, by SSH; with ``variables``, neither is "${NAME}", which uv
    fills in where it installs.
    """
    known = ("${",) if variables else ()
    for scheme, login in re.findall(_ADDRESS, text):
        user, colon, password = login.partition(":")
        secret = password or ("" if "ssh" in scheme.lower() and not colon else user)
        if secret and not secret.startswith(known):
            return "a user or a password"
    fields = re.findall(_FIELD, text) if "://" in text else []
    found = (name for _, name, value in fields if re.search(_FIELDS_WITH_SECRETS, name) and not value.startswith(known))
    return next((f"the field {name!r}" for name in found), "")
