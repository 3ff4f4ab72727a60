"""Packages unpacked from the store: verified before anything is opened, and never outside their folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from kinetic._runner.pod import install
from kinetic._stores.files import FileStore
from kinetic._wire import documents
from kinetic._wire.order import Artifact
from kinetic.errors import IntegrityError

PACKAGES = f"opt/kinetic/env/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take back what unpacking changes for this process and its children."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("PYTHONPATH", "")
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture
def unpack(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that unpacks layers, each a list of tar entries, and returns the folder."""
    store, base = FileStore(tmp_path / "store"), tmp_path / "base"
    base.mkdir()

    def run(*layers: list[tuple[tarfile.TarInfo, bytes]], change: Callable[[bytes], bytes] = bytes) -> Path:
        listed = []
        for entries in layers:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
                for info, data in entries:
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
            data = buffer.getvalue()
            sha256 = hashlib.sha256(data).hexdigest()
            store.put(f"data/layers/{sha256}", change(data))
            listed.append({"key": f"data/layers/{sha256}", "sha256": sha256, "size": len(data)})
        artifact = Artifact.within(documents.write({"layers": listed}))
        install.install_requirements(store, {"layers": asdict(artifact)}, base)
        return base / "layers"

    return run


def file(path: str, data: bytes = b"", mode: int = 0o644) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.mode = mode
    return info, data


def special(path: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = kind, target
    return info, b""


def test_what_was_unpacked_can_be_imported_here_and_in_children_and_its_programs_run(unpack) -> None:
    script = b"#!/opt/kinetic/env/bin/python\nimport theirs_of_a_test\nprint(theirs_of_a_test.VALUE)\n"

    unpack(
        [special("opt", tarfile.DIRTYPE), file(f"{PACKAGES}/theirs_of_a_test.py", b"VALUE = 1")],
        [file("opt/kinetic/env/bin/their-program", script, 0o755)],
    )

    done = subprocess.run(["their-program"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert __import__("theirs_of_a_test").VALUE == 1


def test_of_two_layers_with_the_same_file_the_later_one_counts(unpack) -> None:
    folder = unpack([file(f"{PACKAGES}/both.py", b"first")], [file(f"{PACKAGES}/both.py", b"second")])

    assert (folder / PACKAGES / "both.py").read_bytes() == b"second"


@pytest.mark.parametrize(
    "entry",
    [
        file("../outside"),
        file("/absolute"),
        file(f"{PACKAGES}/../../../../../../../outside"),
        special(f"{PACKAGES}/link", tarfile.SYMTYPE, "/etc"),
        special(f"{PACKAGES}/hard", tarfile.LNKTYPE, f"{PACKAGES}/x"),
        special(f"{PACKAGES}/device", tarfile.CHRTYPE),
        special(f"{PACKAGES}/pipe", tarfile.FIFOTYPE),
    ],
    ids=["above", "absolute", "inner above", "link", "hard link", "device", "pipe"],
)
def test_an_entry_that_leads_elsewhere_or_is_no_file_is_refused(unpack, tmp_path: Path, entry) -> None:
    with pytest.raises(IntegrityError, match="which it must not"):
        unpack([entry])

    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "base" / "outside").exists()
    assert not Path("/absolute").exists()


def test_bytes_that_differ_from_the_list_are_never_unpacked(unpack, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="it was not unpacked"):
        unpack([file(f"{PACKAGES}/theirs.py", b"VALUE = 1")], change=lambda data: data[:-1] + b"!")

    assert [*(tmp_path / "base" / "layers").rglob("*")] == []


def test_a_list_that_differs_from_the_task_is_never_read(tmp_path: Path) -> None:
    store, data = FileStore(tmp_path / "store"), documents.write({"layers": []})
    artifact = Artifact(hashlib.sha256(data).hexdigest(), len(data), key="data/requirements/list")
    store.put(artifact.key, data.replace(b"[]", b"{}"))

    with pytest.raises(IntegrityError):
        install.install_requirements(store, {"layers": asdict(artifact)}, tmp_path)
