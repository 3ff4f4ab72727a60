"""Every error is one of ours: it says what, why and what next, keeps its built-in bases, and survives the way home.

What a file system or a database throws at the rooms of this machine comes out as ours as well.
"""

from __future__ import annotations

import copy
import os
import pickle
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kinetic
from kinetic import errors
from kinetic._config import home as config_home
from kinetic._config import target as settings
from kinetic._stores.files import FileStore

FLOWS = Path(__file__).parents[1] / "flows" / "conftest.py"
SOURCE = Path(__file__).parents[2] / "src"
OURS = [getattr(errors, name) for name in errors.__all__ if name not in {"BatchError", "Preempted"}]

# class: (its parent among ours, the built-ins that the documents let a user catch)
TREE = {
    "OptionError": ("KineticError", ValueError),
    "OptionTypeError": ("OptionError", TypeError),
    "CallableError": ("KineticError", TypeError),
    "SettingsError": ("KineticError", Exception),
    "CredentialsError": ("KineticError", RuntimeError),
    "PackingError": ("KineticError", Exception),
    "ArgumentNotPicklableError": ("PackingError", TypeError),
    "ProjectRootError": ("PackingError", ValueError),
    "DataError": ("KineticError", Exception),
    "DataMissingError": ("DataError", FileNotFoundError),
    "DebugError": ("KineticError", RuntimeError),
    "DataChangedError": ("DataError", Exception),
    "ImageError": ("KineticError", Exception),
    "ImageBuildError": ("ImageError", Exception),
    "ImageUnavailableError": ("ImageError", Exception),
    "StoreError": ("KineticError", Exception),
    "KeyMissingError": ("StoreError", KeyError),
    "StoreUnreachableError": ("StoreError", Exception),
    "IntegrityError": ("StoreError", Exception),
    "BackendError": ("KineticError", RuntimeError),
    "CapacityError": ("BackendError", RuntimeError),
    "AccessDeniedError": ("BackendError", RuntimeError),
    "LaunchError": ("BackendError", RuntimeError),
    "BackendUnavailableError": ("BackendError", RuntimeError),
    "JobError": ("KineticError", RuntimeError),
    "JobNotFoundError": ("JobError", RuntimeError),
    "BatchNotFoundError": ("JobNotFoundError", FileNotFoundError),
    "JobCancelledError": ("JobError", RuntimeError),
    "PredecessorError": ("JobError", RuntimeError),
    "ResultMissingError": ("JobError", RuntimeError),
    "ResultNotPicklableError": ("JobError", ValueError),
    "ResultUnreadableError": ("JobError", RuntimeError),
    "RunnerError": ("JobError", RuntimeError),
    "JobTimeoutError": ("JobError", TimeoutError),
    "CommandError": ("JobError", RuntimeError),
    "ClusterError": ("KineticError", Exception),
    "CheckFailedError": ("ClusterError", Exception),
}


def test_the_tree_has_exactly_these_branches() -> None:
    assert set(TREE) | {"KineticError"} == {kind.__name__ for kind in OURS}


@pytest.mark.parametrize("name", TREE)
def test_a_class_stands_in_its_place_and_keeps_its_built_in_base(name: str) -> None:
    parent, built_in = TREE[name]
    kind = getattr(errors, name)

    assert kind.__mro__[1].__name__ == parent
    assert issubclass(kind, built_in)


def test_every_class_has_a_code_of_its_own_in_kebab_case() -> None:
    codes = [kind.default_code for kind in OURS]

    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and code.replace("-", "").isalpha() for code in codes)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_an_error_says_what_why_and_what_next_in_plain_text(kind: type[errors.KineticError]) -> None:
    error = kind("the cake is gone", why="it was eaten at 14:00", next="bake --again", code="no-cake")

    assert str(error).splitlines() == [
        "the cake is gone [no-cake]",
        "why:   it was eaten at 14:00",
        "next:  bake --again",
    ]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_what_is_not_known_is_not_said(kind: type[errors.KineticError]) -> None:
    assert str(kind("the cake is gone")) == f"the cake is gone [{kind.default_code}]"


