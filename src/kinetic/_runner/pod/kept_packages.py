"""Packages that a warm pod keeps between its tasks, each environment in a folder named by what it was made from.

    packages/{name}/about.json       written last: what is first on the path; a folder without it is made anew
    packages/{name}/opt/kinetic/env  unpacked layers
    packages/{name}/site-packages    of a difference: links to what is below it and is still wanted, and to what is new

A difference is a view of the pod's own packages in which those that are replaced or not wanted are missing, for imports
and for what is installed. A process that a task starts finds what is new first, but also what is not wanted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire.failpoints import step

FOLDER = "packages"  # beside the folder of the task
_ABOUT = "about.json"
_MOST_BYTES = 2 << 30  # of what no task uses at the moment; what was used last stays


def name_of(requirements: Mapping[str, Any] | None) -> str:
    """Return the name of what is kept of a task's requirements; "" for what is installed into the image."""
    if not requirements or not ("layers" in requirements or "hidden" in requirements):
        return ""
    return hashlib.sha256(json.dumps(requirements, sort_keys=True).encode()).hexdigest()[:32]


def provide(store: Store, requirements: Mapping[str, Any], base: Path) -> None:
    """Let this process, and those that it starts, import what a task requires; make it if it is not there."""
    from kinetic._runner.pod import install  # 10 ms, which the first process does not need

    name, root = name_of(requirements), base.parent / FOLDER
    if not name:
        install.install_requirements(store, requirements, base)
        return
    is_difference = "hidden" in requirements
    below = requirements["below"] if is_difference else None
    if below:
        provide(store, below, base)
    folder, begun = root / name, time.monotonic()
    text = requirements["text"] if is_difference else "packages"
    if is_complete(folder):
        os.utime(folder / _ABOUT)
        install.print_line(f"{text}: kept from a task before" if text else "the pod has all packages of this job")
    else:
        _make_room(root, {name, name_of(below)})
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        about = (_make_difference if is_difference else _make)(store, requirements, folder, base)
        step("worker:packages-made")
        about |= {"bytes": _size(folder), "stamp": _stamp(about["path"])}
        (folder / f".{_ABOUT}").write_text(json.dumps(about))
        os.replace(folder / f".{_ABOUT}", folder / _ABOUT)
        if is_difference:
            install.print_line(f"installed what this warm pod lacks in {time.monotonic() - begun:.1f} s: {text}")
    use(folder)


def use(folder: Path) -> None:
    """Put what a folder has first on the path of this process, and of those that it starts."""
    from kinetic._runner.pod import install  # as above

    about = json.loads((folder / _ABOUT).read_bytes())
    sys.path[:] = [path for path in sys.path if path not in about["replaces"]]
    above = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in above if path not in about["replaces"])
    for path in reversed(about["path"]):
        install.add_to_path(Path(path))
    for path in about["programs"]:
        os.environ["PATH"] = f"{path}:{os.environ.get('PATH', os.defpath)}"


def is_complete(folder: Path) -> bool:
    """Return whether a folder holds all that it was made for."""
    return (folder / _ABOUT).is_file()


def stamps(folder: Path) -> tuple[object, object]:
    """Return what tells whether something at the top of a folder's packages was changed: when it was made, and now."""
    try:
        about = json.loads((folder / _ABOUT).read_bytes())
        return about["stamp"], _stamp(about["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:  # a task could write there
        return "made", str(error)


def _stamp(paths: Collection[str]) -> list[list[object]]:
    found: list[list[object]] = []
    for path in paths:
        with os.scandir(path) as entries:
            for each in entries:
                if each.name != "__pycache__":
                    about = each.stat(follow_symlinks=False)
                    found.append([each.path, about.st_ino, 0 if each.is_dir() else about.st_mtime_ns])
    return sorted(found, key=str)


def drop_unfinished(root: Path) -> None:
    """Remove what a task that was ended has left half made."""
    for name in os.listdir(root) if root.is_dir() else ():
        if not is_complete(root / name):
            shutil.rmtree(root / name, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------- making


def _make(store: Store, requirements: Mapping[str, Any], folder: Path, base: Path) -> dict[str, Any]:
    from kinetic._runner.pod import install  # as above

    packages, programs = install.unpack_layers(store, requirements["layers"], base, folder)
    return {"path": [str(packages)], "programs": [str(programs)], "replaces": []}


def _make_difference(store: Store, requirements: Mapping[str, Any], folder: Path, base: Path) -> dict[str, Any]:
    from kinetic._runner.pod import install  # as above

    hidden = frozenset(requirements["hidden"])
    new, programs = None, []
    if requirements["layers"]:
        packages, found = install.unpack_layers(store, requirements["layers"], base, folder)
        new, programs = str(packages), [str(found)]
    views: dict[str, str] = {}
    for lower in _package_folders():
        gone = _files_of(lower, hidden)
        if gone or not views:  # what is new becomes part of the first one
            view = f"{folder}/site-packages{len(views) or ''}"
            os.mkdir(view)
            _link(view, lower, None if views else new, gone)
            views[lower] = view
    return {"path": list(views.values()), "programs": programs, "replaces": list(views)}


def _package_folders() -> list[str]:
    found = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)]
    if not found:
        import sysconfig  # 1 ms

        found = [sysconfig.get_path("purelib")]
    return found


def _files_of(folder: str, names: Collection[str]) -> set[str]:
    """Return the files of distributions in a folder, and all folders that hold some of them."""
    import importlib.metadata  # 20 ms, where something is installed

    found: set[str] = set()
    for each in importlib.metadata.distributions(path=[folder]):
        if re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower() not in names:
            continue
        for file in each.files or ():
            parts = file.parts
            if ".." in parts:  # a program
                continue
            if parts[0].endswith((".dist-info", ".egg-info")):
                found.add(f"{folder}/{parts[0]}/.")
            found.add(f"{folder}/{file}")
            found.update(f"{folder}/{'/'.join(parts[:count])}/" for count in range(1, len(parts)))
    return found


def _link(target: str, lower: str, upper: str | None, gone: Collection[str]) -> None:
    """Fill a folder with links to all of two others, of two files to the upper one, and to nothing that is gone."""
    low = {each.name: each for each in os.scandir(lower)}
    up = {each.name: each for each in os.scandir(upper)} if upper else {}
    for name in sorted(low.keys() | up.keys()):
        below, above = low.get(name), up.get(name)
        if below is not None and (name == "__pycache__" or below.path in gone or f"{below.path}/." in gone):
            below = None
        if above is not None and not (below is not None and below.is_dir() and above.is_dir()):
            below = None
        if below is not None and (above is not None or f"{below.path}/" in gone):
            _link(f"{target}/{name}", below.path, above.path if above is not None else None, gone)
        elif found := above or below:
            os.makedirs(target, exist_ok=True)
            os.symlink(found.path, f"{target}/{name}")


def _make_room(root: Path, spared: Collection[str]) -> None:
    """Remove what was used longest ago, as far as it is too much."""
    drop_unfinished(root)
    ages = [((root / name / _ABOUT).stat().st_mtime, name) for name in (os.listdir(root) if root.is_dir() else ())]
    total = 0
    for _, name in sorted(ages, reverse=True):
        total += json.loads((root / name / _ABOUT).read_bytes())["bytes"]
        if total > _MOST_BYTES and name not in spared:
            shutil.rmtree(root / name, ignore_errors=True)


def _size(folder: Path) -> int:
    """Return how much a folder holds; links count nothing."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            found += os.lstat(f"{above}/{name}").st_size
    return found
