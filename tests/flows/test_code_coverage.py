"""coverage.py reports the lines that jobs run, in the files of the user, with its settings for other processes."""

from __future__ import annotations

import sys

import coverage
import pytest

SETTINGS = "[run]\nsource = .\n"
PATCHED = f"{SETTINGS}patch = subprocess\n"
LIBRARY = """
    def told(number):
        if number == 1:
            return "one"
        if number == 2:
            return "two"
        if number == 3:
            return "three"
        return "many"

    print("never", told(0)) if __name__ == "__main__" else None
"""
PROGRAM = """
    import subprocess
    import sys

    import kinetic
    import library

    @kinetic.run()
    def count(number):
        if number == 3:
            subprocess.run([sys.executable, "-c", "import library; library.told(3)"], check=True)
            raise ValueError("three")
        return library.told(number)

    if __name__ == "__main__":
        assert count(1) == "one"
        assert count.run_async_map([2]).results() == ["two"]
        try:
            count(3)
        except ValueError:
            pass
"""


@pytest.fixture
def measured(project):
    """Run Python under coverage.py, and return the lines that were run, by file, with what was said."""
    project.write("library.py", LIBRARY)
    project.write("program.py", PROGRAM)

    def run(settings: str, *words: str) -> tuple[dict[str, list[int]], str]:
        project.write(".coveragerc", settings)
        said = ""
        for line in (["run", *words], ["combine"], ["report"]):
            done = project.execute(sys.executable, "-m", "coverage", *line)
            assert done.returncode == 0, done.stdout + done.stderr
            said += done.stdout + done.stderr
        found = coverage.CoverageData(project.root / ".coverage")
        found.read()
        prefix = f"{project.root}/"
        return {path.removeprefix(prefix): sorted(found.lines(path) or ()) for path in found.measured_files()}, said

    return run


def test_lines_that_jobs_and_their_processes_run_are_in_the_report_of_the_program_that_submitted_them(measured) -> None:
    lines, said = measured(PATCHED, "program.py")

    assert lines["library.py"] == [2, 3, 4, 5, 6, 7, 8, 11]  # three was told in a process of a job
    assert lines["program.py"] == [2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 20, 21]
    assert {*lines} == {"library.py", "program.py"}  # and no copy of them
    assert "Warning" not in said


def test_the_next_job_of_the_same_supervisor_is_measured_as_well_and_without_the_settings_none_is(measured) -> None:
    for _ in range(2):
        lines, _ = measured(PATCHED, "program.py")
        assert lines["library.py"] == [2, 3, 4, 5, 6, 7, 8, 11]

    lines, _ = measured(f"{SETTINGS}parallel = true\n", "program.py")

    assert lines["library.py"] == [2, 11]


def test_no_file_of_kinetic_that_goes_with_its_runtime_folder_is_in_the_report(measured) -> None:
    lines, _ = measured("[run]\npatch = subprocess\n", "program.py")

    assert lines["library.py"] == [2, 3, 4, 5, 6, 7, 8, 11]
    assert [path for path in lines if "/runners/" in path] == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [(None, "coverage.py measures nothing here"), ("/proc/nowhere", "what coverage.py measured cannot be written")],
)
def test_a_job_that_cannot_be_measured_says_so_in_its_log_and_has_its_value(project, settings, said) -> None:
    if settings is not None:
        project.write("settings", f"[run]\ndata_file = {settings}/.coverage\n")
    script = """
        import os
        import kinetic

        os.environ["COVERAGE_PROCESS_START"] = os.path.abspath("settings")

        @kinetic.run()
        def one():
            return 1

        print(one())
    """

    out = project.out(script)

    assert said in out
    assert out.splitlines()[-1] == "1"
