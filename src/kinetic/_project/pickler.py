"""The Call: the function and the arguments, exactly as the user gave them, and how they are pickled."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import operator
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType, TracebackType
from typing import IO, Any, Self, TypeVar

from kinetic._output import terminal as output
from kinetic._project import modules
from kinetic._project.root import Plan
from kinetic._stores.protocol import Store, put_file, scratch_folder
from kinetic._wire import (
    dataclass,
    deferred_annotations,
    digests,
    pickle_diagnosis,
    python_runtime,
    reducers,
    references,
)
from kinetic._wire.order import INLINE_BYTES, Artifact
from kinetic.errors import ArgumentNotPicklableError, CallableError, KineticError, StoreError


def unpicklable(
    roots: Sequence[tuple[str, object]], fails: pickle_diagnosis.Fails, error: BaseException
) -> ArgumentNotPicklableError:
    """Return the error for a failed pickling."""
    if isinstance(error, MemoryError):
        return ArgumentNotPicklableError(
            "there was not enough memory to pickle the call",
            why=f"some values are copied while they are pickled, such as texts; the error was {error!r}",
            next='write large values to a file, pass kinetic.Data("file") and load it inside the function',
        )
    found = pickle_diagnosis.find(roots, fails)
    if found is None:
        return ArgumentNotPicklableError(
            "the call cannot be pickled",
            why=f"{type(error).__name__}: {error}; each of its parts can be pickled alone",
            next='make the arguments less deeply nested, or write them to a file and pass kinetic.Data("file")',
        )
    path, value, reason = found
    if "InteractiveShell.get_ipython()" in path:
        return ArgumentNotPicklableError(
            f"{roots[0][0]} uses a magic or a command of the notebook",
            why="a line with % or ! calls get_ipython(), which is there in the notebook and not in the job",
            next="write it in Python, as subprocess.run(...) for a command",
        )
    if pickle_diagnosis.is_too_deep(reason):
        return ArgumentNotPicklableError(
            f"{path} is nested too deeply to be pickled",
            why=f"{type(reason).__name__}: {reason}",
            next='flatten it, or write it to a file, pass kinetic.Data("file") and load it inside the function',
        )
    return ArgumentNotPicklableError(
        f"{path} cannot be pickled",
        why=f"{pickle_diagnosis.short(value)} is a {type(value).__module__}.{type(value).__qualname__}: {reason}",
        next=_instead(path),
    )


def _instead(path: str) -> str:
    """Return what to do instead: what the job imports from a module need not be pickled."""
    if path.startswith("global "):
        return "create it inside the function or in a module that the script imports, or pass what is needed of it"
    first = path.partition(".")[0]
    if isinstance(getattr(sys.modules.get("__main__"), first, None), type):
        return f"define {first} in a module that the script imports"
    return 'create it inside the function, or pass what it is made from; pass files as kinetic.Data("path")'


_MAGICS = {"run_line_magic", "run_cell_magic", "system", "getoutput"}  # what IPython makes of % and !
_CACHED = 4  # parts of an entry of linecache that has its lines
_LONGEST_SOURCE = 100_000  # characters of one function, and bytes of what else a script defines
_LOADS = {"load", "loads", "read_pickle", "Unpickler"}  # names with which pickles in files are opened
_PICKLES = {"pickle", "torch", "joblib", "dill", "cloudpickle", "pandas"}  # and of which packages
PROTOCOL = 5  # Python 3.8 on; large buffers are written without a copy of the whole pickle
Swap = Callable[[object], "tuple[Any, ...] | None"]
_T = TypeVar("_T")
_OF_JAX = "a pytree of JAX"  # which most are in the job, too, however they travel
# Where libraries keep classes: module, table, and what one is for them. Of JAX 0.4 to 0.10, Keras 3; nothing public.
_REGISTRIES = (
    ("jax._src.tree_util", "_registry", _OF_JAX),
    ("keras.src.saving.object_registration", "GLOBAL_CUSTOM_NAMES", "registered with Keras"),
)
_STORAGES = {"InMemoryStorage", "RDBStorage"}  # where Optuna keeps studies; a trial brings its study's along
# cloudpickle's list of by-value modules belongs to the process.
_registry = python_runtime.free_in_child(threading.Lock())


class _MainGlobals(dict[str, Any]):
    """The namespace of the script; in the job it becomes its own ``__main__``."""

    def __reduce__(self) -> tuple[Callable[[], dict[str, Any]], tuple[()]]:
        return references.main_globals, ()


class PickleRules:
    """Decide how each function, class and module is sent, and remember what is sent by value and why.

    Args:
        plan: The project that is sent.
        by_value: Modules that the user wants by value, from ``[tool.kinetic]``.
    """

    def __init__(self, plan: Plan, by_value: Sequence[str] = ()) -> None:
        self.swap: Swap | None = None  # returns what is sent in an object's place, as ``__reduce__`` does, or None
        self._plan = plan
        self._wanted = frozenset(by_value)
        self._answers: dict[str, str] = {}
        self.by_value: dict[str, str] = {}
        self._compiled: dict[str, str] = {}  # modules that nothing can send, and why the job may not find them
        self._lost: dict[str, str] = {}  # classes, and what they are here and not in the job
        self._named: dict[int, tuple[str, str]] = {}  # module and name of what cannot be pickled, by its id
        self._defined: dict[int, tuple[Any, ...]] = {}  # what defines what cannot be pickled either, by its id
        self.is_second_try = False
        self.makes_anew = False  # whether locks and the like are made anew in the job, at a second try
        self._given: set[int] = set()  # those that functions close over or have as defaults: as good as arguments
        self._libraries: dict[type, dict[int, tuple[str, str]]] = {}  # what is there of a class in its library, by id
        self._study = ""  # the storage of a study of Optuna that is a copy in the job
        self._magics = False  # whether a function of the notebook uses some
        self.sources: dict[str, dict[int, str]] = {}  # of code without a file, by its name for it and its first line
        self.opens_pickles = False  # whether a function that was sent names what does, as ``torch.load``

    def is_by_value(self, module: str) -> bool:
        """Return whether what a module defines must be pickled by value."""
        if module not in self._answers:
            self._answers[module] = self._ask(module)
        return self._answers[module] == "by-value"

    def reduce(self, value: Any, namespaces: dict[int, Any], reduce: Callable[[Any], Any]) -> Any:
        """Reduce a value as cloudpickle does, and what that loses or cannot do as well.

        Args:
            value: What is reduced.
            namespaces: cloudpickle's ``globals_ref``: what becomes the globals of functions, by the id of these.
            reduce: Its ``reducer_override``.
        """
        if id(value) in self._defined:
            return reducers.of_source(*self._defined[id(value)])
        if isinstance(value, FunctionType):
            return self._reduce_function(value, namespaces, reduce)
        if isinstance(value, type):
            return self._reduce_class(value, reduce(value))
        if type(value) is ModuleType and not self.is_by_value(value.__name__) and (made := reducers.made_in(value)):
            return importlib.import_module, (value.__name__,), made, None, None, operator.is_  # opens them, and no more
        name = getattr(value, "__qualname__", "") if isinstance(value, MethodType) else ""  # one of a partial has none
        if name == "InteractiveShell.get_ipython" and not self._magics:
            return references.same, (references.no_ipython,)
        if type(value).__name__ in _STORAGES and type(value).__module__.startswith("optuna."):
            self._study = self._study or _kept_apart(value)
        own = self._place_of(value) if type(value) is object else reducers.place_in_library(value)
        if place := own or self._named.get(id(value)):
            return references.decorated, place
        if self.is_second_try and (other := self._not_a_copy(value)):
            return other
        if isinstance(value, CodeType) and (written := modules.as_written(value)) is not value:
            return references.same, (written,)
        if type(value) is reducers.CACHED and self.is_by_value(value.__module__):
            return reducers.cached(value)
        reduced = reducers.without_new(value)
        if reduced is NotImplemented and callable(value):
            reduced = self._of_the_script(value)
        return reduce(value) if reduced is NotImplemented else reduced

    def reduce_lazy_import(self, value: object) -> tuple[Any, ...]:
        """Reduce what ``lazy import`` made: to what it imports, or to its statement; see ``modules.imported``."""
        now = modules.imported(value, self._wanted)
        return (references.same, (now,)) if now is not value else reducers.lazy_import(value)

    @staticmethod
    def _of_the_script(value: Any) -> Any:
        """Return how the job gets what a decorator of a library made, and pickles by its name in the script."""
        main = vars(sys.modules["__main__"])
        name, reduced = reducers.by_name_in_script(value) or ("", ())
        if name not in main or isinstance(main[name], type | FunctionType):
            return NotImplemented
        from kinetic._project import class_source  # only with such a decorator

        source = class_source.function_source(name, main[name])
        if source is None and type(main[name]).__module__ != "__main__":  # unlike ``Empty = Empty()``
            source = class_source.made_by_class_statement(name)
        if source is None:
            return NotImplemented
        if main[name] is value:
            return reducers.of_source(name, *source)
        return reducers.after(main[name], reduced)  # made with it, as ``add(1)`` of a curried ``add``

    def _reduce_function(self, value: FunctionType, namespaces: dict[int, Any], reduce: Callable[[Any], Any]) -> Any:
        if self.is_second_try:
            self._given |= reducers.shared_in(_held_by(value)) - {*map(id, vars(sys.modules["__main__"]).values())}
        space = value.__globals__
        if self._is_imported(str(space.get("__name__")), space):  # a wrapper, say: it says another ``__module__``
            namespaces.setdefault(id(space), reducers.Globals(__name__=space["__name__"]))
        reduced = reduce(value)
        if isinstance(reduced, tuple) and not issubclass(type(value), FunctionType):
            return reducers.function_proxy(value)  # of which cloudpickle takes what is inside
        if isinstance(reduced, tuple) and (compiled := reducers.with_its_context(value)):
            return compiled
        is_imported = isinstance(reduced, tuple) and isinstance(namespaces[id(space)], reducers.Globals)
        return reducers.with_globals_of_module(reduced) if is_imported else reduced

    def _reduce_class(self, kind: type, reduced: Any) -> Any:
        is_sent = isinstance(reduced, tuple) and kind.__module__ != "builtins"  # None's class is a pytree
        is_sought = is_sent and kind.__module__ != "__main__" and not self.is_by_value(kind.__module__)
        if is_sought and (place := self._place_of(kind)):
            return references.decorated, place
        if is_sought and (field := reducers.field_of(kind)) and self._is_made_again(field[0]):
            return references.field_type, field
        what = _registered_as(kind) if is_sent else ""
        if source := self._source_of(kind, what) if is_sent else None:
            return reducers.of_source(kind.__name__, *source)
        meta = type(kind).__module__.partition(".")[0]  # that of a library, as equinox's, registers an empty class
        if (
            what
            and not reducers.is_struct(kind)
            and not (what == _OF_JAX and (meta == "__main__" or meta in sys.stdlib_module_names))
        ):
            self._lost[kind.__qualname__] = what
        return reducers.of_class(kind, reduced)

    @staticmethod
    def _source_of(kind: type, what: str) -> Any:
        """Return the ``ClassSource`` with which the job defines a class, or None; ``what``: see ``_registered_as``."""
        is_made = kind.__module__ == "__main__" and _has_slots_of_its_metaclass(kind)
        if what or is_made or (kind.__module__ == "__main__" and reducers.keeps_its_place(kind)):
            from kinetic._project import class_source  # only with JAX, Keras or such a decorator

            source = class_source.class_source(kind)
            return None if source and is_made and "__slots__" in source.text else source
        return None

    def _is_made_again(self, kind: type) -> bool:
        """Return whether the job defines a class by its statement, and all that this needs is a library's."""
        source = self._source_of(kind, _registered_as(kind))
        plain = ModuleType | type | FunctionType | BuiltinFunctionType
        return source is not None and all(
            isinstance(each, plain) or name[:2] == "__" for name, each in source.now.items()
        )

    def _place_of(self, thing: object) -> tuple[str, str] | None:
        """Return where a module of the project has a class that says another name, as ``Pair = namedtuple("P", …)``.

        Or an ``UNSET = object()``, of which a copy is good for nothing.

        Only by a line that calls something for it: what a program puts there while it runs is not there in the job.
        """
        for module in modules.shipped(self._plan):
            if place := reducers.place_of(thing, [module]):
                with contextlib.suppress(OSError), open(str(module.__file__), "rb") as source:
                    if re.search(rf"^{re.escape(place[1])}\b[^=\n]*=.*\(".encode(), source.read(), re.MULTILINE):
                        return place
        return None

    def _not_a_copy(self, value: object) -> tuple[Any, ...] | None:
        """Return how the job gets what cannot be pickled, as far as it is a library's own, as ``loguru.logger``."""
        kind = type(value)
        if kind not in self._libraries:
            names = dict.fromkeys((module := str(kind.__module__), module.partition(".")[0]))
            found = (sys.modules.get(name) for name in names if not self.is_by_value(name) and name != "__main__")
            own = [(vars(each), each) for each in found if isinstance(each, ModuleType)]
            self._libraries[kind] = {
                id(each): (module.__name__, name)
                for space, module in own
                for name, each in [*space.items()]
                if type(each) is kind and not _is_made_later(name, module)
            }
        place = self._libraries[kind].get(id(value))
        if place:
            return references.decorated, place
        return reducers.made_anew(value, lambda: self._given) if self.makes_anew else None

    def _is_imported(self, name: str, space: Mapping[str, Any]) -> bool:
        """Return whether the job imports the module with these globals; of ours, it has not all."""
        found = sys.modules.get(name)
        if not isinstance(found, ModuleType) or vars(found) is not space:
            return False
        return name.partition(".")[0] not in {"__main__", "kinetic"} and not self.is_by_value(name)

    def find_more(self) -> None:
        """Find what cannot be pickled, as a lock, and can be sent in another way.

        What the project's modules have is sent by its name there, also where the script has taken it over by ``from
        module import LOCK``. What statements of the script define is sent as these, with their decorators: a kernel of
        Triton, say. A plain class would lose what the script has put into its attributes, so that is left to the last.
        """
        from kinetic._project import class_source  # only on the way to an error

        plain = (type, FunctionType, ModuleType)  # of type(), since a proxy that is not bound raises for isinstance()
        for module in modules.shipped(self._plan):
            for name, value in list(vars(module).items()):
                is_plain = issubclass(type(value), plain)
                if not is_plain and why_unpicklable(value, self) and not _is_made_later(name, module):
                    self._named[id(value)] = module.__name__, name
        for name, value in list(vars(sys.modules["__main__"]).items()):  # in their order: some are made with others
            if type(value) is type:
                continue
            is_ours = references.WRAPPED in type(value).__dict__
            made: Any = references.plain(value) if is_ours else value  # by decorators below ours
            is_class = issubclass(type(made), type)
            found = class_source.class_source(made) if is_class else class_source.function_source(name, made)
            if found and why_unpicklable(made, self):
                self._defined[id(made)] = name, *found
        self.is_second_try = True
        for name, value in list(vars(sys.modules["__main__"]).items()):  # as jaxtyping does not leave a dataclass
            found = class_source.class_source(value) if type(value) is type else None
            if found and found.text.startswith("@") and why_unpicklable(value, self):
                self._defined[id(value)] = name, *found

    def take_source(self, function: FunctionType) -> None:
        """Keep the source of a function that is in no file, as in a cell of a notebook; and no other line of it.

        And whether it uses magics, which are methods of IPython that it has not in the job.
        """
        code = function.__code__
        for each in (code, *modules.inner_code(code)):
            self._magics |= "get_ipython" in each.co_names and not _MAGICS.isdisjoint(each.co_names)
        known = sys.modules["linecache"].cache.get(code.co_filename) if "linecache" in sys.modules else None
        if known is None or len(known) < _CACHED or os.path.exists(code.co_filename):
            return
        import inspect  # cloudpickle loads it anyway

        with contextlib.suppress(Exception):  # a cell that was replaced meanwhile: then there is no source
            text = "".join(inspect.getblock(known[2][code.co_firstlineno - 1 :]))
            if len(text) <= _LONGEST_SOURCE:
                self.sources.setdefault(code.co_filename, {})[code.co_firstlineno] = text

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each module that is sent by value, and for what loses something in the job."""
        lost = (
            f"{name} is {kind} here and not in the job, where its decorator does not run: define it at the top level "
            "of the script, or in a module of the project"
            for name, kind in sorted(self._lost.items())
        )
        copied = (
            f"the job gets a copy of an Optuna study {self._study}, and what its trials suggest and report there does "
            "not reach the study here: call trial.suggest_float(…) here, and pass the values (docs/optuna.md)"
        )
        sent = (f"{name} is sent by value: {why}" for name, why in sorted(self.by_value.items()))
        compiled = (
            f"{name} is compiled, so it cannot be sent by value, and {why}: the job finds it only where it is installed"
            for name, why in sorted(self._compiled.items())
        )
        return *sent, *compiled, *lost, *([copied] if self._study else [])

    def _ask(self, name: str) -> str:
        found = sys.modules.get(name)
        if name == "__main__" or not isinstance(found, ModuleType):
            return "main"
        if name in self._wanted or name.partition(".")[0] in self._wanted:
            self.by_value[name] = "it is listed in by_value of [tool.kinetic]"
            return "by-value"
        answer = modules.classify(found, self._plan, name)
        if answer.kind == "by-value" and name != "__mp_main__":  # the script, in a process of a pool
            self.by_value[name] = answer.reason
        elif answer.kind == "compiled":
            self._compiled[name] = answer.reason
        return answer.kind


def _held_by(function: FunctionType) -> list[object]:
    """Return what a function closes over, and its defaults."""
    held: list[object] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # of a name that has no value yet
            held.append(cell.cell_contents)
    return held


def _kept_apart(storage: Any) -> str:
    """Return where a storage of Optuna keeps its studies, if a copy of it in a job keeps them elsewhere, or ""."""
    if type(storage).__name__ == "InMemoryStorage":
        return "in memory"
    url = str(getattr(storage, "url", ""))
    return f"in {url}, a path below the working folder" if re.match(r"sqlite[^/]*:///(?!/)", url) else ""


def _registered_as(kind: type) -> str:
    """Return what a class is for a library that keeps a table of classes, or ""."""
    for module, table, what in _REGISTRIES:
        if kind in getattr(sys.modules.get(module), table, ()):
            return what
    return "a Struct of msgspec" if type(kind).__module__ == "msgspec._core" else ""  # which wants all fields at once


def _has_slots_of_its_metaclass(kind: type) -> bool:
    """Return whether a metaclass may have given a class its slots, for fields that are there at once, as a PClass.

    Those of private names, as of pydantic's older models, are kept by value, and so is what was set or called since.
    """
    meta, slots = type(kind), vars(kind).get("__slots__", ())
    is_pythons = meta.__module__.partition(".")[0] in sys.stdlib_module_names
    has_fields = any(name[:1] != "_" for name in ((slots,) if isinstance(slots, str) else tuple(slots)))
    return has_fields and type(meta.__new__) is FunctionType and not is_pythons


def pickler_version() -> str:
    """Return the version of cloudpickle, whose own functions its pickles name."""
    import cloudpickle  # 27 ms; loaded already where something was pickled

    return str(cloudpickle.__version__)


def dump(value: object, file: IO[bytes], rules: PickleRules) -> None:
    """Pickle a value for the job into a file, piece by piece."""
    with _registered() as register:
        try:
            _new_pickler(file, rules, register).dump(value)
        except KineticError as error:  # of the file: from Python 3.14 on, notes say which part of the value it was
            vars(error).pop("__notes__", None)
            raise


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


def _new_pickler(file: IO[bytes], rules: PickleRules, register: Callable[[ModuleType], None]) -> pickle.Pickler:
    import cloudpickle

    class Pickler(reducers.ByClass, cloudpickle.Pickler):  # type: ignore[misc] # cloudpickle has no types
        dispatch_table = reducers.extended(cloudpickle.Pickler.dispatch_table, rules.is_by_value)
        remembers = not rules.is_second_try

        def reduced(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType | ModuleType):
                module = _module_of(obj)
                rules.opens_pickles = rules.opens_pickles or (isinstance(obj, FunctionType) and _opens_pickles(obj))
                if rules.is_by_value(module) and module in sys.modules:
                    register(sys.modules[module])
                elif isinstance(obj, FunctionType) and _is_wrapped(obj, module):
                    return references.by_name, (module, obj.__qualname__)
                if isinstance(obj, FunctionType) and module == "__main__":
                    rules.take_source(obj)
            elif rules.swap is not None and (instead := rules.swap(obj)) is not None:
                return instead
            elif type(obj) is references.LAZY_IMPORT:
                return rules.reduce_lazy_import(obj)
            elif references.WRAPPED in type(obj).__dict__:
                reduced = obj.__reduce__()
                return reduced if reduced[0] is references.bound else obj._for_the_job()  # noqa: SLF001 - ours
            return rules.reduce(obj, self.globals_ref, super().reduced)

    pickler = Pickler(file, protocol=PROTOCOL)
    main = sys.modules.get("__main__")
    if main is not None:
        pickler.globals_ref[id(main.__dict__)] = _MainGlobals()
    return pickler


def _is_made_later(name: str, module: ModuleType) -> bool:
    """Return whether a module has None under a name until a function of it is called, as ``rich`` its ``_console``."""
    with contextlib.suppress(OSError), open(str(getattr(module, "__file__", None)), "rb") as source:
        return bool(re.search(rf"^{re.escape(name)}\b[^=\n]*=\s*None\b".encode(), source.read(), re.MULTILINE))
    return False


def _module_of(thing: type | FunctionType | ModuleType) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None) or ""


def _is_wrapped(function: FunctionType, module: str) -> bool:
    """Return whether a module has this function only inside the object that ``kinetic.run`` made of it."""
    if module in {"", "__main__"} or "<" in function.__qualname__:
        return False
    found: object = sys.modules.get(module)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not function and references.plain(found) is function


def argument_names(values: Sequence[object], named: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Name the arguments of a call as error messages do."""
    for number, value in enumerate(values):
        yield f"argument {number}", value
    for name, value in named.items():
        yield f"argument {name!r}", value


