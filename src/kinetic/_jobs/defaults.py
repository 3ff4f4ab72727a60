"""Job options that the decorator leaves open: who fills them in.

    option            1. given     2. environment       3. profile    4. the project's file    5. default
    accelerator       argument                          "options"     [tool.kinetic]           tpu-v5e-1
    container_image   argument                          "options"     [tool.kinetic]           none
    deadline          argument     KINETIC_DEADLINE     "options"     [tool.kinetic]           no limit
    spot              argument                          "options"     [tool.kinetic]           False
    retries           of a batch                        "options"     [tool.kinetic]           0
    resources                                           "options"     [tool.kinetic]           none

The first that says something wins. ``retries`` are those of a batch, which asks ``retries_of``. ``resources`` are for
clusters, which ask ``resources_of``; a job on this machine is told that nobody holds it to them.

So that ``accelerator="tpu-v5e-1"`` can be told from no accelerator at all, the default in the decorator's signature is
a value of its own, which equals what it stands for and is shown like it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kinetic._jobs.options import Options
    from kinetic._jobs.resources import Resources
    from kinetic._settings.profiles import Profile

OF_CALLS = ("accelerator", "container_image", "deadline", "spot")  # those that are Options of a function as well
NAMES = (*OF_CALLS, "retries", "resources")
_VARIABLES = {"deadline": "KINETIC_DEADLINE"}
_TABLE = "[tool.kinetic]"


class NotGivenText(str):
    """A text that nobody wrote: equal to the default, and known as the default by its class."""

    __slots__ = ()


class NotGivenFlag(int):
    """A flag that nobody wrote: equal to False and shown as False. ``bool`` itself cannot be subclassed."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Look like the flag."""
        return repr(bool(self))


ACCELERATOR: str = NotGivenText("tpu-v5e-1")
SPOT: bool = cast("bool", NotGivenFlag(0))  # it answers like one, except to isinstance
DEFAULTS: dict[str, object] = {
    "accelerator": "tpu-v5e-1",
    "container_image": None,
    "deadline": None,
    "spot": False,
    "retries": 0,
    "resources": None,
}


class Found(NamedTuple):
    """Hold the value of an option and where it came from.

    Attributes:
        value: The value, checked; None for none.
        source: The name of a variable, "profile NAME", "[tool.kinetic] in FILE", or "default".
    """

    value: object
    source: str


class Sources(NamedTuple):
    """Hold what each option is where the decorator does not say, and what the user should be told.

    Attributes:
        options: By name, every name of NAMES.
        notes: Plain sentences: what was written and has no effect.
    """

    options: Mapping[str, Found]
    notes: tuple[str, ...]


def is_given(options: Options, name: str) -> bool:
    """Say whether the decorator, or ``with_options``, gave an option a value."""
    value = getattr(options, name)
    return value is not None and not isinstance(value, NotGivenText | NotGivenFlag)


def applied(options: Options, root: Path, profile: Profile | None, environ: Mapping[str, str]) -> Options:
    """Fill in what the decorator leaves open.

    Args:
        options: The decorator's; given back with plain values, so that doing it again changes nothing.
        root: The folder of the project that ships.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        SettingsError: A value in the profile or in the project's file cannot work; file and option are named.
        OptionError: KINETIC_DEADLINE is not a positive number.
    """
    from kinetic import _output as output  # tells only at a submission

    open_ = [name for name in OF_CALLS if not is_given(options, name)]
    found = look_up(root, profile, environ, only=[*open_, "retries", "resources"])
    for note in (*found.notes, *_not_enforced(found.options["resources"], options, environ)):
        output.once(note)
    filled: dict[str, Any] = {name: found.options[name].value for name in open_}  # checked, each by its own rule
    return options._replace(**filled)


def look_up(
    root: Path | None, profile: Profile | None, environ: Mapping[str, str], *, only: Iterable[str] = NAMES
) -> Sources:
    """Say what each option is where the decorator does not say, and who says so.

    Args:
        root: The folder of the project, or None for none.
        profile: The profile that holds, or None.
        environ: The environment.
        only: The options that matter: what is written about others is not checked.

    Raises:
        SettingsError: As for ``applied``.
        OptionError: As for ``applied``.
    """
    from kinetic._settings import project_file  # not for an import of kinetic.run

    pages: list[_Page] = []
    if profile is not None:
        pages.append(_profile_page(profile, environ))
    if root is not None:
        written = project_file.read_project_options(root)
        pages.append(_Page(_TABLE, written.file, written.values))
    found = {name: _first(name, pages, environ) for name in only}
    return Sources(found, tuple(note for page in pages for note in _without_effect(page)))


