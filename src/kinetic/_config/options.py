"""What can be set: job options, environment variables, and what a project's own file may say.

``JOB_OPTIONS`` is the one table of job options: the decorator and ``with_options``, profiles, ``[tool.kinetic]``,
variables, the flags of ``kinetic run``, ``kinetic config`` and the manual follow from it. ``_jobs/job_options.py``
checks the values. What a variable does is described in docs/settings.md only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


F = TypeVar("F", bound=Callable[..., Any])


class _Unset:
    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "UNSET"

    def __reduce__(self) -> str:
        return "UNSET"  # one object in every process, so that ``is`` holds


UNSET: Final[Any] = _Unset()  # the value of an argument that was not passed, where the default itself can be passed


class SettingValue(NamedTuple):
    """The value of a job option, or of a setting of a cluster, and where it came from."""

    value: object  # checked; None where it is not set
    source: str  # the name of a variable, "profile NAME", "[tool.kinetic] in FILE", or "default"


class JobOption(NamedTuple):
    """One option of a job."""

    name: str  # in Python, in profiles and in ``[tool.kinetic]``; with dashes, the flag of ``kinetic run``
    kinds: tuple[type, ...]  # what TOML and JSON may have for it
    effect: str  # part of a sentence, for the manual and the help of the flag
    without: str  # the default, for the manual
    default: object = None
    variable: str = ""  # the environment variable, or "" for none
    is_argument: bool = True  # of kinetic.run, with_options and kinetic run; the others are for whole projects
    metavar: str = "NAME"  # in the help of the command line


JOB_OPTIONS = (
    JobOption(
        "accelerator", (str,), "what the function runs on, as in cpu, gpu-l4 or tpu-v5e-1", "tpu-v5e-1", "tpu-v5e-1"
    ),
    JobOption("container_image", (str,), "the image that its container starts from", "none", metavar="ADDRESS"),
    JobOption(
        "deadline", (int, float, str), "how long it may run: seconds, or as in 10m or 2h", "no limit",
        variable="KINETIC_DEADLINE", metavar="TIME",
    ),
    JobOption("spot", (bool,), "use spot capacity, which can be reclaimed at short notice", "false", default=False),
    JobOption(
        "retries", (int,), "how many times a failed job is retried; in a batch, each of its jobs", "0",
        default=0, variable="KINETIC_RETRIES", metavar="N",
    ),
    JobOption(
        "resources", (dict, str), "CPU cores, memory and disk that it requests, as in cpu=4,memory=16Gi", "none",
        variable="KINETIC_RESOURCES", metavar="LIST",
    ),
    JobOption(
        "keep_warm", (int, float, str), "how long its pod stays afterwards and takes the next job, as in 20m",
        "the pod ends with the job", variable="KINETIC_KEEP_WARM", metavar="TIME",
    ),
    JobOption(
        "base_packages", (bool,),
        "whether JAX for the accelerator and Keras are installed in addition to the project's dependencies", "true",
        default=True, variable="KINETIC_BASE_PACKAGES", is_argument=False,
    ),
    JobOption(
        "require_accelerator", (bool,),
        "whether a job on a cluster fails before its function starts if its GPU or TPU is not available", "true",
        default=True, variable="KINETIC_REQUIRE_ACCELERATOR", is_argument=False,
    ),
    JobOption(
        "wait_image", (bool,),
        "whether a job waits for its image while a pod builds it for the first time, instead of installing its "
        "packages when it starts", "true",
        default=True, variable="KINETIC_WAIT_IMAGE", is_argument=False,
    ),
    JobOption(
        "compile_cache", (bool,),
        "whether what JAX, torch.compile, Triton and vLLM compile is kept in the store for later jobs", "true",
        default=True, variable="KINETIC_COMPILE_CACHE", is_argument=False,
    ),
    JobOption(
        "max_cost", (int, float),
        "how many US dollars a job on a cluster may cost at list price while its function runs: it becomes a deadline",
        "no limit", variable="KINETIC_MAX_COST", is_argument=False, metavar="DOLLARS",
    ),
)  # fmt: skip
BY_NAME = {option.name: option for option in JOB_OPTIONS}


def documented(function: F) -> F:
    """Show the defaults of the table in the signature of a function whose arguments default to UNSET.

    A copy of the function has them, which inspect finds as what is wrapped: to make a signature here costs 8 ms.
    """
    plain: Any = function
    code, given = plain.__code__, plain.__defaults__ or ()
    by_position = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    defaults = tuple(_shown(name, default) for name, default in zip(by_position, given, strict=True))
    shown = FunctionType(code, plain.__globals__, plain.__name__, defaults)
    shown.__kwdefaults__ = {name: _shown(name, default) for name, default in (plain.__kwdefaults__ or {}).items()}
    shown.__annotations__ = plain.__annotations__
    plain.__wrapped__ = shown
    return function


def _shown(name: str, default: object) -> object:
    return BY_NAME[name].default if default is UNSET else default


# ------------------------------------------------------------------------------------------------ environment variables

# What applies to all jobs of a cluster, as profiles name it, with the default for humans; see ``cluster``.
CLUSTER_SETTINGS = {
    "service_account": "kinetic if it exists, or default",
    "queue": "none",
    "priority_class": "none",
    "pull_secrets": "none",
    "image_repo": "none",
    "store_secret": "workload identity",
    "node_selector": "Google's labels",
    "tolerations": "those for the accelerator",
    "labels": "none",
    "annotations": "none",
    "config_maps": "none",
    "volume_claims": "none",
    "gpu_resource": "nvidia.com/gpu",
    "scheduler": "that of Kubernetes",
    "runtime_class": "the nodes' own",
    "cpu_disk": "1Gi",
    "ttl_hours": "24",
    "most_attempts": "no limit",
}
INSIDE_A_JOB = (  # and in a command that is run when a job has ended; kinetic sets them
    *("KINETIC_JOB_ID", "KINETIC_CHECKPOINT_DIR", "KINETIC_ATTEMPT", "KINETIC_HOST_INDEX", "KINETIC_HOST_COUNT"),
    *("KINETIC_SLICE_COUNT", "KINETIC_PROGRESS_FILE", "KINETIC_PACKAGE_ORIGIN"),
    *("KINETIC_NOTICE_JOB_ID", "KINETIC_NOTICE_STATUS", "KINETIC_NOTICE_TEXT"),
)
# Every variable that kinetic reads or sets, and the default as `kinetic config` shows it.
VARIABLES: Mapping[str, str] = {
    "KINETIC_BACKEND": "local without a project",
    "KINETIC_PROJECT": "GOOGLE_CLOUD_PROJECT, else none",
    "GOOGLE_CLOUD_PROJECT": "none",
    "KINETIC_ZONE": "us-central1-a",
    "KINETIC_CLUSTER": "kinetic-cluster",
    "KINETIC_NAMESPACE": "the context's own, else default",
    "KINETIC_KUBE_CONTEXT": "none",
    "KINETIC_STORE": "follows the backend",
    "KINETIC_SHARED_STORE": "unset",
    "KINETIC_PROFILE": "the current profile",
    "KINETIC_PROFILES_FILE": "profiles.json in the home",
    "KINETIC_PACKAGE_ROOT": "found from the function's file",
    "KINETIC_NO_DEFAULT_EXCLUDES": "unset",
    "KINETIC_CONTEXT_SIZE_WARN_MB": "100",
    "KINETIC_PAYLOAD_SIZE_WARN_MB": "50",
    "KINETIC_BASE_IMAGE_REPO": "kinetic",
    "KINETIC_BASE_IMAGE": "python:X.Y-slim-bookworm",
    "KINETIC_BUILD_ACCOUNT": "the project's default",
    "KINETIC_RESERVATION": "none",
    "KINETIC_UPGRADE": "unset",
    **{option.variable: option.without for option in JOB_OPTIONS if option.variable},
    "KINETIC_WARM_MAX": "8h",
    "KINETIC_DEBUG_WAIT_TIMEOUT": "600",
    "KINETIC_NO_TTY_DEBUG": "unset",
    "KINETIC_OUTPUT_DIR": "a folder for each job",
    "KINETIC_DATA_WRITABLE": "read-only data",
    "KINETIC_TRUST_STORE": "unset",
    "KINETIC_STALL_AFTER": "10m",
    "KINETIC_LOG_LEVEL": "INFO",
    "KINETIC_DEBUG": "unset",
    "KINETIC_OWNER": "the user's name",
    **{f"KINETIC_{name.upper()}": default for name, default in CLUSTER_SETTINGS.items()},
    "KINETIC_HOME": "~/.kinetic",
    "KINETIC_RUNTIME_DIR": "run/ in the home",
    "KINETIC_MACHINE_ID": "the system's own id",
    "KINETIC_LOCAL_SLOTS": "the cores allowed here",
    "KINETIC_LOCAL_GPUS": "all that are found",
    "KINETIC_GPU_LOCKS": "on, for GPUs that are found",
    "KINETIC_LOCAL_ENV": "same",
    "KINETIC_LOCAL_PRELOAD": "on",
    "KINETIC_LOCAL_MAX_HOSTS": "8",
    "KINETIC_PORTABLE": "unset",
    "KINETIC_VOLUME_ROOT": "unset",
    **dict.fromkeys(INSIDE_A_JOB, "unset elsewhere"),
}
_PREFIX = "KINETIC_"
_OWN = tuple(_PREFIX + word for word in ("SUPERVISOR", "DEBUG_TOKEN", "SCRIPT_WORDS"))  # between processes of ours
_OF_TESTS = f"{_PREFIX}TEST_"
_SWITCHES = tuple(
    f"{_PREFIX}{word}"
    for word in "DATA_WRITABLE DEBUG NO_DEFAULT_EXCLUDES NO_TTY_DEBUG PORTABLE SHARED_STORE TRUST_STORE UPGRADE".split()
)


def read_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable; set but empty counts as unset."""
    if name not in VARIABLES:
        raise LookupError(f"{name} is read but not described in kinetic/_config/options.py")
    return environ.get(name) or None


