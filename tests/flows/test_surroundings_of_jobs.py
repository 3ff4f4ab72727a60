"""What a job finds around it: numbers and folders of its own, captured variables, and what each process has anew."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from flows.conftest import last_json

WORLD = """
import json, os, sys
import kinetic

@kinetic.run(accelerator="cpu", capture_env_vars=["MY_*"])
def world():
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "file": getattr(main, "__file__", None),
        "cwd": os.getcwd(),
        "path": sys.path[:4],
        "environ": {k: v for k, v in os.environ.items() if k.startswith(("KINETIC_", "MY_", "THEIRS"))},
        "output_is_there": os.path.isdir(os.environ["KINETIC_OUTPUT_DIR"]),
        "stdin": sys.stdin.read(),
        "umask": os.umask(0o077),
        "beside": open("beside.txt").read(),
    }

if __name__ == "__main__":
    os.umask(0o027)
    job = world.run_async()
    found = job.result(cleanup=False)
    print(json.dumps([job.job_id, job.output_dir, found]))
"""


def test_a_job_has_the_scripts_place_and_words_in_a_copy_of_the_project_and_only_captured_variables(
    project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("jobs/beside.txt", "beside")
    project.write("jobs/look.py", WORLD)
    monkeypatch.setenv("MY_SECRET_TOKEN", "s3cr3t-c0ffee-1234567890")
    monkeypatch.setenv("THEIRS", "not asked for")

    done = project.run("jobs/look.py", "--rate", "3", cwd=project.root / "jobs")

    assert done.returncode == 0, done.stderr
    job_id, output_dir, found = last_json(done.stdout)
    variables = found["environ"]
    assert variables["KINETIC_JOB_ID"] == job_id
    assert [variables[f"KINETIC_{name}"] for name in ("ATTEMPT", "HOST_INDEX", "HOST_COUNT")] == ["0", "0", "1"]
    assert variables["MY_SECRET_TOKEN"] == "s3cr3t-c0ffee-1234567890"
    assert "THEIRS" not in variables
    assert variables["KINETIC_OUTPUT_DIR"] == output_dir
    assert found["output_is_there"]
    assert not Path(output_dir).exists()  # it left nothing there, so the empty folder is gone
    workspace = Path(found["cwd"]).parent
    assert found["cwd"].endswith("/jobs")
    assert workspace.is_relative_to(home)
    assert found["file"] == str(workspace / "jobs" / "look.py")
    assert found["argv"] == [found["file"], "--rate", "3"]
    assert found["path"][0] == str(workspace / "jobs")
    assert not [entry for entry in found["path"] if entry.startswith(str(project.root))]
    assert found["beside"] == "beside"
    assert found["umask"] == 0o027
    assert found["stdin"] == ""


def test_in_a_script_file_is_the_jobs_copy_also_for_jobs_that_it_submits(project, home: Path) -> None:
    project.write("beside.txt", "beside")
    out = project.out(
        """
        import json, pathlib
        import kinetic

        @kinetic.run(accelerator="cpu")
        def look(times, key=lambda: __file__):
            here = pathlib.Path(__file__)
            assert key() == __file__
            found = [str(here), here.with_name("beside.txt").read_text()]
            return [found, *look.run_async(times - 1).result()] if times > 1 else [found]

        print(json.dumps(look(2)))
        """
    )

    first, second = last_json(out)
    assert Path(first[0]).is_relative_to(home)
    assert Path(second[0]).is_relative_to(home)
    assert first[0] != second[0]
    assert first[1] == second[1] == "beside"


def test_a_captured_value_is_in_no_byte_of_the_store_and_nowhere_once_the_job_is_gone(
    project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-c0ffee-1234567890"
    monkeypatch.setenv("MY_TOKEN", secret)
    out = project.out(
        """
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["MY_TOKEN"])
        def train():
            import os
            return len(os.environ["MY_TOKEN"])

        job = train.run_async()
        print(job.result(cleanup=False))
        """
    )

    assert out.endswith(f"{len(secret)}\n")
    with_secret = [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert [path for path in with_secret if path.is_relative_to(home / "store")] == []
    assert all(path.stat().st_mode & 0o077 == 0 for path in with_secret)

    project.out("import kinetic; [job.cleanup() for job in kinetic.list_jobs()]")
    assert [path for path in home.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()] == []


def test_captured_variables_are_there_before_anything_is_unpickled(project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_MODE", "fast")
    project.write(
        "lib.py", "import os\nMODE = os.environ['MY_MODE']\nclass Model:\n    mode = MODE\ndef look(m): return m.mode"
    )

    out = project.out(
        """
        import kinetic
        from lib import Model, look

        print(kinetic.run(accelerator="cpu", capture_env_vars=["MY_MODE"])(look)(Model()))
        """
    )

    assert out.endswith("fast\n")


@pytest.mark.skipif(find_spec("rich") is None, reason="rich is needed, and it is not installed here")
def test_what_a_function_of_a_module_makes_once_is_there_in_the_job_where_importing_does_not_make_it(project) -> None:
    project.write(
        "shared.py",
        """
        import threading

        class Counter:
            def __init__(self):
                self.lock, self.count = threading.Lock(), 1

        _counter = None

        def counter():
            global _counter
            _counter = _counter or Counter()
            return _counter
        """,
    )
    script = """
    import json
    from rich.progress import Progress  # whose console is rich._console, which get_console() makes
    import kinetic, shared

    counter, progress = shared.counter(), Progress(disable=True)

    @kinetic.run(accelerator="cpu")
    def train():
        with counter.lock, progress:
            progress.update(progress.add_task("epochs", total=2), completed=2)
        return [counter.count, progress.finished]

    print(json.dumps(train()))
    """

    assert last_json(project.out(script)) == [1, True]


def test_locks_context_variables_and_what_else_each_process_has_of_its_own_are_made_anew_in_the_job(project) -> None:
    out = project.out(
        """
        import contextvars, json, queue, random, struct, threading
        import kinetic

        LOCK, TURN, STOP, DICE = threading.Lock(), threading.RLock(), threading.Event(), random.SystemRandom()
        STOP.set()
        LOCAL, HEADER, WAITING = threading.local(), struct.Struct("<H"), queue.Queue()
        THREAD = threading.Thread()
        LOCAL.depth = 3
        RATE = contextvars.ContextVar("RATE", default=1)
        USER = contextvars.ContextVar("USER")
        RATE.set(2)

        class Stack(threading.local):
            def __init__(self):
                self.names = []

        class Counter:
            lock = threading.Condition()

            def __init__(self):
                self.count, self._own = 0, threading.Semaphore()

            def add(self, number):
                with self.lock, self._own:
                    self.count += number
                return self

        STACK, COUNTER = Stack(), Counter()
        STACK.names.append("main")

        @kinetic.run(accelerator="cpu")
        def act():
            found = []
            other = threading.Thread(target=lambda: found.append(STACK.names))
            other.start()
            other.join()
            with LOCK, TURN:
                values = [LOCAL.depth, HEADER.size, RATE.get(), USER.get("nobody"), STOP.is_set(), STACK.names, *found]
            return [*values, 0 <= DICE.random() < 1], COUNTER.add(1)

        @kinetic.run(accelerator="cpu")
        def wait():
            return WAITING.get()

        @kinetic.run(accelerator="cpu")
        def start():
            THREAD.start()

        @kinetic.run(accelerator="cpu")
        def stopped(event):
            return event.is_set()

        values, counter = act()
        print(json.dumps([values, counter.add(1).count]))
        for function, *given in ((wait,), (start,), (stopped, STOP), (stopped, [TURN]), (stopped, COUNTER)):
            try:
                function.run_async(*given)
            except TypeError as error:
                print(str(error).splitlines()[0])
        """
    )

    said = out.splitlines()
    assert json.loads(said[-6]) == [[3, 2, 2, "nobody", True, ["main"], [], True], 2]
    assert said[-5:] == [
        "global 'WAITING' read by wait() cannot be pickled [not-picklable]",
        "global 'THREAD' read by start() cannot be pickled [not-picklable]",
        "argument 0 → ._cond._lock cannot be pickled [not-picklable]",
        "argument 0 → [0] cannot be pickled [not-picklable]",
        "argument 0 → ._own._cond._lock cannot be pickled [not-picklable]",
    ]


def test_what_a_process_has_one_of_is_the_jobs_own_however_a_script_has_imported_it(project, monkeypatch) -> None:
    monkeypatch.setenv("OF_THE_CLIENT", "secret")
    out = project.out(
        """
        import json
        import numpy.random
        import kinetic
        from os import environ
        from random import random, randint
        from numpy.random import rand

        @kinetic.run(accelerator="cpu")
        def draw(number):
            import os
            environ["SET_BY_THE_JOB"] = "1"
            return environ is os.environ and os.environ["SET_BY_THE_JOB"], "OF_THE_CLIENT" in environ, random(), rand()

        both = draw.run_async_map([1, 2]).results()
        drawn = [len({each[place] for each in both}) for place in (2, 3)]
        print(json.dumps([*both[0][:2], *drawn]))
        """
    )

    assert last_json(out) == ["1", False, 2, 2]


def test_each_job_has_a_python_of_its_own_where_grpc_is_used_as_soon_as_one_starts(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"  # as of `opentelemetry-instrument`
    (hooks / "grpc" / "_cython").mkdir(parents=True)
    (hooks / "grpc" / "_cython" / "cygrpc.py").write_text("import os\nused_in = os.getpid()\n")
    (hooks / "sitecustomize.py").write_text("import grpc._cython.cygrpc\n")
    monkeypatch.setenv("PYTHONPATH", str(hooks))

    out = project.out(
        """
        import json
        import kinetic

        @kinetic.run(accelerator="cpu")
        def works(number):
            import os
            from grpc._cython import cygrpc
            return cygrpc.used_in == os.getpid()  # not in a fork

        print(json.dumps([works(1), works(2), *works.run_async_map([1, 2]).results()]))
        """
    )

    assert last_json(out) == [True, True, True, True]
