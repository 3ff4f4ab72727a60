"""However a job ends, its one verdict says so in plain words, at once, and nothing of it is left running."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from flows.conftest import last_json
from servers import fuse

import kinetic
from kinetic._wire import failpoints
from kinetic.errors import JobError, ResultUnreadableError

HEAD = """
import os, sys, time
import kinetic

on_cpu = kinetic.run(accelerator="cpu")
"""
SOON = 5.0  # seconds within which a finished job is collected, whatever it left behind


@pytest.fixture
def submit(project) -> Callable[..., kinetic.JobHandle]:
    """Return a function that submits ``train`` of a script from a process of its own, and attaches here."""

    def submit_(text: str, call: str = "train.run_async()") -> kinetic.JobHandle:
        project.write("script.py", text)
        body = (project.root / "script.py").read_text()
        called = f"if __name__ == '__main__': print({call}.job_id)"
        return kinetic.attach(project.out(f"{HEAD}\n{body}\n{called}").split()[-1])

    return submit_


def worker_of(home: Path) -> int:
    """Return the process of the only running job."""
    (door,) = home.glob("run/*/jobs/*/log-0-0.stacks")
    return int(json.loads(door.read_bytes().splitlines()[0])["pid"])


# ------------------------------------------------------------------------------------------------- sys.exit


@pytest.mark.parametrize("code", ["", "False"])  # more of them in user_code/what_user_code_does.py
def test_leaving_by_a_good_exit_is_success_without_a_value(submit, code: str) -> None:
    job = submit(f"@on_cpu\ndef train(): sys.exit({code})")

    assert job.result() is None


@pytest.mark.parametrize("code", ["'no data'", "True"])
def test_leaving_by_any_other_exit_is_a_failure_that_names_the_code(submit, code: str) -> None:
    job = submit(f"@on_cpu\ndef train(): sys.exit({code})")

    with pytest.raises(RuntimeError) as raised:
        job.result()

    assert f"sys.exit({code})" in str(raised.value)
    assert job.status() is kinetic.JobStatus.FAILED


# ------------------------------------------------------------------------------------------------- exceptions


def test_an_exception_arrives_with_its_type_its_notes_and_its_remote_traceback(submit) -> None:
    job = submit(
        """
        def deep():
            error = KeyError("rate")
            error.add_note("look at the grid")
            raise error

        @on_cpu
        def train():
            try:
                1 / 0
            except ZeroDivisionError:
                deep()
        """
    )

    with pytest.raises(KeyError) as raised:
        job.result()

    assert raised.value.args == ("rate",)
    first, last = raised.value.__notes__
    assert first == "look at the grid"
    assert last.startswith("Remote traceback:\nTraceback (most recent call last):\n")
    assert "in deep" in last
    assert "ZeroDivisionError: division by zero" in last
    assert "During handling of the above exception" in last
    assert "_runner" not in last, "our own frames are not the user's business"


ODD = """
import dataclasses

class KeywordOnly(Exception):
    def __init__(self, *, code, hint):
        super().__init__(f"{code}: {hint}")
        self.code = code

class TakesTwo(ValueError):
    def __init__(self, code, hint):
        super().__init__(hint)
        self.code = code

class OfTheSystem(OSError):
    def __init__(self, path, hint):
        super().__init__(f"{path}: {hint}")
        self.path = path

class OfTwo(RuntimeError, OSError):
    pass

class HoldsAQueue(Exception):
    def __init__(self, text):
        import queue
        super().__init__(text)
        self.queue = queue.SimpleQueue()

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class Explodes(Exception):
    def __init__(self, text, depth=0):
        super().__init__(text)
    def __setstate__(self, state):
        raise ValueError("not here")
    def __reduce__(self):
        return Explodes, ("x",), {"a": 1}

