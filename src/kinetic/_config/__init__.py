"""Where jobs run and how: options, environment variables, profiles, and the folders on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinetic._config.home import ensure_home, kinetic_home, machine_id, runtime_folder
    from kinetic._config.options import VARIABLES, read_variable
    from kinetic._config.target import Setting, Target, resolve

__all__ = [
    "VARIABLES",
    "Setting",
    "Target",
    "ensure_home",
    "kinetic_home",
    "machine_id",
    "read_variable",
    "resolve",
    "runtime_folder",
]


def __getattr__(name: str) -> object:
    """Import the module of a name on its first use: a decorator needs only ``options``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kinetic._config import home, options, target

    found = globals()[name] = next(vars(module)[name] for module in (home, options, target) if name in vars(module))
    return found
