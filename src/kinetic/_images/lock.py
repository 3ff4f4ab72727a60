"""The lock of an environment: a file and its hash for each package, for the platform of the job, not of the client.

uv resolves; a lock that exists is its preference, so that a change of one line changes one package. The platform of an
image names the glibc of its base: for plain "linux" uv resolves jax[tpu] years back, without a word (measured 2026-11).
uv does not compare the hashes that lines name with those that it found, and does not mind passwords: both is done here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import re
import sysconfig
import tempfile
import tomllib
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._config import home
from kinetic._images import uv, wheels
from kinetic._images.layers import Wheel
from kinetic._images.uv import Stop, UvResult
from kinetic._wire import NamedTuple, addresses, python_runtime
from kinetic.errors import AccessDeniedError, ImageBuildError

FORMAT = 2
FILE = "pylock.kinetic.toml"  # uv writes only files that are named so
# The usual index, and its files, which are on another host.
_PYPI, _FILES_OF_PYPI = re.compile(r"https://pypi\.(?:python\.)?org/"), re.compile(r"https://files\.python\w+\.org/")
GLIBC = {"bookworm": "2_36", "trixie": "2_40"}  # Debian 12; Debian 13 has 2.41, and 2.40 is the newest that uv knows
NEWEST_GLIBC = 40  # of 2.x, that uv 0.13 knows
OLD_DAYS = 365
_PACKAGE = "[[packages]]\n"
_NO_WHEEL = re.compile(r"has no (?:usable wheels|wheels with a matching)|only-binary|--no-build")
_NO_LOGIN = re.compile(r"authentication credentials|\b40[13] (?:Unauthorized|Forbidden)")
_SILENT = re.compile(r"failed to fetch|request failed|error sending request|dns error|connect(?:ion)? ", re.IGNORECASE)
_BACKEND = "UV_TORCH_BACKEND"
_TORCH_OF_PYPI = re.compile(r"torch[\w-]*==[^+\s]+\s.*--hash")  # as a uv.lock has it, which does not ask that variable
_BY_THE_GPU_HERE = f'{python_runtime.SETTING}tool.uv.pip.torch-backend = "auto"'
_UNTRUSTED = "invalid peer certificate"  # of uv 0.13
_HASH = re.compile(r"--hash[= ]sha256:([0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LINKS = re.compile(rf"\s*(?:-f|--find-links|{python_runtime.SETTING}tool\.uv\.find-links)[\s=]")
_INSTALLING = re.compile(
    rf"{python_runtime.SETTING}tool\.uv\.(?:no|build|extra-build|config|dependency-metadata"
    r"|allow-insecure-host|keyring-provider|system-certs|native-tls)\b"
)
# Builds of PyTorch, as `pip freeze` writes them; the index of each is not in that list.
_OF_PYTORCH = re.compile(r"==[\w.]+\+(cpu|cu\d+|rocm[\d.]+|xpu)\b")
_INDEX = re.compile(r"\s*(?:-i|--(?:extra-)?index-url)[\s=]+(\S+)")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_FILES_OF_UV = ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE")  # each names files, between spaces
# What decides from where and how packages come; values may hold passwords, so only their hashes are in a key.
INDEX_VARIABLES = (
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX_STRATEGY",
    "UV_PRERELEASE", "UV_RESOLUTION", "UV_EXCLUDE_NEWER", "UV_TORCH_BACKEND", "UV_CONFIG_FILE", "UV_NO_CONFIG",
    *_FILES_OF_UV,
)  # fmt: skip


@dataclass(frozen=True)
class Platform:
    """For what a lock is."""

    python: str  # X.Y
    machine: str  # "x86_64" or "aarch64"; of this machine itself, what sysconfig calls it
    glibc: str  # of the base image, e.g. "2_36"; "" for this machine itself

    @property
    def tag(self) -> str:
        """Return the platform as uv and wheels call it."""
        return f"{self.machine}-manylinux_{self.glibc}" if self.glibc else self.machine

    @property
    def is_here(self) -> bool:
        """Return whether it is this machine itself: then packages without wheels are built where they are installed."""
        return not self.glibc


def here(python: str) -> Platform:
    """Return the platform of this machine, for a Python X.Y."""
    return Platform(python, sysconfig.get_platform(), "")


@dataclass(frozen=True)
class Lock:
    """Which files make an environment."""

    platform: Platform  # for what it was resolved
    # the one of each package that fits an image best, by name; of this machine itself, the first
    wheels: tuple[Wheel, ...]
    to_build: tuple[str, ...]  # names of packages that have no wheel and must be built from source
    text: str  # the lock as uv wrote it (PEP 751)

    @property
    def digest(self) -> str:
        """Return what names this environment: a hash of the wheels and the platform."""
        page = [FORMAT, self.platform.python, self.platform.tag, sorted(wheel.sha256 for wheel in self.wheels)]
        return hashlib.sha256(json.dumps([*page, self.to_build]).encode()).hexdigest()

    def versions(self) -> dict[str, str]:
        """Return the version of each package, also of those that are built from source; "" where none is named."""
        packages = tomllib.loads(self.text)["packages"] if self.text else []
        return {str(each["name"]): str(each.get("version", "")) for each in packages}


class Source(NamedTuple):
    """A package that must be built from source."""

    name: str  # the distribution, normalized
    version: str  # its version, "" where the lock does not say
    filename: str  # of the archive
    url: str  # from where it can be fetched; "git+…@commit" for a repository
    sha256: str  # of the archive; "" for a repository, whose commit is its own hash


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
    for name in settings.keys() & {*_FILES_OF_UV, "UV_CONFIG_FILE"}:
        files = settings[name].split() if name in _FILES_OF_UV else [settings[name]]
        settings[name] += "".join(map(_text_of, files))
    if not environ.get("UV_CONFIG_FILE") and (texts := [*map(_text_of, home.uv_files(environ))]):
        settings["uv.toml"] = "".join(texts)
    page = [FORMAT, [" ".join(line.split()) for line in lines], platform.python, platform.tag, settings]
    return hashlib.sha256(json.dumps(page, sort_keys=True).encode()).hexdigest()


def _text_of(file: str) -> str:
    try:
        return f"\n{Path(file).read_text(encoding='utf-8', errors='replace')}"
    except OSError:  # uv says what is wrong with it
        return ""


def resolve(
    lines: Sequence[str],
    platform: Platform,
    say: Callable[[str], None],
    *,
    before: str = "",
    source: Path | None = None,
    stop: Stop | None = None,
) -> Lock:
    """Resolve requirement lines to one version and its files each.

    Args:
        lines: Of a requirements file.
        platform: Where the environment will run.
        say: Receives uv's messages.
        before: The text of the project's last lock: its versions are kept where they still fit; "" resolves anew.
        source: The file that the lines come from, for messages.
        stop: Ends it from another thread.

    Raises:
        ImageBuildError: There is no solution, no uv, or no answer; a file is not the one whose hash a line names; or
            the lock would contain a password.
        AccessDeniedError: An index wants a login.
    """
    with tempfile.TemporaryDirectory(prefix="kinetic-lock-") as name:
        folder = Path(name)
        # `uv pip compile` takes files without an option, and `uv pip install` with one.
        meant = lines if platform.is_here else [line for line in lines if line != _BY_THE_GPU_HERE]
        limits = [word for word in python_runtime.write_requirements(meant, folder) if word != "-r"]
        if before:
            (folder / FILE).write_text(before)
        is_decided = any(map(_TORCH_OF_PYPI.match, lines)) or (
            os.environ.get(_BACKEND) == "auto" and not platform.is_here
        )
        done = _compile(folder, platform, say, stop, *limits, without=[_BACKEND] if is_decided else ())
        if done.status:
            raise _unresolved(done, lines, platform, source)
        logins = wheels.with_indexes(os.environ, indexes(lines, os.environ))
        text = _with_sha256((folder / FILE).read_text(), platform, logins)
        return read(platform, _without_unlisted_files(text, lines))


def _compile(
    folder: Path,
    platform: Platform,
    say: Callable[[str], None],
    stop: Stop | None,
    *more: str,
    without: Sequence[str] = (),
) -> UvResult:
    (folder / "overrides.txt").write_text(python_runtime.OVERRIDES)
    words = ["pip", "compile", "--quiet", "--preview-features", "pylock", "requirements.txt", "--format", "pylock.toml"]
    words += ["--output-file", FILE, "--no-header", "--no-annotate", "--generate-hashes", *more]
    run = partial(uv.run_uv, folder=folder, say=say, overrides="overrides.txt", without=without, stop=stop)
    if platform.is_here:
        return run([*words, "--python", uv.base_interpreter()])
    words += ["--python-version", platform.python, "--python-platform", platform.tag]
    done = run([*words, "--only-binary", ":all:"])
    if done.status and _NO_WHEEL.search(done.reason):  # a package has a source archive only: it will be built
        done = run(words)
    return done


def _unresolved(done: UvResult, lines: Sequence[str], platform: Platform, source: Path | None) -> Exception:
    """Return the error for lines that uv did not resolve."""
    written = "\n".join(done.words)
    if refused := refusal(done):
        return refused
    if _SILENT.search(written) and "No solution" not in written:
        what, advice = "did not answer", "check the network, and the address of the index, and try again"
        if _UNTRUSTED in written:
            what, advice = "has a certificate that is not trusted", python_runtime.TRUST
        return ImageBuildError(f"the package index {what}", why=done.reason, next=advice, code="index-silent")
    where = "this machine" if platform.is_here else f"{platform.machine} with glibc {platform.glibc.replace('_', '.')}"
    return ImageBuildError(
        f"the requirements{f' of {source}' if source else ''} have no solution for Python {platform.python} on {where}",
        why=done.reason,
        next=suggest_line(done.reason, lines, source) + _suggest_index(done.reason, lines),
        code="no-solution",
    )


def _suggest_index(reason: str, lines: Sequence[str]) -> str:
    """Name the index of a build of PyTorch that uv did not find; "" for nothing."""
    if "no version of" not in reason or not (build := _OF_PYTORCH.search(reason)):
        return ""
    index = f"https://download.pytorch.org/whl/{build[1]}"
    is_known = any(index in line for line in lines)
    return "" if is_known else f"; +{build[1]} is on an index of its own: --extra-index-url {index}"


def refusal(done: UvResult) -> AccessDeniedError | None:
    """Return the error of a run of uv that an index refused for lack of a login; None of any other run."""
    if not _NO_LOGIN.search("\n".join(done.words)):
        return None
    return AccessDeniedError(
        "a package index rejected our credentials",
        why=done.reason,
        next="add a line for its host to ~/.netrc, or set UV_INDEX_<NAME>_USERNAME and _PASSWORD",
        code="index-login",
    )


def indexes(lines: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the addresses of indexes that lines name, with the values of their variables, as in uv: "NAME=ADDRESS"."""
    found = filter(None, (_INDEX.match(line) for line in lines))
    settings = [line.removeprefix(python_runtime.SETTING) for line in lines if line.startswith(python_runtime.SETTING)]
    options = tomllib.loads("\n".join(settings))["tool"]["uv"] if settings else {}
    return [
        *(filled(each[1], environ) for each in found),
        *("=".join(filter(None, (index.get("name"), index["url"]))) for index in options.get("index", ())),
        *(options[name] for name in ("index-url",) if name in options),
        *options.get("extra-index-url", ()),
    ]


