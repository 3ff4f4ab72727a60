"""What tasks of a warm pod find and leave in the process that they are forked from."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._runner.worker import import_trace, preloaded_modules
from kinetic._runner.worker.import_hooks import ImportHooks, JaxProcess
from kinetic._runner.worker.import_trace import ImportTrace


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Stand for ``sys.modules`` of a task: what was imported before the fork comes first."""
    found = {"known": _module("known", "/usr/lib/site-packages/known.py"), "__main__": types.ModuleType("__main__")}
    monkeypatch.setattr(preloaded_modules, "_loaded", set(found))
    monkeypatch.setattr(preloaded_modules, "sys", types.SimpleNamespace(modules=found))
    monkeypatch.setattr(preloaded_modules.hidden, "found", {"new", "mine"})  # and not what is loaded past all finders
    return found


def _module(name: str, origin: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin=origin)
    return module


def test_a_task_that_imported_no_package_writes_nothing(imports: dict[str, types.ModuleType], tmp_path: Path) -> None:
    imports["mine"] = _module("mine", "/work/mine.py")

    preloaded_modules.note_imports(tmp_path / "imports.json", ["/work"])

    assert not (tmp_path / "imports.json").exists()


def test_a_task_that_imported_a_package_names_all_packages(
    imports: dict[str, types.ModuleType], tmp_path: Path
) -> None:
    imports["new"] = _module("new", "/usr/lib/site-packages/new.py")
    imports["mine"] = _module("mine", "/work/mine.py")
    imports["plugin"] = _module("plugin", "/usr/lib/site-packages/plugin.py")

    preloaded_modules.note_imports(tmp_path / "imports.json", ["/work"])

    assert preloaded_modules.noted_imports(tmp_path) == (("known", "new"), {}, frozenset(), {})


@pytest.mark.parametrize(
    "found",
    [
        "[" * 1_000_000,
        json.dumps({"names": ["a" * (3 << 20)], "changed": [], "set_before": {}}),
        '{"names": 1, "changed": [], "set_before": {}}',
        '{"names": [], "changed": [], "set_before": 1}',
        "\udc80",
    ],
)
def test_what_is_not_a_list_of_names_is_none(tmp_path: Path, found: str) -> None:
    (tmp_path / "imports.json").write_text(found, errors="surrogateescape")

    assert preloaded_modules.noted_imports(tmp_path) == preloaded_modules.Imports()


def test_the_names_of_modules_that_were_there_before_are_not_looked_at(
    imports: dict[str, types.ModuleType], tmp_path: Path
) -> None:
    seen = []

    class Loaded(set[str]):
        def __contains__(self, name: object) -> bool:
            seen.append(name)
            return super().__contains__(name)

    preloaded_modules._loaded = Loaded(imports)
    imports["mine"] = _module("mine", "/work/mine.py")

    preloaded_modules.note_imports(tmp_path / "imports.json", ["/work"])

    assert seen == ["mine", "__main__"], "the last ones, up to the first that is known"


def test_caches_that_libraries_empty_at_the_end_are_empty_before_tasks_are_forked(
    monkeypatch: pytest.MonkeyPatch, hidden: preloaded_modules._HiddenModules
) -> None:
    emptied = []

    def fails() -> None:
        emptied.append("typing")
        raise RuntimeError("of a library")

    monkeypatch.setattr(preloaded_modules.typing, "_cleanups", [fails])
    jax = types.SimpleNamespace(clear_caches=lambda: emptied.append("jax"))
    hidden.groups.append(preloaded_modules._Group({"jax": jax}, {}))

    preloaded_modules._empty_caches()

    assert emptied == ["typing", "jax"]


