"""What pickles of kinetic call when they are opened, on either side. These names are a wire format: keep them."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, NoReturn

from kinetic._wire import NamedTuple
from kinetic.errors import rebuilt

LAZY_IMPORT: Any = getattr(types, "LazyImportType", None)  # Python 3.15
WRAPPED = "__kinetic_wrapped__"  # set on whatever kinetic.run returned; holds the plain function
is_opening_call = False  # whether this is a job whose function has not begun: what runs is what its modules do at once


def plain(found: object) -> object:
    """Return the function behind a decorated one; anything else as it is."""
    while not isinstance(found, ModuleType) and WRAPPED in getattr(type(found), "__dict__", {}):
        found = getattr(found, WRAPPED)
    return found


def same(found: object) -> object:
    """Return what was pickled: how a decorated function of a script travels as the plain one."""
    return found


def no_ipython() -> NoReturn:
    """Do what ``get_ipython()`` does outside of a notebook: functions call it to find out whether they are in one."""
    raise NameError("name 'get_ipython' is not defined")


def by_name(module: str, qualname: str) -> object:
    """Import a module and return the plain function of this name in it."""
    return plain(decorated(module, qualname))


def decorated(module: str, qualname: str) -> object:
    """Import a module and return what has this name in it."""
    __import__(module)
    found: object = sys.modules[module]
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def lazy_import(statement: str, name: str) -> object:
    """Return what a ``lazy import`` binds to a name: in the globals of a function it is imported once it is used."""
    space: dict[str, object] = {}
    exec(statement, space)  # noqa: S102 - nothing else makes one
    return space[name]


def mark(kind: Any, module: str, name: str, state: dict[str, str]) -> object:
    """Return the object of a class that its module has under this name; a new one, if it has none with this state."""
    found: object = getattr(sys.modules[module], name, None)
    return found if type(found) is kind and getattr(found, "__dict__", {}) == state else kind.__new__(kind)


def sentinel(kind: Any, module: str, name: str, shown: str) -> object:
    """Return the sentinel that a module has under this name, or that was made for it before; else make it."""
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if type(found) is kind:
        return found
    if (module, name) not in _sentinels:
        made = _sentinels[module, name] = kind(name, repr=shown)
        made.__module__ = module
    return _sentinels[module, name]


_sentinels: dict[tuple[str, str], Any] = {}


def named(module: str, qualname: str, python: str, by_value: bytes) -> object:
    """Return what has this name here; where nothing has, as in another script, make it from its copy.

    Args:
        module: Its module where it was pickled, which may be ``__main__``.
        qualname: Its name in there.
        python: The Python that compiled the copy, as "3.12".
        by_value: The copy, a compressed pickle; empty if there is none.

    Raises:
        ImportError: There is no such module, and no copy.
        AttributeError: The module has nothing of this name, and there is no copy, or one for another Python.
    """
    from kinetic._wire import python_runtime  # not for a decorator

    try:
        return by_name(module, qualname)
    except (ImportError, AttributeError) as error:
        if not by_value:
            raise
        if python_runtime.version_mismatch(python):
            raise AttributeError(f"{error}; its copy needs Python {python}", name=qualname) from None
    import pickle  # as below
    import zlib

    return pickle.loads(zlib.decompress(by_value))  # noqa: S301 - part of a pickle that was verified


def main_globals() -> dict[str, Any]:
    """Return the namespace of the script: functions of ``__main__`` live in it in the job, too."""
    return sys.modules["__main__"].__dict__


def data(number: int) -> str:
    """Return the path at which the job finds the data of this number in its order."""
    return _data_paths[number]


def set_data_paths(paths: Sequence[str]) -> None:
    """Set where the data of this job is, before its arguments are opened."""
    _data_paths[:] = paths


_data_paths: list[str] = []


def result(number: int) -> object:
    """Return what the job of this number in the order's ``after`` returned, of a batch the list of its values."""
    if number not in _results:
        _results[number] = _openers[0](number)
    return _results[number]


def set_results(open_result: Callable[[int], object]) -> None:
    """Set how the values of other jobs are opened, before the arguments of this job are."""
    _openers[:] = [open_result]
    _results.clear()


_openers: list[Callable[[int], object]] = []
_results: dict[int, object] = {}  # opened once, however often the arguments refer to it


def function_proxy(kind: Any, *parts: Any) -> Any:
    """Wrap a function again as wrapt, or a class of wrapt's, has wrapped it."""
    make: Any = kind or decorated("wrapt", "FunctionWrapper")
    return make(*parts)


def add_attributes(proxy: Any, attributes: dict[str, Any]) -> None:
    """Give a library's function inside a proxy what a program has added to it; what the library has there stays."""
    own = vars(proxy.__wrapped__)
    own.update(attributes | own)


def field_type(owner: type, name: str) -> object:
    """Return what the annotation of a field says."""
    return owner.__annotations__[name]


