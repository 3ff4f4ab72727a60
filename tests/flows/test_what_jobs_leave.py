"""What a job leaves running, mounted or in its folder does not hold up its end, and is ended or named."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import time
import zipfile
from pathlib import Path

import pytest
from flows.conftest import SOON
from servers import fuse

import kinetic
from kinetic.errors import JobError

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


def test_threads_of_executors_are_named_in_the_log_while_they_work_and_not_while_they_wait(submit) -> None:
    job = submit(
        """
        @on_cpu
        def train():
            import threading
            from concurrent.futures import ThreadPoolExecutor
            global idle, busy
            idle, busy = ThreadPoolExecutor(2, "idle"), ThreadPoolExecutor(2, "busy")
            idle.submit(abs, 1).result()
            working = threading.Event()
            busy.submit(lambda: working.set() or time.sleep(300))
            working.wait()
        """
    )

    job.result(cleanup=False)

    assert job.logs() == "kinetic: 1 thread(s) still ran and were ended with the job: busy_0\n"


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


def test_a_worker_of_joblib_that_takes_long_to_end_is_ended_with_the_exit_handler_that_waits_for_it(submit) -> None:
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
    assert job.logs() == "kinetic: exit handlers still ran after 5 s and were ended\n"


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


def test_files_that_the_function_left_open_are_written_to_their_end_as_python_does(submit, tmp_path: Path) -> None:
    job = submit(
        f"""
        class Trainer:
            def __init__(self, folder):
                import gzip
                self.me = self
                self.compressed = gzip.open(folder + "/log.gz", "wt")
                self.plain = open(folder + "/log.txt", "w")
                self.binary = open(folder + "/log.bin", "wb")

        @on_cpu
        def train():
            trainer = Trainer({str(tmp_path)!r})
            trainer.compressed.write("loss 0.5")
            trainer.plain.write("loss 0.25")
            trainer.binary.write(b"loss 0.125")
        """
    )

    assert job.wait(timeout=60) is kinetic.JobStatus.SUCCEEDED
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"loss 0.5"
    assert (tmp_path / "log.txt").read_text() == "loss 0.25"
    assert (tmp_path / "log.bin").read_bytes() == b"loss 0.125"


def test_classes_that_cannot_be_hashed_or_asked_do_not_keep_files_from_being_written(submit, tmp_path: Path) -> None:
    job = submit(
        f"""
        @on_cpu
        def train():
            import io

            class Same(type):
                def __eq__(cls, other):
                    return cls is other

            class Asked(type(io.BufferedIOBase)):
                def __subclasscheck__(cls, other):
                    raise RuntimeError("this class answers no questions")

            global kept
            kept = [Same("Unit", (), {{}})(), Asked("Sink", (io.BufferedIOBase,), {{}})]
            kept.append(open({str(tmp_path / "log.txt")!r}, "w"))
            kept[-1].write("loss 0.25")
        """
    )

    assert job.wait(timeout=60) is kinetic.JobStatus.SUCCEEDED
    assert (tmp_path / "log.txt").read_text() == "loss 0.25"
    assert "Traceback" not in job.logs()


def test_what_a_function_that_failed_had_open_is_closed_as_python_does(submit, tmp_path: Path) -> None:
    job = submit(
        f"""
        @on_cpu
        def train():
            import zipfile
            archive = zipfile.ZipFile({str(tmp_path / "weights.zip")!r}, "w")
            archive.writestr("weights", "0.5")
            raise ValueError("in the middle")
        """
    )

    assert job.wait(timeout=60) is kinetic.JobStatus.FAILED
    assert zipfile.ZipFile(tmp_path / "weights.zip").read("weights") == b"0.5"


def test_a_tracker_learns_from_excepthook_that_the_function_failed_as_in_python(submit) -> None:
    job = submit(
        """
        def hook(kind, error, trace):
            tracker.update(code=1, where=trace.tb_frame.f_code.co_name)
            sys.stderr.write("printed again")

        @on_cpu
        def train():
            import atexit
            global tracker
            tracker = {"code": 0}
            sys.excepthook = hook
            atexit.register(lambda: print("the run ended with", tracker))
            raise ValueError("in the middle")
        """
    )

    assert job.wait(timeout=60) is kinetic.JobStatus.FAILED
    assert job.logs().endswith("the run ended with {'code': 1, 'where': 'train'}\n")
    assert job.logs().count("ValueError: in the middle") == 1
    assert "printed again" not in job.logs()


def test_an_exit_handler_that_takes_for_ever_is_given_five_seconds_and_named(submit) -> None:
    job = submit("@on_cpu\ndef train():\n    import atexit\n    atexit.register(time.sleep, 300)\n    return 1")
    began = time.monotonic()

    assert job.result(timeout=60, cleanup=False) == 1

    assert time.monotonic() - began < 5 + SOON / 2
    assert job.logs() == "kinetic: exit handlers still ran after 5 s and were ended\n"


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
