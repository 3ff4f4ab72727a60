"""The tree of commands: what it loads, what it says of itself, and how it answers a slip of the finger."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import kinetic as package
from kinetic._cli import command_tree
from kinetic._cli.command_tree import LazyGroup
from kinetic._cli.main import cli
from kinetic._wire import documents, keys

SOURCE = Path(__file__).parents[3] / "src"


def tree(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, LazyGroup):
        for name in command.lazy_commands:
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from tree(below, (*path, name))


TREE = dict(tree())


def loaded_by(*words: str, home: Path) -> set[str]:
    program = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import atexit; from kinetic._cli.main import main; "
    program += f"atexit.register(lambda: print(*sys.modules, file=sys.stderr)); sys.argv[1:] = {list(words)!r}; main()"
    environment = {"PATH": "/usr/bin:/bin", "KINETIC_HOME": str(home), "HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    return set(done.stderr.splitlines()[-1].split())


def test_help_loads_click_and_nothing_of_kinetic_but_the_terminal(tmp_path: Path) -> None:
    loaded = loaded_by("--help", home=tmp_path)

    ours = {name for name in loaded if name.startswith("kinetic.")}
    assert ours == {
        "kinetic._cli",
        "kinetic._cli.error_output",
        "kinetic._cli.command_tree",
        "kinetic._cli.main",
        "kinetic._version",
    }
    assert not {"rich", "cloudpickle", "obstore", "sqlite3", "logging", "pathlib"} & loaded


def test_listing_jobs_loads_nothing_that_only_other_commands_need(tmp_path: Path) -> None:
    loaded = loaded_by("jobs", "list", home=tmp_path)

    assert "kinetic._jobs.job_list" in loaded
    late = {"rich", "cloudpickle", "obstore", "pickle", "tempfile", "logging", "html", "kinetic._hardware.placement"}
    assert not late & loaded


@pytest.mark.parametrize("path", TREE, ids=" ".join)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_explains_itself_with_an_example(path, option, kinetic) -> None:
    told = kinetic(*path, option)

    assert told.exit_code == 0
    assert f"Usage: {' '.join(('kinetic', *path))}" in told.stdout
    assert "Example: kinetic " in " ".join(told.stdout.split())
    assert told.stderr == ""


@pytest.mark.parametrize("path", [path for path, command in TREE.items() if isinstance(command, LazyGroup)])
def test_the_line_in_the_help_of_a_group_is_the_first_line_of_the_command(path) -> None:
    group = TREE[path]

    assert isinstance(group, LazyGroup)
    for name, later in group.lazy_commands.items():
        assert (TREE[*path, name].help or "").splitlines()[0] == later.help


@pytest.mark.parametrize("path", [(), ("jobs",), ("key",)], ids=str)
def test_a_group_alone_shows_its_help_and_ends_well(path, kinetic) -> None:
    told = kinetic(*path)

    assert told.exit_code == 0
    assert told.stdout == kinetic(*path, "--help").stdout


def test_the_version_is_the_package_s(kinetic) -> None:
    assert kinetic("--version").stdout == f"kinetic {package.__version__}\n"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("jbos",), "kinetic jobs"),
        (("jobs", "listt"), "kinetic jobs list"),
        (("jobs", "LOGS"), "kinetic jobs logs"),
        (("jobs", "log", "cpu-a-1", "-f"), "kinetic jobs logs cpu-a-1 -f"),
        (("warm", "startt", "tpu-v5e-1"), "kinetic warm start tpu-v5e-1"),
        (("jobs", "lst", "x\x1b[2J"), "kinetic jobs list"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(words, near, kinetic) -> None:
    told = kinetic(*words)

    assert told.exit_code == 2
    assert told.stdout == ""
    assert told.stderr.splitlines()[0].startswith("error: ")
    assert told.stderr.splitlines()[-1] == f"next:  {near}"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("logs",), "jobs logs @last"),
        (("logs", "cpu-a-1", "-f"), "jobs logs cpu-a-1 -f"),
        (("state",), "jobs status @last"),
        (("ps",), "jobs list"),
        (("ps", "-a"), "jobs list"),
        (("submit",), "run FILE.py::FUNCTION"),
        (("submit", "train.py", "3"), "run train.py 3"),
        (("cancel", "cpu-a-1"), "jobs cancel cpu-a-1"),
        (("kill", "a b"), "jobs cancel 'a b'"),
        (("rm", "x\x1b[2J"), "jobs cleanup @last"),
        (("Describe",), "jobs show @last"),
        (("jobs", "describe", "cpu-a"), "jobs show cpu-a"),
        (("jobs", "get"), "jobs list"),
        (("jobs", "kill"), "jobs cancel @last"),
        (("batch", "delete", "grp-1"), "batch cleanup grp-1"),
        (("usage", "cpu-a"), "jobs show cpu-a"),
        (("jobs", "progress"), "jobs show @last"),
        (("cache", "clear"), "cache prune"),
        (("check",), "doctor"),
        (("stop", "cpu-a"), "jobs cancel cpu-a"),
        (("stat",), "jobs status @last"),
        (("outputs", "download", "cpu-a"), "outputs get cpu-a"),
        (("download", "cpu-a"), "outputs get cpu-a"),
    ],
)
def test_the_words_of_other_tools_lead_to_ours(words, near, kinetic) -> None:
    told = kinetic(*words)

    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.splitlines()[-1] == f"next:  kinetic {near}"
    command = near.split()[0] if near.startswith(("run", "doctor")) else " ".join(near.split()[:2])
    unknown = next(word for word in words if word not in {"jobs", "batch", "cache", "outputs"})
    assert f"there is no command {unknown!r}" in told.stderr
    assert f"did you mean {command!r}?" in told.stderr


def test_a_command_of_kinetic_that_is_typed_behind_a_group_is_named_with_its_place(kinetic) -> None:
    told = kinetic("jobs", "top")

    assert told.stderr.splitlines()[0] == "error: there is no command 'top'; did you mean 'kinetic top'? [usage]"
    assert told.stderr.splitlines()[-1] == "next:  kinetic top"


@pytest.mark.parametrize("group", ["jobs", "batch", "cache", "image", "key", "pool", "profile", "warm"])
def test_ls_is_list_in_every_group(group, kinetic) -> None:
    assert kinetic(group, "ls", "-h").output == kinetic(group, "list", "-h").output


def test_every_command_that_words_of_other_tools_lead_to_exists(kinetic) -> None:
    for table in command_tree._TABLES.values():
        for _, ours in command_tree.rows(table):
            command = [part for part in ours if not command_tree._is_example(part)]
            assert kinetic(*command, "-h").exit_code == 0, command


@pytest.mark.parametrize("word", ["xyzzy", "help"])
def test_a_command_that_resembles_none_is_answered_with_all(word, kinetic) -> None:
    told = kinetic("jobs", word)

    assert told.exit_code == 2
    assert (
        "list, show, status, explain, wait, logs, debug, stacks, shell, forward, result, cancel, cleanup" in told.stderr
    )
    assert told.stderr.endswith("next:  kinetic jobs -h\n")


def test_help_leads_to_the_help_of_the_command_that_follows_it(kinetic) -> None:
    assert kinetic("help", "jobs", "logs").stderr.endswith("next:  kinetic jobs logs -h\n")


@pytest.mark.parametrize("words", [("--bogus",), ("jobs", "--bogus"), ("jobs", "list", "--bogus"), ("jobs", "status")])
def test_a_mistake_on_the_command_line_has_exit_code_2_and_our_three_parts(words, kinetic) -> None:
    told = kinetic(*words)

    assert told.exit_code == 2
    assert told.stderr.startswith("error: ")
    assert "[usage]" in told.stderr
    assert told.stderr.splitlines()[-1].endswith(" -h")


def test_an_unknown_profile_is_an_error_that_names_those_that_exist(kinetic) -> None:
    told = kinetic("--profile", "locl", "jobs", "list")

    assert told.exit_code == 1
    assert told.stderr.startswith("error: no profile is named 'locl' [settings]\n")
    assert told.stderr.endswith("next:  write --profile local\n")


def test_the_built_in_profile_can_be_chosen(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROJECT", "acme")  # alone, it would mean a cluster

    told = kinetic("--profile", "local", "jobs", "list")

    assert told.exit_code == 0
    assert "only jobs of this machine" not in told.stderr


def test_an_empty_list_is_a_sentence_on_standard_error(kinetic) -> None:
    told = kinetic("jobs", "list")

    assert (told.exit_code, told.stdout) == (0, "")
    assert told.stderr.startswith("There are no jobs")


def test_a_list_of_jobs_and_batches_of_another_version_only_does_not_say_that_there_are_none(
    kinetic, made_job, made_batch, store
) -> None:
    for at in (keys.record(made_job()), keys.group_manifest(made_batch())):
        store.put(at, json.dumps(json.loads(store.get(at)) | {"schema": documents.SCHEMA + 1}).encode())

    jobs, batches = kinetic("jobs", "list"), kinetic("batch", "list")

    assert jobs.stderr.endswith("No jobs are listed; for removed jobs: kinetic jobs list --all\n")
    assert "by another version of kinetic" in batches.stderr
    assert "There are no" not in jobs.stderr + batches.stderr


def test_an_empty_list_as_json_is_a_document(kinetic) -> None:
    told = kinetic("jobs", "ls", "--json")

    assert told.stdout == '{\n  "schema_version": 1,\n  "jobs": []\n}\n'


@pytest.mark.parametrize("newest", ["@last", "-"])
def test_without_jobs_there_is_no_newest_one(newest, kinetic) -> None:
    told = kinetic("jobs", "status", newest)

    assert told.exit_code == 1
    assert told.stderr.startswith("error: there are no jobs, so @last")


@pytest.mark.parametrize("newest", ["@last", "-"])
def test_once_all_jobs_are_removed_there_is_no_newest_one_any_more(newest, kinetic, made_job) -> None:
    kinetic("jobs", "cleanup", made_job())

    told = kinetic("jobs", "status", newest)

    assert told.exit_code == 1
    assert told.stderr.startswith("error: there are no jobs except removed ones")


def test_what_cannot_be_an_id_is_a_mistake_on_the_command_line(kinetic) -> None:
    assert kinetic("jobs", "status", "Not/An/Id").exit_code == 2


@pytest.mark.parametrize(("level", "shown"), [("", "WARNING"), ("INFO", "WARNING"), ("error", "error")])
def test_quiet_leaves_warnings_and_never_prints_more(level, shown, kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", level)

    settings = json.loads(kinetic("-q", "config", "--json").stdout)["settings"]

    assert next(each["value"] for each in settings if each["name"] == "log_level") == shown


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("jobs", "list", "--profile", "team", "--limit", "3"), "--profile team jobs list --limit 3"),
        (("jobs", "list", "--profile=team"), "--profile=team jobs list"),
        (("run", "--debug", "train.py::train", "3"), "--debug run train.py::train 3"),
        (("run", "-q", "--", "python", "train.py"), "-q run -- python train.py"),
    ],
)
def test_an_option_of_kinetic_itself_that_follows_the_command_is_put_in_front(words, line, kinetic) -> None:
    told = kinetic(*words)

    assert (told.exit_code, told.stdout) == (2, "")
    assert "it is an option of kinetic itself" in told.stderr
    assert told.stderr.endswith(f"next:  kinetic {line}\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--project", "acme", "jobs", "list", "--all"), "jobs list --project acme --all"),
        (("--json", "jobs", "list"), "jobs list --json"),
        (("-a", "cpu", "run", "train.py::train"), "run -a cpu train.py::train"),
        (("--bogus", "jobs", "list"), "-h"),
    ],
)
def test_an_option_of_a_command_that_precedes_it_is_put_behind_it(words, line, kinetic) -> None:
    told = kinetic(*words)

    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.endswith(f"next:  kinetic {line}\n")
