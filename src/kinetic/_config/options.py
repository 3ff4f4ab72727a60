"""The one table of job options: what each is called everywhere, what it takes, and what holds without it.

The decorator and ``with_options``, profiles, ``[tool.kinetic]``, variables, the flags of ``kinetic run``, what
``kinetic config`` shows and the manual's table all follow from it. Values are checked in ``_jobs/options.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

from kinetic._backends import registry
from kinetic.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
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


class JobOption(NamedTuple):
    """One option of a job.

    Attributes:
        name: In Python, in profiles and in ``[tool.kinetic]``; with dashes, the flag of ``kinetic run``.
        kinds: What TOML and JSON may have for it.
        effect: What it does: part of a sentence, for the manual and the help of the flag.
        without: What holds where nobody says anything, in words.
        default: The same as a value.
        variable: The environment variable that says it, or "".
        is_argument: Whether ``kinetic.run``, ``with_options`` and ``kinetic run`` take it; the others are for whole
            projects.
        metavar: What the help of the command line shows for its value.
    """

    name: str
    kinds: tuple[type, ...]
    effect: str
    without: str
    default: object = None
    variable: str = ""
    is_argument: bool = True
    metavar: str = "NAME"


JOB_OPTIONS = (
    JobOption(
        "accelerator", (str,), "what the function runs on, as in cpu, gpu-l4 or tpu-v5e-1", "tpu-v5e-1", "tpu-v5e-1"
    ),
    JobOption("container_image", (str,), "the image that its container starts from", "none", metavar="ADDRESS"),
    JobOption(
        "deadline",
        (int, float, str),
        "how long it may run: seconds, or as in 10m or 2h",
        "no limit",
        variable="KINETIC_DEADLINE",
        metavar="TIME",
    ),
    JobOption("spot", (bool,), "take capacity that may be taken away at short notice", "false", default=False),
    JobOption(
        "retries",
        (int,),
        "how many more times a job that failed is tried; of a batch, each of its jobs",
        "0",
        default=0,
        variable="KINETIC_RETRIES",
        metavar="N",
    ),
    JobOption(
        "resources",
        (dict, str),
        "cores, memory and disk that it asks for, as in cpu=4,memory=16Gi",
        "none",
        variable="KINETIC_RESOURCES",
        metavar="LIST",
    ),
    JobOption(
        "base_packages",
        (bool,),
        "whether JAX for the accelerator and Keras are installed beside what the project declares",
        "true",
        default=True,
        variable="KINETIC_BASE_PACKAGES",
        is_argument=False,
    ),
    JobOption(
        "require_accelerator",
        (bool,),
        "whether a job on a cluster fails before its function begins where its GPU or TPU does not come up",
        "true",
        default=True,
        variable="KINETIC_REQUIRE_ACCELERATOR",
        is_argument=False,
    ),
)
BY_NAME = {option.name: option for option in JOB_OPTIONS}


def documented(function: F) -> F:
    """Show the defaults of the table in the signature of a function whose arguments default to UNSET."""
    import inspect  # 8 ms; only where a decorator is made

    signature = inspect.signature(function)
    shown = [
        one.replace(default=BY_NAME[one.name].default) if one.default is UNSET else one
        for one in signature.parameters.values()
    ]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined] # read by inspect
    return function


Topic = Literal["where", "packaging", "jobs", "clusters", "this machine", "inside a job"]


class Variable(NamedTuple):
    """Describe one variable to a reader of the manual and of ``kinetic config``.

    Attributes:
        name: As it stands in the environment.
        topic: Under which heading it is told.
        effect: What it does: one sentence without a full stop.
        default: What holds while it is unset, in words a user would use.
    """

    name: str
    topic: Topic
    effect: str
    default: str


VARIABLES: tuple[Variable, ...] = (
    Variable("KINETIC_BACKEND", "where", f"the place where jobs run: {registry.listed()}", "local without a project"),
    Variable("KINETIC_PROJECT", "where", "the Google Cloud project", "GOOGLE_CLOUD_PROJECT, else none"),
    Variable("GOOGLE_CLOUD_PROJECT", "where", "the project when nothing of kinetic's names one", "none"),
    Variable("KINETIC_ZONE", "where", "the zone of the cluster", "us-central1-a"),
    Variable("KINETIC_CLUSTER", "where", "the name of the cluster", "kinetic-cluster"),
    Variable("KINETIC_NAMESPACE", "where", "the Kubernetes namespace", "the context's own, else default"),
    Variable("KINETIC_KUBE_CONTEXT", "where", "a kubeconfig context to use instead of GKE's endpoint", "none"),
    Variable("KINETIC_STORE", "where", "the address of the store that keeps jobs and results", "follows the backend"),
    Variable("KINETIC_SHARED_STORE", "where", "1: every pod has the folder of a file:// store at its path", "unset"),
    Variable("KINETIC_PROFILE", "where", "the profile that fills in what is not said", "the current profile"),
    Variable("KINETIC_PROFILES_FILE", "where", "the file with the profiles", "profiles.json in the home"),
    Variable("KINETIC_PACKAGE_ROOT", "packaging", "the folder that ships with a job", "found from the function's file"),
    Variable("KINETIC_NO_DEFAULT_EXCLUDES", "packaging", "1 ships what is left out by default", "unset"),
    Variable("KINETIC_CONTEXT_SIZE_WARN_MB", "packaging", "the archive size in MB that draws a warning", "100"),
    Variable("KINETIC_PAYLOAD_SIZE_WARN_MB", "packaging", "the size of arguments in MB that draws a warning", "50"),
    Variable("KINETIC_BASE_IMAGE_REPO", "jobs", "the repository of prebuilt images", "kinetic"),
    *(Variable(option.variable, "jobs", option.effect, option.without) for option in JOB_OPTIONS if option.variable),
    Variable("KINETIC_DEBUG_WAIT_TIMEOUT", "jobs", "the seconds that a debug job waits for a debugger", "600"),
    Variable("KINETIC_NO_TTY_DEBUG", "jobs", "1 permits a blocking debug call without a terminal", "unset"),
    Variable("KINETIC_OUTPUT_DIR", "jobs", "where a job leaves its files; set in every job", "a folder for each job"),
    Variable("KINETIC_DATA_WRITABLE", "jobs", "1 gives a job copies of its data that it may change", "read-only data"),
    Variable("KINETIC_TRUST_STORE", "jobs", "1 believes all that lies in the store, with or without a seal", "unset"),
    Variable("KINETIC_LOG_LEVEL", "jobs", "how much kinetic logs: DEBUG, INFO, WARNING, ERROR or FATAL", "INFO"),
    Variable("KINETIC_DEBUG", "jobs", "1 shows the whole Python traceback of an error, our frames too", "unset"),
    Variable("KINETIC_OWNER", "clusters", "who submits, as jobs on a cluster are labelled", "the user's name"),
    Variable("KINETIC_SERVICE_ACCOUNT", "clusters", "the account that pods run as", "kinetic if it exists, or default"),
    Variable("KINETIC_QUEUE", "clusters", "the queue (of Kueue) that jobs wait in", "none"),
    Variable("KINETIC_PRIORITY_CLASS", "clusters", "the priority class of pods", "none"),
    Variable("KINETIC_PULL_SECRETS", "clusters", "Secrets with which images are pulled, as in a,b", "none"),
    Variable("KINETIC_STORE_SECRET", "clusters", "a Secret with credentials for the store", "workload identity"),
    Variable("KINETIC_NODE_SELECTOR", "clusters", "labels of nodes, as in key=value,key2=value2", "Google's labels"),
    Variable("KINETIC_TTL_HOURS", "clusters", "the hours after which what is left of an ended job goes", "24"),
    Variable("KINETIC_MOST_ATTEMPTS", "clusters", "how many attempts of a job may be cut short", "no limit"),
    Variable("KINETIC_HOME", "this machine", "the folder with profiles, keys and the local store", "~/.kinetic"),
    Variable("KINETIC_RUNTIME_DIR", "this machine", "the folder of running jobs, on a local disk", "run/ in the home"),
    Variable("KINETIC_MACHINE_ID", "this machine", "what tells hosts that share a home apart", "the system's own id"),
    Variable("KINETIC_LOCAL_SLOTS", "this machine", "how many jobs run here at once", "the cores allowed here"),
    Variable("KINETIC_LOCAL_GPUS", "this machine", "the GPUs that jobs here may use", "all that are found"),
    Variable("KINETIC_LOCAL_ENV", "this machine", "same, or isolated: an environment built for the project", "same"),
    Variable("KINETIC_LOCAL_MAX_HOSTS", "this machine", "the largest slice, in hosts, that is emulated here", "8"),
    Variable("KINETIC_PORTABLE", "this machine", "1 switches off what only some systems can do", "unset"),
    Variable("KINETIC_VOLUME_ROOT", "this machine", "a folder in which volumes appear, in place of /", "unset"),
    Variable("KINETIC_JOB_ID", "inside a job", "the id of the job; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_CHECKPOINT_DIR", "inside a job", "where checkpoints belong; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_ATTEMPT", "inside a job", "which attempt this is, from 0; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_HOST_INDEX", "inside a job", "which host this is, from 0; kinetic sets it", "unset elsewhere"),
    Variable("KINETIC_HOST_COUNT", "inside a job", "how many hosts there are; kinetic sets it", "unset elsewhere"),
)

_VARIABLE_NAMES = frozenset(variable.name for variable in VARIABLES)
_PREFIX = "KINETIC_"
_HANDED_ON = ("SUPERVISOR", "DEBUG_TOKEN")  # without the prefix: what our own processes hand to each other
_OF_TESTS = f"{_PREFIX}TEST_"


def read_variable(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the value of a variable; set but empty counts as unset.

    Raises:
        LookupError: The name is not in ``VARIABLES``, so no manual would mention it: a mistake of ours.
    """
    if name not in _VARIABLE_NAMES:
        raise LookupError(f"{name} is read but not described in kinetic/_config/options.py")
    return environ.get(name) or None


