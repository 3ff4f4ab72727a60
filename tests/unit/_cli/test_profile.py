"""`kinetic profile`: saved places are made, chosen, shown and removed, with and without somebody to ask."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._config import cluster, profiles

SOURCE = Path(__file__).parents[3] / "src"
PLACE = ("--project", "acme", "--zone", "us-west4-a", "--cluster", "main")


@pytest.fixture
def saved(home):
    return lambda: profiles.load(os.environ)


def answer(*words: str, typed: str) -> tuple[int, str, str]:
    """Run a command in a terminal, in which somebody types; return exit code, standard output and what was shown."""
    ours, theirs = pty.openpty()
    main = "from kinetic._cli.main import main; main()"
    command = [sys.executable, "-c", main, *words]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "dumb"}
    running = subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env=environ, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    out = running.communicate(timeout=15)[0].decode()
    shown = b""
    try:
        while block := os.read(ours, 65536):
            shown += block
    except OSError:  # Linux says so when the other end is closed
        pass
    finally:
        os.close(ours)
    return running.returncode, out, shown.decode().replace("\r\n", "\n")


# Making one.


def test_a_profile_is_saved_and_the_first_one_is_the_current_one(kinetic, saved) -> None:
    first = kinetic("profile", "create", "team", *PLACE)
    second = kinetic("profile", "create", "solo", *PLACE)

    assert (first.exit_code, first.stdout, second.exit_code) == (0, "", 0)
    assert "now the current profile" in first.stderr
    assert "kinetic profile use solo" in second.stderr
    assert saved().current == "team"
    assert saved().saved["team"] == profiles.Profile("team", "acme", "us-west4-a", "main")


def test_a_profile_holds_a_store_a_context_a_backend_and_job_options(kinetic, saved) -> None:
    more = ("--namespace", "ml", "--backend", "pathways", "--store", "gs://bucket", "--context", "c")
    chosen = ("--option", "accelerator=gpu-l4", "--option", "deadline=3600", "--option", "spot=true")

    assert kinetic("profile", "create", "team", *PLACE, *more, *chosen).exit_code == 0

    assert saved().saved["team"] == profiles.Profile(
        *("team", "acme", "us-west4-a", "main", "ml", "pathways", "gs://bucket", "c"),
        options={"accelerator": "gpu-l4", "deadline": 3600, "spot": True},
    )


def test_a_profile_holds_what_holds_for_all_jobs_of_a_cluster(kinetic, saved) -> None:
    names = ("--queue", "gold", "--service-account", "runner", "--priority-class", "high", "--store-secret", "store")
    names += ("--image-repo", "h.example/team/jobs", "--cpu-disk", "20Gi")
    more = ("--pull-secret", "mine", "--pull-secret", "theirs", "--node-selector", "pool=gpus,zone=a")
    more += ("--tolerations", "a=b", "--labels", "team=x", "--annotations", "a/b=c", "--runtime-class", "nvidia")
    more += ("--config-maps", "proxy,pip")
    more += ("--volume-claims", "/data=sets:ro", "--gpu-resource", "a.com/b", "--scheduler", "volcano")
    numbers = ("--ttl-hours", "0.5", "--most-attempts", "4")

    done = kinetic("profile", "create", "team", *PLACE, *names, *more, *numbers)

    assert done.exit_code == 0, done.stderr
    assert cluster.read_settings(saved().saved["team"], {}) == cluster.ClusterSettings(
        service_account="runner",
        queue="gold",
        priority_class="high",
        pull_secrets=("mine", "theirs"),
        image_repo="h.example/team/jobs",
        store_secret="store",
        node_selector={"pool": "gpus", "zone": "a"},
        tolerations=({"key": "a", "operator": "Equal", "value": "b"},),
        labels={"team": "x"},
        annotations={"a/b": "c"},
        config_maps=("proxy", "pip"),
        volume_claims=(cluster.VolumeClaim("/data", "sets", read_only=True),),
        gpu_resource="a.com/b",
        scheduler="volcano",
        runtime_class="nvidia",
        cpu_disk=20 << 30,
        ttl_seconds=1800,
        most_attempts=4,
    )
    rows = [line.split() for line in kinetic("profile", "show").stdout.splitlines()]
    assert ["queue", "gold"] in rows
    assert ["pull_secrets", "mine,theirs"] in rows
    assert json.loads(kinetic("profile", "show", "--json").stdout)["profile"]["ttl_hours"] == "0.5"


@pytest.mark.parametrize(
    ("flag", "value", "better"),
    [
        ("--ttl-hours", "soon", "write --ttl-hours 24, for example"),
        ("--most-attempts", "0", "write --most-attempts 10, for example"),
        ("--pull-secret", "My Secret", "write --pull-secret registry,registry2, for example"),
        ("--node-selector", "pool", "write --node-selector pool=gpus,zone=a, for example"),
        ("--labels", "app=x", "write --labels team=vision,cost-center=42, for example"),
    ],
)
def test_what_no_cluster_would_take_is_refused_by_the_name_of_its_flag(kinetic, saved, flag, value, better) -> None:
    told = kinetic("profile", "create", "team", *PLACE, flag, value)

    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith(f"error: {flag} {value!r} is not a valid ")
    assert better in told.stderr
    assert saved().saved == {}


def test_the_environment_fills_in_what_is_not_given(kinetic, saved, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROJECT", "acme")
    monkeypatch.setenv("KINETIC_NAMESPACE", "ml")

    assert kinetic("profile", "create", "team", "--zone", "z", "--cluster", "c").exit_code == 0

    assert saved().saved["team"] == profiles.Profile("team", "acme", "z", "c", "ml")


def test_a_profile_for_this_machine_needs_nothing_else(kinetic, saved, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROJECT", "acme")

    assert kinetic("profile", "create", "here", "--backend", "local", "--option", "accelerator=cpu").exit_code == 0

    assert saved().saved["here"] == profiles.Profile("here", backend="local", options={"accelerator": "cpu"})


def test_a_context_needs_a_store_or_a_project(kinetic, saved) -> None:
    told = kinetic("profile", "create", "kind", "--context", "kind-kind")

    assert told.exit_code == 2
    assert "--store is missing" in told.stderr
    assert kinetic("profile", "create", "kind", "--context", "kind-kind", "--store", "s3://bucket").exit_code == 0
    assert saved().saved["kind"].context == "kind-kind"


def test_without_a_terminal_the_missing_flags_are_named(kinetic, saved) -> None:
    told = kinetic("profile", "create", "team", "--zone", "z")

    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.splitlines() == [
        "error: --project and --cluster are missing [option]",
        "why:   not a terminal: pass the options",
        (
            "next:  kinetic profile create team --project YOUR-PROJECT --zone z --cluster kinetic-cluster"
            "     or, for this machine, --backend local"
        ),
    ]
    assert saved().saved == {}


def test_without_a_terminal_a_missing_name_is_named(kinetic) -> None:
    assert kinetic("profile", "create", *PLACE).stderr.startswith("error: NAME is missing")
    alone = kinetic("profile", "create", "--project", "a b").stderr
    assert alone.startswith("error: NAME, --zone and --cluster are missing")
    assert "create NAME --project 'a b' --zone" in alone


def test_in_a_terminal_what_is_missing_is_asked_for(home, saved) -> None:
    code, out, shown = answer("profile", "create", typed="team\nacme\n\nmain\n\n")

    assert (code, out) == (0, "")
    assert "Zone of the cluster [us-central1-a]: " in shown
    assert saved().saved["team"] == profiles.Profile("team", "acme", "us-central1-a", "main", "default")


def test_whoever_ends_the_input_while_asked_leaves_nothing(home, saved) -> None:
    code, _, shown = answer("profile", "create", "team", typed="acme\n\x04")

    assert code == 130
    assert "unexpected" not in shown
    assert saved().saved == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("a b", *PLACE), "cannot be the name of a profile"),
        (("local", *PLACE), "built in"),
        (("team", "--project", "a/b", "--zone", "z", "--cluster", "c"), "cannot be the name of a project"),
        (("team", *PLACE, "--backend", "gk"), "gk"),
        (("team", *PLACE, "--option", "accelerator"), "KEY=VALUE"),
        (("team", *PLACE, "--option", "acelerator=cpu"), "write accelerator="),
        (("team", *PLACE, "--option", "accelerator=gpu-l5"), "gpu-l4"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_saved(words, told, kinetic, saved) -> None:
    done = kinetic("profile", "create", *words)

    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr
    assert saved().saved == {}


def test_a_name_that_is_taken_needs_force(kinetic, saved) -> None:
    kinetic("profile", "create", "team", *PLACE)

    refused = kinetic("profile", "create", "team", "--backend", "local")
    forced = kinetic("profile", "create", "team", "--backend", "local", "--force")

    assert (refused.exit_code, forced.exit_code) == (2, 0)
    assert "--force" in refused.stderr
    assert saved().saved["team"] == profiles.Profile("team", backend="local")


# Listing and showing.


def test_the_list_has_a_star_at_the_one_that_holds(kinetic) -> None:
    kinetic("profile", "create", "team", *PLACE, "--option", "spot=true")

    lines = kinetic("profile", "ls").stdout.splitlines()

    assert lines[0].split() == ["NAME", "BACKEND", "PROJECT", "ZONE", "CLUSTER", "NAMESPACE", "OPTIONS"]
    assert lines[1].split() == ["local", "local"]
    assert lines[2].split() == ["*", "team", "acme", "us-west4-a", "main", "spot=true"]


def test_the_list_says_when_the_environment_hides_the_current_one(kinetic, monkeypatch) -> None:
    kinetic("profile", "create", "team", *PLACE)
    monkeypatch.setenv("KINETIC_PROFILE", "local")

    told = kinetic("profile", "list")

    assert "*  local" in told.stdout
    assert told.stderr == "KINETIC_PROFILE=local is active instead of the current profile team\n"


def test_the_list_can_be_seen_while_the_environment_names_a_profile_that_is_gone(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_PROFILE", "gone")

    told = kinetic("profile", "list")

    assert told.exit_code == 0
    assert "*" not in told.stdout
    assert "KINETIC_PROFILE=gone is not one of them" in told.stderr


def test_the_list_as_json_is_a_document(kinetic, home) -> None:
    kinetic("profile", "create", "team", *PLACE, "--option", "deadline=60")

    page = json.loads(kinetic("profile", "ls", "--json").stdout)

    assert (page["schema_version"], page["current"], page["in_force"]) == (1, "team", "team")
    assert page["file"] == str(home / "profiles.json")
    assert [each["name"] for each in page["profiles"]] == ["local", "team"]
    assert page["profiles"][1] == {
        "name": "team",
        "is_current": True,
        "is_in_force": True,
        "is_built_in": False,
        "project": "acme",
        "zone": "us-west4-a",
        "cluster": "main",
        "namespace": None,
        "backend": None,
        "context": None,
        "store": None,
        "service_account": None,
        "queue": None,
        "priority_class": None,
        "pull_secrets": None,
        "image_repo": None,
        "store_secret": None,
        "node_selector": None,
        "tolerations": None,
        "labels": None,
        "annotations": None,
        "config_maps": None,
        "volume_claims": None,
        "gpu_resource": None,
        "scheduler": None,
        "runtime_class": None,
        "cpu_disk": None,
        "ttl_hours": None,
        "most_attempts": None,
        "options": {"deadline": 60},
    }


def test_show_shows_the_one_that_holds_or_the_one_that_is_named(kinetic) -> None:
    kinetic("profile", "create", "team", *PLACE, "--option", "spot=true")

    assert kinetic("profile", "show").stdout.splitlines()[1].split() == ["name", "team"]
    assert ["option", "spot", "true"] in [
        line.split() for line in kinetic("profile", "show", "team").stdout.splitlines()
    ]
    assert kinetic("profile", "show", "local").stdout.splitlines()[2].split() == ["backend", "local"]
    assert json.loads(kinetic("profile", "show", "local", "--json").stdout)["profile"]["is_built_in"] is True


def test_show_without_any_is_an_error_with_a_way_out(kinetic) -> None:
    told = kinetic("profile", "show")

    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.startswith("error: no profile is active")
    assert "kinetic profile use local" in told.stderr


def test_a_profile_keeps_the_storage_account_that_only_this_shell_names(kinetic, saved, monkeypatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "labdata")
    kinetic("profile", "create", "lab", "--context", "c", "--store", "az://jobs/team/")

    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT")
    assert "az://jobs@labdata/team" in kinetic("profile", "show", "lab").stdout
    refused = kinetic("profile", "create", "other", "--context", "c", "--store", "az://jobs/team")
    assert "az://jobs@your-account/team, or export AZURE_STORAGE_ACCOUNT=your-account" in refused.stderr


def test_a_password_in_the_address_of_a_store_is_neither_saved_nor_shown(kinetic, saved) -> None:
    refused = kinetic("profile", "create", "team", *PLACE, "--store", "s3://me:hunter2@bucket/x")

    assert refused.exit_code == 2
    assert "hunter2" not in refused.output
    assert saved().saved == {}


def test_a_password_that_was_written_into_the_file_is_not_shown(kinetic, home) -> None:
    kinetic("profile", "create", "team", *PLACE, "--store", "s3://bucket/x")
    file = home / "profiles.json"
    file.write_text(file.read_text().replace("s3://bucket/x", "s3://me:hunter2@bucket/x?token=hunter2"))

    shown = [kinetic("profile", "show"), kinetic("profile", "show", "--json"), kinetic("profile", "ls", "--json")]

    assert not any("hunter2" in told.output for told in shown)
    assert "s3://***@bucket/x?***" in shown[0].stdout


# Choosing and removing.


def test_use_makes_one_current_and_prints_it(kinetic, saved) -> None:
    kinetic("profile", "create", "team", *PLACE)

    told = kinetic("profile", "use", "local")

    assert told.stdout.splitlines()[1].split() == ["name", "local"]
    assert saved().current == "local"


def test_use_and_unset_say_when_the_environment_masks_them(kinetic, monkeypatch) -> None:
    kinetic("profile", "create", "team", *PLACE)
    monkeypatch.setenv("KINETIC_PROFILE", "team")

    assert "KINETIC_PROFILE=team is still set" in kinetic("profile", "use", "local").stderr
    assert "KINETIC_PROFILE" not in kinetic("profile", "use", "team").stderr
    unset = kinetic("profile", "unset")
    assert "it was team" in unset.stderr
    assert "unset KINETIC_PROFILE" in unset.stderr


@pytest.mark.parametrize("verb", ["use", "show", "rm"])
def test_an_unknown_name_is_an_error_that_lists_those_there_are(verb, kinetic) -> None:
    kinetic("profile", "create", "team", *PLACE)

    told = kinetic("profile", verb, "taem")

    assert told.exit_code == 1
    assert told.stderr.startswith("error: no profile is named 'taem' [settings]\nwhy:   profiles in ")
    assert "team; built in: local" in told.stderr


def test_without_a_terminal_nothing_is_removed_unless_that_is_said(kinetic, saved) -> None:
    kinetic("profile", "create", "team", *PLACE)

    refused = kinetic("profile", "rm", "team")
    assert refused.exit_code == 2
    assert refused.stderr.endswith("next:  kinetic profile rm team --yes\n")
    assert "team" in saved().saved

    done = kinetic("profile", "rm", "team", "-y")
    assert done.exit_code == 0
    assert "there is no current profile now" in done.stderr
    assert saved().saved == {}


@pytest.mark.parametrize(("typed", "left"), [("y\n", []), ("n\n", ["team"]), ("\n", ["team"])])
def test_in_a_terminal_a_removal_is_asked_about(typed, left, kinetic, saved) -> None:
    kinetic("profile", "create", "team", *PLACE)

    code, _, shown = answer("profile", "rm", "team", typed=typed)

    assert code == 0
    assert "Remove the profile team? [y/N]: " in shown
    assert [*saved().saved] == left


def test_the_built_in_profile_cannot_be_removed(kinetic) -> None:
    told = kinetic("profile", "rm", "local", "-y")

    assert told.exit_code == 2
    assert "built in" in told.stderr


def test_the_name_of_the_built_in_profile_is_refused_before_anything_is_asked(kinetic) -> None:
    told = kinetic("profile", "create", "local")

    assert (told.exit_code, "the profile 'local' is built in" in told.stderr) == (2, True)


def test_advice_keeps_the_profile_that_was_typed(kinetic, tmp_path) -> None:
    place = ("--backend", "gke", "--context", "away", "--store", f"file://{tmp_path}/bucket")
    kinetic("profile", "create", "away", *place)
    kinetic("profile", "unset")

    told = {name: kinetic("--profile", name, "jobs", "status", "nosuch").stderr for name in ("away", "local")}

    assert told["away"].endswith("next:  kinetic --profile away jobs list --all\n")
    assert told["local"].endswith("next:  kinetic jobs list --all\n")
