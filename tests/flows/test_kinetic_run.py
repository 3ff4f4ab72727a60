"""`kinetic run` on real jobs, in processes of its own: what it prints where, and the exit code."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import KINETIC, Told, environment

TRAIN = """
    import os, sys, threading, time
    import kinetic

    LOCK = threading.Lock()  # cannot be pickled: the module travels by reference

    class Result:
        def __init__(self, value): self.value = value
        def __repr__(self): return f"Result({self.value})"

    def plain(lr: float, name="x", *, tags: list[str] = []):
        with LOCK:
            print("training", lr)
        return [lr, name, tags]

    @kinetic.run(accelerator="tpu-v5e-1", capture_env_vars=["FIRST"])
    def decorated():
        return {name: os.environ.get(name) for name in ("FIRST", "SECOND", "KINETIC_OUTPUT_DIR")}

    def bad(x):
        print("about to fail", x)
        raise ValueError(f"no {x}")

    def slow(seconds: float, end: str = ""):
        print("started", flush=True)
        time.sleep(seconds)
        print("ended", end=end)
        return seconds

    def result(x: int):
        return Result(x)

    def where():
        main = sys.modules["__main__"]
        return [__name__, os.path.basename(__file__), getattr(main, "__file__", None), os.getcwd()]

    if __name__ == "__main__":
        raise RuntimeError("the script itself ran")
"""


@pytest.fixture
def kinetic(project) -> Callable[..., Told]:
    """Return a function that runs a command in the project's folder."""
    project.write("train.py", TRAIN)

    def run(*words: str, cwd: Path | None = None) -> Told:
        return Told.of(project.kinetic(*words, cwd=cwd))

    return run


