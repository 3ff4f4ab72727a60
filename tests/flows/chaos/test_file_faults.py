"""A disk that fails once, at any operation of a job: nothing computed is lost, and every error says the cause.

KINETIC_TEST_SAMPLE_SEED draws which of the places run; `make nightly` has all.
"""

from __future__ import annotations

import errno
import os
import random
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import last_json

PLACES = 24
SEED = int(
    os.environ.get("KINETIC_FAULT_SEED") or int(os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:6], 16)
)
SHORT_WRITE = -1
KINDS = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, SHORT_WRITE]

JOB = """
    import json
    import sys
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(number):
        print("a line of the log")
        return {"number": number * 2, "bytes": b"x" * 300_000}

    def told(what):
        try:
            value = what()
            return {"value": value["number"]} if isinstance(value, dict) else {"job": value.job_id}
        except kinetic.errors.KineticError as error:
            return {"error": type(error).__name__, "message": str(error)}
        except Exception as error:
            return {"foreign": repr(error)}

    if __name__ == "__main__":
        found = told(lambda: work.run_async(21)) if sys.argv[1] == "submit" else {"job": sys.argv[1]}
        if "job" in found:
            found |= told(lambda: kinetic.attach(found["job"]).result(timeout=60, cleanup=False))
        print(json.dumps(found))
"""


class Disk:
    """The control page of the library: how many operations have passed, and which one fails with what."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.arm(0, 0)

    def arm(self, number: int, error: int) -> None:
        with open(self._path, "r+b" if self._path.exists() else "wb") as file:  # in place: processes have it mapped
            file.write(struct.pack("lll", 0, number, error))

    @property
    def passed(self) -> int:
        return int(struct.unpack("lll", self._path.read_bytes())[0])


@pytest.fixture
def disk(project: Any, home: Path, preloaded: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> Disk:
    project.write("job.py", JOB)
    found = Disk(tmp_path / "control")
    monkeypatch.setenv("LD_PRELOAD", preloaded("file_faults", CONTROL_FILE=str(tmp_path / "control"), FOLDER=str(home)))
    return found


def tell(project: Any, word: str) -> dict[str, Any]:
    done = project.run("job.py", word, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return dict(last_json(done.stdout))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("place", [pytest.param(number, id=f"seed {SEED}, place {number}") for number in range(PLACES)])
def test_a_disk_that_fails_once_loses_no_accepted_job_and_is_named(project: Any, disk: Disk, place: int) -> None:
    print(f"KINETIC_FAULT_SEED={SEED}")
    draw = random.Random(SEED * 1000 + place)
    warm = place % 2 == 1  # every second time in a home that was used before
    if warm:
        assert tell(project, "submit")["value"] == 42
        disk.arm(0, 0)
    clean = tell(project, "submit")
    count = disk.passed
    assert clean["value"] == 42
    assert count > 20  # otherwise the library does not see what we do

    number, error = draw.randint(1, count), draw.choice(KINDS)
    disk.arm(number, error)
    found = tell(project, "submit")
    disk.arm(0, 0)

    cause = "a short write" if error == SHORT_WRITE else os.strerror(error)
    where = f"operation {number} of {count}: {cause}: {found}"
    assert "foreign" not in found, where
    assert "pickle" not in found.get("message", "").replace("cloudpickle", ""), where  # its file may be named
    if "value" not in found and "job" in found:
        found = tell(project, found["job"])
        where += f", then {found}"
    if "value" in found:
        assert found["value"] == 42, where
    else:
        assert cause in found["message"] or "space" in found["message"] or "disk" in found["message"], where
    assert tell(project, "submit")["value"] == 42, where  # and the home is as good as before
