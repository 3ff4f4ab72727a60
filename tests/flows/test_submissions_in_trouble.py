"""A call that cannot be submitted says why and what to do, and leaves no trace."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path


def test_a_call_that_cannot_be_pickled_leaves_no_trace(project, home: Path) -> None:
    out = project.out(
        """
        import sqlite3
        import kinetic
        DB = sqlite3.connect(":memory:")

        def helper():
            return DB

        @kinetic.run(accelerator="cpu")
        def train(*args):
            return helper()

        @kinetic.run(accelerator="cpu")
        def look(*args):
            return 1

        for attempt in (lambda: train.run_async(), lambda: look.run_async(1, 2, {"model": [DB]})):
            try:
                attempt()
            except TypeError as error:
                print(str(error).splitlines()[0])
        print(kinetic.list_jobs())
        """
    )

    assert "global 'DB' read by helper() cannot be pickled" in out
    assert "argument 2 → ['model'][0] cannot be pickled" in out
    assert out.endswith("[]\n")
    assert [path.name for path in home.glob("store/*") if path.name.startswith("cpu-")] == []
    assert [*home.glob("run/*/jobs/*")] == []


def test_what_a_script_defines_and_cannot_be_pickled_may_be_in_a_module_as_the_error_says(project) -> None:
    defined = """
        import sqlite3

        DB = sqlite3.connect(":memory:")

        class Counter:
            db = DB

            def count(self):
                with self.db:
                    return 3
        """
    calls = """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def locked():
            with DB:
                return 4

        @kinetic.run(accelerator="cpu")
        def counted():
            return Counter().count()

        @kinetic.run(accelerator="cpu")
        def with_the(db):
            return db is DB

        for function in (locked, counted, lambda: with_the.run_async_map([DB]).results()):
            try:
                print(function())
            except (TypeError, kinetic.errors.BatchError) as error:
                print(error)
        """
    project.write("shared.py", defined)

    alone = project.out(defined + calls)
    with_a_module = project.out("        from shared import Counter, DB\n" + calls)

    nexts = [line.removeprefix("next:  ") for line in alone.splitlines() if line.startswith("next:")]
    of_a_global = "create it inside the function or in a module that the script imports, or pass what is needed of it"
    assert nexts == [of_a_global, "define Counter in a module that the script imports", of_a_global]
    assert with_a_module.split() == ["4", "3", "[True]"]


def test_a_current_directory_that_was_removed_is_named(project) -> None:
    project.write(
        "script.py", "import kinetic\n\n@kinetic.run()\ndef train(): pass\n\nif __name__ == '__main__': train()\n"
    )
    script = project.root / "script.py"

    def run(*words: str) -> subprocess.CompletedProcess:
        command = shlex.join([sys.executable, *words])
        return project.execute("sh", "-c", f"mkdir -p gone; cd gone; rmdir ../gone; {command}")

    for done in (run(str(script)), run("-m", "kinetic", "run", f"{script}::train"), run("-m", "kinetic", "config")):
        assert "the current directory does not exist [project-root]\n" in done.stderr
        assert "Traceback" not in done.stderr
        assert done.returncode == 1


def test_a_folder_whose_name_is_not_utf8_is_named_with_what_to_do(project, home: Path, monkeypatch) -> None:
    project.write("script.py", "import kinetic\n\n@kinetic.run()\ndef train(): pass\n\ntrain()\n")
    odd = os.fsdecode(os.fsencode(project.root) + b"/odd\xff")
    shutil.copytree(project.root, odd, ignore=lambda *_: ["odd\udcff"])
    project.write("ünï/script.py", (project.root / "script.py").read_text())

    told = [project.execute(sys.executable, f"{odd}/script.py").stderr]
    monkeypatch.setenv("KINETIC_HOME", f"{odd}/home")
    told.append(project.run("script.py").stderr)
    monkeypatch.setenv("KINETIC_HOME", str(home))
    for name, value in {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}.items():
        monkeypatch.setenv(name, value)
    told.append(project.run("ünï/script.py").stderr)

    assert "ProjectRootError: the project's folder cannot be used: " in told[0]
    assert "SettingsError: the kinetic home " in told[1]
    assert ["why:   its path is not valid UTF-8\n" in text for text in told] == [True, True, False]
    assert "why:   Python reads the names of files as ascii here\nnext:  export LC_ALL=C.UTF-8\n" in told[2]


def test_too_many_open_files_are_called_that_and_no_file_is_blamed(project) -> None:
    out = project.out(
        """
        import os, resource
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(number):
            return number

        train(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        held, advice = [], set()
        try:
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            pass
        for number in range(1, 30):
            try:
                train(number)
            except kinetic.errors.KineticError as error:
                advice.add(error.next)
            else:
                break
            os.close(held.pop())
        print(sorted(advice))
        """
    )

    assert out.splitlines()[-1] == "['close files that this program has open, or allow more: ulimit -n 4096']"


def test_an_argument_above_the_limit_for_the_size_of_files_says_how_to_raise_that(project) -> None:
    out = project.out(
        """
        import resource, signal
        import kinetic

        @kinetic.run(accelerator="cpu")
        def length(data):
            return len(data)

        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
        try:
            length(bytes(3_000_000))
        except kinetic.errors.StoreError as error:
            print(error.next)
        """
    )

    assert out.splitlines()[-1] == "allow larger files: ulimit -f unlimited"


def test_an_interpreter_that_is_gone_is_named_where_no_supervisor_can_be_started(project) -> None:
    out = project.out(
        """
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def add(a, b):
            return a + b

        sys.executable = "/gone/bin/python"
        try:
            add(1, 2)
        except kinetic.errors.LaunchError as error:
            print(error.why)
            print(error.next)
        """
    )

    assert out.splitlines()[-2] == "/gone/bin/python: No such file or directory"
    assert out.splitlines()[-1].startswith("check that /gone/bin/python is there and can be run")
