"""What each option is that the decorator leaves open, and where that is written: variable, profile or project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._config.options import BY_NAME, JOB_OPTIONS, UNSET, SettingValue
from kinetic._config.project_options import read_project_options
from kinetic._jobs.job_options import Fallback, Options
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kinetic._config.options import JobOption
    from kinetic._config.profiles import Profile


NAMES = tuple(option.name for option in JOB_OPTIONS)
OF_CALLS = tuple(option.name for option in JOB_OPTIONS if option.is_argument)  # Options of a function as well
_TABLE = "[tool.kinetic]"


class Sources(NamedTuple):
    """What each option is where the decorator does not say, and notes about what is written and has no effect."""

    options: Mapping[str, SettingValue]  # by name
    notes: tuple[str, ...]


def is_given(options: Options, name: str) -> bool:
    """Return whether the decorator, or ``with_options``, gave an option a value."""
    value = getattr(options, name)
    return value is not None and value is not UNSET and not isinstance(value, Fallback)


def applied(options: Options, root: Path, profile: Profile | None, environ: Mapping[str, str]) -> Options:
    """Fill in what the decorator leaves open; doing it again changes nothing."""
    from kinetic._output import terminal as output  # only at a submission

    open_ = [name for name in OF_CALLS if not is_given(options, name)]
    # Also those that are looked up later, or on a cluster only: what cannot work is refused wherever the job goes.
    found = look_up(root, profile, environ, only=[*open_, *(name for name in NAMES if name not in OF_CALLS)])
    filled: dict[str, Any] = {  # checked, each by its own rule
        name: str(own)
        if isinstance(own := getattr(options, name), Fallback) and each.source == "default"
        else each.value
        for name in open_
        for each in [found.options[name]]
    }
    final = options._replace(**filled)
    for note in (*found.notes, *_not_enforced(final, environ)):
        output.report_once(note)
    return final


def look_up(
    root: Path | None, profile: Profile | None, environ: Mapping[str, str], *, only: Iterable[str] = NAMES
) -> Sources:
    """Return what each option is where the decorator does not say, and where that is written."""
    pages: list[_Page] = []
    if profile is not None:
        from kinetic._config import profiles

        file = profiles.profiles_file(environ) if profile.options else None
        pages.append(_Page(f"profile {profile.name}", file, profile.options))
    if root is not None:
        written = read_project_options(root)
        pages.append(_Page(_TABLE, written.file, written.values))
    found = {name: _first(name, pages, environ) for name in only}
    return Sources(found, tuple(note for page in pages for note in _without_effect(page)))


def is_wanted(name: str, root: Path | None, profile: Profile | None, environ: Mapping[str, str]) -> bool:
    """Return whether a flag that is not an argument, such as base_packages, is set."""
    return bool(look_up(root, profile, environ, only=[name]).options[name].value)


class _Page(NamedTuple):
    """What one file says about options; ``title`` names its part, and ``file`` is None where nothing is written."""

    title: str
    file: Path | None
    values: Mapping[str, object]

    @property
    def source(self) -> str:
        """Its name in a table."""
        return f"{self.title} in {self.file}" if self.title == _TABLE else self.title

    @property
    def where(self) -> str:
        """Its name in a sentence."""
        return f"{self.title} of {self.file}" if self.file else self.title


def _first(name: str, pages: Iterable[_Page], environ: Mapping[str, str]) -> SettingValue:
    option = BY_NAME[name]
    if option.variable and environ.get(option.variable):
        return SettingValue(_checked_in_variable(option, environ[option.variable]), option.variable)
    for page in pages:
        if page.values.get(name) is not None:
            return SettingValue(_checked_in_file(page, name), page.source)
    return SettingValue(option.default, "default")


def _checked_in_variable(option: JobOption, text: str) -> object:
    try:
        return of_text(option.name, text)
    except OptionError as error:
        raise OptionError(
            f"{option.variable}={text!r} cannot be used: {error.what}",
            why=error.why,
            next=f"correct it, or unset {option.variable}",
        ) from error


def _checked_in_file(page: _Page, name: str) -> object:
    from kinetic.errors import SettingsError

    value = page.values[name]
    try:
        return checked(name, value)
    except OptionError as error:
        raise SettingsError(
            f"{name} in {page.where}{_line_of(page, name)} cannot be used: {error.what}",
            why=error.why or f"it is {value!r}",
            next=error.next or "correct it, or remove it",
        ) from error


def _not_enforced(options: Options, environ: Mapping[str, str]) -> Iterable[str]:
    """Yield which resources are not enforced where a job goes, if that is this machine."""
    from kinetic._config import target as settings
    from kinetic._runner import processes

    asked = options.resources or {}
    told = ", ".join(
        f"{name}={amount}{' (libraries start as many threads)' if name == 'cpu' else ''}"
        for name, amount in asked.items()
        if name != "memory" or not processes.can_measure_memory()
    )
    if told and registry.is_here(settings.resolve(**options.place, environ=environ).backend.value):
        yield f"not enforced on this machine: {told}"


def _without_effect(page: _Page) -> Iterable[str]:
    """Yield which written options have no effect."""
    for name in page.values:
        if page.title != _TABLE and name not in NAMES:  # what a project may write was checked when it was read
            yield f"{name} in {page.where} has no effect in this release of kinetic"


def _line_of(page: _Page, name: str) -> str:
    """Return the line of a pyproject.toml that sets an option; "" where it is written in a rarer way."""
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


_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


def of_text(name: str, text: str) -> object:
    """Read the value of an option that was typed into a terminal."""
    option = BY_NAME.get(name)
    if option is None:
        from difflib import get_close_matches  # 2 ms; only on the way to an error

        raise OptionError(
            f"{name!r} is not an option that a profile can hold",
            why=f"options: {', '.join(BY_NAME)}",
            next=f"write {get_close_matches(name, BY_NAME, 1, 0)[0]}=…",
        )
    if option.kinds == (bool,):
        word = text.strip().lower()
        if word in _TRUE | _FALSE:
            return word in _TRUE
        raise OptionError(f"{name}={text} is neither true nor false", next=f"write {name}=true or {name}=false")
    value: object = text
    if option.kinds == (int,):
        try:
            value = int(text)
        except ValueError:
            raise OptionTypeError(f"{name}={text} is not a whole number", next=f"write {name}=3") from None
    return checked(name, value)


def checked(name: str, value: object) -> object:
    """Return a value if its option can have it."""
    option = BY_NAME[name]
    if option.kinds == (bool,) and not option.is_argument:
        if isinstance(value, bool):
            return value
        raise OptionTypeError(f"{name}={value!r} is neither true nor false", next=f"write {name} = false")
    if not option.is_argument:
        return _dollars(name, value)
    return getattr(Options.checked(**{name: value}), name)


def _dollars(name: str, value: object) -> float | None:
    """Read an amount of money: more than nothing."""
    if value is None:
        return None
    try:
        dollars = float(str(value).removeprefix("$"))
    except ValueError:
        dollars = 0.0
    if isinstance(value, bool) or not 0 < dollars < float("inf"):
        raise OptionError(
            f"{name}={value!r} is not an amount in dollars", why="it must be a number above 0", next=f"write {name} = 5"
        )
    return dollars