def unknown_variables(environ: Mapping[str, str], besides: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that look like kinetic's and that it does not read, each with the nearest known name or "".

    Args:
        environ: The environment.
        besides: Names that the user means for something else, e.g. those that a job takes along.
    """
    expected = {*_VARIABLE_NAMES, *(f"{_PREFIX}{word}" for word in _HANDED_ON), *besides}
    names = [name for name in environ if name.startswith(_PREFIX) and name not in expected]
    found = sorted(name for name in names if not name.startswith(_OF_TESTS))
    if not found:
        return {}
    from difflib import get_close_matches  # 2 ms; only where there is one

    return {name: next(iter(get_close_matches(name, sorted(_VARIABLE_NAMES), 1)), "") for name in found}


def describe_unknown_variables(found: Mapping[str, str]) -> str:
    """Say in one sentence which variables are not kinetic's, and what was probably meant."""
    listed = ", ".join(f"{name} (did you mean {near}?)" if near else name for name, near in found.items())
    return f"kinetic does not read {listed}; kinetic config lists the variables that it reads"


_KINDS: dict[str, tuple[type, ...]] = {
    **{option.name: option.kinds for option in JOB_OPTIONS},
    "by_value": (list,),  # of names of modules that are pickled by value
    "extras": (list,),  # of names in [project.optional-dependencies] that an environment gets as well
}
_WORDS: dict[type, str] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a number",
    list: "a list of strings",
    str: "a string",
}

