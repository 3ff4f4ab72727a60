"""Projects that import from other projects of this machine: members of a uv workspace, paths, editable installs."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from pathlib import Path

import pytest
from servers.wheels import made_wheel

from kinetic._images import uv

SOURCE = Path(__file__).parents[2] / "src"
# A build backend that needs no network: it installs a project as editable, by a line that names where its modules are.
BACKEND = """
import os, pathlib, tomllib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    about = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]
    stem = f"{about['name']}-{about['version']}"
    source = pathlib.Path("src").absolute()
    with zipfile.ZipFile(os.path.join(folder, f"{stem}-py3-none-any.whl"), "w") as wheel:
        wheel.writestr(f"_editable_{about['name']}.pth", str(source if source.exists() else source.parent))
        needs = "".join(f"Requires-Dist: {each}\\n" for each in about.get("dependencies", []))
        fields = f"Metadata-Version: 2.1\\nName: {about['name']}\\nVersion: {about['version']}\\n{needs}"
        wheel.writestr(f"{stem}.dist-info/METADATA", fields)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return f"{stem}-py3-none-any.whl"

build_wheel = build_editable
"""
BUILD = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
COMMON = {
    "__init__.py": "from importlib.metadata import version\n__version__ = version('common')\n",
    "config.py": "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    width: int = 3\n",
    "late.py": "from pathlib import Path\n\nWORDS = Path(__file__).parents[2] / 'data' / 'words.txt'\n\n"
    "def words():\n    return WORDS.read_text()\n\ndef fail():\n    raise KeyError('from another project')\n",
}
TRAIN = """
import sys
import kinetic
from common import config

@kinetic.run(accelerator="cpu")
def train(given):
    import common.late
    import flat

    assert isinstance(given, config.Config)
    if given.width == 0:
        common.late.fail()
    return config.Config(flat.twice(given.width)), common.__version__, common.late.words()

if __name__ == "__main__":
    made, *rest = train(config.Config(int(sys.argv[1])))
    print(isinstance(made, config.Config), made, *rest)
"""


LOOSE = """
import os
import kinetic
import loose

@kinetic.run(accelerator="cpu")
def look():
    return loose.three(), sorted(os.listdir(".kinetic-beside"))

if __name__ == "__main__":
    print(look())