@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int
"""


RAISED = [  # each with what must hold of the exception e that arrives
    ('odd.KeywordOnly(code=3, hint="so")', 'type(e) is odd.KeywordOnly and e.code == 3 and str(e) == "3: so"'),
    ('odd.TakesTwo(3, "so")', 'type(e) is odd.TakesTwo and e.code == 3 and e.args == ("so",)'),
    ('odd.OfTheSystem("/x", "gone")', 'type(e) is odd.OfTheSystem and e.path == "/x" and str(e) == "/x: gone"'),
    ('odd.OfTwo(2, "gone")', "type(e) is odd.OfTwo and e.args == (2, 'gone')"),
    ('FileNotFoundError(2, "gone", "/x")', 'type(e) is FileNotFoundError and e.filename == "/x" and e.errno == 2'),
    ('ExceptionGroup("two", [ValueError(1), odd.TakesTwo(2, "b")])', "len(e.exceptions) == 2"),
    ('UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")', "type(e) is UnicodeDecodeError and e.start == 0"),
    ("StopIteration(3)", "type(e) is StopIteration and e.value == 3"),
    ('kinetic.errors.JobTimeoutError("late", why="it is")', 'e.why == "it is" and e.code == "timeout"'),
    ('kinetic.errors.Preempted("saved")', "type(e) is kinetic.errors.Preempted"),
    ("KeyboardInterrupt()", 'type(e) is RuntimeError and "KeyboardInterrupt" in str(e)'),
    ('odd.HoldsAQueue("held")', 'type(e) is odd.HoldsAQueue and str(e) == "held" and "SimpleQueue object" in e.queue'),
    ("odd.Mute()", "type(e) is odd.Mute"),
    ("odd.Frozen(3)", "type(e) is odd.Frozen and e.code == 3"),
    ('odd.Explodes("it")', 'isinstance(e, kinetic.errors.JobError) and "odd.Explodes" in str(e)'),
]


def test_an_exception_of_any_make_arrives_or_is_told(project) -> None:
    project.write("odd.py", ODD)
    project.write(
        "evaluated.py", "import kinetic\nimport odd\n\ndef evaluated(text, **e): return eval(text, globals() | e)"
    )

    out = project.out(
        f"""
        import json
        import kinetic
        from evaluated import evaluated

        @kinetic.run(accelerator="cpu")
        def train(made):
            raise evaluated(made)

        wrong = []
        jobs = [(train.run_async(made), made, check) for made, check in {RAISED!r}]
        for job, made, check in jobs:
            try:
                job.result()
                wrong.append([made, "nothing was raised"])
            except BaseException as e:
                notes = getattr(e, "__notes__", [])
                if not evaluated(check, e=e) or not any("in train" in note for note in notes):
                    wrong.append([made, repr(type(e)), repr(e.args), repr(vars(e)), notes])
        print(json.dumps(wrong))
        """
    )

    assert last_json(out) == []


def test_what_can_be_pickled_of_a_value_is_kept_in_the_error(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            return {"losses": [3, 2], "steps": (step for step in range(3)), "error": ValueError("a value")}
        """
    )

    with pytest.raises(kinetic.errors.ResultNotPicklableError, match=r"\['steps'\]") as raised:
        job.result()

    assert raised.value.partial["losses"] == [3, 2]
    assert repr(raised.value.partial["error"]) == "ValueError('a value')"
    assert "generator object" in raised.value.partial["steps"]


