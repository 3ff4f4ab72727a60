"""``kinetic config``: every setting, its value, and who set it. Never a secret: no key, no password in an address."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli import shared_options
from kinetic._cli import tables as cli_tables
from kinetic._config import variables
from kinetic._config.options import BY_NAME
from kinetic._output import format as output_format
from kinetic._output.format import Column
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic import _config as settings

_COLUMNS = (Column("SETTING"), Column("VALUE", flexible=True), Column("SOURCE", flexible=True, spare=1))
_DEFAULT = "default"
_PLACE = ("backend", "project", "zone", "cluster", "namespace", "store", "context", "home")

_LEFT_TO_THE_CONTEXT = {
    "zone": "the context's own",
    "cluster": "the context's own",
    "namespace": "the context's own, or default",
}


class Row(NamedTuple):
    """One setting.

    Attributes:
        name: In lower case, as a variable without KINETIC_.
        value: What holds; None for none.
        source: The name of a variable, "profile NAME", "[tool.kinetic] in FILE", or "default".
        otherwise: What holds where the value is None, in words.
    """

    name: str
    value: Any
    source: str
    otherwise: str = "none"


@click.command
@click.argument("what", required=False, type=click.Choice(["show"]), metavar="[show]")
@shared_options.as_json
def config(what: str | None, as_json: bool) -> None:  # noqa: ARG001 - "config" and "config show" are the same
    """Show every setting, its value and its source.

    It applies to the next submission from this folder. Arguments of @kinetic.run(...) take precedence.

    Example: kinetic config
    """
    look = _Look()
    rows = look.rows()
    strange = variables.unknown(os.environ)
    if as_json:
        found = [{**row._asdict(), "value": _shown(row)} for row in rows]
        problems = [problem.what for problem in look.problems]
        output_format.document(settings=found, notes=look.notes, unknown_variables=strange, problems=problems)
    else:
        output_format.show(_COLUMNS, [[row.name, _cell(row), row.source] for row in rows])
        for note in look.notes:
            click.echo(output_format.plain(note), err=True)
        if strange:
            click.echo(f"warning: {variables.unknown_in_words(strange)}", err=True)
    if look.problems:
        raise look.problems[0]


class _Look:
    """Read all settings, and go on where one cannot be read: whoever asks has a reason to."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.problems: list[KineticError] = []
        self._profile: Any = None

    def rows(self) -> list[Row]:
        """Return what holds, in the order in which it is told."""
        parts = (self._of_profile, self._of_place, self._of_clusters, self._of_machine, self._of_jobs)
        told = [row for part in parts for row in self._tried(part)]
        return [*told, *_others({row.name for row in told} | BY_NAME.keys())]

    def _tried(self, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
        try:
            yield from part()
        except KineticError as error:
            self._note_problem(error)

    def _note_problem(self, error: KineticError) -> None:
        if str(error) not in map(str, self.problems):  # a broken file of profiles is met twice
            self.problems.append(error)

    def _of_profile(self) -> Iterator[Row]:
        from kinetic._config import profiles

        file = profiles.profiles_file(os.environ)
        yield Row("profiles_file", str(file), _variable("KINETIC_PROFILES_FILE"))
        choice = profiles.choose(os.environ)
        self._profile = choice.profile
        source = "current profile" if choice.source == "current" else choice.source
        self.notes += choice.notes
        yield Row("profile", choice.profile.name if choice.profile else None, source)

    def _of_place(self) -> Iterator[Row]:
        from kinetic import _config as settings

        target = settings.resolve()
        for name in _PLACE:
            found: settings.Setting = getattr(target, name)
            value = None if _is_the_contexts(name, target) else found.value or None
            otherwise = _LEFT_TO_THE_CONTEXT.get(name, "none")
            yield Row("kube_context" if name == "context" else name, value, found.source, otherwise)

    def _of_clusters(self) -> Iterator[Row]:
        from kinetic._config import cluster

        yield Row("owner", cluster.owner(os.environ), _variable("KINETIC_OWNER"))
        for field in cluster.FIELDS:
            yield from self._tried(partial(self._of_cluster, field))

    def _of_cluster(self, field: str) -> Iterator[Row]:
        from kinetic._config import VARIABLES, cluster

        found = cluster.look_up(field, self._profile, os.environ)
        otherwise = {variable.name: variable.default for variable in VARIABLES}[f"KINETIC_{field.upper()}"]
        value = [*found.value] if isinstance(found.value, tuple) else found.value
        yield Row(field, value, found.source, otherwise)

    def _of_machine(self) -> Iterator[Row]:
        from kinetic import _config as settings
        from kinetic._backends.local import scheduler
        from kinetic._images import isolated_environment

        yield Row("runtime_dir", str(settings.runtime_folder(os.environ)), _variable("KINETIC_RUNTIME_DIR"))
        yield Row("machine_id", settings.machine_id(os.environ), _variable("KINETIC_MACHINE_ID"))
        mode = isolated_environment.wanted(os.environ)
        yield Row("local_env", mode, _variable(isolated_environment.VARIABLE))
        found = scheduler.limits(os.environ)
        yield Row("local_slots", found.slots, _variable("KINETIC_LOCAL_SLOTS"))
        yield Row("local_gpus", [*found.gpus], _variable("KINETIC_LOCAL_GPUS"))

    def _of_jobs(self) -> Iterator[Row]:
        from kinetic._config import project_file
        from kinetic._jobs import options as job_options

        root = self._project()
        written = project_file.read_project_options(root) if root is not None else None
        for name in job_options.NAMES:
            yield from self._tried(partial(self._of_option, name, root))
        if written is not None:
            for name, value in written.values.items():
                if name not in job_options.NAMES:
                    yield Row(name, value, f"[tool.kinetic] in {written.file}")

    def _of_option(self, name: str, root: Path | None) -> Iterator[Row]:
        from kinetic._jobs import options as job_options

        found = job_options.look_up(root, self._profile, os.environ, only=[name])
        self.notes += [note for note in found.notes if note not in self.notes]
        yield Row(name, *found.options[name])

    def _project(self) -> Path | None:
        """Return the root of the project of the current folder, or None where there is none, such as at home."""
        from kinetic._project import root
        from kinetic.errors import ProjectRootError

        try:
            return root.plan_for_file("script.py").root
        except ProjectRootError as error:
            if os.environ.get("KINETIC_PACKAGE_ROOT"):
                self._note_problem(error)
            return None


def _is_the_contexts(name: str, target: settings.Target) -> bool:
    """Say whether a default means nothing, since a kubeconfig context leads to the cluster."""
    if not target.context.value or name not in {"zone", "cluster"} or getattr(target, name).source != _DEFAULT:
        return False
    return name == "zone" or target.store.source != _DEFAULT  # the name of a bucket is made of the cluster's


def _others(told: set[str]) -> Iterator[Row]:
    """Yield what only the environment can set: its value there, else what holds without it, in words."""
    from kinetic._config import VARIABLES

    for variable in VARIABLES:
        name = variable.name.removeprefix("KINETIC_").lower()
        if name in told or not variable.name.startswith("KINETIC_") or variable.topic == "inside a job":
            continue
        value = os.environ.get(variable.name)
        yield Row(name, value or None, variable.name if value else _DEFAULT, variable.default)


def _variable(name: str) -> str:
    return name if os.environ.get(name) else _DEFAULT


def _shown(row: Row) -> Any:
    return cli_tables.without_secrets(row.value) if isinstance(row.value, str) else row.value


def _cell(row: Row) -> str:
    return cli_tables.text_of(_shown(row)) or row.otherwise
