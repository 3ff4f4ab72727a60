"""Packages unpacked from the store: verified before anything is opened, and never outside their folder."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from servers.wheels import made_wheel

from kinetic._images import layers
from kinetic._images.layers import Layer, Wheel
from kinetic._runner.pod import install, unpacked_layers
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


def test_of_layers_that_are_unpacked_side_by_side_the_last_one_counts_for_every_file(unpack) -> None:
    names = [f"{PACKAGES}/part_{number}.py" for number in range(200)]

    folder = unpack(*([file(name, f"VALUE = {layer}".encode()) for name in names] for layer in range(6)))

    assert {(folder / name).read_bytes() for name in names} == {b"VALUE = 5"}
    assert len([*(folder / PACKAGES).iterdir()]) == len(names)


def test_a_layer_of_wheels_is_unpacked_to_the_files_of_the_wheels(tmp_path: Path) -> None:
    files = {
        "plain/__init__.py": b"VALUE = 1\n",
        "plain/empty.py": b"",
        f"plain/{'long' * 30}/{'name' * 30}.py": b"deep",
        "plain/large.bin": os.urandom(1_000_003),
        "plain/zeros.bin": bytes(3_000_001),
        "plain/block.bin": b"x" * 512,
    }
    wheel = made_wheel(tmp_path / "index", "plain", "1.0", files)
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("plain/stored.bin", stored := os.urandom(200_000))
    about = Wheel("plain", "1.0", wheel.name, "0" * 64, wheel.stat().st_size, "")
    with (tmp_path / "layer").open("wb") as sink:
        layers.write_layer(Layer((about,), PACKAGES.split("/")[4].removeprefix("python")), lambda _: wheel, sink)

    unpacked_layers.Unpacker(tmp_path / "folder").unpack(tmp_path / "layer", 0)

    found = tmp_path / "folder" / PACKAGES
    assert {path: (found / path).read_bytes() for path in files} == files
    assert (found / "plain/stored.bin").read_bytes() == stored


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_layer_that_ends_too_early_is_refused(tmp_path: Path, share: float) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info, data = file(f"{PACKAGES}/large.bin", os.urandom(100_000))
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    whole = buffer.getvalue()
    (tmp_path / "layer").write_bytes(whole[: int(len(whole) * share)])

    with pytest.raises(ValueError, match="cut off"):
        unpacked_layers.Unpacker(tmp_path / "folder").unpack(tmp_path / "layer", 0)


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
    with pytest.raises(IntegrityError, match="could not be unpacked") as caught:
        unpack([entry])

    assert "which it must not" in str(caught.value.why)

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