def test_an_exception_whose_class_exists_only_in_the_job_is_told_and_does_not_explode(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import types
            module = types.ModuleType("only_there")
            exec("class Mistake(Exception): pass", module.__dict__)
            sys.modules["only_there"] = module
            raise module.Mistake("of its own")
        """
    )

    with pytest.raises(JobError, match=r"only_there\.Mistake: of its own") as raised:
        job.result()

    assert "in train" in raised.value.__notes__[-1]
    assert raised.value.code == "exception-not-here"


# ------------------------------------------------------------------------------------------------- values


def test_a_value_that_cannot_be_pickled_is_a_clear_failure_with_its_repr(submit) -> None:
    job = submit("@on_cpu\ndef train(): return {'rows': (number for number in [1])}")

    with pytest.raises(RuntimeError, match=r"returned a builtins.dict that cannot be pickled") as raised:
        job.result()

    assert raised.value.code == "not-picklable"
    assert "generator object" in raised.value.__notes__[0]
    assert job.status() is kinetic.JobStatus.FAILED


def test_a_value_whose_class_exists_only_in_the_job_stays_in_the_store(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import types
            module = types.ModuleType("only_there")
            exec("class Model: pass", module.__dict__)
            sys.modules["only_there"] = module
            return module.Model()
        """
    )

    for _ in range(2):  # nothing was removed, so that it can be tried again
        with pytest.raises(ResultUnreadableError, match="only_there") as raised:
            job.result()
    assert "its bytes stay in the store" in raised.value.next
    assert job.status() is kinetic.JobStatus.SUCCEEDED


def test_a_class_made_inside_the_function_comes_along(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            class Point:
                def __init__(self, x): self.x = x
                def double(self): return self.x * 2
            return Point(3)
        """
    )

    assert job.result().double() == 6


# ------------------------------------------------------------------------------------------------- what is left running

LEFT = {
    "a thread": """
        import threading
        threading.Thread(target=time.sleep, args=(300,), name="endless").start()
    """,
    "a daemon thread that prints": """
        import threading
        def chatter():
            while True:
                print("still here", flush=True)
        threading.Thread(target=chatter, daemon=True).start()
    """,
    "an idle executor": """
        from concurrent.futures import ThreadPoolExecutor
        global pool
        pool = ThreadPoolExecutor(2)
        pool.submit(abs, 1).result()
    """,
    "a child that holds the log open": """
        import subprocess
        subprocess.Popen(["sleep", "300"])
    """,
    "a child that ignores signals": """
        import subprocess
        subprocess.Popen(["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 1; done"])
    """,
    "a forked child": """
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
    """,
    "a daemon of its own session": """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(300)
            os._exit(0)
    """,
    "a process of multiprocessing": """
        import multiprocessing
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,)).start()
    """,
    "a pool that nobody closed": """
        import multiprocessing
        global pool
        pool = multiprocessing.get_context("fork").Pool(2)
        pool.apply_async(time.sleep, (300,))
    """,
}


@pytest.mark.parametrize("left", LEFT.values(), ids=list(LEFT))
def test_what_a_job_leaves_running_does_not_hold_it_up_and_is_ended(
    submit, home: Path, living_processes, wait_until, left: str
) -> None:
    job = submit(f"@on_cpu\ndef train():\n{left.rstrip()}\n        return os.getpid()".replace("\n        ", "\n    "))
    began = time.monotonic()

    worker = job.result(timeout=60, cleanup=False)
    took = time.monotonic() - began

    assert took < SOON

    def only_supervisors_live() -> bool:
        return all(_is_supervisor(pid) for pid in living_processes(home))

    wait_until(only_supervisors_live, "the end of everything but the supervisors", seconds=8)
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


SHARED = """
@on_cpu
def train():
    import multiprocessing
    from multiprocessing import shared_memory
    global lock, memory
    lock = multiprocessing.get_context("spawn").Lock()
    memory = shared_memory.SharedMemory(create=True, size=64)
    print("names", lock._semlock.name.replace("/", "sem."), memory.name, flush=True)
    END
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system shows no shared memory")
@pytest.mark.parametrize("end", ["return 1", "os._exit(3)", "time.sleep(300)"])
def test_no_memory_stays_that_multiprocessing_removes_after_its_processes(submit, wait_until, end: str) -> None:
    job = submit(SHARED.replace("END", end))
    wait_until(lambda: "names" in job.logs(), "the names", seconds=60)
    if "sleep" in end:
        job.cancel()

    with contextlib.suppress(JobError, kinetic.errors.JobCancelledError):
        job.result(timeout=60, cleanup=False)

    names = re.search(r"names (\S+) (\S+)", job.logs()).groups()
    assert not [name for name in names if Path("/dev/shm", name).exists()]


