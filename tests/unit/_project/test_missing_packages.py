"""What is told, before a job waits for a machine, of packages that its environment will lack."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.machinery
import sys
import types

import pytest

from kinetic._project import missing_packages, modules
from kinetic._project.dependencies import Dependencies
from kinetic._project.root import find_root, plan_for_command

# Packages that are installed here: the module that each brings, and what it needs.
PACKAGES = {
    "Image-Tools": ("pixels", ["base_lib>=1", 'plots; extra == "draw"', "more[fast]"]),
    "base-lib": ("base", []),
    "plots": ("plots", []),
    "more": ("more", ['quick ; extra == "fast"']),
    "quick": ("quick", []),
    "apart": ("apart_module", []),
}
TRAIN = """
import pixels
from helper import load

try:
    import base
except ImportError:
    base = None

class Model:
    def fit(self):
        import plots
        return plots

def train(x):
    import os.path
    if x:
        import apart_module.inner as inner
        return Model().fit, inner
    return load(pixels)

def other():
    import plots

if __name__ == "__main__":
    import quick
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a project, and a folder of installed packages."""
    installed = tmp_path / "site-packages"
    for package, (module, needs) in PACKAGES.items():
        (installed / module).mkdir(parents=True)
        (installed / module / "__init__.py").write_text("")
        (installed / module / "inner.py").write_text("")
        about = installed / f"{package.replace('-', '_')}-1.0.dist-info"
        about.mkdir()
        lines = "".join(f"Requires-Dist: {need}\n" for need in needs)
        about.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\n{lines}\nRequires-Dist: apart\n"
        )
        about.joinpath("RECORD").write_text(f"{module}/__init__.py,,\n{module}/inner.py,,\n")
    root = tmp_path / "project"
    root.mkdir()
    (root / "pyproject.toml").write_text("")
    (root / "helper.py").write_text("from more import inner\n\ndef load(x):\n    return x\n")
    (root / "unused.py").write_text("import quick\n")
    (root / "train.py").write_text(TRAIN)
    for folder in (installed, root):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(root)
    monkeypatch.setattr(missing_packages, "_asked", set())
    before = set(sys.modules)
    yield root
    for name in set(sys.modules) - before:
        del sys.modules[name]
    modules.startup_path.cache_clear()


def told(project, *lines, kind="requirements", name="train", source=True, **more):
    module = importlib.import_module("train")
    function = getattr(module, name)
    found = Dependencies(project / "requirements.txt" if source else None, kind, lines, **more)
    return missing_packages.warning(function, find_root(function), found)


def test_what_the_function_and_the_modules_of_the_project_import_is_told_in_one_warning(project) -> None:
    what, why, advice = told(project, "plots")

    names = ["apart_module (imported by train)", "more (imported by helper)", "pixels (imported by train)"]
    assert what == f"the environment of the job will lack what is installed here: {', '.join(names)}"
    assert why == f"{project}/requirements.txt does not bring apart image-tools more"
    assert advice == f"add apart image-tools more to {project}/requirements.txt"


@pytest.mark.skipif(sys.version_info < (3, 15), reason="lazy imports came with Python 3.15")
def test_a_package_that_the_function_imports_lazily_is_told_as_well(project) -> None:
    lazy = TRAIN.replace("import pixels", "lazy import pixels").replace("from helper", "lazy from helper")
    (project / "train.py").write_text(lazy)

    assert "more (imported by helper), pixels (imported by train)" in told(project, "plots")[0]
    assert "pixels" not in sys.modules


@pytest.mark.parametrize("lines", [("image-tools[draw]==1.0", "apart"), ("Image_Tools", "apart>=1", "plots")])
def test_what_a_named_package_needs_is_there(project, lines) -> None:
    assert told(project, *lines) is None


def test_metadata_in_another_encoding_stops_no_submission(project) -> None:
    metadata = project.parent / "site-packages" / "Image_Tools-1.0.dist-info" / "METADATA"
    metadata.write_bytes("Author: Søren\n".encode("latin-1") + metadata.read_bytes())

    assert told(project, "image-tools[draw]", "apart") is None


def test_an_extra_that_nobody_asked_for_brings_nothing(project) -> None:
    what, *_ = told(project, "image-tools", "apart")

    assert what.endswith(": plots (imported by Model.fit)")


def test_a_function_that_imports_less_is_told_less(project) -> None:
    what, *_ = told(project, "more", "apart", name="other")

    assert "plots (imported by other)" in what
    assert "apart" not in what


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_installed_from_the_project_itself_is_missing_only_if_it_is_compiled(project, compiled) -> None:
    (project / "apart_module").mkdir()
    (project / "apart_module" / "__init__.py").touch()
    if compiled:
        suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
        (project.parent / "site-packages" / "apart_module" / f"_fast{suffix}").touch()
    sys.path.append(sys.path.pop(sys.path.index(str(project))))  # as of a script in a folder below

    found = told(project, "image-tools", "plots", "more")

    assert (found is not None and "apart_module (imported by train)" in found[0]) == compiled


def test_a_compiled_package_of_the_project_itself_is_not_to_be_added_to_its_own_dependencies(project) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "Apart"\n')
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (project.parent / "site-packages" / "apart_module" / f"_fast{suffix}").touch()

    what, why, advice = told(project, "image-tools", "plots", "more")

    assert what.endswith(": apart_module (imported by train)")
    assert why == "apart is this project's own, and its compiled files are not in the project"
    assert advice == "install it as editable (pip install -e .), which leaves all of it in the project"


def test_a_lock_names_all_there_is(project) -> None:
    assert told(project, "image-tools==1", "plots==1", "never-installed-here==1", kind="lock") == (
        "the environment of the job will lack what is installed here: apart_module (imported by train)",
        f"{project}/requirements.txt does not bring apart",
        "uv add apart",
    )


@pytest.mark.parametrize("line", ["never-installed-here", "git+https://host/theirs"])
def test_nothing_is_told_where_a_line_may_bring_anything(project, line) -> None:
    assert told(project, "plots", line) is None


def test_nothing_is_told_of_an_image_that_is_not_known_here(project) -> None:
    assert told(project, brought=None) is None


def test_what_base_packages_bring_is_there_though_they_are_not_installed_here(project) -> None:
    what, *_ = told(project, "jax[cuda12]", "image-tools", brought=("jax", "plots"))

    assert what.endswith(": apart_module (imported by train)")


def test_a_project_whose_files_are_sent_is_there(project) -> None:
    apart = project.parent / "apart"
    apart.mkdir()
    (apart / "pyproject.toml").write_text('[project]\nname = "apart"\n')

    assert told(project, "image-tools[draw]", projects=(str(apart),)) is None


def test_a_project_without_a_file_is_told_to_write_one(project) -> None:
    _, why, advice = told(project, source=False, kind="none")

    assert why == "the project has no file that names dependencies"
    assert advice == f"add apart image-tools more plots to {project}/requirements.txt"


def test_an_installed_package_that_was_started_in_the_home_folder_is_told_to_start_elsewhere(
    project, monkeypatch
) -> None:
    module = importlib.import_module("pixels")
    module.train = types.FunctionType(compile("0", "", "eval"), vars(module))
    module.train.__module__ = "pixels"
    monkeypatch.setenv("HOME", str(project))

    *_, advice = missing_packages.warning(module.train, find_root(module.train), Dependencies(None, "none", ()))

    assert advice == "start it in a folder with a requirements.txt that names image-tools"


def test_each_function_is_looked_at_once(project) -> None:
    assert told(project, "plots") is not None
    assert told(project, "plots") is None
    assert told(project, "more") is not None


def test_what_a_script_imports_that_a_command_runs_is_told_too(project) -> None:
    found = Dependencies(project / "requirements.txt", "requirements", ("more",))
    plan = dataclasses.replace(plan_for_command("train.py"), source=str(project / "train.py"))

    what, *_ = missing_packages.warning(print, plan, found)

    names = [f"{name} (imported by train.py)" for name in ("apart_module", "pixels", "plots", "quick")]
    assert what.endswith(f": {', '.join(names)}")


def test_an_object_that_raises_when_it_is_looked_at_stops_nothing(project) -> None:
    class Unbound:
        @property
        def __class__(self):
            raise RuntimeError("working outside of a request")

    function = importlib.import_module("train").train
    function.__globals__["load"] = Unbound()

    assert told(project, "plots") is None
