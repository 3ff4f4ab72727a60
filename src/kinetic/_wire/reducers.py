"""What cloudpickle loses, or cannot pickle, of what a script defines: files of code, slots, caches, names of types.

And what JAX and PyTorch lose of their own arrays, and absl refuses of flags.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import io
import operator
import sys
import threading
import typing
from collections import ChainMap
from collections.abc import Callable, Container, Iterable, Iterator, MutableMapping
from contextvars import Context, ContextVar
from enum import EnumMeta
from pickle import PickleBuffer
from struct import Struct
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from kinetic._wire import deferred_annotations, references

_TELLS = "__init_subclass__"
_Reducers = MutableMapping[type, Callable[[Any], Any]]
CACHED: type = type(functools.cache(len))
_SCRIPTS = {"__main__", "__mp_main__"}  # the latter in a process of a pool


def extended(reducers: _Reducers, is_by_value: Callable[[str], bool] = lambda _: False) -> _Reducers:
    """Return cloudpickle's reducers, the ``dispatch_table`` of its pickler, with ours.

    ``is_by_value``: whether what a module defines is copied.

    cloudpickle 3.1.3 and newer say that all code is of a file ``<dynamic-code>``: a traceback would have no line of it.
    What Python pickles by its name alone cannot be found under that in another program, if a script has defined it.
    """
    reduce_code = reducers[CodeType]

    def reduce(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *rest = reduce_code(code)
        file = next(place for place, each in enumerate(arguments) if isinstance(each, str))  # the first text of them
        return make, (*arguments[:file], code.co_filename, *arguments[file + 1 :]), *rest

    def reduce_module(module: ModuleType) -> tuple[Any, ...]:
        make, (name, *content) = reducers[ModuleType](module)
        return (make, (name, {}), *content) if content else (make, (name,))

    own: _Reducers = {
        CodeType: reduce,
        ModuleType: reduce_module,  # filled once it is made: a package and a module of it may name each other
        CACHED: _by_name_or(cached),
        typing.NewType: _by_name_or(lambda it: (typing.NewType, (it.__name__, it.__supertype__), vars(it))),
        typing.ParamSpec: _by_name_or(lambda it: (typing.ParamSpec, (it.__name__,))),
        typing.TypeVarTuple: _by_name_or(lambda it: (typing.TypeVarTuple, (it.__name__,))),
        functools.cached_property: _without_lock,
        WeakKeyDictionary: _of_items,
        WeakValueDictionary: _of_items,
    }
    if alias := getattr(typing, "TypeAliasType", None):  # Python 3.12
        own[alias] = _by_name_or(_of_alias)
    if sys.version_info >= (3, 14):
        own[typing.ForwardRef] = deferred_annotations.forward_reference
    if references.LAZY_IMPORT:
        own[references.LAZY_IMPORT] = lazy_import
    table = _Table(own, reducers)
    table.is_by_value, table.known = is_by_value, {}
    return table


def lazy_import(it: Any) -> tuple[Any, ...]:
    """Reduce what ``lazy import`` made and nothing has used yet to its statement, and the name that this binds.

    Python shows only ``a.b`` of both ``import a.b`` and ``from a import b``; what it holds tells them apart. That is
    nothing public: as Python 3.15.2 has it.
    """
    import gc

    names: list[str] = []
    while isinstance((held := gc.get_referents(it))[0], references.LAZY_IMPORT or ()):
        it, name, *_ = held
        names.append(name)
    module: str = held[1]
    statement, bound = f"lazy import {module}", module.partition(".")[0]
    if names:
        bound = "it"
        statement = f"lazy from {module} import {names[0]} as it" if type(held[2]) is tuple else f"{statement} as it"
    return references.lazy_import, (statement, bound)


class _Table(ChainMap[type, Callable[[Any], Any]]):
    is_by_value: Callable[[str], bool]
    known: dict[type, Callable[[Any], Any] | None]

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if kind not in self.known:  # it is asked for each object
            self.known[kind] = self._find(kind)
        if (found := self.known[kind]) is None:
            raise KeyError(kind)
        return found

    def _find(self, kind: type) -> Callable[[Any], Any] | None:
        if issubclass(kind, ModuleType):  # of a class of its own, as ``torch.backends.cudnn``
            return self[ModuleType]
        if kind.__name__ == "ArrayImpl" and kind.__module__.startswith("jax"):
            return _jax_array
        if kind.__module__ == "torch.storage" and kind.__name__ in _OF_TORCH:
            return _OF_TORCH[kind.__name__]
        if _is_of_jax(kind):
            return self._of_jax
        if (flags := sys.modules.get("absl.flags")) and issubclass(kind, getattr(flags, "FlagValues", ())):
            return _absl_flags
        if flags and issubclass(kind, getattr(flags, "Flag", ())):
            return _absl_flag
        if (keras := sys.modules.get(_KERAS)) and issubclass(kind, getattr(keras, "KerasSaveable", ())):
            return self._of_keras
        if (kind.__module__, kind.__name__.lower()) in _SENTINELS:
            return _sentinel
        is_named = kind.__module__ not in {*_SCRIPTS, "builtins"} and not issubclass(kind, type)
        beside = [*getattr(sys.modules.get(kind.__module__), "__dict__", {}).values()] if is_named else []
        if any(type(each) is kind for each in beside):  # not ``in``, which asks the metaclass
            return self._of_mark
        return None

    def _of_mark(self, it: Any) -> Any:
        """Reduce what only its identity tells apart, as ``dataclasses.MISSING``, by its name in its module."""
        reduced, kind, state = it.__reduce_ex__(5), type(it), getattr(it, "__dict__", {})
        is_plain = reduced[0] is copyreg.__newobj__ and len(reduced[1]) == 1 and not any(reduced[3:])  # type: ignore[attr-defined]
        is_mark = is_plain and not isinstance(reduced[2], tuple) and {*map(type, state.values())} <= {str}
        place = is_mark and not self.is_by_value(kind.__module__) and place_of(it, [sys.modules[kind.__module__]])
        return (references.mark, (kind, *place, state), reduced[2]) if place else reduced

    def _of_keras(self, it: Any) -> Any:
        """Reduce a model as Keras does, with what the script has defined for it: Keras finds that by its name."""
        import zipfile  # Keras has loaded it

        make, arguments, *others = it.__reduce__()
        if make != it._unpickle_model:  # noqa: SLF001 - a class with a method of its own
            return make, arguments, *others
        kinds = {type(each) for each in getattr(it, "_flatten_layers", lambda: [it])()}
        registered = sys.modules["keras.src.saving.object_registration"].GLOBAL_CUSTOM_OBJECTS
        named = {f'"{name}"': (name, each) for name, each in registered.items()}
        named |= {f'"registered_name": "{each.__name__}"': (each.__name__, each) for each in kinds}
        with zipfile.ZipFile(arguments[0]) as saved:
            text = saved.read("config.json").decode()
        found = [pair for mark, pair in named.items() if mark in text]
        own = {name: each for name, each in found if each.__module__ in _SCRIPTS or self.is_by_value(each.__module__)}
        return (keras_object, (own, make, *arguments)) if own else (make, arguments)

    def _of_jax(self, it: Any) -> Any:
        if not self.is_by_value(it.__module__) and (name := own_name(it)):
            return name
        reduced = _made_without_new(it)
        return it.__reduce_ex__(2) if reduced is NotImplemented else reduced


def keras_object(own: dict[str, Any], make: Callable[..., Any], *arguments: Any) -> Any:
    """Open a model of Keras that names classes or functions of a script."""
    with sys.modules["keras"].saving.custom_object_scope(own):
        return make(*arguments)


def _absl_flags(it: Any) -> Any:
    flags: Any = sys.modules["absl.flags"]
    if it is not flags.FLAGS:
        return it.__reduce_ex__(2)
    own = it.flags_by_module_id_dict().get(id(sys.modules["__main__"]), [])  # a module defines its own in the job
    return references.decorated, ("absl.flags", "FLAGS"), own, None, None, _define_flags


def _absl_flag(it: Any) -> Any:
    """Reduce a flag without what the command line said of it, which may be a secret."""
    unset = {"_value": it.default, "using_default_value": True, "present": 0, "validators": []}
    return object.__new__, (type(it),), vars(it) | unset


def _define_flags(flags: Any, own: list[Any]) -> None:
    for flag in own:
        if flag.name not in flags:
            sys.modules["absl.flags"].DEFINE_flag(flag, module_name="__main__")


def _is_of_jax(kind: type) -> bool:
    """Return whether a class is what ``jax.jit`` and the like make of functions, of which a copy is another one."""
    return kind.__name__ in _OF_JAX and kind.__module__.startswith("jax")


_KERAS = "keras.src.saving.keras_saveable"
_OF_JAX = {"PjitFunction", "custom_jvp", "custom_vjp"}


def _jax_array(it: Any) -> Any:
    make, arguments = it.__reduce__()
    return (references.wide_array, (make, *arguments)) if str(it.dtype) in _WIDE else (make, arguments)


_WIDE = {"int64", "uint64", "float64", "complex128"}


def _torch_memory(it: Any) -> Any:
    """Reduce the memory of tensors as its bytes, or on a GPU as a file of ``torch.save``.

    PyTorch (2.15) pickles it once for each tensor that shares it, 0.3 ms each, in its older format, which it cannot
    read back for 8-bit floats and unsigned integers.
    """
    torch: Any = sys.modules["torch"]
    if it.device.type == "cpu":
        import ctypes  # PyTorch has loaded it

        memory = (ctypes.c_char * it.nbytes()).from_address(it.data_ptr())
        return references.torch_memory, (PickleBuffer(memory),)
    torch.save(it, file := io.BytesIO())
    return torch.storage._load_from_bytes, (file.getvalue(),)  # noqa: SLF001 - as PyTorch's own


def _torch_storage(it: Any) -> Any:
    return references.torch_storage, (it._untyped_storage, it.dtype)  # noqa: SLF001 - the same for all that share it


_OF_TORCH = {"UntypedStorage": _torch_memory, "TypedStorage": _torch_storage}


def _by_name_or(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda it: own_name(it) or reduce(it)


def own_name(it: Any) -> str:
    """Return the name by which Python pickles what its module has under that name, or "": then it needs a copy."""
    name: str = getattr(it, "__qualname__", "") or getattr(it, "__name__", "")  # a cached partial has neither
    found: Any = None if it.__module__ in _SCRIPTS else sys.modules.get(it.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    return name if found is it else ""


_SENTINELS = {("builtins", "sentinel"), ("typing_extensions", "sentinel")}  # Python 3.15; "Sentinel" before 4.16


def _sentinel(it: Any) -> Any:
    """Reduce ``UNSET = sentinel("UNSET")`` of a script: of each name there is one."""
    name, module = getattr(it, "__name__", "") or it._name, it.__module__  # noqa: SLF001 - before 4.16
    module = "__main__" if module == type(it).__module__ else module  # as above
    return own_name(it) or (references.sentinel, (type(it), module, name, repr(it)))


def cached(it: Any) -> tuple[Any, ...]:
    """Return the reduction of a function with an empty cache, as ``functools.lru_cache`` makes it."""
    asked = it.cache_parameters()
    return type(it), (it.__wrapped__, asked["maxsize"], asked["typed"], functools._CacheInfo), vars(it)  # noqa: SLF001 - as Python's own


def _of_alias(it: Any) -> tuple[Any, ...]:
    if it.__type_params__:
        return make_generic_alias, (type(it), it.__name__, it.__module__, it.__value__, it.__type_params__)
    return make_alias, (it.__name__, it.__module__), (it.__value__,), None, None, _give_value


def make_alias(name: str, module: str) -> Any:
    """Do what ``type NAME = …`` does; what it stands for comes afterwards, since the alias itself may be in it."""
    space: dict[str, Any] = {"__name__": module}
    exec(f"type {name} = __given__()", space)  # noqa: S102 - Python 3.12, and looked up when it is asked for
    _spaces[id(space[name])] = space
    return space[name]


def make_generic_alias(kind: Any, name: str, module: str, value: Any, type_params: tuple[Any, ...]) -> Any:
    """Do what ``type NAME[T] = …`` does in a module: Python asks who calls this in which one that is."""
    space = {"__name__": module, "made": functools.partial(kind, name, value, type_params=type_params)}
    return eval("made()", space)  # noqa: S307 - as above


def _give_value(alias: Any, state: tuple[Any]) -> None:
    _spaces.pop(id(alias))["__given__"] = lambda: state[0]


_spaces: dict[int, dict[str, Any]] = {}  # of aliases that have no value yet


def _without_lock(it: Any) -> tuple[Any, ...]:
    return type(it), (it.func,), {name: value for name, value in vars(it).items() if name != "lock"}


def _of_items(it: Any) -> tuple[Any, ...]:
    return type(it), (), None, None, iter([*it.items()])


def of_class(kind: Any, reduced: Any) -> Any:
    """Return cloudpickle's reduction of a class with its ``__slots__``, made by ``make_class`` if one is told of it.

    A class that a library has under another name than it says, as ``jax.Array``, is found there, also where it says
    that it is Python's own. Of anything else, return the reduction as it is.

    cloudpickle sets the slots afterwards, when they have no effect: instances get a ``__dict__``, and what is pickled
    of those cannot be opened with the original class. Exceptions have a ``__dict__`` anyway, and Python pickles no
    slots of theirs; those of a tuple are always empty, and ``typing.NamedTuple`` refuses them.

    A class whose metaclass says how it is made, as ``deap.creator.create`` does, is made so where it is not there yet.
    A pytree of JAX is one there, too. A model of pydantic such as ``Page[int]`` is asked for: there is one of each.
    """
    reduce = copyreg.dispatch_table.get(type(kind)) if isinstance(kind, type) else None
    if reduce and isinstance(made := reduce(kind), tuple) and not any(made[2:]):  # a state would be lost
        return references.made_class, (kind.__module__, kind.__qualname__, *made[:2])
    if isinstance(kind, type) and isinstance(reduced, tuple) and (asked := _asked_for(kind)):
        return asked
    if isinstance(reduced, tuple) and isinstance(kind, EnumMeta):
        return _enum(kind, *reduced)
    if not isinstance(kind, type) or not isinstance(reduced, tuple) or reduced[1][0] is not type(kind):
        return reduced  # an object, or a class that is found by its name
    make, arguments, *rest = deferred_annotations.with_those_of_class(kind, reduced)
    if is_struct(kind):
        return _struct(kind, sys.modules[make.__module__]._lookup_class_or_track, arguments[4])  # noqa: SLF001 - its id
    if type(kind).__name__ == "_TypedDictMeta" and "__orig_bases__" not in vars(kind):  # some of Python 3.11
        arguments = (*arguments[:2], (typing.TypedDict,), *arguments[3:])
    arguments = _with_slots(kind, arguments)
    if _told(kind.__mro__[1:]) or not own_name(type(kind)):
        make, arguments = make_class, (make, *arguments)
    if calls := [*_registrations(kind)]:
        if make is make_class:
            make = _make_registered
        return make, arguments, (rest[-1], rest[0], calls), None, None, _fill_and_register
    return make, arguments, *rest


def _with_slots(kind: type, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    slots = vars(kind).get("__slots__")
    if slots is None or issubclass(kind, tuple | BaseException):
        return arguments
    place = next(place for place, each in enumerate(arguments) if isinstance(each, dict))
    names = slots if isinstance(slots, str) else tuple(slots)
    return (*arguments[:place], {**arguments[place], "__slots__": names}, *arguments[place + 1 :])


def _enum(kind: Any, make: Any, arguments: Any, state: Any, *rest: Any) -> tuple[Any, ...]:
    """Reduce an enum with its aliases, and with what its ``__new__`` or ``__init__`` has made of its members."""
    base: Any = next(each for each in kind.__mro__ if not each.__flags__ & _MADE_BY_CLASS)
    all_of, members = kind.__members__, dict[str, Any]()
    try:
        for name, it in all_of.items():
            by, given = base.__reduce_ex__(it, 2)[:2] if base is not object else (None, ())
            given = given[1:] if by is copyreg.__newobj__ else given  # type: ignore[attr-defined]
            base.__new__(kind, *given)
            members[name] = given, it._value_
    except Exception:  # noqa: BLE001 - of a type that is made in another way
        return make, arguments, state, *rest
    own = {name: value for name, value in state[0].items() if name not in all_of}
    known_as = sys.modules[make.__module__]._lookup_class_or_track  # noqa: SLF001 - as below
    words = {"boundary": kind._boundary_} if hasattr(kind, "_boundary_") else {}
    told = known_as, type(kind), base, (*arguments[:3], *arguments[4:6]), words, members
    return _make_enum, told, (rest[-1], (own, state[1]), [*map(vars, all_of.values())]), None, None, _fill_enum


def _make_enum(known_as: Any, meta: Any, base: Any, parts: Any, words: Any, members: dict[str, Any]) -> Any:
    left = iter(members.values())

    def new(kind: Any, *_: Any) -> Any:
        given, value = next(left)
        it = base.__new__(kind, *given)
        it._value_ = value
        return it

    bases, name, qualname, module, tracker_id = parts
    space = meta.__prepare__(name, bases)
    space.update({"__new__": new, "__init__": lambda *_: None, **dict.fromkeys(members, 0)})
    library: Any = next(each for each in meta.__mro__ if own_name(each))
    made = library.__new__(meta, name, bases, space, **words)
    del made.__new_member__, made.__init__
    made._new_member_, made.__module__, made.__qualname__ = base.__new__, module, qualname
    return known_as(tracker_id, made)


def _fill_enum(kind: Any, filled: tuple[Any, Any, list[dict[str, Any]]]) -> None:
    fill, state, of_members = filled
    fill(kind, state)
    for own in of_members:
        own.pop("_value_", None)  # twice, where it has an alias
        vars(kind[own["_name_"]]).update(own)


def is_struct(kind: type) -> bool:
    """Return whether a class is a Struct of msgspec that says how it was made."""
    return type(kind).__module__ == "msgspec._core" and hasattr(kind, "__struct_config__")


def _struct(kind: Any, known_as: Callable[[str, type], type], tracker_id: str) -> tuple[Any, ...]:
    """Reduce a Struct of msgspec, which takes no slots and wants all of its fields at once.

    ``known_as``: returns the class that cloudpickle knows by its id already: it is the same when it comes back.
    """
    fields, config = kind.__struct_fields__, kind.__struct_config__
    annotations = {**getattr(kind, "__annotations__", {})}
    own = [name for name in annotations if name in fields]
    given = dict(zip(fields[::-1], kind.__struct_defaults__[::-1], strict=False))
    nothing = sys.modules["msgspec"].NODEFAULT
    defaults = {name: given[name] for name in own if given.get(name, nothing) is not nothing}
    factories = {name: value.factory for name, value in defaults.items() if hasattr(value, "factory")}
    state = {name: value for name, value in vars(kind).items() if name not in {*fields, *_OF_ANY_STRUCT}}
    at_once = ("__module__", "__qualname__", "__post_init__", "__orig_bases__", "__parameters__")
    body = {name: state.pop(name) for name in at_once if name in state}
    body |= {"__annotations__": {name: annotations[name] for name in own}, "__qualname__": kind.__qualname__}
    state["__annotations__"] = annotations  # a text "ClassVar[int]" would make a field where that is not imported
    body |= {name: value for name, value in defaults.items() if name not in factories}
    words = {name: getattr(config, name) for name in dir(config) if name[:1] != "_"}
    words["rename"] = dict(zip(fields, kind.__struct_encode_fields__, strict=True))
    words["kw_only"] = bool(own) and not {*own} & {*kind.__match_args__}
    arguments = known_as, tracker_id, type(kind), (kind.__name__, kind.__bases__, body), factories, words
    return _make_struct, arguments, state, None, None, _fill_struct


_OF_ANY_STRUCT = {
    *("__slots__", "__dict__", "__weakref__", "__annotations__", "__annotate__", "__annotate_func__"),
    "__annotations_cache__",
}


def _make_struct(known_as: Any, tracker_id: str, meta: Any, parts: tuple[Any, ...], factories: Any, words: Any) -> Any:
    import msgspec

    parts[-1].update((name, msgspec.field(default_factory=each)) for name, each in factories.items())
    return known_as(tracker_id, meta(*parts, **words))


def _fill_struct(kind: type, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(kind, name, value)


def _registrations(kind: type) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Yield the module and the name of what has told JAX and Flax of a class, and with what: nothing public says it."""
    trees, states = sys.modules.get("jax._src.tree_util"), sys.modules.get("flax.serialization")
    if trees and (entry := getattr(trees, "_registry", {}).get(kind)):
        code, cells = getattr(entry[0], "__code__", None), getattr(entry[0], "__closure__", None) or ()
        given = {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=False)} if code else {}
        if {"data_fields", "meta_fields"} <= {*given}:
            known = *given["data_fields"], *given["meta_fields"]
            others = [each for each in getattr(kind, "__dataclass_fields__", ()) if each not in known]
            fields = given["data_fields"], given["meta_fields"], *([others] if others else [])
            yield trees.__name__, "register_dataclass", fields
        elif "flatten_with_keys" in given:
            yield trees.__name__, "register_pytree_with_keys", (given["flatten_with_keys"], entry[1])
        else:
            yield trees.__name__, "register_pytree_node", (*entry,)
    if states and (own := getattr(states, "_STATE_DICT_REGISTRY", {}).get(kind)):
        yield states.__name__, "register_serialization_state", own


