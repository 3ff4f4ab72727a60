"""Other projects that a job imports from: members of a workspace, and what else is installed here as editable.

In this process, Python finds them where they are. A job elsewhere finds them in its copy of the project.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from kinetic._project import modules, root
from kinetic._project.root import Plan


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
        source = f"{project}/src"
        folders.update(dict.fromkeys(known or [source if os.path.isdir(source) else project]))
    folders.update(dict.fromkeys(_imported(plan)))
    others: dict[str, str] = {}
    for folder in folders:
        project, inside = project_of(folder), root.below(folder, os.fspath(plan.root))
        if project and root.below(os.fspath(plan.root), project) is not None:  # a workspace that holds this project
            project = folder if root.below(os.fspath(plan.root), folder) is None else ""
        if project if inside is None else inside not in plan.sys_path_rel:
            others[folder] = project
    return root.with_others(plan, others) if others else plan


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
