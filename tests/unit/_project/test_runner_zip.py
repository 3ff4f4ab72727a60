"""The runner as one file: the same bytes each time, small, and what it lists is complete and no more."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import traceback
import types
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kinetic._data import Data
from kinetic._project import runner_bundle, runner_compiler
from kinetic.errors import PackingError

BUILD = "import hashlib; from kinetic._project import runner_bundle as runner_zip; print(runner_zip.build().sha256)"
SOURCE = Path(runner_bundle.__file__).parents[2]
FOUND = runner_bundle.contents()
TRAVELS = runner_bundle.pod_contents(FOUND)
MOST = 350_000  # bytes of the 1 MiB that a ConfigMap holds; see decision 18

pytestmark = pytest.mark.timeout(120)  # it is compiled once for each content


def built_in(folder: Path, *, before: str = "", **environ: str) -> str:
    """Build in a process that finds nothing built before, and return the digest."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "PYTHON"))}
    own = {"KINETIC_HOME": f"{folder}/home", "PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-c", before + BUILD]
    return subprocess.run(words, env={**clean, **own, **environ}, stdout=-1, text=True, check=True).stdout


class Built(NamedTuple):
    folder: Path
    digest: str


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("first")
    return Built(folder, built_in(folder, TZ="UTC", PYTHONHASHSEED="1"))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build in a program that has Python inside, as uWSGI, after other imports, in another zone and an installation
    that cannot be written."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "bytecode").write_text("in the way of the folder")
    how = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2"}
    before = "import sys; sys.executable = '/usr/bin/true'; import kinetic.jobs, email.message; "
    return Built(folder, built_in(folder, before=before, **how))


def test_two_builds_are_the_same_bytes_whatever_was_imported_before(first: Built, elsewhere: Built) -> None:
    assert first.digest == elsewhere.digest
    assert first.digest.strip() == runner_bundle.build().sha256


def test_what_was_built_is_kept_and_a_damaged_one_is_built_again(first: Built) -> None:
    (kept,) = first.folder.rglob("runner.*.zip")
    data = kept.read_bytes()
    kept.write_bytes(data[: len(data) // 2])

    assert built_in(first.folder) == first.digest
    assert kept.read_bytes() == data


def test_where_the_installation_cannot_be_written_it_is_kept_in_the_home(elsewhere: Built) -> None:
    kept = [path.parent for path in elsewhere.folder.rglob("runner.*.zip")]

    assert kept == [elsewhere.folder / "home" / "cache" / "runner"]


def test_its_digest_is_that_of_its_bytes() -> None:
    assert hashlib.sha256(runner_bundle.build().data).hexdigest() == runner_bundle.build().sha256


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", ["", "DRIVER"]),
        ("/usr/local/cuda/lib64", ["/usr/local/cuda/lib64", "/usr/local/cuda/lib64:DRIVER"]),
        ("DRIVER:/a", ["DRIVER:/a"]),
    ],
)
def test_in_any_image_the_driver_of_a_gpu_is_found_where_gke_mounts_it(
    tmp_path: Path, given: str, expected: list[str]
) -> None:
    driver, noted = tmp_path / "driver", tmp_path / "noted"
    driver.mkdir()
    with (
        zipfile.ZipFile(io.BytesIO(runner_bundle.build().data)) as built,
        zipfile.ZipFile(tmp_path / "runner.zip", "w") as ours,
    ):
        for name in built.namelist():
            ours.writestr(name, built.read(name).replace(b"/usr/local/nvidia/lib64", os.fsencode(driver)))
    begins = f"import os; open({str(noted)!r}, 'a').write(os.environ.get('LD_LIBRARY_PATH', '') + '\\n')"
    (tmp_path / "sitecustomize.py").write_text(begins)
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    environ |= {"LD_LIBRARY_PATH": given.replace("DRIVER", str(driver))} if given else {}

    words = [sys.executable, tmp_path / "runner.zip", "no task"]
    done = subprocess.run(words, env=environ, capture_output=True, check=False)

    assert [line.replace(str(driver), "DRIVER") for line in noted.read_text().splitlines()] == expected
    assert done.returncode == 82, done.stdout  # it went on, and knows no such task


def test_it_takes_less_than_a_third_of_a_config_map() -> None:
    assert len(runner_bundle.build().data) <= MOST


