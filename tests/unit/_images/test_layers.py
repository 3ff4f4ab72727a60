"""Layers written from wheels: what is in them, and that everybody writes the same bytes."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import posixpath
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from servers.wheels import made_wheel, wheel_of

import kinetic
from kinetic._images import layers
from kinetic._images.layers import Layer, Wheel
from kinetic.errors import ImageError

PACKAGES = f"{layers.PREFIX}/lib/python3.12/site-packages"


def written(*files: Path) -> tuple[layers.WrittenLayer, dict[str, tarfile.TarInfo], dict[str, bytes]]:
    """Write a layer of these wheels; return it, and what is in it."""
    by_hash = {wheel_of(file).sha256: file for file in files}
    sink = io.BytesIO()
    found = layers.write_layer(Layer(tuple(map(wheel_of, files)), "3.12"), lambda each: by_hash[each.sha256], sink)
    plain = gzip.decompress(sink.getvalue())
    assert found.digest == f"sha256:{hashlib.sha256(sink.getvalue()).hexdigest()}"
    assert found.diff_id == f"sha256:{hashlib.sha256(plain).hexdigest()}"
    assert found.size_bytes == len(sink.getvalue())
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        members = {member.name: member for member in archive}
        contents = {name: archive.extractfile(name).read() for name, member in members.items() if member.isfile()}
    return found, members, contents


def test_files_of_a_wheel_go_where_pip_would_put_them(tmp_path: Path) -> None:
    file = made_wheel(
        tmp_path,
        "alpha",
        "1.0",
        {
            "alpha/__init__.py": "x = 1\n" * 1000,
            "alpha-1.0.data/purelib/pure.py": "",
            "alpha-1.0.data/scripts/run": "#!python\nprint(1)\n",
            "alpha-1.0.data/scripts/shell": "#!/bin/sh\n",
            "alpha-1.0.data/data/share/alpha.txt": "text",
            "alpha-1.0.data/headers/alpha.h": "int x;",
            "entry": "[console_scripts]\nalpha = alpha:main\nAlpha2 = alpha.cli:app.run [extra]\n[other]\nno = a:b\n",
        },
    )

    _, members, contents = written(file)

    python = f"#!/{layers.PREFIX}/bin/python\n".encode()
    assert contents[f"{PACKAGES}/alpha/__init__.py"] == b"x = 1\n" * 1000
    assert f"{PACKAGES}/pure.py" in contents
    assert contents[f"{layers.PREFIX}/bin/run"] == python + b"print(1)\n"
    assert contents[f"{layers.PREFIX}/bin/shell"] == b"#!/bin/sh\n"
    assert contents[f"{layers.PREFIX}/share/alpha.txt"] == b"text"
    assert f"{layers.PREFIX}/include/site/python3.12/alpha/alpha.h" in contents
    assert b"from alpha.cli import app\nsys.exit(app.run())" in contents[f"{layers.PREFIX}/bin/Alpha2"]
    assert f"{layers.PREFIX}/bin/no" not in contents
    assert all(members[f"{layers.PREFIX}/bin/{name}"].mode == 0o755 for name in ("run", "shell", "alpha"))
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
    assert members[PACKAGES].isdir()


def test_a_path_that_two_wheels_bring_is_named_where_the_contents_differ(tmp_path: Path) -> None:
    first = made_wheel(tmp_path, "alpha", "1.0", {"shared/__init__.py": "", "twin.py": "1"})
    second = made_wheel(tmp_path, "beta", "1.0", {"shared/__init__.py": "", "twin.py": "2"})

    found, _, contents = written(first, second)

    assert layers.conflicts([found]) == [(f"{PACKAGES}/twin.py", "beta")]
    assert contents[f"{PACKAGES}/twin.py"] == b"2"


def test_a_path_in_two_layers_is_named_with_the_wheel_of_the_upper_one(tmp_path: Path) -> None:
    files = [made_wheel(tmp_path, name, "1.0", {"same.py": "", "twin.py": name}) for name in ("gamma", "alpha", "beta")]

    found = layers.conflicts(written(file)[0] for file in files)

    assert found == [(f"{PACKAGES}/twin.py", "beta")]


def rows(record: bytes) -> dict[str, tuple[str, str]]:
    return {path: (digest, size) for path, digest, size in csv.reader(io.StringIO(record.decode()))}


def test_record_lists_what_is_there_and_where_with_the_programs_and_the_installer(tmp_path: Path) -> None:
    file = made_wheel(
        tmp_path,
        "alpha",
        "1.0",
        {
            "alpha/__init__.py": "x = 1\n",
            'alpha/a, "b".txt': "odd",
            "alpha-1.0.data/scripts/run": "#!python\nprint(1)\n",
            "alpha-1.0.data/data/share/alpha.txt": "text",
            "alpha-1.0.data/headers/alpha.h": "int x;",
            "entry": "[console_scripts]\nalpha = alpha:main\n",
            "alpha-1.0.dist-info/INSTALLER": "somebody else",
        },
    )

    _, _, contents = written(file)

    found = rows(contents[f"{PACKAGES}/alpha-1.0.dist-info/RECORD"])
    there = {posixpath.relpath(path, PACKAGES): data for path, data in contents.items()}
    assert found.pop("alpha/__pycache__/__init__.cpython-312.pyc") == ("", "")  # in another layer
    assert found.keys() == there.keys()
    assert {"../../../bin/alpha", "../../../bin/run", "../../../share/alpha.txt", 'alpha/a, "b".txt'} < found.keys()
    assert contents[f"{PACKAGES}/alpha-1.0.dist-info/INSTALLER"] == b"kinetic\n"
    assert found.pop("alpha-1.0.dist-info/RECORD") == ("", "")
    for path, (digest, size) in found.items():
        wanted = base64.urlsafe_b64encode(hashlib.sha256(there[path]).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={wanted}", len(there[path])), path


@pytest.mark.parametrize("record", [None, b"", b"\xff\xfe", b'"never closed\n'])
def test_a_wheel_whose_record_says_nothing_gets_one_with_paths(tmp_path: Path, record: bytes | None) -> None:
    file = tmp_path / "alpha-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("alpha.py", b"")
        archive.writestr("alpha-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: alpha\nVersion: 1.0\n")
        if record is not None:
            archive.writestr("alpha-1.0.dist-info/RECORD", record)

    _, _, contents = written(file)

    found = rows(contents[f"{PACKAGES}/alpha-1.0.dist-info/RECORD"])
    assert found["alpha.py"] == ("", "")
    assert found["alpha-1.0.dist-info/INSTALLER"][1] == "8"


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "alpha-1.0.data/elsewhere/x"])
def test_a_wheel_that_would_write_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    file = made_wheel(tmp_path, "alpha", "1.0", {name: "x"})

    with pytest.raises(ImageError, match="could not be written"):
        written(file)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    file = made_wheel(tmp_path, "alpha", "1.0", {"alpha.py": "x" * 100_000})
    data = bytearray(file.read_bytes())
    data[60] ^= 0xFF
    file.write_bytes(bytes(data))

    with pytest.raises(ImageError, match="could not be written"):
        written(file)


def test_a_layer_of_stored_and_empty_files_is_a_valid_archive(tmp_path: Path) -> None:
    file = tmp_path / "alpha-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("alpha.py", b"y" * 200_000)
        archive.writestr("empty.py", b"")

    _, _, contents = written(file)

    assert contents == {f"{PACKAGES}/alpha.py": b"y" * 200_000, f"{PACKAGES}/empty.py": b""}


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_python_writes_the_same_bytes(tmp_path: Path, version: str) -> None:
    program = shutil.which(f"python{version}")
    environ = {"PYENV_VERSION": version, "PATH": "/root/.pyenv/shims:/usr/local/bin:/usr/bin:/bin"}
    if not program or subprocess.run([program, "-V"], env=environ, capture_output=True, check=False).returncode:
        pytest.skip(f"there is no Python {version} here")
    files = [
        made_wheel(
            tmp_path,
            name,
            "1.0",
            {
                **{f"{name}/{n}.py": f"x = {n}\n" * n for n in range(50)},
                f'{name}/"quoted", with a comma.txt': "",
                "entry": f"[console_scripts]\n{name} = {name}:main\n",
            },
        )
        for name in "ab"
    ]
    code = """
