"""Job options that the decorator leaves open: who fills them in.

    1. the decorator, ``with_options``, or a flag    2. its variable, where it has one    3. the profile's "options"
    4. ``[tool.kinetic]`` in the project's file    5. the default

The first that says something wins. Which options there are stands in ``_settings/job_options.py``.

``accelerator`` and ``spot`` are UNSET until then, so that ``accelerator="tpu-v5e-1"`` differs from no accelerator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends import registry
from kinetic._settings.job_options import BY_NAME, JOB_OPTIONS, UNSET

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kinetic._jobs.options import Options
    from kinetic._settings.job_options import JobOption
    from kinetic._settings.profiles import Profile

NAMES = tuple(option.name for option in JOB_OPTIONS)
OF_CALLS = tuple(option.name for option in JOB_OPTIONS if option.is_argument)  # Options of a function as well
_TABLE = "[tool.kinetic]"


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
    return value is not None and value is not UNSET


def applied(options: Options, root: Path, profile: Profile | None, environ: Mapping[str, str]) -> Options:
    """Fill in what the decorator leaves open.

    Args:
        options: The decorator's; given back with plain values, so that doing it again changes nothing.
        root: The folder of the project that ships.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        SettingsError: A value in the profile or in the project's file cannot work; file and option are named.
        OptionError: A variable has a value that cannot work; it is named.
    """
    from kinetic import _output as output  # tells only at a submission

    open_ = [name for name in OF_CALLS if not is_given(options, name)]
    found = look_up(root, profile, environ, only=open_)
    filled: dict[str, Any] = {name: found.options[name].value for name in open_}  # checked, each by its own rule
    final = options._replace(**filled)
    for note in (*found.notes, *_not_enforced(final, environ)):
        output.once(note)
    return final


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


def is_wanted(name: str, root: Path | None, profile: Profile | None, environ: Mapping[str, str]) -> bool:
    """Say what holds of a flag that is no argument, such as base_packages.

    Args:
        name: The option.
        root: The folder of the project that ships, or None for none.
        profile: The profile that holds, or None.
        environ: The environment.

    Raises:
        SettingsError: As for ``applied``.
        OptionError: As for ``applied``.
    """
    return bool(look_up(root, profile, environ, only=[name]).options[name].value)


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
    option = BY_NAME[name]
    if option.variable and environ.get(option.variable):
        return Found(_checked_in_variable(option, environ[option.variable]), option.variable)
    for page in pages:
        if page.values.get(name) is not None:
            return Found(_checked_in_file(page, name), page.source)
    return Found(option.default, "default")


def _checked_in_variable(option: JobOption, text: str) -> object:
    from kinetic._jobs import typed
    from kinetic.errors import OptionError

    try:
        return typed.of_text(option.name, text)
    except OptionError as error:
        raise OptionError(
            f"{option.variable}={text!r} cannot be used: {error.what}",
            why=error.why,
            next=f"correct it, or unset {option.variable}",
        ) from error


def _checked_in_file(page: _Page, name: str) -> object:
    from kinetic._jobs import typed
    from kinetic.errors import OptionError, SettingsError

    value = page.values[name]
    try:
        return typed.checked(name, value)
    except OptionError as error:
        raise SettingsError(
            f"{name} in {page.where}{_line_of(page, name)} cannot be used: {error.what}",
            why=error.why or f"it is {value!r}",
            next=error.next or "correct it, or remove it",
        ) from error


def _not_enforced(options: Options, environ: Mapping[str, str]) -> Iterable[str]:
    """Say which resources nobody holds a job to where it goes, if that is this machine."""
    from kinetic import _settings as settings
    from kinetic._runner import memory

    asked = options.resources or {}
    place = {name: getattr(options, name) for name in ("backend", "project", "zone", "cluster", "namespace")}
    told = ", ".join(
        f"{name}={amount}{' (libraries start as many threads)' if name == 'cpu' else ''}"
        for name, amount in asked.items()
        if name != "memory" or not memory.is_enforced()
    )
    if told and registry.is_here(settings.resolve(**place, environ=environ).backend.value):
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
