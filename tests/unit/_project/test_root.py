"""From a function to the folder that ships."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kinetic
from kinetic._project.root import find_root, innermost
from kinetic.errors import ProjectRootError

SOURCE = """
import functools

def train(x=1):
    return x

def decorate(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner

class Model:
    def fit(self): ...
    @classmethod
    def make(cls): ...
    @staticmethod
    def help(): ...
    def __call__(self): ...

small = lambda x: x
cached = functools.lru_cache(train)
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder of its own, so that climbing ends in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def load(monkeypatch):
    """Import a file under a name."""

    def loaded(path: Path, name="loaded_by_test_root", source=SOURCE):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


@pytest.mark.parametrize("marker", ["pyproject.toml", "requirements.txt", "setup.py", "setup.cfg", ".git"])
def test_the_first_folder_with_a_marker_is_the_root(home, load, marker):
    project = home / "code" / "project"
    module = load(project / "src" / "deep" / "train.py")
    (project / marker).touch()
    (home / "code" / "pyproject.toml").touch()

    plan = find_root(module.train)

    assert plan.root == project
    assert plan.entry_rel == "src/deep"


def test_a_repository_folder_is_a_marker_as_well(home, load):
    module = load(home / "project" / "train.py")
    (home / "project" / ".git").mkdir()

    assert find_root(module.train).root == home / "project"


def test_without_a_marker_the_script_s_own_folder_ships(home, load):
    module = load(home / "scratch" / "train.py")

    assert find_root(module.train).root == home / "scratch"


def test_a_package_ships_whole(home, load):
    module = load(home / "code" / "pkg" / "sub" / "train.py")
    (home / "code" / "pkg" / "__init__.py").touch()
    (home / "code" / "pkg" / "sub" / "__init__.py").touch()

    plan = find_root(module.train)

    assert plan.root == home / "code"
    assert plan.entry_rel == "pkg/sub"


def test_a_marker_in_the_home_folder_does_not_count(home, load):
    module = load(home / "code" / "train.py")
    (home / ".git").mkdir()

    assert find_root(module.train).root == home / "code"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda module: module.train,
        lambda module: functools.partial(module.train, 1),
        lambda module: functools.partial(functools.partial(module.train, 1)),
        lambda module: functools.partialmethod(module.train),
        lambda module: module.Model().fit,
        lambda module: module.Model.make,
        lambda module: module.Model.__dict__["make"],
        lambda module: module.Model.help,
        lambda module: module.Model(),
        lambda module: functools.partial(module.Model()),
        lambda module: module.small,
        lambda module: module.cached,
        lambda module: module.decorate(module.train),
        lambda module: functools.lru_cache(functools.partial(module.train)),
    ],
)
def test_whatever_is_wrapped_around_a_function_its_own_project_ships(home, load, wrap):
    module = load(home / "project" / "train.py")

    plan = find_root(wrap(module))

    assert plan.root == home / "project"
    assert plan.notes == ()


def test_an_object_that_invents_attributes_does_not_hold_us_for_ever():
    class Inventive:
        @property
        def __wrapped__(self):
            return Inventive()

    assert isinstance(innermost(Inventive()), Inventive)


@pytest.mark.parametrize(
    "console", [os.__file__, "/env/lib/site-packages/joblib/worker.py", f"{os.path.dirname(sys.executable)}/ptpython"]
)
def test_what_was_typed_or_sent_into_a_process_of_another_program_is_not_of_an_installed_package(
    home, monkeypatch, console: str
):
    main, here, script = ModuleType("__main__"), home / "here", home / "theirs" / "script.py"
    main.__file__ = console  # as of Python's own console, from 3.13 on, and in a process of joblib
    monkeypatch.setitem(sys.modules, "__main__", main)
    script.parent.mkdir()
    script.write_text(SOURCE)
    here.mkdir()
    monkeypatch.chdir(here)

    for name, folder in (("<python-input-0>", here), (str(script), script.parent)):
        exec(compile(SOURCE, name, "exec"), vars(main))
        plan = find_root(main.train)

        assert (plan.root, plan.notes) == (folder, ())


def test_a_script_that_a_program_of_pex_runs_ships_its_own_project(home, monkeypatch):
    main, script = ModuleType("__main__"), home / "theirs" / "script.py"
    main.__file__ = str(home / "unzipped" / "__main__.py")  # it stays the module, and the script has another one
    Path(main.__file__).parent.mkdir()
    Path(main.__file__).touch()
    monkeypatch.setitem(sys.modules, "__main__", main)
    script.parent.mkdir()
    script.write_text(SOURCE)
    monkeypatch.chdir(script.parent)
    theirs = {"__name__": "__main__", "__file__": "script.py"}

    exec(compile(SOURCE, "script.py", "exec"), theirs)

    assert find_root(theirs["train"]).root == script.parent


