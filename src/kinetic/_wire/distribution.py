"""Our own distribution: what it is called on a package index, and which other packages share our import name.

The import name and the command are ``kinetic``. On PyPI that name belongs to somebody else, so the distribution is
called ``kinetic-jobs``. Every job brings its own copy of us: neither name is ever installed for a job.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

NAME = "kinetic-jobs"
STRANGER = "kinetic"
NAMES = frozenset({NAME, STRANGER})
# What our extras bring that a job, too, can need; the rest of them serves clients only.
EXTRAS_OF_JOBS = {"debug": "debugpy>=1.8", "hf": "datasets>=3"}

# The documented way to take a package out of a resolution: it is replaced by a requirement that never holds.
OVERRIDES = "".join(f'{name} ; python_version < "0"\n' for name in sorted(NAMES))

_OURS = b"kinetic._cli.main"  # stands in the entry points of every release of ours, whatever it was called
_METADATA = re.compile(r"kinetic-(?P<version>[^-]+)(?:-py[0-9.]+)?\.(?:dist|egg)-info", re.IGNORECASE)


def overriding(environ: dict[str, str], file: str) -> dict[str, str]:
    """Return variables with which uv leaves our names out, even where a dependency of a dependency wants them.

    Args:
        environ: The variables that uv would have.
        file: A file that holds ``OVERRIDES``.
    """
    return {**environ, "UV_OVERRIDE": " ".join(filter(None, (environ.get("UV_OVERRIDE"), file)))}


def stranger(folders: Iterable[str]) -> str:
    """Return the name, version and place of a distribution ``kinetic`` that is not ours, or "".

    Args:
        folders: Where packages are installed.
    """
    for folder in dict.fromkeys(folders):
        try:
            names = [name for name in os.listdir(folder) if name[:8].lower() == "kinetic-"]
        except OSError:
            continue
        for name in sorted(names):
            found = _METADATA.fullmatch(name)
            if found and not _is_ours(os.path.join(folder, name)):
                return f"{STRANGER} {found['version']} in {folder}"
    return ""


def _is_ours(metadata: str) -> bool:
    try:
        with open(os.path.join(metadata, "entry_points.txt"), "rb") as file:
            return _OURS in file.read(1 << 16)
    except OSError:
        return False
