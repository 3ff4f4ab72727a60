"""A folder store into which another user of this machine may write gives that user nothing.

The attacker is another user where the tests run as root (by setpriv), and another process of ours elsewhere.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534

JOB = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def act(how, begun, go):
        open(begun, "w").close()
        while not os.path.exists(go):
            time.sleep(0.01)
        if how == "leave":
            os._exit(0)
        if how == "raise":
            raise ValueError("of the job")
        return how

    if __name__ == "__main__":
        print(act.run_async(*sys.argv[1:]).job_id)
"""

COLLECT = """
    import sys
    import kinetic

    try:
        print("value", kinetic.attach(sys.argv[1]).result(timeout=60))
    except Exception as error:
        print("error", type(error).__name__, error)
"""


class Opened:
    """A pickle that runs code of the attacker's wherever it is opened."""

    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.sign),)


class Site:
    """A home whose store is a folder that everybody may write to."""

    def __init__(self, top: Path, project: Any) -> None:
        self.top, self.project = top, project
        self.store, self.sign, self.theirs = top / "store", top / "opened", top / "of the victim"
        self.begun, self.go = top / "begun", top / "go"
        project.write("job.py", JOB)
        project.write("collect.py", COLLECT)
        (self.store / ".tmp").mkdir(parents=True)
        for folder in (top, self.store, self.store / ".tmp"):
            folder.chmod(0o777)
        self.theirs.write_text("precious")

    def submit(self, how: str, number: int = 0) -> str:
        done = self.project.run("job.py", how, f"{self.begun}{number}", f"{self.go}{number}")
        assert done.returncode == 0, done.stderr
        return str(done.stdout.split()[-1])

    def collect(self, job: str) -> str:
        done = self.project.run("collect.py", job)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def attack(self, code: str, *words: object) -> subprocess.Popen[str]:
        """Run code as the other user."""
        rights = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.getuid() == 0 else []
        evil = pickle.dumps(Opened(self.sign)).hex()
        head = (
            f"import json, os, sys, time\nstore, evil, words = {str(self.store)!r}, bytes.fromhex({evil!r}), sys.argv\n"
        )
        python = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
        return subprocess.Popen(
            [*rights, python, "-I", "-c", head + textwrap.dedent(code), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
        )


@pytest.fixture
def site(project: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    if os.getuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("there is no setpriv here to be another user with")
    top = Path(tempfile.mkdtemp(prefix="kinetic-test-", dir="/tmp"))  # pytest's own folders are closed to others
    monkeypatch.setenv("KINETIC_STORE", f"file://{top}/store")
    yield Site(top, project)
    shutil.rmtree(top)


LAST_WORDS = """
    import hashlib
    word = {"status": "succeeded", "cause": "value", "body_length": len(evil), "error": {}, "phase": "execute",
            "body_sha256": hashlib.sha256(evil).hexdigest(), "value_type": "theirs"}
    for stem in (f"{words[1]}.0", f"{words[1]}.0.0", f"{words[1]}"):
        said = json.dumps(word).encode()
        for ending, data in ((".body", evil), (".meta", said), (".word", said)):
            with open(f"{store}/.tmp/{stem}{ending}", "wb") as file:
                file.write(data)
            os.chmod(f"{store}/.tmp/{stem}{ending}", 0o666)
    print("planted")
"""


def test_a_forged_last_word_in_the_store_is_not_believed(site: Site, wait_until: Callable[..., None]) -> None:
    job = site.submit("leave")
    wait_until(Path(f"{site.begun}0").exists, "the beginning of the job")
    planted, trouble = site.attack(LAST_WORDS, job).communicate()
    Path(f"{site.go}0").touch()

    told = site.collect(job)

    assert planted == "planted\n", trouble
    assert told.startswith("error JobError"), told
    assert "exit code 0" in told
    assert not site.sign.exists(), "code of the attacker ran"


LINKS = """
    for stem in (f"{words[1]}.0", f"{words[1]}.0.0"):
        for ending in (".body", ".meta", ".meta.part", ".reserve", ".word"):
            os.symlink(words[2], f"{store}/.tmp/{stem}{ending}")
    print("planted")
"""


def test_links_in_the_store_let_nobody_overwrite_a_file(
    site: Site, wait_until: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    first, second = site.submit("first", 1), site.submit("second", 2)  # the second one waits, and its id is known
    wait_until(Path(f"{site.begun}1").exists, "the beginning of the first job")
    planted, trouble = site.attack(LINKS, second, site.theirs).communicate()
    for number in (1, 2):
        Path(f"{site.go}{number}").touch()

    told = [site.collect(first), site.collect(second)]

    assert planted == "planted\n", trouble
    assert told == ["value first\n", "value second\n"]
    assert site.theirs.read_text() == "precious"


SWAPS = """
    print("swapping", flush=True)
    while not os.path.exists(words[1]):
        for name in os.listdir(store + "/.tmp"):
            path = f"{store}/.tmp/{name}"
            try:
                if not name.endswith("-theirs") and words[2] in name:
                    with open(path + "-theirs", "wb") as file:
                        file.write(evil)
                    os.replace(path + "-theirs", path)
            except OSError:
                pass
"""


@pytest.mark.parametrize("how", ["raise", "a value"])
def test_whoever_swaps_files_that_are_being_written_runs_nothing(
    site: Site, how: str, wait_until: Callable[..., None]
) -> None:
    over = site.top / "over"
    job = site.submit(how)
    wait_until(Path(f"{site.begun}0").exists, "the beginning of the job")
    attacker = site.attack(SWAPS, over, job)
    assert attacker.stdout is not None
    attacker.stdout.readline()
    Path(f"{site.go}0").touch()

    told = site.collect(job)
    over.touch()
    attacker.communicate()

    assert told.startswith("error ValueError of the job" if how == "raise" else "value a value"), told
    assert not site.sign.exists(), "code of the attacker ran"


def test_nothing_of_a_job_s_result_has_a_name_in_the_store_before_it_is_there(
    site: Site, wait_until: Callable[..., None]
) -> None:
    job = site.submit("a value")
    wait_until(Path(f"{site.begun}0").exists, "the beginning of the job")

    while_it_runs = [path.name for path in (site.store / ".tmp").iterdir()]
    Path(f"{site.go}0").touch()
    told = site.collect(job)

    assert while_it_runs == []
    assert told == "value a value\n"
