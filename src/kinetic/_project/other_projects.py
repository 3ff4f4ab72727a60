"""Other projects that a job imports from: members of a workspace, and what else is installed here as editable.

In this process, Python finds them where they are. A job elsewhere finds them in its copy of the project.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from kinetic._project import modules, root
from kinetic._project.dependencies import look_up
from kinetic._project.root import Plan

# Where build backends are told in which folders packages are, and where they are told the packages themselves.
_SOURCES = (
    ("tool", "setuptools", "package-dir", ""),
    ("tool", "setuptools", "packages", "find", "where"),
    ("tool", "uv", "build-backend", "module-root"),
    ("tool", "pdm", "build", "package-dir"),
    ("tool", "maturin", "python-source"),
    ("tool", "hatch", "build", "targets", "wheel", "sources"),
    ("tool", "poetry", "packages"),
)
_PACKAGES = (("tool", "hatch", "build", "targets", "wheel", "packages"), ("tool", "scikit-build", "wheel", "packages"))
# Of setup.py, and of setup.cfg.
_IN_SETUP = r"""package_dir\s*=\s*\{\s*(?:""|'')\s*:\s*["']([^"']+)|(?m:^package_dir\s*=\s*=\s*(\S+)\s*$)"""


def with_them(plan: Plan, named: Sequence[str] = ()) -> Plan:
    """Return the plan with the other projects that a job needs.

    Those are the ones that dependencies name by their folders, ``named``, with what they need, those of this project
    that are installed here, and those that modules which are imported now come from. A function may import more of
    them, and read files that are beside their modules.
    """
    folders: dict[str, None] = {}
    startup = modules.startup_path(root.current_folder())[0]
    for project in dict.fromkeys([*named, *modules.installed_from(plan)]):
        known = [folder for folder in startup if project_of(folder) == project]
        folders.update(dict.fromkeys(known or _source_folders(project)))
    folders.update(dict.fromkeys(_imported(plan)))
    others: dict[str, str] = {}
    for folder in folders:
        project, inside = project_of(folder), root.below(folder, os.fspath(plan.root))
        if project and root.below(os.fspath(plan.root), project) is not None:  # a workspace that holds this project
            project = folder if root.below(os.fspath(plan.root), folder) is None else ""
        if project if inside is None else inside not in plan.sys_path_rel:
            others[folder] = project
    return root.with_others(plan, others) if others else plan


def _source_folders(project: str) -> list[str]:
    """Return the folders of a project's packages: as its build backend is told, else ``src``, else its own."""
    texts = {name: _text_of(f"{project}/{name}") for name in root.INSTALLABLE}
    page: dict[str, object] = {}
    with contextlib.suppress(ValueError):  # what installs it says what is wrong with it
        page = tomllib.loads(texts.pop("pyproject.toml"))
    named = [each for path in _SOURCES for each in _texts(look_up(page, path))]
    named += [os.path.dirname(each) for path in _PACKAGES for each in _texts(look_up(page, path))]
    named += [group for text in texts.values() for found in re.findall(_IN_SETUP, text) for group in found if group]
    places = dict.fromkeys(os.path.normpath(f"{project}/{each}") for each in named or ["src"])
    found = [each for each in places if root.below(each, project) is not None and os.path.isdir(each)]
    return found or [project]


def _text_of(file: str) -> str:
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read()
    return ""


def _texts(found: object) -> list[str]:
    listed: list[object] = found if isinstance(found, list) else [found]
    places = (each.get("from") if isinstance(each, dict) else each for each in listed)
    return [each for each in places if isinstance(each, str)]


def _imported(plan: Plan) -> Iterator[str]:
    """Yield the folders from which modules were imported that no folder of the project holds, but Python finds."""
    alone = modules.classifier(replace(plan, root=Path(os.devnull), sys_path_rel=(), same_python=True))
    libraries = tuple(f"{folder}/" for folder in modules.package_folders())
    known = {plan.here(part) for part in plan.sys_path_rel}
    for name, module in list(sys.modules.items()):  # some thousand
        file = vars(module).get("__file__") if type(module) is ModuleType else None
        if not isinstance(file, str) or file.startswith(libraries) or not file.startswith("/"):
            continue
        folder = os.path.dirname(file)
        for _ in range(name.count(".") + ("__path__" in vars(module))):
            folder = os.path.dirname(folder)
        if folder in known or root.is_installed(folder) or name != module.__name__:
            continue
        if alone.classify(module) == modules.FOUND:
            known.add(folder)
            yield folder


def project_of(folder: str) -> str:
    """Return the project of a folder, by the first of the folders above that can be installed; "" if there is none."""
    home = os.path.expanduser("~")
    while folder not in {home, os.path.dirname(folder)}:
        if any(os.path.exists(f"{folder}/{marker}") for marker in root.INSTALLABLE):
            return folder
        folder = os.path.dirname(folder)
    return ""
