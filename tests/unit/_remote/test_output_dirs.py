"""kinetic.output_dir() and kinetic.checkpoint_dir(), as a function calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KINETIC_OUTPUT_DIR", "KINETIC_CHECKPOINT_DIR", "KINETIC_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_outside_of_a_job_it_is_a_folder_here_that_git_does_not_see(here):
    found = kinetic.output_dir()

    assert found == str(here / "outputs")
    assert (here / "outputs" / ".gitignore").read_text().splitlines()[-1] == "*"
    assert kinetic.checkpoint_dir() == f"{found}/checkpoints"
    assert (here / "outputs" / "checkpoints").is_dir()


def test_a_second_call_changes_nothing(here):
    kinetic.output_dir()
    (here / "outputs" / ".gitignore").unlink()

    kinetic.output_dir()

    assert list((here / "outputs").iterdir()) == []


def test_the_variable_says_another_folder(here, monkeypatch):
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", "runs/a")

    assert kinetic.output_dir() == str(here / "runs" / "a")
    assert kinetic.checkpoint_dir() == str(here / "runs" / "a" / "checkpoints")
    assert (here / "runs" / "a" / "checkpoints").is_dir()


def test_in_a_job_it_is_what_the_environment_says(here, monkeypatch):
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-f-1")
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", f"{here}/out")
    monkeypatch.setenv("KINETIC_CHECKPOINT_DIR", f"{here}/out/grp-1/7/checkpoints")

    assert kinetic.output_dir() == f"{here}/out"
    assert kinetic.checkpoint_dir() == f"{here}/out/grp-1/7/checkpoints"


def test_an_address_comes_as_text_and_nothing_is_made(here, monkeypatch):
    monkeypatch.setenv("KINETIC_OUTPUT_DIR", "gs://bucket/out")

    assert kinetic.output_dir() == "gs://bucket/out"
    assert kinetic.checkpoint_dir() == "gs://bucket/out/checkpoints"
    assert list(here.iterdir()) == []


def test_a_file_in_its_place_is_an_error(here):
    (here / "outputs").write_text("")

    with pytest.raises(FileExistsError):
        kinetic.output_dir()
