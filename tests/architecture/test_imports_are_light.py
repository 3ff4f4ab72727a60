"""`import kinetic` is nearly free, and stays so until a job is really submitted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

Loader = Callable[[str], set[str]]

# Standard library that costs too much for an import (milliseconds) or that only a later step needs.
HEAVY = {"asyncio", "dataclasses", "inspect", "multiprocessing", "sqlite3", "ssl", "subprocess", "typing", "zipfile"}

# What only a submission, a collection or the terminal may load.
LATE = {"asyncio", "click", "cloudpickle", "numpy", "sqlite3", "ssl"}

# Of the standard library, 25 ms that a decorator does not need.
NOT_FOR_A_DECORATOR = {"dataclasses", "fcntl", "inspect", "json", "pathlib", "pickle", "urllib.parse", "weakref"}

DECORATED = """
import kinetic

@kinetic.run(accelerator="cpu")
def train(rate):
    return rate
"""


def foreign(modules: set[str]) -> set[str]:
    """Return the packages among modules that are neither ours nor Python's."""
    packages = {module.partition(".")[0] for module in modules}
    return packages - sys.stdlib_module_names - {"kinetic"}


def test_importing_kinetic_loads_nothing_of_a_third_party(loaded_by: Loader) -> None:
    loaded = loaded_by("import kinetic")

    assert foreign(loaded) == set()


def test_importing_kinetic_loads_no_heavy_part_of_the_standard_library(loaded_by: Loader) -> None:
    loaded = loaded_by("import kinetic")

    assert loaded & HEAVY == set()


def test_importing_kinetic_opens_no_room(loaded_by: Loader) -> None:
    loaded = loaded_by("import kinetic")

    assert {module for module in loaded if module.startswith("kinetic._")} <= {"kinetic._version"}


def test_the_help_opens_no_room_but_that_of_the_terminal(loaded_by: Loader) -> None:
    loaded = loaded_by("from kinetic._cli.main import cli\ncli(['--help'], prog_name='kinetic', standalone_mode=False)")

    # As before there was a command about clusters (62c03db): no command is imported for its line in the help.
    parts = {"command_tree", "error_output", "main"}
    ours = {"kinetic", "kinetic._version", "kinetic._cli", *(f"kinetic._cli.{part}" for part in parts)}
    assert {module for module in loaded if module.partition(".")[0] == "kinetic"} <= ours


def test_decorating_a_function_loads_nothing_of_a_third_party(loaded_by: Loader) -> None:
    loaded = loaded_by(DECORATED)

    assert foreign(loaded) == set()


def test_decorating_a_function_loads_nothing_that_only_a_submission_needs(loaded_by: Loader) -> None:
    loaded = loaded_by(DECORATED)

    assert loaded & (LATE | NOT_FOR_A_DECORATOR) == set()


def test_every_public_name_can_be_touched_without_a_third_party(loaded_by: Loader) -> None:
    loaded = loaded_by("import kinetic\nfor name in kinetic.__all__: getattr(kinetic, name)")

    assert foreign(loaded) == set()


LISTED = """
import os
os.environ["KINETIC_HOME"] = {home!r}
from kinetic._cli.main import cli
cli(["jobs", "list"], standalone_mode=False)
"""

# 15 ms that a list of jobs does not need.
NOT_FOR_A_LIST = {"cloudpickle", "logging", "multiprocessing", "socket", "subprocess", "tempfile", "zipfile"}


def test_listing_jobs_loads_no_sockets_processes_or_archives(loaded_by: Loader, tmp_path: Path) -> None:
    loaded = loaded_by(LISTED.format(home=str(tmp_path / "home")))

    assert loaded & NOT_FOR_A_LIST == set()
    assert not {
        name for name in loaded if name.startswith(("kinetic._hardware", "kinetic._images", "kinetic._batches"))
    }


CLUSTERS = """
import importlib, pathlib, kinetic
root = pathlib.Path(kinetic.__file__).parent
for room in ("_google", "_backends/kube"):
    for path in sorted((root / room).glob("*.py")):
        importlib.import_module("kinetic." + str((path.relative_to(root).with_suffix(""))).replace("/", "."))
"""


def test_the_rooms_of_clusters_load_no_library_before_a_cluster_is_asked(loaded_by: Loader) -> None:
    loaded = loaded_by(CLUSTERS)

    assert "kinetic._backends.kube.client" in loaded
    assert foreign(loaded) == set()
    assert "asyncio" not in loaded


SUBMITTED = (
    DECORATED
    + """
import os, posix, sys

class Started(BaseException):
    pass

def start(*_, **__):
    raise Started

posix.posix_spawn = start
os.environ["KINETIC_HOME"] = FOLDER
try:
    train.run_async(0.1)
    sys.exit("no supervisor was started")
except Started:
    pass
"""
)


def test_a_supervisor_is_started_before_what_packs_a_call_is_loaded(loaded_by: Loader, tmp_path: Path) -> None:
    loaded = loaded_by(SUBMITTED.replace("FOLDER", repr(str(tmp_path))))

    assert "kinetic._backends.local.scheduler" in loaded
    late = {"cloudpickle", "kinetic._jobs.submit", "kinetic._jobs.locate", "kinetic._jobs.handle", "kinetic._blobs"}
    assert not loaded & (late | {"kinetic._project.root", "kinetic._project.pickler", "kinetic._wire.records"})


def test_a_job_on_this_machine_opens_no_room_of_clusters(loaded_by: Loader) -> None:
    loaded = loaded_by("import kinetic._backends.registry, kinetic._backends.local.backend, kinetic._jobs.submit")

    assert not {name for name in loaded if name.startswith(("kinetic._google", "kinetic._backends.kube"))}
    assert foreign(loaded) == set()


HELP = """
import contextlib
from kinetic._cli.main import cli
with contextlib.suppress(SystemExit):
    cli(["--help"], standalone_mode=False)
"""


def test_neither_kinetic_nor_its_help_loads_the_dashboard(loaded_by: Loader) -> None:
    for code in ("import kinetic\nfor name in kinetic.__all__: getattr(kinetic, name)", HELP):
        loaded = loaded_by(code)

        assert not {name for name in loaded if name.startswith(("kinetic._dashboard", "starlette", "uvicorn"))}
