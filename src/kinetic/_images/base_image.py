"""The image below an environment: Python on a Debian whose glibc is known, by digest, copied once into our registry."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kinetic._images.container_registry import Reference, Registry
from kinetic._images.lock import GLIBC, NEWEST_GLIBC, Platform
from kinetic._wire import folders
from kinetic.errors import ImageError, ImageUnavailableError, KineticError

SUITE = "bookworm"  # Debian 12: every wheel of TPUs and GPUs of 2026 takes its glibc 2.36; tags without a suite move on
# Where the official image is: Google's cache of what is asked for often, without login and limits; then Docker Hub.
SOURCES = ("mirror.gcr.io/library/python", "docker.io/library/python")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEX_KINDS = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")

Connect = Callable[[Reference], Registry]
Report = Callable[[int], None]


@dataclass(frozen=True)
class BaseImage:
    """An image to build on."""

    digest: str  # "sha256:…" of its manifest for one architecture
    layers: tuple[dict[str, Any], ...]  # its layers as a manifest lists them: mediaType, digest, size
    diff_ids: tuple[str, ...]  # "sha256:…" of each uncompressed layer
    config: dict[str, Any]  # what its containers get: Env, Cmd, WorkingDir
    architecture: str  # "amd64" or "arm64"
    python: str  # X.Y
    glibc: str  # as in a platform tag, e.g. "2_36"

    def to_json(self) -> dict[str, Any]:
        """Return it as a document of the store."""
        return {**self.__dict__, "layers": list(self.layers), "diff_ids": list(self.diff_ids)}

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> BaseImage:
        """Read what ``to_json`` returned."""
        return cls(**{**page, "layers": tuple(page["layers"]), "diff_ids": tuple(page["diff_ids"])})

    @classmethod
    def unknown(cls, platform: Platform) -> BaseImage:
        """Return a placeholder for an image of which only the Python and the glibc are known."""
        return cls("", (), (), {}, "", platform.python, platform.glibc)

    @property
    def python_folder(self) -> str:
        """Return the folder of its Python, as in the official images; one of the user's must have it there too."""
        return "/usr/local/bin"

    @property
    def python_version(self) -> str:
        """Return the release of its Python, e.g. "3.12.8", or "" where the image does not say."""
        given = dict(line.partition("=")[::2] for line in self.config.get("Env", ()))
        version = str(given.get("PYTHON_VERSION", ""))
        return version if version.startswith(f"{self.python}.") else ""


def read(registry: Registry, reference: str, *, machine: str, python: str, glibc: str) -> BaseImage:
    """Read an image of a registry: two requests, three where the tag names several architectures.

    Raises:
        ImageUnavailableError: There is none, or none for this architecture.
    """
    wanted = ARCHITECTURES[machine]
    manifest, digest = registry.read_manifest(reference)
    if manifest.get("mediaType") in _INDEX_KINDS or "manifests" in manifest:
        fitting = [
            entry["digest"]
            for entry in manifest.get("manifests", ())
            if (about := entry.get("platform", {})).get("architecture") == wanted and about.get("os") == "linux"
        ]
        if not fitting:
            raise ImageUnavailableError(
                f"{registry.host}/{registry.name}:{reference} does not exist for {wanted}",
                next="choose an accelerator with x86_64 hosts, or another base image",
            )
        manifest, digest = registry.read_manifest(fitting[0])
    config = json.loads(registry.small_blob(manifest["config"]["digest"]))
    if config.get("architecture", wanted) != wanted:
        raise ImageUnavailableError(f"{registry.host}/{registry.name}:{reference} is for {config['architecture']}")
    return BaseImage(
        digest,
        tuple({name: layer[name] for name in ("mediaType", "digest", "size")} for layer in manifest["layers"]),
        tuple(config["rootfs"]["diff_ids"]),
        {name: config["config"][name] for name in ("Env", "Cmd", "WorkingDir") if config.get("config", {}).get(name)},
        wanted,
        python,
        glibc,
    )


