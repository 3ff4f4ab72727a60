"""What a worker does when a module is imported: a library that compiles or is told how to, or one of ours that stays.

Modules of ours that stay with the client have stand-ins.
"""

from __future__ import annotations

import binascii
import contextlib
import functools
import json
import os
import pickle
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from kinetic._runner.worker import process_setup
from kinetic._runner.worker.process_setup import later_settings, library_settings, write_to_log
from kinetic._wire import attributes, dataclass
from kinetic._wire.task import DETECT, LEFT_OUT
from kinetic.errors import CallableError

if TYPE_CHECKING:
    from importlib.abc import Loader

    from kinetic._runner.worker.compile_cache import CompileCache, LibraryCache
else:
    Loader = object  # importing it takes 2 ms, and everything that a loader does here is written here

T = TypeVar("T")
_JOIN_SECONDS = 300  # JAX's own default: the slowest host may still be importing


@dataclass(frozen=True)
class JaxProcess:
    """One host's place in a slice, from 0; ``coordinator`` as in ``Task``."""

    host: int
    hosts: int
    coordinator: str


Around = Callable[[ModuleType, Callable[[], None]], None]  # gets a module that is being imported, and what executes it


class ImportHooks:
    """What a worker does when jax, or another library that compiles, is imported; until then nothing is loaded.

    With jax the hosts of a slice meet: a later call of ``jax.distributed.initialize``, the user's own or of Keras, does
    nothing.
    ``begin`` makes the compile cache; it returns None where that is not possible.
    """

    def __init__(self, process: JaxProcess, compilers: Mapping[str, str], begin: Callable[[], Any]) -> None:
        self._process, self._begin = process, begin
        self._joins = process.hosts > 1 and bool(process.coordinator)
        self.accept: Callable[[Mapping[str, str]], object] = len  # gets variables as they were before we set some
        self._made: list[CompileCache | None] = []
        self._is_cached = "jax" in compilers
        self._arounds: dict[str, Around] = {
            module: functools.partial(self._around_library, name) for module, name in compilers.items()
        }
        for name in library_settings | later_settings:
            self._arounds[name] = functools.partial(_around_told, name, self._arounds.get(name, _run))
        if self._joins or self._is_cached:
            self._arounds["jax"] = self._around_jax
        if "flags" in process_setup.command_line:
            self._arounds |= {"absl.flags": _around_flags, "absl.logging": _around_flags_of_logging}
        if "resolvers" in process_setup.command_line:
            self._arounds["omegaconf.omegaconf"] = _around_omegaconf
        if process_setup.command_line.get("hydra"):
            self._arounds["hydra.core.hydra_config"] = _around_hydra_config
        if django := process_setup.command_line.get("django"):
            os.environ.setdefault("DJANGO_SETTINGS_MODULE", django[0])
            self._arounds |= dict.fromkeys(django[1:], _around_app_of_django)

    def install(self) -> None:
        if self._arounds:
            sys.meta_path.insert(0, _HookFinder(self._arounds))
            self.catch_up()

    def catch_up(self) -> None:
        """Do the same for modules that are there now, without an import that executed them here."""
        for name in [name for name in self._arounds if name in sys.modules]:
            self._arounds.pop(name)(sys.modules[name], functools.partial(_configure, name))

    def finish(self, *, succeeded: bool = True) -> None:
        """End the compile cache, if it ever began: the function has ended."""
        for cache in filter(None, self._made):
            cache.finish(succeeded=succeeded)

    def _library(self, name: str) -> LibraryCache | None:
        if not self._made:
            self._made.append(self._begin())
        cache, before = self._made[0], dict(os.environ)
        library = None if cache is None else _tried(functools.partial(cache.begin, name))
        self.accept(before)
        return library

    def _around_library(self, name: str, module: ModuleType, run: Callable[[], None]) -> None:
        library = self._library(name)
        if library is not None and module.__name__ != "vllm":  # importing that takes longer than fetching
            library.wait()
        run()
        if library is not None:
            library.wait()

    def _around_jax(self, jax: ModuleType, run: Callable[[], None]) -> None:
        library = self._library("jax") if self._is_cached else None
        _around_told("jax", _run, jax, run)
        if library is not None:
            _tried(functools.partial(library.listen, jax))
        if self._joins:
            _join_slice(jax, self._process)