Begin = Callable[[], list[str]]
LIBRARY = """
import os, warnings
os.environ.setdefault('SET_BY_IMPORT', '1')
os.environ.setdefault('SET_BY_USER', 'not this')
os.environ['CHANGED_BY_IMPORT'] += ' and more'
del os.environ['REMOVED_BY_IMPORT']
os.environ['TOKENIZERS_PARALLELISM'] = 'false'
os.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/torchinductor_me'
warnings.filterwarnings('ignore', message='of a library')
import of_theirs.inside
"""


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[preloaded_modules._HiddenModules]:
    """Stand for the libraries that a process has imported before its forks."""
    found = preloaded_modules._HiddenModules()
    monkeypatch.setattr(preloaded_modules, "hidden", found)
    monkeypatch.setattr(preloaded_modules, "_loaded", {*sys.modules})
    before = dict(sys.modules)
    yield found
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: preloaded_modules._HiddenModules) -> Begin:
    """Import two libraries before the fork; return what begins a task, and notes what becomes of it."""
    (tmp_path / "of_theirs" / "inside").mkdir(parents=True)
    (tmp_path / "of_theirs" / "__init__.py").write_text(LIBRARY)
    (tmp_path / "of_theirs" / "inside" / "__init__.py").write_text("import decimal")
    (tmp_path / "second.py").write_text("import of_theirs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(warnings, "filters", [*warnings.filters])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SET_BY_IMPORT", "to be undone")
    monkeypatch.delenv("SET_BY_IMPORT")
    begun: list[str] = []
    preloaded_modules._import_all(["of_theirs", "of_theirs.inside", "second", "is_not_there"], VARIABLES, "")
    hidden.install()

    def begin() -> list[str]:
        hidden.watch(begun.append, lambda: begun.append("shown"))
        return begun

    return begin


VARIABLES = {"SET_BY_USER": "2", "CHANGED_BY_IMPORT": "3", "REMOVED_BY_IMPORT": "4", "TOKENIZERS_PARALLELISM": "5"}


def test_what_was_imported_before_a_fork_is_not_there_until_the_task_imports_it(libraries: Begin) -> None:
    begun = libraries()
    assert not {"of_theirs", "of_theirs.inside", "second"} & sys.modules.keys()
    assert {name: os.environ[name] for name in VARIABLES} == VARIABLES

    from of_theirs import inside

    library = sys.modules["of_theirs"]
    assert (inside, library.inside) == (sys.modules["of_theirs.inside"], inside)
    assert library.__spec__ is not None
    assert library.__spec__.loader is library.__loader__, "as an import of its own leaves it"
    assert importlib.import_module("of_theirs") is library
    assert importlib.reload(inside) is inside
    assert "second" not in sys.modules
    assert begun == ["shown"]


def test_variables_and_filters_of_an_import_before_the_fork_are_those_of_an_import_in_the_task(
    libraries: Begin,
) -> None:
    begun = libraries()
    import of_theirs  # noqa: F401 - it changes them

    found = {name: os.environ.get(name) for name in ("SET_BY_IMPORT", *VARIABLES)}
    assert [*found.values()] == ["1", "2", "3 and more", None, "false"]
    assert any(each[1] and each[1].match("of a library") for each in warnings.filters)
    import second  # noqa: F401 - these variables are no change of the task's own

    assert begun == ["shown", "shown"]


