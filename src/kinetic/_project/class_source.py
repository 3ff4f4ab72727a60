"""The statement that defined a class or function of the script, for those that the job must define as it was done here.

cloudpickle makes a class empty and fills it afterwards. What a decorator or a metaclass noted elsewhere is lost so: JAX
takes an object of such a class for a leaf, and ``equinox.Module`` works with the fields that it finds at once. What
other decorators make cannot be pickled at all, as a kernel of Triton, a ``jitclass`` of Numba or a table of SQLAlchemy.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import copyreg
import dis
import functools
import inspect
import itertools
import os
import re
import sys
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from kinetic._wire import NamedTuple, reducers, references

_PLAIN = (bool, int, float, str, type(None))
_AT_ONCE = ("<generic", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "__annotate__")  # names of nested code
_INSIDE = ("__func__", "__wrapped__", "method", "fget", "py_func", "func")  # where a function is; equinox's, Numba's


_SECRET = re.compile(
    r"token|secret|passw|passphrase|credential|connection_?string|(api|access|private)_?key", re.IGNORECASE
)
_SECRET_VALUE = re.compile(rb"(?!(true|false)$|[<[]).{4}", re.IGNORECASE | re.DOTALL)  # unlike a tokenizer's "<pad>"
_DEPTH, _MANY = 3, 1000  # levels of names that may be a secret's: ``CONFIG["hub"]["token"]``; names of one
_KNOW_ALREADY = {"jax", "keras", "flax", "equinox", "omegaconf"}  # by a class as above, or by import_hooks


class ClassSource(NamedTuple):
    """What defines a class, or a decorated function, again."""

    text: str
    file: str
    line: int
    flags: int  # of the script's ``from __future__ import``
    now: dict[str, Any]  # the globals that the statement needs
    later: dict[str, Any]  # those of its functions
    calls: list[tuple[str, int]]  # statements below it, as ``register_pytree_node(Pair, …)`` or ``@op.register_fake``
    plain: dict[str, Any]  # its attributes that are numbers or texts: the script may have set others since


def class_source(kind: type) -> ClassSource | None:
    """Return how a class at the top level of the script was defined; None if that is not known for certain."""
    main = vars(sys.modules["__main__"])
    if kind.__module__ != "__main__" or main.get(kind.__qualname__) is not kind:
        return None
    codes = {function.__code__ for function in _functions(kind, main)}
    files = (*(code.co_filename for code in codes), str(main.get("__file__")), *_cells(kind.__name__, main))
    for file in dict.fromkeys(files):
        with contextlib.suppress(SyntaxError, ValueError, NameError):  # NameError: of annotations, from Python 3.14 on
            if found := _source_in(file, kind.__name__, kind, main, codes):
                return found
    return None


def registrations(text: str, file: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what a script registers with a library: its package, an expression that does so, and the globals of that.

    By a decorator, as ``@register_dataframe_accessor("geo")``, or by a call that hands over a function or a class, as
    ``OmegaConf.register_new_resolver("mul", mul)``: another call ``register…`` may write to a service.
    """
    main, body = vars(sys.modules["__main__"]), _statements(text)
    last = {each.name: each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)}
    for node in body:
        made: list[ast.expr] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            function = main.get(node.name)
            code = getattr(function, "__code__", None)
            if last[node.name] is node and (code is None or code.co_firstlineno == _first_line(node)):
                given: ast.expr = ast.Name(node.name, ast.Load())
                made += [ast.Call(each, [given], []) for each in node.decorator_list]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _hands_over(node.value, main):
            made.append(node.value)
        for call in made:
            if package := _registrar(call, main):
                expression = ast.unparse(call)
                codes = _nested(compile(expression, file, "eval"))
                yield package, expression, _in(main, {name for code in codes for name in _globals(code)})


