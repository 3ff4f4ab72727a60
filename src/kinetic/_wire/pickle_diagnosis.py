"""Pickle diagnosis: find the one value that cannot be pickled, and the path by which it is reached."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

_DEEPEST = 20  # a path longer than this helps nobody
_WIDEST = 10_000  # children of one value that are tried
_REPR = 80
_SECONDS = 2.0  # for each try of a client of boto3, a quarter goes by
_OURS = ("cloudpickle.", "kinetic.")  # names of what makes parts, which say nothing about these
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})

Fails = Callable[[object], BaseException | None]


def find(
    roots: Sequence[tuple[str, object]], fails: Fails, seconds: float = _SECONDS
) -> tuple[str, object, BaseException] | None:
    """Find the smallest part that cannot be pickled: the path to it, the value and its error.

    ``fails`` tries to pickle a value, and returns what went wrong, or None. What is not found in time is a larger part.
    """
    for name, value in roots:
        error = fails(value)
        if error is not None:
            return _descend(name, value, error, fails, {id(value)}, _DEEPEST, monotonic() + seconds)
    return None


def _descend(
    path: str, value: object, error: BaseException, fails: Fails, seen: set[int], depth: int, limit: float
) -> tuple[str, object, BaseException]:
    is_culprit = vars(error).get("culprit") is value or _is_about(error, type(value))
    if depth and not is_culprit and not is_too_deep(error):  # else the path would be as long as the nest is deep
        for step, (name, child) in enumerate(_children(path, value)):
            if step >= _WIDEST or monotonic() > limit:
                break
            if id(child) in seen:
                continue
            seen.add(id(child))
            inner = fails(child)
            if inner is not None:
                return _descend(name, child, inner, fails, seen, depth - 1, limit)
    return path, value, error


def _is_about(error: BaseException, kind: type) -> bool:
    """Return whether Python says of a value of this class that it has no way to pickle it, whatever is in it."""
    names = {kind.__name__, f"{kind.__module__}.{kind.__qualname__}"}  # the latter for those of an extension
    return any(str(error) == f"cannot pickle {name!r} object" for name in names)


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a value with the paths to them."""
    if isinstance(value, types.MethodType):
        name = f"the instance of {getattr(value, '__qualname__', 'a method')}()"
        yield f"{path}.__self__" if "→" in path else name, value.__self__
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield from ((_reached(path, value) + name, part) for name, part in _of_function(value))
    elif isinstance(value, partial):
        yield f"{_arrow(path)}.func", value.func
        yield f"{_arrow(path)}.args", value.args
        yield f"{_arrow(path)}.keywords", value.keywords
    elif isinstance(value, type):
        yield from ((_reached(path, value) + name, part) for name, part in _of_class(value))
    elif isinstance(value, staticmethod | classmethod):
        yield path, value.__func__
    elif isinstance(value, property):
        yield from ((path, accessor) for accessor in (value.fget, value.fset, value.fdel) if accessor)
    else:
        yield from _of_container(path, value)
    if not isinstance(value, type | types.FunctionType | types.ModuleType):
        yield from _of_instance(path, value)


def _reached(path: str, value: object) -> str:
    """Return what to put before a part of a function or class of a library, whose name alone says little."""
    module = sys.modules.get(str(getattr(value, "__module__", "")))
    return f"{path}: " if "-packages/" in str(getattr(module, "__file__", "")) else ""


