"""Code objects in a pickle keep the name of their file, which tracebacks, debuggers and stacks show."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping
from types import CodeType
from typing import Any

_Reducers = MutableMapping[type, Callable[[Any], Any]]


def with_file_names(reducers: _Reducers) -> _Reducers:
    """Return cloudpickle's reducers, the ``dispatch_table`` of its pickler, with another one for code objects.

    cloudpickle 3.1.3 and newer say that all code is of a file ``<dynamic-code>``: a traceback would have no line of it.
    """
    reduce_code = reducers[CodeType]

    def reduce(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *rest = reduce_code(code)
        file = next(place for place, each in enumerate(arguments) if isinstance(each, str))  # the first text of them
        return make, (*arguments[:file], code.co_filename, *arguments[file + 1 :]), *rest

    return ChainMap({CodeType: reduce}, reducers)
