"""`kinetic dev` on a terminal: each save starts the next run, and what becomes of the run before."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest

SOURCE = Path(__file__).parents[2] / "src"
CTRL_C = b"\x03"

TRAIN = """
    import os, time
    from model import LAYERS

    def train(until: str = ""):
        print("layers", LAYERS, flush=True)
        while until and not os.path.exists(until):
            time.sleep(0.01)
        return LAYERS * 10
"""


class Terminal:
    """A command with a terminal of its own, whose screen is rendered."""

    def __init__(self, *words: str, cwd: Path) -> None:
        self._screen = pyte.Screen(200, 60)
        self._stream = pyte.ByteStream(self._screen)
        self.pid, self._leader = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(BaseException):
                signal.signal(signal.SIGINT, signal.default_int_handler)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
                os.chdir(cwd)
                os.execvpe(words[0], words, {**environment(), "TERM": "xterm-256color"})
            os._exit(127)
        self.code: int | None = None

    @property
    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def see(self, text: str, times: int = 1) -> str:
        """Wait until a text stands on the screen as many times, and return the screen."""
        limit = time.monotonic() + 40
        while self.screen.count(text) < times:
            assert time.monotonic() < limit, f"{text!r} was not seen {times} times:\n{self.screen}"
            assert self._read(), f"it ended before {text!r} was seen {times} times:\n{self.screen}"
        return self.screen

    def press(self, keys: bytes) -> None:
        os.write(self._leader, keys)

    def end(self) -> str:
        """Wait until it ends, and return the screen."""
        limit = time.monotonic() + 40
        while self._read():
            assert time.monotonic() < limit, f"it does not end:\n{self.screen}"
        _, status = os.waitpid(self.pid, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.screen

    def _read(self) -> bool:
        if not select.select([self._leader], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._leader, 1 << 16)
        except OSError:  # EIO: no process holds the other end any more
            return False
        self._stream.feed(data)
        return bool(data)

    def close(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.pid, signal.SIGTERM)  # as Ctrl-C: it ends its run first
                os.waitpid(self.pid, 0)
        os.close(self._leader)


def environment() -> dict[str, str]:
    path = filter(None, (str(SOURCE), os.environ.get("PYTHONPATH")))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture
def dev(project) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts `kinetic dev` on a terminal."""
    project.write("train.py", TRAIN)
    project.write("model.py", "LAYERS = 1\n")
    started: list[Terminal] = []

    def start(*words: str) -> Terminal:
        started.append(Terminal(sys.executable, "-P", "-m", "kinetic", "dev", *words, cwd=project.root))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def shared(tmp_path, monkeypatch) -> Path:
    """Return where a module of another project is to be, which is installed as it stands."""
    (tmp_path / "other" / "src").mkdir(parents=True)
    (tmp_path / "other" / "setup.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "other" / "src"))
    return tmp_path / "other" / "src" / "shared.py"


def statuses(project: Any, shown: str) -> dict[str, str]:
    """Return the ids of the jobs that a screen shows, in their order, with their statuses now."""
    listed = json.loads(project.kinetic("jobs", "list", "--all", "--json").stdout)
    found = {job["job_id"]: job["status"] for job in listed["jobs"]}
    return {job_id: found[job_id] for job_id in re.findall(r"follow the job with: kinetic jobs logs (\S+)", shown)}


def test_a_file_of_the_project_that_is_called_as_a_module_of_ours_takes_no_part_in_watching(dev, project) -> None:
    project.write("click.py", "raise ImportError")
    terminal = dev("-a", "cpu", "train.py::train", "--until", str(project.root / "go"))
    terminal.see("layers 1")

    project.write("model.py", "LAYERS = 2\n")
    shown = terminal.see("layers 2")

    assert "cancelled after" in shown


def test_each_save_runs_the_function_again_and_an_error_waits_for_the_next_save(dev, project) -> None:
    terminal = dev("-a", "cpu", "train.py::train")
    terminal.see("watching 3 files of")
    terminal.see("\n10")  # its value

    project.write("model.py", "LAYERS = 2\n")  # a module that train.py imports
    terminal.see("\n20")
    project.write("model.py", "LAYERS = = 3\n")
    terminal.see("train.py cannot be imported: SyntaxError")
    terminal.see("waiting for the next save; Ctrl-C ends watching")
    project.write("model.py", "LAYERS = 'x' - 3\n")
    terminal.see("train.py cannot be imported: TypeError")
    project.write("model.py", "LAYERS = 4\n")
    terminal.see("\n40")
    project.write("train.py", TRAIN.replace("def train(", "def other("))
    terminal.see("next:  kinetic dev train.py::other")
    terminal.press(CTRL_C)
    shown = terminal.end()

    assert terminal.code == 130
    between = [line for line in shown.splitlines() if "changed (last run: " in line]
    assert [line.split(":")[1].split("(")[0].strip() for line in between] == ["model.py changed"] * 4 + [
        "train.py changed"
    ]
    assert "s, returned 10)" in between[0]
    assert "s, returned 20)" in between[1]
    assert "s, train.py cannot be imported: SyntaxError" in between[2]
    assert [shown.count(f"layers {count}") for count in (1, 2, 4)] == [1, 1, 1]
    assert "keeps running" not in shown  # nothing does
    assert [*statuses(project, shown).values()] == ["SUCCEEDED"] * 3


def test_a_save_in_another_project_that_the_function_imports_from_runs_it_again(dev, project, shared) -> None:
    shared.write_text("WIDTH = 1\n")
    project.write("model.py", "from shared import WIDTH\nLAYERS = WIDTH\n")
    terminal = dev("-a", "cpu", "train.py::train")
    terminal.see("\n10")  # its value

    shared.write_text("WIDTH = = 2\n")
    terminal.see("train.py cannot be imported: SyntaxError")
    shared.write_text("WIDTH = 3\n")
    terminal.see("\n30")
    terminal.press(CTRL_C)

    assert f"{shared} changed (last run: " in terminal.end()


def test_a_save_in_another_project_counts_from_its_import_and_while_the_function_runs(
    dev, project, shared, tmp_path, wait_until
) -> None:
    imported, go = tmp_path / "imported", tmp_path / "go"
    shared.write_text("WIDTH = 1\n")
    slow = f"open({str(imported)!r}, 'w')\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
    project.write("model.py", "from shared import WIDTH\nLAYERS = WIDTH\n" + slow)
    terminal = dev("--cancel-on-exit", "-a", "cpu", "train.py::train", str(tmp_path / "never"))

    wait_until(imported.exists, "the import")
    shared.write_text("WIDTH = 2\n")
    go.touch()
    terminal.see("layers 2")
    shared.write_text("WIDTH = 3\n")
    terminal.see("layers 3")
    terminal.press(CTRL_C)

    assert terminal.end().count(f"{shared} changed (last run: ") == 2


def test_a_save_in_another_project_within_the_second_of_the_one_before_and_as_long_is_seen(
    dev, project, shared, monkeypatch
) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    project.write("model.py", "from shared import LAYERS\n")

    def save(layers: int) -> None:
        shared.write_text(f"LAYERS = {layers}\n")
        os.utime(shared, (1_000_000, 1_000_000))  # the second is all that a compiled module knows of it

    save(1)
    terminal = dev("train.py::train")
    terminal.see("layers 1")
    for number in (2, 3):
        save(number)
        terminal.see(f"layers {number}")


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ("WIDTH = = 1\n", "SyntaxError"),
        ("WIDTH = 1 / 0\n", "ZeroDivisionError"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise error from error\n", "ZeroDivisionError"),
    ],
)
def test_an_error_in_another_project_waits_for_a_save_there(dev, project, shared, broken, error) -> None:
    shared.write_text(broken)
    project.write("model.py", "from shared import WIDTH\nLAYERS = WIDTH\n")
    terminal = dev("-a", "cpu", "train.py::train")

    terminal.see(f"train.py cannot be imported: {error}")
    terminal.see("waiting for the next save")
    shared.write_text("WIDTH = 2\n")
    terminal.see("\n20")
    terminal.press(CTRL_C)

    assert f"{shared} changed (last run: " in terminal.end()


