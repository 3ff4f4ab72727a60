"""The lock of an environment: a wheel and its hash for each package, for the platform of the pod, not of the client.

uv resolves; a lock that exists is its preference, so that a change of one line changes one package. The platform always
names the glibc of the base image: for plain "linux" uv resolves jax[tpu] years back, without a word (measured 2026-11).
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import tomllib
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._images.isolated_environment import run_uv
from kinetic._images.layers import Wheel
from kinetic.errors import ImageBuildError

FORMAT = 1
FILE = "pylock.kinetic.toml"  # uv writes only files that are named so
GLIBC = {"bookworm": "2_36", "trixie": "2_40"}  # Debian 12; Debian 13 has 2.41, and 2.40 is the newest that uv knows
_NO_WHEEL = re.compile(r"has no (?:usable wheels|wheels with a matching)|only-binary|--no-build")
# What decides from where and how packages come; values may hold passwords, so only their hashes are in a key.
INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY",
    "UV_PRERELEASE", "UV_RESOLUTION", "UV_EXCLUDE_NEWER", "UV_CONSTRAINT", "UV_OVERRIDE",
)  # fmt: skip


@dataclass(frozen=True)
class Platform:
    """For what a lock is.

    Attributes:
        python: X.Y.
        machine: "x86_64" or "aarch64".
        glibc: Of the base image, e.g. "2_36".
    """

    python: str
    machine: str
    glibc: str

    @property
    def tag(self) -> str:
        """Return the platform as uv and wheels call it."""
        return f"{self.machine}-manylinux_{self.glibc}"


@dataclass(frozen=True)
class Lock:
    """Which wheels make an environment.

    Attributes:
        platform: For what it was resolved.
        wheels: One for each package, by name.
        to_build: Names of packages that have no wheel and must be built from source.
        text: The lock as uv wrote it (PEP 751).
    """

    platform: Platform
    wheels: tuple[Wheel, ...]
    to_build: tuple[str, ...]
    text: str

    @property
    def digest(self) -> str:
        """Return what names this environment: a hash of the wheels and the platform."""
        page = [FORMAT, self.platform.python, self.platform.tag, sorted(wheel.sha256 for wheel in self.wheels)]
        return hashlib.sha256(json.dumps([*page, self.to_build]).encode()).hexdigest()


class Source(NamedTuple):
    """A package that must be built from source.

    Attributes:
        name: The distribution, normalized.
        version: Its version, "" where the lock does not say.
        filename: Of the archive.
        url: From where it can be fetched; "git+…@commit" for a repository.
        sha256: Of the archive; "" for a repository, whose commit is its own hash.
    """

    name: str
    version: str
    filename: str
    url: str
    sha256: str


def sources(lock: Lock) -> list[Source]:
    """Return where the source code of the packages is that have no wheel."""
    wanted = frozenset(lock.to_build)
    packages = tomllib.loads(lock.text)["packages"] if wanted else ()
    return [_source_of(package) for package in packages if str(package["name"]) in wanted]


def _source_of(package: dict[str, Any]) -> Source:
    name, version = str(package["name"]), str(package.get("version", ""))
    if "vcs" in package:
        about = package["vcs"]
        return Source(name, version, "", f"git+{about['url']}@{about['commit-id']}", "")
    entry = package.get("sdist") or package.get("archive")
    if not entry or "url" not in entry:
        raise ImageBuildError(
            f"{name} cannot be put into an image",
            why="it is a folder of this machine, which a builder elsewhere does not have",
            next="add it to the project instead, which travels with each job, or publish a wheel of it",
            code="source-only",
        )
    return Source(name, version, _filename(entry), str(entry["url"]), str(entry["hashes"]["sha256"]))


def with_built(lock: Lock, built: Sequence[Wheel]) -> Lock:
    """Return a lock in which packages have the wheels that were built from their source."""
    names = {wheel.name for wheel in built}
    to_build = tuple(name for name in lock.to_build if name not in names)
    return Lock(lock.platform, tuple(sorted((*lock.wheels, *built))), to_build, lock.text)


def key_of(lines: Sequence[str], platform: Platform, environ: Mapping[str, str]) -> str:
    """Return the key of a lock: of the lines, the platform and the settings of indexes, without secrets."""
    settings = {name: environ[name] for name in INDEX_VARIABLES if environ.get(name)}
    page = [FORMAT, [" ".join(line.split()) for line in lines], platform.python, platform.tag, settings]
    return hashlib.sha256(json.dumps(page, sort_keys=True).encode()).hexdigest()


def resolve(
    lines: Sequence[str], platform: Platform, say: Callable[[str], None], *, before: str = "", constraints: str = ""
) -> Lock:
    """Resolve requirement lines to one wheel each.

    Args:
        lines: Of a requirements file.
        platform: Where the environment will run.
        say: Receives uv's messages.
        before: The text of the project's last lock: its versions are kept where they still fit; "" resolves anew.
        constraints: Lines of a constraints file, e.g. the pins of a uv.lock.

    Raises:
        ImageBuildError: There is no solution, or no uv, or the lock would contain a password.
    """
    with tempfile.TemporaryDirectory(prefix="kinetic-lock-") as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("".join(f"{line}\n" for line in lines))
        if before:
            (folder / FILE).write_text(before)
        words = [
            *(
                "pip",
                "compile",
                "--quiet",
                "--preview-features",
                "pylock",
                "requirements.txt",
                "--format",
                "pylock.toml",
            ),
            *("--python-version", platform.python, "--python-platform", platform.tag, "--output-file", FILE),
            *("--no-header", "--no-annotate", "--generate-hashes"),
        ]
        if constraints:
            (folder / "constraints.txt").write_text(constraints)
            words += ["--constraint", "constraints.txt"]
        done = run_uv([*words, "--only-binary", ":all:"], folder, say)
        if done.status and _NO_WHEEL.search(done.reason):  # a package has a source archive only: it will be built
            done = run_uv(words, folder, say)
        if done.status:
            raise ImageBuildError(
                f"the requirements have no solution for Python {platform.python} on {platform.machine}",
                why=done.reason,
                next="change the lines that are named above",
                code="no-solution",
            )
        return read(platform, (folder / FILE).read_text())


def read(platform: Platform, text: str) -> Lock:
    """Read a lock that uv wrote, here or on another machine.

    Raises:
        ImageBuildError: It is damaged, it contains a password, or it lists what an image cannot hold.
    """
    try:
        packages = tomllib.loads(text)["packages"]
        wheels = [wheel for package in packages if (wheel := _wheel_of(package, platform)) is not None]
        to_build = [str(package["name"]) for package in packages if _wheel_of(package, platform) is None]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ImageBuildError(
            "the lock of an environment is damaged", why=str(error), next="resolve again: --upgrade"
        ) from error
    for wheel in wheels:
        parts = urllib.parse.urlsplit(wheel.url)
        if parts.username or parts.password:
            raise ImageBuildError(
                f"the lock would contain the login of {parts.hostname}",
                why=f"the address of {wheel.name} has a user or a password in it, and locks are kept in the store",
                next="take it out of the address, and set UV_INDEX_<NAME>_USERNAME and _PASSWORD, or use ~/.netrc",
                code="lock-credentials",
            )
    return Lock(platform, tuple(sorted(wheels)), tuple(sorted(to_build)), text)


def _wheel_of(package: dict[str, Any], platform: Platform) -> Wheel | None:
    """Return the wheel of a package that fits the platform best, or None where it has none."""
    found = [*package.get("wheels", ())]
    archive = package.get("archive", {})
    if str(archive.get("url", "")).endswith(".whl"):
        found.append(archive)
    if not found:
        return None
    best = min(found, key=lambda each: _rank(_filename(each), platform))
    return Wheel(
        name=str(package["name"]),
        version=str(package.get("version", "")),
        filename=_filename(best),
        sha256=str(best["hashes"]["sha256"]),
        size_bytes=int(best.get("size", 0)),
        url=str(best["url"]),
    )


def _filename(entry: dict[str, Any]) -> str:
    return str(entry.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(entry["url"]).path.rpartition("/")[2]))


def _rank(filename: str, platform: Platform) -> tuple[int, str]:
    """Return how well a wheel fits, the best first: its own X.Y, then the stable ABI, then any Python."""
    *_, python, abi, where = filename.removesuffix(".whl").split("-")
    exact = f"cp{platform.python.replace('.', '')}"
    if where == "any":
        return 3, filename
    return (0 if exact in python.split(".") and exact in abi.split(".") else 1 if "abi3" in abi else 2), filename
