"""In how many of our files one local `train(0.1)` executes code: a reader who follows the call opens each of them.

Counted in all processes of the call together, the client, its supervisor and the worker, by what Python itself reports:
a file is *called* if a function in it was entered, and *imported* if only its module and the bodies of its classes were
executed. `python benchmarks/count_files_per_call.py` prints both; with --list, which they are and in which process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Runs first in every interpreter of the call, and goes on in whatever that forks. A call of a function is noted once a
# process and file, a module when its code object is executed; each note is one write, because workers end with _exit.
HOOK = """
import os
import sys
import threading

_folder = os.environ.get("KINETIC_COUNT_FILES") or os.path.dirname(__file__)
_FUNCTION = 0x1  # CO_OPTIMIZED: neither a module nor the body of a class
_seen = set()


def _note(kind, path):
    at = path.rfind("/kinetic/")
    if at < 0 or not path.endswith(".py") or (kind, path, os.getpid()) in _seen:
        return
    _seen.add((kind, path, os.getpid()))
    with open(os.path.join(_folder, f"process-{os.getpid()}"), "a") as file:
        file.write(f"{kind} {path[at + 1:]}\\n")


def _called(frame, event, _):
    if event == "call" and frame.f_code.co_flags & _FUNCTION:
        _note("called", frame.f_code.co_filename)


def _executed(event, arguments):
    if event == "exec" and hasattr(arguments[0], "co_filename"):
        _note("imported", arguments[0].co_filename)


sys.addaudithook(_executed)
sys.setprofile(_called)
threading.setprofile(_called)
"""
SCRIPT = """
import kinetic


@kinetic.run(accelerator="cpu")
def train(rate):
    return rate


if __name__ == "__main__":
    assert train(0.1) == 0.1
"""
ROLES = {"kinetic/_remote/callable.py": "client", "kinetic/_backends/local/supervisor.py": "supervisor"}


def count(python: str = sys.executable) -> dict[str, dict[str, set[str]]]:
    """Make one call in a home of its own; return for "called" and "imported" which process was in which file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        (folder / "project").mkdir()
        (folder / "project" / "train.py").write_text(SCRIPT)
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("KINETIC_", "PYTHON"))}
        environ = {
            **clean,
            "KINETIC_HOME": str(folder / "home"),
            "KINETIC_RUNTIME_DIR": str(folder / "run"),
            "PYTHONPATH": str(folder / "hook"),  # travels to the supervisor, as every variable of an interpreter does
        }
        subprocess.run([python, "train.py"], cwd=folder / "project", env=environ, check=True)
        found: dict[str, dict[str, set[str]]] = {"called": defaultdict(set), "imported": defaultdict(set)}
        for page in (folder / "hook").glob("process-*"):
            lines = [line.split(" ", 1) for line in page.read_text().splitlines()]
            files = {path for _, path in lines}
            role = next((role for path, role in ROLES.items() if path in files), "worker")
            for kind, path in lines:
                found[kind][path].add(role)
        return found


def main() -> None:
    """Print the numbers."""
    words = argparse.ArgumentParser(description="Count the files in which one local call executes code.")
    words.add_argument("--list", action="store_true", help="name the files, and the processes that were in them")
    asked = words.parse_args()
    found = count()
    called = set(found["called"])
    loaded = set(found["called"]) | set(found["imported"])
    if asked.list:
        for path in sorted(loaded):
            roles = found["called"].get(path) or found["imported"][path]
            print(f"{'called  ' if path in called else 'imported'} {path}  ({', '.join(sorted(roles))})")
    print(f"files of ours in which one local train(0.1) calls something: {len(called)}; that it imports: {len(loaded)}")


if __name__ == "__main__":
    main()
