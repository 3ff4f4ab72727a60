"""The working folder of a job goes to the next one, which makes it what its own project is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from kinetic._runner import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")


@pytest.fixture
def one_at_a_time(monkeypatch) -> None:
    """Let one supervisor do all jobs."""
    monkeypatch.setenv("KINETIC_LOCAL_SLOTS", "1")
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # bytecode is left as well


HANDED_ON = """
    import json, os, stat, sys
    import kinetic

    def spoil(how):
        about = os.stat("told.txt")
        if how == "same size and time":
            with open("told.txt", "r+") as file:
                file.write("lies!")
            os.utime("told.txt", ns=(about.st_atime_ns, about.st_mtime_ns))
        elif how == "another file":
            open("more.txt", "w").close()
        elif how == "an empty folder":
            os.mkdir("more")
        elif how == "no file":
            os.unlink("told.txt")
        elif how == "another mode":
            os.chmod("told.txt", 0o640)
        elif how == "a link":
            os.link("told.txt", os.path.join("..", "elsewhere"))
        elif how == "and says that it did not":
            import pathlib
            from kinetic._runner.worker import workspace
            spoil("same size and time")
            frame = sys._getframe()
            while "unpacked" not in frame.f_locals:
                frame = frame.f_back
            left = frame.f_locals["unpacked"].left
            left = left._replace(state=workspace._state_of(workspace._look(pathlib.Path()), ()), young=())
            line = json.dumps({"phase": "execute", "workspace": left._asdict()})
            for number in map(int, os.listdir("/dev/fd")):
                if number > 2 and os.path.exists(f"/dev/fd/{number}") and stat.S_ISFIFO(os.fstat(number).st_mode):
                    os.write(number, f"\\n{line}\\n".encode())
        elif how == "at its exit":
            import atexit
            atexit.register(lambda: os.unlink("told.txt"))

    @kinetic.run(accelerator="cpu")
    def child(how):
        with open("told.txt") as file:
            text = file.read()
        names = sorted(set(os.listdir(".")) - {"__pycache__"})
        mode = os.stat("told.txt").st_mode & 0o777
        is_in_its_own = os.path.dirname(os.getcwd()).endswith(os.environ["KINETIC_JOB_ID"])
        about = os.stat("told.txt")
        spoil(how)
        return [text, names, mode, is_in_its_own, (about.st_ino, about.st_ctime_ns)]
"""
SPOILED = (
    *("same size and time", "another file", "an empty folder", "no file", "another mode", "a link", "at its exit"),
    *("and says that it did not", ""),
)
BESIDE_IT = ("another file", "an empty folder")
BEFORE = 3  # children that change nothing: the second one compares bytes, and then the folder is known by its state


def test_a_child_takes_over_a_working_folder_only_if_it_is_as_it_was_sent(project, one_at_a_time) -> None:
    project.write("jobs.py", HANDED_ON)
    project.write("told.txt", "truth")

    inputs = [how for last in SPOILED for how in (*[""] * BEFORE, last)]
    code = f"import json\nfrom jobs import *\nprint(json.dumps(child.run_async_map({inputs!r}).results()))"
    found = json.loads(project.out(code))

    files = [tuple(each.pop()) for each in found]  # with their time of change: a new file may get a number used before
    assert all(each == found[0] for each in found)
    text, names, _, is_in_its_own_folder = found[0]
    assert (text, is_in_its_own_folder) == ("truth", True)
    assert {"jobs.py", "told.txt"} <= set(names)
    assert not {"more", "more.txt"} & set(names)
    assert files == [each for each in files[:: BEFORE + 1] for _ in range(BEFORE + 1)]  # but for who spoiled it
    assert len(set(files)) == len(SPOILED) - len(BESIDE_IT)


JOBS = """
    import os
    import subprocess
    import kinetic
    import helper

    def seen():
        about = {name: os.stat(name) for name in os.listdir(".") if os.path.isfile(name)}
        files = {name: (each.st_ino, each.st_ctime_ns) for name, each in about.items()}
        bytecode = os.stat(helper.__spec__.cached)
        text = open("script.py").read()
        return helper.VALUE, files, (bytecode.st_ino, bytecode.st_ctime_ns), os.getppid(), text

    @kinetic.run(accelerator="cpu")
    def look():
        return seen()

    @kinetic.run(accelerator="cpu")
    def fail():
        raise ValueError(seen())

    @kinetic.run(accelerator="cpu")
    def mount(source):
        os.mkdir("mounted")
        subprocess.run(["mount", "--bind", source, "mounted"], check=True)
        return os.listdir("mounted")
