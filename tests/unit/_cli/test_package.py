"""`kinetic package --dry-run` shows what would go with a job, and why the rest would not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic._project import root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "deep" / "train.py").write_text("print('hello')\n")
    (folder / ".env").write_text("TOKEN=1")
    (folder / "notes.txt").write_text("x" * 2048)
    (folder / ".kineticignore").write_text("notes.txt\n")
    return folder


def test_it_lists_sizes_and_reasons(project, kinetic) -> None:
    told = kinetic("package", "--dry-run", str(project / "deep" / "train.py"))

    rows = {
        line.split()[-1] if line.startswith("yes") else line.split()[3]: line for line in told.stdout.splitlines()[1:]
    }
    assert told.exit_code == 0
    assert rows["deep/train.py"].split() == ["yes", "15", "bytes", "deep/train.py"]
    assert rows[".env"].startswith("no ")
    assert "2.0 kB" in told.stdout
    assert "notes.txt" in told.stdout


def test_what_was_counted_and_what_looks_like_a_secret_stand_on_standard_error(project, kinetic) -> None:
    told = kinetic("package", "--dry-run", str(project / "deep" / "train.py"))

    assert f"would be sent from {project}" in told.stderr
    assert "left out because they look like secrets: .env" in told.stderr


def test_as_json_it_is_one_document(project, kinetic) -> None:
    told = kinetic("package", "--dry-run", "--json", str(project / "deep" / "train.py"))

    page = json.loads(told.stdout)
    entries = {entry["path"]: entry for entry in page["entries"]}
    assert page["schema_version"] == 1
    assert page["root"] == str(project)
    assert page["files"] == sum(entry["goes"] for entry in page["entries"])
    assert entries["deep/train.py"] == {"path": "deep/train.py", "size_bytes": 15, "goes": True, "reason": ""}
    assert not entries["notes.txt"]["goes"]
    assert entries["notes.txt"]["reason"]


def test_the_home_of_kinetic_never_goes(project, kinetic, monkeypatch) -> None:
    home = project / "kinetic-home"
    home.mkdir()
    (home / "secret").touch()
    monkeypatch.setenv("KINETIC_HOME", str(home))

    told = kinetic("package", "--dry-run", "--json", str(project / "deep" / "train.py"))

    assert not [entry for entry in json.loads(told.stdout)["entries"] if entry["goes"] and "secret" in entry["path"]]


def test_without_dry_run_it_does_nothing(project, kinetic) -> None:
    told = kinetic("package", str(project / "deep" / "train.py"))

    assert told.exit_code == 2
    assert "--dry-run" in told.stderr


def test_a_file_that_is_not_there_is_a_mistake_on_the_command_line(kinetic) -> None:
    assert kinetic("package", "--dry-run", "missing.py").exit_code == 2


def test_a_home_folder_is_refused_before_anything_is_listed(tmp_path, kinetic, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").touch()

    told = kinetic("package", "--dry-run", str(tmp_path / "train.py"))

    assert told.exit_code == 1
    assert told.stdout == ""
    assert "[project-root]" in told.stderr


def test_the_plan_for_a_file_is_the_plan_for_a_function_of_it(project) -> None:
    plan = root.plan_for_file(project / "deep" / "train.py")

    assert (plan.root, plan.entry_rel) == (project, "deep")
