"""Packages that a pod installs before its job begins."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest
from servers.wheels import environment_with_pip

from kinetic._wire import python_runtime
from kinetic._wire.order import Artifact
from kinetic._wire.task import FAILED_EXIT

from .conftest import SOURCE, Pods


def wheel(folder: Path, name: str, code: str, *requires: str, version: str = "1.0") -> Path:
    """Build a package by hand, as small as one can be."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", code)
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def image(pods: Pods, tmp_path: Path) -> Pods:
    """Pods whose Python is an environment of the test's own, which a job may install into, with uv on its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "image")], check=True)
    pods.python = str(tmp_path / "image" / "bin" / "python")
    binary = Path(importlib.import_module("uv").find_uv_bin()).parent
    pods.environ |= {"PATH": f"{binary}:{os.environ['PATH']}", "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}
    return pods


def requiring(pods: Pods, text: str) -> Pods:
    pods.tell(requirements=asdict(Artifact.within(text.encode())))
    return pods


def test_requirements_are_installed_before_the_function_is_opened(image: Pods, tmp_path: Path) -> None:
    file = wheel(tmp_path, "tiny_theirs", "ANSWER = 42")
    requiring(image, f"# theirs\n{file}\n").order("def ask():\n    import tiny_theirs\n    return tiny_theirs.ANSWER")

    code, out = image.run()

    assert code == 0, out
    assert image.value() == 42
    assert "tiny-theirs" in image.log()
    assert list((tmp_path / "image").rglob("tiny_theirs.py"))


def test_requirements_go_into_a_folder_of_the_job_where_the_image_is_closed(image: Pods, tmp_path: Path) -> None:
    file = wheel(tmp_path, "tiny_theirs", "ANSWER = 42")
    closed = tmp_path / "closed"
    closed.mkdir()
    lie = "import os\nreal = os.access\nos.access = lambda path, mode: mode != os.W_OK and real(path, mode)\n"
    (closed / "sitecustomize.py").write_text(lie)  # this user may write anywhere, as root may
    requiring(image, str(file)).order("""
        import subprocess, sys
        def ask():
            import tiny_theirs
            child = subprocess.run([sys.executable, "-c", "import tiny_theirs as t; print(t.ANSWER)"], stdout=-1)
            return tiny_theirs.ANSWER, int(child.stdout)
    """)

    code, out = image.run(PYTHONPATH=str(closed))

    assert code == 0, out
    assert image.value() == (42, 42)
    assert not list((tmp_path / "image").rglob("tiny_theirs.py"))


def test_a_constraint_limits_what_another_package_brings_and_installs_nothing_itself(
    image: Pods, tmp_path: Path
) -> None:
    wheel(tmp_path, "brought", "ANSWER = 1")
    wheel(tmp_path, "brought", "ANSWER = 2", version="2.0")
    wheel(tmp_path, "alone", "ANSWER = 3")
    file = wheel(tmp_path, "theirs", "from brought import ANSWER", "brought")
    lines = f"--no-index\n--find-links {tmp_path}\n{file}\n-c brought<2\n-c alone==1.0\n"
    requiring(image, lines).order("def ask():\n    import theirs\n    return theirs.ANSWER")

    code, out = image.run()

    assert code == 0, out
    assert image.value() == 1
    assert not list((tmp_path / "image").rglob("alone.py"))


def test_requirements_that_cannot_be_installed_are_a_verdict_with_its_phase(image: Pods, tmp_path: Path) -> None:
    requiring(image, f"{tmp_path}/missing-1.0-py3-none-any.whl").order("def one():\n    return 1")

    code, _ = image.run()

    assert code == FAILED_EXIT
    read = image.outcome()
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "dependency install", "dependency-install")
    assert "missing-1.0" in image.log()


def test_a_file_of_requirements_without_any_installs_nothing(pods: Pods) -> None:
    requiring(pods, "# none\n\n").order("def one():\n    return 1")

    code, out = pods.run(PATH="/nonexistent")

    assert code == 0, out


def test_other_requirements_than_the_submitted_ones_are_not_installed(image: Pods, tmp_path: Path) -> None:
    image.store.put("requirements.txt", b"changed")
    image.tell(requirements=asdict(Artifact("0" * 64, 7, key="requirements.txt")))
    image.order("def one():\n    return 1")

    code, _ = image.run()

    assert code == FAILED_EXIT
    assert (image.outcome().phase, image.outcome().error["code"]) == ("dependency install", "integrity")


def test_a_stranger_of_our_name_is_not_installed_into_a_pod_either(image: Pods, tmp_path: Path) -> None:
    wheel(tmp_path, "kinetic", "raise SystemExit('not ours')")
    file = wheel(tmp_path, "theirs", "ANSWER = 42", "kinetic>=1")
    lines = f"--no-index\n--find-links {tmp_path}\n{file}\n"
    requiring(image, lines).order("def ask():\n    import theirs\n    return theirs.ANSWER")

    code, out = image.run()

    assert code == 0, out
    assert image.value() == 42
    assert not list((tmp_path / "image").rglob("kinetic*"))


def test_a_stranger_of_our_name_in_the_image_is_named_and_not_imported(image: Pods, tmp_path: Path) -> None:
    packages = next((tmp_path / "image").rglob("site-packages"))
    with zipfile.ZipFile(wheel(tmp_path, "kinetic", "raise SystemExit('not ours')")) as file:
        file.extractall(packages)
    image.order("def ask():\n    import kinetic\n    return kinetic.__version__")

    code, out = image.run()

    assert code == 0, out
    assert f"another package named kinetic (kinetic 1.0 in {packages})" in out


INSTALLING = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from kinetic._runner.pod import install as requiring
print(requiring.uv(Path(sys.argv[2])))
"""


def test_an_image_without_uv_gets_exactly_the_one_that_was_tried_and_nothing_of_the_project_runs(
    tmp_path: Path,
) -> None:
    python = environment_with_pip(tmp_path / "image")
    project, base = tmp_path / "project", tmp_path / "base"
    base.mkdir()
    for name in ("uv", "pip"):
        (project / name).mkdir(parents=True)
        (project / name / "__main__.py").write_text("raise SystemExit('the project was run')")
        (project / name / "__init__.py").write_text("")
    words = [str(python), "-c", INSTALLING, str(SOURCE), str(base)]
    environ = {**os.environ, "PATH": str(python.parent), "PYTHONPATH": str(project)}

    done = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    said = subprocess.run([str(base / "uv" / "bin" / "uv"), "--version"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kinetic: fetching uv=={python_runtime.INSTALLER_VERSIONS['uv']}" in done.stdout
    assert said.stdout.split()[1] == python_runtime.INSTALLER_VERSIONS["uv"]


def test_another_file_than_the_one_that_was_tried_is_not_installed(tmp_path: Path) -> None:
    file = wheel(tmp_path, "uv", "")
    forged = file.rename(tmp_path / f"uv-{python_runtime.INSTALLER_VERSIONS['uv']}-py3-none-any.whl")
    python = environment_with_pip(tmp_path / "image")
    words = [str(python), "-c", INSTALLING, str(SOURCE), str(tmp_path)]
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(forged.parent), "PATH": "/nonexistent"}

    done = subprocess.run(words, env={**os.environ, **index}, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list(tmp_path.glob("uv/bin/uv"))
