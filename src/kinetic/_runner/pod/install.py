"""Install what the user's project needs before anything of it is opened; see the page on images.

For images that do not have it: uv installs it, into the image's own environment if that is writable, else into a folder
of the container's own. An image without uv gets one from pip, in a folder where the user's code does not see it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import site
import subprocess
import sys
import sysconfig
import time
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kinetic._runner.pod.log_pump import say
from kinetic._runner.worker import function_call
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, python_runtime
from kinetic._wire.order import Artifact
from kinetic.errors import IntegrityError, KineticError, RunnerError, StoreUnreachableError

_UV = {"UV_NO_PROGRESS": "1", "UV_LINK_MODE": "copy"}
_SIDE_BY_SIDE = 4  # layers that are fetched and unpacked at once
_REQUIREMENTS = "requirements.txt"
_LONGEST = 600  # characters of an installer's error that are shown


def install_requirements(store: Store, artifact: Mapping[str, Any], base: Path) -> None:
    """Install the requirements of a job, a file as plain JSON; the installer's output goes into the log.

    Where the client brought the packages into the store, they are unpacked instead, and nothing is asked of an index.
    """
    if "layers" in artifact:
        packages, programs = unpack_layers(store, artifact["layers"], base, base / "layers")
        os.environ["PATH"] = f"{programs}:{os.environ.get('PATH', os.defpath)}"
        add_to_path(packages)
        return
    lines = _fetch_lines(store, artifact)
    if all(not line.strip() or line.lstrip().startswith("#") for line in lines):
        return
    limits = python_runtime.write_requirements(lines, base)
    folder = Path(sysconfig.get_path("purelib"))
    words = ["pip", "install", "--python", sys.executable, "--requirements", str(base / _REQUIREMENTS), *limits]
    if os.access(folder, os.W_OK):
        words.append("--break-system-packages")  # the image is this job's own
    else:
        folder = base / "packages"
        words += ["--target", str(folder)]
    _run([*uv(base), *words], _without(base))
    add_to_path(folder)


def _fetch_lines(store: Store, artifact: Mapping[str, Any]) -> list[str]:
    data = function_call.fetch_artifact(store, Artifact(**artifact), "the file with the requirements")
    return data.decode(errors="replace").splitlines()


class Missing(NamedTuple):
    """What the environment of an image lacks of some lines."""

    added: tuple[str, ...]  # as pip takes it: "einops==0.8.1"
    replaced: Mapping[str, str]  # versions that are there, by names
    limits: Sequence[str] = ()  # options of uv: constraints, whose hashes hold for what is added

    @property
    def text(self) -> str:
        """A short list for the user, e.g. "einops 0.8.1 (was 0.8.0)"."""
        words = [(each, each.partition("==")[0]) for each in self.added]
        return ", ".join(
            each.replace("==", " ") + (f" (was {self.replaced[name]})" if name in self.replaced else "")
            for each, name in words
        )


def find_missing(store: Store, artifact: Mapping[str, Any], base: Path) -> Missing:
    """Ask uv what it would install for the lines of a job, with their dependencies, and what it would replace."""
    limits = python_runtime.write_requirements(_fetch_lines(store, artifact), base)
    words = [*uv(base), *"pip install --dry-run --color never --break-system-packages --python".split(), sys.executable]
    words += ["--requirements", str(base / _REQUIREMENTS), *limits]
    done = subprocess.run(words, env=_without(base), stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print_line(" ".join(words))
        sys.stdout.write(done.stderr)
        raise _failed(words, done.returncode)
    found = re.findall(r"^ ([-+~]) (.+)$", done.stderr, re.MULTILINE)
    versions = dict(each.partition("==")[::2] for sign, each in found if sign != "+")
    return Missing(tuple(each for sign, each in found if sign != "-"), versions, limits)


def install_missing(missing: Missing, installed: Collection[str], base: Path, target: Path) -> None:
    """Install what ``find_missing`` found into a folder of its own; ``installed``: the names of what is there."""
    stays = (name for name in installed if name not in missing.replaced)
    (base / "missing.txt").write_text("".join(f"{each}\n" for each in missing.added))
    words = ["pip", "install", "--python", sys.executable, "--target", str(target)]
    words += ["--requirements", str(base / _REQUIREMENTS), "--requirements", str(base / "missing.txt"), *missing.limits]
    _run([*uv(base), *words], _without(base, stays))


def _without(base: Path, names: Iterable[str] = ()) -> dict[str, str]:
    """Return variables with which uv leaves our own names out, and some more."""
    overrides = base / "overrides.txt"
    overrides.write_text(python_runtime.OVERRIDES + "".join(f'{name} ; python_version < "0"\n' for name in names))
    return python_runtime.with_overrides({**os.environ, **_UV}, str(overrides))


def unpack_layers(store: Store, artifact: Mapping[str, Any], base: Path, target: Path) -> tuple[Path, Path]:
    """Fetch and unpack layers of packages, several side by side; return the folders of packages and of programs.

    The list of layers is verified by its digest, and each layer by the one in the list before anything of it is opened.

    ``base``: for files on their way; ``target``: where they are unpacked, an empty folder or a new one.
    """
    from kinetic._runner.pod.unpacked_layers import Unpacker  # for these jobs only

    begun = time.monotonic()
    found = json.loads(function_call.fetch_artifact(store, Artifact(**artifact), "the list of packages"))["layers"]
    target.mkdir(mode=0o700, exist_ok=True)
    unpacker = Unpacker(target)

    def bring(number: int, layer: Mapping[str, Any]) -> None:
        file = _fetch_layer(store, layer, base)
        try:
            unpacker.unpack(file, number)
        except (ValueError, zlib.error) as error:
            raise IntegrityError("a layer of packages could not be unpacked", why=f"{layer['key']}: {error}") from error
        file.unlink()

    with ThreadPoolExecutor(_SIDE_BY_SIDE, "kinetic-layers") as pool:
        list(pool.map(bring, range(len(found)), found))
    environment = target / "opt/kinetic/env"
    size = sum(layer["size"] for layer in found)
    print_line(f"unpacked {size} bytes of packages in {time.monotonic() - begun:.1f} s")
    for program in (environment / "bin").glob("*"):
        first, _, rest = program.read_bytes().partition(b"\n")
        if first.startswith(b"#!/opt/kinetic/env/"):
            program.write_bytes(f"#!{sys.executable}\n".encode() + rest)
    packages = environment / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    return packages, environment / "bin"


def _fetch_layer(store: Store, layer: Mapping[str, Any], base: Path) -> Path:
    file = base / f"{layer['sha256']}.layer"
    store.fetch(layer["key"], file)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != layer["sha256"]:
        file.unlink()
        raise IntegrityError(
            "a layer of packages is not what was submitted; it was not unpacked",
            why=f"{layer['key']} has the digest {digest[:12]}…, and not {layer['sha256'][:12]}…",
            next="submit again; if it happens twice, look at who can write to the store",
        )
    return file


def install_beside(folder: Path, base: Path, name: str) -> None:
    """Install a package of ours, with pinned version and files, into a folder of its own, searched last.

    ``base``: a folder of this job's own, for uv if there is none.
    """
    requirements = _write_pinned(base, name)
    print_line(f"fetching {name}=={python_runtime.INSTALLER_VERSIONS[name]}")
    words = ["pip", "install", "--python", sys.executable, "--target", str(folder)]
    # In a folder of ours: the project, in which this process may be by now, must not influence what we fetch.
    _run([*uv(base), *words, "--require-hashes", "--requirements", requirements], {**os.environ, **_UV}, folder=base)
    sys.path.append(str(folder))
    importlib.invalidate_caches()


def install_store_client(requirement: str, base: Path, folder: Path) -> None:
    """Install a client for the store, e.g. "obstore==0.12.1", into a folder; ``base``: for uv if there is none.

    Raises StoreUnreachableError if that fails: in another pod it may work.
    """
    say(f"this image cannot open the job's store: installing {requirement}")
    words = ["pip", "install", "--python", sys.executable, "--target", str(folder), requirement]
    environ = {**os.environ, "UV_NO_PROGRESS": "1"}
    try:
        subprocess.run([*uv(base, before_log=True), *words], env=environ, check=True, capture_output=True, text=True)
    except (KineticError, OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", None)
        raise StoreUnreachableError(
            f"{requirement}, which opens the job's store, could not be installed into this pod",
            why=str(error) if output is None else output.strip()[-_LONGEST:],
            next=f"add RUN pip install '{requirement}' to the container_image, or give the pod a package index",
        ) from error
    add_to_path(folder)
    sys.modules.pop(requirement.partition("=")[0], None)


def uv(base: Path, *, before_log: bool = False) -> list[str]:
    """Return how uv is called; an image without one gets it from pip, and the job's log shows that command.

    If uv is fetched before the log begins, to open the store, the command is printed again by the first call after it.
    """
    found = python_runtime.find_installer()
    if found:
        return [found]
    folder = base / "uv"
    program, unlogged = folder / "bin" / "uv", base / "uv.unlogged"
    # -I: neither the working folder nor PYTHONPATH may bring a pip of its own.
    words = [sys.executable, "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    words += ["--target", str(folder), "--only-binary", ":all:", "--no-deps", "--require-hashes"]
    words += ["--requirement", _write_pinned(base, "uv")]
    version = python_runtime.INSTALLER_VERSIONS["uv"]
    if not program.exists():
        print_line(f"fetching uv=={version}")
        _run(words, dict(os.environ))
        if before_log:
            unlogged.touch()
    elif unlogged.exists():
        print_line(f"uv=={version} was fetched when this pod started, to open the job's store: {' '.join(words)}")
        unlogged.unlink()
    return [str(program)]


def _write_pinned(base: Path, name: str) -> str:
    file = base / f"{name}.txt"
    file.write_text(python_runtime.pinned(name))
    return str(file)


def print_line(line: str) -> None:
    """Write a line of ours into the log of the job."""
    sys.stdout.write(f"kinetic: {line}\n")
    sys.stdout.flush()


def _run(words: list[str], environ: dict[str, str], folder: Path | None = None) -> None:
    print_line(" ".join(words))
    code = subprocess.run(words, env=environ, cwd=folder, check=False).returncode
    if code != 0:
        raise _failed(words, code)


def _failed(words: list[str], code: int) -> RunnerError:
    return RunnerError(
        "the requirements of this job could not be installed",
        why=f"{' '.join(words[:3])} … ended with exit code {code}; its output is in the log",
        next="check the job's log, and correct the project's dependencies or choose another image",
        code="dependency-install",
    )


def add_to_path(folder: Path) -> None:
    """Let this process, and those that it starts, import what was installed."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    above = os.environ.get("PYTHONPATH", "")
    if str(folder) not in above.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), above)))
    site.addsitedir(str(folder))
    importlib.invalidate_caches()
