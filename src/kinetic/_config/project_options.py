"""What [tool.kinetic] in a project's own pyproject.toml may say.

A project may say how its jobs run, below the profile in rank, and never where: a cloned repository must not redirect
jobs, results or secrets. A key outside the table is an error, so that no place slips through under a newer name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from kinetic._config.options import JOB_OPTIONS
from kinetic._wire import NamedTuple
from kinetic.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

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