def _make_registered(make: Callable[..., Any], kind: Any, name: str, bases: tuple[type, ...], *others: Any) -> Any:
    """Make a class as below, and tell no base of it, as ``flax.struct.PyTreeNode``: that would register it empty."""
    with _not_telling(_told(each for base in bases for each in base.__mro__)):
        return make_class(make, kind, name, bases, *others)


def _fill_and_register(kind: type, state: tuple[Any, ...]) -> None:
    fill, its_own, calls = state
    fill(kind, its_own)
    for module, name, arguments in calls:
        with contextlib.suppress(ImportError, ValueError):  # there is no JAX; or it was registered here before
            getattr(importlib.import_module(module), name)(kind, *arguments)


def field_of(kind: type) -> tuple[type, str] | None:
    """Return the class of the script that has this one for a field, and the field's name.

    As a function of a library makes one there: ``loss: Average.from_output("loss")``.
    """
    main = [*references.main_globals().values()]
    if "<locals>" not in kind.__qualname__ or kind.__module__ == "__main__" or any(each is kind for each in main):
        return None
    for owner in main:
        if isinstance(owner, type) and owner.__module__ == "__main__":
            with contextlib.suppress(Exception):  # an annotation that names what is not defined
                for name, each in owner.__annotations__.items():
                    if each is kind:
                        return owner, name
    return None