def describe_misread_switches(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that only 1 turns on, and that has another value, such as "true"."""
    return [
        f"{name}={environ[name]!r} has no effect: only {name}=1 turns it on"
        for name in _SWITCHES
        if environ.get(name, "").lower() not in {"", "0", "1", "false", "no", "off"}
    ]


def unknown_variables(environ: Mapping[str, str], besides: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that look like kinetic's but are not, each with the nearest known name or "".

    ``besides``: names that the user means for something else, e.g. those that a job captures.
    """
    expected = {*VARIABLES, *_OWN, *besides}
    found = sorted(
        name for name in environ if name.startswith(_PREFIX) and not name.startswith(_OF_TESTS) and name not in expected
    )
    if not found:
        return {}
    from difflib import get_close_matches  # 2 ms; only where there is one

    known = {name.removeprefix(_PREFIX): name for name in sorted(VARIABLES)}
    near = {name: get_close_matches(name.removeprefix(_PREFIX), known, 1) for name in found}
    return {name: known[words[0]] if words else "" for name, words in near.items()}


def describe_unknown_variables(found: Mapping[str, str]) -> str:
    """Return one sentence that names unknown variables and what was probably meant."""
    arguments = {f"{_PREFIX}{option.name.upper()}": option.name for option in JOB_OPTIONS}
    hints = {name: f"did you mean {near}?" for name, near in found.items() if near}
    hints |= {name: f"pass {arguments[name]}=… to kinetic.run" for name in found if name in arguments}
    listed = ", ".join(f"{name} ({hints[name]})" if name in hints else name for name in found)
    return f"kinetic does not read {listed}; kinetic config lists the variables that it reads"


# -------------------------------------------------------------------------- [tool.kinetic] in the project's own file
# A project may say how its jobs run, below the profile in rank, and never where: a cloned repository must not redirect
# jobs, results or secrets. A key outside the table is an error, so that no place slips through under a newer name.

_PROJECT_KINDS: dict[str, tuple[type, ...]] = {
    **{option.name: option.kinds for option in JOB_OPTIONS},
    "by_value": (list,),  # of names of modules that are pickled by value
    "extras": (list,),  # of names in [project.optional-dependencies] that an environment gets as well
    "groups": (list,),  # of names in [dependency-groups], likewise
}
_KIND_NAMES: dict[type, str] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a number",
    list: "a list of strings",
    str: "a string",
}
_PLACES = {  # what sets them instead
    **{
        name: f"KINETIC_{name.upper()}"
        for name in (
            *("backend", "cluster", "home", "kube_context", "namespace", "output_dir", "profile", "profiles_file"),
            *("project", "runtime_dir", "store", "trust_store", "zone"),
        )
    },
    "context": "KINETIC_KUBE_CONTEXT",
    "capture_env_vars": "the argument capture_env_vars",
}


