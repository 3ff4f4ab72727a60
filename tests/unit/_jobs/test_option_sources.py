"""Job options that the decorator leaves open: who fills them in, and what a bad value is answered with."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import kinetic
from kinetic._cli.run import run as command_run
from kinetic._config import options as config_options
from kinetic._config.options import JOB_OPTIONS, ResourceRequests
from kinetic._config.profiles import Profile
from kinetic._jobs import option_sources
from kinetic._jobs.job_options import Options
from kinetic.errors import OptionError, SettingsError

SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"KINETIC_HOME": str(tmp_path / "home")}


def project(root: Path, text: str) -> None:
    (root / "pyproject.toml").write_text(f"[project]\nname = 'theirs'\n\n[tool.kinetic]\n{text}\n")


def team(**options: object) -> Profile:
    return Profile("team", options=options)


# What "not given" looks like.


def test_the_defaults_look_like_what_they_stand_for():
    found = inspect.signature(kinetic.run).parameters

    assert found["accelerator"].default == "tpu-v5e-1"
    assert isinstance(found["accelerator"].default, str)
    assert str(found["accelerator"]) == "accelerator: 'str' = 'tpu-v5e-1'"
    assert found["spot"].default == False  # noqa: E712 - equal to it, and not it
    assert not found["spot"].default
    assert str(found["spot"]) == "spot: 'bool' = False"


def test_not_given_is_known_from_the_same_value_given():
    assert not option_sources.is_given(Options.checked(), "accelerator")
    assert not option_sources.is_given(Options.checked(), "spot")
    assert option_sources.is_given(Options.checked(accelerator="tpu-v5e-1"), "accelerator")
    assert option_sources.is_given(Options.checked(spot=False), "spot")


def test_not_given_stays_so_through_with_options_and_through_a_pickle():
    changed = pickle.loads(pickle.dumps(Options.checked().changed(deadline=5)))

    assert not option_sources.is_given(changed, "accelerator")
    assert not option_sources.is_given(changed, "spot")
    assert option_sources.is_given(changed.changed(accelerator="tpu-v5e-1"), "accelerator")


# Who wins.


@pytest.mark.parametrize(
    ("given", "profile", "written", "expected"),
    [
        ({}, None, "", "tpu-v5e-1"),
        ({}, None, 'accelerator = "gpu-t4"', "gpu-t4"),
        ({}, team(accelerator="gpu-l4"), 'accelerator = "gpu-t4"', "gpu-l4"),
        ({"accelerator": "cpu"}, team(accelerator="gpu-l4"), 'accelerator = "gpu-t4"', "cpu"),
        ({"accelerator": "tpu-v5e-1"}, team(accelerator="gpu-l4"), 'accelerator = "gpu-t4"', "tpu-v5e-1"),
    ],
)
def test_an_accelerator_that_is_given_beats_the_profile_beats_the_project(
    given, profile, written, expected, root, environ
):
    project(root, written)

    found = option_sources.applied(Options.checked(**given), root, profile, environ)

    assert found.accelerator == expected
    assert type(found.accelerator) is str


@pytest.mark.parametrize(
    ("given", "variable", "profile", "written", "expected"),
    [
        ({}, "", None, "", None),
        ({}, "", None, "deadline = 40", 40),
        ({}, "", team(deadline=30), "deadline = 40", 30),
        ({}, "20", team(deadline=30), "deadline = 40", 20),
        ({"deadline": 10}, "20", team(deadline=30), "deadline = 40", 10),
        ({}, "", None, 'deadline = "40.5"', 40.5),
    ],
)
def test_a_deadline_that_is_given_beats_the_variable_beats_the_profile_beats_the_project(
    given, variable, profile, written, expected, root, environ
):
    project(root, written)

    found = option_sources.applied(Options.checked(**given), root, profile, {**environ, "KINETIC_DEADLINE": variable})

    assert found.deadline == expected


@pytest.mark.parametrize(
    ("given", "profile", "written", "expected"),
    [
        ({}, None, "", False),
        ({}, None, "spot = true", True),
        ({}, team(spot=False), "spot = true", False),
        ({"spot": False}, team(spot=True), "spot = true", False),
        ({"spot": True}, team(spot=False), "", True),
    ],
)
def test_a_flag_that_is_given_as_false_is_given(given, profile, written, expected, root, environ):
    project(root, written)

    assert option_sources.applied(Options.checked(**given), root, profile, environ).spot is expected


def test_an_image_comes_from_the_profile_or_the_project(root, environ):
    project(root, 'container_image = "prebuilt"')

    assert option_sources.applied(Options.checked(), root, None, environ).container_image == "prebuilt"
    assert (
        option_sources.applied(Options.checked(), root, team(container_image="a/b"), environ).container_image == "a/b"
    )
    assert option_sources.applied(Options.checked(container_image="c/d"), root, None, environ).container_image == "c/d"


def test_filling_in_twice_changes_nothing(root, environ):
    project(root, 'accelerator = "gpu-t4"')
    once = option_sources.applied(Options.checked(), root, None, environ)
    project(root, 'accelerator = "gpu-l4"')

    assert option_sources.applied(once, root, None, environ).accelerator == "gpu-t4"


def test_every_option_tells_who_set_it(root, environ):
    project(root, 'accelerator = "gpu-t4"')

    found = option_sources.look_up(root, team(spot=True), {**environ, "KINETIC_DEADLINE": "20"}).options

    assert found == {
        "accelerator": ("gpu-t4", f"[tool.kinetic] in {root / 'pyproject.toml'}"),
        "container_image": (None, "default"),
        "deadline": (20.0, "KINETIC_DEADLINE"),
        "spot": (True, "profile team"),
        "retries": (0, "default"),
        "resources": (None, "default"),
        "keep_warm": (None, "default"),
        "base_packages": (True, "default"),
        "require_accelerator": (True, "default"),
        "wait_image": (True, "default"),
        "compile_cache": (True, "default"),
        "max_cost": (None, "default"),
    }


# What cannot work.


def test_a_bad_value_of_the_project_names_file_line_and_key(root, environ):
    project(root, '# a remark\naccelerator = "gpu-l5"')

    with pytest.raises(SettingsError) as caught:
        option_sources.applied(Options.checked(), root, None, environ)

    assert caught.value.what == (
        f'accelerator in [tool.kinetic] of {root / "pyproject.toml"}, line 6, cannot be used: unknown GPU "gpu-l5"'
    )
    assert caught.value.next == 'write accelerator="gpu-l4"'


def test_the_line_is_that_of_our_table_and_not_of_another(root, environ):
    (root / "pyproject.toml").write_text(
        '[tool.other]\ndeadline = 1\n[tool.kinetic] # ours\n"deadline" = -1\n[tool.more]\ndeadline = 2\n'
    )

    with pytest.raises(SettingsError, match="line 4,"):
        option_sources.applied(Options.checked(), root, None, environ)


def test_a_value_in_a_place_where_no_line_can_be_named_is_told_without(root, environ):
    (root / "pyproject.toml").write_text("[tool]\nkinetic = { deadline = -1 }\n")

    with pytest.raises(SettingsError, match=r"pyproject.toml cannot be used: deadline=-1 is not a positive"):
        option_sources.applied(Options.checked(), root, None, environ)


def test_a_bad_value_of_a_profile_names_file_and_profile(root, environ, tmp_path):
    with pytest.raises(SettingsError) as caught:
        option_sources.applied(Options.checked(), root, team(deadline="soon"), environ)

    assert caught.value.what.startswith(
        f"deadline in profile team of {tmp_path / 'home' / 'profiles.json'} cannot be used: deadline='soon'"
    )


def test_a_bad_value_that_the_decorator_overrules_hurts_nobody(root, environ):
    project(root, 'accelerator = "gpu-l5"')

    assert option_sources.applied(Options.checked(accelerator="cpu"), root, None, environ).accelerator == "cpu"


def test_what_a_later_version_wrote_into_a_profile_and_nobody_follows_is_told(root, environ):
    found = option_sources.look_up(root, team(queue="high"), environ)

    assert found.notes == (
        f"queue in profile team of {environ['KINETIC_HOME']}/profiles.json has no effect in this release of kinetic",
    )


# The same table for everybody.


@pytest.mark.parametrize(
    ("given", "more", "profile", "written", "expected"),
    [
        ({}, {}, None, "", 0),
        ({}, {}, None, "retries = 1", 1),
        ({}, {}, team(retries=2), "retries = 1", 2),
        ({}, {"KINETIC_RETRIES": "3"}, team(retries=2), "retries = 1", 3),
        ({"retries": 0}, {"KINETIC_RETRIES": "3"}, team(retries=2), "retries = 1", 0),
    ],
)
def test_retries_come_from_the_first_that_says_something(given, more, profile, written, expected, root, environ):
    project(root, written)

    assert option_sources.applied(Options.checked(**given), root, profile, {**environ, **more}).retries == expected


def test_resources_come_from_the_first_that_says_something(root, environ):
    def found(profile=None, **given):
        options = Options.checked(**given)
        return config_options.read_resources(option_sources.applied(options, root, profile, environ).resources or {})

    assert found() == ResourceRequests()
    project(root, 'resources = { cpu = 1.5, memory = "16Gi", shm = "500M" }')
    assert found() == ResourceRequests(1.5, 16 * 2**30, None, 500_000_000)
    assert found(team(resources={"cpu": "500m"})) == ResourceRequests(cpu=0.5)
    environ["KINETIC_RESOURCES"] = "cpu=3"
    assert found(team(resources={"cpu": "500m"})) == ResourceRequests(cpu=3.0)
    assert found(resources={"cpu": 7}) == ResourceRequests(cpu=7.0)


def test_a_text_with_a_unit_is_a_deadline_wherever_it_stands(root, environ):
    project(root, 'deadline = "10m"')

    assert option_sources.applied(Options.checked(), root, None, environ).deadline == 600.0
    assert option_sources.applied(Options.checked(), root, team(deadline="2h"), environ).deadline == 7200.0
    assert (
        option_sources.applied(Options.checked(), root, None, environ | {"KINETIC_DEADLINE": "1d"}).deadline == 86400.0
    )


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("KINETIC_DEADLINE", "soon", "is not a number of seconds"),
        ("KINETIC_DEADLINE", "0", "is not a positive number of seconds"),
        ("KINETIC_RETRIES", "-1", "retries must be 0 or more, got -1"),
        ("KINETIC_RESOURCES", "cpu", "'cpu' is not NAME=AMOUNT"),
        ("KINETIC_MAX_COST", "five", "max_cost='five' is not an amount in dollars"),
        ("KINETIC_WAIT_IMAGE", "later", "wait_image=later is neither true nor false"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(variable, text, words, root, environ):
    with pytest.raises(OptionError) as caught:
        option_sources.applied(Options.checked(), root, None, {**environ, variable: text})

    assert f"{variable}={text!r} cannot be used: " in caught.value.what
    assert words in caught.value.what


@pytest.mark.parametrize("name", ["base_packages", "require_accelerator"])
def test_what_holds_for_a_whole_project_is_said_by_project_profile_or_variable(name, root, environ):
    assert option_sources.is_wanted(name, root, None, environ)
    project(root, f"{name} = false")
    assert not option_sources.is_wanted(name, root, None, environ)
    assert option_sources.is_wanted(name, root, team(**{name: True}), environ)
    assert not option_sources.is_wanted(name, root, team(**{name: True}), environ | {f"KINETIC_{name.upper()}": "no"})


def test_the_table_of_the_manual_is_the_table_of_the_code():
    page = (SOURCE.parent / "docs" / "configuration.md").read_text()

    for option in JOB_OPTIONS:
        said = [f"`{option.name}`"] if option.is_argument else []
        said += [f"`{option.variable}`"] if option.variable else []
        row = f"| `{option.name}` | {option.effect} | {', '.join(said)} | {option.without} |"
        assert row in page, row


def test_an_option_has_one_spelling_in_python_and_on_the_command_line():
    arguments = {option.name for option in JOB_OPTIONS if option.is_argument}
    flags = {param.name for param in command_run.params}

    assert arguments <= set(Options._fields)
    assert arguments <= set(inspect.signature(kinetic.run).parameters)
    assert arguments <= flags


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("retries = -1", "retries must be 0 or more, got -1"),
        ('resources = { memory = "16" }', "memory='16' is not a valid memory size"),
        ("resources = { cpu = 0 }", "cpu=0 is not a valid CPU quantity"),
        ("max_cost = -1", "max_cost=-1 is not an amount in dollars"),
        ("[tool.kinetic.resources]\nmemmory = '1Gi'", "'memmory' is not a resource"),
    ],
)
def test_what_cannot_work_is_refused_wherever_the_job_goes(root, environ, text, words):
    project(root, text)

    with pytest.raises(SettingsError) as caught:
        option_sources.applied(Options.checked(accelerator="cpu"), root, None, environ)

    assert words in caught.value.what
    assert f"{root / 'pyproject.toml'}, line " in caught.value.what


def test_a_job_on_this_machine_is_told_once_which_resources_nobody_holds_it_to(root, environ, capsys, monkeypatch):
    monkeypatch.setattr("kinetic._runner.processes.can_measure_memory", lambda: True)
    project(root, 'resources = { cpu = 4, memory = "16Gi" }')
    options = Options.checked(accelerator="cpu")

    for _ in range(2):
        option_sources.applied(options, root, None, environ)
        option_sources.applied(options._replace(project="acme"), root, None, environ)

    assert capsys.readouterr().err == (
        "kinetic: not enforced on this machine: cpu=4 (libraries start as many threads)\n"
    )


def test_where_nothing_says_what_a_process_holds_the_memory_is_not_enforced_and_the_line_says_so(
    root, environ, capsys, monkeypatch
):
    monkeypatch.setattr("kinetic._runner.processes.can_measure_memory", lambda: False)
    project(root, 'resources = { memory = "16Gi" }')

    option_sources.applied(Options.checked(accelerator="cpu"), root, None, environ)

    assert capsys.readouterr().err == "kinetic: not enforced on this machine: memory=16Gi\n"


# What is typed into a terminal.


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("accelerator", "gpu-l4", "gpu-l4"),
        ("container_image", "a/b:1", "a/b:1"),
        ("deadline", "3600", 3600),
        ("deadline", "0.5", 0.5),
        ("spot", "true", True),
        ("spot", "No", False),
        ("retries", "3", 3),
        ("resources", "cpu=4, memory=16Gi", {"cpu": "4", "memory": "16Gi"}),
    ],
)
def test_a_typed_value_gets_the_type_of_its_option(name, text, value):
    found = option_sources.of_text(name, text)

    assert found == value
    assert json.loads(json.dumps(found)) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("acelerator", "cpu", "write accelerator="),
        ("project", "acme", "options: accelerator"),
        ("accelerator", "gpu-l5", "gpu-l4"),
        ("deadline", "soon", "deadline=3600"),
        ("deadline", "-1", "positive"),
        ("spot", "maybe", "spot=true"),
        ("retries", "some", "retries=3"),
        ("retries", "-1", "0 or more"),
        ("resources", "16Gi", "'16Gi' is not NAME=AMOUNT"),
        ("resources", "ram=16Gi", "'ram' is not a resource"),
    ],
)
def test_a_typed_value_that_cannot_work_is_refused(name, text, words):
    with pytest.raises(OptionError) as caught:
        option_sources.of_text(name, text)

    assert words in str(caught.value)


# A real submission.


def test_a_job_gets_the_accelerator_of_the_profile_the_project_or_the_decorator(root, environ):
    project(root, 'accelerator = "gpu-t4"')
    (root / "train.py").write_text(
        "import kinetic\n"
        "@kinetic.run()\n"
        "def open_(): return 1\n"
        "@kinetic.run(accelerator='cpu')\n"
        "def given(): return 2\n"
        "for function in (open_, given):\n"
        "    handle = function.run_async()\n"
        "    print(handle.accelerator, handle.job_id.split('-')[0], handle.result())\n"
    )
    saved = {"current": None, "profiles": {"team": {"backend": "local", "options": {"accelerator": "tpu-v6e-4"}}}}
    Path(environ["KINETIC_HOME"]).mkdir()
    (Path(environ["KINETIC_HOME"]) / "profiles.json").write_text(json.dumps(saved))
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_"))}
    ours |= {**environ, "PYTHONPATH": str(SOURCE), "KINETIC_LOCAL_SLOTS": "1", "KINETIC_LOCAL_GPUS": "none"}

    def run(**more: str) -> list[str]:
        command = [sys.executable, "train.py"]
        done = subprocess.run(command, cwd=root, env=ours | more, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    try:
        assert run() == ["gpu-t4 t4 1", "cpu cpu 2"]
        assert run(KINETIC_PROFILE="team") == ["tpu-v6e-4 v6e4 1", "cpu cpu 2"]
    finally:
        end_supervisors(Path(environ["KINETIC_HOME"]))


def end_supervisors(home: Path) -> None:
    """End the supervisors that idle now that their jobs are done; each leads a session of its own."""
    for queue in home.glob("run/*/queue.db"):
        with contextlib.closing(sqlite3.connect(queue)) as db:
            pids = [pid for (pid,) in db.execute("SELECT pid FROM supervisors") if pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