_WARN_MB = 50.0
_MB = 1_000_000


@dataclass(frozen=True)
class Call:
    """What the user wants called."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    name: str
    command: tuple[str, ...] = ()  # the words of a command, which the function starts


def check_arguments(function_: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> None:
    """Reject arguments that the function does not take, before anything is submitted."""
    try:
        # Not what functools.wraps points to: a decorator in between may add arguments, or take some away.
        signature = deferred_annotations.signature_of(function_, follow_wrapped=False)
    except (ValueError, TypeError):  # some builtins have none; the job will find out
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise CallableError(
            f"{name}() cannot be called like this: {error}",
            why=f"its signature is {name}{deferred_annotations.signature_text(signature)}",
            next="correct the call; no job was submitted for it",
            code="arguments",
        ) from None


@dataclass(frozen=True)
class Payload:
    """A call in two pickles."""

    function: Artifact  # sent once for a whole batch
    arguments: Artifact  # sent for each job
    notes: tuple[str, ...]  # sentences for the user


def pack_call(
    call: Call,
    plan: Plan,
    store: Store,
    keys: tuple[str, str],
    *,
    by_value: Sequence[str] = (),
    swap: Swap | None = None,
    swap_arguments: Swap | None = None,
) -> Payload:
    """Pickle a call; what is small goes into the Order, the rest into the store.

    ``swap``: see ``PickleRules``; ``swap_arguments`` takes its place for the arguments.
    """
    rules = PickleRules(plan, by_value)

    def pack() -> tuple[Artifact, Artifact]:
        packed = _pack_function(call.function, rules, store, keys[0], swap)
        rules.swap, rules.makes_anew = swap_arguments or swap, False  # both sides have it, and would not share it
        is_complete = rules.opens_pickles
        arguments = _pickle_into_store((tuple(call.args), dict(call.kwargs)), rules, store, keys[1])
        if rules.opens_pickles and not is_complete:  # a method of an argument does
            packed = _pack_function(call.function, rules, store, keys[0], swap)
        return packed, arguments

    roots = [(f"the function {call.name}", call.function), *argument_names(call.args, call.kwargs)]
    packed, arguments = _diagnosed(pack, roots, rules)
    return Payload(packed, arguments, (*rules.notes(), *_size_note(arguments.size + packed.size)))


def pack_function(
    call: Call, plan: Plan, store: Store, key: str, *, by_value: Sequence[str], swap: Swap, opens_pickles: bool = False
) -> tuple[Artifact, tuple[str, ...]]:
    """Pickle the function alone, for a batch whose inputs follow; return it, and sentences for the user.

    ``opens_pickles``: whether a method of an input does, as the packer of the inputs has found.
    """
    rules, apart = PickleRules(plan, by_value), PickleRules(plan, by_value)
    apart.opens_pickles = opens_pickles
    with contextlib.suppress(Exception):  # the object of a method, which each input brings along: whether it opens any
        dump(call.args, _Short(), apart)
    rules.opens_pickles = apart.opens_pickles
    packed = _diagnosed(
        lambda: _pack_function(call.function, rules, store, key, swap),
        [(f"the function {call.name}", call.function)],
        rules,
    )
    return packed, (*rules.notes(), *_size_note(packed.size))


def _pack_function(
    function: Callable[..., Any], rules: PickleRules, store: Store, key: str, swap: Swap | None
) -> Artifact:
    """Pickle a function; once more, with what else the script defines, where it turned out to open pickles."""
    rules.swap, rules.makes_anew = swap, True
    is_complete = rules.opens_pickles
    packed = _pickle_into_store(_with_sources(function, rules), rules, store, key)
    if rules.opens_pickles and not is_complete:
        packed = _pickle_into_store(_with_sources(function, rules), rules, store, key)
    return packed


def _diagnosed(
    pack: Callable[[], _T], roots: Sequence[tuple[str, object]], rules: PickleRules, *, again: bool = True
) -> _T:
    """Pickle, and name the path to the value that cannot be pickled; errors of the store and the disk stay as they are.

    It is tried once more where something can be sent in another way.
    """
    try:
        return pack()
    except Exception as error:
        if isinstance(error, KineticError | OSError) and not isinstance(error, ArgumentNotPicklableError):
            raise
        if again:
            rules.find_more()
            return _diagnosed(pack, roots, rules, again=False)
        roots = roots[:1] if rules.makes_anew else roots[1:]  # of the function, or of the arguments
        raise unpicklable(roots, lambda value: why_unpicklable(value, rules), error) from error


class _WithSources:
    """Travels as a function, and behind it the sources that were found while it was pickled."""

    def __init__(self, function: Callable[..., Any], rules: PickleRules, *more: object) -> None:
        self._function, self._rules, self._more = function, rules, more

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return references.with_sources, (self._function, self._rules.sources, *self._more)


def _registered_by_script(rules: PickleRules) -> list[tuple[str, bytes]]:
    """Return what the script registers with libraries, as bytes: where a job has not that library, they stay closed."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    found: list[tuple[str, bytes]] = []
    with contextlib.suppress(Exception):  # the file is gone, or has been edited
        text = Path(file).read_text(encoding="utf-8") if file else ""
        if "register" in text:
            from kinetic._project import class_source

            secrets = class_source.secrets(text)
            for package, *registered in class_source.registrations(text, str(file)):
                with contextlib.suppress(Exception):  # what cannot be pickled is not known there, as before
                    dump(registered, buffer := io.BytesIO(), rules)
                    data = buffer.getvalue()
                    if secret := next((name for value, name in secrets.items() if value in data), ""):
                        output.report_once(
                            f"what {os.path.basename(str(file))} registers with {package} is not registered in the "
                            f"job: it needs {secret}, which may be a secret and would be in the store; read it in the "
                            "function, from a variable of capture_env_vars"
                        )
                    else:
                        found.append((package, data))
    return found


