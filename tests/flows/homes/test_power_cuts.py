"""A power cut leaves only what was forced to the disk: every job that was accepted until then survives it, or says why.

A job that was seen to have ended has the same outcome after the cut, and no function starts a second time.

A small library, compiled here and loaded before all others, copies each file and each folder's names when they are
synced. From these copies alone a home is made as it would be after a cut at any place of that record, stricter than a
real file system is: a file that was never synced is empty, and a name whose folder was never synced is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic

SEED = 20261122

RECORDED = """
    import os
    import sys
    import kinetic

    def note(line):
        log = os.open(sys.argv[1] if len(sys.argv) > 1 else os.environ["NOTES"], os.O_WRONLY | os.O_APPEND)
        os.write(log, f"{line}\\n".encode())
        os.close(log)

    @kinetic.run(accelerator="cpu", capture_env_vars=["NOTES"])
    def add(a, b):
        note(f"B {os.environ['KINETIC_JOB_ID']}")
        return a + b

    @kinetic.run(accelerator="cpu")
    def fail():
        raise ValueError("theirs")

    if __name__ == "__main__":
        jobs = []
        for number in range(4):
            jobs.append(add.run_async(number, 1) if number != 2 else fail.run_async())
            note(f"A {jobs[-1].job_id}")  # accepted: from here on it must not be lost
        batch = add.run_async_map([(number, 1) for number in range(4, 7)], max_concurrent=None)
        for job in batch.jobs:
            note(f"A {job.job_id}")
        for job in [*jobs, *batch.jobs]:
            job.wait()
            note(f"E {job.job_id}")  # seen to have ended: from here on its outcome must not change
"""

# After each cut a process of its own asks for every job that had been accepted. Forked, so that imports cost once.
ASKING = """
import json, os, sys
import kinetic
import time
from kinetic._backends.local import backend, recovery  # loaded here, and not in every child
from kinetic._jobs import collect as removing, results as reading, wait as waiting

recovery._boot_time = time.time  # the machine has been started again

def told(job):
    try:
        return ["value", kinetic.attach(job).result(timeout=60, cleanup=False)]
    except Exception as error:
        return [type(error).__name__, str(error)]

for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        print(json.dumps({job: told(job) for job in json.loads(line)}), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


class Disk:
    """What was synced, in order: ``("F" or "D", inode, copy)``, and among it ``("A", "B" or "E", job id)``.

    A job was accepted, its function began, and it was seen to have ended.
    """

    def __init__(self, log: Path) -> None:
        self.log, self.copies = log, log.with_name(log.name + ".d")
        self.events = self._lines()
        self._asked = len(self.events)

    def _lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def named(self, kind: str, place: int) -> list[str]:
        return [words[1] for words in self.events[:place] if words[0] == kind]

    def began_since(self) -> list[str]:
        """Return the jobs whose functions began after this was asked last."""
        lines = self._lines()
        before, self._asked = self._asked, len(lines)
        return [words[1] for words in lines[before:] if words[0] == "B"]

    def restore(self, place: int, base: Path, inode: str) -> None:
        """Make everything below a folder as it was durable at a place."""
        durable = {words[1]: self.copies / words[2] for words in self.events[:place] if words[0] in "FD"}
        self._fill(base, inode, durable)

    def _fill(self, folder: Path, inode: str, durable: dict[str, Path]) -> None:
        folder.mkdir(mode=0o700)
        names = durable[inode].read_text().splitlines() if inode in durable else []
        for kind, number, name in (line.split(" ", 2) for line in names):
            if kind == "d":
                self._fill(folder / name, number, durable)
            elif kind == "p":
                os.mkfifo(folder / name, 0o600)
            elif number in durable:
                shutil.copyfile(durable[number], folder / name)
                (folder / name).chmod(0o600)
            else:
                (folder / name).touch(0o600)


def compiled(folder: Path, base: Path, log: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a C compiler on Linux is needed to record what is synced")
    target, source = folder / "synced.so", Path(__file__).with_name("synced.c")
    words = [compiler, "-shared", "-fPIC", "-O1", f'-DBASE="{base}"', f'-DLOG="{log}"', str(source), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the C compiler here cannot build the recorder: {done.stderr.splitlines()[:1]}")
    return target


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [10, pytest.param(100, marks=pytest.mark.nightly)])  # 1 s each on an idle machine
def test_every_accepted_job_survives_a_power_cut_at_any_place_or_says_why(
    count: int, project: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, living_processes
) -> None:
    base = tmp_path / "disk"
    base.mkdir()
    log = tmp_path / "log"
    log.touch()
    (tmp_path / "log.d").mkdir()
    recorder = compiled(tmp_path, base, log)
    monkeypatch.setenv("KINETIC_HOME", str(base / "home"))
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    project.write("recorded.py", RECORDED)
    monkeypatch.setenv("NOTES", str(log))
    monkeypatch.setenv("LD_PRELOAD", str(recorder))
    done = project.run("recorded.py", str(log))
    monkeypatch.delenv("LD_PRELOAD")
    assert done.returncode == 0, done.stderr
    end(base / "home", living_processes)
    disk = Disk(log)
    first = next(place for place, words in enumerate(disk.events) if words[0] == "A") + 1
    synced = [words[1] for words in disk.events if words[0] == "D"]
    root = next((inode for inode in synced if inode.startswith(f"{base.stat().st_ino}-")), "")
    base.rename(tmp_path / "before")

    chosen = random.Random(SEED)
    places = sorted({chosen.randint(first, len(disk.events)) for _ in range(count)})
    project.write("asking.py", ASKING)
    asking = subprocess.Popen(
        [sys.executable, str(project.root / "asking.py")],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    lost = []
    for place in places:
        disk.restore(place, base, root)
        accepted, ended = disk.named("A", len(disk.events)), disk.named("E", place)
        asking.stdin.write(json.dumps(disk.named("A", place)) + "\n")
        asking.stdin.flush()
        for job, (what, value) in json.loads(asking.stdout.readline()).items():
            if not is_told(accepted.index(job), what, value, has_ended=job in ended):
                lost.append(f"place {place} of {len(disk.events)}: {job}: {what}: {value}")
        end(base / "home", living_processes)
        began = [*disk.named("B", place), *disk.began_since()]
        lost += [f"place {place}: {job} began {began.count(job)} times" for job in set(began) if began.count(job) > 1]
        shutil.rmtree(base)
    asking.communicate(timeout=10)

    assert len(places) > count / 3
    assert not lost, "\n".join(lost)


def is_told(number: int, what: str, value: Any, *, has_ended: bool) -> bool:
    """Return whether a job has its value or its own failure, or was lost before anybody saw its end."""
    if not has_ended and what == "JobError" and "was killed" in value and "[lost]" in value:
        return True
    return what == "ValueError" if number == 2 else [what, value] == ["value", number + 1]


def end(home: Path, living_processes: Any) -> None:
    for _ in range(500):
        found = living_processes(home)
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
