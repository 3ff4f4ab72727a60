"""What the benchmarks share: a home and a project of their own, a child that does as asked, and one line a figure.

A figure is the median of several runs beside the median of its baseline, both from this run and taken in turns
(A B A B), because on a shared machine only their ratio means something. `over` is a lamp: the exit status stays 0
unless --strict is given.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

# They change what is measured: every print is written alone, every module is compiled on each import.
_DISTORTING = ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
_PATIENCE_SECONDS = 10.0
_SLOW_CREATE_US = 100  # a journalled ext4, XFS or APFS takes 10 to 50
_NAME, _VALUE = 62, 12  # characters of a column

# How the script of a session begins: a function that does nothing.
NOOP = """
import kinetic

@kinetic.run(accelerator="cpu")
def noop(number=0):
    return number
"""

# What a job compiles; another mark is another program. A training step of a transformer: attention, GELU, gradients and
# Adam, each layer written out, which XLA compiles quickly for its size. Or as many programs as ``sorts`` says, each of
# 300 small sorts. It returns the seconds that compiling took, and those that JAX says it took to load a program.
COMPILES = """\
def compiles(layers, sorts, mark):
    import jax
    import jax.numpy as jnp

    width, heads, length, words = 64, 4, 32, 256
    loading = []

    def note(name, seconds, **_):
        if name == "/jax/compilation_cache/cache_retrieval_time_sec":
            loading.append(seconds)

    def in_order(x, program):
        for number in range(300):
            x = jnp.sort(x * (1 + 1e-3 * (number + program)))
        return x

    def normal(x, scale):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale

    def layer(x, p):
        h = normal(x, p["first"])
        query, key, value = (jnp.einsum("btd,dhe->bthe", h, p[name]) for name in ("query", "key", "value"))
        scores = jnp.einsum("bqhe,bkhe->bhqk", query, key) / (width // heads) ** 0.5
        seen = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        x = x + jnp.einsum("bhqk,bkhe,hed->bqd", weights, value, p["out"])
        return x + jax.nn.gelu(normal(x, p["second"]) @ p["up"]) @ p["down"]

    def loss(params, text):
        x = params["embedding"][text]
        for p in params["layers"]:
            x = layer(x, p)
        guess = jax.nn.log_softmax(x @ params["embedding"].T)
        return -jnp.take_along_axis(guess[:, :-1], text[:, 1:, None], -1).mean()

    def step(params, mean, square, text):
        slope = jax.grad(loss)(params, text)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
        square = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, square, slope)
        rate = 1e-3 * (mark + 1)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
        return params, mean, square

    inner = (width, heads, width // heads)
    shapes = {"first": (width,), "second": (width,), "query": inner, "key": inner, "value": inner}
    shapes |= {"out": (inner[1], inner[2], width), "up": (width, 4 * width), "down": (4 * width, width)}
    params = {
        "embedding": jnp.ones((words, width)),
        "layers": [{name: jnp.full(shape, 0.01) for name, shape in shapes.items()} for _ in range(layers)],
    }
    nothing = jax.tree.map(jnp.zeros_like, params)
    if sorts:
        jitted = jax.jit(in_order, static_argnums=1)
        lowered = [jitted.lower(jnp.ones(width), 1000 * mark + program) for program in range(sorts)]
    else:
        lowered = [jax.jit(step).lower(params, nothing, nothing, jnp.zeros((4, length), int))]
    jax.monitoring.register_event_duration_secs_listener(note)
    begun = time.monotonic()
    for program in lowered:
        program.compile()
    return time.monotonic() - begun, sum(loading)
"""

COMPILED_SIZES = {
    "layers": (24, "of a training step that is compiled"),
    "sorts": (5, "programs of 300 sorts that are compiled: 20 s"),
}

# Stands at the top of every script that a Session runs: answers keep the pipe, and what a job prints goes to a file.
_PREAMBLE = """\
import json, os, sys, time
_answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 1)
def serve(**actions):
    for line in sys.stdin:
        action, *words = json.loads(line)
        _answers.write(json.dumps(actions[action](*words)) + "\\n")