def prepared(dev: Terminal) -> set[int]:
    """Return the processes that `kinetic dev` has started before they were needed."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid) for pid, above, words in rows if int(above) == dev.pid and "--start-at" in words}


def test_the_process_of_the_next_run_is_there_before_the_save_and_sees_what_was_saved(
    dev, project, tmp_path, wait_until
) -> None:
    pids = tmp_path / "pids"
    importing = f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    project.write("model.py", importing + "LAYERS = 1\n")
    watching = dev("train.py::train")
    known: set[int] = set()

    def next_run() -> int:
        wait_until(lambda: prepared(watching) - known)
        (found,) = prepared(watching) - known
        known.add(found)
        return found

    watching.see("layers 1")
    for number, more in (
        (2, ""),
        (
            3,
            "import yaml\nassert 'site-packages' not in yaml.__file__\n",
        ),  # a library's name, from now on the project's
    ):
        pid = next_run()
        assert str(pid) not in pids.read_text().split()
        if more:
            about = project.root.stat()
            project.write("yaml.py", "")
            os.utime(project.root, ns=(about.st_atime_ns, about.st_mtime_ns))  # as where times are whole seconds
        project.write("model.py", f"{importing}{more}LAYERS = {number}\n")
        watching.see(f"layers {number}")
        assert str(pid) in pids.read_text().split()

    os.kill(next_run(), signal.SIGKILL)  # then a new process takes its place
    project.write("model.py", "LAYERS = 4\n")
    watching.see("layers 4")

    last = next_run()
    os.kill(watching.pid, signal.SIGKILL)
    listed = ["ps", "-o", "args=", "-p", str(last)]
    wait_until(lambda: "--start-at" not in subprocess.run(listed, capture_output=True, text=True, check=False).stdout)


def test_libraries_of_the_project_are_imported_before_the_save_as_they_are_then(
    dev, project, tmp_path, monkeypatch, wait_until
) -> None:
    library, noted = tmp_path / "site-packages" / "of_theirs.py", tmp_path / "noted"
    library.parent.mkdir()
    text = (
        f"import os\nopen({str(noted)!r}, 'a').write(f'{{os.getpid()}}\\n')\nVALUE = os.environ['OF_THEIRS'] + ' 1'\n"
    )
    library.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(library.parent))
    script = """
        import os
        os.environ["OF_THEIRS"] = "{setting}"
        import of_theirs

        def train():
            print("trained with", of_theirs.VALUE, "{setting}")
    """

    def imported(found: set[int]) -> bool:
        return len(found) == 1 and found <= {int(line) for line in noted.read_text().split()}

    project.write("train.py", script.format(setting="mine"))
    watching = dev("train.py::train")
    watching.see("trained with mine 1 mine")
    wait_until(lambda: imported(prepared(watching)), "the import before the save", seconds=40)
    (ready,) = prepared(watching)
    project.write("model.py", "LAYERS = 2\n")
    watching.see("trained with mine 1 mine", times=2)
    assert noted.read_text().split().count(str(ready)) == 1

    wait_until(lambda: imported(prepared(watching) - {ready}), "the import before the next save", seconds=40)
    project.write("train.py", script.format(setting="other"))
    watching.see("trained with other 1 other")
    library.write_text(text.replace(" 1", " 2"))
    project.write("model.py", "LAYERS = 3\n")
    watching.see("trained with other 2 other")


def test_a_save_cancels_the_run_before_and_ctrl_c_leaves_the_last_one_running(dev, project, tmp_path) -> None:
    terminal = dev("-a", "cpu", "train.py::train", "--until", str(tmp_path / "until"))
    terminal.see("layers 1")

    project.write("model.py", "LAYERS = 2\n")
    found = statuses(project, terminal.see("layers 2"))
    first, second = found
    terminal.press(CTRL_C)
    shown = terminal.end()

    assert "model.py changed (last run: cancelled after " in shown
    assert terminal.code == 130
    assert (found[first], found[second]) == ("CANCELLED", "RUNNING")
    assert f"detached: {second} keeps running" in shown
    assert f"kinetic jobs cancel {second}" in shown
    (tmp_path / "until").touch()
    assert project.kinetic("jobs", "result", second).stdout == "20\n"


def test_the_run_before_is_kept_and_the_last_one_cancelled_where_that_is_asked_for(dev, project, tmp_path) -> None:
    until = str(tmp_path / "until")
    terminal = dev("-a", "cpu", "--keep-running", "--cancel-on-exit", "train.py::train", until)
    terminal.see("layers 1")

    project.write("model.py", "LAYERS = 2\n")
    terminal.see("layers 2")
    terminal.press(CTRL_C)
    shown = terminal.end()
    found = statuses(project, shown)
    first, second = found

    assert f"model.py changed (last run: {first} keeps running; cancel it with: kinetic jobs cancel" in shown
    assert f"{second} is cancelled" in shown
    assert [*found.values()] == ["RUNNING", "CANCELLED"]
