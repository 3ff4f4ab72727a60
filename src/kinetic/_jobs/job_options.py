"""The decorator's options, validated once and frozen."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._config.options import BY_NAME, UNSET
from kinetic._hardware import Placement, place
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# A wildcard never matches these: they describe this machine, and would break another one.
PROCESS_NAMES = frozenset(
    "PATH HOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV SHELL TMPDIR TEMP TMP "
    "HOSTNAME USER LOGNAME SSH_AUTH_SOCK KUBERNETES_SERVICE_HOST KERAS_BACKEND".split()
)
_MOST = 1_000_000_000  # retries, and jobs of a batch at once
FOLLOWED = "_followed"  # the method of handles, of jobs and of batches, that says what they are to a job that follows
_SECRET_WORDS = ("TOKEN", "SECRET", "KEY", "PASSWORD", "CREDENTIAL", "CONNECTION_STRING")


class Captured(NamedTuple):
    """The variables that were captured."""

    values: dict[str, str]  # never in a record, log or store
    notes: tuple[str, ...]  # sentences for the user, with names only
    words: str = ""  # those of the script's command line, as JSON: one may be a secret

    def __repr__(self) -> str:
        """Show names only: a repr ends up in tracebacks and logs."""
        return f"Captured({', '.join(self.values)})"


def check(patterns: object) -> tuple[str, ...]:
    """Return the patterns, or reject invalid ones."""
    if patterns is None:
        return ()
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise OptionTypeError(
            f"capture_env_vars={patterns!r} is not a list of names",
            why="a bare string would be taken letter by letter" if isinstance(patterns, str) else None,
            next=f"capture_env_vars=[{patterns!r}]" if isinstance(patterns, str) else 'capture_env_vars=["HF_*"]',
        )
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise OptionTypeError(f"capture_env_vars holds {pattern!r}, which is not a string")
        if not pattern or "=" in pattern or "\0" in pattern or "*" in pattern[:-1]:
            raise OptionError(
                f"capture_env_vars holds {pattern!r}, which matches no variable",
                why="an entry is a name, or the beginning of names with one * at its end",
            )
    return tuple(patterns)


def capture(patterns: Sequence[str], environ: Mapping[str, str]) -> Captured:
    """Return the variables that exact names and wildcards match now."""
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    beginnings = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    matched = {name for name in environ if name in exact or (beginnings and name.startswith(beginnings))}
    skipped = sorted((matched & PROCESS_NAMES) - exact)
    values = {name: environ[name] for name in sorted(matched - set(skipped))}
    notes = []
    if skipped:
        notes.append(f"not captured, because they describe this machine: {', '.join(skipped)}")
    if values:
        notes.append(f"captured {len(values)} environment variable(s): {', '.join(values)}")
    if secret := [name for name in values if any(word in name.upper() for word in _SECRET_WORDS)]:
        notes.append(f"secrets by their names, given to the job and not stored anywhere else: {', '.join(secret)}")
    return Captured(values, tuple(notes))


def unset(patterns: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the exact names that no variable has: probably a typo, or a shell that did not export it."""
    return sorted({pattern for pattern in patterns if not pattern.endswith("*") and pattern not in environ})


_TEXTS = (
    "container_image",
    "base_image_repo",
    "zone",
    "project",
    "cluster",
    "backend",
    "namespace",
    "output_dir",
    "name",
)


_OTHER_WORDS = {  # of other tools, by our option
    "accelerator": "gpu gpus num_gpus gpus_per_node tpu device",
    "deadline": "timeout timeout_seconds timeout_min time_limit",
    "container_image": "image",
    "resources": "cpu cpus cpus_per_task memory mem mem_gb disk",
    "capture_env_vars": "env env_vars secrets",
    "retries": "max_retries",
    "spot": "preemptible",
    "zone": "region",
    "output_dir": "checkpoint_dir",
    "volumes": "mounts",
    "after": "depends_on",
}


_PACKAGES = "leave it out; name packages in the project's requirements.txt or pyproject.toml"
_ELSEWHERE = dict.fromkeys(("requirements", "dependencies", "packages", "pip", "pip_packages"), _PACKAGES)


def check_names(given: Iterable[str], call: str) -> None:
    """Refuse what is not the name of an option; ``call`` is how what received it begins, for the advice."""
    for name in given:
        if name not in Options._fields:
            import difflib

            from kinetic._config.variables import VARIABLES  # only on the way to an error

            elsewhere = _ELSEWHERE.get(name, "leave it out")
            if (variable := f"KINETIC_{name.upper()}") in VARIABLES:
                near, elsewhere = [], f"leave it out, and set {variable}"
            else:
                ours = next((ours for ours, theirs in _OTHER_WORDS.items() if name in theirs.split()), None)
                near = [ours] if ours else difflib.get_close_matches(name, Options._fields, 3)
            raise OptionTypeError(
                f"{name!r} is not an option of kinetic.run",
                why=f"nearest: {', '.join(near)}" if near else f"options: {', '.join(Options._fields)}",
                next=f"{call}{near[0]}=…)" if near else elsewhere,
            )