def find(
    python: str, machine: str, connect: Connect, *, named: str = "", cache: Path | None = None
) -> tuple[BaseImage, Reference]:
    """Find the base image of a Python, and where it is.

    Args:
        python: X.Y.
        machine: "x86_64" or "aarch64".
        connect: Opens the registry of a reference.
        named: An image of the user's instead of the official one; its glibc is read from its layers.
        cache: Where this machine keeps what it learned of images; None to learn it again.

    Raises:
        ImageError: It has no glibc.
        ImageUnavailableError: No source has it; the causes of all of them are named.
    """
    tried: list[str] = []
    for name in (named,) if named else [f"{source}:{python}-slim-{SUITE}" for source in SOURCES]:
        reference = Reference.parse(name)
        try:
            with connect(reference) as registry:
                found = read(
                    registry, reference.digest or reference.tag, machine=machine, python=python, glibc=GLIBC[SUITE]
                )
                if named:
                    found = dataclasses.replace(found, glibc=_known_glibc(found, registry, cache))
            return found, reference
        except KineticError as error:
            if error.code == "base-glibc":
                raise
            tried.append(f"{reference.host}: {error.what}" + (f" ({error.why})" if error.why else ""))
    raise ImageUnavailableError(
        f"no base image for Python {python} on {machine} can be read",
        why="; ".join(tried),
        next="check the network, or name one of yours: KINETIC_BASE_IMAGE=REGISTRY/python:3.12-slim",
    )


_C_LIBRARY = re.compile(r"(?:^|/)libc(?:-2\.\d+\.so|\.so\.6)$")
_VERSION = re.compile(rb"GNU C Library [^\n]{0,100}version 2\.(\d+)")
_MOST_OF_A_LIBRARY = 16 << 20  # bytes; glibc 2.41 has 2 MB


def _known_glibc(base: BaseImage, registry: Registry, cache: Path | None) -> str:
    file = cache / f"glibc-{base.digest.partition(':')[2]}" if cache is not None else None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if file is not None and re.fullmatch(r"2_\d+", text := file.read_text()):
            return text
    found = glibc_of(base, registry)
    if file is not None:
        folders.write_whole(file, found.encode())
    return found


def glibc_of(base: BaseImage, registry: Registry) -> str:
    """Read the version of the C library in an image's layers, as in a platform tag; at most the newest that uv knows.

    Raises:
        ImageError: There is none: wheels for Linux need the one of GNU.
    """
    for layer in base.layers:  # Debian's is in the lowest one
        with tempfile.TemporaryFile() as sink:
            registry.read_blob(layer["digest"], sink)
            sink.seek(0)
            if version := _glibc_in(sink):
                return f"2_{min(version, NEWEST_GLIBC)}"
    raise ImageError(
        f"{registry.host}/{registry.name}@{base.digest[:19]} cannot be a base image",
        why="no C library of GNU (glibc) was found in it, and packages are made for that one",
        next="choose an image of Debian, Ubuntu or Red Hat's: KINETIC_BASE_IMAGE=REGISTRY/python:3.12-slim",
        code="base-glibc",
    )


def _glibc_in(layer: IO[bytes]) -> int:
    """Return the minor version of the C library in a layer; 0 where there is none."""
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=layer, mode="r:*") as archive:
        for member in archive:
            if member.isfile() and _C_LIBRARY.search(member.name) and member.size <= _MOST_OF_A_LIBRARY:
                file = archive.extractfile(member)
                if found := _VERSION.search(file.read() if file else b""):
                    return int(found[1])
    return 0


def copy_layer(layer: Mapping[str, Any], source: Registry, target: Registry, scratch: Path, report: Report) -> int:
    """Copy a layer that the target lacks; return how many bytes were sent.

    A registry that is the source too may take it without a transfer.
    """
    digest, size = str(layer["digest"]), int(layer["size"])
    file = scratch / "base"

    def read() -> IO[bytes]:
        if not file.exists():  # a registry that mounts it never asks
            with file.open("wb") as sink:
                source.read_blob(digest, sink)
        return file.open("rb")

    mounts = source.name if source.host == target.host else ""
    return size if target.put_blob(digest, size, read, mount_from=mounts, report=report) else 0