def made_class(module: str, name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return the class that a module has under this name, if it was made in the same way; otherwise make it."""
    import copyreg  # few classes are made so

    found: Any = getattr(sys.modules.get(module), name, None)
    with contextlib.suppress(Exception):  # there is none; or what it was made of cannot be compared
        if copyreg.dispatch_table[type(found)](found)[:2] == (make, arguments):
            return found
    return make(*arguments)


def exception(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """Rebuild an exception without calling its ``__init__``, whose parameters need not be its ``args``."""
    return rebuilt(kind, args, state)


def exception_with(message: tuple[str, ...], make: Callable[..., Any], *args: Any) -> Any:
    """Rebuild an exception as its class does, but with its message, which those of beartype leave out."""
    made = make(*args)
    if message and not made.args:
        made.args = message
    return made


def wide_array(make: Callable[..., Any], *args: Any) -> Any:
    """Rebuild an array of JAX whose numbers have 64 bits, which JAX cuts to 32 where it does not compute with 64."""
    jax: Any = __import__("jax.experimental")  # the pickle has named a function of it before
    with (jax if hasattr(jax, "enable_x64") else jax.experimental).enable_x64(new_val=True):  # the latter up to JAX 0.7
        return make(*args)


def torch_memory(data: bytearray) -> Any:
    """Copy bytes into memory of PyTorch, which can be resized, unlike that of the bytes."""
    torch: Any = __import__("torch")
    memory = torch.UntypedStorage.from_buffer(data, dtype=torch.uint8) if data else torch.UntypedStorage(0)
    return torch.TypedStorage(wrap_storage=memory, dtype=torch.uint8, _internal=True)


def torch_storage(memory: Any, dtype: Any) -> Any:
    """Return memory of PyTorch as numbers of a type, shared with each other tensor that has this memory."""
    return type(memory)(wrap_storage=memory._untyped_storage, dtype=dtype, _internal=True)  # noqa: SLF001


def bound(function: Callable[..., Any], instance: object) -> Callable[..., Any]:
    """Bind a plain function to an instance or a class."""
    return function.__get__(instance, type(instance))  # type: ignore[no-any-return] # functions bind


_registered: list[tuple[str, bytes]] = []


def register_again() -> None:
    """Register with the libraries that this job has imported what its script has registered with them."""
    if not _registered:
        return
    import pickle  # few scripts register anything
    import warnings

    for package, data in _registered:
        if package in sys.modules:
            # Without it, the function fails where it uses it, and says so; warnings were shown by the script.
            with warnings.catch_warnings(action="ignore"), contextlib.suppress(Exception):
                text, names = pickle.loads(data)  # noqa: S301 - part of a pickle that was verified
                space = main_globals()
                space.update(names)
                eval(text, space)  # noqa: S307 - as the script did


def with_sources(
    value: object,
    sources: Mapping[str, Mapping[int, str]],
    registered: Sequence[tuple[str, bytes]] = (),
    definitions: Mapping[str, bytes] | None = None,
) -> object:
    """Return a value after noting the source of code that has no file here: each text, by file and first line.

    So tracebacks show lines of a function that was defined in a cell of a notebook, or typed in. What a script has
    registered with libraries is noted as well, and what it defines, which pickles in files may name.
    """
    import linecache  # 1 ms; only for such code

    _registered[:] = registered
    if definitions:
        main_globals()["__getattr__"] = functools.partial(_defined, definitions)

    for name, parts in sources.items():
        lines: list[str] = []
        for first, text in sorted(parts.items()):
            own = text.splitlines(keepends=True)
            lines += ["\n"] * (first - 1 - len(lines))
            lines[first - 1 : first - 1 + len(own)] = own
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return value


def _defined(definitions: Mapping[str, bytes], name: str) -> object:
    """Return what the script defines and the function does not name, when a pickle in a file asks for it."""
    if name not in definitions:
        raise AttributeError(f"module '__main__' has no attribute {name!r}")
    import pickle  # it is loaded by who asks

    main_globals()[name] = found = pickle.loads(definitions[name])  # noqa: S301 - part of a pickle that was verified
    return found


Where = Literal["value", "set", "key"]


class Occurrence(NamedTuple):
    """Where one object was found."""

    position: str  # for humans, e.g. "argument 0[2]['train']" or "argument 'config'.path"
    found: object
    where: Where  # "value", or "set" or "key" where nothing can be put in its place


def find_objects(
    args: Sequence[object], kwargs: Mapping[str, object], is_wanted: Callable[[object], bool]
) -> Iterator[Occurrence]:
    """Find every wanted object; an object that is reached in several ways is named by the first."""
    pending: list[tuple[str, object, Where]] = [(f"argument {n}", value, "value") for n, value in enumerate(args)]
    pending += [(f"argument {name!r}", value, "value") for name, value in kwargs.items()]
    pending.reverse()
    seen: dict[tuple[int, bool], object] = {}  # holds what it has seen: a field may make its value on each access
    while pending:
        position, value, where = pending.pop()
        if (id(value), where == "value") in seen:
            continue
        if is_wanted(value):
            yield Occurrence(position, value, where)
        elif _is_container(value):
            pending += reversed(list(_parts(position, value, where)))
        else:
            continue
        seen[id(value), where == "value"] = value


def replace_leaves(value: object, swap: Callable[[object], object]) -> Any:
    """Return a copy of the containers of a value in which ``swap`` has put something else for some objects.

    Types, shared objects and cycles stay as they are: Python's own pickling does the walk, and every leaf passes it by
    as a reference. For most objects ``swap`` returns the object itself.
    """
    import pickle  # 2 ms; not for a decorator

    leaves: list[object] = []
    file = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> int | None:
            new = swap(obj)
            if new is obj and _is_container(obj):
                return None
            leaves.append(new)
            return len(leaves) - 1

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> object:
            return leaves[pid]

    Pickler(file, protocol=5).dump(value)
    file.seek(0)
    return Unpickler(file).load()


def _is_container(value: object) -> bool:
    if isinstance(value, list | tuple | dict | set | frozenset):
        return True
    return hasattr(type(value), "__dataclass_fields__")


def _parts(position: str, value: object, where: Where) -> Iterator[tuple[str, object, Where]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{position} (a key)", key, "key"
            yield f"{position}[{key!r}]", item, where
    elif isinstance(value, set | frozenset):
        for item in value:
            yield f"{position} (a set)", item, "set"
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield f"{position}[{number}]", item, where
    for name in getattr(type(value), "__dataclass_fields__", ()):
        if hasattr(value, name):
            yield f"{position}.{name}", getattr(value, name), where
