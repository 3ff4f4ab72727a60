"""`kinetic up` and `kinetic down` as commands: what they print, ask and exit with, and where Ctrl-C leaves things."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.google_cloud import GoogleCloud
from waiting import until

COMMAND = [sys.executable, "-m", "kinetic"]


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        yield cloud
    assert cloud.wrong == []


@pytest.fixture
def environ(cloud: GoogleCloud, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that finds the fake, and has a home of its own."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_", "CLOUDSDK_"))
    }
    return kept | cloud.environ(tmp_path) | {"KINETIC_HOME": str(tmp_path / "home"), "COLUMNS": "200"}


def run(environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_terminal_and_yes_the_plan_is_printed_and_nothing_is_written(cloud, environ) -> None:
    done = run(environ, "up", "--cluster", "team", "-a", "v5litepod-4", "--timeout", "30m")

    assert done.returncode == 2, done.stderr
    assert "  + network kn-team" in done.stdout
    assert "about $4.80 per hour" in done.stdout
    assert "pass --yes to confirm" in done.stderr
    assert "next:  kinetic up --cluster team -a v5litepod-4 --timeout 30m --yes\n" in done.stderr
    assert cloud.writes == []


def test_a_dry_run_writes_nothing_and_is_one_document_as_json(cloud, environ) -> None:
    cloud.read_only = True

    done = run(environ, "up", "--cluster", "team", "--dry-run", "--json", "--registry", "--limit", "tpu=16")

    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert {each["action"] for each in page["steps"]} == {"make", "keep"}
    assert page["location"] == "us-central1"
    assert (
        run(environ, "down", "--cluster", "team", "--dry-run").stdout.splitlines()[-1] == "there is nothing to remove"
    )


def test_the_project_is_that_of_the_login(cloud, environ) -> None:
    done = run(environ, "up", "--dry-run")

    assert f"of the project {cloud.project}" in done.stdout


def test_missing_rights_are_named_with_their_roles_and_exit_1(cloud, environ) -> None:
    cloud.denied = {"compute.networks.create", "compute.networks.get"}

    done = run(environ, "up", "--cluster", "team", "--yes")

    assert done.returncode == 1
    assert "roles/compute.networkAdmin for compute.networks.create, compute.networks.get" in done.stderr
    assert cloud.writes == []


@pytest.mark.parametrize(
    "words",
    [("--cluster", "x" * 21), ("--limit", "tpu=many"), ("-a", "v5litepod-3"), ("--project", "471100000001")],
)
def test_what_was_mistyped_is_a_usage_error_before_anything_is_asked(words, cloud, environ) -> None:
    done = run(environ, "up", *words)

    assert done.returncode == 2
    assert cloud.calls == []


def test_ctrl_c_says_that_google_continues_and_another_down_removes_it(cloud, environ) -> None:
    cloud.pending = 0  # all others end at once
    cloud.fates["CREATE_CLUSTER"] = "never"
    process = subprocess.Popen(
        [*COMMAND, "up", "--cluster", "team", "--yes"], env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: ("us-central1", "team") in cloud.container.clusters)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130, told
    assert "Google continues with what it began" in told
    assert "$0.10 per hour" in told
    undo = f"kinetic down --project {cloud.project} --cluster team removes it"
    assert f"next:  kinetic up --cluster team --yes continues, and {undo}" in told
    cloud.fates.clear()
    done = run(environ, "down", "--cluster", "team", "--yes", "--delete-data")
    assert done.returncode == 0, done.stderr
    assert cloud.container.clusters == {}
    assert cloud.compute.things == {}


def test_down_exits_1_and_names_what_is_left(cloud, environ) -> None:
    cloud.storage.add(f"{cloud.project}-kn-team-jobs", labels={"managed-by": "kinetic", "kinetic-cluster": "team"})
    cloud.denied = {"storage.buckets.delete"}

    done = run(environ, "down", "--cluster", "team", "--yes", "--delete-data")

    assert done.returncode == 1
    assert f"why:   bucket gs://{cloud.project}-kn-team-jobs" in done.stderr


@pytest.mark.parametrize(("typed", "code", "left"), [("team", 0, 0), ("yes", 2, 1)])
def test_at_a_terminal_the_name_is_typed_before_data_goes(typed, code, left, cloud, environ) -> None:
    cloud.storage.add(f"{cloud.project}-kn-team-jobs", labels={"managed-by": "kinetic", "kinetic-cluster": "team"})
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "down", "--cluster", "team", "--delete-data"],
        env=environ,
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    shown = b""
    while b"Type the name" not in shown:
        shown += os.read(ours, 1000)
    os.write(ours, f"{typed}\n".encode())
    try:
        while os.read(ours, 1000):
            pass
    except OSError:  # the process has closed its end
        pass
    assert process.wait(timeout=30) == code
    os.close(ours)

    assert len(cloud.storage.buckets) == left


def test_commands_for_an_administrator_are_printed_where_this_account_has_no_rights(cloud, environ) -> None:
    cloud.denied = {"compute.networks.create", "compute.networks.get"}
    cloud.read_only = True

    done = run(environ, "up", "--cluster", "team", "--dry-run", "--as", "gcloud")

    assert done.returncode == 0, done.stderr
    assert "gcloud compute networks create kn-team" in done.stdout
    assert "what exists is not known" in done.stderr
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)  # a shell understands it


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--as", "gcloud"), "--as gcloud needs --dry-run"),
        (("--create-project",), "--create-project needs --billing-account"),
        (("--create-project", "--project", "No"), "'No' cannot be the id of a project"),
        (("--parent", "folders/1"), "--parent is not used"),
    ],
)
def test_options_that_need_others_say_so_before_anything_is_asked(words, what, cloud, environ) -> None:
    done = run(environ, "up", *words)

    assert done.returncode == 2
    assert what in done.stderr
    assert "next:" in done.stderr
    assert cloud.calls == []


def test_a_project_is_made_by_a_command_after_its_plan(cloud, environ) -> None:
    cloud.exists = False
    words = ("--create-project", "--project", cloud.project, "--billing-account", "012345-567890-abcdef")

    done = run(environ, "up", "--cluster", "team", *words)

    assert done.returncode == 2, done.stderr
    assert f"  + project {cloud.project}" in done.stdout
    assert "  + billing account 012345-567890-ABCDEF" in done.stdout
    assert cloud.writes == []
