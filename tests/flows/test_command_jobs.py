"""Commands as jobs, in real processes: `kinetic run -- COMMAND` and `kinetic.run_command([...])`."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flows import conftest
from waiting import until

import kinetic
from kinetic._dashboard import job_pages
from kinetic._jobs import locate
from kinetic.errors import CommandError, JobCancelledError, JobError, OptionError, OptionTypeError

TRAIN = """
    import json, os, pathlib, sys
    import helper

    print("training with", sys.argv[1:], flush=True)
    out = pathlib.Path(os.environ["KINETIC_OUTPUT_DIR"])
    (out / "seen.json").write_text(json.dumps({
        "args": sys.argv[1:],
        "folder": os.path.basename(os.getcwd()),
        "python": sys.executable,
        "helper": helper.NAME,
        "secret": os.environ.get("SECRET"),
        "stdin": sys.stdin.read(),
        "digits": sorted(os.listdir("data/digits")) if os.path.isdir("data/digits") else None,
        "kinetic": __import__("kinetic").output_dir(),
    }))
"""
# Says when it runs, and what it was asked; ends when it was told to.
STAY = """
    import os, signal, sys, time

    def stop(number, frame):
        print("asked to stop", flush=True)
        time.sleep(0.3)
        print("saved", flush=True)
        sys.exit(int(sys.argv[2]))

    signal.signal(signal.SIGTERM, stop)
    open(sys.argv[1], "w").write(str(os.getpid()))
    print("here", flush=True)
    time.sleep(100)
"""


@pytest.fixture
def folder(project, monkeypatch) -> Path:
    """The folder of a project, which is the current one."""
    project.write("train.py", TRAIN)
    project.write("stay.py", STAY)
    project.write("helper.py", "NAME = 'from the project'")
    project.write("pkg/__init__.py", "")
    project.write("pkg/module.py", "import sys; print('module', sys.argv[1:], __name__)")
    project.write("script.sh", '#!/bin/sh\necho "script <$1> <$2>"\n').chmod(0o755)
    monkeypatch.chdir(project.root)
    return project.root


@pytest.fixture
def run(folder) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the kinetic command in the project."""

    def run(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kinetic", *words],
            capture_output=True,
            text=True,
            cwd=folder,
            env=conftest.environment(),
            timeout=60,
            check=False,
            **more,  # type: ignore[call-overload] # words of subprocess
        )

    return run