def made_in(module: ModuleType) -> list[type]:
    """Return the classes that a program has made in a library's module, as ``deap.creator.create`` does."""
    its_own = [each for each in [*vars(module).values()] if type(each) in copyreg.dispatch_table]
    return [each for each in its_own if isinstance(each, type) and type(each).__module__ == module.__name__]


def function_proxy(value: Any) -> Any:
    """Reduce what only looks like a function, as decorators make it with wrapt, whose own reduction raises."""
    kind = getattr(sys.modules.get("wrapt"), "FunctionWrapper", None)
    if kind is None or not issubclass(type(value), kind):
        return NotImplemented
    theirs = None if type(value) is kind else type(value)  # wrapt's own says another module than it is in
    arguments = (theirs, wrapped := value.__wrapped__, value._self_wrapper, value._self_enabled)  # noqa: SLF001
    if type(wrapped) is FunctionType and own_name(wrapped):  # as sacred gives attributes to functions of its own
        added = {name: value for name, value in vars(wrapped).items() if name != "__wrapped__"}  # a copy of its code
        return references.function_proxy, arguments, added, None, None, references.add_attributes
    return references.function_proxy, arguments


def place_of(thing: object, modules: Iterable[Any]) -> tuple[str, str] | None:
    """Return the module that has something under some name, and that name; what a class says of itself may be wrong."""
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is thing:
                return module.__name__, name
    return None


