"""What a builder elsewhere is asked for, as plain values: an image of a lock, and the logins that it needs."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from kinetic._images import lock as locks
from kinetic._images import wheels as wheel_files
from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import Reference
from kinetic._images.docker_login import find_login
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform, Source
from kinetic._wire import NamedTuple


class BuildRequest(NamedTuple):
    """What is to be built."""

    lock: Lock  # which wheels, and which packages are to be built from source first
    base: BaseImage  # on which image
    source: str  # where the base is, "registry/name@sha256:…"
    repository: str  # where the image goes
    indexes: tuple[str, ...] = ()  # addresses with the logins of package indexes; they are not in ``to_json``

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values: what another machine's builder reads, which has no classes of ours yet."""
        return {
            "platform": [self.lock.platform.python, self.lock.platform.machine, self.lock.platform.glibc],
            "wheels": [plain_wheel(wheel) for wheel in self.lock.wheels],
            "sources": [source._asdict() for source in locks.sources(self.lock)],
            "base": self.base.to_json(),
            "source": self.source,
            "repository": self.repository,
        }

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> tuple[BuildRequest, list[Source]]:
        """Read what ``to_json`` returned; the sources are those of the packages to build."""
        sources = [Source(**each) for each in page["sources"]]
        wheels = tuple(sorted(Wheel(**each) for each in page["wheels"]))
        lock = Lock(Platform(*page["platform"]), wheels, tuple(sorted(each.name for each in sources)), "")
        base = BaseImage.from_json(page["base"])
        return cls(lock, base, str(page["source"]), str(page["repository"])), sources


def plain_wheel(wheel: Wheel) -> dict[str, Any]:
    """Return a wheel as plain values."""
    return {name: getattr(wheel, name) for name in wheel.__dataclass_fields__}


def logins(request: BuildRequest, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the passwords that a builder elsewhere needs: of the registries, and of package indexes; no tokens.

    They travel in the Secret of the builder's job. Google's registries are opened there with the builder's own account.
    """
    registries = {
        at.host: found
        for at in map(Reference.parse, (request.source, f"{request.repository}:env"))
        if (found := find_login(at.host, None, environ, repository=at.name)).user
    }
    environ = wheel_files.with_indexes(environ, request.indexes)
    found_at: dict[str, dict[str, tuple[str, str]]] = {}  # by hosts, and folders of files
    for url in (*(each.url for each in request.lock.wheels), *(each.url for each in locks.sources(request.lock))):
        if found_login := wheel_files.find_login(url, environ):
            found_at.setdefault(wheel_files.host_of(url), {})[url.rpartition("/")[0]] = found_login
    several = [by_folder for by_folder in found_at.values() if len({*by_folder.values()}) > 1]
    return {
        "registries": {host: [found.user, found.password] for host, found in registries.items()},
        "indexes": {host: list(next(iter(by_folder.values()))) for host, by_folder in found_at.items()},
        "folders": {folder: list(login) for by_folder in several for folder, login in by_folder.items()},
    }


def with_folders(environ: Mapping[str, str], logins: Mapping[str, Any]) -> dict[str, str]:
    """Return variables with the logins of folders where one host has several, as of two projects of GitLab."""
    addresses = []
    for folder, login in (logins.get("folders") or {}).items():
        scheme, _, rest = str(folder).partition("://")
        user, password = (urllib.parse.quote(str(each), safe="") for each in login)
        addresses.append(f"{scheme}://{user}:{password}@{rest}")
    return wheel_files.with_indexes(environ, addresses)
