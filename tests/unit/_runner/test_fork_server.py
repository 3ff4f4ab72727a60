"""What tasks of a warm pod find and leave in the process that they are forked from."""

from __future__ import annotations

import json
import os
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from kinetic._runner.pod import fork_server


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Stand for ``sys.modules`` of a task: what was imported before the fork comes first."""
    found = {"known": _module("known", "/usr/lib/site-packages/known.py"), "__main__": types.ModuleType("__main__")}
    monkeypatch.setattr(fork_server, "_loaded", set(found))
    monkeypatch.setattr(fork_server, "sys", types.SimpleNamespace(modules=found))
    return found


def _module(name: str, origin: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin=origin)
    return module


def test_a_task_that_imported_no_package_writes_nothing(imports: dict[str, types.ModuleType], tmp_path: Path) -> None:
    imports["mine"] = _module("mine", "/work/mine.py")

    fork_server.note_imports(tmp_path / "imports.json", ["/work"])

    assert not (tmp_path / "imports.json").exists()


def test_a_task_that_imported_a_package_names_all_packages(
    imports: dict[str, types.ModuleType], tmp_path: Path
) -> None:
    imports["new"] = _module("new", "/usr/lib/site-packages/new.py")
    imports["mine"] = _module("mine", "/work/mine.py")

    fork_server.note_imports(tmp_path / "imports.json", ["/work"])

    assert json.loads((tmp_path / "imports.json").read_text()) == ["known", "new"]


@pytest.mark.parametrize("found", ["[" * 1_000_000, json.dumps(["a" * (3 << 20)]), '{"a": 1}', "\udc80"])
def test_what_is_not_a_list_of_names_is_none(tmp_path: Path, found: str) -> None:
    (tmp_path / "imports.json").write_text(found, errors="surrogateescape")

    assert fork_server.noted_imports(tmp_path) == []


def test_the_names_of_modules_that_were_there_before_are_not_looked_at(
    imports: dict[str, types.ModuleType], tmp_path: Path
) -> None:
    seen = []

    class Loaded(set[str]):
        def __contains__(self, name: object) -> bool:
            seen.append(name)
            return super().__contains__(name)

    fork_server._loaded = Loaded(imports)
    imports["mine"] = _module("mine", "/work/mine.py")

    fork_server.note_imports(tmp_path / "imports.json", ["/work"])

    assert seen == ["mine", "__main__"], "the last ones, up to the first that is known"


def test_caches_that_libraries_empty_at_the_end_are_empty_before_tasks_are_forked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emptied = []

    def fails() -> None:
        emptied.append("typing")
        raise RuntimeError("of a library")

    monkeypatch.setattr(fork_server.typing, "_cleanups", [fails])
    jax = types.SimpleNamespace(clear_caches=lambda: emptied.append("jax"))
    monkeypatch.setitem(sys.modules, "jax", jax)

    fork_server._empty_caches()

    assert emptied == ["typing", "jax"]


def test_variables_that_an_import_before_the_fork_changes_are_changed_for_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changes_variables.py").write_text(
        "import os, warnings\n"
        "os.environ.setdefault('SET_BY_IMPORT', '1')\n"
        "os.environ.setdefault('SET_BY_USER', 'not this')\n"
        "os.environ['CHANGED_BY_IMPORT'] += ' and more'\n"
        "del os.environ['REMOVED_BY_IMPORT']\n"
        "warnings.filterwarnings('ignore', message='of a library')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(fork_server, "_changed", {})
    monkeypatch.setattr(warnings, "filters", [*warnings.filters])
    monkeypatch.delitem(sys.modules, "changes_variables", raising=False)
    variables = {"SET_BY_USER": "2", "CHANGED_BY_IMPORT": "3", "REMOVED_BY_IMPORT": "4"}
    before = dict(os.environ)

    fork_server._import_all(["changes_variables"], variables, "")

    assert dict(os.environ) == before
    assert any(each[1] and each[1].match("of a library") for each in warnings.filters), "as after an import of its own"
    environ = variables | {"KINETIC_JOB_ID": "a-job"}
    monkeypatch.setattr(fork_server.os, "environ", environ)
    fork_server.apply_changes()
    assert environ == {
        "SET_BY_IMPORT": "1",
        "SET_BY_USER": "2",
        "CHANGED_BY_IMPORT": "3 and more",
        "KINETIC_JOB_ID": "a-job",
    }
