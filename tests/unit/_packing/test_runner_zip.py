"""The runner as one file: the same bytes each time, small enough for a ConfigMap, and complete."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kinetic._packing import runner_zip
from kinetic.errors import PackingError

BUILD = "import hashlib; from kinetic._packing import runner_zip; print(runner_zip.build().sha256)"
SOURCE = Path(runner_zip.__file__).parents[2]


def test_two_builds_are_the_same_bytes() -> None:
    surroundings = [{"PYTHONPATH": str(SOURCE), "TZ": zone} for zone in ("UTC", "Asia/Tokyo")]
    built = [subprocess.run([sys.executable, "-c", BUILD], env=each, stdout=-1, check=True) for each in surroundings]

    assert built[0].stdout == built[1].stdout


def test_its_name_is_its_digest(tmp_path: Path) -> None:
    path = runner_zip.write(tmp_path)

    assert hashlib.sha256(path.read_bytes()).hexdigest() == runner_zip.build().sha256
    assert runner_zip.build().sha256[:24] in path.name


def test_it_fits_into_a_config_map_with_room_to_grow() -> None:
    assert len(runner_zip.build().data) < 800_000


def test_it_holds_the_package_without_its_faces_and_the_pickler() -> None:
    names = zipfile.ZipFile(io.BytesIO(runner_zip.build().data)).namelist()

    assert {"__main__.py", "worker.py", "kinetic/__init__.py", "kinetic/_runner/pod/parent.py"} <= set(names)
    assert "cloudpickle/cloudpickle.py" in names
    assert not [name for name in names if name.startswith(("kinetic/_cli", "kinetic/_dashboard", "kinetic/_cluster"))]
    assert names == sorted(names)


def test_one_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_zip, "_built", [])
    monkeypatch.setattr(runner_zip, "MOST_BYTES", 1000)

    with pytest.raises(PackingError, match="too large"):
        runner_zip.build()
