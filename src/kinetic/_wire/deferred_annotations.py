"""Annotations, which Python evaluates once they are asked for, from 3.14 on: they may name what is not there.

So do those with what ``if TYPE_CHECKING:`` imports. Evaluating what ``lazy import`` has made would import it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from kinetic._wire import references

if TYPE_CHECKING:
    import inspect

_BODY = "__classdict__"  # the variable in which what evaluates them has the names of its class


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
    """Return the signature of a function; from Python 3.14 on, annotations are texts in it, so that none is evaluated.

    Raises:
        TypeError, ValueError: It has none, as some builtins.
    """
    import inspect  # cloudpickle loads it anyway

    as_texts: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        import annotationlib

        as_texts["annotation_format"] = annotationlib.Format.STRING
    return inspect.signature(function, follow_wrapped=follow_wrapped, **as_texts)


def signature_text(signature: Any) -> str:
    """Return a signature as its function was written."""
    return signature.format(quote_annotation_strings=False) if sys.version_info >= (3, 14) else str(signature)


def with_those_of_class(kind: type, reduced: Any) -> Any:
    """Return cloudpickle's reduction of a class that is copied with its annotations, which that may leave out."""
    if vars(kind).get("__annotate_func__") is None or "__annotations_cache__" in vars(kind):
        return reduced
    make, arguments, (state, slots), *rest = reduced
    own = _unevaluated(kind)
    state |= {"__annotations__": kind.__annotations__} if own is None else own
    return make, arguments, (state, slots), *rest


def taken_off(function: FunctionType) -> tuple[FunctionType, dict[str, Any]]:
    """Return a function, or a copy without annotations where their values cannot be sent; and what is set instead."""
    own = _unevaluated(function)
    if own is None:
        return function, {}
    code, cells = function.__code__, function.__closure__
    plain = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    plain.__module__, plain.__qualname__, plain.__doc__ = function.__module__, function.__qualname__, function.__doc__
    plain.__kwdefaults__ = function.__kwdefaults__
    vars(plain).update(vars(function))
    return plain, own


def _unevaluated(it: Any) -> dict[str, Any] | None:
    """Return the attribute that takes the place of annotations whose values cannot be sent; None where they can.

    It is empty where these are not the user's own, as of what ``typing.NamedTuple`` makes.
    """
    annotate = getattr(it, "__annotate__", None)
    if not isinstance(annotate, FunctionType):
        return None
    named = (annotate.__globals__.get(name) for name in annotate.__code__.co_names)
    if not any(type(each) is references.LAZY_IMPORT for each in named):
        try:
            it.__annotations__  # noqa: B018 - which keeps them
        except Exception:  # noqa: BLE001, S110 - most often a NameError
            pass
        else:
            return None
    return {"__annotate__": _alone(annotate)} if annotate.__module__ == it.__module__ else {}


def _alone(annotate: FunctionType) -> FunctionType:
    """Return a copy of what evaluates annotations that has of its class only what these name."""
    code, cells = annotate.__code__, dict(zip(annotate.__code__.co_freevars, annotate.__closure__ or (), strict=True))
    if _BODY in cells:
        body = cells[_BODY].cell_contents
        cells[_BODY] = CellType({name: body[name] for name in code.co_names if name in body})
    alone = FunctionType(code, annotate.__globals__, annotate.__name__, annotate.__defaults__, tuple(cells.values()))
    alone.__module__, alone.__qualname__ = annotate.__module__, annotate.__qualname__
    return alone


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the globals that cloudpickle does not see: of what evaluates the annotations of a class."""
    if _BODY not in function.__code__.co_freevars:
        return {}
    space = function.__globals__
    return {name: space[name] for name in function.__code__.co_names if name in space}


def forward_reference(it: Any) -> tuple[Any, ...]:
    """Reduce a ``ForwardRef`` without what it would be evaluated with: that is all of a class."""
    kind: Any = type(it)
    make = functools.partial(kind, module=it.__forward_module__, is_class=it.__forward_is_class__)
    return make, (it.__forward_arg__,)
