"""Packages that a warm pod keeps between its tasks, each environment in a folder named by what it was made from.

    packages/{name}/about.json       written last: what is first on the path; a folder without it is made anew
    packages/client/new              what opens the store, where the image lacks it
    packages/{name}/opt/kinetic/env  unpacked layers
    packages/{name}/new              what uv installed, of lines without a lock
    packages/{name}/site-packages    of a difference: links to what is below it and is still wanted, and to what is new

A difference is a view of the pod's own packages in which those that are replaced or not wanted are missing, for imports
and for what is installed. An interpreter that a task starts has the image's own folder on its path; a sitecustomize.py
in the view takes it away, and then runs the one that would be found without it.
"""

from __future__ import annotations

import contextlib
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
from kinetic.errors import RunnerError

FOLDER = "packages"  # beside the folder of the task
_ABOUT = "about.json"
_CLIENT = "client"
_LINES = "lines"  # of a task: lines that are not those of the pod's own jobs
_DISTRIBUTION = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-.+)?\.(?:dist|egg)-info")
_SITE = """import sys
from importlib.machinery import PathFinder

_here, _gone = {!r}, {!r}
_found = PathFinder.find_spec("sitecustomize", [*_gone, *(path for path in sys.path if path != _here)])
sys.path[:] = [path for path in sys.path if path not in _gone]
if _found is not None:
    _found.loader.exec_module(sys.modules[__name__])
"""
_MOST_BYTES = 2 << 30  # of what no task uses at the moment; what was used last stays


def name_of(requirements: Mapping[str, Any] | None) -> str:
    """Return the name of what is kept of a task's requirements; "" where all is in the image."""
    if not requirements:
        return ""
    found = requirements.get("like") or requirements
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:32]


def is_difference(requirements: Mapping[str, Any] | None) -> bool:
    """Return whether a task brings packages into a pod that was not made for them."""
    return requirements is not None and ("hidden" in requirements or _LINES in requirements)


def changes_image(requirements: Mapping[str, Any] | None) -> bool:
    """Return whether a task may install packages into the environment of the image."""
    if requirements is None:
        return False
    found = requirements.get("like") or requirements
    return "layers" not in found and not is_difference(found)


def installed() -> dict[str, str]:
    """Return the versions of what is installed in the image's environment, by normalized names."""
    found: dict[str, str] = {}
    for folder in reversed(_package_folders()):
        for name in os.listdir(folder):
            if match := _DISTRIBUTION.fullmatch(name):
                found[_normalized(match["name"])] = match["version"]
    return found


def provide(store: Store, requirements: Mapping[str, Any], base: Path) -> None:
    """Let this process, and those that it starts, import what a task requires; make it if it is not there."""
    from kinetic._runner.pod import install  # 10 ms, which the first process does not need

    name, root = name_of(requirements), base.parent / FOLDER
    if like := requirements.get("like"):
        provide(store, like, base)
        _check_lines(store, requirements[_LINES], root / name, base)
        return
    below = requirements.get("below")
    if below:
        provide(store, below, base)
    folder, begun = root / name, time.monotonic()
    about = _about(folder)
    if about is not None and about["below"] == _distributions(about["lower"]):
        os.utime(folder / _ABOUT)
        if not changes_image(requirements):
            text = about["text"]
            install.print_line(f"{text}: kept from a task before" if text else "the pod has all packages of this job")
    else:
        _make_room(root, {name, name_of(below)})
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        make = _make_difference if "hidden" in requirements else _make if "layers" in requirements else _make_lines
        about = make(store, requirements, folder, base)
        step("worker:packages-made")
        _complete(folder, about | {"lower": (lower := _package_folders()), "below": _distributions(lower)})
        if is_difference(requirements) and about["text"]:
            seconds = time.monotonic() - begun
            install.print_line(f"installed what this warm pod lacks in {seconds:.1f} s: {about['text']}")
    use(folder)


def provide_client(requirement: str, base: Path) -> None:
    """Let this process import what opens the store, in an image that lacks it; install it if no task before has."""
    if use_client(base):
        return
    from kinetic._runner.pod import install  # as above

    folder = base.parent / FOLDER / _CLIENT
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    install.install_store_client(requirement, base, folder / "new")
    _complete(folder, {"path": [f"{folder}/new"], "programs": [], "replaces": []})


def use_client(base: Path) -> bool:
    """Let this process import it if a task has installed it; return whether one has."""
    if is_there := is_complete(folder := base.parent / FOLDER / _CLIENT):
        use(folder)
    return is_there


