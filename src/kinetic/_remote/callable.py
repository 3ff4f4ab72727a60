"""``kinetic.run`` and the decorated function: call it to run it there, or use one of its methods."""

from __future__ import annotations

import functools
import gc
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from kinetic._config.options import UNSET, documented
from kinetic._jobs.job_options import Options, check_names, why_no_submission
from kinetic._output import tracebacks
from kinetic._wire import loading, references
from kinetic.errors import CallableError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kinetic._batches.batch_handle import BatchHandle
    from kinetic._data.data import Data
    from kinetic._jobs.handle import JobHandle

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")
Function = TypeVar("Function", bound=Callable[..., Any])
Call: TypeAlias = "tuple[RemoteCallable[..., Any], tuple[Any, ...], dict[str, Any]]"
_COROUTINE, _GENERATOR, _ASYNC_GENERATOR = 0x80, 0x20, 0x200  # inspect.CO_…; importing inspect costs 8 ms
_METHODS_FORWARD = sys.version_info >= (3, 13)  # classmethod stopped chaining descriptors there
_LONGEST_NAME = 256  # characters; ids shorten it themselves
_POOLS = ("multiprocessing.reduction", "joblib.pool")  # what pickles for processes that have the script, too
# Of a function: Airflow and Hypothesis ask for them, joblib's Memory to notice an edit, inspect.signature for Kedro.
_LOOKED_AT = frozenset({"__code__", "__defaults__", "__globals__", "__kwdefaults__"})
recorded: ContextVar[list[Call] | None] = ContextVar("kinetic_recorded_calls", default=None)  # see ``recorded_calls``
_run_here: set[str] = set()  # names of functions that a job called, which is reported once