def filled(address: str, environ: Mapping[str, str]) -> str:
    """Return an address with the values of its variables, as in uv."""
    return _VARIABLE.sub(lambda name: environ.get(name[1], name[0]), address)


def install_settings(lines: Sequence[str]) -> str:
    """Return what of a pyproject.toml among lines counts for what a lock names, too: how it is fetched and built."""
    return "".join(f"{line.removeprefix(python_runtime.SETTING)}\n" for line in lines if _INSTALLING.match(line))


def with_indexes(text: str, lines: Sequence[str], folder: Path, more: Sequence[str]) -> str:
    """Name the package index of each package in a lock of this machine, for uv's cache, which keeps files by index.

    Without it uv takes each file for one of another index, and fetches it again for each environment where the server
    does not say for how long it may be kept, as many mirrors do; what other projects fetched it never finds (0.13).

    Args:
        text: The lock as uv wrote it.
        lines: Of which it was made.
        folder: Where uv is run.
        more: Addresses of indexes that the lines name. uv keeps files of an index with a login in its address apart,
            and does not find those.
    """
    found = uv.package_sources(folder, more) if text else []
    found += [line for line in lines if _LINKS.match(line)]
    head, *sections = text.split(_PACKAGE)
    for number, package in enumerate(tomllib.loads(text)["packages"] if found else ()):
        files = (str(each.get("url", "")) for each in _files(package) if each is not package.get("archive"))
        address = "" if "index" in package else _index_of(next(files, ""), found)  # another version of uv names it
        if address and not addresses.secret_in(address):
            sections[number] = f"index = {json.dumps(address)}\n{sections[number]}"
    return _PACKAGE.join([head, *sections])