import hashlib, io, json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from kinetic._images.layers import Layer, Wheel, write_layer
files = [Path(name) for name in sys.argv[2:]]
wheels = tuple(Wheel(p.name[0], "1", p.name, hashlib.sha256(p.read_bytes()).hexdigest(), 0, str(p)) for p in files)
found = write_layer(Layer(wheels, "3.12"), lambda wheel: Path(wheel.url), io.BytesIO())
print(json.dumps([found.digest, found.diff_id]))
"""
    source = str(Path(kinetic.__file__).parents[1])
    words = [program, "-I", "-c", code, source, *map(str, files)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)

    here = written(*files)[0]
    assert json.loads(done.stdout) == [here.digest, here.diff_id], sys.version


def test_a_wheel_stays_in_its_layer_when_others_come_and_go() -> None:
    def wheel(name: str, size: int = 1000) -> Wheel:
        return Wheel(name, "1", f"{name}.whl", hashlib.sha256(name.encode()).hexdigest(), size, "")

    small = [wheel(f"small{number}") for number in range(40)]
    large = [wheel("jaxlib", 87_000_000), wheel("libtpu", 214_000_000)]

    before = layers.group_into_layers([*small, *large], "3.12")
    after = layers.group_into_layers([*small, *large, wheel("added")], "3.12")

    assert [layer.wheels[0].name for layer in before[:2]] == ["libtpu", "jaxlib"]
    assert len(before) == 2 + layers.SHARED_LAYERS
    assert len({layer.key for layer in after} - {layer.key for layer in before}) == 1


@pytest.mark.parametrize("large", [3, 20])
def test_bytecode_is_in_the_order_of_the_wheels_so_both_are_of_the_wheel_that_wins(large: int) -> None:
    wheels = [Wheel(f"w{n}", "1", "", f"{n:064}", (5_000_000 if n < large else 5_000) + n, "") for n in range(60)]

    order = [wheel for layer in layers.group_into_layers(wheels, "3.12") for wheel in layer.wheels]

    assert [wheel for group in layers.group_for_bytecode(wheels) for wheel in group] == order


def test_a_small_wheel_shares_no_layer_with_a_large_one_not_even_of_bytecode() -> None:
    wheels = [Wheel(f"w{n}", "1", "", f"{n:064}", 5_000_000 if n % 2 else 5_000, "") for n in range(100)]

    for groups in ([layer.wheels for layer in layers.group_into_layers(wheels[:50], "3.12")],
                   layers.group_for_bytecode(wheels[:50])):  # fmt: skip
        assert all(len({wheel.size_bytes for wheel in group}) == 1 for group in groups)
        assert sorted(wheel for group in groups for wheel in group) == sorted(wheels[:50])