def check_callable(function: object) -> None:
    """Refuse what cannot run as a job."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise CallableError(
            f"@kinetic.run cannot decorate a {kind}",
            why=f"@{kind} is below it, so it receives a descriptor and not a function",
            next=f"swap the two lines: @{kind} first, @kinetic.run(...) below it",
        )
    if not callable(function):
        why = f"it is of type {type(function).__qualname__}, which is not callable"
        raise CallableError(f"{function!r} cannot run as a job", why=why)
    if hasattr(function, "cache_clear") and hasattr(function, "cache_info"):
        raise CallableError(
            "@kinetic.run cannot decorate a cached function",
            why="its cache lives in this process, and the job has another",
            next="put the cache above: @functools.cache first, @kinetic.run(...) below it",
        )
    flags = _flags(function)
    for flag, kind, instead in (
        (_ASYNC_GENERATOR, "an asynchronous generator function", "collects it with asyncio.run(…)"),
        (_COROUTINE, "a coroutine function (async def)", "returns asyncio.run(…) of it"),
        (_GENERATOR, "a generator function (it yields)", "returns list(…) of it"),
    ):
        if flags & flag:
            raise CallableError(
                f"{name_of(function)} is {kind} and cannot run as a job",
                why="a job returns one value, and this returns an object that exists only where it was made",
                next=f"decorate a plain function that {instead}",
            )


def name_of(function: object) -> str:
    """Return a name for people and ids: of a partial, the innermost function's; of an instance, its class's."""
    while not hasattr(function, "__name__") and hasattr(function, "func"):
        function = function.func
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        name = type(function).__name__
    if not name.isidentifier():
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")
    return name[:_LONGEST_NAME] or "job"


def _flags(function: Any) -> int:
    for _ in range(100):  # partials of partials, bound methods, decorated functions
        inner = getattr(function, "func", None) or getattr(function, "__func__", None)
        if inner is None:
            break
        function = inner
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = getattr(type(function).__call__, "__code__", None)
    return int(getattr(code, "co_flags", 0))


if TYPE_CHECKING:
    Method = TypeVar("Method", bound=Callable[..., Any])

    def _keeps_class(method: Method) -> Method: ...

else:

    class _keeps_class:  # noqa: N801 - reads as a decorator
        """Give a method the function bound to the class on which it was accessed; see ``_with_lost_class``."""

        def __init__(self, method: Callable[..., Any]) -> None:
            self._method = tracebacks.hides_frames(method)

        def __get__(self, instance: RemoteCallable[..., Any] | None, owner: type | None = None) -> Callable[..., Any]:
            return self._method if instance is None else self._method.__get__(instance._with_lost_class()._submitter())  # noqa: SLF001 - ours


_CALLS = "{0}(…) runs as a job and returns the value, {0}.run_async(…) returns a handle"
_MANY = "{0}.run_async_map(inputs) submits a job for each input"
_OTHER_TOOLS = dict.fromkeys(("remote", "spawn", "delay", "apply_async"), _CALLS)  # of Modal, Ray, Dask and Celery
_OTHER_TOOLS |= dict.fromkeys(("map", "starmap", "map_async", "map_array", "for_each"), _MANY)


class RemoteCallable(Generic[P, R]):
    """A function that runs as a job. It keeps the name, documentation and signature of the plain one.

    ``f(...)`` blocks and returns the value; ``f.run_async(...)`` (also ``f.submit``) returns a JobHandle;
    ``f.local(...)`` runs the plain function here; ``f.with_options(...)`` is the same function with other options.
    """

    def __init__(self, function: Callable[P, R], options: Options, *, leading: tuple[Any, ...] = ()) -> None:
        functools.update_wrapper(self, function, updated=())
        self.__dict__[references.WRAPPED] = function
        if leading:  # for inspect, help and notebooks: a bound method has no self in its signature
            self.__wrapped__ = types.MethodType(function, leading[0])
        self._options = options
        self._leading = leading
        self._name = name_of(function)
        if not hasattr(self, "__name__"):
            self.__name__ = self._name

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run as a job, wait, and return the value or raise the function's own exception."""
        __tracebackhide__ = True
        # No wrapper, as ``hides_frames`` makes one: beartype above would take its hints, and not the function's.
        with tracebacks.Leaving():
            if os.environ.get("KINETIC_JOB_ID"):
                if self._name not in _run_here:
                    _run_here.add(self._name)
                    sys.stderr.write(f"kinetic: {self._name}() was called inside a job and runs in this process\n")
                return self._call_here(args, kwargs)
            refuse_blocking_call(self._name)
            with loading():
                from kinetic._jobs import calls  # the client's rooms load with the first job

            return calls.call_and_wait(self._plain, (*self._leading, *args), kwargs, self._name, self._options)  # type: ignore[no-any-return]

    @_keeps_class
    def local(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function in this process."""
        return self._call_here(args, kwargs)

    @_keeps_class
    def with_options(self, **options: Any) -> RemoteCallable[P, R]:
        """Return the same function with some options changed; takes the parameters of ``kinetic.run``.

        ``f.options(...)`` is the same.

        Raises:
            OptionError: An unknown option or a value that cannot work.
        """
        return RemoteCallable(self._plain, self._options.changed(**options), leading=self._leading)

    options = with_options

    @_keeps_class
    def run_async(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit a job and return its handle at once; the job does not need this process anymore.

        Raises:
            CallableError: In a pod of a cluster, which cannot submit jobs.
        """
        self._refuse_where_nothing_is_submitted()
        if (recorded := record_call(self, args, kwargs)) is not None:
            return recorded  # type: ignore[no-any-return] # in place of a handle until its batch is submitted
        with loading():
            from kinetic._jobs import calls

        return calls.submit_call(self._plain, (*self._leading, *args), kwargs, self._name, self._options)

    submit = run_async

    @_keeps_class
    @documented
    def run_async_map(
        self,
        inputs: Iterable[Any],
        *,
        input_mode: str = "auto",
        max_concurrent: int | None = 64,
        retries: int = UNSET,
        fail_fast: bool = False,
        cancel_running_on_fail: bool = False,
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        project: str | None = None,
        cluster: str | None = None,
    ) -> BatchHandle[R]:
        """Run the function once for each input, as jobs of one batch, and return their handle at once.

        Args:
            inputs: At least one. They are pickled one by one and sent together.
            input_mode: "single" passes an input as the one argument; "args" spreads a list or tuple, "kwargs" a dict;
                "auto" spreads lists, tuples, and dicts whose keys can be names of parameters.
            max_concurrent: How many jobs may be waiting or running at once; None submits all at once. 64 keeps a large
                batch from filling a cluster's queue.
            retries: Further attempts at an input whose job failed. Falls back to the function's own ``retries``.
            fail_fast: Launch nothing more after a failure.
            cancel_running_on_fail: With ``fail_fast``, also cancel the jobs that run then.
            name: A name for people.
            tags: Tags for people, strings by strings.
            project: Google Cloud project of this batch and its jobs, instead of the function's own.
            cluster: GKE cluster of this batch and its jobs, instead of the function's own.

        Raises:
            OptionError: A value that cannot work, or no inputs (also a ValueError).
            CallableError: In a pod of a cluster, which cannot submit jobs.
        """
        self._refuse_where_nothing_is_submitted()
        with loading():
            from kinetic._batches import submission  # the client's rooms load with the first job

        given = {word: value for word, value in (("project", project), ("cluster", cluster)) if value is not None}
        batch_request = submission.request_of(
            self._plain,
            self._leading,
            self._name,
            self._options.changed(**given) if given else self._options,
            inputs,
            input_mode=input_mode,
            max_concurrent=max_concurrent,
            retries=retries,
            fail_fast=fail_fast,
            cancel_running_on_fail=cancel_running_on_fail,
            group_name=name,
            tags=tags,
        )
        return submission.submit(batch_request)

    @overload
    def __get__(self, instance: None, owner: type) -> RemoteCallable[P, R]: ...
    @overload
    def __get__(
        self: RemoteCallable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> RemoteCallable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind like a function: the instance becomes the first argument."""
        if instance is None:
            return self
        return RemoteCallable(self._plain, self._options, leading=(*self._leading, instance))

    def is_alike(self, other: RemoteCallable[..., Any]) -> bool:
        """Return whether another one runs the same function, of the same instance, with the same options."""
        bound = len(self._leading) == len(other._leading) and all(map(operator.is_, self._leading, other._leading))
        return self._plain is other._plain and bound and self._options == other._options

    def __repr__(self) -> str:
        """Return what it is and where it runs."""
        bound = f" bound to {self._leading[0]!r}" if self._leading else ""
        return f"<kinetic function {self._name}{bound} on {self._options.accelerator_name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the plain function: by name where it can be found by one, else by value.

        What a function refers to that cloudpickle takes by value, as joblib does for a function of a script, stays
        decorated: such a function is called in another process, and calls this one as it would here.
        """
        if self._leading:
            return references.bound, (RemoteCallable(self._plain, self._options), self._leading[0])
        asks = sys._getframe(1)  # noqa: SLF001 - by its documentation, who calls
        if getattr(asks.f_locals.get("self"), "globals_ref", None):  # of cloudpickle: it is within such a function
            return self._decorated(asks)
        if not os.environ.get("KINETIC_JOB_ID"):  # a job runs it in its own process, too
            from kinetic._output import terminal as output  # 6 ms; not for a decorator

            output.report_once(
                f"{self._name} is pickled as the plain function: a process that gets it runs it itself, and not as a "
                f"job; give it {self._name}.run_async, or a function that calls {self._name}"
            )
        name = self._name_for(asks)
        return (references.by_name, name) if name else (references.same, (self._plain,))

    def _decorated(self, asks: types.FrameType) -> tuple[Any, ...]:
        """Reduce to what is decorated in another process: by name where that has the same options."""
        name = self._name_for(asks)
        found = references.decorated(*name) if name else None
        if isinstance(found, RemoteCallable) and self.is_alike(found):
            return references.decorated, name
        in_a_job = os.environ.get("KINETIC_JOB_ID")  # what it returns is in a store
        options = self._options._replace(on_done=None, after=None) if in_a_job else self._options
        return self._reduced(name or self._plain, options)

    def _name_for(self, asks: types.FrameType) -> tuple[str, str] | None:
        """Return module and name by which the process finds the function that gets what is pickled now."""
        module, qualname = getattr(self._plain, "__module__", ""), getattr(self._plain, "__qualname__", "<")
        # Processes of multiprocessing import the script, or were forked from this one.
        is_there = module != "__main__" or asks.f_globals.get("__name__") in _POOLS
        if not module or not is_there or "<" in qualname:
            return None
        found: object = sys.modules.get(module)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        return (module, qualname) if references.plain(found) is self._plain else None

    def _submitter(self) -> RemoteCallable[P, R]:
        """Return itself, as what its methods are bound to; always the same, as methods are compared by that."""
        if "_submits" not in self.__dict__:
            self._submits = _Submitter.__new__(_Submitter)
            self._submits.__dict__ = self.__dict__
        return self._submits

    def _for_the_job(self) -> tuple[Any, ...]:
        """Reduce a function of a script for a job, where it is decorated as well."""
        # An address may be a secret, and a job follows nothing.
        return self._reduced(self._plain, self._options._replace(on_done=None, after=None))

    def _reduced(self, function: object, options: Options) -> tuple[Any, ...]:
        """Reduce to what is decorated where it arrives; ``function`` is the plain one, or its module and name.

        Empty first and filled afterwards, because a function that calls itself refers to what is being made.
        """
        volumes = [  # Data among what is pickled for a job would become a path
            (mount, (data.path, data.fuse, data.hf_trust_remote_code))
            for mount, data in (self._options.volumes or {}).items()
        ]
        parts = function, options._replace(volumes=None), self._leading, volumes
        return _blank, (type(self),), parts, None, None, RemoteCallable._fill

    def _fill(self, parts: tuple[Any, ...]) -> None:
        function, options, leading, volumes = parts
        if isinstance(function, tuple):
            function = references.by_name(*function)
        if volumes:
            from kinetic._data.data import Data  # in jobs that do not need it, it is not loaded

            options = options._replace(volumes={mount: Data(*given) for mount, given in volumes})
        RemoteCallable.__init__(self, function, options, leading=leading)

    def _become(self, new: RemoteCallable[P, R]) -> None:
        """Become what a reload of the module has made: for whoever imported this by name."""
        self.__dict__.update({**new.__dict__, "_submits": self._submitter()})

    def __copy__(self) -> RemoteCallable[P, R]:
        """Return itself: like a function, it is not copied."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteCallable[P, R]:
        """Return itself: like a function, it is not copied."""
        return self

    @property
    def __kinetic_wrapped__(self) -> Callable[P, R]:
        """The plain function; this property marks the class for ``_wire.references``."""
        return self.__dict__[references.WRAPPED]  # type: ignore[no-any-return] # put there by __init__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what other decorators left on the function, its annotations, and what tools look at instead of it.

            With ``_LOOKED_AT`` it is like a function for inspect, also without ``__wrapped__``.
            """
            plain = self.__dict__.get(references.WRAPPED)
            is_looked_at = name in _LOOKED_AT and not self.__dict__.get("_leading")  # a bound one has other parameters
            if is_looked_at or name == "__annotations__" or name in getattr(plain, "__dict__", ()):
                return getattr(plain, name)
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if instead := _OTHER_TOOLS.get(name):
                what += f"; {instead.format(self.__dict__.get('_name', 'f'))} (docs/moving.md)"
            raise AttributeError(what, name=name, obj=self)

        def __delattr__(self, name: str) -> None:
            """Remove an attribute from where it is: click takes what its options left on the function."""
            object.__delattr__(self if name in self.__dict__ else self._plain, name)

    @property
    def _plain(self) -> Callable[..., R]:
        return self.__dict__[references.WRAPPED]  # type: ignore[no-any-return]

    def _call_here(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        from kinetic._remote import function_paths

        function_paths.report_missing_volumes(self._name, self._options.volumes)
        args, kwargs = function_paths.replace_references(self._plain, self._leading, args, kwargs)
        return self._plain(*self._leading, *args, **kwargs)

    def _refuse_where_nothing_is_submitted(self) -> None:
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process.current_process(), "_inheriting", False):
            raise CallableError(
                f"{self._name} was submitted by a child process that imports the script",
                why="a process that multiprocessing starts with spawn or forkserver runs the whole script first, and "
                "each would submit the job again",
                next="put what the script does below `if __name__ == '__main__':`",
            )
        if references.is_opening_call:
            raise CallableError(
                f"{self._name} was submitted by a job that imports a module",
                why="a job imports the modules of its function first, and each would submit the job again, without end",
                next="put what the module does below `if __name__ == '__main__':`, or into a function",
            )
        if _is_replica_of(self._name, os.environ):
            raise CallableError(
                f"{self._name} was submitted by another process of its own job",
                why=f"a launcher, as that of Lightning's strategy 'ddp', ran the script again as its process "
                f"{os.environ['LOCAL_RANK']}, and each would submit the job again, without end",
                next=f"call {self._name}(…) in the script instead: inside a job it runs in this process; or start the "
                "processes from the function itself, as with 'ddp_spawn' or torch.multiprocessing.spawn",
            )
        if reason := why_no_submission(os.environ):
            raise CallableError(
                f"{self._name} cannot be submitted from inside a job on a cluster",
                why=reason,
                next="call it directly: inside a job it runs in this process; or submit it beside this job: "
                f"{self._name}.run_async(job) starts after it, with its value",
            )

    def _with_lost_class(self) -> RemoteCallable[P, R]:
        """Find the class on which ``Class.method.run_async`` was accessed.

        From Python 3.13 on, ``@classmethod`` above ``@kinetic.run`` makes a method object that forwards attribute
        access to us without the class. That method object is alive right now, and refers to us.
        """
        if not _METHODS_FORWARD or self._leading or not _may_be_a_classmethod(self._plain):
            return self
        methods = [found for found in gc.get_referrers(self) if type(found) is types.MethodType]
        classes = {id(found.__self__): found.__self__ for found in methods if isinstance(found.__self__, type)}
        if len(classes) > 1:
            raise CallableError(
                f"it is not clear for which class {self._name} should run",
                why=f"method objects of {len(classes)} classes are alive: {sorted(map(str, classes.values()))}",
                next="keep no other bound class method of it in a variable",
            )
        if not classes:
            return self
        return RemoteCallable(self._plain, self._options, leading=tuple(classes.values()))


# Of an object, Dagster's ``op`` and Gradio read the hints of its __call__: these say nothing of the function.
RemoteCallable.__call__.__annotations__ = {}


def _is_replica_of(name: str, environ: Mapping[str, str]) -> bool:
    """Return whether a launcher that a job of this function used has started this process with the script."""
    job_id, rank = environ.get("KINETIC_JOB_ID"), environ.get("LOCAL_RANK", "0")
    if not job_id or not rank.isdigit() or int(rank) == 0:
        return False
    from kinetic._wire import keys  # here, as a job rarely asks

    return f"-{keys.slug(name, keys.CHILD_FUNCTION)}" in job_id


class _Submitter(RemoteCallable[P, R]):
    """A decorated function as the owner of its methods: pickled with one, it arrives decorated, not as the plain one.

    ``pool.map(train.run_async, inputs)`` of a pool of processes would wait forever for a worker that finds no
    ``run_async``.
    """

    __kinetic_wrapped__ = RemoteCallable.__kinetic_wrapped__

    def __reduce__(self) -> tuple[Any, ...]:
        make, *parts = self._decorated(sys._getframe(1))  # noqa: SLF001 - as above
        return _named_submitter if make is references.decorated else make, *parts


def _both_are_ours(old: object, new: object) -> bool:
    return isinstance(old, RemoteCallable) and isinstance(new, RemoteCallable)


def _tell_autoreload(module: str) -> None:
    """Let ``%autoreload`` of IPython update decorated functions in place, as it does plain ones."""
    rules = getattr(sys.modules.get("IPython.extensions.autoreload"), "UPDATE_RULES", None)
    if not isinstance(rules, list):
        return
    rule = (_both_are_ours, RemoteCallable._become)  # noqa: SLF001 - ours
    if rule not in rules:
        rules.append(rule)
    with suppress(AttributeError, KeyError):  # IPython 8, or nothing is reloaded
        found: Any = sys.modules["IPython"].get_ipython().magics_manager.registry["AutoreloadMagics"]
        reloader = found._reloader  # noqa: SLF001 - it has no other name
        single = reloader.deduper_reloader  # changes functions one by one where it can
        if "patch_function" not in vars(single):
            single.patch_function = functools.partial(_patch, single.patch_function)
        if any(name == module for name, _ in reloader.old_objects):
            single.source_by_modname[module] = ""  # once reloaded, it would not reach what others imported by name


def _patch(patch: Callable[..., Any], old: object, new: object, is_method: bool) -> None:
    if not isinstance(old, RemoteCallable):
        patch(old, new, is_method)
    elif isinstance(new, RemoteCallable):  # else it is without its decorators yet
        old._become(new)  # noqa: SLF001 - ours


def _blank(kind: type[RemoteCallable[..., Any]] = RemoteCallable) -> RemoteCallable[..., Any]:
    return kind.__new__(kind)


def _named_submitter(module: str, qualname: str) -> Any:
    """Return what the methods of a decorated function are bound to: who got it, as Dask's scheduler, may pass it on."""
    found = references.decorated(module, qualname)
    return found._submitter() if isinstance(found, RemoteCallable) else found  # noqa: SLF001 - ours


def _may_be_a_classmethod(function: object) -> bool:
    """Return whether a function is in a class and may take the class first: searching the whole heap is slow."""
    holder = getattr(function, "__qualname__", "").rpartition(".")[0]
    code = getattr(function, "__code__", None)
    first = code.co_varnames[:1] if code is not None else ("self",)
    return bool(holder) and not holder.endswith("<locals>") and first not in {(), ("self",)}


class Decorator(Protocol):
    """What ``kinetic.run(...)`` returns: it keeps the signature of what it decorates."""

    def __call__(self, function: Callable[P, R], /) -> RemoteCallable[P, R]:
        """Decorate a function."""


def _checks_names(function: Function) -> Function:
    """Let a function whose parameters are the options refuse other names with the nearest one, as ``with_options``."""

    @functools.wraps(function)
    def calls(*args: Any, **given: Any) -> Any:
        check_names(given, "@kinetic.run(")
        return function(*args, **given)

    return calls  # type: ignore[return-value] # it has the same signature


@tracebacks.hides_frames
@_checks_names
@documented
def run(
    accelerator: str = UNSET,
    container_image: str | None = None,
    base_image_repo: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    capture_env_vars: Sequence[str] | None = None,
    cluster: str | None = None,
    backend: str | None = None,
    namespace: str | None = None,
    volumes: Mapping[str, Data] | None = None,
    spot: bool = UNSET,
    output_dir: str | None = None,
    debug: bool = False,
    *,
    deadline: float | str | None = None,
    resources: Mapping[str, object] | str | None = None,
    retries: int | None = None,
    keep_warm: float | str | None = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    after: JobHandle | BatchHandle | Sequence[JobHandle | BatchHandle] | None = None,
    on_done: str | Sequence[str] | None = None,
) -> Decorator:
    """Run the decorated function on an accelerator.

    Without any configuration that is this machine; a project, a profile, KINETIC_BACKEND or ``backend=`` selects
    another place. Calling the function blocks and returns its value; ``.run_async(...)`` returns a JobHandle at once.

    Args:
        accelerator: What it runs on, e.g. "cpu", "gpu-l4", "gpu-a100x8", "gpu-h100x8x2" (two machines of eight GPUs),
            "tpu-v5e-1", "tpu-v5litepod-2x4", "tpu-2xv5e-16" (two slices of 16 chips). Falls back to the options of the
            profile, then to ``[tool.kinetic]`` in the project's pyproject.toml.
        container_image: None or "bundled", "prebuilt", or the address of an image. Recorded on this machine. Falls
            back like the accelerator.
        base_image_repo: Repository of prebuilt base images. Recorded on this machine.
        zone: Google Cloud zone. Falls back to KINETIC_ZONE, the profile, then "us-central1-a".
        project: Google Cloud project. Falls back to KINETIC_PROJECT, the profile, then GOOGLE_CLOUD_PROJECT.
        capture_env_vars: Names of environment variables to pass to the job; an entry may end in ``*``.
        cluster: GKE cluster. Falls back to KINETIC_CLUSTER, then the profile.
        backend: "local", "gke" or "pathways".
        namespace: Kubernetes namespace. Falls back to KINETIC_NAMESPACE, the profile, then "default".
        volumes: Absolute mount paths to ``kinetic.Data``.
        spot: Request capacity that can be preempted at short notice. Falls back like the accelerator.
        output_dir: Where outputs of the job are kept; the job sees it as KINETIC_OUTPUT_DIR.
        debug: Wait for a debugger before the function starts.
        deadline: How long the function may run: seconds, or a text such as "10m". Falls back to KINETIC_DEADLINE, then
            like the accelerator.
        resources: What it requests of a machine: {"cpu": 4, "memory": "16Gi", "disk": "100Gi", "shm": "8Gi"}, or the
            text "cpu=4,memory=16Gi". Falls back to KINETIC_RESOURCES, then like the accelerator.
        retries: How many more times a failed job is tried. Falls back to KINETIC_RETRIES, then like the
            accelerator.
        keep_warm: How long the pod of a job on a cluster stays after it and takes the next job that fits: seconds, or a
            text such as "20m"; 0 for not at all. Falls back to KINETIC_KEEP_WARM, then like the accelerator. The node
            is paid for meanwhile. No effect on this machine, where a process always waits for the next job.
        name: A name for people; it is in the id of the job, and lists show it.
        tags: Tags for people, strings by strings; ``kinetic jobs list --tag`` finds them.
        after: Handles of jobs and batches that must succeed before it starts. If one does not, its ``result()``
            raises a PredecessorError. A handle among the arguments is followed, too: the function gets its value.
        on_done: What gets one notification when a job or a batch has ended: "desktop" for a notice on this machine, the
            address of a webhook, or a shell command; or a list of them. "$NAME" is the value of a variable. It is
            kept on this machine, and in no store.

    Returns:
        A decorator.

    Raises:
        OptionError: A value that cannot work (also a ValueError), or of the wrong type (also a TypeError).
    """
    given = dict(locals())  # before there is any other local: the parameters are the options
    if callable(accelerator):
        raise OptionTypeError(
            "@kinetic.run is used without parentheses",
            why=f"it received the function {getattr(accelerator, '__name__', accelerator)!r} as its accelerator",
            next="write @kinetic.run() or @kinetic.run(accelerator=…)",
        )
    options = Options.checked(**given)

    @tracebacks.hides_frames
    def decorate(function: Callable[P, R], /) -> RemoteCallable[P, R]:
        check_callable(function)
        _tell_autoreload(function.__module__)  # a reload decorates again, and then updates
        return RemoteCallable(function, options)

    return decorate


class _NotYet:
    """In place of the handle of a job that its batch is going to submit."""

    def __getattr__(self, name: str) -> NoReturn:
        raise CallableError(
            f"{name} was requested of a job that is not submitted yet",
            why="collections.map submits the jobs of all inputs together, after it has called the function for each",
            next="let the function return what run_async returns, and use the batch: batch.jobs, batch.results()",
        )


def record_call(remote: RemoteCallable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call and return what replaces its handle; None where nothing is recorded."""
    calls = recorded.get()
    if calls is None:
        return None
    calls.append((remote, args, kwargs))
    return _NotYet()


def refuse_blocking_call(name: str) -> None:
    """Refuse a blocking call while calls are recorded: it would run one input after the other."""
    if recorded.get() is not None:
        raise CallableError(
            f"{name} was called and not submitted",
            why="collections.map takes a function that submits one job for each input",
            next=f"write {name}.run_async(…) in it",
        )
