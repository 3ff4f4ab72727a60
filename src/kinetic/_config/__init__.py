"""Where am I pointing: environment, profiles, the project's own file, and the folders on this machine."""

from __future__ import annotations

from kinetic._config.home import ensure_home, kinetic_home, machine_id, runtime_folder
from kinetic._config.options import VARIABLES, Variable, read_variable
from kinetic._config.target import Setting, Target, resolve

__all__ = [
    "VARIABLES",
    "Setting",
    "Target",
    "Variable",
    "ensure_home",
    "kinetic_home",
    "machine_id",
    "read_variable",
    "resolve",
    "runtime_folder",
]