"""


class Bench:
    """One benchmark's command line and its figures."""

    def __init__(
        self, title: str, *, runs: int, quick_runs: int, sizes: dict[str, tuple[int, str]] | None = None
    ) -> None:
        """Read the command line; each of ``sizes`` is an option with a number, its default and its help."""
        parser = argparse.ArgumentParser(description=title)
        for name, (default, about) in (sizes or {}).items():
            parser.add_argument(f"--{name}", type=int, default=default, help=f"{about} (default {default})")
        parser.add_argument("--quick", action="store_true", help="small sizes and few runs: to see that it works")
        parser.add_argument("--runs", type=int, help=f"runs of each figure (default {runs}, with --quick {quick_runs})")
        parser.add_argument("--strict", action="store_true", help="exit with 1 when a figure is over its target")
        parser.add_argument("--json", type=Path, help="a file to which each figure is appended as a line of JSON")
        options = parser.parse_args()
        self.sizes: dict[str, int] = {name: getattr(options, name) for name in sizes or {}}
        self.quick: bool = options.quick
        self.runs: int = options.runs or (quick_runs if options.quick else runs)
        self._strict: bool = options.strict
        self._json: Path | None = options.json
        self._over = 0
        _clean_start()
        print(f"{title}; median of {self.runs}{', --quick' if self.quick else ''}")
        print(_of_this_machine())
        print(f"{'':{_NAME}}{'median':>{_VALUE}}{'baseline':>{_VALUE}}{'ratio':>9}  target")

    def ratio(self, name: str, values: Sequence[float], base: Sequence[float], most: float | None, unit: str) -> None:
        """Print a figure whose target is a multiple of its baseline; None: there is no target."""
        value, baseline = statistics.median(values), statistics.median(base)
        target = None if most is None else f"x {most:g}"
        self._line(name, (value, baseline, unit), target, over=most is not None and value > most * baseline)

    def beyond(self, name: str, values: Sequence[float], base: Sequence[float], most: float, unit: str) -> None:
        """Print a figure whose target is an amount more than its baseline."""
        value, baseline = statistics.median(values), statistics.median(base)
        more = f"+{most:g} {unit} (it is {value - baseline:+.1f})"
        self._line(name, (value, baseline, unit), more, over=value > baseline + most)

    def limit(self, name: str, values: Sequence[float], most: float, unit: str, base: Sequence[float] = ()) -> None:
        """Print a figure whose target is an amount; a baseline is there for comparison only."""
        value = statistics.median(values)
        baseline = statistics.median(base) if base else None
        self._line(name, (value, baseline, unit), f"{most:g} {unit}", over=value > most)

    def show(self, name: str, values: Sequence[float], unit: str, base: Sequence[float] = ()) -> None:
        """Print a figure that has no target; a baseline is there for comparison only."""
        baseline = statistics.median(base) if base else None
        self._line(name, (statistics.median(values), baseline, unit), None, over=False)

    def skip(self, name: str, why: str) -> None:
        """Say that a figure could not be measured here."""
        print(f"{name:{_NAME}}skipped: {why}")

    def end(self) -> None:
        """Leave: with 1 only when --strict was given and a figure is over."""
        sys.stdout.flush()
        raise SystemExit(1 if self._strict and self._over else 0)

    def _line(self, name: str, figures: tuple[float, float | None, str], target: str | None, *, over: bool) -> None:
        value, baseline, unit = figures
        self._over += over
        if self._json is not None:
            page = {"name": name.strip(), "value": value, "baseline": baseline, "unit": unit, "target": target}
            with self._json.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**page, "over": over}) + "\n")
        shown = [f"{value:.4g} {unit}", "-" if baseline is None else f"{baseline:.4g} {unit}"]
        times = f"x {value / baseline:.{2 if value > baseline / 10 else 4}f}" if baseline else "-"
        verdict = "-" if target is None else f"{target}  {'OVER' if over else 'ok'}"
        print(f"{name:{_NAME}}{shown[0]:>{_VALUE}}{shown[1]:>{_VALUE}}{times:>9}  {verdict}", flush=True)


def alternate(runs: int, *, warm: bool = True, **measured: Callable[[], float]) -> dict[str, list[float]]:
    """Measure in turns, and return every value under its name.

    Args:
        runs: How many values of each.
        warm: Begin with a round that does not count, which fills caches. Not needed where one round does a thing a
            thousand times.
        measured: What to measure; each returns its value.
    """
    values: dict[str, list[float]] = {name: [] for name in measured}
    for number in range(-1 if warm else 0, runs):
        for name, measure in measured.items():
            value = measure()
            if number >= 0:
                values[name].append(value)
    return values


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def seconds_of_a_look(root: Path) -> float:
    """Look at every file below a folder once, and return the seconds that took: the least that can be done."""
    begun = time.perf_counter()
    folders = [str(root)]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    entry.stat()
    return time.perf_counter() - begun


