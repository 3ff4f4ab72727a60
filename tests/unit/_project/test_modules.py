"""How imported modules reach the job, and which of them were edited since."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import pytest

import kinetic
from kinetic._project import modules, other_projects
from kinetic._project.modules import classify, shipped, stale_modules
from kinetic._project.root import find_root

SOURCE = '''
"""A module."""
import functools

RATE = 0.1
LATER = RATE * 2

def train(x=1):
    return x + 1

def decorate(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

@decorate
def wrapped():
    return "wrapped"

@functools.lru_cache
def cached():
    return "cached"

class Model:
    def fit(self):
        return [number for number in range(3)]

    @property
    def name(self):
        return "name"

    @classmethod
    def make(cls):
        return cls()

    class Inner:
        def deep(self):
            return lambda: 7
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project below an own home folder, on sys.path; its modules are forgotten afterwards."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, path, source=SOURCE):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(source)
    importlib.invalidate_caches()


def load(name, path):
    """Import a file under a name that no importer would find it by."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plan_of(project):
    write(project, "kn_entry.py")
    return find_root(importlib.import_module("kn_entry").train)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("kn_one.py", "kn_one"),
        ("kn_pkg/__init__.py", "kn_pkg"),
        ("kn_pkg/sub.py", "kn_pkg.sub"),
        ("kn_ns/sub.py", "kn_ns.sub"),
    ],
)
def test_a_module_of_the_project_ships(project, path, name):
    write(project, path)
    if path == "kn_pkg/sub.py":
        write(project, "kn_pkg/__init__.py", "")

    assert classify(importlib.import_module(name), plan_of(project)).kind == "ships"


def test_a_namespace_package_of_the_project_ships(project):
    write(project, "kn_space/sub.py")
    importlib.import_module("kn_space.sub")

    assert classify(sys.modules["kn_space"], plan_of(project)).kind == "ships"


def test_a_module_that_is_reached_through_a_folder_on_the_path_ships(project, monkeypatch):
    write(project, "src/kn_two.py")
    monkeypatch.syspath_prepend(str(project / "src"))

    assert classify(importlib.import_module("kn_two"), plan_of(project)).kind == "ships"


@pytest.mark.parametrize("name", ["json", "sys", "os", "zipimport", "_json", "collections.abc", "importlib.machinery"])
def test_the_standard_library_is_installed(project, name):
    assert classify(importlib.import_module(name), plan_of(project)).kind == "installed"


def test_an_installed_package_is_installed(project):
    assert classify(pytest, plan_of(project)).kind == "installed"


def test_kinetic_is_installed_wherever_it_lies(project):
    assert classify(kinetic, plan_of(project)).kind == "installed"
    assert classify(modules, plan_of(project)).kind == "installed"


@pytest.mark.parametrize("environment", [".venv", "odd-name"])
def test_a_package_in_an_environment_below_the_root_is_never_first_party(project, monkeypatch, environment):
    packages = project / environment / "lib" / "python3.11" / "site-packages"
    write(packages, "kn_numpy/__init__.py")
    (project / environment / "pyvenv.cfg").touch()
    monkeypatch.syspath_prepend(str(packages))

    assert classify(importlib.import_module("kn_numpy"), plan_of(project)).kind == "installed"


def test_a_folder_that_packages_were_installed_into_is_installed(project, tmp_path, monkeypatch):
    write(tmp_path / "target", "kn_tool.py")
    (tmp_path / "target" / "kn_tool-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "target"))

    assert classify(importlib.import_module("kn_tool"), plan_of(project)).kind == "installed"


def test_a_module_outside_the_project_goes_by_value_with_the_reason(project, tmp_path, monkeypatch):
    write(tmp_path / "elsewhere", "kn_far.py")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))

    standing = classify(importlib.import_module("kn_far"), plan_of(project))

    assert standing.kind == "by-value"
    assert "outside the project" in standing.reason


def test_a_module_that_the_ignore_file_leaves_out_goes_by_value_with_the_line(project):
    write(project, "private/__init__.py", "")
    write(project, "private/kn_hidden.py")
    plan = plan_of(project)
    module = importlib.import_module("private.kn_hidden")
    assert classify(module, plan).kind == "ships"

    (project / ".kineticignore").write_text("# mine\nprivate/\n")

    assert classify(module, plan).kind == "by-value"
    assert ".kineticignore line 2: private/" in classify(module, plan).reason