def secrets(text: str) -> dict[bytes, str]:
    """Return what may be a secret of a script, in UTF-8, and the name by which that is known, of a variable as well.

    What stands in the script is sent with that, and no secret.
    """
    named: list[tuple[str, str | bytes]] = [*os.environ.items()]
    named = [each for each in named if _SECRET.search(each[0]) or each[0].upper().endswith("KEY")]
    below: list[tuple[str, Any]] = [*vars(sys.modules["__main__"]).items()]
    for _ in range(_DEPTH):
        named += ((name, value) for name, value in below if isinstance(value, str | bytes) and _SECRET.search(name))
        below = [each for _, value in below for each in _fields(value)]
    named.reverse()  # of several names of one value the first counts
    found = {value if isinstance(value, bytes) else value.encode(errors="replace"): name for name, value in named}
    sent = text.encode()
    return {value: name for value, name in found.items() if _SECRET_VALUE.match(value) and value not in sent}


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Return names and values of a dict, an object or a class of the script, as its ``args`` or ``CONFIG``."""
    found: list[tuple[str, Any]] = []
    with contextlib.suppress(Exception):  # a stranger's object may raise anything when touched, or answer anything
        if isinstance(value, ModuleType | FunctionType) or (isinstance(value, type) and value.__module__ != "__main__"):
            return []
        if not isinstance(space := value if isinstance(value, dict) else getattr(value, "__dict__", {}), Mapping):
            return []
        if len(space) < _MANY:
            found += [(name, each) for name, each in [*space.items()] if isinstance(name, str)]
        named = getattr(type(value), "_fields", None)  # of a named tuple
        slots = named if isinstance(named, tuple) else copyreg._slotnames(type(value))  # type: ignore[attr-defined] # noqa: SLF001 - as pickle
        for name in slots:
            with contextlib.suppress(Exception):
                found.append((name, getattr(value, name)))
    return found


@functools.lru_cache(1)
def _statements(text: str) -> list[ast.stmt]:
    """Parse a script: once for all of its calls, since that takes 5 ms for a thousand lines."""
    return ast.parse(text).body


def _hands_over(call: ast.Call, main: dict[str, Any]) -> bool:
    """Return whether a call has a function or a class among its arguments."""
    given = (*call.args, *(each.value for each in call.keywords))
    return any(isinstance(each, ast.Lambda) or callable(main.get(getattr(each, "id", ""))) for each in given)


def _registrar(call: ast.expr, main: dict[str, Any]) -> str:
    """Return the package whose function ``register…`` a call or decorator uses; "" where it is none of a library."""
    called = call
    while isinstance(called, ast.Call):
        called = called.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    package = _package(called, main) if name.startswith("register") else ""
    return "" if package in {"__main__", *sys.stdlib_module_names, *_KNOW_ALREADY} else package


def _package(called: ast.expr, main: dict[str, Any]) -> str:
    """Return the package of what is called, or decorates, if the script has it as a module, class or function."""
    while isinstance(called, ast.Call):
        called = called.func
    while isinstance(called, ast.Attribute):
        called = called.value
    owner = main.get(getattr(called, "id", ""))
    if not isinstance(owner, ModuleType | type | FunctionType | BuiltinFunctionType):
        return ""
    return (owner.__name__ if isinstance(owner, ModuleType) else str(owner.__module__)).partition(".")[0]


def _below_ours(node: ast.stmt, main: dict[str, Any]) -> int:
    """Return in which line decorators below ``kinetic.run`` begin, whose options may be secrets; 0 if none is seen."""
    pairs = itertools.pairwise(getattr(node, "decorator_list", []))
    return max((below.lineno for above, below in pairs if _package(above, main) == "kinetic"), default=0)


def _cells(name: str, main: dict[str, Any]) -> Iterator[str]:
    """Yield the files, by their names in linecache, of cells that define a class, what was run last first."""
    entries = getattr(sys.modules.get("linecache"), "cache", {}).items()
    lines = {"".join(entry[2]).strip(): file for file, entry in entries if len(entry) > 1 and entry[1] is None}
    typed = main.get("In")  # IPython's list has what was run again at its end; a script's own ``In`` may be anything
    for text in (*reversed(typed if isinstance(typed, list) else []), *reversed(lines)):
        if f"class {name}" in str(text) and (file := lines.get(str(text).strip())):
            yield file


def function_source(name: str, made: object) -> ClassSource | None:
    """Return how a function at the top level of the script was defined, of which its decorators made something else."""
    main = vars(sys.modules["__main__"])
    with contextlib.suppress(Exception):  # a stranger's object may raise anything when touched; or the file is gone
        for inner in (*(getattr(made, each, None) for each in _INSIDE), *getattr(made, "__dict__", {}).values()):
            if isinstance(inner, FunctionType) and inner.__globals__ is main and inner.__qualname__ == name:
                return _source_in(inner.__code__.co_filename, name, None, main, {inner.__code__})
    return None


def made_by_class_statement(name: str) -> ClassSource | None:
    """Return the class statement of the script that made what is not a class, as an interface of zope.interface."""
    main = vars(sys.modules["__main__"])
    for file in (str(main.get("__file__")), *_cells(name, main)):
        with contextlib.suppress(SyntaxError, ValueError):
            if found := _source_in(file, name, None, main, set(), ast.ClassDef):
                return found
    return None


def _source_in(
    file: str,
    name: str,
    kind: type | None,
    main: dict[str, Any],
    codes: set[CodeType],
    statement: type[ast.ClassDef | ast.FunctionDef] = ast.FunctionDef,
) -> ClassSource | None:
    import linecache

    lines = linecache.getlines(file)
    body = ast.parse("".join(lines)).body
    flags = sum(each.compiler_flag for each in main.values() if type(each) is __future__._Feature)  # noqa: SLF001 - it has no other name
    # As a whole: calls of what the file imports compile differently in a part of it.
    whole = compile("".join(lines), file, "exec", flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    for place, node in enumerate(body):
        if not isinstance(node, ast.ClassDef if kind else statement) or node.name != name:
            continue
        line = _first_line(node)
        if not _is_of(node, [code for code in whole.co_consts if _begins_at(code, line)], kind, codes):
            continue
        if references.WRAPPED in type(main.get(name)).__dict__ and not (line := _below_ours(node, main)):
            continue
        text = "".join(lines[line - 1 : node.end_lineno])
        below = {*_bound(body[place:])}
        body_of = name if isinstance(node, ast.ClassDef) else ""
        now, later = _names(reducers.compiled(text, file, line, flags), body_of, below)
        if kind:  # texts, after ``from __future__ import annotations``, that a metaclass may look into
            annotations = {*_annotations(node)}
            now, later = now | annotations - below, later | annotations & below
        calls = [each for each in body[place + 1 :] if _registers(each, name)]
        later |= {each.id for call in calls for each in ast.walk(call) if isinstance(each, ast.Name)} - now
        texts = [("".join(lines[_first_line(each) - 1 : each.end_lineno]), _first_line(each)) for each in calls]
        plain = {name: value for name, value in vars(kind).items() if isinstance(value, _PLAIN)} if kind else {}
        return ClassSource(text, file, line, flags, _in(main, now), _in(main, later), texts, plain)
    return None


def _functions(kind: type, main: dict[str, Any]) -> Iterator[FunctionType]:
    """Yield the functions that the body of a class defined; a decorator or a metaclass may have wrapped them."""
    compiled = getattr(vars(kind).get("class_type"), "jit_methods", {})  # of a jitclass of Numba
    for value in (*vars(kind).values(), *compiled.values()):
        for found in (value, *(getattr(value, name, None) for name in _INSIDE)):
            if not isinstance(found, FunctionType) or found.__globals__ is not main:
                continue
            is_its_own = found.__qualname__ == f"{kind.__qualname__}.{found.__name__}"
            if is_its_own and found.__code__.co_filename != "<string>":  # of which dataclasses make some
                yield found


def _begins_at(code: object, line: int) -> bool:
    return isinstance(code, CodeType) and code.co_firstlineno == line


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _is_of(node: ast.ClassDef | ast.FunctionDef, made: list[CodeType], kind: type | None, codes: set[CodeType]) -> bool:
    """Return whether a statement is the one of this class or function: the file may have been changed since."""
    if kind is None or codes:
        return codes <= {code for each in made for code in _nested(each)}
    annotated = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
    return [each.id for each in annotated if isinstance(each, ast.Name)] == [*kind.__annotations__]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _registers(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement only calls a function ``register…`` with a class first, or has a decorator of it."""
    if isinstance(statement, ast.FunctionDef):
        used = (each.func if isinstance(each, ast.Call) else each for each in statement.decorator_list)
        return statement.name == name or any(  # of one name: the methods of a function of plum
            isinstance(each, ast.Attribute) and ast.unparse(each.value) == name for each in used
        )
    if not isinstance(statement, ast.Expr) or not isinstance(call := statement.value, ast.Call) or not call.args:
        return False
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return called.startswith("register") and isinstance(call.args[0], ast.Name) and call.args[0].id == name


def _bound(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names of functions and classes that some statements define."""
    for each in statements:
        if isinstance(each, ast.ClassDef | ast.FunctionDef):
            yield each.name


def _annotations(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """Yield the names in the annotations of a class."""
    for part in node.body:
        for each in ast.walk(part.annotation) if isinstance(part, ast.AnnAssign) else ():
            if isinstance(name := getattr(each, "id", None) or getattr(each, "value", None), str):  # of "Post", too
                yield name


def _names(made: CodeType, name: str, not_yet: set[str]) -> tuple[set[str], set[str]]:
    """Return the globals that a statement needs, or the class of this name with those in it, and those of functions."""
    bodies = [code for code in _nested(made) if name and not code.co_flags & inspect.CO_OPTIMIZED]
    at_once = [made, *bodies, *(code for code in _nested(made) if code.co_name.startswith(_AT_ONCE))]
    now = {each for code in at_once for each in _globals(code)} - not_yet
    return now, {each for code in _nested(made) for each in _globals(code)} - now


def _globals(code: CodeType) -> Iterator[str]:
    for each in dis.get_instructions(code):
        if each.opname in {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}:
            yield each.argval


def _in(main: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: main[name] for name in sorted(names) if name in main}
