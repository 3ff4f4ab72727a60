"""What cloudpickle loses of functions and classes is kept: the file of a code object, the slots of a class."""

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


def with_slots(kind: Any, reduced: Any) -> Any:
    """Return cloudpickle's reduction of a class with its ``__slots__`` among what the class is made with.

    Of anything else, return the reduction as it is.

    cloudpickle sets them afterwards, when they have no effect: instances get a ``__dict__``, and what is pickled of
    those cannot be opened with the original class. Exceptions have a ``__dict__`` anyway, and Python pickles no slots
    of theirs; those of a tuple are always empty, and ``typing.NamedTuple`` refuses them.
    """
    slots = kind.__dict__.get("__slots__") if isinstance(kind, type) else None
    if slots is None or issubclass(kind, tuple | BaseException) or not isinstance(reduced, tuple):
        return reduced
    if reduced[1][0] is not type(kind):  # an enum, which is made in another way
        return reduced
    make, arguments, *rest = reduced
    place = next(place for place, each in enumerate(arguments) if isinstance(each, dict))
    names = slots if isinstance(slots, str) else tuple(slots)
    return make, (*arguments[:place], {**arguments[place], "__slots__": names}, *arguments[place + 1 :]), *rest
