"""What tools that know installed packages see in an environment of layers: importlib.metadata, uv and pip."""

from __future__ import annotations

import io
import json
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.wheels import made_wheel, wheel_of

from kinetic._images import bytecode, layers
from kinetic._images.layers import Layer
from kinetic._wire import python_runtime

pytestmark = pytest.mark.timeout(120)  # pip starts slowly from its wheel
PYTHON = ".".join(platform.python_version_tuple()[:2])
FILES = """
import importlib.metadata as metadata, json
about = metadata.distribution("alpha")
print(json.dumps({
    "files": sorted(str(file) for file in about.files),
    "missing": [str(file) for file in about.files if not file.locate().exists()],
    "installer": about.read_text("INSTALLER").strip(),
}))
"""

MARK = "-- next --"
PIP = f"""
import json, sys
sys.path.insert(0, sys.argv[1])
from pip._internal.cli.main import main
for words in json.loads(sys.argv[2]):
    main(words)
    print({MARK!r}, end="", flush=True)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder in which layers were unpacked: an environment of this Python, with bytecode and two packages."""
    files = [
        made_wheel(
            tmp_path / "index",
            "alpha",
            "1.0",
            {
                "alpha/__init__.py": "def main(): print('alpha runs')\n",
                "alpha-1.0.data/data/share/alpha/table.txt": "a table",
                "alpha-1.0.data/scripts/run-alpha": "#!python\nprint('script')\n",
                "entry": "[console_scripts]\nalpha = alpha:main\n",
            },
            needs="beta>=1",
        ),
        made_wheel(tmp_path / "index", "beta", "2.0", {"beta.py": "x = 1\n"}),
    ]
    by_hash = {wheel_of(file).sha256: file for file in files}
    bytecode.compile_wheels(files, f"/{layers.PREFIX}/lib/python{PYTHON}/site-packages")
    zips, packages = [*map(bytecode.path_for, files)], f"{layers.PREFIX}/lib/python{PYTHON}/site-packages"
    wheels = tuple(map(wheel_of, files))
    home = str(Path(sys.base_prefix) / "bin")
    for write in (
        lambda sink: layers.write_environment(PYTHON, home, sink),
        lambda sink: layers.write_layer(Layer(wheels, PYTHON), lambda each: by_hash[each.sha256], sink),
        lambda sink: layers.write_zips(zips, packages, sink),
    ):
        sink = io.BytesIO()
        write(sink)
        with tarfile.open(fileobj=io.BytesIO(sink.getvalue()), mode="r:gz") as archive:
            archive.extractall(tmp_path / "root", filter="tar")
    return tmp_path / "root"


@pytest.fixture
def python(root: Path) -> Path:
    return root / layers.PREFIX / "bin/python"


def output_of(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def pip(python: Path) -> Callable[..., list[str]]:
    """Return a function that runs commands of the pip of this Python's own ensurepip, on the environment."""
    found = sorted((Path(sysconfig.get_path("stdlib")) / "ensurepip/_bundled").glob("pip-*.whl"))
    if not found:
        pytest.skip("this Python has no pip")

    def run(*commands: str) -> list[str]:
        words = [[*command.split(), "--disable-pip-version-check"] for command in commands]
        return output_of(python, "-c", PIP, found[-1], json.dumps(words)).split(MARK)

    return run


def left(root: Path, name: str) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if name in path.name)


def test_importlib_finds_every_file_of_a_package_where_it_is(python: Path) -> None:
    found = json.loads(output_of(python, "-c", FILES))

    assert found["missing"] == []
    assert found["installer"] == "kinetic"
    assert {"../../../bin/alpha", "../../../bin/run-alpha", "../../../share/alpha/table.txt"} < {*found["files"]}


def test_pip_lists_checks_and_uninstalls_what_layers_brought(root: Path, pip: Callable[..., list[str]]) -> None:
    listing, checked, shown, removed, _ = pip("list -v --format json", "check", "show -f alpha", "uninstall -y alpha")
    listed = {each["name"]: (each["version"], each["installer"]) for each in json.loads(listing)}

    assert listed == {"alpha": ("1.0", "kinetic"), "beta": ("2.0", "kinetic")}
    assert "No broken requirements found" in checked
    assert "../../../bin/alpha" in shown
    assert "Successfully uninstalled alpha-1.0" in removed
    assert [path for path in left(root, "alpha") if not (root / path).is_dir()] == []
    assert left(root, "beta")


def test_uv_lists_checks_and_uninstalls_what_layers_brought(root: Path, python: Path) -> None:
    uv = python_runtime.find_installer() or shutil.which("uv")
    if not uv:
        pytest.skip("there is no uv here")
    listed = json.loads(output_of(uv, "pip", "list", "--python", python, "--format", "json").splitlines()[0])
    checked = output_of(uv, "pip", "check", "--python", python)
    removed = output_of(uv, "pip", "uninstall", "--python", python, "alpha")

    assert {each["name"]: each["version"] for each in listed} == {"alpha": "1.0", "beta": "2.0"}
    assert "compatible" in checked
    assert "alpha==1.0" in removed
    assert [path for path in left(root, "alpha") if not (root / path).is_dir()] == []
    assert left(root, "beta")


def test_a_version_that_uv_installs_over_that_of_the_layers_is_the_one_that_runs(python: Path, tmp_path: Path) -> None:
    uv = python_runtime.find_installer() or shutil.which("uv")
    if not uv:
        pytest.skip("there is no uv here")
    newer = made_wheel(tmp_path / "newer", "beta", "3.0", {"beta.py": "x = 3\n"})

    output_of(uv, "pip", "install", "--python", python, "--no-index", "--no-deps", newer)

    assert output_of(python, "-c", "import beta; print(beta.x)").strip() == "3"
