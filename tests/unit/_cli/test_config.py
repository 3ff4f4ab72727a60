"""`kinetic config`: every setting with its value and who set it, and nothing that is secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic._config import home as config_home
from kinetic._config.variables import INSIDE_A_JOB, VARIABLES

PLACE = ("--project", "acme", "--zone", "us-west4-a", "--cluster", "main")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in the folder of a project."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture
def settings(kinetic, folder):
    """Return a function that gives value and source of every setting, by name."""

    def read() -> dict[str, tuple[object, str]]:
        page = json.loads(kinetic("config", "--json").stdout)
        assert page["schema_version"] == 1
        return {each["name"]: (each["value"], each["source"]) for each in page["settings"]}

    return read


def test_every_variable_that_a_user_may_set_has_a_row(settings) -> None:
    wanted = {name.removeprefix("KINETIC_").lower() for name in VARIABLES if name not in INSIDE_A_JOB}

    assert wanted - {"google_cloud_project"} <= set(settings())


def test_without_any_configuration_all_is_a_default_and_means_this_machine(settings, home) -> None:
    found = settings()

    assert found["backend"] == ("local", "default")
    assert found["profile"] == (None, "default")
    assert found["store"] == (f"file://{home}/store", "default")
    assert found["accelerator"] == ("tpu-v5e-1", "default")
    assert {source for _, source in found.values()} == {"default", "KINETIC_HOME"}


@pytest.mark.parametrize("number", [0, 1])
def test_what_a_command_for_clusters_advises_selects_a_cluster(settings, kinetic, monkeypatch, number: int) -> None:
    (advice,) = [line for line in kinetic("warm", "list").stderr.splitlines() if line.startswith("next:")]
    _, _, words = advice.partition("export ")

    for word in words.split("     or export ")[number].split():
        monkeypatch.setenv(*word.split("="))

    assert settings()["backend"][0] == "gke"


def test_each_source_is_named(settings, kinetic, folder, monkeypatch) -> None:
    kinetic("profile", "create", "team", *PLACE, "--option", "spot=true")
    (folder / "pyproject.toml").write_text('[tool.kinetic]\naccelerator = "gpu-l4"\nby_value = ["plugins"]\n')
    monkeypatch.setenv("KINETIC_ZONE", "us-east5-b")
    monkeypatch.setenv("KINETIC_DEADLINE", "60")
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "3")
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "WARNING")

    found = settings()

    assert found["profile"] == ("team", "current profile")
    assert found["backend"] == ("gke", "profile team")
    assert found["project"] == ("acme", "profile team")
    assert found["zone"] == ("us-east5-b", "KINETIC_ZONE")
    assert found["store"] == ("gs://acme-kn-main-jobs", "default")
    assert found["deadline"] == (60.0, "KINETIC_DEADLINE")
    assert found["spot"] == (True, "profile team")
    assert found["accelerator"] == ("gpu-l4", f"[tool.kinetic] in {folder / 'pyproject.toml'}")
    assert found["by_value"] == (["plugins"], f"[tool.kinetic] in {folder / 'pyproject.toml'}")
    assert found["local_slots"] == (3, "KINETIC_LOCAL_SLOTS")
    assert found["log_level"] == ("WARNING", "KINETIC_LOG_LEVEL")


def test_what_holds_for_all_jobs_of_a_cluster_has_a_value_and_a_source(settings, kinetic, monkeypatch) -> None:
    kinetic("profile", "create", "team", *PLACE, "--queue", "gold", "--pull-secret", "a", "--pull-secret", "b")
    monkeypatch.setenv("KINETIC_TTL_HOURS", "2")
    monkeypatch.setenv("KINETIC_OWNER", "mia")

    found = settings()

    assert found["queue"] == ("gold", "profile team")
    assert found["pull_secrets"] == (["a", "b"], "profile team")
    assert found["ttl_hours"] == (2.0, "KINETIC_TTL_HOURS")
    assert found["owner"] == ("mia", "KINETIC_OWNER")
    assert found["most_attempts"] == (None, "default")


def test_one_of_them_that_cannot_be_used_hides_no_other(kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_TTL_HOURS", "soon")
    monkeypatch.setenv("KINETIC_MOST_ATTEMPTS", "3")

    told = kinetic("config")

    rows = {line.split()[0]: line.split()[1] for line in told.stdout.splitlines()}
    assert (rows["most_attempts"], rows["ttl_hours"]) == ("3", "soon")
    assert told.exit_code == 2
    assert "KINETIC_TTL_HOURS='soon' is not a valid number of hours" in told.stderr


def test_a_profile_that_the_environment_chose_says_so(settings, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROFILE", "local")

    assert settings()["profile"] == ("local", "KINETIC_PROFILE")


def test_config_and_config_show_are_the_same_table(kinetic, folder) -> None:
    told = kinetic("config", "show")

    assert told.exit_code == 0
    assert told.stdout == kinetic("config").stdout
    lines = [line.split() for line in told.stdout.splitlines()]
    assert lines[0] == ["SETTING", "VALUE", "SOURCE"]
    assert ["backend", "local", "default"] in lines
    assert ["context_size_warn_mb", "100", "default"] in lines


@pytest.mark.parametrize("words", [("set", "project", "acme"), ("get", "project"), ("backend",)])
def test_who_wants_to_change_a_setting_is_told_where(kinetic, words: tuple[str, ...]) -> None:
    refused = kinetic("config", *words)

    assert refused.exit_code == 2
    assert f"error: kinetic config only shows settings, got '{words[0]}' [usage]" in refused.stderr
    assert "next:  kinetic profile create -h" in refused.stderr


def test_without_a_namespace_that_of_the_context_holds(kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", "lab")
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs")

    (line,) = (line for line in kinetic("config").stdout.splitlines() if line.startswith("namespace"))

    assert "the context's own, or default" in line


def test_a_context_leads_to_the_cluster_and_no_default_zone_or_name_is_told(kinetic, settings, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "gke")
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", "lab")
    monkeypatch.setenv("KINETIC_STORE", "gs://jobs")

    found = settings()
    rows = {line.split()[0]: line for line in kinetic("config").stdout.splitlines()}

    assert (found["zone"], found["cluster"]) == ((None, "default"), (None, "default"))
    assert "the context's own" in rows["zone"]
    assert "the context's own" in rows["cluster"]


def test_what_a_cluster_wants_of_its_pods_is_shown_as_it_is_typed(kinetic, settings, monkeypatch) -> None:
    typed = {
        "volume_claims": ["/datasets=sets/imagenet:ro", "/scratch=scratch"],
        "tolerations": ["dedicated=research:NoSchedule", "gpu", "a=", "b:NoExecute"],
    }
    for name, values in typed.items():
        monkeypatch.setenv(f"KINETIC_{name.upper()}", ",".join(values))
    monkeypatch.setenv("KINETIC_NODE_SELECTOR", "none")

    found, rows = settings(), kinetic("config").stdout.splitlines()

    assert {name: found[name][0] for name in typed} == typed
    shown = {row.split()[0]: " ".join(row.split()[1:]) for row in rows}
    assert shown["volume_claims"].startswith("/datasets=sets/imagenet:ro, /scratch=scratch KINETIC_")
    assert shown["node_selector"] == "none KINETIC_NODE_SELECTOR"  # any node, and not Google's labels


def test_beside_a_context_what_somebody_wrote_or_a_bucket_is_named_after_is_told(settings, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROJECT", "acme")
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", "lab")
    monkeypatch.setenv("KINETIC_ZONE", "us-west4-a")

    found = settings()

    assert found["zone"] == ("us-west4-a", "KINETIC_ZONE")
    assert found["cluster"] == ("kinetic-cluster", "default")
    assert found["store"] == ("gs://acme-kn-kinetic-cluster-jobs", "default")


def test_what_is_written_for_nothing_is_told(kinetic, home) -> None:
    home.mkdir()
    team = {"backend": "local", "options": {"queue": "high"}}
    (home / "profiles.json").write_text(json.dumps({"current": "team", "profiles": {"team": team}}))

    assert "queue in profile team" in kinetic("config").stderr


def test_what_only_batches_and_clusters_follow_has_a_row_as_well(settings, folder) -> None:
    file = folder / "pyproject.toml"
    file.write_text('[tool.kinetic]\nretries = 3\nresources = { memory = "16Gi" }\n')

    found = settings()

    source = f"[tool.kinetic] in {file}"
    assert found["retries"] == (3, source)
    assert found["resources"] == ({"memory": "16Gi"}, source)


def test_a_job_option_that_cannot_be_used_hides_no_other(kinetic, folder) -> None:
    (folder / "pyproject.toml").write_text('[tool.kinetic]\naccelerator = "cpu"\nretries = -1\nspot = true\n')

    told = kinetic("config")

    rows = {line.split()[0]: line.split()[1] for line in told.stdout.splitlines()}
    assert (rows["accelerator"], rows["spot"]) == ("cpu", "true")
    assert "retries" not in rows
    assert (told.exit_code, told.stderr.count("error:")) == (1, 1)
    assert "retries must be 0 or more, got -1" in told.stderr


def test_looking_makes_nothing(kinetic, folder, home) -> None:
    kinetic("config")

    assert not home.exists()


def test_a_setting_that_cannot_be_read_hides_no_other(kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "many")

    told = kinetic("config", "--json")
    page = json.loads(told.stdout)

    assert told.exit_code == 2
    assert "KINETIC_LOCAL_SLOTS='many' is not a number of jobs" in told.stderr
    assert page["problems"] == ["KINETIC_LOCAL_SLOTS='many' is not a number of jobs"]
    assert {"backend", "local_slots", "accelerator"} <= {each["name"] for each in page["settings"]}


def test_a_broken_file_of_profiles_is_told_once_and_hides_no_other_setting(kinetic, folder, home) -> None:
    home.mkdir()
    (home / "profiles.json").write_text("{")

    told = kinetic("config")

    assert told.exit_code == 1
    assert told.stderr.count("cannot be read") == 1
    assert "local_slots" in told.stdout


def test_a_place_that_no_project_may_set_is_told(kinetic, folder) -> None:
    (folder / "pyproject.toml").write_text('[tool.kinetic]\nstore = "gs://thief"\n')

    told = kinetic("config")

    assert told.exit_code == 1
    assert "'store' in [tool.kinetic] of" in told.stderr
    assert "gs://thief" not in told.stdout


def test_no_secret_is_shown(kinetic, folder, home, monkeypatch) -> None:
    home.mkdir()
    config_home.add_key(home, "cd" * 32)
    monkeypatch.setenv("KINETIC_STORE", "s3://me:hunter2@bucket/x?sig=hunter2")
    monkeypatch.setenv("HF_TOKEN", "hunter2")

    for told in (kinetic("config"), kinetic("config", "--json")):
        assert "hunter2" not in told.output
        assert "cd" * 32 not in told.output
        assert "s3://***@bucket/x?***" in told.output


def test_a_variable_that_is_not_read_is_named_with_the_nearest_one(kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROJEKT", "hunter2")

    told, page = kinetic("config"), json.loads(kinetic("config", "--json").stdout)

    assert "warning: kinetic does not read KINETIC_PROJEKT (did you mean KINETIC_PROJECT?)" in told.stderr
    assert page["unknown_variables"] == {"KINETIC_PROJEKT": "KINETIC_PROJECT"}
    assert "hunter2" not in told.stdout + told.stderr


def test_a_variable_that_only_1_turns_on_is_named_where_it_has_another_value(kinetic, folder, monkeypatch) -> None:
    for name, value in {"UPGRADE": "true", "DEBUG": "yes", "TRUST_STORE": "no", "PORTABLE": "1"}.items():
        monkeypatch.setenv(f"KINETIC_{name}", value)
    notes = [
        "KINETIC_DEBUG='yes' has no effect: only KINETIC_DEBUG=1 turns it on",
        "KINETIC_UPGRADE='true' has no effect: only KINETIC_UPGRADE=1 turns it on",
    ]

    assert all(note in kinetic("config").stderr for note in notes)
    assert json.loads(kinetic("config", "--json").stdout)["notes"] == notes


@pytest.mark.parametrize("words", [["config"], ["dashboard", "--no-open"]])
def test_a_time_of_hanging_that_is_not_a_duration_is_an_error(words, kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_STALL_AFTER", "soon")

    done = kinetic(*words)

    assert done.exit_code == 2
    assert "KINETIC_STALL_AFTER='soon' is not a valid duration" in done.stderr


def test_a_level_of_messages_that_is_not_known_is_an_error(kinetic, folder, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "foo")

    done = kinetic("config")

    assert (done.exit_code, "KINETIC_LOG_LEVEL='foo' is not a level of messages" in done.stderr) == (2, True)


def test_a_home_that_is_a_file_is_named_with_its_variable(kinetic, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "file"))

    done = kinetic("jobs", "list")

    assert f"the kinetic home {tmp_path / 'file'} is not a folder" in done.stderr
    assert done.stderr.splitlines()[-1] == "next:  set KINETIC_HOME to a folder that you can write to"
