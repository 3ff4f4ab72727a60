"""Where am I pointing: environment, profiles, the project's own file, and the folders on this machine."""

from __future__ import annotations

from kinetic._config.home import ensure_home, kinetic_home, machine_id, runtime_folder
from kinetic._config.target import Setting, Target, resolve
from kinetic._config.variables import VARIABLES, Variable, read

__all__ = [
    "VARIABLES",
    "Setting",
    "Target",
    "Variable",
    "ensure_home",
    "kinetic_home",
    "machine_id",
    "read",
    "resolve",
    "runtime_folder",
]