@pytest.mark.parametrize("here", ["", "programs"])
def test_a_script_that_is_a_link_ships_what_it_links_to_unless_it_is_run_beside_the_link(home, monkeypatch, here):
    main, script, link = ModuleType("__main__"), home / "theirs" / "script.py", home / "programs" / "script"
    for folder in (script.parent, link.parent):
        folder.mkdir()
    script.write_text(SOURCE)
    link.symlink_to(script)
    main.__file__ = str(link)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(home / here)

    exec(compile(SOURCE, str(link), "exec"), vars(main))

    assert find_root(main.train).root == (link if here else script).parent


def test_a_user_whose_home_folder_the_system_does_not_know_ships_the_project(home, load, monkeypatch):
    module = load(home / "project" / "train.py")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user id without a name
    monkeypatch.chdir(home / "project")

    assert find_root(module.train).root == home / "project"


def test_a_function_of_an_installed_package_ships_the_current_directory_and_says_so(home, load, monkeypatch):
    module = load(home / "venv" / "lib" / "python3.11" / "site-packages" / "tool" / "train.py")
    (home / "work").mkdir()
    monkeypatch.chdir(home / "work")

    plan = find_root(module.train)

    assert plan.root == home / "work"
    assert plan.entry_rel == ""
    assert "installed package" in plan.notes[0]


@pytest.mark.parametrize(("here", "is_what"), [("", "the home folder"), ("/", "the whole disk")])
def test_a_function_of_an_installed_package_ships_nothing_of_the_home_folder(home, load, monkeypatch, here, is_what):
    module = load(home / "venv" / "lib" / "python3.11" / "site-packages" / "tool" / "train.py")
    monkeypatch.chdir(home / here)

    plan = find_root(module.train)

    assert list(plan.root.iterdir()) == []
    assert (plan.entry_rel, plan.cwd_rel, plan.sys_path_rel) == ("", None, ("",))
    assert f"no files are sent, because the current directory is {is_what}" in plan.notes[0]


def test_what_an_installed_package_has_made_for_a_script_ships_the_scripts_project(home, load, monkeypatch):
    made = load(
        home / "venv" / "lib" / "python3.11" / "site-packages" / "tool" / "train.py"
    ).train  # as a click.Command
    main = ModuleType("__main__")
    main.__file__ = str(home / "project" / "bin" / "script.py")
    (home / "project" / "bin").mkdir(parents=True)
    (home / "project" / "bin" / "script.py").touch()
    (home / "project" / "pyproject.toml").touch()
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.chdir(home)

    plan = find_root(made)

    assert (plan.root, plan.entry_rel, plan.notes) == (home / "project", "bin", ())


def test_a_function_of_the_standard_library_ships_the_current_directory(home, monkeypatch):
    (home / "work").mkdir()
    monkeypatch.chdir(home / "work")

    assert find_root(json.dumps).root == home / "work"
    assert find_root(functools.partial(json.dumps)).root == home / "work"
    assert find_root(len).root == home / "work"


def test_a_notebook_or_prompt_ships_the_project_around_the_current_directory(home):
    (home / "project" / "notebooks").mkdir(parents=True)
    (home / "project" / "pyproject.toml").touch()
    code = """
import json, sys
def train(): ...
from kinetic._project.root import find_root
print(json.dumps(find_root(train).to_json()))
"""

    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    where = home / "project" / "notebooks"
    shown = subprocess.run([sys.executable, "-c", code], cwd=where, env=environ, capture_output=True, check=True)

    page = json.loads(shown.stdout)
    assert page["root"] == str(home / "project")
    assert page["entry_rel"] == page["cwd_rel"] == "notebooks"
    assert page["sys_path_rel"][0] == "notebooks"


def test_the_variable_overrules_detection(home, load):
    module = load(home / "code" / "project" / "train.py")
    (home / "code" / "project" / "pyproject.toml").touch()

    plan = find_root(module.train, environ={"KINETIC_PACKAGE_ROOT": "~/code", "HOME": str(home)})

    assert plan.root == home / "code"
    assert plan.entry_rel == "project"


def test_the_variable_must_name_a_folder(home, load):
    module = load(home / "code" / "train.py")

    with pytest.raises(ProjectRootError, match="not a folder"):
        find_root(module.train, environ={"KINETIC_PACKAGE_ROOT": str(home / "missing")})


def test_the_variable_must_name_a_folder_that_contains_the_function(home, load):
    module = load(home / "code" / "train.py")
    (home / "other").mkdir()

    with pytest.raises(ProjectRootError, match="does not contain the function"):
        find_root(module.train, environ={"KINETIC_PACKAGE_ROOT": str(home / "other")})


def test_the_variable_may_name_the_project_through_a_link(home, load):
    module = load(home / "code" / "sub" / "train.py")
    (home / "link").symlink_to(home / "code")

    plan = find_root(module.train, environ={"KINETIC_PACKAGE_ROOT": str(home / "link")})

    assert plan.entry_rel == "sub"


def test_a_script_that_lies_directly_in_the_home_folder_is_refused_with_advice(home, load):
    module = load(home / "train.py")

    with pytest.raises(ProjectRootError, match="the home folder would be sent") as caught:
        find_root(module.train)

    assert "move the code into a folder of its own, or set KINETIC_PACKAGE_ROOT" in str(caught.value)