@pytest.fixture
def start(project) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return a function that starts a command and does not wait for it."""
    project.write("train.py", TRAIN)
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        started.append(
            subprocess.Popen(
                [*KINETIC, *words], stdout=stdout, stderr=pipe, text=True, env=environment(), cwd=project.root
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def on_a_terminal(project, *words: str, **variables: str) -> str:
    """Run a command with a terminal for all three streams, and return what it showed."""
    project.write("train.py", TRAIN)
    leader, follower = pty.openpty()
    subprocess.run(["stty", "cols", "100"], stdin=follower, check=True)
    process = subprocess.Popen(
        [*KINETIC, *words],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**environment(), "TERM": "xterm", **variables},
        cwd=project.root,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 1 << 16)
        except OSError:  # Linux says so when the last process has let go of the terminal
            break
        if not piece:
            break
        shown += piece
    process.wait(timeout=30)
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


def jobs(kinetic) -> list[dict]:
    return json.loads(kinetic("jobs", "list", "--json").out)["jobs"]


# -------------------------------------------------------------------------------------------------------- how it ends


def test_an_undecorated_function_runs_and_its_log_and_value_are_printed(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "train.py::plain", "1e-3", "--tags", "a,b")

    assert (told.code, told.out) == (0, "training 0.001\n[0.001, 'x', ['a', 'b']]\n")


def test_besides_log_and_value_there_are_two_lines_where_it_runs_and_how_to_follow_it(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "train.py::plain", "1")

    job_id = jobs(kinetic)[0]["job_id"]
    place, follow = told.err.splitlines()
    assert place.startswith("kinetic: jobs run on this machine")
    assert len(place) <= 80
    assert follow == f"kinetic: follow the job with: kinetic jobs logs {job_id} --follow"


def test_spot_without_an_effect_is_said_once(kinetic) -> None:
    on_cpu, on_tpu = (kinetic("run", "-a", name, "--spot", "train.py::plain", "1").err for name in ("cpu", "v5e-1"))

    assert on_cpu.count("spot") == 1
    assert "spot has no effect on a CPU job" in on_cpu
    assert "recorded, and without meaning here: spot" in on_tpu


def test_what_is_printed_is_no_copy_so_the_result_stays(kinetic) -> None:
    kinetic("run", "-a", "cpu", "train.py::plain", "1")

    assert kinetic("jobs", "result", "@last").out == "[1.0, 'x', []]\n"


def test_a_job_that_fails_gives_exit_code_125_its_traceback_and_one_error(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "train.py::bad", "7")

    assert told.code == 125
    assert told.out.startswith("about to fail 7\nTraceback")
    assert told.out.endswith("ValueError: no 7\n")
    assert told.err.count("error:") == 1
    assert "error: bad raised ValueError: no 7 [job-failed]" in told.err
    assert told.err.splitlines()[-1] == f"next:  kinetic jobs logs {jobs(kinetic)[0]['job_id']}"


def test_detached_it_prints_the_id_alone_and_does_not_wait(kinetic) -> None:
    told = kinetic("run", "-d", "-a", "cpu", "train.py::slow", "30")

    assert told.code == 0
    (job,) = jobs(kinetic)
    assert told.out == f"{job['job_id']}\n"
    assert job["status"] in {"PENDING", "RUNNING"}
    assert f"kinetic jobs cancel {job['job_id']}" in told.err


def test_ctrl_c_lets_go_of_the_job_and_says_how_to_cancel_it(start, kinetic, wait_until) -> None:
    process = start("run", "-a", "cpu", "train.py::slow", "30")
    assert process.stdout.readline() == "started\n"

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)

    assert process.returncode == 130
    (job,) = jobs(kinetic)
    assert job["status"] == "RUNNING"
    assert f"kinetic: detached: {job['job_id']} keeps running\n" in said
    assert said.endswith(f"kinetic: cancel:   kinetic jobs cancel {job['job_id']}\n")
    assert "Traceback" not in said


def test_a_full_disk_behind_the_output_lets_go_of_a_job_that_runs(start, kinetic) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        process = start("run", "-a", "cpu", "train.py::slow", "30", stdout=full)
        _, said = process.communicate(timeout=20)

    (job,) = jobs(kinetic)
    assert (process.returncode, job["status"]) == (1, "RUNNING")
    assert f"kinetic: detached: {job['job_id']} keeps running\n" in said
    assert "error: a disk is full, and the output is incomplete [disk-full]" in said


def test_a_reader_that_leaves_does_not_harm_the_job(start, kinetic, wait_until) -> None:
    process = start("run", "-a", "cpu", "train.py::slow", "1.5")
    assert process.stdout.readline() == "started\n"

    process.stdout.close()
    process.wait(timeout=20)

    assert process.returncode == 141
    wait_until(lambda: jobs(kinetic)[0]["status"] == "SUCCEEDED", "the job's end")


def test_as_json_standard_output_is_one_document_and_the_log_is_elsewhere(kinetic) -> None:
    told = kinetic("run", "--json", "-a", "cpu", "train.py::plain", "1")

    page = json.loads(told.out)
    assert (page["status"], page["value"], page["function"]) == ("SUCCEEDED", [1.0, "x", []], "plain")
    assert "training 1.0\n" in told.err


def test_as_json_a_failure_is_a_document_as_well(kinetic) -> None:
    told = kinetic("run", "--json", "-a", "cpu", "train.py::bad", "1")

    assert told.code == 125
    page = json.loads(told.out)
    assert (page["status"], page["error"]["type"], page["error"]["message"]) == ("FAILED", "ValueError", "no 1")


def test_a_value_begins_a_line_of_its_own(kinetic) -> None:
    assert kinetic("run", "-a", "cpu", "train.py::slow", "0", "--end=no end").out == "started\nendedno end\n0.0\n"


def test_a_wrong_argument_submits_nothing(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "train.py::plain", "fast")

    assert (told.code, told.out) == (2, "")
    assert jobs(kinetic) == []


# ------------------------------------------------------------------------------------------------- what travels, where


def test_the_module_travels_by_reference_and_the_job_s_script_is_nobody_s(kinetic) -> None:
    told = kinetic("run", "--json", "-a", "cpu", "train.py::where")

    name, file, main, folder = json.loads(told.out)["value"]
    assert (name, file, main) == ("train", "train.py", None)
    assert "/work-" in folder
    assert "by value" not in told.err


def test_a_class_of_the_file_comes_home(kinetic) -> None:
    assert kinetic("run", "-a", "cpu", "train.py::result", "3").out == "Result(3)\n"


def test_a_file_deep_in_a_package_runs_from_any_folder(kinetic, project, tmp_path) -> None:
    project.write("src/shop/__init__.py", "")
    project.write("src/shop/base.py", "X = 1\n")
    project.write("src/shop/fit.py", "from . import base\ndef f(): return base.X, __name__\n")

    told = kinetic("run", "-a", "cpu", f"{project.root}/src/shop/fit.py::f", cwd=tmp_path)

    assert (told.code, told.out) == (0, "(1, 'shop.fit')\n")


def test_a_file_named_like_a_standard_module_runs(project, tmp_path) -> None:
    project.write("json.py", "def f(): return 5\n")
    installed = tmp_path / "bin" / "kinetic"  # as pip writes it; with -m, Python itself would put the project first
    installed.parent.mkdir()
    installed.write_text("from kinetic._cli.main import main\nmain()\n")

    done = project.execute(sys.executable, str(installed), "run", "-a", "cpu", "json.py::f")

    assert (done.returncode, done.stdout) == (0, "5\n"), done.stderr
    assert "kinetic_run_json is sent by value" in done.stderr


# -------------------------------------------------------------------------------------------------------- the options


def test_a_decorated_function_keeps_its_options_and_the_command_line_wins(kinetic, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("FIRST", "1")
    monkeypatch.setenv("SECOND", "2")

    kept = kinetic("run", "train.py", "--", *[])
    changed = kinetic("run", "-a", "cpu", "--env", "SECOND", "--output-dir", str(tmp_path / "out"), "train.py")

    assert "'FIRST': '1', 'SECOND': None" in kept.out
    assert changed.out == f"{ {'FIRST': '1', 'SECOND': '2', 'KINETIC_OUTPUT_DIR': str(tmp_path / 'out')} }\n"
    assert [job["accelerator"] for job in jobs(kinetic)] == ["cpu", "tpu-v5e-1"]


def test_a_deadline_ends_the_job(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "--deadline", "1s", "train.py::slow", "60")

    assert told.code == 125
    assert "[deadline]" in told.err


# ----------------------------------------------------------------------------------------------------- what goes on


def test_without_a_terminal_a_long_phase_is_a_plain_line(kinetic) -> None:
    told = kinetic("run", "-a", "cpu", "train.py::slow", "1.5")

    assert re.search(r"^kinetic: running took \d+ s$", told.err, re.MULTILINE)
    assert "\x1b" not in told.err + told.out
    assert "\r" not in told.err


def test_a_job_that_waits_for_a_slot_says_so_and_for_how_long(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    kinetic("run", "-d", "-a", "cpu", "train.py::slow", "3")

    told = kinetic("run", "-a", "cpu", "train.py::plain", "1")

    assert told.code == 0
    assert "kinetic: waiting for a slot: one of 1 slots; " in told.err
    assert "kinetic: waiting for a slot took " in told.err


def test_on_a_terminal_the_seconds_of_a_long_phase_are_counted(project) -> None:
    shown = on_a_terminal(project, "run", "-a", "cpu", "train.py::slow", "3.5")

    counted = [int(seconds) for seconds in re.findall(r"\r\x1b\[Kkinetic: running, (\d+) s", shown)]
    assert len({*counted}) >= 2, shown
    assert counted == sorted(counted)
    assert f"running, {counted[-1]} s\r\x1b[Kended" in shown  # gone before the job's own line is shown
    (took,) = re.findall(r"kinetic: running took (\d+) s\n", shown)
    assert int(took) >= counted[-1]


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(variables, coloured, project) -> None:
    shown = on_a_terminal(project, "run", "-a", "cpu", "train.py::bad", "1", **variables)

    assert ("\x1b[1;31m" in shown) is coloured
    assert "bad raised ValueError: no 1" in shown


def test_a_short_job_mentions_no_phase(kinetic) -> None:
    assert " took " not in kinetic("run", "-a", "cpu", "train.py::plain", "1").err


def test_a_blocking_call_in_python_names_its_long_phase_as_well(project) -> None:
    project.write("train.py", TRAIN)
    project.write("script.py", "import kinetic, train\nprint(kinetic.run(accelerator='cpu')(train.slow)(1.5))\n")

    done = project.run("script.py")

    assert done.stdout == "started\nended1.5\n"
    assert re.search(r"^kinetic: running took \d+ s$", done.stderr, re.MULTILINE)


def test_what_threads_that_wait_for_jobs_print_names_the_job(project) -> None:
    project.write(
        "threads.py",
        """
        import concurrent.futures, kinetic, threading, time

        both = threading.Barrier(2)

        @kinetic.run(accelerator="cpu")
        def slow(seconds):
            time.sleep(seconds)

        def call(seconds):
            both.wait()
            return slow(seconds)

        if __name__ == "__main__":
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(call, [1.5, 2]))
            slow(1.2)
        """,
    )

    told = project.run("threads.py").stderr.splitlines()

    ended = [line.removeprefix("kinetic: ") for line in told if " took " in line and "running" in line]
    assert [line.startswith("cpu-slow-") for line in ended] == [True, True, False]
    assert len({line.partition(": ")[0] for line in ended}) == 3


def test_nothing_is_printed_to_standard_output_by_a_submission_in_python(project) -> None:
    project.write("train.py", TRAIN)
    project.write("script.py", "import kinetic, train\nkinetic.run(accelerator='cpu')(train.plain).run_async(1)\n")

    assert project.run("script.py").stdout == ""


def test_the_library_s_logging_is_quiet_and_touches_no_global_handler(project) -> None:
    project.write("train.py", TRAIN)
    out = project.out(
        """
        import logging, sys
        import kinetic, train

        def state():
            named = {name: (logger.handlers, logger.level, logger.propagate, logger.disabled)
                     for name, logger in logging.root.manager.loggerDict.items()
                     if name.startswith("kinetic") and isinstance(logger, logging.Logger)}
            return logging.root.handlers, logging.root.level, logging.lastResort, named

        assert state() == ([], logging.WARNING, logging.lastResort, {})
        seen = []
        class Listener(logging.Handler):
            def emit(self, record): seen.append(record.getMessage())
        assert kinetic.run(accelerator="cpu")(train.plain)(1.0) == [1.0, "x", []]
        job = kinetic.run(accelerator="cpu")(train.bad).run_async(1)
        assert isinstance(job.exception(), ValueError)
        kinetic.list_jobs(); kinetic.attach(job.job_id).cleanup()
        handlers, level, last, named = state()
        assert (handlers, level, last) == ([], logging.WARNING, logging.lastResort)
        assert all(about == ([], logging.NOTSET, True, False) for about in named.values()), named
        print("untouched")
        """
    )

    assert out.splitlines()[-1] == "untouched"


# ------------------------------------------------------------------------------------------- wait, explain, list, disk


def test_waiting_for_real_jobs_mirrors_them(kinetic) -> None:
    good = kinetic("run", "-d", "-a", "cpu", "train.py::slow", "0.5").out.strip()
    bad = kinetic("run", "-d", "-a", "cpu", "train.py::bad", "1").out.strip()

    assert kinetic("jobs", "wait", good).code == 0
    told = kinetic("jobs", "wait", good, bad)

    assert (told.code, told.out) == (125, f"{good}: SUCCEEDED\n{bad}: FAILED\n")
    assert "why:   ValueError: no 1" in told.err


def test_waiting_ends_when_its_time_is_over_and_the_job_goes_on(kinetic) -> None:
    job_id = kinetic("run", "-d", "-a", "cpu", "train.py::slow", "30").out.strip()
    begun = time.monotonic()

    told = kinetic("jobs", "wait", job_id, "--timeout", "1")

    assert told.code == 124
    assert 1 <= time.monotonic() - begun < 10
    assert kinetic("jobs", "status", job_id).out.split()[1] in {"PENDING", "RUNNING"}


def test_a_job_that_waits_is_explained_by_what_it_waits_for_and_who_holds_it(kinetic, monkeypatch, wait_until) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    holder = kinetic("run", "-d", "-a", "cpu", "train.py::slow", "30").out.strip()
    wait_until(lambda: "RUNNING" in kinetic("jobs", "status", holder).out, "the first job's turn")
    waiting = kinetic("run", "-d", "-a", "cpu", "train.py::plain", "1").out.strip()

    told = kinetic("jobs", "explain", waiting)

    first, what, why, next_ = told.out.splitlines()
    assert first == f"{waiting}: PENDING"
    assert what.startswith("what:  waits for one of 1 slots; ")
    assert why == f"why:   running: {holder}"
    assert next_ == "next:  kinetic jobs list"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the state of a process")
def test_a_job_that_is_stopped_is_explained_by_that_and_by_what_continues_it(kinetic, project, wait_until) -> None:
    project.write("stops.py", "import os, signal\ndef f(): os.kill(os.getpid(), signal.SIGSTOP); return 7\n")
    job_id = kinetic("run", "-d", "-a", "cpu", "stops.py::f").out.strip()

    wait_until(lambda: "what:  is stopped\nwhy:   its process " in kinetic("jobs", "explain", job_id).out)
    advice = json.loads(kinetic("jobs", "explain", job_id, "--json").out)["next"]
    subprocess.run(advice, shell=True, check=True)

    assert kinetic("jobs", "wait", job_id).out == f"{job_id}: SUCCEEDED\n"


def test_a_job_that_failed_is_explained_by_its_cause_its_phase_and_its_log(kinetic) -> None:
    job_id = kinetic("run", "-d", "-a", "cpu", "train.py::bad", "7").out.strip()
    kinetic("jobs", "wait", job_id)

    page = json.loads(kinetic("jobs", "explain", job_id, "--json").out)

    assert page["what"] == "bad raised ValueError: no 7"
    assert page["phase"] == "while the function ran"
    assert page["log"][0] == "about to fail 7"
    assert page["log"][-1] == "ValueError: no 7"
    assert page["next"] == f"kinetic jobs logs {job_id}"


def test_a_job_that_did_not_get_as_far_as_the_function_says_where_it_was(kinetic, project) -> None:
    project.write(
        "late.py", "import os\nif 'KINETIC_JOB_ID' in os.environ:\n    raise OSError('not here')\ndef f(): pass\n"
    )
    job_id = kinetic("run", "-d", "-a", "cpu", "late.py::f").out.strip()
    kinetic("jobs", "wait", job_id)

    told = kinetic("jobs", "explain", job_id).out

    assert "phase: before the function started: loading the function and its arguments, and importing modules" in told
    assert "OSError: not here" in told


def test_show_tells_how_long_each_phase_of_a_real_job_took(kinetic) -> None:
    kinetic("run", "-a", "cpu", "train.py::slow", "0.3")

    page = json.loads(kinetic("jobs", "show", "@last", "--json").out)["job"]

    assert page["status"] == "SUCCEEDED"
    assert page["phases_seconds"]["execute"] >= 0.3
    assert page["value_type"].endswith("float")
    assert page["log_bytes"] == len("started\nended")


def test_cleaning_up_all_leaves_the_job_that_runs(kinetic, wait_until) -> None:
    running = kinetic("run", "-d", "-a", "cpu", "train.py::slow", "30").out.strip()
    ended = kinetic("run", "-d", "-a", "cpu", "train.py::plain", "1").out.strip()
    kinetic("jobs", "wait", ended)

    refused = kinetic("jobs", "cleanup", "--all")
    told = kinetic("jobs", "cleanup", "--all", "--yes")

    assert refused.code == 2
    assert told.code == 0
    assert [line.split()[0] for line in told.out.splitlines()[1:]] == [ended]
    assert [job["job_id"] for job in jobs(kinetic)] == [running]


def test_on_a_terminal_cleaning_up_asks(kinetic, project) -> None:
    kinetic("run", "-a", "cpu", "train.py::plain", "1")
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*KINETIC, "jobs", "cleanup", "--all"], stdin=follower, stdout=follower, stderr=follower, env=environment()
    )
    os.close(follower)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(leader, 1024)
    os.write(leader, b"y\n")
    assert process.wait(timeout=20) == 0
    os.close(leader)

    assert b"Remove 1 job, with 1 uncollected result?" in shown
    assert jobs(kinetic) == []


def test_disk_counts_real_jobs_and_clean_harms_none_of_them(kinetic, home) -> None:
    kinetic("run", "-a", "cpu", "train.py::plain", "1")
    kinetic("run", "-d", "-a", "cpu", "train.py::bad", "1")
    kinetic("jobs", "wait", "@last")

    page = json.loads(kinetic("disk", "--clean", "--json").out)

    count = {holding["what"]: holding["count"] for holding in page["holdings"]}
    assert (count["results"], count["failures"], count["jobs"], count["logs"]) == (1, 1, 2, 2)
    assert count["data"] >= 1
    assert count["runner code"] >= 1
    assert count["other"] == 0
    assert sorted(job["status"] for job in jobs(kinetic)) == ["FAILED", "SUCCEEDED"]


def test_a_pack_that_retention_took_is_sent_again(kinetic, home) -> None:
    first = kinetic("run", "-d", "-a", "cpu", "train.py::plain", "1").out.strip()
    kinetic("jobs", "wait", first)
    kinetic("jobs", "cleanup", first)
    old = time.time() - 61 * 24 * 3600
    packs = list((home / "store" / "data" / "blobs").iterdir())
    for pack in packs:
        os.utime(pack, (old, old))

    cleaned = kinetic("disk", "--clean")
    told = kinetic("run", "-a", "cpu", "train.py::plain", "2")

    assert f"removed: {len(packs)} blob" in cleaned.err
    assert (told.code, told.out) == (0, "training 2.0\n[2.0, 'x', []]\n")


def test_threads_whose_jobs_are_the_first_of_a_home_all_get_their_values(project) -> None:
    project.write("jobs.py", """
        import kinetic
        @kinetic.run(accelerator="cpu")
        def double(number):
            return 2 * number
    """)  # fmt: skip

    told = project.out("""
        from concurrent.futures import ThreadPoolExecutor
        from jobs import double
        with ThreadPoolExecutor(8) as pool:
            print(sum(pool.map(double, range(8))))
    """)

    assert told.split()[-1] == "56"


def test_a_program_that_makes_garbage_before_each_of_its_calls_does_not_keep_it(project) -> None:
    project.write("jobs.py", """
        import kinetic
        @kinetic.run(accelerator="cpu")
        def nothing():
            pass
    """)  # fmt: skip

    told = project.out("""
        import resource
        from jobs import nothing
        class Model:
            def __init__(self):
                self.me, self.weights = self, bytearray(b"x") * (40 << 20)  # in a circle, as models often are
        for _ in range(25):
            Model()
            nothing()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """)

    assert int(told.split()[-1]) < 600 << 10  # KiB; all 25 of them would be 1 GiB


def test_objects_of_a_file_and_of_a_value_are_finalized_at_the_end_as_in_python(project, kinetic) -> None:
    project.write("cycles.py", """
        class Library:
            def __init__(self, name):
                self.me, self.name = self, name
            def __del__(self):
                print("finalized", self.name)

        Library("of the file")

        def make():
            return Library("of the value")
    """)  # fmt: skip

    told = kinetic("run", "-a", "cpu", "cycles.py::make")
    again = Told.of(project.execute("env", "PYTHONPATH=.", *KINETIC, "jobs", "result", "@last"))

    assert sorted(told.out.splitlines()[-2:]) == ["finalized of the file", "finalized of the value"]
    assert sorted(again.out.splitlines()[-2:]) == ["finalized of the file", "finalized of the value"]


def test_a_function_that_another_python_compiled_is_not_opened_and_stays(project, wait_until) -> None:
    project.write("jobs.py", """
        import kinetic
        @kinetic.run(accelerator="cpu")
        def maker(number):
            return lambda other: number + other
    """)  # fmt: skip

    told = project.out("""
        from jobs import maker
        from kinetic._wire import python_runtime
        from kinetic.errors import ResultUnreadableError
        job, here = maker.run_async(20), python_runtime.python_version
        python_runtime.python_version = lambda: "3.99.1"
        try:
            job.result()
        except ResultUnreadableError as error:
            print("compiled" in error.why, "stay in the store" in error.next)
        python_runtime.python_version = here
        print(job.result()(22))
    """)

    assert told.split()[-3:] == ["True", "True", "42"]
