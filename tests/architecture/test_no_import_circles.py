"""No module imports itself through others: not at its top, not inside a function, not for its types.

An import inside a function, or under TYPE_CHECKING, hides a circle from Python and not from the reader: two modules
that name each other are one subject with two owners. So every import in `src` counts, wherever it is written.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def imports_of(source: Path) -> dict[str, set[str]]:
    """Return which modules below a folder each module there imports."""
    files = {".".join(path.relative_to(source).with_suffix("").parts): path for path in source.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in files.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):  # `from room import module` names the module, not its room
                full = (f"{node.module}.{alias.name}" for alias in node.names)
                imported |= {each if each in modules else node.module or "" for each in full}
        found[name] = (imported & modules.keys()) - {name}
    return found


def circles_in(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules in which each one leads to every other one."""
    reached = {name: reachable(name, imports) for name in imports}
    found: list[set[str]] = []
    for name in sorted(imports):
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def reachable(name: str, imports: dict[str, set[str]]) -> set[str]:
    """Return every module that a module leads to; itself only where it is in a circle."""
    found: set[str] = set()
    todo = list(imports[name])
    while todo:
        if (found_here := todo.pop()) not in found:
            found.add(found_here)
            todo.extend(imports[found_here])
    return found


@pytest.fixture(scope="module")
def circles() -> list[set[str]]:
    return circles_in(imports_of(SOURCE))


def test_no_module_imports_itself_through_others(circles) -> None:
    assert not circles, f"an idea has two owners here: {[sorted(circle) for circle in circles]}"


def test_an_import_counts_wherever_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "top.py").write_text("from room import late\n")
    (tmp_path / "room" / "late.py").write_text("def go():\n    import room.typed\n")
    (tmp_path / "room" / "typed.py").write_text("if TYPE_CHECKING:\n    from room.top import Top\n")
    (tmp_path / "room" / "beside.py").write_text("from room import top, typed\n")

    circles = circles_in(imports_of(tmp_path))

    assert circles == [{"room.late", "room.top", "room.typed"}]