class _Short(io.BytesIO):
    """A short file: writing more than that is an error."""

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > _LONGEST_SOURCE:
            raise ValueError("it is too long")
        return super().write(data)


def _package(value: object, name: str) -> str:
    """Return which package a name of a script leads to, as ``th`` after ``import torch as th``; else the name."""
    kind = type(value)  # a proxy that is not bound raises for isinstance()
    if kind is ModuleType:
        name = vars(value)["__name__"]
    elif kind is FunctionType or kind is BuiltinFunctionType:
        name = str(getattr(value, "__module__", name))
    elif kind is references.LAZY_IMPORT:
        name = modules.first_of(value)
    return name.partition(".")[0].removeprefix("_")


def _opens_pickles(function: FunctionType) -> bool:
    """Return whether a function names what opens pickles, as ``torch.load``."""
    codes, space = (function.__code__, *modules.inner_code(function.__code__)), function.__globals__
    names = {name for code in codes for name in code.co_names}
    return not _LOADS.isdisjoint(names) and not _PICKLES.isdisjoint(_package(space.get(each), each) for each in names)


def _definitions_of_script(rules: PickleRules) -> dict[str, bytes]:
    """Return the classes and functions of a script, as bytes, where the job may load a pickle that names them.

    Only what a function names travels with it; a file that ``torch.save(model, …)`` wrote names ``__main__.Net``.
    """
    if not rules.opens_pickles:
        return {}
    main = vars(sys.modules["__main__"])
    own = [(name, value) for name, value in [*main.items()] if issubclass(type(value), type | FunctionType)]
    own = [each for each in own if (each[1].__module__, each[1].__qualname__) == ("__main__", each[0])]
    from kinetic._project import class_source

    secrets, definitions = class_source.secrets(""), dict[str, bytes]()
    apart = PickleRules(rules._plan, tuple(rules._wanted))  # noqa: SLF001 - of this room; it has nothing to say of these
    for name, value in own:
        with contextlib.suppress(Exception):  # what cannot be pickled, or is long, is not known there, as before
            dump(value, buffer := _Short(), apart)
            if not any(secret in buffer.getvalue() for secret in secrets):
                definitions[name] = buffer.getvalue()
    return definitions