def test_a_task_that_changes_a_variable_before_an_import_begins_again_and_one_that_does_so_later_does_not(
    libraries: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = libraries()
    import of_theirs

    monkeypatch.setenv("CHOSEN", "jax")
    monkeypatch.delenv("SET_BY_USER")
    import of_theirs.inside  # noqa: F401 - it came with the first

    assert begun == ["shown"]

    import second  # noqa: F401 - after it

    assert begun == ["shown", "second was imported ahead of it with another value of CHOSEN, SET_BY_USER", "shown"]


def test_variables_that_we_change_ourselves_let_no_task_begin_again(
    libraries: Begin, hidden: preloaded_modules._HiddenModules, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = libraries()
    monkeypatch.setenv("OF_THE_TASK", "1")
    before = dict(os.environ)
    monkeypatch.setenv("OF_THE_DEBUGGER", "1")
    monkeypatch.delenv("SET_BY_USER")

    hidden.accept(before)
    import of_theirs  # noqa: F401 - it is looked at

    assert begun == ["of_theirs was imported ahead of it with another value of OF_THE_TASK", "shown"]


def test_a_folder_that_pytorch_chose_before_the_fork_for_what_it_compiles_is_not_the_tasks(
    libraries: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = libraries()
    import of_theirs  # noqa: F401 - it chose one

    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/of-the-cache")
    import second  # noqa: F401 - it is looked at

    assert begun == ["shown", "shown"]


@pytest.mark.parametrize(
    "name", ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "TORCHINDUCTOR_CACHE_DIR", "PL_GLOBAL_SEED", "PYTHONHASHSEED"]
)
def test_variables_that_no_library_reads_while_it_is_imported_let_no_task_begin_again(
    name: str, libraries: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = libraries()
    import of_theirs

    monkeypatch.setenv(name, "140230")
    import second  # noqa: F401 - it is looked at

    assert begun == ["shown", "shown"]
    assert os.environ[name] == "140230"
    assert of_theirs


def test_a_library_that_is_only_looked_for_is_imported_as_it_is_later(libraries: Begin) -> None:
    begun = libraries()
    found = importlib.util.find_spec("of_theirs")

    assert found is not None
    assert found.origin is not None
    assert found.submodule_search_locations == [os.path.dirname(found.origin)]
    assert importlib.util.find_spec("of_theirs") is not None
    inside = sys.modules["of_theirs.inside"]
    assert importlib.import_module("of_theirs").inside is inside
    assert begun == ["shown"]


def test_a_package_of_the_project_comes_before_a_library_of_the_same_name(
    libraries: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = libraries()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "second.py").write_text("MINE = True")
    monkeypatch.syspath_prepend(tmp_path / "project")

    preloaded_modules.drop_shadowed([str(tmp_path / "project"), str(tmp_path / "nowhere")])

    assert importlib.import_module("second").MINE
    assert begun == []


@pytest.mark.parametrize("odd", [False, True])
def test_a_task_runs_the_exit_handlers_of_what_it_has_imported_and_of_nothing_else(tmp_path: Path, odd: bool) -> None:
    for name in ("used", "unused"):
        (tmp_path / f"{name}.py").write_text(
            f"from atexit import register\n\n@register\ndef at_the_end():\n    print('the end of {name}')\n"
        )
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from kinetic._runner.worker import preloaded_modules, worker
preloaded_modules.preload(preloaded_modules.Imports(("used", "unused")), {{}}, forks=False)
preloaded_modules.hidden.install()
import used
used.register(print, "what it registers later")

class Odd:
    def __call__(self):
        print("cannot be compared")
    def __eq__(self, other):
        raise ValueError

if {odd}:
    used.register(Odd())
worker._run_exit_handlers()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    others = ["cannot be compared"] if odd else []
    assert done.stdout.splitlines() == [*others, "what it registers later", "the end of used"]


def test_a_library_whose_import_has_hooks_is_not_imported_once_more(
    libraries: Begin, hidden: preloaded_modules._HiddenModules
) -> None:
    known = hidden.module("second")
    done: list[str] = []
    hooks = ImportHooks(JaxProcess(0, 1, ""), {"second": "theirs"}, lambda: done.append("its cache began"))
    hooks.install()
    libraries()
    hidden.watch(lambda *_: None, hooks.catch_up)

    assert importlib.import_module("second") is known
    assert done == ["its cache began"]


def test_a_file_that_changed_within_the_second_in_which_an_import_began_may_have_been_read_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system whose times are whole seconds; one of two hours ago was certainly read as it is."""
    file, second = tmp_path / "library.py", 1_800_000_000_000_000_000
    file.touch()

    def changed_file(begun: int) -> str:
        trace = ImportTrace()
        monkeypatch.setattr(import_trace, "time", SimpleNamespace(time_ns=lambda: begun))
        with trace.noting():
            pass
        with monkeypatch.context() as patches:
            about = SimpleNamespace(st_mode=file.stat().st_mode, st_mtime_ns=second, st_ctime_ns=second)
            patches.setattr(os, "stat", lambda _: SimpleNamespace(**vars(about), st_size=1, st_ino=1))
            trace.keep({str(file)}, ())
            return trace.changed_file()

    assert changed_file(second + 400_000_000) == str(file)
    assert changed_file(second + 7_200_000_000_000) == ""


def test_importing_ahead_leaves_no_audit_hook_which_would_slow_down_each_task() -> None:
    code = (
        "import sys\nfrom kinetic._runner.worker import preloaded_modules as ours\nhooks = []\n"
        "sys.addaudithook(lambda event, _: hooks.append(event) if event == 'sys.addaudithook' else None)\n"
        "was = open\nours.preload(ours.Imports(('click',)), {})\nprint(hooks, open is was, 'click' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout == "[] True False\n", done.stderr