class Sandbox:
    """A home, a project and an environment that belong to one benchmark, and go with it.

    Attributes:
        folder: Holds all of it.
        project: The project whose scripts are run.
        home: KINETIC_HOME of everything that is started here.
        environ: The environment of everything that is started here.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kinetic-bench-")).resolve()
        self.project = self.folder / "project"
        self.home = self.folder / "home"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("KINETIC_")}
        self.environ["KINETIC_HOME"] = str(self.home)
        self._make_project()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_supervisors()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def store(self) -> Path:
        """The folder of the store."""
        return self.home / "store"

    def forget(self) -> None:
        """Begin again with an empty home, as on the first day."""
        self.end_supervisors()
        shutil.rmtree(self.home, ignore_errors=True)

    def seconds_of(self, *words: str) -> float:
        """Run a command to its end and return how long it took."""
        begun = time.perf_counter()
        done = subprocess.run(words, env=self.environ, cwd=self.project, capture_output=True, check=False)
        took = time.perf_counter() - begun
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
        return took

    def milliseconds_of_python(self, *words: str) -> float:
        """Run this interpreter to its end and return how long it took."""
        return self.seconds_of(sys.executable, *words) * 1e3

    def script(self, name: str, text: str) -> Path:
        """Write a script into the project; one that is there as it is stays untouched, so that nothing has changed."""
        path = self.project / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        return path

    def session(self, name: str, text: str) -> Session:
        """Start a script that answers what it is asked; see ``Session``."""
        return Session(self, self.script(name, _PREAMBLE + text))

    def supervisors(self) -> dict[int, str]:
        """Return the process ids and states of the supervisors that the queue knows."""
        found = {}
        for path in self.home.glob("run/*/queue.db"):
            with contextlib.closing(sqlite3.connect(path, timeout=30)) as db, contextlib.suppress(sqlite3.Error):
                found.update(db.execute("SELECT pid, state FROM supervisors").fetchall())
        return found

    def quiet(self) -> None:
        """Wait until every supervisor is idle, so that what one run leaves to do does not slow the next."""
        limit = time.monotonic() + _PATIENCE_SECONDS
        while any(state != "idle" for state in self.supervisors().values()) and time.monotonic() < limit:
            time.sleep(0.005)

    def end_supervisors(self) -> None:
        """End the supervisors that were started from this home, and wait until they are gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            limit = time.monotonic() + _PATIENCE_SECONDS
            asked: set[int] = set()
            while (left := _processes_of(self.home)) and time.monotonic() < limit:
                for pid in left - asked:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                asked |= left
                time.sleep(0.005)

    def stored(self) -> dict[str, tuple[int, int]]:
        """Return size and time of each file of the store, without what is being written."""
        found = {}
        for folder, below, names in os.walk(self.store):
            below[:] = [name for name in below if name != ".tmp"]
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    about = os.stat(f"{folder}/{name}")
                    found[f"{folder}/{name}"] = about.st_size, about.st_mtime_ns
        return found

    def written_since(self, before: dict[str, tuple[int, int]]) -> int:
        """Return the bytes of the files that are new or other than before."""
        return sum(about[0] for path, about in self.stored().items() if before.get(path) != about)

    def _make_project(self) -> None:
        """Make what a small project is: a handful of modules."""
        package = self.project / "shop"
        package.mkdir(parents=True)
        (self.project / "pyproject.toml").write_text('[project]\nname = "shop"\nversion = "1"\n')
        for number in range(12):
            lines = [f"def step_{number}_{line}(x):\n    return x * {line} + {number}\n" for line in range(60)]
            (package / f"part_{number}.py").write_text("\n\n".join(lines))


