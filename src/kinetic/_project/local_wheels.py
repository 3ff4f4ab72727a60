"""Wheels of this machine that a line names: unpacked, they are sent as other projects of the user's are.

::

    {folder}/{digest of the wheel}/{its name and tags}/pyproject.toml   what it is called, and what it needs
                                                       .kineticignore   nothing of it is left out
                                                       src/             what an installer would put into site-packages
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Collection
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import IO

from kinetic._wire import digests, folders
from kinetic.errors import IntegrityError

_DIGITS = 16
_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}  # of a pod
_DATA = r"[^/]+\.data/(?:purelib|platlib)/"  # installed beside the rest; programs and headers are left out
_ALWAYS = "python_version >= '3'"
_OTHER_DATA = r"[^/]+\.data/"


def why_unfit(wheel: Path) -> str:
    """Return why a job cannot import from a wheel, by its name; "" if it can, here or on Linux."""
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        *_, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        return f"its name is not one of a wheel: {error}"
    here = set(sys_tags())
    pythons = {(tag.interpreter, tag.abi) for tag in here}
    if any(
        tag in here or ((tag.interpreter, tag.abi) in pythons and tag.platform.startswith(("linux", "manylinux")))
        for tag in tags
    ):
        return ""
    return f"it is for {', '.join(sorted(map(str, tags)))}, and jobs have the Python of this process, here or on Linux"


def is_meant(marker: str) -> bool:
    """Return whether a marker (PEP 508) holds for a job of this Python, here or on Linux."""
    from packaging.markers import Marker

    return Marker(marker).evaluate() or Marker(marker).evaluate({**_LINUX})


def as_project(wheel: Path, hashes: Collection[str], unpacked: Path) -> str:
    """Return the folder of a project that is what a wheel would install, unpacked once.

    Args:
        wheel: The file.
        hashes: The SHA-256 of the files that the line accepts; none for any.
        unpacked: Where unpacked wheels are kept.

    Raises:
        IntegrityError: It is another file than the line accepts; nothing was unpacked.
        OSError: It cannot be read, or the folder cannot be written.
        ValueError: It is not a wheel.
    """
    with wheel.open("rb") as file:
        digest = digests.of_stream(file)
        if hashes and digest not in hashes:
            raise IntegrityError(f"its hash is another one: {digest}")
        return _unpacked_once(file, wheel.stem, unpacked / digest[:_DIGITS])


def _unpacked_once(wheel: IO[bytes], name: str, place: Path) -> str:
    folder = place / name
    if not (folder / "pyproject.toml").is_file():
        scratch = place.with_name(f"{place.name}.{os.urandom(4).hex()}")
        folders.make(scratch / name)
        try:
            try:
                _unpack(wheel, scratch / name)
            except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
                raise ValueError(str(error)) from error
            try:
                scratch.rename(place)
            except OSError:  # another process was faster, or the same file is known by another name
                if not (folder / "pyproject.toml").is_file():
                    (scratch / name).rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    os.utime(place)
    return os.fspath(folder)


def _unpack(wheel: IO[bytes], to: Path) -> None:
    source = to / "src"
    source.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for about in archive.infolist():
            about.filename = re.sub(rf"\A{_DATA}", "", about.filename)
            if about.is_dir() or re.match(_OTHER_DATA, about.filename):
                continue
            file = archive.extract(about, source)  # never outside of it
            if about.external_attr >> 16 & 0o111:
                os.chmod(file, 0o700)
    (to / ".kineticignore").write_text("!*\n")
    (to / "pyproject.toml").write_text(_about(source), encoding="utf-8")
    for above, _, files in os.walk(to):  # a file that a power cut made empty would be sent as it is
        for name in (*files, ""):
            folders.sync(os.path.join(above, name))


def _about(source: Path) -> str:
    """Return a pyproject.toml that says what the metadata of a wheel say."""
    metadata = next(source.glob("*.dist-info"), None)
    if metadata is None:
        raise ValueError("it has no folder *.dist-info")
    package = PathDistribution(metadata)
    extras: dict[str, list[str]] = {str(extra): [] for extra in package.metadata.get_all("Provides-Extra", [])}
    plain = []
    for line in package.requires or []:
        requirement, _, marker = line.partition(";")
        wanted = [extra for extra in extras if re.search(_of_extra(extra), marker)]
        for extra in wanted:
            extras[extra].append(f"{requirement}; {re.sub(_of_extra(extra), _ALWAYS, marker).strip()}")
        if not wanted:
            plain.append(line)
    lines = ["[project]", f"name = {json.dumps(package.name)}", f"dependencies = {json.dumps(plain)}"]
    lines += ["[project.optional-dependencies]"]
    lines += [f"{json.dumps(extra)} = {json.dumps(needed)}" for extra, needed in extras.items()]
    return "\n".join([*lines, ""])


def _of_extra(extra: str) -> str:
    return rf"""extra\s*==\s*(['"]){re.escape(extra)}\1"""
