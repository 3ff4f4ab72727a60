"""Code that came by value names the file that lies in the job, where there is one."""

from __future__ import annotations

import io
import pickle

import pytest

from kinetic._project import pickler
from kinetic._project.root import Plan
from kinetic._runner.worker import debug_server

SOURCE = """
def outer(x):
    def inner(y):
        return y + 1
    return inner(x)
"""


@pytest.fixture
def folders(tmp_path):
    """A project on a client, and where it lies in a job."""
    client, job = tmp_path / "client", tmp_path / "job"
    for folder in (client, job):
        folder.mkdir()
        (folder / "script.py").write_text(SOURCE)
    return client, job


def by_value(file) -> bytes:
    scope = {"__name__": "__main__"}
    exec(compile(SOURCE, str(file), "exec"), scope)  # as Python does with a script
    pickled = io.BytesIO()
    pickler.dump(scope["outer"], pickled, pickler.PickleRules(Plan(file.parent, "", "", ("",))))
    return pickled.getvalue()


def test_a_function_of_the_project_names_its_file_in_the_job_and_so_do_those_inside_it(folders) -> None:
    client, job = folders
    opened = debug_server.relocating_unpickler({"root": str(client)}, job)

    found = opened(by_value(client / "script.py"))

    inner = next(each for each in found.__code__.co_consts if hasattr(each, "co_filename"))
    assert found.__code__.co_filename == inner.co_filename == str(job / "script.py")
    assert found(1) == 2


@pytest.mark.parametrize("name", ["not-shipped.py", "../elsewhere.py"])
def test_a_file_that_is_not_in_the_job_keeps_its_name(folders, name) -> None:
    client, job = folders
    opened = debug_server.relocating_unpickler({"root": str(client)}, job)
    file = client / name

    assert opened(by_value(file)).__code__.co_filename == str(file)


def test_a_project_whose_name_begins_alike_is_another_one(folders) -> None:
    client, job = folders
    beside = client.with_name("client-2") / "script.py"

    assert debug_server.relocating_unpickler({"root": str(client)}, job)(by_value(beside)).__code__.co_filename == str(
        beside
    )


def test_other_values_arrive_as_they_were(folders) -> None:
    client, job = folders

    assert debug_server.relocating_unpickler({"root": str(client)}, job)(pickle.dumps([1, {"a": b"x"}])) == [
        1,
        {"a": b"x"},
    ]


def test_without_a_project_nothing_is_moved(tmp_path) -> None:
    assert debug_server.relocating_unpickler({}, tmp_path) is None
