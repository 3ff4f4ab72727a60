"""Looking into a job that runs: the stacks of its threads, a command or a shell beside it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.terminal import Screen

from kinetic._wire.task import STACKS_SIGNAL

linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")

SCRIPT = """
    import ctypes, os, select, signal, struct, subprocess, sys, threading, time
    import kinetic

    kinetic_options = {"accelerator": sys.argv[2] if len(sys.argv) > 2 else "cpu"}

    @kinetic.run(**kinetic_options)
    def hangs_in_c(gate):
        heard, tell = os.pipe()
        poll, asked = ctypes.CDLL(None).poll, ctypes.create_string_buffer(struct.pack("ihh", heard, select.POLLIN, 0))
        helps = threading.Event()
        threading.Thread(target=helper_that_waits, args=(gate, tell, helps), name="helper", daemon=True).start()
        helps.wait()
        print("started", flush=True)
        return poll(asked, 1, -1)

    @kinetic.run(**kinetic_options)
    def waits(gate):
        print("started", flush=True)
        wait_for(gate)
        return "done"

    @kinetic.run(**kinetic_options)
    def reports(gate):
        print("started", flush=True)
        while not os.path.exists(gate):
            kinetic.progress(1, 2)
            time.sleep(0.01)

    @kinetic.run(**kinetic_options)
    def has_a_handler_of_its_own(gate):
        heard = []
        signal.signal(signal.SIGUSR2, lambda *_: heard.append(1))
        child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout
        print("started", flush=True)
        wait_for(gate)
        os.kill(os.getpid(), signal.SIGUSR2)
        masks = dict(line.split(":\\t") for line in child.splitlines() if line.startswith("Sig"))
        return {"heard": len(heard), **masks}

    @kinetic.run(**kinetic_options)
    def takes_the_signal_away(gate):
        for number in range(signal.SIGRTMIN, signal.SIGRTMAX):
            signal.signal(number, signal.SIG_DFL)
        print("started", flush=True)
        wait_for(gate)
        return "alive"

    @kinetic.run(**kinetic_options)
    def closes_what_it_does_not_know(gate):
        os.closerange(3, 100)
        files = [open(gate + f".{number}", "w") for number in range(30)]
        print("started", flush=True)
        wait_for(gate)
        for file in files:
            file.close()
        return sum(os.path.getsize(file.name) for file in files)

    def helper_that_waits(gate, tell, helps):
        helps.set()
        wait_for(gate)
        os.write(tell, b".")

    def wait_for(gate):
        while not os.path.exists(gate):
            time.sleep(0.01)

    print(globals()[sys.argv[1]].run_async(os.environ["GATE"]).job_id)
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for which jobs wait."""
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    return tmp_path / "gate"


@pytest.fixture
def running(project, kinetic, wait_until, gate) -> Callable[..., str]:
    """Return a function that submits a job and waits until its function runs."""

    def run(*words: str, script: str = SCRIPT) -> str:
        project.write("script.py", script)
        done = project.run("script.py", *words)
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.strip()
        wait_until(lambda: "started" in kinetic("jobs", "logs", job_id).out, "the job's first line", 30)
        return job_id

    return run


def result(kinetic, gate: Path, job_id: str) -> object:
    gate.touch()
    told = kinetic("jobs", "result", job_id, "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)["value"]


# --------------------------------------------------------------------------------------------------------------- stacks


def test_a_job_that_hangs_in_c_says_where_and_no_call_of_its_own_is_interrupted(running, kinetic, gate) -> None:
    job_id = running("hangs_in_c")

    told = kinetic("jobs", "stacks", job_id)

    assert (told.code, told.err) == (0, "")
    main, helper = told.out.split("\n\n")[:2]
    assert main.splitlines()[1].endswith("in hangs_in_c")
    assert "in helper_that_waits" in helper
    assert "kinetic/_runner" not in told.out
    assert result(kinetic, gate, job_id) == 1  # one descriptor is ready; after a signal, poll() returns -1


def test_stacks_name_the_files_of_the_project_where_the_user_has_them(running, project, kinetic, gate) -> None:
    module = project.write("loader.py", "def fetch(ready):\n    return ready()\n")
    script = SCRIPT.replace(
        "            time.sleep(0.01)", "            __import__('loader').fetch(lambda: time.sleep(0.01))"
    )
    job_id = running("waits", script=script)

    told = kinetic("jobs", "stacks", job_id)

    assert (told.code, told.err) == (0, "")
    assert f'File "{module}", line 2 in fetch' in told.out
    assert f'File "{project.root / "script.py"}", line ' in told.out
    assert "/work-0-0/" not in told.out
    assert result(kinetic, gate, job_id) == "done"


def test_stacks_name_no_folder_that_another_user_of_the_store_wrote_into_the_order(
    running, kinetic, gate, project, home
) -> None:
    project.write("loader.py", "def fetch(ready):\n    return ready()\n")
    script = SCRIPT.replace(
        "            time.sleep(0.01)", "            __import__('loader').fetch(lambda: time.sleep(0.01))"
    )
    job_id = running("waits", script=script)
    order = home / "store" / job_id / "order.json"
    changed = order.read_bytes().replace(str(project.root).encode(), b"/evil")
    order.unlink()
    order.write_bytes(changed)

    told = kinetic("jobs", "stacks", job_id)

    assert (told.code, told.err) == (0, "")
    assert b'"/evil"' in changed
    assert 'File "loader.py", line 2 in fetch' in told.out
    assert result(kinetic, gate, job_id) == "done"


def test_the_thread_that_writes_how_far_a_job_is_is_not_among_the_stacks(running, kinetic, gate) -> None:
    job_id = running("reports")

    told = [kinetic("jobs", "stacks", job_id).out for _ in range(3)]

    assert ["in reports" in text and text.count("Thread") == 1 for text in told] == [True, True, True]
    assert result(kinetic, gate, job_id) is None


def test_stacks_are_asked_for_again_and_again_and_the_log_knows_nothing_of_it(running, kinetic, gate) -> None:
    job_id = running("waits")

    told = [kinetic("jobs", "stacks", job_id).out for _ in range(3)]

    assert [text.count("in waits") for text in told] == [1, 1, 1]
    assert kinetic("jobs", "logs", job_id).out == "started\n"
    assert result(kinetic, gate, job_id) == "done"


def test_two_who_ask_at_once_both_get_a_whole_answer(running, start, kinetic, gate) -> None:
    job_id = running("waits")

    asking = [start("jobs", "stacks", job_id) for _ in range(4)]

    assert [each.communicate(timeout=30)[0].count(b"in waits") for each in asking] == [1, 1, 1, 1]


def test_stacks_are_one_document_with_a_host_each(running, kinetic, gate) -> None:
    job_id = running("waits")

    page = json.loads(kinetic("jobs", "stacks", job_id, "--host", "0", "--json").out)

    assert (page["job_id"], [each["host"] for each in page["hosts"]]) == (job_id, [0])
    assert "in waits" in page["hosts"][0]["text"]
    assert page["hosts"][0]["why"] == ""


@linux
def test_a_handler_of_the_jobs_own_stays_and_its_children_know_nothing_of_ours(running, kinetic, gate) -> None:
    job_id = running("has_a_handler_of_its_own")

    assert kinetic("jobs", "stacks", job_id).code == 0

    told = result(kinetic, gate, job_id)
    assert told["heard"] == 1
    bit = 1 << (STACKS_SIGNAL - 1)
    assert [int(told[name], 16) & bit for name in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]


@linux
def test_a_job_that_has_taken_our_signal_away_is_left_alone(running, kinetic, gate) -> None:
    job_id = running("takes_the_signal_away")

    told = kinetic("jobs", "stacks", job_id)

    assert (told.code, told.out) == (1, "")
    assert "the job's code has changed what the signal" in told.err
    assert result(kinetic, gate, job_id) == "alive"


@linux
def test_no_stacks_are_written_into_a_file_of_the_jobs_that_took_our_descriptor(running, kinetic, gate) -> None:
    job_id = running("closes_what_it_does_not_know")

    told = kinetic("jobs", "stacks", job_id)

    assert told.code == 1
    assert "the job's code has closed the file for its stacks" in told.err
    assert result(kinetic, gate, job_id) == 0


@pytest.mark.timeout(120)
def test_every_host_of_a_slice_answers_under_its_number(running, kinetic, gate) -> None:
    job_id = running("waits", "tpu-v5e-4x4")

    told = kinetic("jobs", "stacks", job_id)
    one = kinetic("jobs", "stacks", job_id, "--host", "1")

    assert told.code == 0, told.err
    assert [line for line in told.out.splitlines() if line.startswith("host ")] == [f"host {n}" for n in range(4)]
    assert told.out.count("in waits") == 4
    assert one.out.count("in waits") == 1
    assert "host" not in one.out.split("\n")[0]


def test_a_job_that_does_not_run_is_refused_with_the_command_that_says_more(submit, kinetic) -> None:
    job_id = submit("add")
    kinetic("jobs", "wait", job_id)

    told = kinetic("jobs", "stacks", job_id)
    shell = kinetic("jobs", "shell", job_id, "--", "true")

    for each in (told, shell):
        assert (each.code, each.out) == (1, "")
        assert f"{job_id} does not run: it is SUCCEEDED [not-running]" in each.err
        assert f"next:  kinetic jobs logs {job_id}" in each.err


def test_a_host_that_there_is_not_is_named(running, kinetic, gate) -> None:
    job_id = running("waits")

    for words in (["stacks", job_id, "--host", "1"], ["shell", job_id, "--host", "1", "--", "true"]):
        told = kinetic("jobs", *words)
        assert (told.code, told.out) == (2, "")
        assert f"{job_id} has no host 1" in told.err


# ---------------------------------------------------------------------------------------------------------------- shell


def test_a_command_has_the_jobs_variables_its_folder_and_its_exit_code(running, kinetic, home, gate) -> None:
    job_id = running("waits")

    told = kinetic("jobs", "shell", job_id, "--", "sh", "-c", 'pwd; env; ls; cat "$0" >&2; exit 7', str(__file__))

    assert told.code == 7
    folder, *lines = told.out.splitlines()
    assert Path(folder).name == "work-0-0"
    assert f"KINETIC_JOB_ID={job_id}" in lines
    assert "KINETIC_ATTEMPT=0" in lines
    assert "script.py" in lines
    assert told.err == Path(__file__).read_text()


@linux
def test_nothing_secret_of_ours_is_in_a_shells_variables(running, kinetic, home, gate) -> None:
    job_id = running("waits")
    (key,) = home.glob(f"run/*/jobs/{job_id}/key")

    told = kinetic("jobs", "shell", job_id, "--", "sh", "-c", "cat /proc/self/environ; ls -l /proc/self/fd")

    assert key.read_bytes().hex() not in told.out
    assert "KINETIC_SUPERVISOR" not in told.out  # by this mark what a job leaves behind is ended
    assert str(home / "run") not in told.out.split("total")[1]


def test_a_shell_reads_its_commands_from_a_pipe(running, kinetic, gate) -> None:
    job_id = running("waits")

    told = kinetic("jobs", "shell", job_id, input=b"echo $KINETIC_JOB_ID\nexit 4\n")

    assert (told.code, told.out) == (4, f"{job_id}\n")


def test_a_command_that_is_killed_ends_as_a_shell_would_say(running, kinetic, gate) -> None:
    job_id = running("waits")

    assert kinetic("jobs", "shell", job_id, "--", "sh", "-c", "kill -9 $$").code == 128 + signal.SIGKILL


def test_a_command_that_there_is_not_is_named_and_the_job_goes_on(running, kinetic, gate) -> None:
    job_id = running("waits")

    told = kinetic("jobs", "shell", job_id, "--", "no-such-program")

    assert (told.code, told.out) == (1, "")
    assert "no-such-program was not found on this machine [no-command]" in told.err
    assert result(kinetic, gate, job_id) == "done"


def test_a_shell_on_a_terminal_is_interactive_and_takes_ctrl_c_for_itself(running, command, environment, gate) -> None:
    job_id = running("waits")
    ours, theirs = pty.openpty()
    words = [*command, "jobs", "shell", job_id]
    more = {"start_new_session": True, "env": {**environment, "PS1": "$ ", "TERM": "dumb"}}

    process = subprocess.Popen(
        ["python3", "-c", CONTROLLING, *words], stdin=theirs, stdout=theirs, stderr=theirs, **more
    )
    os.close(theirs)
    seen = Screen(ours)
    os.write(ours, b"test -t 0 && sh -c 'echo is''-a-terminal; exec sleep 1000'\n")  # Ctrl-C finds it in either form
    seen.until(b"is-a-terminal")
    os.write(ours, b"\x03")
    os.write(ours, b"echo $((40 + 2))-$KINETIC_JOB_ID; exit 9\n")

    seen.until(f"42-{job_id}".encode())
    assert process.wait(30) == 9
    os.close(ours)


CONTROLLING = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


VOLUME = """
    import os, sys, time
    import kinetic

    @kinetic.run(accelerator="cpu", volumes={{"{mount}": kinetic.Data("set")}})
    def stay(gate):
        print("started", flush=True)
        while not os.path.exists(gate):
            time.sleep(0.01)

    print(stay.run_async(os.environ["GATE"]).job_id)
"""


@linux
def test_a_shell_sees_the_volumes_that_only_the_job_sees(project, kinetic, wait_until, gate) -> None:
    mount = f"/kinetic-{os.urandom(4).hex()}"
    project.write("set/a.txt", "hello")
    job_id = project.out(VOLUME.format(mount=mount)).strip()
    wait_until(lambda: "started" in kinetic("jobs", "logs", job_id).out, "the job's first line", 30)

    told = kinetic("jobs", "shell", job_id, "--", "sh", "-c", f"cat {mount}/a.txt; pwd; exit 5")

    assert (told.code, told.out.splitlines()[0][:5]) == (5, "hello"), told.err
    assert "work-0-0" in told.out
    assert not os.path.lexists(mount)
