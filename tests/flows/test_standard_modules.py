"""A user's file with the name of one of Python's own modules is not imported in its place by kinetic."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from .conftest import Project  # type: ignore[import-not-found,unused-ignore]

RUNS_ITSELF = """
    import kinetic

    print("the script runs as", __name__)

    @kinetic.run(accelerator="cpu")
    def two():
        return 2

    if __name__ == "__main__":
        print(two())
"""
CALLS = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def double(n):
        return 2 * n

    @kinetic.run(accelerator="cpu")
    def read(folder):
        return {"one": open(f"{folder}/one.txt").read()}

    @kinetic.run(accelerator="cpu")
    def fail():
        raise ValueError("it failed")

    if __name__ == "__main__":
        print(double(4))
        print(read(kinetic.Data("set")))
        print(double.run_async_map([1, 2]).results())
        try:
            fail.run_async().result(stream_logs=False)
        except ValueError as error:
            print(error)
        print(double.run_async(1).result())
"""


def test_a_script_with_the_name_of_a_standard_module_runs_once(project: Project) -> None:
    project.write("array.py", RUNS_ITSELF)

    done = project.run("array.py")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["the script runs as __main__", "2"]
    assert "array.py has the name" not in done.stderr  # nobody imports a script


def test_none_of_kinetics_own_imports_takes_a_file_of_the_project(project: Project, tmp_path: Path) -> None:
    """Every standard module has a namesake in the project that leaves a line when it is imported, here and there."""
    imported = tmp_path / "imported"
    for name in sys.stdlib_module_names - {"__main__", "this", "antigravity"}:
        project.write(f"{name}.py", f"open({str(imported)!r}, 'a').write('{name}\\n')\nimport {name}_is_not_there\n")
    (project.root / "set").mkdir()
    project.write("set/one.txt", "1")
    project.write("script.py", CALLS)

    done = project.run("script.py")

    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("kinetic: ")] == [
        "8",
        "{'one': '1'}",
        "[2, 4]",
        "it failed",
        "2",
    ]
    assert not imported.exists(), imported.read_text()
    assert f"{project.root / 'hashlib.py'} has the name of Python's own module 'hashlib'" in done.stderr


def test_a_file_that_was_imported_in_place_of_a_standard_module_is_named_when_kinetic_needs_that(
    project: Project,
) -> None:
    project.write("queue.py", "mine = 1\n")
    project.write("script.py", "import queue\n" + textwrap.dedent(CALLS))

    done = project.run("script.py")

    assert done.returncode == 1
    assert f"{project.root / 'queue.py'} is loaded in place of Python's own module 'queue': rename" in done.stderr


def test_a_module_of_the_users_is_still_what_their_own_code_imports(project: Project) -> None:
    project.write("statistics.py", "mine = 7\n")

    out = project.out("""
        import kinetic

        @kinetic.run(accelerator="cpu")
        def here():
            import statistics
            return statistics.mine

        if __name__ == "__main__":
            import statistics
            print(statistics.mine, here())
    """)

    assert out == "7 7\n"
