"""The files of a runner for pods, packed by an interpreter of its own: ``python -I -S -X no_debug_ranges FILE``.

It reads one JSON object from standard input: ``compile`` and ``keep`` have source files by their names in the runner's
folder, ``texts`` has what is written as it is. It writes, marshalled and compressed, the
columns of all code objects, and a dict with the bytes of each file or the row of its code, from which ``unpack.py`` of
the runner makes both.
A fresh interpreter writes the same bytes each time; one that has done other things does not, because marshal writes a
string otherwise that something else refers to. And only a start can leave out the columns of each instruction, a
quarter of the bytes. Line numbers stay.

Docstrings, annotations of functions and modules, qualified names of functions and blocks for type checkers are not
compiled: nothing of the runner reads them.
Of sources that are kept, comments and types of signatures go, docstrings are emptied, and each line stays where it is.
"""

from __future__ import annotations

import ast
import io
import json
import lzma
import marshal
import sys
import tokenize
import types
from typing import Any, TypeVar

Documented = TypeVar("Documented", bound=ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)


class Bare(ast.NodeTransformer):
    """Take away what a job does not need."""

    def visit_Module(self, node: ast.Module) -> ast.AST:
        self.generic_visit(node)
        node.body = [each for each in map(without_annotation, node.body) if each is not None]
        return without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        return without_docstring(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse or ast.copy_location(ast.Pass(), node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        named = node.args
        for argument in (*named.posonlyargs, *named.args, *named.kwonlyargs, named.vararg, named.kwarg):
            if argument is not None:
                argument.annotation = None
        return without_docstring(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - of ast


def without_docstring(node: Documented) -> Documented:
    """Return a module, class or function without its docstring."""
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        node.body = node.body[1:] or [ast.copy_location(ast.Pass(), first)]
    return node


def without_annotation(node: ast.stmt) -> ast.stmt | None:
    """Return a statement of a module without its annotation; None of one that assigns nothing."""
    if not isinstance(node, ast.AnnAssign):
        return node
    return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value is not None else None


COLUMNS_OF_BYTES = ("co_exceptiontable", "co_linetable", "co_code")  # joined, they take 1.3 % less
# Of a code object, what differs between the functions of a file. Its qualified name is not read, and its file is where
# it is unpacked.
COLUMNS = (
    "co_argcount",
    "co_posonlyargcount",
    "co_kwonlyargcount",
    "co_nlocals",
    "co_stacksize",
    "co_flags",
    "co_firstlineno",
    *COLUMNS_OF_BYTES,
    "co_name",
    "co_freevars",
    "co_cellvars",
    "co_varnames",
    "co_names",
    "co_consts",
)


def tabulate(code: types.CodeType, columns: dict[str, list[Any]]) -> int:
    """Add a row for a code object to the columns, and then those of the code inside it; return the row's number.

    Columns compress to nine tenths of what whole code objects do. Among the constants, an empty list is the next row.
    """
    row = len(columns["co_code"])
    for name, column in columns.items():
        column.append(getattr(code, name))
    columns["co_consts"][row] = tuple([] if isinstance(each, types.CodeType) else each for each in code.co_consts)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            tabulate(inner, columns)
    return row


def emptied(text: str) -> str:
    """Return a source without comments and types of signatures, and with empty docstrings; lines keep their numbers."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    types: list[tuple[int, int, int]] = []  # line, start and end, in bytes, as ast counts
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if without_docstring(node).body[:1] != [first]:
                lines[first.lineno - 1] = " " * first.col_offset + '""'
                lines[first.lineno : first.end_lineno] = [""] * ((first.end_lineno or first.lineno) - first.lineno)
        if isinstance(node, ast.arg) and node.annotation is not None and node.lineno == node.end_lineno:
            types.append((node.lineno, node.col_offset + len(node.arg), node.end_col_offset or 0))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (result := node.returns) is not None:
            arrow = lines[result.lineno - 1].encode().rfind(b" -> ", 0, result.col_offset)
            if arrow >= 0 and result.lineno == result.end_lineno:
                types.append((result.lineno, arrow, result.end_col_offset or 0))
    for row, start, end in sorted(types, reverse=True):  # the last of a line first
        line = lines[row - 1].encode()
        lines[row - 1] = (line[:start] + line[end:]).decode()
    return "\n".join(lines)


def main() -> None:
    """Pack what standard input names; the bytes go to standard output."""
    asked = json.load(sys.stdin)
    made: dict[str, int | bytes] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for name, path in sorted(asked["compile"].items()):
        tree = Bare().visit(ast.parse(_read(path)))
        made[name] = tabulate(compile(tree, "", "exec", dont_inherit=True, optimize=0), columns)
    for name, path in sorted(asked["keep"].items()):
        made[name] = emptied(_read(path)).encode()
    for name, text in sorted(asked["texts"].items()):
        made[name] = text.encode()
    joined = {name: (list(map(len, columns[name])), b"".join(columns.pop(name))) for name in COLUMNS_OF_BYTES}
    packing = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]  # 0.3 % smaller
    sys.stdout.buffer.write(lzma.compress(marshal.dumps((joined, columns, made)), filters=packing))


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


if __name__ == "__main__":
    main()
