"""Pickling a call: first-party code by reference, because its source ships anyway.

By value go only functions and classes of ``__main__`` (a script, a notebook) and of modules that do not ship; each
module of the second kind is named with the reason. Functions of ``__main__`` live in the job's ``__main__`` as well.
"""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import IO, Any

from kinetic._packing import modules
from kinetic._packing.root import Plan
from kinetic._wire import references

PROTOCOL = 5  # Python 3.8 on; large buffers are written without a copy of the whole pickle
Swap = Callable[[object], "tuple[Any, ...] | None"]
_registry = threading.Lock()  # cloudpickle's list of by-value modules belongs to the process


class _MainGlobals(dict[str, Any]):
    """Stands for the namespace of the script and becomes the job's own ``__main__`` there."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return references.main_globals, ()


class Travel:
    """Decide how each function, class and module travels, and remember what went by value and why.

    Args:
        plan: The project that ships.
        by_value: Modules that the user wants by value, from ``[tool.kinetic]``.
        swap: Says what travels in an object's place, as ``__reduce__`` does, or None for "itself".
    """

    def __init__(self, plan: Plan, by_value: Sequence[str] = (), *, swap: Swap | None = None) -> None:
        self.swap = swap
        self._plan = plan
        self._wanted = frozenset(by_value)
        self._answers: dict[str, str] = {}
        self.by_value: dict[str, str] = {}

    def is_by_value(self, module: str) -> bool:
        """Say whether what a module defines must be pickled by value."""
        if module not in self._answers:
            self._answers[module] = self._ask(module)
        return self._answers[module] == "by-value"

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each module that travelled by value."""
        return tuple(f"{name} travels by value: {why}" for name, why in sorted(self.by_value.items()))

    def _ask(self, name: str) -> str:
        found = sys.modules.get(name)
        if name == "__main__" or not isinstance(found, ModuleType):
            return "main"
        if name in self._wanted or name.partition(".")[0] in self._wanted:
            self.by_value[name] = "[tool.kinetic] by_value names it"
            return "by-value"
        answer = modules.classify(found, self._plan)
        if answer.kind == "by-value":
            self.by_value[name] = answer.reason
        return answer.kind


def pickler_version() -> str:
    """Return the version of cloudpickle, whose own functions its pickles name."""
    import cloudpickle  # 27 ms; whoever asks has pickled

    return str(cloudpickle.__version__)


def dump(value: object, file: IO[bytes], travel: Travel) -> None:
    """Pickle a value for the job into a file, piece by piece."""
    with _registered() as register:
        _pickler(file, travel, register).dump(value)


def dumps(value: object, travel: Travel) -> bytes:
    """Pickle a value for the job."""
    file = io.BytesIO()
    dump(value, file, travel)
    return file.getvalue()


@contextmanager
def _registered() -> Iterator[Callable[[ModuleType], None]]:
    """Lend cloudpickle's by-value list to one pickling at a time, and leave it as it was."""
    import cloudpickle  # 27 ms; first submission only

    with _registry:
        ours: list[ModuleType] = []
        before = set(cloudpickle.list_registry_pickle_by_value())

        def register(module: ModuleType) -> None:
            if module.__name__ not in before and module not in ours:
                cloudpickle.register_pickle_by_value(module)
                ours.append(module)

        try:
            yield register
        finally:
            for module in ours:
                cloudpickle.unregister_pickle_by_value(module)


def _pickler(file: IO[bytes], travel: Travel, register: Callable[[ModuleType], None]) -> pickle.Pickler:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType | ModuleType):
                module = _module_of(obj)
                if travel.is_by_value(module) and module in sys.modules:
                    register(sys.modules[module])
                elif isinstance(obj, FunctionType) and _is_wrapped(obj, module):
                    return references.by_name, (module, obj.__qualname__)
            elif travel.swap is not None and (instead := travel.swap(obj)) is not None:
                return instead
            elif references.WRAPPED in type(obj).__dict__:
                reduced = obj.__reduce__()
                by_value = travel.is_by_value(getattr(obj, "__module__", ""))
                named = reduced[0] is references.by_name and not by_value
                return reduced if named or reduced[0] is references.bound else obj._for_the_job()  # noqa: SLF001 - ours
            return super().reducer_override(obj)

    pickler = Pickler(file, protocol=PROTOCOL)
    main = sys.modules.get("__main__")
    if main is not None:
        pickler.globals_ref[id(main.__dict__)] = _MainGlobals()
    return pickler


def _module_of(thing: type | FunctionType | ModuleType) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""


def _is_wrapped(function: FunctionType, module: str) -> bool:
    """Say whether a module shows this function only inside what ``kinetic.run`` made of it."""
    if module in {"", "__main__"} or "<" in function.__qualname__:
        return False
    found: object = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not function and references.plain(found) is function


def names_of(values: Sequence[object], named: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Name the arguments of a call as error messages do."""
    for number, value in enumerate(values):
        yield f"argument {number}", value
    for name, value in named.items():
        yield f"argument {name!r}", value