@pytest.mark.parametrize("carry", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_an_error_arrives_with_all_its_parts(kind: type[errors.KineticError], carry: Callable[..., object]) -> None:
    error = kind("what", why="why", next="next", code="code")
    error.add_note("a note")

    arrived = carry(error)

    assert type(arrived) is kind
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
    assert arrived.args == error.args


def test_a_runner_error_arrives_with_its_phase() -> None:
    error = errors.RunnerError("it did not begin", phase="payload unpickle", why="because")

    assert pickle.loads(pickle.dumps(error)).phase == "payload unpickle"


def test_a_batch_error_arrives_with_its_three_documented_parts() -> None:
    error = pickle.loads(pickle.dumps(errors.BatchError("grp-12345678", ["a job"], [1, None])))

    assert (error.group_id, error.failures, error.partial_results) == ("grp-12345678", ["a job"], [1, None])
    assert str(error) == "batch grp-12345678: 1 of 2 jobs failed"
    assert not isinstance(error, errors.KineticError)


def test_a_preemption_that_user_code_announces_is_an_ordinary_exception() -> None:
    assert errors.Preempted.__mro__[1] is Exception


# ------------------------------------------------------------------------ what the operating system and SQLite throw


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    found = tmp_path / "disk" / "home"
    for name in [*os.environ]:
        if name.startswith("KINETIC_") or name == "GOOGLE_CLOUD_PROJECT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_HOME", str(found))
    yield found
    runpy.run_path(str(FLOWS))["end_supervisors"](
        found
    )  # one may have begun to get ready before the store was looked at


def a_file_in_its_place(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("something else")


def runtime() -> Path:
    return settings.runtime_folder(os.environ)


def a_queue_of_the_future(home: Path) -> None:
    runtime().mkdir(parents=True)
    db = sqlite3.connect(runtime() / "queue.db")
    db.execute("PRAGMA user_version = 99")
    db.close()


SPOILED = {
    "the home is a file": a_file_in_its_place,
    "the home lies below a file": lambda home: a_file_in_its_place(home.parent),
    "the profiles are a folder": lambda home: (home / "profiles.json").mkdir(parents=True),
    "the runtime folder is a file": lambda home: a_file_in_its_place(runtime()),
    "the folder above the runtime folder is a file": lambda home: a_file_in_its_place(home / "run"),
    "the queue is a folder": lambda home: (runtime() / "queue.db").mkdir(parents=True),
    "the queue comes from a newer kinetic": a_queue_of_the_future,
    "the store is a file": lambda home: a_file_in_its_place(home / "store"),
    "the key ring is a file": lambda home: a_file_in_its_place(home / "keys"),
}

SUBMIT = """
import sys
import kinetic

@kinetic.run(accelerator="cpu")
def train():
    return 1

try:
    train.run_async()
except kinetic.errors.KineticError as error:
    print(error)
else:
    sys.exit("it was submitted")
"""


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=list(SPOILED))
def test_a_home_that_cannot_be_used_is_an_error_of_ours(
    home: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(SUBMIT)
    spoil(home)

    done = subprocess.run(
        [sys.executable, str(project / "train.py")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "why:" in done.stdout
    assert "next:" in done.stdout


def test_jobs_cannot_be_listed_when_the_queue_is_unusable_and_that_is_said(home: Path) -> None:
    a_queue_of_the_future(home)

    with pytest.raises(errors.BackendUnavailableError, match="queue of this machine cannot be used"):
        kinetic.list_jobs()


def test_a_key_that_was_lost_is_named(home: Path) -> None:
    key_id, _ = config_home.own_key(home)
    (home / "keys" / key_id).unlink()

    with pytest.raises(errors.SettingsError, match=key_id):
        config_home.own_key(home)


@pytest.mark.parametrize("act", ["put", "scratch"])
def test_a_store_that_cannot_be_written_is_unreachable(tmp_path: Path, act: str) -> None:
    a_file_in_its_place(tmp_path / "store")
    store = FileStore(tmp_path / "store")

    with pytest.raises(errors.StoreUnreachableError):
        store.put("a/key", b"bytes") if act == "put" else store.scratch()


FILL = """
from pathlib import Path
from kinetic import errors
from kinetic._stores.files import FileStore

try:
    FileStore(Path({store!r})).put("a/key", bytes(1 << 20))
except errors.StoreError as error:
    print(error.code, error.what)
"""


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "fill.py").write_text(FILL.format(store=str(disk / "store")))
    rights = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    program = f"mount -t tmpfs -o size=64k none {disk} && exec {sys.executable} {tmp_path}/fill.py"
    command = ["unshare", *rights, "--mount", "sh", "-c", program]  # only this process sees that disk
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}

    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        pytest.skip("a small disk cannot be mounted here: there is no unshare")
    if done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")

    assert done.stdout == "store-full the disk that holds the store is full\n", done.stderr