class ProjectOptions(NamedTuple):
    """The options that a project sets; every name is allowed here, and every value is of the right kind."""

    file: Path  # the pyproject.toml, whether or not it exists
    values: Mapping[str, object]

    @property
    def by_value(self) -> tuple[str, ...]:
        """Names of modules that are pickled by value."""
        return tuple(cast("list[str]", self.values.get("by_value", [])))

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of optional dependencies that an environment for this project gets as well."""
        return tuple(cast("list[str]", self.values.get("extras", [])))

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of dependency groups that an environment for this project gets as well."""
        return tuple(cast("list[str]", self.values.get("groups", [])))


def read_project_options(root: Path) -> ProjectOptions:
    """Read the options in the pyproject.toml of a project; without file or table there are none."""
    file = root / "pyproject.toml"
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ProjectOptions(file, {})
    except OSError as error:
        raise _unreadable(file, f"{type(error).__name__}: {error.strerror or error}") from error
    if b"kinetic" not in content:  # most projects: neither the parser nor its import is needed
        return ProjectOptions(file, {})
    import tomllib  # 5 ms; only for a project that mentions kinetic

    try:
        tool = tomllib.loads(content.decode("utf-8-sig")).get("tool", {})
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise _unreadable(file, f"it is not TOML: {error}") from error
    table = tool.get("kinetic", {}) if isinstance(tool, dict) else tool
    if not isinstance(table, dict):
        raise _unreadable(file, f"tool.kinetic must be a table, and it is {table!r}")
    for key, value in table.items():
        _check_project_option(f"{key!r} in [tool.kinetic] of {file}", key, value)
    return ProjectOptions(file, table)