class Options(NamedTuple):
    """How a function is to run; the first thirteen are the parameters of ``kinetic.run``, in its order.

    Options that are None or UNSET are filled in at the submission; see ``option_sources``.
    """

    accelerator: str = UNSET
    container_image: str | None = None
    base_image_repo: str | None = None
    zone: str | None = None
    project: str | None = None
    capture_env_vars: Any = None
    cluster: str | None = None
    backend: str | None = None
    namespace: str | None = None
    volumes: Any = None
    spot: bool = UNSET
    output_dir: str | None = None
    debug: bool = False
    deadline: Any = None  # seconds that the function may take
    resources: Any = None  # cores, memory and disk, as written
    retries: int | None = None  # how many more times a job that failed is tried
    keep_warm: Any = None  # seconds that its pod stays and takes the next job; 0 not at all
    name: str | None = None  # for people
    tags: Any = None  # for people, strings by strings
    after: Any = None  # handles of the jobs and batches that it follows
    on_done: Any = None  # what is told of its end: commands, addresses of webhooks, "desktop"

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """Validate options, all that can be validated before a call."""
        output_dir = given.get("output_dir")
        if isinstance(output_dir, os.PathLike):
            given["output_dir"] = os.fspath(output_dir)
        options = cls(**given)
        for name in _TEXTS:
            text = getattr(options, name)
            if text is not None and not isinstance(text, str):
                why = f"it is of type {type(text).__qualname__}"
                raise OptionTypeError(f"{name}={text!r} is not a string", why=why)
        _check_flags(options)
        if options.backend is not None:
            registry.find(options.backend)
        _check_volumes(options.volumes)
        options = options._replace(
            capture_env_vars=check(options.capture_env_vars),
            **{name: rule(each) for name, rule in _RULES.items() if (each := getattr(options, name)) is not None},
        )
        options.placement()
        return options

    def changed(self, **given: Any) -> Options:
        """Return options with some values replaced, validated again."""
        check_names(given, "with_options(")
        return Options.checked(**{**self._asdict(), **given})

    @property
    def accelerator_name(self) -> str:
        """The accelerator, or the default while it is not set."""
        return BY_NAME["accelerator"].default if self.accelerator is UNSET else self.accelerator  # type: ignore[return-value] # a str

    @property
    def place(self) -> dict[str, Any]:
        """Where the job goes, as far as the options say so."""
        return {name: getattr(self, name) for name in ("backend", "project", "zone", "cluster", "namespace")}

    def placement(self) -> Placement:
        """Return what hardware the accelerator's name asks for."""
        name = self.accelerator_name
        if not isinstance(name, str):
            raise OptionTypeError(f"accelerator={name!r} is not a string", next='accelerator="cpu"')
        return place(name, spot=bool(self.spot), multi_host=registry.spans_hosts(self.backend))


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise OptionTypeError(f"{name}={value!r} is neither True nor False")


def _check_flags(options: Options) -> None:
    for name in ("spot", "debug"):
        value = getattr(options, name)
        if value is not UNSET:
            check_flag(name, value)
    if options.debug and options.spot:
        import warnings  # 1 ms; a rare pair

        ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
        level, frame = 1, sys._getframe()  # noqa: SLF001 - inspect is heavy, and asks the same
        while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):  # it is about the user's line
            level, frame = level + 1, frame.f_back
        words = "debug=True with spot=True: the machine may be taken away while you debug"
        warnings.warn(words, UserWarning, stacklevel=level)


def _check_volumes(volumes: object) -> None:
    if volumes is None:
        return
    from kinetic._data import data  # only for those who use it

    if not isinstance(volumes, dict):
        raise OptionTypeError(
            f"volumes={volumes!r} is not a dict",
            why=f"it is of type {type(volumes).__qualname__}",
            next='volumes={"/data": kinetic.Data("./data/")}',
        )
    data.check_volumes(volumes)


def _checked_resources(written: object) -> dict[str, object]:
    from kinetic._config import options  # 8 ms with dataclasses; only for those who use it

    return options.checked_resources(written)