def _asked_for(kind: type) -> tuple[Any, ...] | None:
    """Return how one asks a library for a class: by the name there, or as a generic model of pydantic has it made."""
    generic = vars(kind).get("__pydantic_generic_metadata__", {})
    if generic.get("origin"):
        return operator.getitem, (generic["origin"], generic["args"])
    is_hidden = kind.__module__ == "builtins" and kind.__flags__ & _MADE_BY_CLASS  # as errors of equinox
    own = [*sys.modules.values()] if is_hidden else [sys.modules.get(kind.__module__)]
    libraries = [each for each in own if "-packages/" in str(getattr(each, "__dict__", {}).get("__file__"))]
    return (references.decorated, place) if (place := place_of(kind, libraries)) else None


_ONE_OF_A_LIBRARY = {  # by the name of the type: of which a process has one, and a copy has no effect
    "_Environ": (("os", "environ"), ("os", "environb")),  # whose values are no part of a call either
    "Random": (("random", "_inst"),),  # of ``from random import random``: a copy draws the same in each job
    "RandomState": (("numpy.random.mtrand", "_rand"),),
    "Generator": (("torch", "default_generator"),),
    "RcParams": (("matplotlib", "rcParams"),),
}


def place_in_library(thing: object) -> tuple[str, str] | None:
    """Return the module that has the one object of its kind in a process, as ``os.environ``, and its name there."""
    for module, name in _ONE_OF_A_LIBRARY.get(type(thing).__name__, ()):
        if thing is getattr(sys.modules.get(module), name, None):
            return module, name
    return None