def _run(_module: ModuleType, run: Callable[[], None]) -> None:
    run()


def _around_told(name: str, around: Around, module: ModuleType, run: Callable[[], None]) -> None:
    """Tell a library what the client's process has told it."""
    around(module, run)
    known: Any = module
    for setting, value in (library_settings.get(name, {}) | later_settings.get(name, {})).items():
        with contextlib.suppress(Exception):  # a version that does not have it
            if setting == "levels":
                process_setup.set_levels(value)
            elif name == "jax":
                known.config.update(setting, value)
            elif name == "multiprocessing":  # as its default, since what the function imports may set it once
                known.context._default_context._default_context = known.get_context(value)  # noqa: SLF001
            else:
                is_type = isinstance(value, str) and value.startswith("torch.")
                given = attributes.get(known, value.removeprefix("torch.")) if is_type else value
                attributes.give(known, setting, given)


def _around_flags(module: ModuleType, run: Callable[[], None]) -> None:
    """Give each flag of absl the value that it has in the script, as soon as it is defined here."""
    run()
    known: Any = module
    flags, define, told = known.FLAGS, known.FlagValues.__setitem__, process_setup.command_line["flags"]

    def give(name: str) -> None:
        flag, (flag.present, data) = flags[name], told.pop(name)
        flag.value, flag.using_default_value = pickle.loads(binascii.a2b_base64(data)), False  # noqa: S301 - the client's

    def define_and_give(self: Any, name: str, flag: Any) -> None:
        define(self, name, flag)
        if self is flags and name in told:
            give(name)

    known.FlagValues.__setitem__ = define_and_give
    for name in told.keys() & set(flags):
        give(name)
    if process_setup.command_line["parsed"]:
        flags.mark_as_parsed()


def _around_flags_of_logging(_module: ModuleType, run: Callable[[], None]) -> None:
    run()
    flag = sys.modules["absl.flags"].FLAGS["verbosity"]
    flag.value = flag.value  # its loggers were not there when it was defined


def _around_omegaconf(module: ModuleType, run: Callable[[], None]) -> None:
    """Let configs find the script's resolvers, opened when they are used; one that is registered here replaces it."""
    run()
    known: Any = module
    told, register = dict(process_setup.command_line["resolvers"]), known.OmegaConf.register_new_resolver

    def called(data: str, *given: Any) -> Any:
        return pickle.loads(binascii.a2b_base64(data))(*given)  # noqa: S301 - the client's

    def register_new_resolver(name: str, *args: Any, **options: Any) -> None:
        register(name, *args, **options | ({"replace": True} if told.pop(name, "") else {}))

    known.OmegaConf.register_new_resolver = staticmethod(register_new_resolver)
    for name in told.keys() - set(known.BaseContainer._resolvers):  # noqa: SLF001 - where it keeps them; nothing public
        known.BaseContainer._resolvers[name] = functools.partial(called, told[name])  # noqa: SLF001


def _around_hydra_config(module: ModuleType, run: Callable[[], None]) -> None:
    """Give Hydra its config of the script when that is asked for: its classes may be in modules that import Hydra."""
    run()
    known: Any = module
    instance = known.HydraConfig.instance

    def opened_instance(*args: Any) -> Any:
        if data := process_setup.command_line.pop("hydra", ""):
            instance().cfg = pickle.loads(zlib.decompress(binascii.a2b_base64(data)))  # noqa: S301 - the client's
        return instance(*args)

    known.HydraConfig.instance = staticmethod(opened_instance)