@pytest.fixture
def started(folder) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts the kinetic command and does not wait for it."""
    found: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kinetic", *words]
        pipe = subprocess.PIPE
        found.append(
            subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=conftest.environment())
        )
        return found[-1]

    yield start
    for process in found:
        process.kill()
        process.communicate()


def number_in(file: Path, process: subprocess.Popen[str] | None = None) -> int:
    """Wait until a command has written its process number."""
    limit = time.monotonic() + 30
    while not file.exists() or not file.read_text():
        assert time.monotonic() < limit
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return int(file.read_text())


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_command_runs_in_the_sent_project_with_its_environment_data_and_outputs(run, folder, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.txt").write_text("1")

    done = run(
        *("run", "--env", "SECRET=s3cret-value", "--data", f"data/digits={tmp_path / 'set'}", "--name", "first"),
        *("--tag", "kind=test", "--", "python", "train.py", "--lr", "1e-3", "two words", "$HOME"),
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == "training with ['--lr', '1e-3', 'two words', '$HOME']\n"
    [job] = kinetic.list_jobs()
    seen = json.loads(Path(job.output_dir, "seen.json").read_text())
    assert seen["args"] == ["--lr", "1e-3", "two words", "$HOME"]
    assert seen["folder"].startswith("work-")
    assert (seen["python"], seen["helper"], seen["secret"]) == (sys.executable, "from the project", "s3cret-value")
    assert (seen["stdin"], seen["digits"], seen["kinetic"]) == ("", ["one.txt"], job.output_dir)
    assert (job.name, job.tags, job.accelerator) == ("first", {"kind": "test"}, "cpu")
    assert job.command == ["python", "train.py", "--lr", "1e-3", "two words", "$HOME"]
    assert job.job_id.startswith("cpu-first-")
    assert job.result() == 0
    store = Path(os.environ["KINETIC_HOME"], "store")
    assert [file.name for file in store.rglob("*") if b"s3cret-value" in _bytes(file)] == ["seen.json"]


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def test_modules_and_scripts_need_no_dashes(run):
    module = run("run", "-m", "pkg.module", "--lr", "1")
    dashes = run("run", "-m", "pkg.module", "--", "--lr", "1")
    script = run("run", "./script.sh", "a b", "--flag")

    assert module.stdout == dashes.stdout == "module ['--lr', '1'] __main__\n", module.stderr
    assert script.stdout == "script <a b> <--flag>\n", script.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sh", "-c", "echo no; exit 7"), 7, "ended with exit code 7 [command-failed]"),
        (("sh", "-c", "kill -SEGV $$"), 139, "was ended by SIGSEGV [command-failed]"),
        (("sh", "-c", "kill -9 $$"), 137, "SIGKILL"),
    ],
)
def test_the_exit_code_of_the_command_is_that_of_kinetic_run(run, words, code, said):
    done = run("run", "--", *words)

    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_exit_code_is_the_commands_where_the_terminal_of_kinetic_run_is_gone(folder, tmp_path):
    leader, follower = pty.openpty()
    command = ["sh", "-c", "while [ ! -e $0 ]; do sleep 0.05; done; echo more; exit 7", str(tmp_path / "gone")]
    client = subprocess.Popen(
        [sys.executable, "-m", "kinetic", "run", "--", *command],
        **dict.fromkeys(("stdin", "stdout", "stderr"), follower),
        cwd=folder,
        env=conftest.environment(),
    )
    os.close(follower)
    shown = b""
    while b"follow the job" not in shown:
        shown += os.read(leader, 4096)

    os.close(leader)
    (tmp_path / "gone").touch()

    assert client.wait(60) == 7


def test_the_json_of_a_failed_command_has_its_exit_code(run):
    done = run("run", "--json", "--", "sh", "-c", "echo to the log; exit 3")

    page = json.loads(done.stdout)
    assert (done.returncode, page["exit_code"], page["status"]) == (3, 3, "FAILED")
    assert "to the log" in done.stderr


@pytest.mark.parametrize(
    ("words", "said", "advice"),
    [
        (("--", "nosuchprogram"), "there is no program nosuchprogram", "correct its name"),
        (("--", "python", "tain.py"), "there is no file tain.py", "write train.py"),
        (("--", "./helper.py"), "./helper.py is not executable", "kinetic run -- python ./helper.py"),
        (("--", "script.sh", "x"), "there is no program script.sh", "kinetic run -- ./script.sh x"),
        (("--", "ls | wc -l"), "there is no program ls | wc -l", "kinetic run -- sh -c 'ls | wc -l'"),
        (("--", "python train.py"), "there is no program python train.py", "kinetic run -- python train.py"),
        (("script.sh", "x"), "script.sh is not a Python file", "kinetic run -- ./script.sh x"),
        (("python", "train.py"), "there is no file python", "kinetic run -- python train.py"),
        (("--data", "train.py=pkg", "--", "ls"), "data cannot appear at train.py", "another name"),
        (("--data", "pkg", "--", "ls"), "--data pkg is not NAME=PATH", "--data pkg=pkg"),
        (("--data", "d=pkg", "--data", "d=train.py", "--", "ls"), "--data d is given twice", "--data d2=train.py"),
        (("--sweep", "x=1", "train.py::main"), "--sweep is for commands", "kinetic run --sweep"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_submitted(run, words, said, advice):
    done = run("run", *words)

    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert advice in done.stderr
    assert kinetic.list_jobs() == []


@pytest.mark.parametrize("option", [{"data": ["a"]}, {"env": ["SECRET=1"]}], ids=str)
def test_data_and_variables_that_are_no_dict_are_refused(folder, home, option):
    with pytest.raises(OptionTypeError, match=f"{next(iter(option))}") as caught:
        kinetic.run_command(["true"], **option)

    assert "of type list" in caught.value.why
    assert "SECRET" not in str(caught.value)


def test_a_program_that_only_the_job_lacks_is_an_error_in_three_parts(folder, home):
    with pytest.raises(OptionError, match=r"there is no file \./gone\.sh"):
        kinetic.run_command(["./gone.sh"])
    (folder / "odd").write_text("no first line that names an interpreter\n")
    (folder / "odd").chmod(0o755)

    job = kinetic.run_command(["./odd"])

    with pytest.raises(CommandError, match=r"\./odd cannot be started") as caught:
        job.result()
    assert (caught.value.exit_code, caught.value.code) == (126, "no-program")
    assert caught.value.why
    assert "sh ./odd" in str(caught.value.next)


def test_a_failed_command_is_a_failed_job_and_is_tried_again(folder, home):
    counts = folder.parent / "counts"

    job = kinetic.run_command(["sh", "-c", f"echo x >> {counts}; echo try; exit $(wc -l < {counts})"], retries=2)

    with pytest.raises(CommandError, match="ended with exit code 3") as caught:
        job.result()
    assert caught.value.exit_code == 3
    assert "try" in str(caught.value)
    assert counts.read_text() == "x\n" * 3
    assert job.status() is kinetic.JobStatus.FAILED


def test_a_cancelled_command_may_save_its_work(folder, home, tmp_path):
    job = kinetic.run_command(["python", "stay.py", str(tmp_path / "pid"), "0"])
    pid = number_in(tmp_path / "pid")

    job.cancel()

    assert is_gone(pid)
    assert job.logs() == "here\nasked to stop\nsaved\n"
    with pytest.raises(JobCancelledError):
        job.result()


def test_a_child_of_the_commands_shell_may_save_its_work_as_well(folder, home, tmp_path):
    job = kinetic.run_command(["sh", "-c", f"{sys.executable} stay.py {tmp_path / 'pid'} 0; echo after"])
    pid = number_in(tmp_path / "pid")

    job.cancel()

    assert is_gone(pid)
    assert "saved" in job.logs()


def test_a_deadline_asks_the_command_first(folder, home, tmp_path):
    job = kinetic.run_command(["python", "stay.py", str(tmp_path / "pid"), "0"], deadline=2.0)

    with pytest.raises(JobError, match="ended at its deadline of 2 s") as caught:
        job.result()

    assert caught.value.code == "deadline"
    assert is_gone(number_in(tmp_path / "pid"))
    assert job.logs().startswith("here\nasked to stop\nsaved\n")


def test_a_command_that_ignores_its_deadline_is_killed(folder, home, tmp_path):
    script = f"trap '' TERM; echo $$ > {tmp_path / 'pid'}; while :; do sleep 0.1; done"

    job = kinetic.run_command(["sh", "-c", script], deadline=1.0)

    with pytest.raises(JobError, match="deadline"):
        job.result()
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_ctrl_c_detaches_and_the_command_keeps_running(started, tmp_path):
    client = started("run", "--", "python", "stay.py", str(tmp_path / "pid"), "0")
    pid = number_in(tmp_path / "pid", client)

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)

    assert client.returncode == 130
    assert "keeps running" in err
    assert "kinetic jobs cancel" in err
    assert not is_gone(pid)


def test_a_killed_client_changes_nothing(started, folder, tmp_path):
    client = started("run", "--", "sh", "-c", f"echo $$ > {tmp_path / 'pid'}; sleep 1; exit 5")
    number_in(tmp_path / "pid", client)

    client.kill()
    client.communicate()

    [job] = kinetic.list_jobs()
    with pytest.raises(CommandError) as caught:
        kinetic.attach(job.job_id).result()
    assert caught.value.exit_code == 5


def test_a_killed_supervisor_takes_the_command_along_and_the_job_is_closed(folder, home, tmp_path):
    job = kinetic.run_command(["sh", "-c", f"echo $$ > {tmp_path / 'pid'}; sleep 100"])
    pid = number_in(tmp_path / "pid")
    [supervisor] = [row.pid for row in locate.local().queue.supervisors() if row.pid]

    os.kill(supervisor, signal.SIGKILL)

    until(lambda: is_gone(pid))
    with pytest.raises(JobError, match="supervisor of this job was killed"):
        job.result()


def test_a_sweep_is_a_batch_of_the_products(run, folder):
    done = run(
        *("run", "--sweep", "lr=1e-2,1e-3", "--sweep", "seed=0..1", "--name", "grid"),
        *("--tag", "a=b", "--data", "d=pkg"),
        *("--", "sh", "-c", 'echo "$0 $@"; test "$0" != lr=1e-3 || exit 4', "lr={lr}"),
    )

    assert done.returncode == 125, done.stderr
    group = done.stdout.split(":")[0]
    assert "2 succeeded" in done.stdout
    rows = json.loads(run("batch", "status", group, "--json").stdout)
    expected = [f"{{'lr': '{lr}', 'seed': '{seed}'}}" for lr in ("1e-2", "1e-3") for seed in (0, 1)]
    assert [row["input"] for row in rows["jobs"]] == expected
    assert (rows["batch"]["name"], rows["batch"]["tags"], rows["batch"]["function"]) == ("grid", {"a": "b"}, "sh")
    assert run("batch", "logs", group, "0").stdout == "lr=1e-2 --seed 0\n"
    failed = rows["jobs"][3]["job_id"]
    assert "ended with exit code 4" in run("jobs", "explain", failed).stdout
    page = json.loads(run("jobs", "show", failed, "--json").stdout)["job"]
    assert page["command"][3:] == ["lr=1e-3", "--seed", "1"]
    assert job_pages.job_page(kinetic.attach(failed))["job"]["command"] == page["command"]


def test_a_dry_run_prints_the_commands_and_submits_nothing(run):
    done = run(
        *("run", "--dry-run", "--sweep", "lr=1e-2,1e-3", "--sweep", 'text=["a, b"]', "--sweep", "seed=0..4..2"),
        *("--", "python", "train.py", "rate={lr}", "{other}"),
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"python train.py rate={lr} '{{other}}' --text 'a, b' --seed {seed}"
        for lr in ("1e-2", "1e-3")
        for seed in (0, 2, 4)
    ]
    assert kinetic.list_jobs() == []


def test_lists_show_the_command_or_its_name(run, folder):
    run("run", "--", "sh", "-c", "exit 2")
    run("run", "--name", "mine", "--tag", "kind=x", "--", "echo", "hi")

    listed = run("jobs", "list").stdout
    shown = run("jobs", "show", "@last").stdout
    explained = run("jobs", "explain", "cpu-sh").stdout
    tagged = json.loads(run("jobs", "list", "--tag", "kind=x", "--json").stdout)

    assert "sh -c 'exit 2'" in listed
    assert "mine" in listed
    assert "echo hi" in shown
    assert "sh -c 'exit 2' ended with exit code 2" in explained
    assert [job["name"] for job in tagged["jobs"]] == ["mine"]


def test_a_slice_runs_the_command_on_every_host(folder, home):
    job = kinetic.run_command(
        ["sh", "-c", 'echo "$KINETIC_HOST_INDEX of $KINETIC_HOST_COUNT" > "$KINETIC_OUTPUT_DIR/$KINETIC_HOST_INDEX"'],
        accelerator="tpu-v5litepod-4x4",
    )

    assert job.result() == 0
    written = {file.name: file.read_text() for file in Path(str(job.output_dir)).iterdir() if file.is_file()}
    assert written == {str(host): f"{host} of 4\n" for host in range(4)}
