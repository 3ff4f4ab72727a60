"""Running uv: never with another interpreter or folder than the one that we name, and never showing a password."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

from kinetic._wire import NamedTuple, addresses, python_runtime
from kinetic.errors import ImageBuildError

_LAST = 60  # lines that are kept to explain a failure
_EXPLANATION_LINES = 12  # lines of an explanation; the rest has been shown already
_INDENT = "\n       "  # below the first line of "why:   "

# What would send uv to another interpreter, folder or index than the one that we name.
_MISLEADING = frozenset(
    "CONDA_PREFIX PYTHONHOME UV_NO_SOURCES UV_PREFIX UV_PROJECT UV_PROJECT_ENVIRONMENT UV_PYTHON UV_SYSTEM_PYTHON "
    "UV_TARGET UV_VENV_CLEAR UV_WORKING_DIR VIRTUAL_ENV".split()
)
# Variables with paths, and what is between them.
_PATHS = dict.fromkeys(("UV_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_BUILD_CONSTRAINT"), " ")
_PATHS |= {"UV_FIND_LINKS": ",", "SSL_CERT_DIR": os.pathsep}
_PATHS |= dict.fromkeys(("UV_CONFIG_FILE", "UV_CACHE_DIR", "SSL_CERT_FILE", "SSL_CLIENT_CERT", "NETRC"), "")
# What has decided about a lock when it was made, and uv accepts no more (0.13).
_DECIDED = ("UV_CONSTRAINT", "UV_OVERRIDE")


class Stop:
    """Ends what makes an environment or an image in another thread: uv is killed, and the next step raises."""

    def __init__(self) -> None:
        self._is_set = threading.Event()
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._endings: list[Callable[[], object]] = []

    def set(self) -> None:
        """Stop; what was made so far stays."""
        with self._lock:
            self._is_set.set()
            for process in self._running:
                process.kill()
            endings, self._endings = self._endings, []
        for end in endings:
            end()

    def when_set(self, end: Callable[[], object]) -> None:
        """Call something when the work is to stop, e.g. what ends connections; at once if it is to stop already."""
        with self._lock:
            if not self._is_set.is_set():
                self._endings.append(end)
                return
        end()

    def check(self) -> None:
        """Raise CancelledError if the work is to stop."""
        if self._is_set.is_set():
            raise CancelledError

    @contextmanager
    def killing(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Kill a process when the work is to stop."""
        with self._lock:
            self._running.add(process)
            if self._is_set.is_set():
                process.kill()
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(process)


class UvResult(NamedTuple):
    """How a run of uv ended."""

    status: int  # its exit status
    words: list[str]  # the last lines that it wrote

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
        "uv is needed to resolve and install packages, and it is not installed",
        why=f"it is neither on PATH nor installed for {sys.executable}",
        next="pip install uv",
    )


def run_uv(
    words: Sequence[str],
    folder: Path,
    say: Callable[[str], None],
    *,
    overrides: str = "",
    indexes: Sequence[str] = (),
    from_lock: bool = False,
    without: Sequence[str] = (),
    stop: Stop | None = None,
) -> UvResult:
    """Run uv in a folder, and report what it writes.

    ``overrides`` names a file with overrides, or is "". ``indexes`` are addresses whose logins uv is to use, too, some
    with a name before them; its arguments would show them to every user of this machine. ``from_lock``: it installs
    what a lock names. ``without``: variables that do not count.
    """
    last: deque[str] = deque(maxlen=_LAST)
    killing = stop.killing if stop is not None else contextlib.nullcontext
    environ = _uv_environment(*without, *(_DECIDED if from_lock else ()))
    if indexes:
        environ["UV_INDEX"] = " ".join([*environ.get("UV_INDEX", "").split(), *indexes])
    with subprocess.Popen(
        [*uv_command(), *words],
        cwd=folder,
        env=python_runtime.with_overrides(environ, overrides) if overrides else environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            with killing(process):
                for line in process.stdout or ():
                    last.append(addresses.without_secrets(line.rstrip()))
                    if last[-1]:
                        say(f"uv: {last[-1]}")
        except BaseException:  # e.g. Ctrl-C
            process.kill()
            raise
    if stop is not None:
        stop.check()
    return UvResult(process.returncode, list(last))


def package_sources(folder: Path, indexes: Sequence[str]) -> list[str]:
    """Return the addresses of the package indexes that uv would ask, and of pages with links, without logins."""
    words = ["pip", "compile", "--quiet", "--no-header", "--emit-index-url", "--emit-find-links"]
    words += ["--python", base_interpreter(), "-"]
    done = run_uv(words, folder, lambda _: None, indexes=indexes)  # it resolves nothing, and asks no index
    found = (line.partition(" ")[2] for line in ([] if done.status else done.words) if line.startswith("--"))
    return [address.replace("***@", "") for address in found]


EXPORT = "export --frozen --offline --no-default-groups --no-header --no-annotate"


def export_lock(place: Path, extras: Sequence[str] = (), groups: Sequence[str] = ()) -> list[str]:
    """Read the uv.lock of a project, as lines of a requirements file.

    ``uv export --frozen`` changes no lock, and needs neither the network nor an interpreter: versions and files
    are those that the project was tested with. Hashes are checked where a line has some; base packages have none.
    Members of a workspace are not on the index: their folders are named, as those of other projects with a path.

    Args:
        place: The folder of the pyproject.toml; uv.lock is beside it, or at the root of its workspace. Or a script,
            which has a lock of its own beside it.
        extras: Optional dependencies that are wanted as well.
        groups: Dependency groups that are wanted as well.

    Raises:
        ImageBuildError: uv is missing, or cannot read the lock.
    """
    words = [word for extra in extras for word in ("--extra", extra)]
    words += [word for group in groups for word in ("--group", group)]
    of_script = ["--script", str(place)] if place.is_file() else []
    folder, lock = (place.parent, f"{place.name}.lock") if of_script else (place, "uv.lock")
    done = subprocess.run(
        [*uv_command(), *EXPORT.split(), *words, *of_script],
        cwd=folder,
        env=_uv_environment(*_DECIDED),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = UvResult(done.returncode, addresses.without_secrets(done.stderr).splitlines()).reason
        is_conflict = "declared conflicts" in reason
        raise ImageBuildError(
            f"{folder / lock} {'does not have these extras and groups together' if is_conflict else 'cannot be read'}",
            why=reason,
            next=f"name one of them only in [tool.kinetic] of {folder / 'pyproject.toml'}"
            if is_conflict
            else " ".join([f"cd {folder} && uv lock", *of_script]),
        )
    return done.stdout.splitlines()


def base_interpreter() -> str:
    """Return the interpreter below the client's own environment, if it is in one."""
    own = python_runtime.own_python()
    return os.path.realpath((own == sys.executable and getattr(sys, "_base_executable", None)) or own)


def _uv_environment(*without: str) -> dict[str, str]:
    """Return the variables for uv, which runs in another folder than the one that relative paths mean."""
    kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING.union(without)}
    for name, separator in _PATHS.items():
        if value := kept.get(name):
            each = value.split(separator) if separator else [value]
            kept[name] = separator.join(path if "://" in path else os.path.abspath(path) for path in each if path)
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