def _with_sources(function: Callable[..., Any], rules: PickleRules) -> object:
    """Return what is pickled in a function's place: code of a notebook, or typed into a console, has no file."""
    code = getattr(function, "__code__", None)
    file = code.co_filename if code is not None else getattr(sys.modules.get("__main__"), "__file__", None)
    more = _registered_by_script(rules), _definitions_of_script(rules)
    return _WithSources(function, rules, *more) if any(more) or not (file and os.path.exists(file)) else function


def _pickle_into_store(value: object, rules: PickleRules, store: Store, key: str) -> Artifact:
    buffer = _PickleBuffer(store)
    try:
        writer = digests.HashingWriter(buffer)  # type: ignore[arg-type] # it needs write() only
        dump(value, writer, rules)  # type: ignore[arg-type] # a pickler needs write() only
        if buffer.file is None:
            return Artifact.within(buffer.small.getvalue())
        buffer.file.put(key)
        return Artifact(writer.hexdigest(), writer.length, key=key)
    finally:
        if buffer.file is not None:
            buffer.file.discard()


class _ScratchFile:
    """A file that becomes an object of the store: by a rename where that is possible."""

    def __init__(self, store: Store, suffix: str) -> None:
        self._store = store
        self._path = scratch_folder(store) / f"{os.getpid():x}-{os.urandom(8).hex()}{suffix}"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._file = open(descriptor, "w+b", buffering=1 << 16)  # noqa: SIM115 - closed by put() and discard()

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: bytes | memoryview) -> int:
        """Write; the disk's own errors are told apart from what pickling raises."""
        with disk_errors_translated():
            return self._file.write(data)

    def cut(self, start: int) -> None:
        """Take back everything from a position on."""
        with disk_errors_translated():
            self._file.seek(start)
            self._file.truncate()

    def put(self, key: str) -> None:
        with disk_errors_translated():
            self._file.close()
        put_file(self._store, key, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk, closing fails as writing did
            self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()


class _PickleBuffer:
    """Keep a pickle in memory while it is small, then in a file: a gigabyte of arguments is never held twice."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.small = io.BytesIO()
        self.file: _ScratchFile | None = None

    def write(self, data: bytes | memoryview) -> int:
        size = memoryview(data).nbytes
        if self.file is None and self.small.tell() + size > INLINE_BYTES:
            with disk_errors_translated():
                self.file = _ScratchFile(self._store, ".pkl")
            self.file.write(self.small.getbuffer())
            self.small = io.BytesIO()
        (self.file or self.small).write(data)
        return size


@contextmanager
def disk_errors_translated() -> Iterator[None]:
    """Translate the disk's errors; what the user's own pickling raises is not meant."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise StoreError(
            f"the disk that holds the store {'is full' if full else 'rejected the arguments'}",
            why=f"writing the pickled function and its arguments: {error}",
            next="free some space there, or point KINETIC_HOME at a larger disk",
            code="store-full" if full else None,
        ) from error