def _check_project_option(name: str, key: str, value: object) -> None:
    if key in _PLACES:
        raise SettingsError(
            f"{name} is not allowed",
            why="a project cannot set where jobs run, where results go or what is captured: "
            "a cloned repository must not redirect your jobs",
            next=f"remove the line, and use {_PLACES[key]}",
        )
    if key not in _PROJECT_KINDS:
        from difflib import get_close_matches  # 2 ms; only when something is wrong

        near = get_close_matches(key, _PROJECT_KINDS, n=1)
        raise SettingsError(
            f"{name} is not an option that a project can set",
            why=f"options: {', '.join(sorted(_PROJECT_KINDS))}",
            next=f"write {near[0]}, or remove the line"
            if near
            else "remove the line; if a newer version has this option: pip install --upgrade kinetic-jobs",
        )
    kinds = _PROJECT_KINDS[key]
    fits = type(value) in kinds if isinstance(value, bool) else isinstance(value, kinds)  # True is also an int
    if isinstance(value, list):
        fits = fits and all(isinstance(item, str) for item in value)
    if not fits:
        raise SettingsError(
            f"{name} must be {' or '.join(dict.fromkeys(_KIND_NAMES[kind] for kind in kinds))}",
            why=f"it is {value!r}",
            next="correct the line, or remove it",
        )


def _unreadable(file: Path, why: str) -> SettingsError:
    return SettingsError(
        f"the options of the project in {file} cannot be read",
        why=why,
        next="correct the file, or use another folder with KINETIC_PACKAGE_ROOT",
    )


# ------------------------------------------------------------------------------------------- CPU cores, memory and disk


class ResourceRequests(NamedTuple):
    """What one host of a job requests besides chips; None for nothing in particular."""

    cpu: float | None = None  # cores
    memory_bytes: int | None = None
    disk_bytes: int | None = None  # for files beside those of the image
    shm_bytes: int | None = None  # shared memory, a part of the memory