_REDUCED = (type, FunctionType, MethodType, ModuleType, CodeType, BaseException)  # each in its own way


class ByClass:
    """What a pickler inherits that asks once for each class whose objects are all pickled alike.

    A value may have a million of them, and to ask for each takes twice as long as to pickle it.
    """

    remembers = True  # not where single objects are known by their ids

    def __init__(self, *arguments: Any, protocol: int) -> None:
        super().__init__(*arguments, protocol=protocol)  # type: ignore[call-arg] # of the pickler beside this
        self._by_itself = operator.methodcaller("__reduce_ex__", protocol)
        self._known: dict[type, Callable[[Any], Any]] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Reduce an object; NotImplemented where Python does."""
        kind = type(obj)
        if kind in self._known:
            return self._known[kind](obj)
        reduced = self.reduced(obj)
        if reduced is NotImplemented and self.remembers and _has_plain_objects(kind):
            try:
                self._known[kind] = self.dispatch_table[kind]  # type: ignore[attr-defined] # as above
            except KeyError:
                self._known[kind] = self._by_itself
        return reduced

    def reduced(self, obj: Any) -> Any:
        """Reduce an object as cloudpickle does."""
        return super().reducer_override(obj)  # type: ignore[misc] # of the pickler beside this

    def _dynamic_function_reduce(self, function: FunctionType) -> tuple[Any, ...]:
        """Do what cloudpickle does for a function that is copied, which evaluates its annotations."""
        plain, own = deferred_annotations.taken_off(function)
        make, arguments, (state, slots), *rest = super()._dynamic_function_reduce(plain)  # type: ignore[misc] # as above
        slots["__globals__"] |= deferred_annotations.globals_of(function)
        return make, arguments, (state, {**slots, **own}), *rest


def _has_plain_objects(kind: type) -> bool:
    """Return whether one object of a class that Python pickles by itself says that all others are; a proxy does not."""
    own = {name for base in kind.__mro__[:-1] for name in ("__call__", "__class__") if name in vars(base)}
    is_special = bool(own) or kind is object or issubclass(kind, (*_REDUCED, *_SHARED))
    is_known = kind.__name__ in _ONE_OF_A_LIBRARY or str(kind.__module__).partition(".")[0] in {"optuna", "rich"}
    return not (is_special or is_known or _wants_arguments(kind))


_LOCK: type = type(threading.Lock())
_RLOCK: type = type(threading.RLock())
_SHARED = (_LOCK, _RLOCK, threading.Event, threading.Condition, threading.Semaphore, threading.Barrier)
_CONTAINERS = (dict, list, tuple, set, frozenset)
_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})
_CONNECTED = {  # with something that is not in the job
    "threading.Thread",
    "queue.Queue",
    "subprocess.Popen",
    "concurrent.futures._base.Future",
    "sqlalchemy.engine.base.Engine",
}


def shared_in(value: object) -> set[int]:
    """Return the ids of locks and the like that a value is or has in its lists and dicts: a copy would be of no use."""
    found, seen, waiting = set[int](), set[int](), [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _SHARED):
            found.add(id(part))
        elif isinstance(part, _CONTAINERS) and id(part) not in seen:
            seen.add(id(part))
            for inside in (part, part.values()) if isinstance(part, dict) else (part,):
                if not _PLAIN.issuperset(map(type, inside)):  # of millions of rows, in a quarter of the time
                    waiting += inside
    return found


def made_anew(it: Any, given: Callable[[], Container[int]] = tuple) -> tuple[Any, ...] | None:
    """Return the reduction of what Python does not pickle, and each process has its own of: an unlocked lock, say.

    For anything else None. ``given``: returns the ids of locks and the like that would be of no use as a copy; it is
    called once there is one, since looking for them may take longer than pickling.

    Raises:
        TypeError: It is one of these, or all its parts can be copied now, and it would be of no use either.
    """
    kind = type(it)
    is_given = issubclass(kind, _SHARED) and id(it) in given()
    if is_given or any(f"{base.__module__}.{base.__name__}" in _CONNECTED for base in kind.__mro__):
        error = TypeError("a copy of it would not be connected with it")
        vars(error)["culprit"] = it
        raise error
    if kind is _LOCK and not it.locked():
        return threading.Lock, ()
    if kind is _RLOCK and "unlocked" in repr(it):
        return threading.RLock, ()
    if kind is ContextVar:
        default, value = Context().run(_value, it), _value(it)
        return _context_var, (it.name, default), value or None, None, None, _set_context_var
    if kind.__name__ == "SystemRandom" and kind.__module__ == "random":  # 5 ms to import, for few jobs
        return kind, ()
    if kind is Struct:
        return kind, (it.format,)
    if issubclass(kind, threading.local):
        fields = getattr(kind, "__dataclass_fields__", ())  # what its __init__ gets in each thread
        return copyreg.__newobj__, (kind, *(getattr(it, name) for name in fields)), vars(it)  # type: ignore[attr-defined]
    if kind.__name__ == "Console" and kind.__module__ == "rich.console" and not it._force_terminal:  # noqa: SLF001
        make, arguments, state = it.__reduce_ex__(2)[:3]
        return make, arguments, state | {"_color_system": None, "is_interactive": False, "is_jupyter": False}
    return None


def _value(var: ContextVar[Any]) -> tuple[Any, ...]:
    with contextlib.suppress(LookupError):
        return (var.get(),)
    return ()


def _context_var(name: str, default: tuple[Any, ...]) -> ContextVar[Any]:
    return ContextVar(name, default=default[0]) if default else ContextVar(name)


def _set_context_var(var: ContextVar[Any], value: tuple[Any]) -> None:
    var.set(value[0])


def make_class(make: Callable[..., Any], kind: Any, name: str, bases: tuple[type, ...], *others: Any) -> Any:
    """Make a class as cloudpickle does, but do not tell a metaclass or a base of the script of it again.

    What these did to the class, or noted of it, is in the state that follows; here they would find an empty class, and
    note it twice. Those of a library are told, except where that fails: without the keywords behind the bases, say.
    """
    told = _told(each for base in bases for each in base.__mro__)
    library: Any = next(each for each in kind.__mro__ if own_name(each))  # ``type`` at last

    def new(*arguments: Any) -> Any:
        made = library.__new__(kind, *arguments)
        library.__init__(made, *arguments)
        return made

    for silent in ({each for each in told if not own_name(each)}, {*told}):
        with contextlib.suppress(Exception), _not_telling({each: told[each] for each in silent}):  # of user code
            return make(kind if library is kind else new, name, bases, *others)
    return make(kind, name, bases, *others)


@contextlib.contextmanager
def _not_telling(told: dict[type, Any]) -> Iterator[None]:
    for each in told:
        type.__delattr__(each, _TELLS)
    try:
        yield
    finally:
        for each, method in told.items():
            type.__setattr__(each, _TELLS, method)


def _told(bases: Iterable[type]) -> dict[type, Any]:
    """Return those of them that are told of their subclasses, and their methods for that, but Python's own."""
    own = {"builtins", "typing"}
    return {base: base.__dict__[_TELLS] for base in bases if _TELLS in base.__dict__ and base.__module__ not in own}