def test_a_module_that_the_job_would_find_under_another_name_goes_by_value(project):
    write(project, "deep/kn_odd.py")
    module = load("kn_other_name", project / "deep" / "kn_odd.py")

    standing = classify(module, plan_of(project))

    assert standing.kind == "by-value"
    assert "kn_other_name" in standing.reason


def test_a_module_that_another_file_hides_in_the_job_goes_by_value(project, monkeypatch):
    write(project, "late/kn_twice.py")
    module = load("kn_twice", project / "late" / "kn_twice.py")
    write(project, "kn_twice.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(project / "late")])

    standing = classify(module, plan_of(project))

    assert standing.kind == "by-value"
    assert "another file" in standing.reason


def test_modules_without_a_file_and_the_script_go_by_value(project):
    plan = plan_of(project)

    assert classify(types.ModuleType("kn_made_up"), plan).kind == "by-value"
    assert classify(types.ModuleType("__main__"), plan).kind == "by-value"


def test_a_module_that_an_installed_one_makes_is_installed(project, monkeypatch):
    made = types.ModuleType("pytest.made.deep")  # as an extension module does: jaxlib._jax.pytree, torch._C._nn
    monkeypatch.setitem(sys.modules, "pytest.made", types.ModuleType("pytest.made"))
    monkeypatch.setitem(sys.modules, made.__name__, made)

    assert classify(made, plan_of(project)).kind == "installed"

    made.__file__ = "_made.py"  # a name and no path, as torch.ops has it

    assert classify(made, plan_of(project)).kind == "installed"
    assert classify(types.ModuleType("_cython_3_3_0"), plan_of(project)).kind == "installed"


def test_a_module_that_says_only_the_last_part_of_its_name_is_known_by_the_name_of_its_import(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytest.made", types.ModuleType("made"))  # as PyO3 does: those of Qiskit
    monkeypatch.setitem(sys.modules, "pytest.made.deep", deep := types.ModuleType("deep"))

    assert classify(deep, plan_of(project), "pytest.made.deep").kind == "installed"
    assert classify(deep, plan_of(project)).kind == "by-value"


def test_a_module_whose_attributes_misbehave_is_still_classified(project):
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            if name == "__path__":
                raise RuntimeError("not yet")
            return super().__getattribute__(name)

    assert classify(Lazy("kn_lazy"), plan_of(project)).kind == "by-value"


def test_a_lazy_module_of_the_project_is_not_loaded_by_a_submission(project, monkeypatch):
    write(project, "kn_late.py", "raise ImportError('a library of C is missing')")
    spec = importlib.util.find_spec("kn_late")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    late = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kn_late", late)
    spec.loader.exec_module(late)

    assert stale_modules(plan_of(project), since=0) == []
    assert late not in shipped(plan_of(project))


def test_an_unchanged_project_has_no_stale_modules(project):
    write(project, "kn_still.py")
    importlib.import_module("kn_still")

    assert stale_modules(plan_of(project), since=0) == []


@pytest.mark.parametrize(("added", "stale"), [("", []), ("\n\n", ["kn_asserts"])])
def test_a_module_whose_asserts_pytest_has_rewritten_counts_as_edited_only_after_an_edit(project, added, stale):
    pytest.register_assert_rewrite("kn_asserts")
    text = "def test(x=1):\n    assert x\n\ndef outer():\n    def inner():\n        assert outer\n"
    write(project, "kn_asserts.py", text)
    assert "@pytest_ar" in importlib.import_module("kn_asserts").test.__code__.co_names
    write(project, "kn_asserts.py", added + text)

    assert stale_modules(plan_of(project), since=0) == stale


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x + 1", "return x + 2"),
        ("return x + 1", "return x - 1"),
        ('"wrapped"', '"changed"'),
        ('"cached"', '"changed"'),
        ("range(3)", "range(4)"),
        ('"name"', '"changed"'),
        ("return cls()", "return cls"),
        ("lambda: 7", "lambda: 8"),
        ("RATE = 0.1", "RATE = 0.2"),
        ("def train(x=1):\n    return x + 1", ""),
        ("def train(x=1):", "def train(x=1:"),
        ("def fit(self):", "def fit(self, more):"),
    ],
)
def test_an_edit_that_a_job_would_feel_is_seen(project, old, new):
    write(project, "kn_edited.py")
    importlib.import_module("kn_edited")
    plan = plan_of(project)
    assert old in SOURCE
    write(project, "kn_edited.py", SOURCE.replace(old, new))

    assert stale_modules(plan, since=0) == ["kn_edited"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import functools", "# a comment\n\n\nimport functools"),
        ("return x + 1", "return (\n        x + 1\n    )  # more"),
        ("def train", "def added():\n    return 1\n\ndef train"),
        ('"""A module."""', '"""Another docstring."""'),
    ],
)
def test_an_edit_that_no_job_would_feel_is_none(project, old, new):
    write(project, "kn_tidied.py")
    importlib.import_module("kn_tidied")
    plan = plan_of(project)
    assert old in SOURCE
    write(project, "kn_tidied.py", SOURCE.replace(old, new))

    assert stale_modules(plan, since=0) == []


