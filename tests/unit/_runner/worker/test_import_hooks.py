"""What happens when a worker imports a library that compiles: in which order, once, and nothing before."""

from __future__ import annotations

import sys
import textwrap
from importlib import import_module

import pytest

from kinetic._runner.worker import import_hooks
from kinetic._runner.worker.import_hooks import ImportHooks, JaxProcess
from kinetic._wire.task import COMPILERS

ALONE = JaxProcess(0, 1, "")


class Library:
    def __init__(self, said: list[str], name: str) -> None:
        self._said, self._name = said, name

    def __getattr__(self, verb: str):
        return lambda *_: self._said.append(f"{verb} {self._name}")


class Cache:
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def begin(self, name: str) -> Library:
        self._said.append(f"begin {name}")
        return Library(self._said, name)

    def finish(self, *, succeeded: bool) -> None:
        self._said.append("finish")


@pytest.fixture
def said(tmp_path, monkeypatch) -> list[str]:
    """Return what was said, of stand-ins for the libraries that say when they are executed."""
    for name in ("jax", "torch", "triton", "vllm"):
        (tmp_path / name).mkdir()
        text = f"import builtins\nbuiltins.said_by_libraries.append('execute {name}')\n"
        (tmp_path / name / "__init__.py").write_text(text)
    (tmp_path / "torch" / "_inductor.py").write_text(
        textwrap.dedent("import builtins\nbuiltins.said_by_libraries.append('execute torch._inductor')\n")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found: list[str] = []
    import builtins

    monkeypatch.setattr(builtins, "said_by_libraries", found, raising=False)
    for name in [*sys.modules]:
        if name.partition(".")[0] in {"jax", "torch", "triton", "vllm"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(import_hooks, "_join_slice", lambda *_: found.append("join"))
    yield found
    for name in [*sys.modules]:
        if name.partition(".")[0] in {"jax", "torch", "triton", "vllm"}:
            del sys.modules[name]


def install(process: JaxProcess, said: list[str], compilers=COMPILERS) -> ImportHooks:
    hooks = ImportHooks(process, compilers, lambda: Cache(said))
    hooks.install()
    return hooks


def test_jax_gets_its_cache_before_it_runs_and_is_listened_to_after(said) -> None:
    hooks = install(ALONE, said)
    assert said == []

    import_module("jax")
    import_module("jax")
    hooks.finish()

    assert said == ["begin jax", "execute jax", "listen jax", "finish"]


@pytest.mark.parametrize("host", [0, 1])
def test_a_host_asks_for_its_programs_before_jax_is_imported_and_then_meets_the_others(said, host) -> None:
    install(JaxProcess(host, 2, "10.0.0.1:1"), said)

    import_module("jax")

    assert said == ["begin jax", "execute jax", "listen jax", "join"]


def test_torch_alone_begins_nothing_and_its_compiler_waits_for_the_cache(said) -> None:
    hooks = install(ALONE, said)
    import_module("torch")
    assert said == ["execute torch"]

    import_module("torch._inductor")
    hooks.finish()

    assert said[1:] == ["begin torch", "wait torch", "execute torch._inductor", "wait torch", "finish"]


def test_vllm_is_imported_while_its_programs_are_fetched(said) -> None:
    install(ALONE, said)

    import_module("vllm")

    assert said == ["begin vllm", "execute vllm", "wait vllm"]


def test_without_a_cache_hosts_still_meet_and_a_single_one_has_no_hook(said) -> None:
    before = [*sys.meta_path]
    hooks = install(ALONE, said, {})
    assert sys.meta_path == before

    install(JaxProcess(1, 2, "10.0.0.1:1"), said, {})
    import_module("jax")
    hooks.finish()
    assert said == ["execute jax", "join"]


def test_a_cache_that_cannot_be_made_changes_nothing(said) -> None:
    hooks = ImportHooks(ALONE, COMPILERS, lambda: None)
    hooks.install()

    import_module("jax")
    import_module("triton")
    hooks.finish()

    assert said == ["execute jax", "execute triton"]


def test_a_cache_that_breaks_does_not_break_the_import(said, monkeypatch) -> None:
    class NoMonitoring(Library):
        def listen(self, *_: object) -> None:
            raise AttributeError("this version of jax has no monitoring")

    class Broken(Cache):
        def begin(self, name: str) -> Library:
            if name == "torch":
                raise OSError("no space left")
            return NoMonitoring(said, name)

    lines: list[str] = []
    monkeypatch.setattr(import_hooks, "write_to_log", lines.append)
    ImportHooks(ALONE, COMPILERS, lambda: Broken(said)).install()

    import_module("jax")
    import_module("triton")

    assert said == ["execute jax", "execute triton"]
    assert lines == [
        "kinetic: compile cache: AttributeError: this version of jax has no monitoring\n",
        "kinetic: compile cache: OSError: no space left\n",
    ]


def test_what_another_version_of_a_library_does_not_know_takes_no_other_setting_away(
    said, tmp_path, monkeypatch
) -> None:
    (tmp_path / "torch" / "__init__.py").write_text(
        textwrap.dedent("""
        options = {}
        precision = 8

        def set_options(**given):
            if not given.keys() <= {"rows", "columns"}:
                raise ValueError(given)
            options.update(given)
        """)
    )
    told = {"precision": 3, "set_options": {"rows": 5, "of_a_later_version": 1, "columns": 7}}
    monkeypatch.setitem(import_hooks.later_settings, "torch", told)
    ImportHooks(ALONE, {}, lambda: None).install()

    torch = import_module("torch")

    assert (torch.precision, torch.options) == (3, {"rows": 5, "columns": 7})
