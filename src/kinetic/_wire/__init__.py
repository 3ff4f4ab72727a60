"""What client and runner share; standard library only, and Python's own even where a user's file has its name.

A script's folder comes first on ``sys.path``, so ``array.py`` beside it answers ``import array`` for every library of
the process: once `socket` was imported here, a user's script ran a second time. The finder below answers only where
kinetic itself, or a library on its behalf, asks for a standard module that such a file hides; the user's own imports
mean what they always meant.
"""

# Nothing here may itself be found in a user's file: these are loaded before the first line of any script.
import gc
import os
import sys
from _frozen_importlib_external import PathFinder
from _thread import RLock, get_ident

TYPE_CHECKING = False  # as in kinetic/__init__.py
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from importlib.machinery import ModuleSpec
    from typing import NamedTuple as NamedTuple

_LIBRARY = os.path.dirname(os.__file__)
_INSTALLED = ("site-packages", "dist-packages")
# After so many new ones garbage is searched for, where much is imported; an edit among 10,000 files makes half of it.
MANY_OBJECTS = 250_000
_FEW_MODULES = 20
_FEW_OBJECTS = 1000  # Python 3.12 itself freezes 375 of them; a program that does so, all that there are
_named: set[str] = set()
_lazy: list[object] = []  # what makes each dataclass, as far as modules were imported
_making = RLock()  # one class is made at a time, and none while a process forks
os.register_at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def _forget_imports_of_parent() -> None:
    """Let a forked child import what a thread of its parent was importing: it would wait for that thread forever.

    Our modules are imported with the first call, which any thread may make at the moment of a fork.
    """
    locks = getattr(sys.modules["_frozen_importlib"], "_module_locks", {})
    for name in [name for name, lock in locks.items() if getattr(lock(), "owner", None) not in {None, get_ident()}]:
        del locks[name]
        if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
            del sys.modules[name]


os.register_at_fork(after_in_child=_forget_imports_of_parent)

if not TYPE_CHECKING:

    def dataclass(cls=None, /, **options):  # noqa: ANN001, ANN003, ANN202 - dataclasses.dataclass has the types
        """Make a dataclass of a class when its first instance is made: that costs 0.5 ms, and a process uses few."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        is_made = False

        def make() -> None:
            nonlocal is_made
            with _making:
                if is_made:
                    return
                from dataclasses import dataclass

                own = dict(vars(cls))
                try:
                    dataclass(**options)(cls)
                    is_made = True
                except BaseException:  # as Ctrl-C: half made, it would have other defaults the next time
                    _restore(cls, own)
                    raise

        class Fields:
            def __get__(self, _instance: object, _owner: type) -> object:
                make()  # which puts the fields here
                return cls.__dict__["__dataclass_fields__"]

        def new(kind: type, /, *_: object, **__: object) -> object:
            if not is_made:
                make()
            return object.__new__(kind)

        cls.__new__, cls.__dataclass_fields__ = new, Fields()
        _lazy.append(make)
        return cls

    def _restore(cls, own):  # noqa: ANN001, ANN202 - as above
        for name in vars(cls).keys() - own.keys():
            delattr(cls, name)
        for name, value in own.items():
            if vars(cls).get(name) is not value:
                setattr(cls, name, value)

    class _NamedTupleType(type):
        def __new__(cls, name, bases, namespace):  # noqa: ANN001, ANN204 - typing.NamedTuple has the types
            if not bases:
                return type.__new__(cls, name, bases, namespace)
            from collections import namedtuple

            types = namespace.get("__annotations__", {})
            defaults = [namespace[field] for field in types if field in namespace]
            made = namedtuple(name, types, defaults=defaults, module=namespace["__module__"])  # noqa: PYI024
            made.__annotations__ = made.__new__.__annotations__ = types
            for each in namespace:  # in its order, which documents show
                if each not in types and each not in {"__module__", "__annotations__", "__classcell__"}:
                    setattr(made, each, namespace[each])
            return made

    class NamedTuple(metaclass=_NamedTupleType):
        """What typing.NamedTuple makes, in a quarter of the time: it does not compile each annotation."""


def make_dataclasses() -> None:
    """Make all dataclasses of the modules that were imported, in a process that forks many others."""
    for make in _lazy:
        make()  # type: ignore[operator] # a function


class Finder:
    """A finder of ``sys.meta_path``; it stands right before the one that walks ``sys.path``."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> "ModuleSpec | None":  # noqa: ARG004 - passed by its name
        """Return Python's own module where a file hides it from one of our imports, else None: not our business."""
        if path is not None or name not in sys.stdlib_module_names or _LIBRARY not in sys.path:
            return None
        start = sys.path.index(_LIBRARY)
        hiding = PathFinder.find_spec(name, sys.path[:start])
        if hiding is None or hiding.origin is None or not _is_ours():  # no origin: a folder without __init__.py
            return None
        found = PathFinder.find_spec(name, sys.path[start:])
        if found is None:  # one of another system's, as nt: whoever tries it expects this
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        _say(name, hiding.origin)
        return found


def _prefer() -> None:
    """Put the finder in place, once in a process."""
    if Finder not in sys.meta_path and PathFinder in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), Finder)


class loading:  # noqa: N801 - reads as a statement
    """Load modules of ours inside, with fewer searches for garbage: what imports create stays, and they take a tenth.

    After many modules, all that is there counts as old, so the next search does not go through it, which alone would
    take 20 ms. Not after each call of a client: a program's own garbage would be old then, and old garbage stays long.

    To an error that is raised inside, a note is added: which files are loaded in place of standard modules, if any.
    """

    def __enter__(self) -> None:
        self._thresholds, self._modules = gc.get_threshold(), len(sys.modules)
        if 0 < self._thresholds[0] < MANY_OBJECTS:
            gc.set_threshold(MANY_OBJECTS, *self._thresholds[1:])

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if gc.get_threshold()[0] == MANY_OBJECTS != self._thresholds[0]:  # nobody has set it meanwhile
            is_much = len(sys.modules) > self._modules + _FEW_MODULES
            if is_much and gc.get_freeze_count() < _FEW_OBJECTS:  # what a program has frozen stays so
                gc.freeze()
                gc.unfreeze()  # into the oldest generation
            gc.set_threshold(*self._thresholds)
        for name, module in sorted(sys.modules.items()) if isinstance(error, ImportError | AttributeError) else ():
            file = getattr(module, "__file__", None) or ""
            if error is not None and name in sys.stdlib_module_names and file and not _is_installed(file):
                error.add_note(f"kinetic: {file} is loaded in place of Python's own module {name!r}: rename the file")


def _is_ours() -> bool:
    """Return whether kinetic asks: the nearest caller that is neither Python's own nor an installed library."""
    frame = sys._getframe(2)  # noqa: SLF001 - inspect is heavy, and asks the same
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module == "kinetic" or module.startswith("kinetic."):
            return True
        file = frame.f_code.co_filename
        if not file.startswith("<frozen ") and not _is_installed(file):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_installed(file: str) -> bool:
    return file.startswith(_LIBRARY + os.sep) or any(part in file for part in _INSTALLED)


def _say(name: str, file: str) -> None:
    """Name a file that hides a standard module, once; the script itself is imported by nobody."""
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    if file in _named or (main and os.path.realpath(main) == os.path.realpath(file)):
        return
    _named.add(file)
    sys.stderr.write(
        f"kinetic: {file} has the name of Python's own module {name!r}, which kinetic uses; "
        f"'import {name}' gives Python's from now on. Rename the file if your code needs it.\n"
    )


_prefer()  # every room imports this one, in clients, supervisors, workers and pods
