"""``kinetic config``: every setting, its value and its source.

No secret is printed: no key, no password in an address.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from kinetic._cli import shared_options
from kinetic._cli.error_output import SuggestionError
from kinetic._config import cluster, profiles, project_options, variables
from kinetic._config import target as settings
from kinetic._config.options import BY_NAME
from kinetic._config.variables import INSIDE_A_JOB
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError, ProjectRootError

_SETTING_COLUMNS = (Column("SETTING"), Column("VALUE", flexible=True), Column("SOURCE", flexible=True, spare=1))
_DEFAULT = "default"
_PLACE = ("backend", "project", "zone", "cluster", "namespace", "store", "context", "home")

_SET_BY_CONTEXT = {
    "zone": "the context's own",
    "cluster": "the context's own",
    "namespace": "the context's own, or default",
}


def value_text(value: object) -> str:
    """Write a value as it can be typed; "" for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={value_text(each)}" for key, each in value.items()) or "none"
    return str(value)


def without_secrets(address: str) -> str:
    """Return an address without what may be a secret in it: ``user:password@`` and everything after ``?``."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address
    place, question, _ = rest.partition("?")
    host, slash, path = place.partition("/")
    user, at, host = ("", "", host) if scheme == "az" and ":" not in host else host.rpartition("@")  # a container
    hidden = f"{'***' if user else ''}{at}{host}{slash}{path}"
    return f"{scheme}://{hidden}{'?***' if question else ''}"


class Row(NamedTuple):
    """One setting; `source` is a variable, "profile NAME", "[tool.kinetic] in FILE" or "default"."""

    name: str  # in lower case, as the variable without KINETIC_
    value: Any
    source: str
    otherwise: str = "none"  # what to show where the value is None

    @property
    def shown(self) -> Any:
        """The value without secrets."""
        return without_secrets(self.value) if isinstance(self.value, str) else self.value


class _Show(click.Choice[str]):
    """The one word that may follow; who types another one, as ``set``, wants to change a setting."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise SuggestionError(
                f"kinetic config only shows settings, got {value!r}",
                ctx or click.get_current_context(),
                why="a setting is an environment variable, or in a profile or pyproject.toml",
                next="kinetic profile create -h",
            )
        return super().convert(value, param, ctx)


@click.command
@click.argument("what", required=False, type=_Show(["show"]), metavar="[show]")
@shared_options.json_option
def config(what: str | None, as_json: bool) -> None:  # noqa: ARG001 - "config" and "config show" are the same
    """Show every setting, its value and its source.

    It applies to the next submission from this folder. Arguments of @kinetic.run(...) take precedence.

    Example: kinetic config
    """
    reader = _SettingsReader()
    rows = reader.rows()
    reader.notes += variables.describe_misread_switches(os.environ)
    unknown = variables.unknown_variables(os.environ)
    if as_json:
        found = [{**row._asdict(), "value": row.shown} for row in rows]
        problems = [problem.what for problem in reader.problems]
        output_format.print_document(settings=found, notes=reader.notes, unknown_variables=unknown, problems=problems)
    else:
        cells = [[row.name, value_text(row.shown) or row.otherwise, row.source] for row in rows]
        output_format.print_table(_SETTING_COLUMNS, cells)
        for note in reader.notes:
            click.echo(output_format.plain(note), err=True)
        if unknown:
            click.echo(f"warning: {variables.describe_unknown_variables(unknown)}", err=True)
    if reader.problems:
        raise reader.problems[0]