# Where jobs run, where results go, and what leaves this machine: key → what says it instead.
_PLACES = {
    "backend": "KINETIC_BACKEND",
    "capture_env_vars": "the argument capture_env_vars",
    "cluster": "KINETIC_CLUSTER",
    "context": "KINETIC_KUBE_CONTEXT",
    "home": "KINETIC_HOME",
    "kube_context": "KINETIC_KUBE_CONTEXT",
    "namespace": "KINETIC_NAMESPACE",
    "output_dir": "KINETIC_OUTPUT_DIR",
    "profile": "KINETIC_PROFILE",
    "profiles_file": "KINETIC_PROFILES_FILE",
    "project": "KINETIC_PROJECT",
    "runtime_dir": "KINETIC_RUNTIME_DIR",
    "store": "KINETIC_STORE",
    "trust_store": "KINETIC_TRUST_STORE",
    "zone": "KINETIC_ZONE",
}


class ProjectOptions(NamedTuple):
    """Hold the job options of a project.

    Attributes:
        file: The pyproject.toml, whether or not it exists.
        values: By name; every name is one of those allowed here, every value of the right kind.
    """

    file: Path
    values: Mapping[str, object]

    @property
    def by_value(self) -> tuple[str, ...]:
        """Names of modules that are pickled by value."""
        return tuple(cast("list[str]", self.values.get("by_value", [])))  # the kind was checked on reading

    @property
    def extras(self) -> tuple[str, ...]:
        """Names of optional dependencies that an environment for this project gets as well."""
        return tuple(cast("list[str]", self.values.get("extras", [])))  # as above


