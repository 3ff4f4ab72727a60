"""Pickling what leaves the job: by reference wherever the other side can find it under the same name.

By value only what has no name there: lambdas, nested functions and classes. A class of the script keeps its identity on
the collecting side, because it is found in that side's ``__main__``.
"""

from __future__ import annotations

import functools
import pickle
import sys
from types import FunctionType
from typing import IO, Any

from kinetic._wire import references

PROTOCOL = 5  # Python 3.8 on; buffers of arrays are written without a second copy in a frame


def dump(value: object, file: IO[bytes]) -> None:
    """Write a value to a file, piece by piece."""
    pickler_class()(file, protocol=PROTOCOL).dump(value)


@functools.cache
def pickler_class() -> type[pickle.Pickler]:
    """Return what pickles; asked for before user code runs, which may replace what it is made of."""
    import cloudpickle  # loaded in the keeper already: workers are its forks

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, BaseException) and _leaves_pickling_to_python(type(obj)):
                reduced: Any = obj.__reduce__()  # of Python's own: (type, args) and mostly (…, state)
                return references.exception, (*reduced[:2], reduced[2] if len(reduced) > 2 else {})
            if isinstance(obj, type | FunctionType) and _has_a_name(obj):
                return NotImplemented  # the pickler's own way: by reference
            if isinstance(obj, type | FunctionType) and _lives_on_the_client(obj):
                return references.by_name, (obj.__module__, obj.__qualname__)
            return super().reducer_override(obj)

    return Pickler


def _leaves_pickling_to_python(kind: type) -> bool:
    """Say whether an exception is pickled as Python does: by its ``args``, which its own ``__init__`` may not take."""
    words = ("__reduce__", "__reduce_ex__", "__setstate__")
    return kind.__module__ != "builtins" and not any(isinstance(getattr(kind, word), FunctionType) for word in words)


def _has_a_name(thing: type | FunctionType) -> bool:
    """Say whether ``module.qualname`` is this very object."""
    found: object = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in getattr(thing, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found is thing


def _lives_on_the_client(thing: type | FunctionType) -> bool:
    """Say whether this came by value from a module that did not ship: the client has the original."""
    module, qualname = getattr(thing, "__module__", None), thing.__qualname__
    return bool(module) and module not in sys.modules and "<" not in qualname