class _SettingsReader:
    """Reads all settings, and continues where one cannot be read."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problems: list[KineticError] = []
        self._profile: Any = None

    def rows(self) -> list[Row]:
        """Return all settings, in the order in which they are shown."""
        parts = (
            self._profile_rows,
            self._target_rows,
            self._cluster_rows,
            self._machine_rows,
            self._job_rows,
            self._stall_row,
            self._level_row,
        )
        found = [row for part in parts for row in self._tried(part)]
        return [*found, *_other_rows({row.name for row in found} | BY_NAME.keys())]

    def _tried(self, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        try:
            yield from part()
        except KineticError as error:
            self._note_problem(error)

    def _note_problem(self, error: KineticError) -> None:
        if str(error) not in map(str, self.problems):  # a broken profiles file is read twice
            self.problems.append(error)

    def _profile_rows(self) -> Iterator[Row]:
        yield Row("profiles_file", str(profiles.profiles_file(os.environ)), _variable("KINETIC_PROFILES_FILE"))
        choice = profiles.choose(os.environ)
        self._profile = choice.profile
        self.notes += choice.notes
        source = "current profile" if choice.source == "current" else choice.source
        yield Row("profile", choice.profile.name if choice.profile else None, source)

    def _target_rows(self) -> Iterator[Row]:
        target = settings.resolve()
        for name in _PLACE:
            found: settings.Setting = getattr(target, name)
            value = None if _is_set_by_context(name, target) else found.value or None
            otherwise = _SET_BY_CONTEXT.get(name, "none")
            yield Row("kube_context" if name == "context" else name, value, found.source, otherwise)

    def _cluster_rows(self) -> Iterator[Row]:
        yield Row("owner", cluster.owner(os.environ), _variable("KINETIC_OWNER"))
        for field in cluster.FIELDS:
            yield from self._tried(partial(self._cluster_row, field))

    def _cluster_row(self, field: str) -> Iterator[Row]:
        found = cluster.look_up(field, self._profile, os.environ)
        value = [*map(cluster.as_typed, found.value)] if isinstance(found.value, tuple) else found.value
        yield Row(field, value, found.source, settings.VARIABLES[f"KINETIC_{field.upper()}"])

    def _machine_rows(self) -> Iterator[Row]:
        from kinetic._backends.local import limits
        from kinetic._images import isolated_environment

        yield Row("runtime_dir", str(settings.runtime_folder(os.environ)), _variable("KINETIC_RUNTIME_DIR"))
        yield Row("machine_id", settings.machine_id(os.environ), _variable("KINETIC_MACHINE_ID"))
        mode = isolated_environment.wanted(os.environ)
        yield Row("local_env", mode, _variable(isolated_environment.VARIABLE))
        found = limits.read_limits(os.environ)
        yield Row("local_slots", found.slots, _variable("KINETIC_LOCAL_SLOTS"))
        preload = "on" if limits.may_preload(os.environ) else "off"
        yield Row("local_preload", preload, _variable(limits.PRELOAD))
        yield Row("local_gpus", [*found.gpus], limits.variable_of_gpus(os.environ) or _DEFAULT)

    def _job_rows(self) -> Iterator[Row]:
        from kinetic._jobs import option_sources

        root = self._project()
        written = project_options.read_project_options(root) if root is not None else None
        for name in option_sources.NAMES:
            yield from self._tried(partial(self._option_row, name, root))
        if written is not None:
            for name, value in written.values.items():
                if name not in option_sources.NAMES:
                    yield Row(name, value, f"[tool.kinetic] in {written.file}")

    def _stall_row(self) -> Iterator[Row]:
        from kinetic._jobs import activity

        activity.stall_seconds(os.environ)  # raises if it is not a duration
        text, default = os.environ.get(activity.STALL_VARIABLE), settings.VARIABLES[activity.STALL_VARIABLE]
        yield Row("stall_after", text or None, _variable(activity.STALL_VARIABLE), default)

    def _level_row(self) -> Iterator[Row]:
        output.check_level(os.environ)
        text, default = os.environ.get(output.LEVEL_VARIABLE), settings.VARIABLES[output.LEVEL_VARIABLE]
        yield Row("log_level", text or None, _variable(output.LEVEL_VARIABLE), default)

    def _option_row(self, name: str, root: Path | None) -> Iterator[Row]:
        from kinetic._jobs import option_sources

        found = option_sources.look_up(root, self._profile, os.environ, only=[name])
        self.notes += [note for note in found.notes if note not in self.notes]
        yield Row(name, *found.options[name])

    def _project(self) -> Path | None:
        """Return the root of the project of the current folder, or None where there is none, such as at home."""
        from kinetic._project import root

        try:
            return root.plan_for_file("script.py").root
        except ProjectRootError as error:
            if os.environ.get("KINETIC_PACKAGE_ROOT"):
                self._note_problem(error)
            return None


def _is_set_by_context(name: str, target: settings.Target) -> bool:
    """Return whether a default is unused, since a kubeconfig context selects the cluster."""
    if not target.context.value or name not in {"zone", "cluster"} or getattr(target, name).source != _DEFAULT:
        return False
    return name == "zone" or target.store.source != _DEFAULT  # the bucket is named after the cluster


def _other_rows(shown: set[str]) -> Iterator[Row]:
    """Yield the settings that only the environment has."""
    for variable, default in settings.VARIABLES.items():
        name = variable.removeprefix("KINETIC_").lower()
        if name in shown or not variable.startswith("KINETIC_") or variable in INSIDE_A_JOB:
            continue
        value = os.environ.get(variable)
        yield Row(name, value or None, variable if value else _DEFAULT, default)


def _variable(name: str) -> str:
    return name if os.environ.get(name) else _DEFAULT