_EXAMPLES = {"cpu": "4", "memory": '"16Gi"', "disk": '"100Gi"', "shm": '"8Gi"'}
RESOURCE_NAMES = tuple(_EXAMPLES)
_UNITS = {f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)}
_UNITS |= {letter: 1000**power for power, letter in enumerate("kMGT", 1)}
_SIZE = r"(\d+(?:\.\d+)?)\s*(Ki|Mi|Gi|Ti|k|M|G|T)B?"  # compiled where it is used: every decorator loads this
_MOST_CORES, _MOST_BYTES = 1_000_000, 1 << 60
_CORES = r"(\d+(?:\.\d+)?)(m?)"


def checked_resources(written: object) -> dict[str, object]:
    """Return resources as they were written, if they are valid."""
    if isinstance(written, str):
        return parse_resources(written)
    if not isinstance(written, Mapping):
        raise OptionTypeError(
            f"resources={written!r} is not a table",
            why=f"it takes {', '.join(RESOURCE_NAMES)}",
            next='write resources={"cpu": 4, "memory": "16Gi"}, or in a file resources = "cpu=4,memory=16Gi"',
        )
    read_resources(written)
    return dict(written)


def read_resources(written: Mapping[str, object]) -> ResourceRequests:
    """Read amounts."""
    for name in written:
        if name not in RESOURCE_NAMES:
            from difflib import get_close_matches  # 2 ms; only on the way to an error

            nearest = get_close_matches(str(name), RESOURCE_NAMES, 1, 0)[0]
            raise OptionError(
                f"{name!r} is not a resource",
                why=f"resources: {', '.join(RESOURCE_NAMES)}; GPUs and TPU chips are named by the accelerator",
                next=f"write {nearest} = {_EXAMPLES[nearest]}, or leave it out",
            )
    cpu = _cores(written["cpu"]) if "cpu" in written else None
    return ResourceRequests(
        cpu, *(_bytes(name, written[name]) if name in written else None for name in RESOURCE_NAMES[1:])
    )


def parse_resources(text: str) -> dict[str, object]:
    """Read what was typed into a terminal: ``cpu=4,memory=16Gi``."""
    written: dict[str, object] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, amount = part.partition("=")
        if not separator:
            raise OptionError(
                f"{part!r} is not NAME=AMOUNT",
                why="resources are written as a list of them",
                next='write resources="cpu=4,memory=16Gi"',
            )
        written[name.strip()] = amount.strip()
    return checked_resources(written)


def _cores(amount: object) -> float:
    found = re.fullmatch(_CORES, str(amount)) if isinstance(amount, str) or hasattr(type(amount), "__float__") else None
    if isinstance(amount, bool) or found is None:
        raise _invalid("cpu", amount, 'a number of cores, as in 4 or 0.5, or thousandths of one, as in "500m"')
    cores = float(found[1]) / (1000 if found[2] else 1)
    if not cores:
        raise _invalid("cpu", amount, "more than 0")
    if cores > _MOST_CORES:
        raise _invalid("cpu", amount, f"at most {_MOST_CORES}")
    return cores


def read_size(text: str) -> int | None:
    """Read a size with its unit, such as 16Gi: its bytes, or None."""
    found = re.fullmatch(_SIZE, text.strip())
    # More than a page can hold is one more: of 400 digits, int() would make an error.
    return None if found is None else int(min(float(found[1]) * _UNITS[found[2]], 2.0 * _MOST_BYTES))


def _bytes(name: str, amount: object) -> int:
    size = read_size(amount) if isinstance(amount, str) else None
    if size is None:
        raise _invalid(name, amount, f"a size with its unit: {', '.join(_UNITS)}")
    if not size:
        raise _invalid(name, amount, "more than 0")
    if size > _MOST_BYTES:
        raise _invalid(name, amount, f"at most {_MOST_BYTES // _UNITS['Ti']}Ti")
    return size


def _invalid(name: str, amount: object, wanted: str) -> OptionError:
    quantity = "CPU quantity" if name == "cpu" else f"{name} size"
    return OptionError(
        f"{name}={amount!r} is not a valid {quantity}",
        why=f"expected {wanted}",
        next=f"write {name} = {_EXAMPLES[name]}",
    )