class Session:
    """A process with a script that does what it is asked, one request after the other.

    The script ends with ``serve(name=function, …)``; what a function returns, as JSON, is the answer.
    """

    def __init__(self, sandbox: Sandbox, script: Path) -> None:
        self._says = sandbox.folder / f"{script.stem}.err"
        with self._says.open("wb") as says:
            self.process = subprocess.Popen(
                [sys.executable, str(script), str(sandbox.folder / f"{script.stem}.out")],
                env=sandbox.environ,
                cwd=sandbox.project,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=says,
                text=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.process.kill()  # it may be busy for long
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()

    def send(self, action: str, *words: object) -> None:
        """Ask, and do not wait for the answer."""
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps([action, *words]) + "\n")
            self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next answer."""
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"the script ended without an answer:\n{self._says.read_text()[-3000:]}")
        return json.loads(line)

    def ask(self, action: str, *words: object) -> Any:
        """Ask and wait for the answer."""
        self.send(action, *words)
        return self.answer()


Compiled = Sequence[Sequence[Sequence[float]]]  # pairs of runs, and what ``COMPILES`` returned in each


def show_compiled(bench: Bench, place: str, layers: int, steps: Compiled, sorts: int, sorted_: Compiled) -> None:
    """Print what compiling again took, of several programs and of a large one.

    What is ours is all but JAX's loading: waiting for the store, and the key that JAX makes of the program. JAX's
    loading grows faster than a program, so the large one has no target.
    """
    for what, runs, most in (
        (f"{sorts} programs of 300 sorts", sorted_, 0.1),
        (f"a training step of {layers} layers", steps, None),
    ):
        first, again = ([run[at][0] for run in runs] for at in (0, 1))
        ours = [run[1][0] - run[1][1] for run in runs]
        bench.ratio(f"compiling {what} again, in a fresh {place}", again, first, None if bench.quick else most, "s")
        bench.ratio("… of it not JAX's own loading of the program", ours, first, None if bench.quick else 0.01, "s")


def memory_of(pid: int | str, *, peak: bool = False) -> float:
    """Return a process's resident memory in MB (10^6 bytes): now, or at its peak (Linux only)."""
    wanted = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(wanted)) * 1024 / 1e6
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
    return int(shown.stdout) * 1024 / 1e6


def _of_this_machine() -> str:
    """Say how fast this machine is just now, for the figures whose target is an amount.

    Creating files is the trap: on an ext4 without a journal it took 0.8 ms at times, 0.01 ms minutes later, and 8 us
    on tmpfs (2026-11-20, Linux 6.18). The likely reason: such an ext4 first looks at every recently deleted inode.
    """
    starts = []
    for _ in range(7):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        starts.append((time.perf_counter() - begun) * 1e3)
    creates = []
    with tempfile.TemporaryDirectory(prefix="kinetic-bench-") as folder:
        for number in range(60):
            if number % 5 == 0:  # folders lie in different groups of inodes, and some of those may be slow
                os.mkdir(f"{folder}/{number}")
            begun = time.perf_counter()
            os.close(os.open(f"{folder}/{number // 5 * 5}/{number}.txt", os.O_WRONLY | os.O_CREAT))
            creates.append((time.perf_counter() - begun) * 1e6)
    start, create = statistics.median(starts), statistics.median(creates)
    slow = "; SLOW: compare with TMPDIR on a tmpfs" if create > _SLOW_CREATE_US else ""
    told = f"bare interpreter {start:.1f} ms, load {os.getloadavg()[0]:.1f}"
    return f"  now: {told}, creating a file in {tempfile.gettempdir()} {create:.0f} us{slow}"


def _processes_of(home: Path) -> set[int]:
    """Return the processes whose command line names a runtime folder in this home: its supervisors, and their forks."""
    sign = f"{home}/run/"
    return {pid for pid, line in _command_lines() if sign in line}


def _command_lines() -> Iterator[tuple[int, str]]:
    if os.path.isdir("/proc/self"):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                yield int(name), Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
        return
    listed = subprocess.run(["ps", "-axo", "pid=,command="], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        pid, _, words = line.strip().partition(" ")
        yield int(pid), words


def _clean_start() -> None:
    """Start this script anew without the variables that distort, and see to it that every child finds kinetic."""
    if any(name in os.environ for name in _DISTORTING):
        environ = {name: value for name, value in os.environ.items() if name not in _DISTORTING}
        os.execve(sys.executable, [sys.executable, *sys.argv], environ)
    if "PYTHONPATH" in os.environ:  # children run elsewhere: a path relative to here would mean something else there
        paths = map(os.path.abspath, filter(None, os.environ["PYTHONPATH"].split(os.pathsep)))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if importlib.util.find_spec("kinetic") is None:
        raise SystemExit("kinetic is not installed here; try: make bench, or PYTHONPATH=src python benchmarks/…")
