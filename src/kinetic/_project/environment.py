"""Which environment variables a job receives. Their values are never shown or stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kinetic.errors import OptionError, OptionTypeError

# A wildcard never matches these: they describe this machine, and would break another one.
PROCESS_NAMES = frozenset(
    "PATH HOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV SHELL TMPDIR TEMP TMP "
    "HOSTNAME USER LOGNAME SSH_AUTH_SOCK KUBERNETES_SERVICE_HOST KERAS_BACKEND".split()
)
_SECRET_WORDS = ("TOKEN", "SECRET", "KEY", "PASSWORD", "CREDENTIAL")


class Captured(NamedTuple):
    """What was captured.

    Attributes:
        values: Name to value; never in a record, log or store.
        notes: Sentences for the user, with names only.
    """

    values: dict[str, str]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """Show names only: a repr ends up in tracebacks and logs."""
        return f"Captured({', '.join(self.values)})"


def check(patterns: object) -> tuple[str, ...]:
    """Return the patterns, or reject invalid ones."""
    if patterns is None:
        return ()
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise OptionTypeError(
            f"capture_env_vars={patterns!r} is not a list of names",
            why="a bare string would be taken letter by letter" if isinstance(patterns, str) else None,
            next=f"capture_env_vars=[{patterns!r}]" if isinstance(patterns, str) else 'capture_env_vars=["HF_*"]',
        )
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise OptionTypeError(f"capture_env_vars holds {pattern!r}, which is not a string")
        if not pattern or "=" in pattern or "\0" in pattern or "*" in pattern[:-1]:
            raise OptionError(
                f"capture_env_vars holds {pattern!r}, which matches no variable",
                why="an entry is a name, or the beginning of names with one * at its end",
            )
    return tuple(patterns)


def capture(patterns: Sequence[str], environ: Mapping[str, str]) -> Captured:
    """Return the variables that exact names and wildcards match now."""
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    matched = {name for name in environ if name in exact or (beginnings and name.startswith(beginnings))}
    skipped = sorted((matched & PROCESS_NAMES) - exact)
    values = {name: environ[name] for name in sorted(matched - set(skipped))}
    notes = []
    if skipped:
        notes.append(f"not captured, because they describe this machine: {', '.join(skipped)}")
    if values:
        notes.append(f"captured {len(values)} environment variable(s): {', '.join(values)}")
    if secret := [name for name in values if any(word in name.upper() for word in _SECRET_WORDS)]:
        notes.append(f"secrets by their names, given to the job and not stored anywhere else: {', '.join(secret)}")
    return Captured(values, tuple(notes))


def unset(patterns: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the exact names that no variable has: probably a typo, or a shell that did not export it."""
    return sorted({pattern for pattern in patterns if not pattern.endswith("*") and pattern not in environ})
