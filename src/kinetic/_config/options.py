"""Which job options there are, and the CPU cores, memory and disk that a job can request.

``JOB_OPTIONS`` is the one table of job options: the decorator and ``with_options``, profiles, ``[tool.kinetic]``,
variables, the flags of ``kinetic run``, ``kinetic config`` and the manual follow from it. ``_jobs/job_options.py``
checks the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, TypeVar

from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError

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
