"""Isolated environments: built by uv from what a project declares, once, and used by every job that needs the same.

    {cache}/{digest}/{build}/bin/python     one build; its name is random, so that no other process writes there
    {cache}/{digest}/complete               the name of the build that is complete
    {cache}/{digest}/used                   touched at each use
    {cache}/{digest}.lock                   held during a build

An environment contains its own absolute path, so it cannot be built beside and moved. Each build has a folder of its
own instead: if its builder is killed, the uv that it started may keep writing for a while, and harms nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from kinetic._wire import digests, documents, python_runtime
from kinetic.errors import ImageBuildError, OptionError

_LAST = 60  # lines that are kept to explain a failure
_EXPLANATION_LINES = 12  # lines of an explanation; the rest has been shown already
_INDENT = "\n       "  # below the first line of "why:   "

# What would send uv to another interpreter or folder than the one that we name.
_MISLEADING = frozenset(
    "CONDA_PREFIX PYTHONHOME UV_PREFIX UV_PROJECT_ENVIRONMENT UV_PYTHON UV_SYSTEM_PYTHON UV_TARGET UV_VENV_CLEAR "
    "UV_WORKING_DIR VIRTUAL_ENV".split()
)


class UvResult(NamedTuple):
    """How a run of uv ended.

    Attributes:
        status: Its exit status.
        words: The last lines that it wrote.
    """

    status: int
    words: list[str]

    @property
    def reason(self) -> str:
        """The lines that explain why it failed, to be printed after ``why:``."""
        starts = [number for number, line in enumerate(self.words) if line.lstrip().startswith(("error", "×"))]
        lines = self.words[starts[0] :] if starts else self.words[-5:]
        shown = [line for line in lines if line.strip()]
        if len(shown) > _EXPLANATION_LINES:
            shown = [*shown[:_EXPLANATION_LINES], "…"]
        return _INDENT.join(shown) or f"uv ended with status {self.status} without a message"


def uv_command() -> list[str]:
    """Return how uv is started."""
    found = python_runtime.find_installer()
    if found:
        return [found]
    raise ImageBuildError(
        "an isolated environment needs uv, and it is not installed",
        why=f"it is neither on PATH nor installed for {sys.executable}",
        next="pip install uv",
    )


def run_uv(words: Sequence[str], folder: Path, say: Callable[[str], None], *, overrides: str = "") -> UvResult:
    """Run uv in a folder, and report what it writes; ``overrides`` names a file with overrides, or is ""."""
    last: deque[str] = deque(maxlen=_LAST)
    with subprocess.Popen(
        [*uv_command(), *words],
        cwd=folder,
        env=python_runtime.with_overrides(_uv_environment(), overrides) if overrides else _uv_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                last.append(line.rstrip())
                if last[-1]:
                    say(f"uv: {last[-1]}")
        except BaseException:  # e.g. Ctrl-C
            process.kill()
            raise
    return UvResult(process.returncode, list(last))


def export_lock(folder: Path, extras: Sequence[str]) -> list[str]:
    """Read the uv.lock of a project, as lines of a requirements file.

    ``uv export --frozen`` changes no lock, and needs neither the network nor an interpreter: versions and files
    are those that the project was tested with. Hashes are checked where a line has some; base packages have none.

    Args:
        folder: Of uv.lock and pyproject.toml.
        extras: Optional dependencies that are wanted as well.

    Raises:
        ImageBuildError: uv is missing, or cannot read the lock.
    """
    flags = "--frozen --offline --no-emit-project --no-default-groups --no-header --no-annotate".split()
    wanted = [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(
        [*uv_command(), "export", *flags, *wanted],
        cwd=folder,
        env=_uv_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ImageBuildError(
            f"{folder / 'uv.lock'} cannot be read",
            why=UvResult(done.returncode, done.stderr.splitlines()).reason,
            next=f"cd {folder} && uv lock",
        )
    return done.stdout.splitlines()


def _uv_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}


VARIABLE = "KINETIC_LOCAL_ENV"
UNUSED_SECONDS = 30 * 24 * 3600.0

Say = Callable[[str], None]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_gates: dict[str, threading.Lock] = {}  # by lock file: the lock excludes other processes, this one other threads


def wanted(environ: Mapping[str, str]) -> Literal["same", "isolated"]:
    """Return where jobs on this machine run: in the interpreter that submits them, or in an isolated environment."""
    value = environ.get(VARIABLE) or "same"
    if value == "isolated":
        return "isolated"
    if value != "same":
        raise OptionError(
            f"{VARIABLE}={value!r} is not valid",
            why="same: jobs run in the interpreter that submits them; isolated: in an environment built for them",
            next=f"export {VARIABLE}=isolated, or unset it",
        )
    return "same"


def ready(
    dependencies_lines: Sequence[str],
    *,
    cache: Path,
    python: str,
    say: Say,
    base: Sequence[str] = (),
    source: Path | None = None,
) -> Path:
    """Return the interpreter of an environment with these dependencies; build it if there is none.

    Args:
        dependencies_lines: Requirements and options, one line each, as ``_packing.dependencies`` returns them.
        cache: The folder of environments; on a local disk, because of its locks.
        python: The client's Python, X.Y.Z; its base interpreter goes into the environment.
        say: Receives what the user should know while it is built, line by line; uv's own output too.
        base: Packages that a base image would bring, e.g. ``jax`` where the project's own was filtered out.
        source: The file that the lines come from, for messages.

    Raises:
        ImageBuildError: uv is missing, or could not build it. Nothing is left of the attempt.
    """
    lines = [" ".join(line.split()) for line in dependencies_lines]
    place = cache / _digest(lines, base, python)
    try:
        found = _complete(place)
        if found is None:
            with _alone(place.with_suffix(".lock"), say):
                found = _complete(place) or _build(place, [*lines, *base], python, say, source)
        (place / "used").touch()
    except OSError as error:
        raise ImageBuildError(
            "the isolated environment could not be built",
            why=f"{type(error).__name__}: {error}",
            next=f"check free space and permissions: df -h {cache}; ls -ld {cache}",
        ) from error
    return found


def stale(cache: Path, now: float) -> list[Path]:
    """Return the folders of environments that were not used for 30 days before ``now`` (Unix time)."""
    try:
        places = sorted(place for place in cache.iterdir() if place.is_dir())
    except FileNotFoundError:
        return []
    return [place for place in places if now - _last_use(place) > UNUSED_SECONDS]


def _digest(lines: Sequence[str], base: Sequence[str], python: str) -> str:
    import sysconfig

    page = {
        "lines": list(lines),
        "base": list(base),
        "python": python.split(".")[:2],
        "interpreter": _interpreter(),  # two builds of the same X.Y need not be alike
        "platform": [sysconfig.get_platform(), sys.implementation.cache_tag, sys.abiflags],
        "schema": 2,
    }
    return digests.of_bytes(documents.write(page))[:24]


def _interpreter() -> str:
    """Return the interpreter below the client's own environment, if it is in one."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _complete(place: Path) -> Path | None:
    """Return the interpreter of a complete build; None also if the Python below it is gone."""
    try:
        python = place / (place / "complete").read_text() / "bin" / "python"
    except FileNotFoundError:
        return None
    return python if python.exists() else None