def _around_app_of_django(_module: ModuleType, run: Callable[[], None]) -> None:
    """Set Django up before the first of its apps is imported, whose models need that, unless the function does so."""
    apps = __import__("django.apps").apps.apps
    if process_setup.command_line.pop("django", None) and not apps.loading:
        sys.modules["django"].setup()
    run()


def _tried(do: Callable[[], T]) -> T | None:
    """Do something for the compile cache, which never fails an import."""
    try:
        return do()
    except Exception as error:  # noqa: BLE001 - the job compiles
        write_to_log(f"kinetic: compile cache: {type(error).__name__}: {error}\n")
        return None


def _configure(name: str) -> None:
    """Tell a library that is imported already where its cache is; jax reads variables only when it is imported."""
    if name == "jax" and (folder := os.environ.get("JAX_COMPILATION_CACHE_DIR")):
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", folder)
        for setting, kind in (
            ("jax_persistent_cache_enable_xla_caches", str),
            ("jax_persistent_cache_min_compile_time_secs", float),
        ):
            with contextlib.suppress(AttributeError, KeyError, ValueError):  # an older one does not have it
                config.update(setting, kind(os.environ[setting.upper()]))


class _HookFinder:
    """Finds each of some modules once, as Python would, and puts something around its import."""

    def __init__(self, arounds: dict[str, Around]) -> None:
        self._arounds = arounds

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        around = self._arounds.pop(fullname, None)
        if around is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookLoader(spec.loader, around)
        return spec


class _HookLoader(Loader):
    def __init__(self, loader: Loader, around: Around) -> None:
        self._loader, self._around = loader, around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._around(module, lambda: self._loader.exec_module(module))


def _join_slice(jax: ModuleType, process: JaxProcess) -> None:
    distributed = __import__("jax.distributed").distributed
    if process.coordinator == DETECT:
        distributed.initialize(initialization_timeout=_JOIN_SECONDS)
    else:
        distributed.initialize(
            coordinator_address=process.coordinator,
            num_processes=process.hosts,
            process_id=process.host,
            # A coordinator on this machine stays on it; JAX's default, for pods, binds every interface.
            coordinator_bind_address=process.coordinator if process.coordinator.startswith("127.") else None,
            initialization_timeout=_JOIN_SECONDS,
        )
    distributed.initialize = lambda *_, **__: None
    jax.distributed = distributed  # type: ignore[attr-defined] # as its own import would


# --------------------------------------------------------------------------------- modules that stay with the client


def install_stand_ins(runner: str) -> None:
    """Let modules of kinetic that do not travel into a pod be imported there; using them raises an error.

    A module of the user's may say ``from kinetic import attach`` at its top and never call it in a job. On the client's
    own machine every module is there, and nothing of this is needed.
    """
    try:
        names = frozenset(json.loads((Path(runner) / LEFT_OUT).read_bytes()))
    except FileNotFoundError:  # not a pod's
        return
    sys.meta_path.append(_StandInFinder(names))


class _StandInFinder(Loader):
    """Finds a stand-in for each module that is left out; the last finder."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - passed by its name
        target: ModuleType | None = None,  # noqa: ARG002 - the same
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in self._names else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in is complete."""


class _StandInModule(types.ModuleType):
    """Has a stand-in for every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        made = type(name, (_StandIn,), {"__module__": self.__name__, "__qualname__": name})
        setattr(self, name, made)
        return made


class _StandIn:
    """Stands for a class or a function: an annotation can name it, and nothing can call it."""

    def __new__(cls, *_: object, **__: object) -> NoReturn:
        raise CallableError(
            f"{cls.__name__} cannot be used inside a job on a cluster",
            why=f"{cls.__module__} does not travel into a pod: it works on the machine that submits jobs",
            next="call it where the job is submitted, and pass what it returns as an argument",
        )

    def __class_getitem__(cls, _item: object) -> type[_StandIn]:
        """Stay what it is, as JobHandle[int]."""
        return cls
