"""Ctrl-C while somebody waits: an ordinary KeyboardInterrupt for whoever catches it, and jobs that go on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from flows.conftest import environment

WORK = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(until):
        print("begun", flush=True)
        while not os.path.exists(until):
            time.sleep(0.01)
        return "stayed"
"""
WAITING = """
        import os, time
        import kinetic

        @kinetic.run(accelerator="cpu")
        def f(number):
            while not os.path.exists("GO"):
                time.sleep(0.02)

        if __name__ == "__main__":
"""


def wait_for_the_end_of_the_main_thread(pid: int) -> None:
    """Wait until a process does nothing but to wait for its other threads: it printed its last line before."""
    quiet = 0
    while quiet < 20:
        (asleep,) = [
            line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "State:" in line
        ]
        quiet = quiet + 1 if asleep == "S" else 0
        time.sleep(0.01)


def test_a_program_that_catches_ctrl_c_goes_on_and_finds_the_job_again(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "careful.py",
        f"""
        import kinetic
        from work import work

        try:
            work({str(until)!r})
        except KeyboardInterrupt as error:
            print(type(error) is KeyboardInterrupt, error.__context__ is None or error.__suppress_context__)
            job_id = str(error).split()[0]
        open({str(until)!r}, "w").close()
        print(kinetic.attach(job_id).result(timeout=20))
        """,
    )
    client = project.start("careful.py")
    assert client.stdout.readline() == "begun\n"  # so it waits for its job now

    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=30)

    assert (client.returncode, out.splitlines()) == (0, ["True True", "stayed"]), err
    assert "Traceback" not in err


def test_what_a_signal_handler_raises_into_a_wait_arrives_and_the_job_that_keeps_running_is_named(
    project: Any, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "limited.py",
        f"""
        import signal
        from work import work

        def stop(*_):
            raise TimeoutError("too slow")

        signal.signal(signal.SIGALRM, stop)
        try:
            work({str(until)!r})
        except TimeoutError as error:
            print(error)
        open({str(until)!r}, "w").close()
        """,
    )
    client = project.start("limited.py")
    assert client.stdout.readline() == "begun\n"  # so it waits for its job now

    client.send_signal(signal.SIGALRM)
    out, err = client.communicate(timeout=30)

    assert (client.returncode, out) == (0, "too slow\n"), err
    assert err.count("keeps running") == 1
    assert "kinetic: cancel:   kinetic jobs cancel" in err


@pytest.mark.parametrize(("call", "step"), [("double.run_async(1)", 13), ("double.run_async_map([1, 2])", 41)])
def test_what_a_signal_handler_raises_into_a_submission_arrives_whatever_it_interrupts(
    project: Any, call: str, step: int
) -> None:
    project.write("double.py", "import kinetic\n\n@kinetic.run(accelerator='cpu')\ndef double(x):\n    return 2 * x\n")
    project.write(
        "interrupted.py",
        f"""
        import re, signal, sys
        from collections import Counter
        from double import double

        def stop(*_):
            raise TimeoutError("too slow")

        signal.signal(signal.SIGUSR1, stop)
        found, number, left = Counter(), 0, 0

        def count(frame, event, _):
            global left
            if re.search("/kinetic/_(stores|blobs|project|config)/", frame.f_code.co_filename):
                left -= 1
                if left == 0:  # where a function begins, Python looks for signals
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGUSR1)

        {call}
        while left <= 0:
            number += {step}
            left = number
            sys.settrace(count)
            try:
                submitted = {call}
            except TimeoutError as error:
                found[str(error)] += 1
            except Exception as error:
                found[repr(error)] += 1
            else:
                found.update(["passed over"] if left <= 0 else [])
            finally:
                sys.settrace(None)
        print(len(found), found["too slow"] > 10, found)
        """,
    )

    done = project.run("interrupted.py", timeout=100)

    assert done.stdout.startswith("1 True "), (done.stdout, done.stderr)


def test_in_an_interactive_session_the_job_is_named_and_the_next_line_runs(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "session.py",
        f"""
        import code
        import sys

        lines = iter([
            "from work import work",
            "work({str(until)!r})",
            "print('still here', file=sys.stderr)",
        ])

        def typed(prompt):
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

        code.interact(banner="", readfunc=typed, local={{"sys": sys}}, exitmsg="")
        """,
    )
    client = project.start("session.py")
    assert client.stdout.readline() == "begun\n"  # so it waits for its job now

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    until.touch()

    assert client.returncode == 0
    (job,) = [name for name in os.listdir(tmp_path / "home" / "store") if name.startswith("cpu-work-")]
    assert f"kinetic jobs logs {job} --follow" in err
    assert [line for line in err.splitlines() if line.startswith("kinetic: ")][-3:] == [
        f"kinetic: detached: {job} keeps running",
        f"kinetic: follow:   kinetic jobs logs {job} --follow",
        f"kinetic: cancel:   kinetic jobs cancel {job}",
    ]
    assert "Traceback" not in err
    assert "still here" in err