def _of_container(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in _quietly(value.items):
            yield f"{_arrow(path)}[{short(key)}]", item
            yield f"the key {short(key)} of {path}", key
    elif isinstance(value, list | tuple | deque):
        for number, item in enumerate(value):
            yield f"{_arrow(path)}[{number}]", item
    elif isinstance(value, set | frozenset):
        yield from ((f"the element {short(item)} of {path}", item) for item in value)


def _of_class(kind: type) -> Iterator[tuple[str, object]]:
    for name, item in list(vars(kind).items()):
        if isinstance(item, types.FunctionType) or not (name.startswith("__") and name.endswith("__")):
            yield f"{kind.__qualname__}.{name}", item
    yield from ((f"the class {base.__qualname__}", base) for base in kind.__bases__)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    name = function.__qualname__.rpartition(".")[2]
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        for content in _quietly(partial(_attribute, cell, "cell_contents")):
            yield f"variable {variable!r} that {name}() closes over", content
    for variable in sorted(_globals_read(function.__code__)):
        if variable in function.__globals__:
            yield f"global {variable!r} read by {name}()", function.__globals__[variable]
    for number, default in enumerate(function.__defaults__ or ()):
        yield f"default {number} of {name}()", default
    for key, default in (function.__kwdefaults__ or {}).items():
        yield f"default of {key!r} of {name}()", default
    yield from ((f"attribute {key!r} of {name}()", item) for key, item in vars(function).items())


def _globals_read(code: types.CodeType) -> set[str]:
    import dis  # only on the way to an error; co_names would also hold the names of attributes

    names = {step.argval for step in dis.get_instructions(code) if step.opname in _READS}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _globals_read(constant)
    return names


def _of_instance(path: str, value: object) -> Iterator[tuple[str, object]]:
    for name, item in _quietly(lambda: list(vars(value).items())):
        yield f"{_arrow(path)}.{name}", item
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            for item in _quietly(partial(_attribute, value, name)):
                yield f"{_arrow(path)}.{name}", item
    if type(value).__module__ != "builtins":  # else one of an extension, which cannot be pickled itself
        yield f"the class {type(value).__qualname__}", type(value)


def _attribute(value: object, name: str) -> list[object]:
    return [getattr(value, name)]


def _quietly(ask: Callable[[], Any]) -> Any:
    """Return what a value tells about itself, or nothing: its own code may fail in any way."""
    try:
        return ask()
    except BaseException:  # noqa: BLE001 - user code
        return ()


def _arrow(path: str) -> str:
    return path if "→" in path else f"{path} → "


def is_too_deep(error: BaseException) -> bool:
    """Return whether a value is nested more deeply than a pickler can follow."""
    return isinstance(error, RecursionError) or "recursion" in str(error)  # cloudpickle says it in words


def beginning_of_repr(value: object, most: int) -> str:
    """Return a value's repr, cut at so many characters; of lists and dicts with millions of parts no more is made."""
    text = ""
    for piece in _pieces_of_repr(value, most, ()):
        text += piece
        if len(text) >= most:
            break
    return text[:most]


def _pieces_of_repr(value: Any, most: int, above: tuple[int, ...]) -> Iterator[str]:
    kind = type(value)
    if kind in (str, bytes, bytearray):
        yield repr(value[:most])
        return
    if kind not in (list, tuple, dict):
        yield repr(value)
        return
    begin, end = [*str(kind())]
    if id(value) in above:
        yield f"{begin}...{end}"
        return
    yield begin
    for number, part in enumerate(value):
        if number:
            yield ", "
        yield from _pieces_of_repr(part, most, (*above, id(value)))
        if kind is dict:
            yield ": "
            yield from _pieces_of_repr(value[part], most, (*above, id(value)))
    yield "," + end if kind is tuple and len(value) == 1 else end


def short(value: object) -> str:
    """Return a value's repr, cut at 80 characters."""
    try:
        text = beginning_of_repr(value, _REPR + 1)
    except BaseException:  # noqa: BLE001 - user code
        return f"<{type(value).__qualname__}>"
    return text if len(text) <= _REPR else text[: _REPR - 1] + "…"


# ------------------------------------------------------------------------------------------ what cannot be opened


class _Made:
    """What a step of a pickle would make; while the path to it is sought, nothing is called."""

    def __init__(self, step: int, name: str, *parts: object) -> None:
        self.step, self.name, self.parts = step, name, list(parts)
        self.append = self.add = self.parts.append  # as if it were a list or a set

    def __setitem__(self, key: object, item: object) -> None:
        """Do as if it were a dict."""
        self.append({key: item})


def find_unopened(data: bytes, name: str = "") -> str:
    """Open a pickle once more that cannot be opened, and return the path to the part that fails, with its class.

    Args:
        data: The pickle.
        name: Its name in the path; "" for the arguments of a call, which have names of their own.

    Returns:
        As "argument 0 → ['font'] (PIL.ImageFont.FreeTypeFont)"; "" if the part is not found.
    """
    import io  # only on the way to an error
    import pickle

    own = pickle._Unpickler.dispatch  # noqa: SLF001 - Python's unpickler, as it is written in Python

    class Unpickler(pickle._Unpickler):  # noqa: SLF001 - as above
        step, notes = 0, False  # how many steps it did; whether it only notes what they would make

        def find_class(self, module: str, name: str) -> object:
            return _Made(self.step, f"{module}.{name}") if self.notes else super().find_class(module, name)

    def counted(code: int) -> Callable[[Any], None]:
        def load(self: Any) -> None:
            self.step += 1
            if not self.notes or code == pickle.STACK_GLOBAL[0]:
                own[code](self)
                return
            given, made = self.stack.pop(), self.stack[-1]
            new = _Made(self.step, made.name, made, given)
            if code == pickle.BUILD[0]:
                made.append(new)
                return
            self.stack[-1] = new
            if made.name.endswith("_setstate"):  # of cloudpickle, for a function or a class
                given[0].append(new)

        return load

    steps = (pickle.REDUCE, pickle.NEWOBJ, pickle.BUILD, pickle.STACK_GLOBAL)
    Unpickler.dispatch = own | {code[0]: counted(code[0]) for code in steps}
    opening, noting = Unpickler(io.BytesIO(data)), Unpickler(io.BytesIO(data))
    try:
        opening.load()
    except Exception:  # noqa: BLE001 - user code
        noting.notes = True
        return _path_to_step(name, noting.load(), opening.step)
    return ""


def _path_to_step(name: str, root: Any, step: int) -> str:
    pending: list[tuple[str, object]] = [(name, root)]
    if not name:
        pending = [(f"argument {number}", value) for number, value in enumerate(root[0])]
        pending += [(f"argument {key!r}", value) for key, value in root[1].items()]
    seen: set[int] = set()
    for path, value in pending:  # which grows
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _Made):
            if value.step == step:
                kind = "" if value.name.startswith(_OURS) else value.name.removeprefix("builtins.")
                return f"{path} ({kind})" if kind else path
            pending += [(path, part) for part in value.parts]
        elif isinstance(value, dict):
            if "__closure__" in value:  # cloudpickle's, of a function
                pending += [(f"global {key!r}", item) for key, item in value.pop("__globals__", {}).items()]
                pending.append(("a variable that a function closes over", value.pop("__closure__")))
            pending += [(f"{_arrow(path)}[{short(key)}]", item) for key, item in value.items()]
        elif isinstance(value, list):
            pending += [(f"{_arrow(path)}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, tuple | set | frozenset):
            pending += [(path, item) for item in value]
    return ""