def test_a_deleted_source_is_stale(project):
    write(project, "kn_gone.py")
    importlib.import_module("kn_gone")
    plan = plan_of(project)
    (project / "kn_gone.py").unlink()
    (project / "kn_gone.py").touch()

    assert stale_modules(plan, since=0) == ["kn_gone"]


def test_files_older_than_the_process_are_not_looked_at(project):
    write(project, "kn_old.py")
    module = importlib.import_module("kn_old")
    plan = plan_of(project)
    write(project, "kn_old.py", SOURCE.replace("x + 1", "x + 2"))
    changed = (project / "kn_old.py").stat().st_mtime

    assert stale_modules(plan, since=changed + 1) == []
    assert stale_modules(plan) == [module.__name__]


def test_an_edit_within_the_second_of_a_file_system_in_which_the_process_started_is_stale(project):
    write(project, "kn_soon.py")
    importlib.import_module("kn_soon")
    write(project, "kn_soon.py", SOURCE.replace("x + 1", "x + 2"))
    os.utime(project / "kn_soon.py", (1_800_000_000, 1_800_000_000))

    assert stale_modules(plan_of(project), since=1_800_000_000.5) == ["kn_soon"]
    assert stale_modules(plan_of(project), since=1_800_000_003) == []


def test_the_start_of_this_process_lies_between_boot_and_now():
    import time

    assert 0 < time.time() - modules.started() < 3600 * 24
    assert json  # keeps the import that the parametrized names rely on


class _EditableFinder:
    """As setuptools writes one, into a module that a ``*.pth`` file imports."""

    def __init__(self, folder):
        self.folder = folder
        self.__module__ = "__editable___other_finder"

    def find_spec(self, name, _path, _target=None):
        file = self.folder / f"{name.removeprefix('found_')}.py"
        return importlib.util.spec_from_file_location(name, file) if name.startswith("found_") else None


def test_a_module_outside_that_each_python_finds_by_itself_is_imported_by_a_job_of_the_same_environment(
    project, tmp_path, monkeypatch
) -> None:
    packages, named, listed, added = (tmp_path / name for name in ("site-packages", "named", "listed", "added"))
    for folder in (named, listed, added):
        write(tmp_path, f"{folder.name}/in_{folder.name}.py")
    write(tmp_path, "finder/it.py")
    write(packages, "editable.pth", "import __editable___other_finder\n../listed\n../gone\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", "../named")
    for folder in (packages, named, listed, added):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, _EditableFinder(tmp_path / "finder")])
    modules.startup_path.cache_clear()
    write(project, "mine.py")
    elsewhere = find_root(importlib.import_module("mine").train)
    here = dataclasses.replace(elsewhere, same_python=True)

    kinds = {
        name: [classify(importlib.import_module(name), plan).kind for plan in (elsewhere, here)]
        for name in ("in_named", "in_listed", "found_it", "in_added")
    }
    modules.startup_path.cache_clear()

    assert kinds.pop("in_added") == ["by-value"] * 2
    assert list(kinds.values()) == [["by-value", "installed"]] * 3
    assert {module.__name__ for module in shipped(here)} == {"mine", "in_named", "in_listed"}


