"""What stands in for images: names that the nodes can "pull", and which Python each of them has."""

from __future__ import annotations

import fnmatch
import os
import sys
from pathlib import Path
from typing import NamedTuple

# Not what people have in their temporary folders: a job that needs it would fail on a real node.
HIDDEN = ("/tmp",)
# Nor what changes in a home meanwhile: a container's own file system changes by what it writes, and by nothing else.
_HIDDEN_OF_PYTHON = (*HIDDEN, "/root", "/var/tmp")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image(NamedTuple):
    """A local root: this machine's own file system, which the container may write to but does not change.

    Attributes:
        path: Folders before the system's own on the PATH: where its `python` is.
        environment: What the image itself sets.
        shown: Folders of this machine that it shares although they lie under a hidden one.
        copied: Such folders of which it has its own, as of all that is not hidden.
        user: Number of its user; None for root.
        hidden: Folders of this machine that are empty in it.
        open: Folders that any user may enter, as they may in an image; on this machine they may be root's alone.
    """

    path: tuple[str, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012 - never changed
    shown: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    user: int | None = None
    open: tuple[str, ...] = ()
    hidden: tuple[str, ...] = HIDDEN

    def variables(self) -> dict[str, str]:
        return {"PATH": ":".join((*self.path, SYSTEM_PATH)), "HOME": "/root", **self.environment}


def of_this_python(prefix: str = sys.prefix, base: str = sys.base_prefix) -> Image:
    """Make an image whose `python` is the one that runs the tests, or that of another environment."""
    places = {prefix, base, os.path.realpath(prefix), os.path.realpath(base)}
    lost = (place for place in places if any(Path(place).is_relative_to(hidden) for hidden in _HIDDEN_OF_PYTHON))
    above = {str(folder) for place in places for folder in (Path(place), *Path(place).parents)}
    return Image(
        path=(f"{prefix}/bin",), copied=tuple(sorted(lost)), open=tuple(sorted(above)), hidden=_HIDDEN_OF_PYTHON
    )


class Registry:
    """The images that can be pulled; all others do not exist."""

    def __init__(self, images: dict[str, Image] | None = None) -> None:
        """Take names, with `*` and `?` as in a shell; by default `python:…` is the Python that runs the tests."""
        self._images = images if images is not None else {"python:*": of_this_python()}
        self.refusals: dict[str, str] = {}  # by name: what the runtime says of an image that it may not pull

    def failure(self, name: str) -> str:
        """Return what the runtime says of an image that cannot be pulled."""
        return self.refusals.get(name, f"code = NotFound desc = {name}: not found")

    def add(self, name: str, image: Image) -> None:
        self._images[name] = image

    def pull(self, name: str) -> Image | None:
        """Return the image, or None: no such image."""
        names = (pattern for pattern in self._images if fnmatch.fnmatchcase(name, pattern))
        found = next(names, None)
        return None if found is None else self._images[found]
