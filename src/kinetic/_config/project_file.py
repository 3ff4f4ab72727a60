"""What a project says about its own jobs: ``[tool.kinetic]`` in the pyproject.toml that ships with it.

It may say how its jobs run, below the profile in rank. It may never say where: a repository that somebody cloned must
not redirect jobs, results or secrets. So the list below is all that is allowed, and a key that is not in it is an
error: a place under a name that only a later version knows cannot slip through either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from kinetic._config.options import JOB_OPTIONS
from kinetic.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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
    table = _table(file, content)
    for key, value in table.items():
        _check(file, key, value)
    return ProjectOptions(file, table)


def _table(file: Path, content: bytes) -> dict[str, object]:
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
        raise _unknown(file, key)
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


def _unknown(file: Path, key: str) -> SettingsError:
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
