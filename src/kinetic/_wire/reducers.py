"""What cloudpickle loses of functions and classes is kept: the file of code, slots, and what a base is told of them."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, MutableMapping
from types import CodeType
from typing import Any

_TELLS = "__init_subclass__"
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


def of_class(kind: Any, reduced: Any) -> Any:
    """Return cloudpickle's reduction of a class with its ``__slots__``, made by ``make_class`` if a base is told of it.

    Of anything else, return the reduction as it is.

    cloudpickle sets the slots afterwards, when they have no effect: instances get a ``__dict__``, and what is pickled
    of those cannot be opened with the original class. Exceptions have a ``__dict__`` anyway, and Python pickles no
    slots of theirs; those of a tuple are always empty, and ``typing.NamedTuple`` refuses them.
    """
    if not isinstance(kind, type) or not isinstance(reduced, tuple) or reduced[1][0] is not type(kind):
        return reduced  # an object, a class that is found by its name, or an enum, which is made in another way
    make, arguments, *rest = reduced
    slots = kind.__dict__.get("__slots__")
    if slots is not None and not issubclass(kind, tuple | BaseException):
        place = next(place for place, each in enumerate(arguments) if isinstance(each, dict))
        names = slots if isinstance(slots, str) else tuple(slots)
        arguments = (*arguments[:place], {**arguments[place], "__slots__": names}, *arguments[place + 1 :])
    if _told(kind.__mro__[1:]):
        make, arguments = make_class, (make, *arguments)
    return make, arguments, *rest


def make_class(make: Callable[..., Any], kind: Any, name: str, bases: tuple[type, ...], *others: Any) -> Any:
    """Make a class as cloudpickle does, without its bases' ``__init_subclass__`` where that fails.

    It is called with an empty class, and without the keywords that stood behind the bases: nothing keeps those. What it
    did to the class where that was written is in the state that follows.
    """
    try:
        return make(kind, name, bases, *others)
    except Exception:  # noqa: BLE001 - of user code
        told = _told(each for base in bases for each in base.__mro__)
        for each in told:
            type.__setattr__(each, _TELLS, classmethod(lambda _: None))
        try:
            return make(kind, name, bases, *others)
        finally:
            for each, method in told.items():
                type.__setattr__(each, _TELLS, method)


def _told(bases: Iterable[type]) -> dict[type, Any]:
    """Return those of them that are told of their subclasses, and their methods for that, but Python's own."""
    own = {"builtins", "typing"}
    return {base: base.__dict__[_TELLS] for base in bases if _TELLS in base.__dict__ and base.__module__ not in own}