"""


class Seen:
    """What a job saw of its working folder."""

    def __init__(self, text: str) -> None:
        self.value, self.files, self.bytecode, self.supervisor, self.script = json.loads(text)

    def same_files(self, other: Seen) -> set[str]:
        return {name for name, file in self.files.items() if other.files.get(name) == file}


@pytest.fixture
def look(project, one_at_a_time):
    """Return what calls a function of the project in a new process, and what its job saw."""
    project.write("jobs.py", JOBS)
    project.write("helper.py", "VALUE = 1\n")

    def call(function: str = "look") -> Seen:
        body = (
            f"    try:\n        found = {function}()\n    except ValueError as error:\n        found = error.args[0]\n"
        )
        code = f"import json\nfrom jobs import *\nif __name__ == '__main__':\n{body}    print(json.dumps(found))\n"
        return Seen(project.out(code).splitlines()[-1])  # before it, the log of the job

    return call


def test_a_call_of_the_same_project_has_the_files_and_the_bytecode_of_the_one_before(look) -> None:
    first, second, third = look(), look(), look()

    assert first.files == second.files == third.files
    assert first.bytecode == second.bytecode == third.bytecode
    assert first.supervisor == third.supervisor


def test_after_an_edit_a_call_has_the_new_file_and_the_others_of_the_one_before(look, project) -> None:
    first = look()
    about = (project.root / "helper.py").stat()
    project.write("helper.py", "VALUE = 2\n")  # as long as before, and as old: bytecode of it would count as fresh
    os.utime(project.root / "helper.py", ns=(about.st_atime_ns, about.st_mtime_ns))

    second, third = look(), look()

    assert (first.value, second.value, third.value) == (1, 2, 2)
    assert second.same_files(first) == first.files.keys() - {"helper.py"}
    assert third.files == second.files


def test_a_call_that_raised_leaves_its_folder_as_well(look) -> None:
    first, failed, last = look(), look("fail"), look()

    assert failed.same_files(first) == last.same_files(failed) == first.files.keys() - {"script.py"}
    assert last.script == first.script != failed.script


def test_a_module_that_a_job_makes_and_removes_is_not_run_by_the_next_job_which_makes_another(
    project, one_at_a_time
) -> None:
    """Python takes bytecode for that of a source of the same size and second."""
    project.write(
        "jobs.py",
        """
        import importlib, os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def make(value):
            with open("settings.py", "w") as file:
                file.write(f"VALUE = {value}")
            os.utime("settings.py", (1_800_000_000, 1_800_000_000))
            importlib.invalidate_caches()
            import settings
            os.unlink("settings.py")
            return settings.VALUE
        """,
    )

    assert project.out("from jobs import *\nprint(make.run_async_map([1, 2, 3]).results())").strip() == "[1, 2, 3]"


def test_what_numba_has_compiled_is_found_by_the_next_jobs_until_a_source_is_edited(project, one_at_a_time) -> None:
    """Numba compiles a function again once its own file has changed, but not once one that it calls has."""
    project.write(
        "jobs.py",
        """
        import os, pathlib
        import helper, kinetic

        @kinetic.run(accelerator="cpu")
        def compile_helper():
            kept = pathlib.Path("__pycache__", "helper.total-3.py312.nbi")  # as Numba names it
            if was_there := kept.exists():
                return was_there
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(b"compiled")
            return was_there
        """,
    )
    project.write("helper.py", "VALUE = 1\n")
    project.write("data.txt", "one")

    def call() -> str:
        return project.out("from jobs import *\nprint(compile_helper())").splitlines()[-1]

    first, second = call(), call()
    project.write("data.txt", "two")
    after_an_edit_of_data = call()
    project.write("others.py", "VALUE = 2\n")

    assert (first, second, after_an_edit_of_data, call(), call()) == ("False", "True", "True", "False", "True")


WRITES = """
    import os, pathlib, helper, kinetic
    from jobs import seen

    @kinetic.run(accelerator="cpu")
    def write(how):
        names = sorted(set(os.listdir(".")) - {"__pycache__"})
        if how == "files":
            for name in ("model.bin", "runs/one/events", "package/checkpoint"):
                pathlib.Path(name).parent.mkdir(parents=True, exist_ok=True)
                pathlib.Path(name).touch()
        elif how == "too many":
            for number in range(20):
                pathlib.Path(f"part-{number}").touch()
        elif how == "too much":
            with open("model.bin", "wb") as file:
                file.truncate(65 << 20)
        elif how == "and fails":
            pathlib.Path("model.bin").touch()
            raise ValueError([names, *seen()])
        elif how == "beside it":
            pathlib.Path("..", "precious").mkdir()
            pathlib.Path("..", "precious", "value").touch()
            os.symlink(os.path.join("..", "precious"), "link")
        return [names, *seen()]
