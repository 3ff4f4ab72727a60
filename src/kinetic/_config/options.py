"""The one table of job options: what each is called everywhere, what it takes, and what holds without it.

The decorator and ``with_options``, profiles, ``[tool.kinetic]``, variables, the flags of ``kinetic run``, what
``kinetic config`` shows and the manual's table all follow from it. Values are checked in ``_jobs/options.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

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