def _complete(folder: Path, about: Mapping[str, Any]) -> None:
    """Write what says that a folder is complete."""
    page = {**about, "bytes": _size(folder), "stamp": _stamp(about["path"])}
    (folder / f".{_ABOUT}").write_text(json.dumps(page))
    os.replace(folder / f".{_ABOUT}", folder / _ABOUT)


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


def _about(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((folder / _ABOUT).read_bytes()))
    return None


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
    return {"path": [str(packages)], "programs": [str(programs)], "replaces": [], "text": "packages"}


def _make_lines(store: Store, requirements: Mapping[str, Any], folder: Path, base: Path) -> dict[str, Any]:
    """Install lines without a lock: those of the pod's own jobs into the image, if that can be, others beside it."""
    import sysconfig  # 1 ms

    from kinetic._runner.pod import install  # as above

    image = sysconfig.get_path("purelib")
    if changes_image(requirements) and os.access(image, os.W_OK):
        install.install_requirements(store, requirements, base)
        return {"path": [image], "programs": [], "replaces": [], "text": ""}
    missing = install.find_missing(store, requirements.get(_LINES, requirements), base)
    if not missing.added:
        return {"path": [], "programs": [], "replaces": [], "text": ""}
    new = folder / "new"
    install.install_missing(missing, installed(), base, new)
    views = _make_views(folder, str(new), {_normalized(name) for name in missing.replaced})
    return {"path": list(views.values()), "programs": [f"{new}/bin"], "replaces": list(views), "text": missing.text}


def _check_lines(store: Store, artifact: Mapping[str, Any], folder: Path, base: Path) -> None:
    """Raise RunnerError unless what the pod's own jobs install has all that other lines ask for; asked once."""
    from kinetic._runner.pod import install  # as above

    known = folder / f"fits-{artifact['sha256'][:32]}"
    if not known.exists():
        if missing := install.find_missing(store, artifact, base).text:
            raise RunnerError("this warm pod lacks packages that it had when it got this job", why=missing)
        known.touch()


def _make_difference(store: Store, requirements: Mapping[str, Any], folder: Path, base: Path) -> dict[str, Any]:
    from kinetic._runner.pod import install  # as above

    hidden = frozenset(requirements["hidden"])
    new, programs = None, []
    if requirements["layers"]:
        packages, found = install.unpack_layers(store, requirements["layers"], base, folder)
        new, programs = str(packages), [str(found)]
    views = _make_views(folder, new, hidden)
    return {
        "path": list(views.values()),
        "programs": programs,
        "replaces": list(views),
        "text": requirements["text"],
    }


def _make_views(folder: Path, new: str | None, hidden: Collection[str]) -> dict[str, str]:
    """Make views of the folders with packages, in which some are hidden; return them by what they replace."""
    views: dict[str, str] = {}
    for lower in _package_folders():
        gone = _files_of(lower, hidden)
        if gone or not views:  # what is new becomes part of the first one
            view = f"{folder}/site-packages{len(views) or ''}"
            os.mkdir(view)
            _link(view, lower, None if views else new, gone)
            views[lower] = view
    first, *_ = views.values()
    for name in ("sitecustomize.py", "sitecustomize"):
        with contextlib.suppress(OSError):
            os.unlink(f"{first}/{name}")  # that of the image; ours runs it
    Path(f"{first}/sitecustomize.py").write_text(_SITE.format(first, list(views)))
    return views


def _distributions(folders: Collection[str]) -> list[str]:
    """Return what is installed in some folders; when that has changed, a view of them shows what is gone."""
    names = ((folder, name) for folder in folders if os.path.isdir(folder) for name in os.listdir(folder))
    return sorted(f"{folder}/{name}" for folder, name in names if _DISTRIBUTION.fullmatch(name))


def _package_folders() -> list[str]:
    found = [path for path in sys.path if path.endswith(("site-packages", "dist-packages")) and os.path.isdir(path)]
    if not found:
        import sysconfig  # 1 ms

        found = [sysconfig.get_path("purelib")]
    return found


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(folder: str, names: Collection[str]) -> set[str]:
    """Return the files of distributions in a folder, and all folders that hold some of them."""
    import importlib.metadata  # 20 ms, where something is installed

    found: set[str] = set()
    for each in importlib.metadata.distributions(path=[folder]):
        if _normalized(each.metadata["Name"] or "") not in names:
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