def test_it_holds_the_runner_the_pickler_and_no_faces() -> None:
    names = zipfile.ZipFile(io.BytesIO(runner_bundle.build().data)).namelist()

    assert names == ["__main__.py", "files.xz", "unpack.py"]
    assert {"kinetic/__init__.py", "kinetic/_runner/pod/entrypoint.py", "cloudpickle/cloudpickle.py"} <= set(TRAVELS)
    stays = ("kinetic/_cli", "kinetic/_backends/kube", "kinetic/_backends/local", "kinetic/_batches")
    assert not [name for name in TRAVELS if name.startswith(stays)]


@pytest.mark.parametrize("module", [*runner_bundle.ROOMS, *runner_bundle.MODULES, *runner_bundle.SELDOM])
def test_what_is_listed_is_there(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
    assert runner_bundle.is_listed(module)


@pytest.mark.parametrize("name", sorted(name for name in TRAVELS if name.endswith(".py")))
def test_a_module_that_travels_as_source_says_the_same_without_types_and_comments(name: str) -> None:
    source = TRAVELS[name].read_text(encoding="utf-8")

    bare = runner_compiler.emptied(source)

    assert compiled(bare) == compiled(source)
    assert len(bare.splitlines()) <= len(source.splitlines())


def compiled(source: str) -> list[tuple[str, int]]:
    """Return what Python makes of a source, without docstrings and annotations, and the line of each statement."""
    tree = runner_compiler.Bare().visit(ast.parse(source))
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    return [(ast.dump(tree), 0), *((type(node).__name__, node.lineno) for node in statements)]


SMALL = """
LIMIT: int = 3
LATER: str

class A:
    field: int = 1

    def act(self, *more: int) -> list[int]:
        return [self.field + each for each in more]

def fail():
    (lambda: 1 / 0)()
"""


@pytest.fixture
def unpack(tmp_path: Path) -> types.ModuleType:
    """Return ``unpack.py`` of a runner that holds the small module, as source too."""
    (tmp_path / "small.py").write_text(SMALL)
    asked = {"compile": {"small.py": f"{tmp_path}/small.py"}, "keep": {"kept.py": f"{tmp_path}/small.py"}, "texts": {}}
    words = [sys.executable, "-I", "-S", "-X", "no_debug_ranges", runner_compiler.__file__]
    packed = subprocess.run(words, input=json.dumps(asked).encode(), stdout=-1, check=True).stdout
    with zipfile.ZipFile(tmp_path / "runner.zip", "w") as archive:
        archive.writestr("files.xz", packed)
        archive.writestr("unpack.py", zipfile.ZipFile(io.BytesIO(runner_bundle.build().data)).read("unpack.py"))
    spec = zipimport.zipimporter(f"{tmp_path}/runner.zip").find_spec("unpack")
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)
    return unpack


def from_folder(unpack: types.ModuleType, folder: Path, name: str) -> types.ModuleType:
    unpack.write(folder)
    return importlib.util.module_from_spec(importlib.machinery.PathFinder.find_spec(name, [str(folder)]))


def from_memory(unpack: types.ModuleType, folder: Path, name: str) -> types.ModuleType:
    return importlib.util.module_from_spec(unpack.Files().find_spec(name))


@pytest.mark.parametrize("found", [from_folder, from_memory])
@pytest.mark.parametrize("name", ["small", "kept"])
def test_what_was_packed_runs_as_it_was_written(unpack: types.ModuleType, tmp_path: Path, found, name: str) -> None:
    module = found(unpack, tmp_path / "folder", name)

    module.__spec__.loader.exec_module(module)

    assert (module.LIMIT, module.A().act(1, 2), module.A.__annotations__) == (3, [2, 3], {"field": int})
    with pytest.raises(ZeroDivisionError) as caught:
        module.fail()
    frames = [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_tb(caught.tb)[1:]]
    file = module.__spec__.origin.removesuffix("c")
    assert frames == [(file, 12, "fail"), (file, 12, "<lambda>")]


def test_annotations_of_modules_and_qualified_names_are_not_packed(unpack: types.ModuleType, tmp_path: Path) -> None:
    module = from_folder(unpack, tmp_path / "folder", "small")

    module.__spec__.loader.exec_module(module)

    assert module.A.act.__qualname__ == "act"
    assert not {"__annotations__", "__annotate__"} & vars(module).keys()
    assert module.A.act.__annotations__ == {}