def _is_supervisor(pid: int) -> bool:
    """Say whether a process is the supervisor itself: it leads a session, and its command names supervisor.py."""
    try:
        return os.getsid(pid) == os.getpgid(pid) and b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_threads_and_processes_that_were_ended_are_named_in_the_log(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import multiprocessing, threading
            threading.Thread(target=time.sleep, args=(300,), name="endless").start()
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,), name="helper").start()
        """
    )

    job.result(cleanup=False)

    assert "kinetic: 1 thread(s) still ran and were ended with the job: endless" in job.logs()
    assert "kinetic: process helper still ran and was ended with the job" in job.logs()


def test_idle_workers_of_joblib_end_with_the_job_without_a_word(submit) -> None:
    pytest.importorskip("joblib")
    job = submit(
        """
        def square(number):
            print("squared", number)
            return number * number

        @on_cpu
        def train():
            import joblib
            return joblib.Parallel(n_jobs=2)(joblib.delayed(square)(number) for number in range(4))
        """
    )

    assert job.result(cleanup=False) == [0, 1, 4, 9]
    assert sorted(job.logs().split()) == sorted("squared 0 squared 1 squared 2 squared 3".split())


def test_a_worker_of_joblib_that_takes_long_to_end_is_ended_without_a_word(submit) -> None:
    pytest.importorskip("joblib")
    job = submit(
        """
        def stay(number):
            import threading, time
            threading.Thread(target=time.sleep, args=(600,)).start()
            return number

        @on_cpu
        def train():
            import joblib
            return joblib.Parallel(n_jobs=2)(joblib.delayed(stay)(number) for number in range(2))
        """
    )

    assert job.result(cleanup=False) == [0, 1]
    assert job.logs() == ""


def pool_left_open(work: str) -> str:
    """Return a job whose function leaves a pool of one forked process behind, which has done some work."""
    return f"""
import concurrent.futures, multiprocessing.util, threading, time

def work(number):
    {work}
    return number

@on_cpu
def train():
    global pool
    pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    return list(pool.map(work, range(1)))
"""


def test_a_pool_that_the_function_did_not_close_ends_without_a_word_as_python_ends_it(submit) -> None:
    job = submit(pool_left_open('multiprocessing.util.Finalize(None, print, args=("ended",), exitpriority=1)'))

    assert job.result(cleanup=False) == [0]
    assert job.logs() == "ended\n"


def test_a_pool_whose_worker_cannot_end_is_named_and_ended_with_the_job(submit) -> None:
    job = submit(pool_left_open("threading.Thread(target=time.sleep, args=(600,)).start()"))

    assert job.result(cleanup=False) == [0]
    assert "kinetic: process ForkProcess-1 still ran and was ended with the job\n" in job.logs()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_line_of_a_child_process_is_in_the_log_at_once(submit, method: str) -> None:
    job = submit(
        """
        def work():
            print("begun")
            os.kill(os.getpid(), 9)

        @on_cpu
        def train(method):
            import multiprocessing
            child = multiprocessing.get_context(method).Process(target=work)
            child.start()
            child.join()
        """,
        f"train.run_async({method!r})",
    )

    job.result(cleanup=False)

    assert job.logs() == "begun\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the name of C's stream is Linux's")
def test_what_c_prints_is_in_the_log(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import ctypes
            c = ctypes.CDLL(None)
            if not os.fork():
                c.printf(b"a line\\n")
                os._exit(0)
            os.wait()
            c.printf(b"no line")
        """
    )

    job.result(cleanup=False)

    assert job.logs() == "a line\nno line"