@contextlib.contextmanager
def _alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold a lock, which is released when its holder ends, however that happens."""
    import fcntl  # POSIX only, as is the local backend

    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _gates.setdefault(str(lock), threading.Lock()):
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("waiting for another kinetic process that builds the same environment")
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _build(place: Path, lines: Sequence[str], python: str, say: Say, source: Path | None) -> Path:
    uv_command()  # before anything is announced
    begun = time.monotonic()
    shutil.rmtree(place, ignore_errors=True)  # what a killed builder left behind
    build = place / os.urandom(4).hex()
    build.mkdir(mode=0o700, parents=True)
    say(f"building an environment for Python {python}{f' from {source}' if source else ''}; it is kept for later jobs")
    try:
        _create(build, say)
        if lines:
            _install(build, lines, say, source)
        _mark(place, build.name)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    say(f"built the environment in {time.monotonic() - begun:.1f} s")
    return build / "bin" / "python"


def _create(build: Path, say: Say) -> None:
    done = run_uv(["venv", "--quiet", "--no-project", "--allow-existing", "--python", _interpreter(), "."], build, say)
    if done.status:
        raise ImageBuildError(
            "the isolated environment could not be created",
            why=done.reason,
            next=f"run it by hand: {' '.join(uv_command())} venv --python {_interpreter()} /tmp/try",
        )


def _install(build: Path, lines: Sequence[str], say: Say, source: Path | None) -> None:
    file = build / "dependencies.txt"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # an index address may hold a password
    with open(descriptor, "w", encoding="utf-8") as writing:
        writing.write("".join(f"{line}\n" for line in lines))
    (build / "overrides.txt").write_text(python_runtime.OVERRIDES)
    python = str(build / "bin" / "python")
    words = ["pip", "install", "--python", python, "--requirement", file.name]
    done = run_uv(words, build, say, overrides="overrides.txt")
    if done.status:
        raise ImageBuildError(
            f"the isolated environment{f' for {source}' if source else ''} could not be built",
            why=done.reason,
            next=_suggest_line(done.reason, lines, source),
        )


def _mark(place: Path, build: str) -> None:
    """Mark a build as complete, atomically."""
    scratch = place / f"{build}.tmp"
    scratch.write_text(build)
    scratch.replace(place / "complete")


def _suggest_line(reason: str, lines: Sequence[str], source: Path | None) -> str:
    """Name the lines whose packages uv's explanation mentions, with their numbers."""
    suspects = [line for line in lines if not line.startswith("-") and _mentions(reason, line)]
    place = str(source) if source else "the dependencies of the project"
    if not suspects:
        return f"check {place}"
    numbers = [_number(line, source) for line in suspects]
    named = [f"line {number} ({line})" if number else line for number, line in zip(numbers, suspects, strict=True)]
    return f"check {place}: {', '.join(named)}"


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


def _last_use(place: Path) -> float:
    for path in (place / "used", place):
        with contextlib.suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")