def of_source(name: str, *source: Any) -> tuple[Any, ...]:
    """Return the reduction of what a statement of the script has defined, by that: a ``ClassSource``."""
    text, file, line, flags, now, *state = source
    return _define, (name, text, file, line, flags, now), (file, flags, *state), None, None, _complete


def compiled(text: str, file: str, line: int, flags: int) -> CodeType:
    """Compile a statement that begins in some line of a file."""
    import ast  # 10 ms, here and in the job

    tree = ast.increment_lineno(ast.parse(text), line - 1)
    return compile(tree, file, "exec", flags, dont_inherit=True)  # type: ignore[no-any-return] # says typeshed


def _define(name: str, text: str, file: str, line: int, flags: int, now: dict[str, Any]) -> Any:
    if (name, text) not in _defined:
        space = references.main_globals()
        space.update(now)
        exec(compiled(text, file, line, flags), space)  # noqa: S102 - as the script did
        _defined[name, text] = space[name]
    return _defined[name, text]


def _complete(kind: Any, state: tuple[Any, ...]) -> None:
    file, flags, later, calls, plain = state
    space = references.main_globals()
    space.update(later)
    for name, value in plain.items():
        if vars(kind).get(name) != value:
            setattr(kind, name, value)
    for text, line in calls:
        if ("", text) not in _defined:
            exec(compiled(text, file, line, flags), space)  # noqa: S102 - as above
            _defined["", text] = kind


