"""The manual and the README do what they say: their Python snippets run as scripts, their commands as commands.

How a page is read, from top to bottom, in a project folder and a kinetic home of its own:

* A Python block whose first line is `# name.py` is that file; one without goes on where the block before it ended.
* Blocks of other languages that begin with `# name` are written under that name, e.g. `# .kineticignore`.
* In a console block, each `$ kinetic …` and `$ python …` runs and must succeed, and the lines below it must be printed.
* A script runs where it ends, unless the block that follows is a console block that runs it.
* An id such as cpu-train-20261120-134402-1f0c9ab stands for the newest job of that function; JOB for the newest of all.
  One such as grp-a1b2c3d4 stands for the newest batch.
* `<!-- needs: jax -->` on the line above a block: it runs only where jax can be imported, or is a command. The blocks
  of a page that need the same are a project of their own; where something is missing they are skipped, and say what.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "src" / "kinetic" / "_cli" / "skill.md"]
FENCE = re.compile(r"^(?:<!-- needs: ([\w ]+) -->\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CAN_BE_MISSING = {
    "jax",
    "keras",
    "optuna",
    "orbax",
    "peft",
    "sklearn",
    "tensorboardX",
    "torch",
    "transformers",
    "uv",
    "wandb",
}  # anything else is a misspelling, never run
TRAIN = {"jax", "keras", "optuna", "sklearn"}  # half a minute for each page
TAKE_LONG = pytest.mark.sampled(3)
NAME = re.compile(r"# (\S+)\n")
JOB = re.compile(r"\b([a-z0-9]+-[a-z-]+)-\d{8}-\d{6}-[0-9a-f]{7}\b|\bJOB\b")
GROUP = re.compile(r"\bgrp-[0-9a-f]{8}\b")
NOT_RUN = {"make", "pip"}  # they make environments; `make demo` and `make test` are run by whoever releases
SHIMS = {
    "python": 'exec "{python}" "$@"\n',
    "kinetic": 'exec "{python}" -c "from kinetic._cli.main import main; main()" "$@"\n',
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    name: str
    text: str
    needs: tuple[str, ...] = ()

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a console block, each with the lines that it is said to print."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
        return found


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, those that go on joined to the one they continue."""
    found: list[Block] = []
    for words, language, text in FENCE.findall(page.read_text()):
        needs = tuple(words.split())
        named = NAME.match(text) if language != "console" else None
        goes_on = language == "python" and named is None and found and found[-1].language == "python"
        if goes_on and found[-1].needs == needs:
            before = found.pop()
            found.append(Block("python", before.name, f"{before.text}\n{text}", needs))
        else:
            name = named[1] if named else f"snippet_{len(found)}.py"
            found.append(Block(language, name, text, needs))
    return found


def cases() -> list[object]:
    """Return each page, once for what always runs and once for each set of things that some blocks need."""
    return [
        pytest.param(page, needs, id="-".join([page.stem, *needs]), marks=[TAKE_LONG] if TRAIN & {*needs} else [])
        for page in PAGES
        for needs in sorted({(), *(block.needs for block in blocks_of(page))})
    ]


class Reader:
    """Somebody who types in what a page says."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder, self.home = folder / "project", home
        self.folder.mkdir()
        tools = folder / "bin"
        tools.mkdir()
        for name, text in SHIMS.items():
            (tools / name).write_text("#!/bin/sh\n" + text.format(python=sys.executable))
            (tools / name).chmod(0o755)
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": path}

    def write(self, block: Block) -> None:
        """Save a block under its name."""
        path = self.folder / block.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.with_real_ids(block.text))

    def run(self, command: str) -> str:
        """Run a command to its good end, and return all that it printed."""
        words = self.with_real_ids(command)
        shell = ["sh", "-c", words]
        done = subprocess.run(
            shell,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=110,  # PyTorch takes twelve seconds to import, in each of four processes
            check=False,
        )
        assert done.returncode == 0, f"$ {words}\n{done.stdout}"
        return done.stdout

    def with_real_ids(self, text: str) -> str:
        """Put ids of jobs that exist in the place of those on the page."""
        text = JOB.sub(lambda found: self.newest_job(found[1] or "", found[0]), text)
        return GROUP.sub(lambda found: self.newest(self.home / "store" / "_groups", "*/manifest.json", found[0]), text)

    def newest_job(self, beginning: str, written: str) -> str:
        return self.newest(self.home / "store", f"{beginning}*/handle.json", written)

    @staticmethod
    def newest(folder: Path, pattern: str, written: str) -> str:
        newest = max(folder.glob(pattern), key=lambda page: page.stat().st_mtime_ns, default=None)
        assert newest is not None, f"nothing stands for {written}"
        return newest.parent.name


@pytest.mark.usefixtures("few_threads")
@pytest.mark.parametrize(("page", "needs"), cases())
def test_a_page_does_what_it_says(page: Path, needs: tuple[str, ...], home: Path, tmp_path: Path):
    _skip_without(needs)

    _follow([block for block in blocks_of(page) if block.needs == needs], Reader(tmp_path, home))


def test_the_readme_does_what_it_says(home: Path, tmp_path: Path):
    """Word by word, in one folder: nothing in it stands for anything else, so a reader can paste every line."""
    text = README.read_text()
    assert JOB.search(text) is None
    assert GROUP.search(text) is None
    reader = Reader(tmp_path, home)

    _follow(blocks_of(README), reader)

    assert (reader.folder / "count.txt").exists()  # what the last command of the page brings here


def _follow(blocks: list[Block], reader: Reader) -> None:
    for block, following in zip(blocks, [*blocks, None][1:], strict=True):
        if block.language == "console":
            _type_in(block, reader)
        elif block.language == "python" or NAME.match(block.text):
            reader.write(block)
        if block.language == "python" and not (following and _runs(following, block.name)):
            reader.run(f"python {block.name}")


def _skip_without(needs: tuple[str, ...]) -> None:
    assert set(needs) <= CAN_BE_MISSING
    missing = [name for name in needs if find_spec(name) is None and shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)}: needed by this page, and not installed here")


def _runs(block: Block, script: str) -> bool:
    """Say whether a block is a console that runs a script, with or without variables in front."""
    if block.language != "console":
        return False
    run = [[word for word in command.split() if "=" not in word][:2] for command, _ in block.commands]
    return ["python", script] in run


def _type_in(block: Block, reader: Reader) -> None:
    for command, printed in block.commands:
        program = next(word for word in command.split() if "=" not in word)
        if program in NOT_RUN:
            continue
        assert program in SHIMS, f"a page shows a command that nobody runs: {command}"
        shown = [_any_job(line) for line in reader.run(command).splitlines()]
        assert [line for line in printed if _any_job(line) not in shown] == [], f"$ {command} printed {shown}"


def _any_job(line: str) -> str:
    """Return a line with no job's own id, and without what only machines that are containers say."""
    return JOB.sub("JOB", line).replace(" and end when this container stops", "")
