"""What a command gets, before it is started; that it runs, and how it ends, is in tests/flows/test_command_jobs.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import kinetic
from kinetic._runner.worker import command
from kinetic.errors import CommandError

RUNNER = str(Path(kinetic.__file__).parents[1])


def test_names_in_braces_are_replaced_and_other_braces_stay():
    assert command.filled(["a={x}", "{y}{x}", "{}", "{ x }"], {"x": "{y}", "z": "1"}) == [
        "a={y}",
        "{y}{y}",
        "{}",
        "{ x }",
    ]
    assert command.placeholders(["{a}-{b.c}", "{}", "{1}"]) == {"a", "b.c"}


@pytest.mark.parametrize(
    ("word", "is_it"), [("python", True), ("python3", True), ("python3.11", True), ("python2", False)]
)
def test_python_is_the_interpreter_of_the_job(word, is_it):
    assert command.is_python(word) is is_it


def test_the_projects_folders_come_before_those_of_the_user_and_kinetic_last():
    path = ["/work/src", "/work", RUNNER, "/usr/lib/python"]

    found = command.environment({"PATH": "/bin", "PYTHONPATH": f"/mine{os.pathsep}"}, path)

    assert found["PYTHONPATH"].split(os.pathsep) == ["/work/src", "/work", "/mine", RUNNER]
    assert found["PATH"].split(os.pathsep) == [os.path.dirname(sys.executable), "/bin"]
    assert found["PYTHONUNBUFFERED"] == "1"
    assert command.environment({"PYTHONUNBUFFERED": ""}, [])["PYTHONUNBUFFERED"] == ""


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("./none", 127, "there is no such file"),
        ("./plain", 126, "not an executable"),
        ("nosuch", 127, "none of the folders"),
    ],
)
def test_a_program_that_is_not_there_is_an_error_in_three_parts(tmp_path, monkeypatch, program, code, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").touch()

    with pytest.raises(CommandError) as caught:
        command.find_program(program, {"PATH": "/bin"})

    assert (caught.value.exit_code, caught.value.code) == (code, "no-program")
    assert said in str(caught.value.why)
    assert caught.value.next


def test_data_appears_below_the_working_folder_and_is_gone_afterwards(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    with command._linked({"sets/one": str(tmp_path / "data")}):
        assert os.path.samefile("sets/one", tmp_path / "data")
        with pytest.raises(CommandError, match="data cannot appear at sets"), command._linked({"sets": "/"}):
            pass

    assert not os.path.lexists("sets/one")