def test_in_a_program_with_an_event_loop_the_awaited_jobs_and_batches_are_named_and_go_on(
    project: Any, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "awaits.py",
        f"""
        import asyncio
        from work import work

        async def main():
            batch = work.run_async_map([{str(until)!r}])
            jobs = [work.run_async({str(until)!r}) for _ in range(3)]
            tell = lambda: print(jobs[0].job_id, batch.group_id, flush=True)
            asyncio.get_running_loop().call_later(0.1, tell)
            await asyncio.gather(*jobs, batch)

        asyncio.run(main())
        """,
    )
    client = project.start("awaits.py")
    job, group = client.stdout.readline().split()

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    until.touch()

    assert client.returncode == -signal.SIGINT  # which a shell calls 130
    said = [line for line in err.splitlines() if line.startswith("kinetic: ")]
    assert f"kinetic: detached: {job} keeps running" in said
    assert said[-1] == "kinetic: and 1 more keep running: kinetic jobs list"
    assert "Traceback" not in err
    collect = f"import kinetic; print(kinetic.attach({job!r}).result(), *kinetic.attach_batch({group!r}).results())"
    assert project.out(collect) == "stayed stayed\n"


def test_at_the_prompt_of_asyncio_the_awaited_job_is_named(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    pipe = subprocess.PIPE
    words = [sys.executable, "-m", "asyncio"]
    client = subprocess.Popen(
        words, cwd=project.root, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    tell = "timer = asyncio.get_running_loop().call_later(0.3, lambda: print(job.job_id, flush=True))"
    client.stdin.write(f"from work import work; job = work.run_async({str(until)!r}); {tell}\nawait job\n")
    client.stdin.flush()
    job = client.stdout.readline().split()[-1]

    client.send_signal(signal.SIGINT)
    said = [*itertools.takewhile(lambda line: "KeyboardInterrupt" not in line, client.stderr)]
    until.touch()
    client.communicate(timeout=30)

    assert any(f"kinetic: detached: {job} keeps running" in line for line in said)
    assert f"kinetic: cancel:   kinetic jobs cancel {job}\n" in said


def test_in_a_program_with_a_pool_of_threads_that_make_blocking_calls_their_jobs_are_named(
    project: Any, tmp_path: Path
) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "pool.py",
        f"""
        from concurrent.futures import ThreadPoolExecutor
        from work import work

        pool = ThreadPoolExecutor(2)
        list(pool.map(work, [{str(until)!r}] * 2))
        """,
    )
    client = project.start("pool.py")
    assert [client.stdout.readline() for _ in range(2)] == ["begun\n"] * 2

    client.send_signal(signal.SIGINT)
    last = "kinetic: this process ends after its threads, or at the next Ctrl-C\n"
    said = [*itertools.takewhile(lambda line: line not in {"", last}, client.stderr)]
    until.touch()
    _, err = client.communicate(timeout=30)

    jobs = [name for name in os.listdir(tmp_path / "home" / "store") if name.startswith("cpu-work-")]
    assert {f"kinetic: detached: {job} keeps running\n" for job in jobs} < {*said}
    assert "Traceback" not in err
    assert client.returncode != 0


# ------------------------------------------------------------------------------------------------------------- batches

WAYS = {
    "results": "batch.results()",
    "wait": "batch.wait()",
    "as_completed": "list(batch.as_completed())",
}


@pytest.fixture
def waiting_for(batches: Any) -> Any:
    """Return a function that starts a client and returns it, with its batch, once it waits for that batch."""

    def start(way: str, *, attached: bool = False) -> tuple[Any, str]:
        group = ""
        if attached:
            group = batches.run("tell(run(plans(2, until=go), max_concurrent=None).group_id)")
        batches.project.write(
            "waits.py",
            f"""
            import sys
            import kinetic
            from jobs import act

            plans = [{{"n": n, "notes": {str(batches.notes)!r}, "until": {str(batches.go)!r}}} for n in range(2)]
            batch = kinetic.attach_batch(sys.argv[1]) if len(sys.argv) > 1 else act.run_async_map(
                plans, input_mode="single", max_concurrent=None
            )
            tracker, look = batch._get_tracker(), batch._get_tracker().wait

            def tell(*args, **more):
                tracker.wait = look
                print(batch.group_id, flush=True)
                return look(*args, **more)

            tracker.wait = tell  # so that it is known when the waiting has begun
            {WAYS[way]}
            """,
        )
        client = batches.project.start("waits.py", *filter(None, [group]))
        return client, client.stdout.readline().strip()

    return start


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_while_a_batch_is_waited_for_ends_with_three_lines_and_no_traceback(
    batches: Any, waiting_for: Any, way: str
) -> None:
    client, group = waiting_for(way)

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    batches.go.touch()

    assert client.returncode == -signal.SIGINT  # as a shell expects it of a program that Ctrl-C ended
    assert err.splitlines()[-3:] == [
        f"kinetic: detached: {group} keeps running",
        f"kinetic: follow:   kinetic batch status {group}",
        f"kinetic: cancel:   kinetic batch cancel {group}",
    ]
    assert "this process stays" not in err  # everything is submitted
    assert "Traceback" not in err
    assert batches.run("tell(kinetic.attach_batch(words[0]).results())", group) == [0, 10]


def test_a_batch_that_was_attached_is_let_go_of_by_a_process_that_submits_nothing(
    batches: Any, waiting_for: Any
) -> None:
    client, group = waiting_for("results", attached=True)

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    batches.go.touch()

    assert err.endswith(f"kinetic: cancel:   kinetic batch cancel {group}\n"), err
    assert "this process stays" not in err


@pytest.mark.parametrize("waits", ["time.sleep(60)", "f.run_async(batch).result()", "batch.results()"])
def test_ctrl_c_says_once_that_the_process_stays_to_submit_a_batch_whatever_it_waited_for(
    project: Any, tmp_path: Path, waits: str
) -> None:
    go = tmp_path / "go"
    project.write(
        "stays.py",
        WAITING.replace("GO", str(go))
        + f"""
            batch = f.run_async_map([1, 2, 3], max_concurrent=1)
            print(batch.group_id, flush=True)
            {waits}
        """,
    )
    client = project.start("stays.py")
    group = client.stdout.readline().strip()

    client.send_signal(signal.SIGINT)
    said = ""
    for line in iter(client.stderr.readline, ""):
        said += line
        if line.startswith("kinetic:           kinetic batch resume"):
            break
    go.touch()
    said += client.communicate(timeout=30)[1]

    assert (
        said.count("kinetic: this process stays to submit the other inputs; Ctrl-C once more ends it, and then\n") == 1
    )
    assert said.count(f"kinetic:           kinetic batch resume {group}     submits the rest\n") == 1


@pytest.mark.parametrize(
    ("how", "rest"),
    [
        ("max_concurrent=1", "submit the other 2 inputs"),
        ("max_concurrent=None, retries=1", "try again what fails"),
        ("max_concurrent=None, fail_fast=True, cancel_running_on_fail=True", "cancel the others if one fails"),
    ],
)
def test_a_program_that_stays_to_submit_a_batch_says_so_once_it_has_nothing_else_to_do(
    project: Any, home: Path, how: str, rest: str
) -> None:
    go = home.parent / "go"
    project.write(
        "ends.py",
        WAITING.replace("GO", str(go))
        + f"""
            print(f.run_async_map([1, 2, 3], {how}).group_id)
        """,
    )
    client = project.start("ends.py")

    group = client.stdout.readline().strip()  # as `GROUP=$(…)` does not, and `| tee` does
    said = ""
    while not said.endswith(" submits the rest\n"):
        said += client.stderr.readline()
    go.touch()
    rest_of_it = client.communicate(timeout=60)[1]

    assert f"kinetic: {group}: this process stays to {rest}; if it ends before that:\n" in said
    assert f"kinetic:           kinetic batch resume {group}     submits the rest\n" in said
    assert (client.returncode, rest_of_it) == (0, "")


def test_the_command_that_watches_a_batch_says_the_same_without_a_traceback(batches: Any) -> None:
    group = batches.run("tell(run(plans(2, until=go), max_concurrent=None).group_id)")
    batches.project.write("watch.py", "from kinetic._cli.main import main; main()")
    client = batches.project.start("watch.py", "batch", "status", group, "--watch")
    assert any(f"{group}: 0 of 2 ended" in line for line in iter(client.stderr.readline, ""))  # so it waits

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    batches.go.touch()

    assert client.returncode == 130
    assert f"cancel:   kinetic batch cancel {group}\n" in err
    assert "Traceback" not in err


def test_jobs_that_a_list_holds_together_go_on_and_no_command_is_named_that_does_not_know_them(batches: Any) -> None:
    batches.project.write(
        "loose.py",
        f"""
        import sys
        import kinetic
        from jobs import act

        job = act.run_async({{"n": 1, "notes": {str(batches.notes)!r}, "until": {str(batches.go)!r}}})
        print(job.job_id, flush=True)
        kinetic.BatchHandle("", None, {{}}, [job]).wait()
        """,
    )
    client = batches.project.start("loose.py")
    job_id = client.stdout.readline().strip()
    assert any("0 of 1 ended" in line for line in iter(client.stderr.readline, ""))  # so it waits

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    batches.go.touch()

    assert err.endswith("kinetic: detached: the jobs keep running\nkinetic: follow:   kinetic jobs list\n"), err
    assert "kinetic batch" not in err
    assert batches.run("tell(kinetic.attach(words[0]).result())", job_id) == 10


@pytest.mark.parametrize("way", ["", ".result()", ".wait()", ".exception()", ".logs(follow=True)"])
def test_on_a_terminal_ctrl_c_ends_a_program_with_three_lines_and_130(way: str, project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    blocking = f"work({str(until)!r})"
    later = f"job = work.run_async({str(until)!r})\nprint('begun')\njob{way}"
    project.write("script.py", f"from work import work\n{later if way else blocking}\n")

    seen = project.watch("script.py", press=("begun", b"\x03"), columns=200)
    until.touch()

    lines = seen.screen.splitlines()[-3:]
    assert [line.split(": ")[1].strip() for line in lines] == ["detached", "follow", "cancel"], seen.screen
    assert "Traceback" not in seen.screen
    assert seen.code == -signal.SIGINT  # what a shell calls 130


@pytest.mark.parametrize("step", ["driver:inputs-written", "driver:launched"])
def test_ctrl_c_while_a_batch_is_submitted_names_it_if_there_is_one(project: Any, tmp_path: Path, step: str) -> None:
    (tmp_path / "until").touch()
    project.write("work.py", WORK)
    project.write(
        "at_once.py",
        f"""
        import signal
        from kinetic._batches import driver, submission
        from work import work

        def press(step):
            if step == {step!r}:
                signal.raise_signal(signal.SIGINT)

        driver.step = submission.step = press
        work.run_async_map([{str(tmp_path / "until")!r}] * 2, max_concurrent=None)
        """,
    )

    done = project.run("at_once.py")

    assert done.returncode == -signal.SIGINT
    assert "Traceback" not in done.stderr
    listed = project.kinetic("batch", "list").stdout
    if step == "driver:launched":
        group = listed.splitlines()[1].split()[0]
        assert done.stderr.splitlines()[-4:] == [
            f"kinetic: detached: {group} keeps running",
            f"kinetic: follow:   kinetic batch status {group}",
            f"kinetic: cancel:   kinetic batch cancel {group}",
            f"kinetic:           kinetic batch resume {group}     submits the rest",
        ]
    else:
        assert done.stderr.endswith("kinetic: interrupted; no job was submitted\n")
        assert "grp-" not in listed


def test_a_script_at_its_end_that_still_submits_says_how_the_rest_is_submitted(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "ends.py",
        f"""
        import atexit
        from work import work

        atexit.register(print, "its own end", flush=True)
        batch = work.run_async_map([{str(until)!r}] * 4, max_concurrent=1)
        print("the last line", flush=True)
        """,
    )
    client = project.start("ends.py")
    assert client.stdout.readline() == "the last line\n"
    wait_for_the_end_of_the_main_thread(client.pid)

    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=30)

    assert (client.returncode, out) == (130, "its own end\n"), err
    (group,) = {line.split()[-1] for line in err.splitlines() if "kinetic batch status grp-" in line}
    assert f"kinetic batch resume {group}" in err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    until.touch()
    resumed = project.kinetic("batch", "resume", group)
    values = project.out(f"import kinetic\nprint(kinetic.attach_batch({group!r}).results(timeout=50))")
    assert values.count("stayed") == 4, resumed.stderr


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}

    done = subprocess.run(
        [sys.executable, "-m", "kinetic", "jobs", "list"], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("where", ["at the end", "in a wait"])
def test_ctrl_c_in_the_middle_of_an_import_keeps_no_other_thread_from_importing(project: Any, where: str) -> None:
    project.write(
        "stays.py",
        """
        import _imp, sys, threading
        import kinetic

        @kinetic.run(accelerator="cpu")
        def f(number):
            return number

        def imports():
            interrupted.wait()
            import colorsys
            print("imported", flush=True)

        def interrupt(*_):
            _imp.acquire_lock()  # as Python's importer does, which Ctrl-C leaves between two steps
            interrupted.set()
            raise KeyboardInterrupt

        if __name__ == "__main__":
            interrupted = threading.Event()
            batch = f.run_async_map([1, 2, 3], max_concurrent=1)
            other = threading.Thread(target=imports)
            other.start()
            if sys.argv[1] == "at the end":
                interrupt()
            try:
                f.run_async(1).result(on_status_change=interrupt)
            except KeyboardInterrupt:
                other.join()
        """,
    )
    client = project.start("stays.py", where)

    out, err = client.communicate(timeout=40)

    assert out == "imported\n", err