def test_a_compiled_module_is_never_sent_by_value_and_the_first_finder_has_it(project, tmp_path, monkeypatch):
    class _MesonFinder:
        __module__ = "_kn_core_editable_loader"

        def find_spec(self, name, _path, _target=None):
            return importlib.util.spec_from_file_location(name, built) if name == "kn_core._c" else None

    built = project / "build" / f"_c{importlib.machinery.EXTENSION_SUFFIXES[0]}"
    write(project, f"build/{built.name}", "")
    write(project, "kn_core/__init__.py", "")
    write(tmp_path, "site-packages/kn_core.pth", "import _kn_core_editable_loader")
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    module = types.ModuleType("kn_core._c")
    module.__file__ = str(built)
    elsewhere = plan_of(project)
    modules.startup_path.cache_clear()
    found = [classify(module, elsewhere)]
    monkeypatch.setattr(sys, "meta_path", [_MesonFinder(), *sys.meta_path])
    for plan in (elsewhere, dataclasses.replace(elsewhere, same_python=True)):
        modules.startup_path.cache_clear()
        found.append(classify(module, plan))
    modules.startup_path.cache_clear()

    assert [each.kind for each in found] == ["compiled", "compiled", "installed"]
    assert "no folder of the project" in found[0].reason


def test_nothing_is_told_of_a_project_that_is_not_installed(project):
    write(project, "mine.py")
    plan = find_root(importlib.import_module("mine").train)

    without_a_name = modules.own_distributions(plan)
    (project / "pyproject.toml").unlink()
    without_the_file = modules.own_distributions(plan)

    assert without_a_name == without_the_file == {}


@pytest.mark.parametrize(
    ("installed", "record", "expected"),
    [
        (".", "acme/__init__.py,,\n", "src"),
        ("packages/acme", "acme/__init__.py,,\n", "packages/acme/src"),
        (".", f"acme/_fast{importlib.machinery.EXTENSION_SUFFIXES[0]},,\n", None),
        ("../elsewhere", "acme/__init__.py,,\n", None),
    ],
    ids=["of the project", "of a member", "with a compiled module", "of another project"],
)
def test_a_job_elsewhere_imports_what_is_installed_from_the_project_from_its_copy(
    project, tmp_path, monkeypatch, installed, record, expected
):
    folder = Path(os.path.normpath(project / installed))
    write(folder, "src/acme/__init__.py", "")
    about = tmp_path / "site-packages" / "acme-1.0.dist-info"
    write(about, "RECORD", record)
    (about / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(str(about.parent))

    plan = other_projects.with_them(plan_of(project))

    assert set(plan.sys_path_rel) == {"", expected or ""}
    assert plan.beside == ()
    assert modules.classifier(plan).holds("acme") == bool(expected)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.setuptools]\npackage-dir = { "" = "lib" }'),
        ("pyproject.toml", '[tool.setuptools.packages.find]\nwhere = ["lib"]'),
        ("pyproject.toml", '[tool.uv.build-backend]\nmodule-root = "lib"'),
        ("pyproject.toml", '[tool.pdm.build]\npackage-dir = "lib"'),
        ("pyproject.toml", '[tool.maturin]\npython-source = "lib"'),
        ("pyproject.toml", '[tool.hatch.build.targets.wheel]\npackages = ["lib/acme"]'),
        ("pyproject.toml", '[tool.scikit-build]\nwheel.packages = ["lib/acme"]'),
        ("pyproject.toml", '[tool.poetry]\npackages = [{ include = "acme", from = "lib" }]'),
        ("setup.cfg", "[options]\npackage_dir =\n    = lib\npackages = find:\n"),
        ("setup.py", "setup(package_dir={'': 'lib'}, packages=['acme'])"),
    ],
)
def test_a_job_elsewhere_imports_what_is_installed_from_the_folder_that_a_build_backend_is_told(
    project, tmp_path, monkeypatch, name, text
):
    write(project, name, text)
    write(project, "lib/acme/__init__.py", "")
    write(project, "src/lib.rs", "")
    about = tmp_path / "site-packages" / "acme-1.0.dist-info"
    write(about, "RECORD", "acme/__init__.py,,\n")
    (about / "direct_url.json").write_text(json.dumps({"url": project.as_uri(), "dir_info": {}}))
    monkeypatch.syspath_prepend(str(about.parent))

    plan = other_projects.with_them(plan_of(project))

    assert set(plan.sys_path_rel) == {"", "lib"}
    assert modules.classifier(plan).holds("acme")
