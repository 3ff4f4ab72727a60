"""The kubeconfig: its files and what they say, from PyYAML the first time and from then on without it.

Importing PyYAML takes 20 to 40 ms of the processor in each process, a tenth of what a client of a cluster takes. So
what it found in a file is kept in the home, by the file's digest. Tokens and keys are among it, so of each value only
the place in the file is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinetic._blobs import file_tree
from kinetic._config import home
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError, SettingsError

JsonObject = dict[str, Any]
_TEXT = ""  # the only key of a mapping that represents a text


class Entry(NamedTuple):
    """A cluster, a user or a context, and the folder that relative paths in it count from."""

    page: JsonObject
    folder: Path


def files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are read, whether they exist or not."""
    written = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return [Path(part).expanduser() for part in written] or [Path.home() / ".kube" / "config"]


def read(path: Path) -> JsonObject:
    """Return what a file says."""
    try:
        data = path.read_bytes()
        text, digest = data.decode(), hashlib.sha256(data).hexdigest()
        kept = _kept_at(path)
        known = file_tree.read_page(kept) if kept is not None else {}
        if known.get("sha256") == digest:
            with contextlib.suppress(LookupError, ValueError, TypeError, RecursionError):  # it is damaged
                return dict(_filled(known["outline"], text))
        page = _parsed(text)
    except (OSError, ValueError) as error:
        raise SettingsError(
            "cannot read a kubeconfig", why=f"{path}: {error}", next="correct it, or name another in KUBECONFIG"
        ) from error
    if kept is not None and kept.parent.parent.is_dir():
        with contextlib.suppress(OSError, ValueError, RecursionError):  # then it is read by PyYAML each time
            outline = _outline(page, text)
            kept.parent.mkdir(exist_ok=True)
            file_tree.write_page(kept, {"sha256": digest, "outline": outline})
    return page


def entries(pages: list[tuple[Path, JsonObject]], kind: str) -> dict[str, Entry]:
    """Return the entries of a kind in all files; of a name that several have, the first counts."""
    found: dict[str, Entry] = {}
    for path, page in pages:
        for entry in page.get(f"{kind}s") or ():
            found.setdefault(str(entry.get("name")), Entry(entry.get(kind) or {}, path.parent))
    return found


def _parsed(text: str) -> JsonObject:
    """Parse YAML; raises ValueError if it is not valid, or no mapping."""
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # of libyaml, where PyYAML was built with it: 5 ms less
        page = yaml.load(text, loader) or {}  # noqa: S506 - both are safe
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    if not isinstance(page, dict):
        raise ValueError("not a mapping")  # noqa: TRY004 - as what cannot be parsed
    return page


def _kept_at(path: Path) -> Path | None:
    with contextlib.suppress(KineticError):  # a home that cannot be used: what needs it says so
        return home.kinetic_home(os.environ) / "cache" / f"kubeconfig-{file_tree.name_of(str(path.absolute()))}.json"
    return None


def _outline(value: Any, text: str) -> Any:
    """Return a value with the place of each text instead of the text.

    Raises:
        ValueError: Something in it does not stand in the file as it is, or is nothing that JSON knows.
    """
    if isinstance(value, dict):
        if not all(isinstance(name, str) and name != _TEXT for name in value):
            raise ValueError("a name that is not a text")
        return {name: _outline(each, text) for name, each in value.items()}
    if isinstance(value, list):
        return [_outline(each, text) for each in value]
    if isinstance(value, str):
        return {_TEXT: [text.index(value), len(value)]}
    if value is None or isinstance(value, bool | int):
        return value
    raise ValueError(f"a value of the type {type(value).__name__}")


def _filled(outline: Any, text: str) -> Any:
    """Undo ``_outline``."""
    if isinstance(outline, list):
        return [_filled(each, text) for each in outline]
    if not isinstance(outline, dict):
        return outline
    if _TEXT in outline:
        start, length = outline[_TEXT]
        return text[start : start + length]
    return {name: _filled(each, text) for name, each in outline.items()}