def _seconds(written: object) -> float:
    """Read a deadline: a number of seconds, or a text such as "10m"."""
    if isinstance(written, bool) or not (isinstance(written, str) or hasattr(type(written), "__float__")):
        raise OptionTypeError(
            f"deadline={written!r} is not a number of seconds", next='deadline=3600, or deadline="1h"'
        )
    from kinetic._wire.fields import SECONDS, seconds_of  # as above

    try:
        span = seconds_of(written) if isinstance(written, str) else None
        seconds = span[0] if span else float(written)  # type: ignore[arg-type] # a text, or what has __float__
    except OverflowError:  # of a very large int
        seconds = SECONDS * 2
    except ValueError:
        raise OptionError(
            f"deadline={written!r} is not a number of seconds",
            why="it takes seconds, or a number and s, m, h, d or w",
            next='deadline=3600, or deadline="10m"',
        ) from None
    if not 0 < seconds <= SECONDS:
        is_long = SECONDS < seconds < float("inf")
        raise OptionError(
            f"deadline={written!r:.60} is {'too long' if is_long else 'not a positive number of seconds'}",
            why=f"it can be {SECONDS:.0f} seconds at most" if is_long else None,
            next="give it seconds, e.g. 3600, or leave it out for no limit",
        )
    return seconds


def _kept_seconds(written: object) -> float:
    """Read how long a pod stays: as a deadline, or 0 for not at all."""
    if not isinstance(written, bool) and str(written).strip() in {"0", "0.0"}:
        return 0.0
    try:
        return _seconds(written)
    except OptionError as error:
        kind = OptionTypeError if isinstance(error, OptionTypeError) else OptionError
        raise kind(
            f"keep_warm={written!r} is not a valid duration",
            why="it is how long the pod of a job stays: seconds, or a number and s, m, h, d or w",
            next='keep_warm="20m", or keep_warm=0 to let the pod end with its job',
        ) from None


def _checked_retries(value: object) -> int:
    value = whole_number("retries", value, advice="retries=3")
    if value < 0:
        raise OptionError(
            f"retries must be 0 or more, got {value}",
            why="it is how many more times a job that failed is tried",
            next="retries=0 for never",
        )
    check_not_huge("retries", value)
    return value


def whole_number(name: str, value: object, *, advice: str | None = None) -> int:
    """Return an int, also where it is one of NumPy's."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise OptionTypeError(f"{name}={value!r} is not a whole number", next=advice)
    return operator.index(value)  # type: ignore[arg-type] # it has __index__


def check_not_huge(name: str, value: int, advice: str = "write a smaller number") -> None:
    """Refuse what no page of a job can hold, and Kubernetes, which counts in 32 bits, not either: sys.maxsize."""
    if value > _MOST:
        raise OptionError(f"{name} is too large", why=f"it can be {_MOST} at most", next=advice)


def checked_tags(value: object) -> dict[str, str]:
    """Return tags, or refuse what is none."""
    if not isinstance(value, Mapping) or not all(isinstance(word, str) for item in value.items() for word in item):
        raise OptionTypeError(f"tags={value!r} must map strings to strings", next='tags={"sweep": "lr"}')
    return dict(value)


def _checked_targets(value: object) -> tuple[str, ...]:
    targets = (value,) if isinstance(value, str) else value
    if not isinstance(targets, Sequence) or not all(isinstance(target, str) for target in targets):
        raise OptionTypeError(
            f"on_done={value!r} is not a command, the address of a webhook, or a list of them",
            why="another process sends it when this one has ended, so it cannot be a function",
            next='on_done="desktop", on_done="https://…", or on_done="python notify.py"',
        )
    if not all(target.strip() for target in targets):
        raise OptionError("on_done has an empty entry", next='on_done="desktop"')
    return tuple(targets)


def _checked_after(value: object) -> tuple[Any, ...]:
    """Read the handles of what a job follows: those of jobs and of batches have a method that says so."""
    handles = tuple(value) if isinstance(value, list | tuple) else (value,)
    for handle in handles:
        if not hasattr(type(handle), FOLLOWED):
            advice = f'after=[kinetic.attach("{handle}")]' if isinstance(handle, str) else "after=[job]"
            raise OptionTypeError(
                f"after={value!r:.80} names no jobs",
                why=f"{handle!r:.80} is of type {type(handle).__qualname__}, and not the handle of a job or batch",
                next=advice,
            )
    return handles


_RULES: dict[str, Callable[[object], Any]] = {
    "deadline": _seconds,
    "resources": _checked_resources,
    "retries": _checked_retries,
    "keep_warm": _kept_seconds,
    "tags": checked_tags,
    "on_done": _checked_targets,
    "after": _checked_after,
}


class Fallback(str):
    """The value of an option that is used only where profile, project and variables have none."""

    __slots__ = ()


def why_no_submission(environ: Mapping[str, str]) -> str:
    """Return why this process cannot submit jobs, or "": a job on this machine can, and a pod cannot."""
    job_id = environ.get("KINETIC_JOB_ID")
    if not job_id or "KINETIC_SUPERVISOR" in environ:
        return ""
    return f"this process is the job {job_id} in a pod, which has no right to create Jobs and Secrets in its cluster"