def _index_of(file: str, addresses: Sequence[str]) -> str:
    """Return from which index a file is, or "": a guess could put what one of them has in place of another's."""
    if len(addresses) == 1:
        return addresses[0] if file.startswith("http") else ""
    if _FILES_OF_PYPI.match(file):
        return next(filter(_PYPI.match, addresses), "")
    found = (each for each in addresses if file.startswith(f"{each.removesuffix('/').removesuffix('/simple')}/"))
    return max(found, key=len, default="")


def _with_sha256(text: str, platform: Platform, environ: Mapping[str, str]) -> str:
    """Add the SHA-256 of the files that are used and of which an index names another hash only: MD5, as older ones do.

    uv computes it where an index names none, and writes each file on a line of its own.
    """
    for package in tomllib.loads(text)["packages"]:
        entry = _best_wheel(package, platform) or package.get("sdist") or package.get("archive") or {}
        known = entry.get("hashes", {})
        if not known or "sha256" in known:
            continue
        where = f"{package['name']} {package.get('version', '')}"
        try:
            found = wheels.digests_of(entry["url"], [*known, "sha256"], environ)
        except OSError as error:
            raise ImageBuildError(
                f"{where} could not be fetched", why=str(error), next="check the network and try again", code="wheel"
            ) from error
        if any(found[name] != value for name, value in known.items()):
            raise ImageBuildError(
                f"{where} is not the file that its index names",
                why=f"it has another {' and '.join(known)}",
                next="look at the index; then try again",
                code="lock-hash",
            )
        hashes = r"(?m)^(.*" + re.escape(json.dumps(entry["url"])) + r".*\bhashes = \{ )"
        text = re.sub(hashes, rf'\g<1>sha256 = "{found["sha256"]}", ', text, count=1)
    return text


