"""What is said where jobs die with the session that submitted them, and the silence everywhere else."""

from __future__ import annotations

import os

import pytest

from kinetic._backends.local.limits import ends_with, free_bytes, session

LOGGED_IN = {"XDG_SESSION_ID": "3", "USER": "ada"}


def logind(root, text, *, file="etc/systemd/logind.conf"):
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_ordinary_shell_is_told_nothing(tmp_path):
    assert ends_with({}, tmp_path) == ""
    assert ends_with({"CI": "true", "GITHUB_ACTIONS": "true"}, tmp_path) == ""
    assert ends_with(LOGGED_IN, tmp_path) == ""


def test_inside_a_slurm_job_the_job_is_named(tmp_path):
    inside = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "node07"}

    assert ends_with(inside, tmp_path) == "with Slurm job 4711"


def test_inside_a_slurm_step_the_step_is_named(tmp_path):
    inside = {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "node07", "SLURM_STEP_ID": "0"}

    assert ends_with(inside, tmp_path) == "with step 0 of Slurm job 4711"


def test_the_shell_that_salloc_leaves_on_the_login_node_outlives_its_allocation(tmp_path):
    assert ends_with({"SLURM_JOB_ID": "4711"}, tmp_path) == ""


def test_what_a_systemd_service_has_started_is_told_that_jobs_end_with_it(tmp_path):
    started = {"SYSTEMD_EXEC_PID": str(os.getpid()), "INVOCATION_ID": "0123456789abcdef"}
    by_a_shell = {**started, "SYSTEMD_EXEC_PID": str(os.getppid())}
    by_another = {**started, "SYSTEMD_EXEC_PID": "1"}  # as a terminal whose server is a service: its shells outlive it

    assert ends_with(started, tmp_path) == ends_with(by_a_shell, tmp_path) == "with this systemd service"
    assert ends_with(by_another, tmp_path) == ""
    assert session(started) == session(by_a_shell) != session({**started, "INVOCATION_ID": "another"})
    assert session(by_another) == session({})


@pytest.mark.parametrize("file", [".dockerenv", "run/.containerenv"])
def test_inside_a_container_its_stop_is_named(tmp_path, file):
    (tmp_path / "run").mkdir()
    (tmp_path / file).touch()

    assert ends_with({}, tmp_path) == "when this container stops"


def test_inside_a_pod_the_pod_is_named_whatever_the_container_says(tmp_path):
    (tmp_path / ".dockerenv").touch()

    assert ends_with({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == "with this pod"


def test_slurm_inside_a_container_is_what_ends_first(tmp_path):
    (tmp_path / ".dockerenv").touch()

    assert ends_with({"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n"}, tmp_path) == "with Slurm job 1"


@pytest.mark.parametrize("word", ["yes", "true", "1", "on", "Yes"])
def test_a_session_that_systemd_clears_at_log_out_is_told_so(tmp_path, word):
    logind(tmp_path, f"[Login]\n#KillUserProcesses=no\nKillUserProcesses={word}\n")

    assert ends_with(LOGGED_IN, tmp_path) == "when you log out (KillUserProcesses=yes)"


@pytest.mark.parametrize(
    "text",
    [
        "#KillUserProcesses=yes",
        "KillUserProcesses=no",
        "KillUserProcesses=yes\nKillUserProcesses=no",
        "KillUserProcesses=yes\nKillOnlyUsers=guest",
        "KillUserProcesses=yes\nKillExcludeUsers=root ada",
    ],
)
def test_nothing_is_said_of_systemd_unless_it_is_ordered_for_everybody(tmp_path, text):
    logind(tmp_path, f"[Login]\n{text}\n")

    assert ends_with(LOGGED_IN, tmp_path) == ""


@pytest.mark.parametrize("environ", [{"USER": "ada"}, {**LOGGED_IN, "USER": "root"}], ids=["no session", "root"])
def test_systemd_spares_root_and_whoever_has_no_session(tmp_path, environ):
    logind(tmp_path, "[Login]\nKillUserProcesses=yes\n")

    assert ends_with(environ, tmp_path) == ""


def test_a_drop_in_of_systemd_wins_and_one_of_the_administrator_hides_that_of_the_vendor(tmp_path):
    logind(tmp_path, "[Login]\nKillUserProcesses=no\n")
    logind(tmp_path, "[Login]\nKillUserProcesses=yes\n", file="usr/lib/systemd/logind.conf.d/10-tidy.conf")
    assert ends_with(LOGGED_IN, tmp_path) != ""

    logind(tmp_path, "", file="etc/systemd/logind.conf.d/10-tidy.conf")
    assert ends_with(LOGGED_IN, tmp_path) == ""


@pytest.mark.parametrize("old", [True, False])
def test_free_memory_is_what_the_machine_and_all_control_groups_above_leave(tmp_path, old):
    top = tmp_path / "sys/fs/cgroup" / ("memory" if old else "")
    names = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file") if old else ("max", "current", "inactive_file")

    def group(path, most, used, files):
        (top / path).mkdir(parents=True, exist_ok=True)
        texts = {
            f"memory.{names[0]}": most,
            f"memory.{names[1]}": used,
            "memory.stat": f"cache 1\n{names[2]} {files}\n",
        }
        for name, text in texts.items():
            (top / path / name).write_text(f"{text}\n")

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"9:cpu:/x\n{'4:memory' if old else '0:'}:/slurm/job_1\n")
    unlimited = 2**63 - 4096 if old else "max"
    group("slurm/job_1", unlimited, 10, 0)

    assert free_bytes(tmp_path) == 8192  # that of the machine
    group("slurm", 6000, 5000, 500)
    assert free_bytes(tmp_path) == 1500  # the files that it keeps in memory can go
    group("", 4000, 5000, 0)
    assert free_bytes(tmp_path) == 0
    (tmp_path / "proc/self/cgroup").write_text("")
    assert free_bytes(tmp_path) == 8192
