"""What holds for every command there is, found by walking the tree: --json beside every table, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from kinetic._cli.main import cli
from kinetic._output import format as output_format


def leaves(command: click.Command = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path.strip(), command
        return
    for name in command.list_commands(click.Context(command)):
        below = command.get_command(click.Context(command), name)
        assert below is not None
        yield from leaves(below, f"{path} {name}")


LEAVES = dict(leaves())
WITH_JSON = sorted(path for path, command in LEAVES.items() if "--json" in {o for p in command.params for o in p.opts})

# Words for a home with one job that succeeded, JOB, one that failed, BAD, and a batch, GROUP. "run", and what
# needs a job that runs, is tried in flows.
WITH_A_TABLE = {
    "accelerators": ["", "tpu-v5p-8"],
    "batch cancel": ["GROUP"],
    "batch cleanup": ["GROUP --dry-run", "GROUP --yes"],
    "batch list": ["", "--limit 1"],
    "batch results": ["GROUP", "GROUP --save FOLDER/saved.pkl", "GROUP --cleanup"],
    "batch status": ["GROUP", "GROUP --failed", "GROUP --watch"],
    "cache list": [""],
    "cache prune": ["", "--dry-run", "--keep 0 --yes"],
    "config": ["", "show"],
    "disk": ["", "--clean"],
    "jobs cleanup": ["JOB", "--all --dry-run", "--all --yes"],
    "jobs explain": ["JOB", "BAD"],
    "image list": [""],
    "jobs list": ["", "--all", "--status failed --limit 1"],
    "jobs result": ["JOB", "BAD", "JOB --save FOLDER/saved.pkl"],
    "jobs show": ["JOB", "BAD"],
    "jobs stacks": [],
    "jobs status": ["JOB", "BAD"],
    "jobs wait": ["JOB BAD"],
    "key list": [""],
    "outputs get": ["JOB --to FOLDER/got"],
    "outputs ls": ["JOB", "JOB --recursive"],
    "package": ["--dry-run FOLDER/train.py"],
    "profile list": [""],
    "profile show": ["local"],
    "profile use": ["local"],
    "run": [],
    "top": ["", "--once"],
}
# Text, or nothing at all on standard output: there is no table that a program would want to read.
WITHOUT_A_TABLE = {
    "batch logs": "GROUP 0",
    "batch resume": "GROUP",
    "completion": "bash",
    "jobs cancel": "JOB",
    "jobs logs": "BAD",
    "key export": "",
    "key import": "FOLDER/key",
    "profile create": "mine --backend local",
    "profile rm": "team --yes",
    "profile unset": "",
    "skill": "",
}
NEED_A_RUNNING_JOB = ["jobs debug", "jobs forward", "jobs shell"]
RUNS_UNTIL_CTRL_C = ["dashboard", "dev"]  # tests/flows/dashboard, tests/flows/test_dev.py
NEED_A_REGISTRY = ["build-image", "image prune", "image show", "image verify"]  # tests/unit/_cli/test_image.py
# tests/flows/commands/test_kinetic_up.py, tests/unit/_cli/test_health.py, test_pools.py
NEED_GOOGLE = ["cost", "doctor", "down", "init", "pool add", "pool list", "pool remove", "status", "up"]
NEED_A_CLUSTER = ["warm list", "warm start", "warm stop"]  # tests/flows/kube/test_warm_pods.py
JSON_CALLS = [f"{path} {words}".strip() for path, each in WITH_A_TABLE.items() for words in each]


@pytest.fixture
def call(kinetic, home: Path, made_job, made_batch, tmp_path: Path) -> Callable[..., object]:
    """Return a function that runs a line of words in a home with jobs, a batch, a profile, outputs and a project."""
    names = {
        "JOB": made_job("succeeded", function="train", value={"loss": 0.5}, log="epoch 1\n"),
        "BAD": made_job("failed", function="fit", cause="exception", error={"type": "ValueError", "message": "no"}),
        "GROUP": made_batch("succeeded", "succeeded"),
        "FOLDER": str(tmp_path),
    }
    (home / "store" / "outputs" / names["JOB"]).mkdir(parents=True)
    (home / "store" / "outputs" / names["JOB"] / "model.txt").write_text("weights")
    (home / "profiles.json").write_text(json.dumps({"profiles": {"team": {"backend": "local"}}}))
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (tmp_path / "key").write_text("ab" * 32)

    def run(line: str) -> object:
        for name, meant in names.items():
            line = line.replace(name, meant)
        return kinetic(*line.split())

    return run


def test_a_command_has_json_or_is_known_to_have_no_table() -> None:
    assert sorted(WITH_A_TABLE) == sorted({*WITH_JSON} - {*NEED_A_REGISTRY, *NEED_GOOGLE, *NEED_A_CLUSTER})
    assert sorted(LEAVES) == sorted(
        [
            *WITH_A_TABLE,
            *WITHOUT_A_TABLE,
            *NEED_A_RUNNING_JOB,
            *RUNS_UNTIL_CTRL_C,
            *NEED_A_REGISTRY,
            *NEED_GOOGLE,
            *NEED_A_CLUSTER,
        ]
    )


@pytest.mark.parametrize("line", JSON_CALLS)
def test_json_is_one_document_with_a_version_and_stable_names(line: str, call) -> None:
    told = call(f"{line} --json")

    assert told.exit_code == (125 if "BAD" in line and line.split()[1] in {"result", "wait"} else 0), told.stderr
    page = json.loads(told.stdout)
    assert page["schema_version"] == output_format.SCHEMA_VERSION
    assert len(page) > 1
    assert [name for name in page if name != name.lower() or "-" in name] == []


@pytest.mark.parametrize("path", WITHOUT_A_TABLE)
def test_what_has_no_json_prints_no_table(path: str, call, monkeypatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a table")

    monkeypatch.setattr(output_format, "print_table", refused)

    told = call(f"{path} {WITHOUT_A_TABLE[path]}")

    assert told.exit_code == 0, told.stderr


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_says_what_its_arguments_and_options_are(path: str) -> None:
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option):
            assert (parameter.help or "")[:1].isupper(), parameter.name
            assert "." in (parameter.help or ""), parameter.name


@pytest.mark.parametrize("path", sorted(path for path in LEAVES if not path.startswith(("up", "down", "profile"))))
def test_the_options_of_a_cluster_come_after_a_commands_own(path: str) -> None:
    names = [each.name for each in LEAVES[path].params if isinstance(each, click.Option)]
    place = [name for name in names if name in {"project", "zone", "cluster"}]

    if place == ["project", "zone", "cluster"] and "backend" not in names:  # that one chooses the kind of place
        assert names[-3:] == place


@pytest.mark.parametrize("line", [call for call in JSON_CALLS if not call.startswith(("jobs result", "batch results"))])
def test_a_table_has_no_colour_in_it_whatever_the_terminal(line: str, call, monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")

    told = call(line)

    assert "\x1b" not in told.stdout + told.stderr