def _without_unlisted_files(text: str, lines: Sequence[str]) -> str:
    """Remove the files whose hashes are not among those that a line names for their package.

    uv writes each file on a line of its own. A package that keeps no file is not the one that the line means.
    """
    listed: dict[str, set[str]] = {}
    for line in lines:
        if (hashes := _HASH.findall(line)) and (named := _NAME.match(line.removeprefix(python_runtime.CONSTRAINT))):
            listed.setdefault(_plain(named[0]), set()).update(hashes)
    if not listed:
        return text
    for package in tomllib.loads(text)["packages"]:
        allowed = listed.get(_plain(str(package["name"])))
        if allowed is None:
            continue
        found = {str(each["hashes"].get("sha256", "")) for each in _files(package)} - {""}
        if not found & allowed:
            raise ImageBuildError(
                f"{package['name']} {package.get('version', '')} is not the file that the requirements name",
                why=f"the index has other files: {_shortened(found)}; the line names {_shortened(allowed)}",
                next="look at where it comes from; then lock again, e.g. with uv lock, and compare",
                code="lock-hash",
            )
        for unlisted in found - allowed:
            text = re.sub(rf"(?m)^.*sha256 = \"{unlisted}\".*\n", "", text)
    return text


def _shortened(hashes: set[str]) -> str:
    return ", ".join(f"{each[:12]}…" for each in sorted(hashes)[:3])