_defined: dict[tuple[str, str], Any] = {}  # function and arguments are opened one after the other


class Globals(dict[str, Any]):
    """The namespace of a module, which is imported where the pickle is opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return vars, (sys.modules[self["__name__"]],)


def with_globals_of_module(reduced: Any) -> Any:
    """Return cloudpickle's reduction of a function without copies of the globals that it uses."""
    make, arguments, (state, slots), *rest = reduced
    return make, arguments, (state, {**slots, "__globals__": {}}), *rest


def with_its_context(it: Any) -> Any:
    """Return the reduction of a function of ``torch.compile``, or None: what that hangs on it cannot be pickled."""
    cells = dict(zip(it.__code__.co_freevars, it.__closure__ or (), strict=False))
    if "self" not in cells or "_torchdynamo_orig_callable" not in vars(it):
        return None
    return operator.call, (cells["self"].cell_contents, vars(it)["_torchdynamo_orig_callable"])


_MADE_BY_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def without_new(it: Any) -> Any:
    """Return the reduction of an object whose class wants arguments for __new__; Python calls it without any.

    NotImplemented where that does no harm, or something else is to be done.
    """
    return NotImplemented if isinstance(it, type) or _is_of_jax(type(it)) else _made_without_new(it)


def _wants_arguments(kind: type) -> bool:
    """Return whether __new__ of a class wants arguments that its objects do not say."""
    new: Any = kind.__new__
    if type(new) is not FunctionType or new.__code__.co_argcount - len(new.__defaults__ or ()) < 2:
        return False
    is_pythons = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce__", "__reduce_ex__"))
    return is_pythons and not hasattr(kind, "__getnewargs__") and kind not in copyreg.dispatch_table


