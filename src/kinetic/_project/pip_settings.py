"""Package indexes that only pip knows: uv, which installs for jobs, reads none of pip's settings.

On the usual index, another package may have the name of one that comes from an index of the user's.

Source: pip.pypa.io/en/stable/topics/configuration, of pip 26, read 2026-11-30.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence

from kinetic._wire.python_runtime import SETTING

# What names an index to uv; each of its files may do so.
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
_NAMED = rf"(?:-i|-f|--(?:extra-)?index-url|--find-links|{SETTING}tool\.uv\.(?:index|extra-index|find-links))"
_USUAL = r"https?://pypi\.(?:org|python\.org)(?:/|\Z)"
_LOGIN = r"(?<=://)[^/?#]*@"
_KEYS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
_SECTIONS = ("global", "install", "download")


def note(lines: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a note about an index that pip uses here, if neither uv nor the lines name one; "" for nothing."""
    if any(environ.get(name) for name in _OF_UV) or any(re.match(_NAMED, line) for line in lines):
        return ""
    home = os.path.expanduser(environ.get("HOME") or "~")
    configured = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    if any(os.path.isfile(file) for file in (f"{configured}/uv/uv.toml", "/etc/uv/uv.toml")):
        return ""
    named = environ.get("PIP_CONFIG_FILE", "")
    folders = ("/etc", f"{home}/.pip", f"{home}/Library/Application Support/pip", f"{configured}/pip", sys.prefix)
    files = [] if named == os.devnull else [*(f"{folder}/pip.conf" for folder in folders), named]
    for where, key, value in (*_in_variables(environ), *_in_files(files)):
        addresses = [re.sub(_LOGIN, "", each) for each in value.split() if not re.match(_USUAL, each)]
        if addresses:
            found = " ".join(addresses)
            return (
                f"pip uses {found} ({where}), and uv, which installs for jobs, does not: "
                f"export {_KEYS[key]}={found if len(addresses) == 1 else repr(found)}"
            )
    return ""


def _in_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for key in _KEYS:
        name = f"PIP_{key.replace('-', '_').upper()}"
        yield name, key, environ.get(name, "")


def _in_files(files: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    import configparser  # 3 ms; only where there is a file

    for file in filter(os.path.isfile, files):
        page = configparser.RawConfigParser()
        try:
            page.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError):  # pip says what is wrong with it
            continue
        for section in _SECTIONS:
            for key in _KEYS:
                yield file, key, page.get(section, key, fallback="")