# A door to the client's side names what a job finds stand-ins for.
DOORS = {"kinetic.collections", "kinetic.jobs", "kinetic.testing"}


@pytest.mark.parametrize("name", sorted(TRAVELS))
def test_a_listed_module_imports_only_listed_ones(name: str) -> None:
    module = runner_bundle.module_of(name)
    tree = ast.parse(TRAVELS[name].read_bytes())
    missing = {each for each in imported(tree) if each in LEFT_OUT}

    assert module in DOORS or not missing, f"runner_zip.py does not list {sorted(missing)}, which {module} imports"


# What starts the process, a function of it that looks into it, and what of cloudpickle its pickles name.
STARTED = {"kinetic._runner.pod.entrypoint", "kinetic._runner.pod.inspect_process", "cloudpickle.cloudpickle_fast"}


def test_nothing_travels_that_nothing_in_a_pod_loads() -> None:
    trees = {runner_bundle.module_of(name): ast.parse(path.read_bytes()) for name, path in TRAVELS.items()}
    packages = {runner_bundle.module_of(name) for name in TRAVELS if name.endswith("/__init__.py")}
    loaded = {
        each
        for module, tree in trees.items()
        for node in ast.walk(tree)
        for each in [*imported(ast.Module([node], [])), *([node.value] if isinstance(node, ast.Constant) else [])]
        if each != module
    }

    assert set(trees) - packages - STARTED - loaded == set()


LEFT_OUT = set(runner_bundle.left_out(FOUND))


def imported(tree: ast.Module) -> Iterator[str]:
    """Return the modules that an import of this one imports as well: not those in functions, and for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


IN_A_POD = """
import sys, unpack

unpack.write(sys.argv[1])
sys.path[:] = [sys.argv[1], *sys.path[2:]]

from kinetic._runner.worker import import_hooks

import_hooks.install_stand_ins(sys.argv[1])

import kinetic

DATA = kinetic.Data(sys.argv[2])
OPTIONS = {"volumes": {"/data": DATA}, "deadline": "1h", "resources": "cpu=2", "keep_warm": "5m", "tags": {"a": "b"}}

@kinetic.run(accelerator="gpu-l4x4", capture_env_vars=["A*"], on_done="desktop", **OPTIONS)
def read(path):
    with open(path) as file:
        return file.read()

print(read(DATA), DATA.content_hash(), read.with_options(accelerator="tpu-v5e-8"))
for changed in ({"accelerator": "gpu-x"}, {"backend": "nope"}, {"volumes": {"data": DATA}}, {"resources": "cpu=x"}):
    try:
        read.with_options(**changed)
    except kinetic.errors.OptionError as error:
        print(error.what)
"""


def test_in_a_pod_a_decorator_and_data_find_all_that_they_load(tmp_path: Path) -> None:
    (tmp_path / "runner.zip").write_bytes(runner_bundle.build().data)
    (tmp_path / "set").write_text("content")
    environ = {"PYTHONPATH": f"{tmp_path}/runner.zip", "HOME": f"{tmp_path}", "KINETIC_JOB_ID": "some-job"}
    words = [sys.executable, "-c", IN_A_POD, f"{tmp_path}/runner", f"{tmp_path}/set"]

    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines() == [
        f"content {Data(tmp_path / 'set').content_hash()} <kinetic function read on tpu-v5e-8>",
        'unknown GPU "gpu-x"',
        "Unknown backend 'nope'",
        "a volume cannot be mounted at 'data'",
        "cpu='x' is not a valid CPU quantity",
    ], done.stderr


def test_one_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_bundle, "_built", [])
    monkeypatch.setattr(runner_bundle, "MOST_BYTES", 1000)

    with pytest.raises(PackingError, match="too large"):
        runner_bundle.build()


def test_a_program_that_has_python_inside_has_it_compiled_by_the_python_of_its_environment(elsewhere: Built) -> None:
    assert elsewhere.digest.strip() == runner_bundle.build().sha256


def test_a_python_that_cannot_compile_it_is_an_error_of_three_parts(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(runner_bundle, "_built", [])
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python-gone"))

    with pytest.raises(PackingError, match="could not be compiled") as caught:
        runner_bundle.build()

    assert "python-gone" in str(caught.value.why)
    assert caught.value.next