"""


def add(folder: Path, name: str, modules: dict[str, str], *, needs: str = "", more: str = "") -> Path:
    """Make a project with a package, or with modules beside its pyproject.toml."""
    table = f'[project]\nname = "{name}"\nversion = "1.2"\nrequires-python = ">=3.11"\ndependencies = [{needs}]\n'
    (folder / "src" / name if "__init__.py" in modules else folder).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(table + more + BUILD)
    (folder / "backend.py").write_text(BACKEND)
    for file, text in modules.items():
        (folder / "src" / name / file if "__init__.py" in modules else folder / file).write_text(text)
    return folder


@pytest.fixture
def workspace(tmp_path, monkeypatch, home) -> Path:  # with a home of the test: its jobs are not the user's
    """Make a workspace of two members, one of which also needs a project outside of it, and install all as editable."""
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", f"{Path(uv.uv_command()[0]).parent}:{os.environ['PATH']}")
    root = tmp_path / "workspace"
    add(tmp_path / "flat", "flat", {"flat.py": "def twice(x):\n    return 2 * x\n"})
    common = add(root / "packages" / "common", "common", COMMON)
    for folder in (common / "data", root / "data"):
        folder.mkdir()
        (folder / "words.txt").write_text(f"words of {folder.parent.name}")
    (common / ".env").write_text("PASSWORD=secret\n")
    (common / ".kineticignore").write_text("*.bin\n")
    (common / "large.bin").write_text("not sent\n")
    sources = 'common = { workspace = true }\nflat = { path = "../../../flat", editable = true }\n'
    more = f"[tool.uv.sources]\n{sources}"
    train = root / "packages" / "train"
    add(train, "train", {"__init__.py": "", "main.py": TRAIN}, needs='"common", "flat"', more=more)
    (root / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    return root


def install(root: Path) -> str:
    """Install what a workspace holds, beside what this test runs with; return the interpreter."""
    words = ["sync", "--all-packages", "--offline", "--quiet", "--python", sys.executable]
    subprocess.run([*uv.uv_command(), *words], cwd=root, check=True)
    (packages,) = root.glob(".venv/lib/*/site-packages")
    (packages / "tests.pth").write_text("\n".join([str(SOURCE), *site.getsitepackages()]) + "\n")
    return str(root / ".venv" / "bin" / "python")


def submit(python: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_a_member_of_a_workspace_imports_the_projects_that_its_lock_names_in_another_environment(workspace) -> None:
    python, train = install(workspace), workspace / "packages" / "train"

    done = submit(python, train, "-m", "train.main", "5")
    failed = submit(python, workspace, str(train / "src" / "train" / "main.py"), "0")
    files = submit(python, train, "-m", "kinetic", "run", "--", "find", ".", "-name", "[a-z.]*")

    assert done.stdout == "True Config(width=10) 1.2 words of common\n", done.stderr
    assert f"sent beside the project: {workspace.parent}/flat, {workspace}/packages/common\n" in done.stderr
    assert f"{workspace}/packages/common: left out because they look like secrets: .env (a line '!.env'" in done.stderr
    assert f'File "{workspace}/packages/common/src/common/late.py", line' in failed.stderr, failed.stderr
    assert "KeyError: 'from another project'" in failed.stderr
    listed = submit(python, train, "-m", "kinetic", "package", "--dry-run", "src/train/main.py")
    sent = {line.rpartition("/")[2] for line in files.stdout.splitlines()}
    assert {"late.py", "words.txt", "flat.py"} <= sent, files.stderr
    assert sent.isdisjoint({".env", "large.bin", ".venv", "workspace"})
    assert re.search(r"^yes +\d+ bytes +\.kinetic-beside/common/src/common/late\.py", listed.stdout, re.MULTILINE)
    assert re.search(r"^no +\d+ bytes +\.kinetic-beside/common/\.env +", listed.stdout, re.MULTILINE)


def test_a_workspace_that_is_sent_as_a_whole_holds_its_members_once(workspace, monkeypatch) -> None:
    python, train = install(workspace), workspace / "packages" / "train"
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(workspace))

    done = submit(python, train, "-m", "train.main", "5")

    assert done.stdout == "True Config(width=10) 1.2 words of common\n", done.stderr
    assert f"sent beside the project: {workspace.parent}/flat\n" in done.stderr


@pytest.mark.parametrize("lines", ["-e ../common\n./../../../flat\n", "-e .\n-e file:../common\n-e ../../../flat[]\n"])
def test_a_requirements_file_may_name_other_projects_by_their_folders(workspace, lines) -> None:
    python, train = install(workspace), workspace / "packages" / "train"
    (train / "requirements.txt").write_text(lines)

    done = submit(python, train, "-m", "train.main", "5")

    assert done.stdout == "True Config(width=10) 1.2 words of common\n", done.stderr


def test_what_is_imported_from_an_editable_project_is_sent_with_the_rest_of_it(workspace) -> None:
    python, train = install(workspace), workspace / "packages" / "train"
    (workspace / "uv.lock").unlink()
    (train / "requirements.txt").write_text("")
    main = train / "src" / "train" / "main.py"
    main.write_text(main.read_text().replace("import sys\n", "import sys\nimport flat\n"))

    done = submit(python, train, "-m", "train.main", "5")

    assert done.stdout == "True Config(width=10) 1.2 words of common\n", done.stderr
    assert f"sent beside the project: {workspace.parent}/flat, {workspace}/packages/common\n" in done.stderr


def test_an_edit_of_another_project_is_in_the_next_job(workspace) -> None:
    python, train = install(workspace), workspace / "packages" / "train"
    assert submit(python, train, "-m", "train.main", "5").returncode == 0
    (workspace / "packages" / "common" / "data" / "words.txt").write_text("others")

    done = submit(python, train, "-m", "train.main", "5")

    assert done.stdout == "True Config(width=10) 1.2 others\n", done.stderr


def test_a_folder_that_is_on_the_path_and_no_project_is_not_sent(workspace, tmp_path, monkeypatch) -> None:
    python, train = install(workspace), workspace / "packages" / "train"
    (tmp_path / "loose").mkdir()
    (tmp_path / "loose" / "loose.py").write_text("def three():\n    return 3\n")
    (train / "alone.py").write_text(LOOSE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "loose"))

    done = submit(python, train, "alone.py")

    assert done.stdout == "(3, ['common', 'flat'])\n", done.stderr
    assert "loose is sent by value: its file is outside the project" in done.stderr


WHEEL = """
import kinetic

@kinetic.run(accelerator="cpu")
def look():
    import importlib.metadata
    import importlib.resources

    import parts
    import tool

    text = importlib.resources.files(parts).joinpath("words.txt").read_text()
    return text, tool.NAME, importlib.metadata.version("parts"), tool.__file__.partition("/.kinetic-beside/")[2]

if __name__ == "__main__":
    print(*look(), sep="|")
"""


@pytest.mark.parametrize("kind", ["requirements", "lock"])
def test_a_wheel_in_a_folder_is_imported_in_another_environment_without_being_installed(
    tmp_path, monkeypatch, kind
) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_ENV", "isolated")
    monkeypatch.setenv("KINETIC_BASE_PACKAGES", "0")
    project = tmp_path / "app"
    inside = {"parts/__init__.py": "", "parts/words.txt": "words", "parts-1.5.data/purelib/tool.py": "NAME = 'tool'"}
    made_wheel(project / "wheels", "parts", "1.5", inside)
    (project / "look.py").write_text(WHEEL)
    if kind == "requirements":
        (project / "requirements.txt").write_text("./wheels/parts-1.5-py3-none-any.whl\n")
    else:
        sources = 'parts = { path = "wheels/parts-1.5-py3-none-any.whl" }\n'
        table = '[project]\nname = "app"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["parts"]\n'
        (project / "pyproject.toml").write_text(f"{table}[tool.uv.sources]\n{sources}")
        subprocess.run([*uv.uv_command(), "lock", "--offline", "--quiet"], cwd=project, check=True)

    done = submit(sys.executable, project, "look.py")
    listed = submit(sys.executable, project, "-m", "kinetic", "package", "--dry-run", "look.py")

    assert done.stdout == "words|tool|1.5|parts-1.5-py3-none-any/src/tool.py\n", done.stderr
    assert re.search(r"sent beside the project: .*/unpacked/[0-9a-f]{16}/parts-1.5-py3-none-any\n", done.stderr)
    assert re.search(r"\nyes +\d+ bytes +\.kinetic-beside/parts-1.5-py3-none-any/src/parts/words\.txt", listed.stdout)