"""


@pytest.mark.parametrize(
    ("how", "is_kept"),
    [("files", True), ("beside it", True), ("too many", False), ("too much", False), ("and fails", False)],
)
def test_the_next_job_uses_a_folder_without_what_the_one_before_wrote_if_that_is_soon_removed(
    look, project, how, is_kept
) -> None:
    project.write("writes.py", WRITES)
    project.write("package/data.txt", "")

    def call(how: str) -> tuple[list[str], Seen]:
        body = f"try:\n    found = write({how!r})\nexcept ValueError as error:\n    found = error.args[0]\n"
        names, *found = json.loads(
            project.out(f"import json\nfrom writes import *\n{body}print(json.dumps(found))\n").splitlines()[-1]
        )
        return names, Seen(json.dumps(found))

    names, first = call("")
    _, wrote = call(how)
    names_after, last = call("")

    assert names_after == names
    assert wrote.same_files(first) >= {"helper.py", "jobs.py"}
    assert bool(last.same_files(first)) is is_kept


def test_what_a_job_wrote_into_its_folder_after_it_had_moved_that_elsewhere_stays(project, look, tmp_path) -> None:
    project.write(
        "moves.py",
        """
        import os, shutil, kinetic

        @kinetic.run(accelerator="cpu")
        def move(to):
            folder = os.getcwd()
            shutil.move(folder, to)
            os.symlink(to, folder)
            with open(os.path.join(folder, "result.csv"), "w") as file:
                file.write("precious")
        """,
    )
    to = tmp_path / "scratch"

    project.out(f"from moves import *\nmove({str(to)!r})")
    look()

    assert (to / "result.csv").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_what_a_job_left_mounted_in_its_folder_stays_whole(look, project, tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    code = f"from jobs import *\nprint(mount({str(precious)!r}))"

    try:
        assert "data" in project.out(code)
        look()
        assert "data" in project.out(code)
    finally:
        for _, point in processes.mounts():
            if point.endswith("/mounted"):
                subprocess.run(["umount", point], check=False)

    assert [each.name for each in precious.iterdir()] == ["data"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_it_goes_with_the_supervisor_that_kept_it(look, home, wait_until, how) -> None:
    def kept() -> list:
        return [*home.glob("run/*/jobs/workspace-*")]

    supervisor = look().supervisor
    assert len(kept()) == 1

    os.kill(supervisor, how)

    if how == signal.SIGKILL:
        wait_until(lambda: not os.path.exists(f"/proc/{supervisor}"), "its end")
        assert look().supervisor != supervisor  # which looks after what the other one left
        assert len(kept()) == 1
    else:
        wait_until(lambda: not kept(), "the removal of its folder")


def test_a_folder_in_which_somebody_has_a_shell_is_not_the_next_job_s(look, project) -> None:
    first = look()
    project.write(
        "held.py",
        """
        import os, subprocess, sys, time, kinetic
        import helper

        @kinetic.run(accelerator="cpu")
        def hold():
            while not os.path.exists("let-go"):
                time.sleep(0.01)
            os.unlink("let-go")

        job = hold.run_async()
        while job.status().value != "RUNNING":
            time.sleep(0.01)
        words = [sys.executable, "-m", "kinetic", "jobs", "shell", job.job_id, "--", "touch", "let-go"]
        assert subprocess.run(words).returncode == 0
        job.result()
    """,
    )

    done = project.run("held.py")
    last = look()

    assert done.returncode == 0, done.stderr
    assert last.supervisor == first.supervisor
    assert last.same_files(first) == set()