@pytest.mark.parametrize("root", ["~", "~/..", "/"])
def test_the_home_folder_and_everything_above_it_are_refused_even_when_asked_for(home, load, root):
    module = load(home / "code" / "train.py")

    with pytest.raises(ProjectRootError, match="would be sent"):
        find_root(module.train, environ={"KINETIC_PACKAGE_ROOT": root, "HOME": str(home)})


def test_a_prompt_in_the_root_of_the_disk_is_refused(home):
    with pytest.raises(ProjectRootError, match="the whole disk would be sent"):
        find_root(len, cwd=Path("/"))


def test_a_home_folder_that_is_reached_through_a_link_is_the_home_folder(tmp_path, home, load):
    (tmp_path / "alias").symlink_to(home)
    module = load(tmp_path / "alias" / "train.py")

    with pytest.raises(ProjectRootError, match="the home folder would be sent"):
        find_root(module.train)


def test_the_order_of_the_search_path_is_kept(home, load, monkeypatch):
    project = home / "project"
    module = load(project / "app" / "train.py")
    (project / "pyproject.toml").touch()
    for name in ("zebra", "alpha", "middle"):
        (project / name).mkdir()
    path = ["zebra", "/usr/lib/python3", "alpha", "", "middle", "missing"]
    monkeypatch.setattr(sys, "path", [os.path.join(project, entry) for entry in path])

    plan = find_root(module.train)

    assert plan.sys_path_rel == ("zebra", "alpha", "", "middle")


def test_the_root_comes_last_in_the_search_path_when_the_client_had_not_got_it(home, load, monkeypatch):
    module = load(home / "project" / "src" / "train.py")
    (home / "project" / "pyproject.toml").touch()
    monkeypatch.setattr(sys, "path", [f"{home}/project/src"])

    assert find_root(module.train).sys_path_rel == ("src", "")


@pytest.mark.parametrize(
    ("path", "in_root", "is_last"),
    [
        (["src", "site-packages"], "package/__init__.py", True),
        (["src", "site-packages"], "module.py", True),
        (["src", "site-packages", ""], "module.py", True),
        (["", "site-packages"], "module.py", False),
        (["src", "site-packages"], "other.py", False),
        (["src", "site-packages"], "package/data.csv", False),
        (["src", "site-packages"], "imported.py", False),
    ],
)
def test_a_root_that_would_hide_installed_modules_comes_after_them(
    tmp_path, home, load, monkeypatch, path, in_root, is_last
):
    module = load(home / "project" / "src" / "train.py")
    project, installed = home / "project", tmp_path / "site-packages"
    (project / "pyproject.toml").touch()
    (installed / "package").mkdir(parents=True)
    for name in ("module.py", "imported.py"):
        (installed / name).touch()
    (project / in_root).parent.mkdir(exist_ok=True)
    (project / in_root).touch()
    for name in ("package.egg-info", "a.egg-info"):
        (project / name).mkdir()
    imported = ModuleType("imported")
    imported.__file__ = str(project / "imported.py")  # as by pytest, which searches no path
    monkeypatch.setitem(sys.modules, "imported", imported)
    package = ModuleType("package")
    package.__file__ = str(project / "package-env" / "lib" / "package.py")  # not in the folder called package
    monkeypatch.setitem(sys.modules, "package", package)
    places = {"site-packages": str(installed)}
    monkeypatch.setattr(sys, "path", [places.get(entry, os.path.join(project, entry).rstrip("/")) for entry in path])

    page = find_root(module.train).to_json()

    assert page["sys_path_rel"] == ([each for each in path if each == "src"] + ([] if is_last else [""]))


def test_environments_below_the_root_never_enter_the_search_path(home, load, monkeypatch):
    project = home / "project"
    module = load(project / "train.py")
    for folder in ("odd-name/lib/python3.11/site-packages", "odd-name/lib/extra", "vendor/dist-packages", "libs"):
        (project / folder).mkdir(parents=True)
    (project / "odd-name" / "pyvenv.cfg").touch()
    folders = ("odd-name/lib/python3.11/site-packages", "odd-name/lib/extra", "vendor/dist-packages", "libs")
    monkeypatch.setattr(sys, "path", [f"{project}/{folder}" for folder in folders])

    assert find_root(module.train).sys_path_rel == ("libs", "")


def test_the_empty_entry_of_the_search_path_is_the_current_directory(home, load, monkeypatch):
    module = load(home / "project" / "train.py")
    (home / "project" / "sub").mkdir()
    (home / "project" / "pyproject.toml").touch()
    monkeypatch.chdir(home / "project" / "sub")
    monkeypatch.setattr(sys, "path", ["", 3, "..", "/nowhere"])

    plan = find_root(module.train)

    assert plan.sys_path_rel == ("sub", "")
    assert plan.cwd_rel == "sub"


def test_a_current_directory_elsewhere_is_not_recorded(home, load):
    module = load(home / "project" / "train.py")

    assert find_root(module.train).cwd_rel is None