def why_unpicklable(value: object, rules: PickleRules) -> BaseException | None:
    """Try to pickle a value, and return what went wrong, or None."""
    try:
        dump(value, _NullWriter(), rules)  # type: ignore[arg-type] # a pickler needs write() only
    except Exception as error:  # noqa: BLE001 - pickling runs user code
        return error
    return None


class _NullWriter:
    def __init__(self) -> None:
        self.length = 0

    def write(self, data: bytes | memoryview) -> int:
        size = memoryview(data).nbytes
        self.length += size
        return size


def _size_note(size: int, what: str = "the function and its arguments are") -> list[str]:
    setting = os.environ.get("KINETIC_PAYLOAD_SIZE_WARN_MB", "")
    try:
        limit = float(setting) if setting else _WARN_MB
    except ValueError:
        limit = _WARN_MB
    if limit <= 0 or size <= limit * _MB:
        return []
    what = f"{what} {size / _MB:.0f} MB (KINETIC_PAYLOAD_SIZE_WARN_MB={limit:g})"
    return [
        f'{what}; write it to a file and pass kinetic.Data("file"): the function gets a path, and the file is sent once'
    ]


MANY = 1000  # inputs to an object: ten requests bring ten thousand inputs
LARGE = 16 << 20  # an object is closed when it holds this many bytes


