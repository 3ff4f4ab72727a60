"""Where jobs run and how: options, environment variables, profiles, and the folders on this machine."""

from __future__ import annotations

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