def read_project_options(root: Path) -> ProjectOptions:
    """Read the job options in the pyproject.toml of a project; without file or table there are none.

    Args:
        root: The folder that ships.

    Raises:
        SettingsError: The file cannot be read, or sets what a project may not set.
    """
    file = root / "pyproject.toml"
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ProjectOptions(file, {})
    except OSError as error:
        raise _unreadable(file, f"{type(error).__name__}: {error.strerror or error}") from error
    if b"kinetic" not in content:  # most projects: neither the parser nor its import is needed
        return ProjectOptions(file, {})
    table = _read_table(file, content)
    for key, value in table.items():
        _check(file, key, value)
    return ProjectOptions(file, table)


def _read_table(file: Path, content: bytes) -> dict[str, object]:
    import tomllib  # 5 ms; only for a project that mentions kinetic

    try:
        tool = tomllib.loads(content.decode()).get("tool", {})
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise _unreadable(file, f"it is not TOML: {error}") from error
    table = tool.get("kinetic", {}) if isinstance(tool, dict) else tool
    if not isinstance(table, dict):
        raise _unreadable(file, f"tool.kinetic must be a table, and it is {table!r}")
    return table


def _check(file: Path, key: str, value: object) -> None:
    if key in _PLACES:
        raise SettingsError(
            f"{key!r} may not be set in [tool.kinetic] of {file}",
            why="a project must not say where jobs run, where results go or what leaves this machine: "
            "whoever clones it would follow without knowing",
            next=f"remove the line, and use {_PLACES[key]}",
        )
    if key not in _KINDS:
        raise _unknown_option(file, key)
    if not _is_of_kind(value, _KINDS[key]):
        wanted = " or ".join(dict.fromkeys(_WORDS[kind] for kind in _KINDS[key]))
        raise SettingsError(
            f"{key!r} in [tool.kinetic] of {file} must be {wanted}",
            why=f"it is {value!r}",
            next="correct the line, or remove it",
        )


def _is_of_kind(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # Python counts it as a number
        return bool in kinds
    if isinstance(value, list):
        return list in kinds and all(isinstance(item, str) for item in value)
    return isinstance(value, kinds)


def _unknown_option(file: Path, key: str) -> SettingsError:
    from difflib import get_close_matches  # 2 ms; only when something is wrong

    near = get_close_matches(key, _KINDS, n=1)
    return SettingsError(
        f"{key!r} in [tool.kinetic] of {file} is not an option that a project may set",
        why=f"options: {', '.join(sorted(_KINDS))}",
        next=f"write {near[0]}, or remove the line" if near else "remove the line",
    )


def _unreadable(file: Path, why: str) -> SettingsError:
    return SettingsError(
        f"the options of the project in {file} cannot be read",
        why=why,
        next="correct the file, or ship another folder with KINETIC_PACKAGE_ROOT",
    )
