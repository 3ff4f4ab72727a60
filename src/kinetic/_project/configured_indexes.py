"""Package indexes that tools of this machine are told, and what installs for jobs is not.

uv, which installs for jobs, reads none of pip's settings; and pods have neither the variables nor the files of uv here.
On the usual index, another package may have the name of one that comes from an index of the user's.

Source: pip.pypa.io/en/stable/topics/configuration, of pip 26, and docs.astral.sh/uv/concepts/configuration-files; read
2026-11-30.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from kinetic._config import home
from kinetic._wire import addresses
from kinetic._wire.python_runtime import SETTING

# What names an index to uv; each of its files may do so.
_OF_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_NAMED = rf"(?:-i|-f|--(?:extra-)?index-url|--find-links|{SETTING}tool\.uv\.(?:index|extra-index|find-links))"
_USUAL = r"https?://pypi\.(?:org|python\.org)(?:/|\Z)"
_NAME_BEFORE = r"\A[\w.-]+="  # acme=https://…
_KEYS = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX"}
_SECTIONS = ("global", "install", "download")


def note_of_pip(lines: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a note about an index that pip uses here, if neither uv nor the lines name one; "" for nothing."""
    if any(environ.get(name) for name in _OF_UV) or any(re.match(_NAMED, line) for line in lines):
        return ""
    if home.uv_files(environ):
        return ""
    user = os.path.expanduser(environ.get("HOME") or "~")
    configured = environ.get("XDG_CONFIG_HOME") or f"{user}/.config"
    named = environ.get("PIP_CONFIG_FILE", "")
    folders = ("/etc", f"{user}/.pip", f"{user}/Library/Application Support/pip", f"{configured}/pip", sys.prefix)
    files = [] if named == os.devnull else [*(f"{folder}/pip.conf" for folder in folders), named]
    for where, key, value in (*_in_variables(environ), *_in_files(files)):
        others = [re.sub(addresses.LOGIN, "", each) for each in value.split() if not re.match(_USUAL, each)]
        if others:
            found = addresses.without_secrets(" ".join(others))
            return (
                f"pip uses {found} ({where}), and uv, which installs for jobs, does not: "
                f"export {_KEYS[key]}={found if len(others) == 1 else repr(found)}"
            )
    return ""


def note_for_pods(lines: Sequence[str], environ: Mapping[str, str], captured: Collection[str]) -> str:
    """Return a note about indexes that uv uses here and that pods, which install these lines, do not; "" for nothing.

    ``captured``: the variables that a job takes along.
    """
    text, shown, advice = "\n".join(lines), list[str](), list[str]()
    variables = [name for name in _OF_UV if environ.get(name) and name not in captured]
    for name in variables:
        if found := _others(re.split(r"[\s,]+", environ[name]), text):
            shown.append(f"{' '.join(found)} ({name})")
            advice.append(name)
    for file in home.uv_files(environ):
        if found := _others(_of_uv_file(file), text):
            shown.append(f"{' '.join(found)} ({file})")
    if not shown:
        return ""
    passed = ", ".join(f'"{name}*"' if name == "UV_INDEX" else f'"{name}"' for name in advice)
    named = addresses.without_secrets(", ".join(shown))
    then = f"pass capture_env_vars=[{passed}], or " if advice else ""
    return (
        f"uv uses {named} here, and pods, which install this job's packages when they start, do not: "
        f"{then}name it in the project, if pods can reach it"
    )


def _others(found: Iterable[str], text: str) -> list[str]:
    """Return addresses without their names and logins; neither the usual one nor those that a text names."""
    plain = [re.sub(addresses.LOGIN, "", re.sub(_NAME_BEFORE, "", each)) for each in found]
    known = re.sub(addresses.LOGIN, "", text)
    return [each for each in plain if each and not re.match(_USUAL, each) and each.rstrip("/") not in known]


def _of_uv_file(file: str) -> Iterator[str]:
    import tomllib  # 5 ms; only where there is a file

    try:
        with open(file, "rb") as opened:
            page = tomllib.load(opened)
    except (OSError, ValueError):  # uv says what is wrong with it
        return
    for key in ("index", "index-url", "extra-index-url", "find-links"):
        listed = page.get(key)
        for each in listed if isinstance(listed, list) else [listed]:
            yield str(each.get("url", "")) if isinstance(each, dict) else str(each or "")


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
                for option in (key, key.replace("-", "_")):  # pip takes both
                    yield file, key, page.get(section, option, fallback="")
