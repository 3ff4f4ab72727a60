"""Options: the decorator's arguments, validated once, frozen."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from kinetic._backends import registry
from kinetic._hardware import Placement, place
from kinetic._jobs import resources
from kinetic._packing import environment
from kinetic._settings.job_options import BY_NAME, UNSET
from kinetic._wire.numbers import seconds_of
from kinetic.errors import OptionError, OptionTypeError

_TEXTS = ("container_image", "base_image_repo", "zone", "project", "cluster", "backend", "namespace", "output_dir")


class Options(NamedTuple):
    """How a function is to run; the first thirteen are the parameters of ``kinetic.run``, in its order.

    Attributes:
        accelerator: E.g. "cpu", "gpu-l4", "tpu-v5e-1".
        deadline: Seconds that the function may take; None where nobody says.
        resources: Cores, memory and disk, as written; None where nobody says.
        retries: How many more times a job that failed is tried; None where nobody says.

    Options that are None or UNSET are filled in at the submission: see ``defaults``.
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
    deadline: Any = None
    resources: Any = None
    retries: int | None = None

    @classmethod
    def checked(cls, **given: Any) -> Options:
        """Validate options, all that can be validated before a call.

        Raises:
            OptionError: A value that cannot work, with the nearest that can.
            OptionTypeError: A value of the wrong type.
        """
        options = cls(**{**given, "output_dir": _path_text(given.get("output_dir"))})
        for name in _TEXTS:
            _check_text(name, getattr(options, name))
        _check_flags(options)
        if options.backend is not None:
            registry.find(options.backend)
        _check_volumes(options.volumes)
        options = options._replace(
            capture_env_vars=environment.check(options.capture_env_vars),
            deadline=_seconds(options.deadline),
            resources=None if options.resources is None else resources.checked(options.resources),
            retries=_checked_retries(options.retries),
        )
        options.placement()
        return options

    def changed(self, **given: Any) -> Options:
        """Return options with some values replaced, validated again.

        Raises:
            OptionError: A name that is no option; the message lists the nearest.
        """
        for name in given:
            if name not in self._fields:
                raise _unknown(name, self._fields)
        return Options.checked(**{**self._asdict(), **given})

    @property
    def accelerator_name(self) -> str:
        """The accelerator, or the default while it is not set."""
        return BY_NAME["accelerator"].default if self.accelerator is UNSET else self.accelerator  # type: ignore[return-value] # a str

    def placement(self) -> Placement:
        """Say what hardware the accelerator's name asks for."""
        name = self.accelerator_name
        if not isinstance(name, str):
            raise OptionTypeError(f"accelerator={name!r} is not a string", next='accelerator="cpu"')
        return place(name, spot=bool(self.spot), multi_host=registry.spans_hosts(self.backend))


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise OptionTypeError(f"{name}={value!r} is not a string", why=f"it is a {type(value).__qualname__}")


def _check_flags(options: Options) -> None:
    for name in ("spot", "debug"):
        value = getattr(options, name)
        if value is not UNSET and not isinstance(value, bool):
            raise OptionTypeError(f"{name}={value!r} is neither True nor False")
    if options.debug and options.spot:
        import warnings  # 1 ms; a rare pair

        words = "debug=True with spot=True: the machine may be taken away while you look at what stands still on it"
        warnings.warn(words, UserWarning, stacklevel=5)  # the door of `run` and `with_options` is one frame of them


def _check_volumes(volumes: object) -> None:
    if volumes is None:
        return
    from kinetic import _data  # only for those who use it

    if not isinstance(volumes, dict):
        raise OptionTypeError(
            f"volumes={volumes!r} is not a dict",
            why=f"it is a {type(volumes).__qualname__}",
            next='volumes={"/data": kinetic.Data("./data/")}',
        )
    _data.check_volumes(volumes)


def _seconds(written: object) -> float | None:
    """Read a deadline: a number of seconds, or a text such as "10m"."""
    if written is None:
        return None
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        raise OptionTypeError(
            f"deadline={written!r} is not a number of seconds", next='deadline=3600, or deadline="1h"'
        )
    try:
        span = seconds_of(written) if isinstance(written, str) else None
        seconds = span[0] if span else float(written)
    except ValueError:
        raise OptionError(
            f"deadline={written!r} is not a number of seconds",
            why="it takes seconds, or a number and s, m, h, d or w",
            next='deadline=3600, or deadline="10m"',
        ) from None
    if not 0 < seconds < float("inf"):
        raise OptionError(
            f"deadline={written!r} is not a positive number of seconds",
            next="give it seconds, e.g. 3600, or leave it out for no limit",
        )
    return seconds


def _checked_retries(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise OptionTypeError(f"retries={value!r} is not a whole number", next="retries=3")
    if value < 0:
        raise OptionError(
            f"retries must be 0 or more, got {value}",
            why="it is how many more times a job that failed is tried",
            next="retries=0 for never",
        )
    return value


def _path_text(value: object) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _unknown(name: str, known: tuple[str, ...]) -> OptionError:
    import difflib

    near = difflib.get_close_matches(name, known, 3) or known[:3]
    return OptionError(
        f"{name!r} is not an option of kinetic.run",
        why=f"nearest: {', '.join(near)}",
        next=f"with_options({near[0]}=…)",
    )