def retries_of(root: Path | None, profile: Profile | None, environ: Mapping[str, str]) -> int:
    """Say how often a batch tries each failed job again where its caller does not say; 0 by default.

    Args:
        root: The folder of the project that ships, or None for none.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        SettingsError: It is not a whole number of at least 0; file and option are named.
    """
    return cast("int", look_up(root, profile, environ, only=["retries"]).options["retries"].value)  # it is checked


def resources_of(root: Path | None, profile: Profile | None, environ: Mapping[str, str]) -> Resources:
    """Say how much of a cluster's machine a job asks for; nothing by default.

    Args:
        root: The folder of the project that ships, or None for none.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        SettingsError: A name or an amount cannot work; file and option are named.
    """
    from kinetic._jobs import resources

    found = look_up(root, profile, environ, only=["resources"]).options["resources"].value
    return resources.read(cast("dict[str, object]", found or {}))  # it is checked


class _Page(NamedTuple):
    """What one file says about options; ``title`` names its part, and ``file`` is None where nothing is written."""

    title: str
    file: Path | None
    values: Mapping[str, object]

    @property
    def source(self) -> str:
        """Name it in a table."""
        return f"{self.title} in {self.file}" if self.title == _TABLE else self.title

    @property
    def where(self) -> str:
        """Name it in a sentence."""
        return f"{self.title} of {self.file}" if self.file else self.title


def _profile_page(profile: Profile, environ: Mapping[str, str]) -> _Page:
    from kinetic._settings import profiles

    file = profiles.profiles_file(environ) if profile.options else None
    return _Page(f"profile {profile.name}", file, profile.options)


def _first(name: str, pages: Iterable[_Page], environ: Mapping[str, str]) -> Found:
    variable = _VARIABLES.get(name)
    if variable and environ.get(variable):
        return Found(_deadline_of(environ), variable)
    for page in pages:
        if page.values.get(name) is not None:
            return Found(_checked_in_file(page, name), page.source)
    return Found(DEFAULTS[name], "default")


def _deadline_of(environ: Mapping[str, str]) -> float | None:
    from kinetic._jobs import options

    return options.deadline_of(options.Options(), dict(environ))


def _checked_in_file(page: _Page, name: str) -> object:
    from kinetic._jobs import typed
    from kinetic.errors import OptionError, SettingsError

    value = page.values[name]
    try:
        return (
            typed.of_text(name, value) if name == "deadline" and isinstance(value, str) else typed.checked(name, value)
        )
    except OptionError as error:
        raise SettingsError(
            f"{name} in {page.where}{_line_of(page, name)} cannot be used: {error.what}",
            why=error.why or f"it is {value!r}",
            next=error.next or "correct it, or remove it",
        ) from error


def _not_enforced(found: Found, options: Options, environ: Mapping[str, str]) -> Iterable[str]:
    """Say which resources nobody holds a job to where it goes, if that is this machine."""
    from kinetic import _settings as settings
    from kinetic._runner import memory

    asked = cast("dict[str, object]", found.value or {})
    place = {name: getattr(options, name) for name in ("backend", "project", "zone", "cluster", "namespace")}
    told = ", ".join(
        f"{name}={amount}{' (libraries start as many threads)' if name == 'cpu' else ''}"
        for name, amount in asked.items()
        if name != "memory" or not memory.is_enforced()
    )
    if told and settings.resolve(**place, environ=environ).backend.value == "local":
        yield f"not enforced on this machine: {told}"


def _without_effect(page: _Page) -> Iterable[str]:
    """Say which options nobody follows, so that nobody waits for their effect."""
    for name in page.values:
        if page.title != _TABLE and name not in NAMES:  # what a project may write was checked when it was read
            yield f"{name} in {page.where} has no effect in this release of kinetic"


def _line_of(page: _Page, name: str) -> str:
    """Name the line of a pyproject.toml in which an option stands, "" where it is written in some rarer way."""
    if page.file is None or page.title != _TABLE:
        return ""
    inside = False
    for number, line in enumerate(page.file.read_text(errors="replace").splitlines(), 1):
        text = line.strip()
        if text.startswith("["):
            header = text.partition("#")[0].rstrip()
            if header == f"[tool.kinetic.{name}]":
                return f", line {number},"
            inside = header == _TABLE
        elif inside and text.partition("=")[0].strip(" \t\"'") == name:
            return f", line {number},"
    return ""