def read(platform: Platform, text: str) -> Lock:
    """Read a lock that uv wrote, here or on another machine.

    Raises:
        ImageBuildError: It is damaged, it contains a password, or it lists what an image cannot hold.
    """
    try:
        page = tomllib.loads(text)
        packages = page["packages"]
        found = {str(package["name"]): _wheel_of(package, platform) for package in packages}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ImageBuildError(
            "the lock of an environment is damaged",
            why=f"{type(error).__name__}: {error}",
            next="resolve again: KINETIC_UPGRADE=1",
        ) from error
    for package in packages:
        for value in _texts(package):
            if secret := addresses.secret_in(value):
                raise _has_secret(str(package["name"]), value, secret, from_git="vcs" in package)
    wheels = sorted(wheel for wheel in found.values() if wheel is not None)
    return Lock(platform, tuple(wheels), tuple(sorted(name for name, wheel in found.items() if wheel is None)), text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _has_secret(package: str, address: str, secret: str, *, from_git: bool) -> ImageBuildError:
    host = urllib.parse.urlsplit(address).hostname or "an address"
    return ImageBuildError(
        f"the lock would contain the login of {host}",
        why=f"the address of {package} has {secret} in it, and locks are kept in the store",
        next=f"take it out of the address, and add a line for {host} to ~/.netrc"
        + (", which git reads" if from_git else ", or set UV_INDEX_<NAME>_USERNAME and _PASSWORD"),
        code="lock-credentials",
    )


def _files(package: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return every file of a package: wheels, source archive, archive at an address."""
    return [*package.get("wheels", ()), *(package[name] for name in ("sdist", "archive") if name in package)]


def _wheel_of(package: dict[str, Any], platform: Platform) -> Wheel | None:
    """Return the wheel of a package that fits the platform best, or None where it has none."""
    best = _best_wheel(package, platform)
    if best is None:
        return None
    return Wheel(
        name=str(package["name"]),
        version=str(package.get("version", "")),
        filename=_filename(best),
        sha256=str(best["hashes"]["sha256"]),
        size_bytes=int(best.get("size", 0)),
        url=str(best["url"]),
    )


def _best_wheel(package: dict[str, Any], platform: Platform) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = [*package.get("wheels", ())]
    archive = package.get("archive", {})
    if str(archive.get("url", "")).endswith(".whl"):
        found.append(archive)
    return min(found, key=lambda each: _rank(_filename(each), platform), default=None)


def _filename(entry: dict[str, Any]) -> str:
    return str(entry.get("name") or urllib.parse.unquote(urllib.parse.urlsplit(entry["url"]).path.rpartition("/")[2]))


def _rank(filename: str, platform: Platform) -> tuple[int, str]:
    """Return how well a wheel fits, the best first: its own X.Y, then the stable ABI, then any Python."""
    *_, python, abi, where = filename.removesuffix(".whl").split("-")
    exact = f"cp{platform.python.replace('.', '')}"
    if where == "any":
        return 3, filename
    return (0 if exact in python.split(".") and exact in abi.split(".") else 1 if "abi3" in abi else 2), filename


# ------------------------------------------------------------------------------------------------------------ messages


def old_jax(found: Lock, now: dt.datetime, stop: Stop | None = None) -> str:
    """Return a sentence about a JAX that is a year older than the newest one, or "".

    That is what a resolution looks like that found no libtpu or CUDA for the platform and went back in time, without
    an error. The newest one is asked for only where the resolved one is old.
    """
    uploaded = _uploaded(found.text)
    if uploaded is None or (now - uploaded).days < OLD_DAYS:
        return ""
    with tempfile.TemporaryDirectory(prefix="kinetic-lock-") as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("jax\n")
        done = _compile(folder, found.platform, lambda _: None, stop, "--no-deps")
        text = (folder / FILE).read_text() if not done.status else ""
    newest = _uploaded(text)
    if newest is None or (newest - uploaded).days < OLD_DAYS:
        return ""
    ours, theirs = found.versions()["jax"], read(found.platform, text).versions()["jax"]
    return f"the requirements resolve to jax {ours} of {uploaded:%B %Y}; the newest is {theirs} of {newest:%B %Y}"


def _uploaded(text: str) -> dt.datetime | None:
    """Return when the files of JAX came to the index, where the index says it."""
    with contextlib.suppress(tomllib.TOMLDecodeError, KeyError, TypeError):
        for package in tomllib.loads(text)["packages"]:
            times: list[dt.datetime] = [each["upload-time"] for each in _files(package) if "upload-time" in each]
            if package["name"] == "jax" and times:
                return max(times)
    return None


def named(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the normalized names of the packages that requirement lines name."""
    found = (_NAME.match(line) for line in lines)
    return tuple(dict.fromkeys(_plain(each[0]) for each in found if each))


def suggest_line(reason: str, lines: Sequence[str], source: Path | None) -> str:
    """Name the lines whose packages uv's explanation mentions, with their numbers."""
    named = (line.removeprefix(python_runtime.CONSTRAINT) for line in lines)
    suspects = [line for line in named if not line.startswith("-") and _mentions(reason, line)]
    place = str(source) if source else "the dependencies of the project"
    if not suspects:
        return f"check {place}"
    numbers = [_number(line, source) for line in suspects]
    shown = [f"line {number} ({line})" if number else line for number, line in zip(numbers, suspects, strict=True)]
    return addresses.without_secrets(f"check {place}: {', '.join(shown)}")


def _mentions(text: str, line: str) -> bool:
    match = _NAME.match(line)
    return match is not None and re.search(rf"(?<![a-z0-9-]){_plain(match[0])}(?![a-z0-9-])", _plain(text)) is not None


def _plain(text: str) -> str:
    return re.sub(r"(?<=[A-Za-z0-9])[-_.]+(?=[A-Za-z0-9])", "-", text).lower()


def _number(line: str, source: Path | None) -> int | None:
    """Return the line of a requirement in a file: the one that contains it, else the first with its package."""
    try:
        text = source.read_text(encoding="utf-8", errors="replace") if source else ""
    except OSError:
        return None
    written = [" ".join(one.split()) for one in text.split("\n")]
    holding = (number for number, one in enumerate(written, 1) if line in one)
    naming = (number for number, one in enumerate(written, 1) if _mentions(one, line))
    return next(holding, None) or next(naming, None)