def _made_without_new(it: Any) -> Any:
    if not _wants_arguments(kind := type(it)):
        return NotImplemented
    _, arguments, *rest = it.__reduce_ex__(2)
    if arguments != (kind,):
        return NotImplemented
    base: Any = next(each for each in kind.__mro__ if not each.__flags__ & _MADE_BY_CLASS)
    if base not in {dict, list}:
        return object.__new__, (kind,), *rest
    return base.__new__, (kind,), (rest[0], base, base.copy(it)), None, None, _fill


def _fill(it: Any, filled: tuple[Any, Any, Any]) -> None:
    """Fill a dict or list with a class of its own as it was, without its own methods: they may need its attributes."""
    state, base, content = filled
    base.__init__(it, content)
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in (attributes or {}).items():
            object.__setattr__(it, name, value)


def by_name_in_script(it: Any) -> tuple[str, Any] | None:
    """Return by which name in the script an object of a library is pickled, and its reduction; None if it is not.

    As what ``cachetools.cached`` and ``toolz.curry`` make of a function.
    """
    kind: Any = type(it)
    with contextlib.suppress(Exception):  # a stranger's object may raise anything when touched
        if it.__module__ not in _SCRIPTS or kind.__module__ in _SCRIPTS or kind in copyreg.dispatch_table:
            return None
        if kind.__reduce__ is object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__:
            return None
        reduced = it.__reduce__()
        if isinstance(reduced, str):
            return reduced, reduced
        for part in reduced[1]:
            if isinstance(part, str) and part.startswith("__main__:"):
                return part.removeprefix("__main__:").partition(".")[0], reduced
    return None


def keeps_its_place(kind: type) -> bool:
    """Return whether a part of a class is pickled by its name there, as a method with ``cachetools.cachedmethod``."""
    for part in vars(kind).values():
        own = type(part).__reduce__
        is_ours = references.WRAPPED in type(part).__dict__  # a decorated method, which warns where it is pickled
        if type(own) is FunctionType and type(part).__module__ not in _SCRIPTS and not is_ours:
            with contextlib.suppress(Exception):  # as above
                if kind in part.__reduce__()[1]:
                    return True
    return False


def after(first: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a reduction that is opened once something else has been."""
    make, arguments, *state = reduced
    return _after, (first, make, arguments), *state


def _after(_: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return make(*arguments)
