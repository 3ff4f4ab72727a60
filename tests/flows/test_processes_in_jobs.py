"""Processes that a job starts import the script as what it is, and pools of them work as here."""

from __future__ import annotations

import multiprocessing
import sys

import pytest
from flows.conftest import last_json


def test_processes_are_started_in_the_job_as_the_script_has_said_or_a_module_of_it(project) -> None:
    project.write(
        "spawned.py",
        """
        import multiprocessing

        if multiprocessing.get_start_method(allow_none=True) is None:
            multiprocessing.set_start_method("spawn")

        def which():
            return multiprocessing.get_start_method()
        """,
    )
    text = """
        import json
        import multiprocessing
        import kinetic
        {first}

        def ask(_):
            return multiprocessing.get_start_method()

        @kinetic.run(accelerator="cpu")
        def started():
            {then}
            with multiprocessing.Pool(1) as pool:
                return pool.map(ask, [1])

        if __name__ == "__main__":
            {guarded}
            print(json.dumps(started()))
        """

    by_the_script = project.out(
        text.format(first="", then="", guarded='multiprocessing.set_start_method("forkserver")')
    )
    by_a_module = project.out(text.format(first="import spawned", then="spawned.which()", guarded=""))
    by_nobody = project.out(text.format(first="", then="", guarded=""))

    assert last_json(by_the_script) == ["forkserver"]
    assert last_json(by_a_module) == ["spawn"]
    assert last_json(by_nobody) == [multiprocessing.get_context().get_start_method()]


def test_processes_that_a_job_spawns_import_the_script_as_the_module_that_it_is(project) -> None:
    project.write("mine/__init__.py", "")
    project.write("mine/factors.py", "FACTOR = 3")
    project.write(
        "mine/train.py",
        """
        import json
        import multiprocessing
        import kinetic
        from .factors import FACTOR  # which has no meaning in a file that is run by its path

        def scaled(x):
            return FACTOR * x

        @kinetic.run(accelerator="cpu")
        def train():
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                return pool.map(scaled, [1, 2])

        if __name__ == "__main__":
            print(json.dumps(train()))
        """,
    )

    done = project.execute(sys.executable, "-m", "mine.train")

    assert last_json(done.stdout) == [3, 6], done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_processes_work_with_the_scripts_functions_and_classes(project, method: str) -> None:
    project.write(
        "pools.py",
        f"""
        import multiprocessing
        import pickle
        import typing
        import kinetic

        class Model:
            def __init__(self, size):
                self.size = size

        def work(model):
            return Model(model.size + 1)

        Count = typing.NewType("Count", int)

        @kinetic.run(accelerator="cpu")
        def decorated(number):
            return Count(number + 1)

        def in_pool():
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                models = pool.map(work, [Model(1), Model(2)])
                return sorted(model.size for model in models), pool.map(decorated, [3])

        @kinetic.run(accelerator="cpu")
        def train():
            assert type(pickle.loads(pickle.dumps(Model(1)))) is Model
            return in_pool()

        def submitted_by_pool():
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                return [job.result() for job in pool.map_async(decorated.run_async, [5]).get(60)]

        if __name__ == "__main__":
            print(in_pool(), train(), submitted_by_pool())
        """,
    )

    done = project.run("pools.py")

    assert done.stdout.endswith("([2, 3], [4]) ([2, 3], [4]) [6]\n"), done.stderr
    assert "sent by value" not in done.stderr  # the script is __mp_main__ in a process of the pool
    assert done.stderr.count("decorated is pickled as the plain function: a process that gets it runs it itself") == 1


def test_functions_in_pools_of_joblib_submit_the_jobs_that_they_would_submit_here(project) -> None:
    pytest.importorskip("joblib")
    project.write(
        "pools.py",
        """
        import json
        import os
        import joblib
        import kinetic

        @kinetic.run(accelerator="cpu", tags={"whose": "own"})
        def train(number):
            return number if "KINETIC_JOB_ID" in os.environ else None

        tagged = train.with_options(tags={"whose": "other"})

        def calls(number):
            job = tagged.run_async(number)
            return train(number), job.result(), job.tags

        if __name__ == "__main__":
            found = []
            for backend in ("loky", "multiprocessing"):
                pool = joblib.Parallel(n_jobs=2, backend=backend)
                [called] = pool([joblib.delayed(calls)(1)])
                [job] = pool([joblib.delayed(tagged.run_async)(2)])
                [plain] = pool([joblib.delayed(train)(3)])
                found.append([*called, job.result(), job.tags, plain])
            print(json.dumps(found))
        """,
    )

    done = project.run("pools.py")

    other = {"whose": "other"}
    assert last_json(done.stdout) == [[1, 1, other, 2, other, None]] * 2, done.stderr


def test_a_pool_works_with_functions_of_a_module(project) -> None:
    project.write("lib.py", "def helper(number): return number + 1")

    out = project.out(
        """
        import concurrent.futures
        import multiprocessing
        import kinetic
        from lib import helper

        @kinetic.run(accelerator="cpu")
        def train():
            spawn = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
                return list(pool.map(helper, [1, 2]))

        if __name__ == "__main__":
            print(train())
        """
    )

    assert out.endswith("[2, 3]\n")


def test_what_reads_from_a_process_of_the_client_sees_its_end_while_the_supervisor_waits_for_jobs(project) -> None:
    project.write(
        "jobs.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def double(number):
            return number * 2

        def in_a_process():
            print(double(21))
        """,
    )

    # Its resource tracker ends when every copy of a pipe is closed, one of which each process inherits that it makes.
    printed = project.out(
        """
        import multiprocessing
        import jobs

        if __name__ == "__main__":
            process = multiprocessing.get_context("spawn").Process(target=jobs.in_a_process)
            process.start()
            process.join()
        """,
        timeout=30,
    )

    assert printed.splitlines() == ["42"]