class InputPacker:
    """Write inputs into objects of the store; a context that leaves no scratch file behind.

    Args:
        plan: The project that is sent.
        store: Where to.
        key_of: Returns the key of the object of each number, from 0.
        by_value: Modules that the user wants by value.
    """

    def __init__(self, plan: Plan, store: Store, key_of: Callable[[int], str], *, by_value: Sequence[str] = ()) -> None:
        self._rules = PickleRules(plan, by_value)
        self._store = store
        self._key_of = key_of
        self._number = 0
        self._count = 0
        self._file: _ScratchFile | None = None

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send what is left, or leave nothing."""
        try:
            if kind is None:
                self.close()
        finally:
            if self._file is not None:
                self._file.discard()

    def add(self, args: Sequence[Any], kwargs: Mapping[str, Any], swap: Swap | None, *, again: bool = True) -> Artifact:
        """Pickle the arguments of one call."""
        self._rules.swap = swap
        with disk_errors_translated():
            file = self._file = self._file or _ScratchFile(self._store, ".inputs")
            start = file.tell()
        writer = digests.HashingWriter(file)  # type: ignore[arg-type] # it needs write() only
        try:
            dump((tuple(args), dict(kwargs)), writer, self._rules)  # type: ignore[arg-type] # it needs write() only
        except BaseException as error:
            file.cut(start)
            if not isinstance(error, Exception) or isinstance(error, KineticError):
                raise
            if again:  # as above
                self._rules.find_more()
                return self.add(args, kwargs, swap, again=False)
            roots = list(argument_names(args, kwargs))
            raise unpicklable(roots, lambda value: why_unpicklable(value, self._rules), error) from error
        placed = Artifact(writer.hexdigest(), writer.length, key=self._key_of(self._number), start=start)
        self._count += 1
        if self._count >= MANY or file.tell() >= LARGE:
            self.close()
        return placed

    @property
    def opens_pickles(self) -> bool:
        """Whether a method of an input opens pickle files: then the function brings what else the script defines."""
        return self._rules.opens_pickles

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the user: what is sent by value."""
        return self._rules.notes()

    def repeated(self, first: Call, second: Call, count: int) -> list[str]:
        """Return a sentence where two calls have the same large objects: each of so many stores its own copy."""
        before = dict(argument_names(first.args, first.kwargs))
        both = [(name, each) for name, each in argument_names(second.args, second.kwargs) if before.get(name) is each]
        writer = _NullWriter()
        with contextlib.suppress(Exception):  # an object that can be pickled once only
            dump([each for _, each in both], writer, self._rules)  # type: ignore[arg-type] # as above
        names = ", ".join(name for name, _ in both)
        return _size_note(
            writer.length * count, f"each of the {count} inputs stores {names}, the same object: together"
        )

    def close(self) -> None:
        """Send the object that is being filled."""
        if self._file is not None:
            self._file.put(self._key_of(self._number))
            self._file.discard()
            self._file = None
            self._number, self._count = self._number + 1, 0