def test_exit_handlers_run_after_the_result(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import atexit
            atexit.register(print, "goodbye")
            return 1
        """
    )

    assert job.result(cleanup=False) == 1
    assert job.wait(timeout=5) is kinetic.JobStatus.SUCCEEDED
    assert "goodbye" in job.logs()


def test_an_exit_handler_that_takes_for_ever_is_given_five_seconds(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    import atexit\n    atexit.register(time.sleep, 300)\n    return 1")
    began = time.monotonic()

    assert job.result(timeout=60) == 1

    assert time.monotonic() - began < 5 + SOON / 2


# ------------------------------------------------------------------------------------------------- sudden ends


SUDDEN = {
    "os._exit": ("os._exit(3)", "ended by itself with exit code 3", "the last words", "exit"),
    "a fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV, a segmentation fault", "in train", "signal"),
    "an abort": ("os.abort()", "ended by SIGABRT", "in train", "signal"),
    "SIGTERM": ("os.kill(os.getpid(), 15)", "ended by SIGTERM, sent from outside", "the last words", "signal"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "ended by SIGKILL: it was killed with kill -9", "the last words", "signal"),
    "a real-time signal": ("os.kill(os.getpid(), 40)", "ended by signal 40", "the last words", "signal"),
}


@pytest.mark.parametrize(("how", "said", "words", "code"), SUDDEN.values(), ids=list(SUDDEN))
def test_a_sudden_end_is_told_in_a_plain_sentence_with_the_last_lines(
    submit, how: str, said: str, words: str, code: str
) -> None:
    job = submit(f"@on_cpu\ndef train():\n    print('the last words')\n    sys.stdout.flush()\n    {how}")

    with pytest.raises(RuntimeError) as raised:
        job.result(timeout=30)

    assert said in raised.value.what
    assert words in raised.value.why
    assert raised.value.code == code
    assert job.status() is kinetic.JobStatus.FAILED


def test_a_segmentation_fault_leaves_the_python_stacks_in_the_log(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    import ctypes\n    ctypes.string_at(0)")

    job.wait(timeout=30)

    assert "Fatal Python error: Segmentation fault" in job.logs()
    assert re.search(r"line \d+ in train", job.logs())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_from_outside_ends_a_job_as_failed(submit, home: Path, wait_until, number: signal.Signals) -> None:
    job = submit("@on_cpu\ndef train():\n    print('at work', flush=True)\n    time.sleep(300)")
    wait_until(lambda: "at work" in job.logs(), "the beginning of the function")

    os.kill(worker_of(home), number)

    with pytest.raises(RuntimeError, match=number.name):
        job.result(timeout=SOON)


def test_a_job_may_catch_the_signal_and_save_its_work(submit, home: Path, wait_until) -> None:
    job = submit(
        """
        import signal

        def stop(*_):
            raise kinetic.errors.Preempted("saved at step 3")

        @on_cpu
        def train():
            signal.signal(signal.SIGTERM, stop)
            print("at work", flush=True)
            time.sleep(300)
        """
    )
    wait_until(lambda: "at work" in job.logs(), "the beginning of the function")

    os.kill(worker_of(home), signal.SIGTERM)

    with pytest.raises(kinetic.errors.Preempted, match="saved at step 3"):
        job.result(timeout=SOON)


# ------------------------------------------------------------------------------------------------- the deadline


@pytest.mark.parametrize(
    "stuck", ["time.sleep(300)", "sum(range(10**14))", "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(300)"]
)
def test_a_deadline_ends_a_job_and_leaves_the_stacks_of_all_threads(submit, stuck: str) -> None:
    job = submit(
        f"""
        import signal, threading

        def waits_elsewhere():
            time.sleep(300)

        def stuck():
            {stuck}

        @on_cpu
        def train():
            threading.Thread(target=waits_elsewhere, daemon=True).start()
            stuck()
        """,
        "train.with_options(deadline=0.4).run_async()",
    )
    began = time.monotonic()

    with pytest.raises(RuntimeError, match=r"ended at its deadline of 0\.4 s") as raised:
        job.result(timeout=30)

    assert time.monotonic() - began < SOON
    assert raised.value.code == "deadline"
    assert "in stuck" in job.logs()
    assert "in waits_elsewhere" in job.logs()


def test_the_deadline_may_come_from_the_environment(submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_DEADLINE", "0.3")

    job = submit("@on_cpu\ndef train(): time.sleep(300)")

    with pytest.raises(RuntimeError, match=r"ended at its deadline of 0\.3 s"):
        job.result(timeout=30)


def test_a_deadline_that_is_met_changes_nothing(submit) -> None:
    job = submit("@on_cpu\ndef train(): return 1", "train.with_options(deadline=30).run_async()")

    assert job.result() == 1


# ------------------------------------------------------------------------------------------------- a full disk


@pytest.fixture
def on_a_small_disk(project, home: Path) -> Callable[[str], str]:
    """Return a function that runs a script whose store has a disk of 24 MiB, which only it and its jobs can see."""

    def run(text: str) -> str:
        (home / "store").mkdir(parents=True)
        project.write("script.py", HEAD + text.format(disk=home / "store"))
        rights = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        mount = f"mount -t tmpfs -o size=24m none {home}/store && exec {sys.executable} {project.root}/script.py"
        try:
            tried = subprocess.run(
                ["unshare", *rights, "--mount", "mount", "-t", "tmpfs", "none", str(home / "store")],
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            pytest.skip("a small disk cannot be mounted here: there is no unshare")
        if tried.returncode:
            pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
        done = project.execute("unshare", *rights, "--mount", "sh", "-c", mount)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


TELL = """
job = train.run_async()
try:
    job.result(timeout=30)
except RuntimeError as error:
    print(error.code, job.status().value, error.what, "next: ", error.next)
"""


def test_a_value_that_does_not_fit_on_the_disk_is_a_failure_that_says_so(on_a_small_disk) -> None:
    out = on_a_small_disk("@on_cpu\ndef train(): return os.urandom(40 << 20)\n" + TELL)

    assert out.startswith("disk-full FAILED train failed: the value does not fit on the disk: [Errno 28]")
    assert "next:  free some space there" in out


def test_a_verdict_finds_room_on_a_disk_that_the_job_filled_to_the_last_byte(on_a_small_disk) -> None:
    out = on_a_small_disk(
        """
@on_cpu
def train():
    with open("{disk}/filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError as error:
            print(error)
    return bytes(1 << 20)
"""
        + TELL
    )

    assert out.startswith("disk-full FAILED train failed: the value does not fit on the disk")
    assert "next:  free some space there" in out


# ------------------------------------------------------------------------------------------------- files and logs


def test_files_left_in_the_working_folder_are_named_with_the_way_out(submit, home: Path, wait_until) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            os.makedirs("deep")
            for name in ("model.txt", "deep/table.csv"):
                with open(name, "w") as file:
                    file.write("x")
        """
    )

    job.result(cleanup=False)

    (line,) = [line for line in job.logs().splitlines() if line.startswith("kinetic: the job wrote ")]
    assert "deep/table.csv, model.txt into its working folder; they are not kept" in line
    assert f"write into KINETIC_OUTPUT_DIR ({job.output_dir})" in line
    # os.walk passes over a folder that is removed meanwhile.
    wait_until(lambda: not any("model.txt" in names for *_, names in os.walk(home)), "the end of the working folder")


def test_files_left_by_a_job_that_failed_are_kept_for_a_day(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    open('model.txt', 'w').close()\n    raise ValueError(3)")

    with pytest.raises(ValueError, match="3"):
        job.result()

    _, _, kept = job.logs().partition("model.txt into its working folder; it is kept for 24 h in ")
    assert Path(kept.partition(";")[0], "model.txt").exists()


def test_text_of_any_kind_is_shown_as_it_was_printed(project) -> None:
    odd = [
        "[/tmp/x]",
        "[bold]not bold[/bold]",
        "[red]",
        "100% \\x1b[31mred",
        "progress\\rline",
        "tab\\tend",
        "ünïcödé ✓",
    ]

    out = project.out(
        f"""
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            for text in {odd!r}:
                print(text)
            sys.stdout.flush()
            sys.stdout.buffer.write(b"not utf-8: \\xff\\n")

        if __name__ == "__main__":
            train()
            job = train.run_async()
            job.result(cleanup=False)
            print("=====")
            print(job.logs(), end="")
            print("=====")
            job.logs(follow=True)
        """
    )

    expected = "".join(f"{text}\n" for text in odd) + "not utf-8: \ufffd\n"
    streamed, whole, followed = out.split("=====\n")
    assert whole == expected
    assert followed == expected
    assert streamed == expected


def test_the_order_of_the_two_streams_and_of_programs_is_true(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import subprocess
            for number in range(50):
                print("out", number)
                print("err", number, file=sys.stderr)
            os.system("echo system")
            print("two")
            subprocess.run(["echo", "a child"])
            print("three")
            os.waitpid(os.posix_spawnp("echo", ["echo", "spawned"], os.environ), 0)
            print("the end")
        """
    )

    job.result(cleanup=False)

    lines = job.logs().splitlines()
    assert lines[:100] == [f"{stream} {number}" for number in range(50) for stream in ("out", "err")]
    assert lines[100:] == ["system", "two", "a child", "three", "spawned", "the end"]


def test_the_tail_is_exactly_the_last_lines(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    for number in range(100_000): print('line', number)")

    job.result(cleanup=False)

    assert job.tail(5).splitlines() == [f"line {number}" for number in range(99_995, 100_000)]
    assert job.tail(1) == "line 99999"
    assert job.tail(0) == ""
    assert len(job.tail().splitlines()) == 100


# ------------------------------------------------------------------------------------------------- memory


def test_a_large_array_peaks_at_little_more_than_twice_its_size_on_either_side(project) -> None:
    pytest.importorskip("numpy")
    size = 256 << 20

    out = project.out(
        f"""
        import json, resource, sys
        import numpy
        import kinetic

        SCALE = 1 if sys.platform == "darwin" else 1024

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * SCALE

        @kinetic.run(accelerator="cpu")
        def train(size):
            import atexit
            before = peak()
            atexit.register(lambda: print("PEAK", peak() - before, flush=True))
            return numpy.ones(size, dtype=numpy.uint8)

        if __name__ == "__main__":
            assert len(train(1)) == 1
            before = peak()
            job = train.run_async({size})
            value = job.result(cleanup=False)
            after = peak()
            assert value.nbytes == {size}
            job.wait(timeout=10)
            print(json.dumps([after - before, job.logs()]))
        """
    )

    here, log = last_json(out)
    there = int(re.search(r"PEAK (\d+)", log)[1])
    assert here <= 2.2 * size, f"here: {here / size:.2f} times"
    assert there <= 2.2 * size, f"in the job: {there / size:.2f} times"


# ------------------------------------------------------------------------------------------------- retries


FAILS = """
@on_cpu
def train():
    attempt = int(os.environ["KINETIC_ATTEMPT"])
    print("this is attempt", attempt)
    if attempt < FAILURES:
        raise ValueError(f"attempt {attempt}")
    return attempt
train = train.with_options(retries=RETRIES)
"""


@pytest.fixture
def failures() -> int:
    """How often a job fails that is tried again."""
    return 2


def test_a_job_that_fails_is_tried_again_under_its_own_id(submit, project, failures: int) -> None:
    job = submit(FAILS.replace("FAILURES", str(failures)).replace("RETRIES", "2"))

    assert job.result(cleanup=False) == failures
    numbers = range(failures + 1)
    log = [project.kinetic("jobs", "logs", job.job_id, "--attempt", str(number)).stdout for number in numbers]
    assert [f"this is attempt {number}\n" in log[number] for number in numbers] == [True] * len(numbers)
    assert "kinetic: attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 2)" in log[0]
    assert job.logs() == log[-1]


def test_a_job_that_failed_is_tried_again_though_its_supervisor_was_killed_before_it_saw_that(
    submit, project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"supervisor:worker-ended@{tmp_path / 'killed'}")
    job = submit(FAILS.replace("FAILURES", "1").replace("RETRIES", "1"))

    assert job.result(cleanup=False) == 1
    assert (tmp_path / "killed").exists()
    log = project.kinetic("jobs", "logs", job.job_id, "--attempt", "0").stdout
    assert log.count("kinetic: attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 1)") == 1


def test_without_retries_left_the_last_failure_is_the_one_that_is_raised(submit) -> None:
    job = submit(FAILS.replace("FAILURES", "2").replace("RETRIES", "1"))

    with pytest.raises(ValueError, match="attempt 1"):
        job.result()


def test_a_crash_is_tried_again_as_well(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            if os.environ["KINETIC_ATTEMPT"] == "0":
                os.kill(os.getpid(), 9)
            return "well"
        train = train.with_options(retries=1)
        """
    )

    assert job.result() == "well"


def test_a_job_that_is_cancelled_is_not_tried_again(submit, wait_until) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            print("begun", flush=True)
            time.sleep(600)
        train = train.with_options(retries=5)
        """
    )
    wait_until(lambda: "begun" in (job.logs() or ""), "the job's first line")

    job.cancel()

    assert job.status() in {kinetic.JobStatus.FAILED, kinetic.JobStatus.NOT_FOUND}


@pytest.mark.skipif(not fuse.may_mount(), reason="this user may not mount")
def test_what_a_job_left_mounted_neither_holds_up_its_end_nor_is_emptied_with_its_folder(
    project, home, tmp_path, wait_until
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept.txt").write_text("of the user")

    out = project.out(f"""
        import os, subprocess, sys, kinetic

        @kinetic.run(accelerator="cpu")
        def mounts():
            os.makedirs("deep/bucket")
            os.mkdir("theirs")
            words = [sys.executable, {fuse.__file__!r}, "deep/bucket"]
            subprocess.Popen(words, stdout=subprocess.PIPE).stdout.readline()
            subprocess.run(["mount", "--bind", {str(tmp_path / "theirs")!r}, "theirs"], check=True)
            open("left.txt", "w").close()
            return os.getcwd()

        if __name__ == "__main__":
            print(mounts())
    """)

    folder = out.splitlines()[-1]
    assert "the job wrote left.txt into its working folder" in out
    wait_until(lambda: not os.path.exists(folder), "its folder is gone")
    assert folder not in Path("/proc/self/mountinfo").read_text()
    assert (tmp_path / "theirs" / "kept.txt").read_text() == "of the user"


@pytest.mark.skipif(find_spec("keras") is None or find_spec("tensorflow") is not None, reason="Keras has its own")
@pytest.mark.timeout(200)
def test_a_model_of_keras_that_needs_a_backend_says_which_and_can_be_collected_then(project) -> None:
    project.write("jobs.py", MODEL)

    said = project.out(
        """
        import os
        import kinetic
        from jobs import make

        if __name__ == "__main__":
            job = make.run_async()
            try:
                job.result()
            except kinetic.errors.ResultUnreadableError as error:
                print(error.next)
                os.environ["KERAS_BACKEND"] = "jax"
            print(job.result().count_params())
        """,
        timeout=180,
    )

    assert said.splitlines()[-2:] == ["set KERAS_BACKEND=jax, as in the job, and collect it again", "6"]


MODEL = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def make():
        import keras
        return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
"""
