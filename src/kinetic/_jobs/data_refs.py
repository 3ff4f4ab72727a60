"""The Data and the handles among the arguments of a call: what travels in their place.

Pickling itself finds them: it reaches them wherever they are, keeps types and shared objects, and the job's unpickling
puts a path, or a value, in their place. What could not be a path afterwards is refused: a member of a set, or a key of
a dict.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._jobs.job_options import FOLLOWED
from kinetic._wire import deferred_annotations, references
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._data.data import Data

_MODULE = "kinetic._data.data"  # while it is not imported, there is no Data anywhere


class FoundData:
    """The Data objects of one call, numbered in the order in which pickling meets them."""

    def __init__(self, first: int = 0) -> None:
        self._first = first  # a batch's children continue where its function ended
        self._numbers: dict[int, int] = {}
        self.data: list[Data] = []
        module = sys.modules.get(_MODULE)
        self._kind: type | None = module.Data if module is not None else None

    def __call__(self, obj: object) -> tuple[Any, ...] | None:
        """Return what travels instead of an object: for Data a number, else None; see ``_project.pickler``."""
        if self._kind is None or not isinstance(obj, self._kind):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = self._first + len(self.data)
            self.data.append(obj)  # type: ignore[arg-type] # its class is Data
        return references.data, (self._numbers[id(obj)],)

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Refuse Data where no path can take its place."""
        if not self.data:
            return
        for spot in references.find_objects(args, kwargs, lambda value: id(value) in self._numbers):
            if spot.where != "value":
                what = "a member of a set" if spot.where == "set" else "a key of a dict"
                raise OptionError(
                    f"{spot.position} is kinetic.Data, and cannot be {what}",
                    why=f"{spot.found!r} becomes a path in the job, which is another object with another hash",
                    next="put it into a list, a tuple, or the value of a dict",
                    code="data-position",
                )

    def local_paths(self, volumes: Mapping[str, Data] | None) -> list[Path]:
        """Return the paths that ship as data, and so need not ship with the project."""
        from pathlib import Path

        everything = [*self.data, *(volumes or {}).values()]
        return [Path(data.path) for data in everything if data.is_local]

    def copied_paths(self, volumes: Mapping[str, Data] | None) -> list[str]:
        """Return those of them that are sent as they are now."""
        return [data.path for data in (*self.data, *(volumes or {}).values()) if data.is_local and not data.fuse]


_Swap = Callable[[object], "tuple[Any, ...] | None"]


class HandedOver:
    """The handles among the arguments of a call, numbered in the order in which pickling meets them."""

    def __init__(self) -> None:
        self.handles: dict[str, Any] = {}

    def swap(self, besides: _Swap) -> _Swap:
        """Return what travels instead of an object: in a handle's place a number, else what ``besides`` says."""

        def swapped(obj: object) -> tuple[Any, ...] | None:
            if not hasattr(type(obj), FOLLOWED):
                return besides(obj)
            name = str(getattr(obj, "job_id", None) or getattr(obj, "group_id", ""))
            self.handles.setdefault(name, obj)
            return references.result, (list(self.handles).index(name),)

        return swapped


def with_defaults(function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments by name, and with them the defaults of the function that hold Data.

    A function that travels by its name gets its defaults in the job, where Data means nothing: so they are sent.
    """
    module = sys.modules.get(_MODULE)
    by_place = getattr(function, "__defaults__", None) or ()
    by_name = getattr(function, "__kwdefaults__", None) or {}
    if module is None or not _holds(module.Data, *by_place, *by_name.values()):
        return kwargs
    import inspect  # cloudpickle loads it anyway

    signature = deferred_annotations.signature_of(function, follow_wrapped=False)
    given = signature.bind(*args, **kwargs).arguments
    open_to_names = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    defaults = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if name not in given and parameter.kind in open_to_names and _holds(module.Data, parameter.default)
    }
    return {**kwargs, **defaults}


def _holds(kind: type, *values: object) -> bool:
    return next(references.find_objects(values, {}, lambda value: isinstance(value, kind)), None) is not None
