"""Modules are found in a job as in its script, and by the Python that the script has."""

from __future__ import annotations

import ast
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from flows.conftest import last_json


def test_the_path_keeps_the_order_that_the_client_had(project) -> None:
    project.write("first/which.py", "NAME = 'first'")
    project.write("second/which.py", "NAME = 'second'")

    out = project.out(
        """
        import json, os, sys
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path[:0] = [os.path.join(here, "second"), os.path.join(here, "first")]
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            import which
            return [which.NAME, [os.path.basename(entry) for entry in sys.path[:2]]]

        print(json.dumps(train()))
        """
    )

    assert last_json(out) == ["second", ["second", "first"]]


def test_a_folder_above_the_script_hides_no_installed_package_that_has_its_name(project) -> None:
    project.write("pyproject.toml", "")
    project.write("cloudpickle/__init__.py", "raise ImportError('a folder of the project')")
    project.write("click.py", "raise ImportError('a module of the project')")
    project.write("ours/__init__.py", "NAME = 'ours'")
    script = project.write(
        "scripts/train.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            import click
            import ours
            return callable(click.echo), ours.NAME

        print(train())
        """,
    )

    done = project.execute(sys.executable, str(script))

    assert done.stdout == "(True, 'ours')\n", done.stderr


def test_packages_of_a_folder_that_a_script_put_on_the_path_are_found(project, tmp_path: Path) -> None:
    for folder, name in (("lib/site-packages", "near"), ("target", "far")):  # the other as `pip install --target` does
        (tmp_path / folder / name).mkdir(parents=True)
        (tmp_path / folder / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / folder / name / "__init__.py").write_text(f"def where():\n    return {name!r}\n")

    value = project.out(
        f"""
        import sys
        sys.path += [{str(tmp_path / "lib/site-packages")!r}, {os.path.relpath(tmp_path / "target", project.root)!r}]
        import far, near
        import kinetic

        @kinetic.run(accelerator="cpu")
        def both(_=0):
            return near.where(), far.where()

        print(both(), both.run_async_map([1]).results())
        """
    )

    assert value.strip() == "('near', 'far') [('near', 'far')]"


def test_an_installed_program_runs_its_jobs_wherever_it_is_started(project, tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"  # a package of the user's, started as by cron
    installed.mkdir()
    (installed / "trainer.py").write_text(
        "import kinetic, os\n@kinetic.run(accelerator='cpu')\ndef train():\n    return os.listdir()\n"
    )
    script = f"import sys; sys.path.append({str(installed)!r}); import trainer; print(trainer.train())"

    done = project.execute(sys.executable, "-c", script, cwd=Path("/"))

    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert "no files are sent, because the current directory is the whole disk: /" in done.stderr


def test_packages_in_a_folder_of_the_project_that_is_not_sent_are_found_where_they_are(project) -> None:
    project.write(".kineticignore", "vendor/\n")
    project.write("vendor/near-1.0.dist-info/METADATA", "")
    project.write("vendor/near/__init__.py", "import threading\nLOCK = threading.Lock()\nclass Item: pass\n")

    value = project.out(
        """
        import sys
        sys.path.insert(0, "vendor")
        import near
        import kinetic

        @kinetic.run(accelerator="cpu")
        def where(item):
            with near.LOCK:
                return isinstance(item, near.Item), near.__file__

        print(*where(near.Item()))
        """
    )

    assert value == f"True {project.root}/vendor/near/__init__.py\n"


def test_what_pythonpath_names_is_the_same_module_however_a_function_comes_by_it(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / name / "library").mkdir(parents=True)
        (tmp_path / name / "library" / "shared.py").write_text(
            f"import threading\nLOCK, NAME = threading.Lock(), {name!r}\nclass Thing: pass\n"
        )
    project.write(
        "script.py",
        """
        import kinetic
        from shared import LOCK, Thing

        @kinetic.run(accelerator="cpu")
        def names():
            import shared
            assert shared.LOCK is LOCK and shared.Thing is Thing
            return shared.NAME

        print(names())
        """,
    )

    def run_in(name: str, path: str) -> tuple[str, str]:
        monkeypatch.setenv("PYTHONPATH", path)
        done = project.run("script.py", cwd=tmp_path / name)
        return done.stdout, done.stderr

    relative = [run_in(name, "library") for name in ("first", "second")]
    absolute = run_in("first", f"{tmp_path}/second/library")
    monkeypatch.setenv("PYTHONPATH", "../second/library")
    asks = ["-m", "kinetic", "run", "--", "python", "-c", "import shared; print(shared.NAME)"]
    command = project.execute(sys.executable, *asks)

    printed, said = zip(*relative, absolute, (command.stdout, command.stderr), strict=True)
    assert printed == ("first\n", "second\n", "second\n", "second\n"), said
    assert "by value" not in "".join(said)


def test_what_does_not_ship_goes_by_value_and_that_is_said_once(project, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "stranger.py").write_text("def double(n): return 2 * n\n")

    project.write(
        "script.py",
        f"""
        import sys
        sys.path.append("{tmp_path}/outside")
        import kinetic
        from stranger import double

        @kinetic.run(accelerator="cpu")
        def train(n):
            return double(n)

        print(train(1) + train(2))
        """,
    )
    done = project.run("script.py")

    assert done.stdout.endswith("6\n"), done.stderr
    assert done.stderr.count("stranger is sent by value: its file is outside the project") == 1


@pytest.mark.parametrize("program", ["", "/usr/bin/true"])
def test_a_program_that_has_python_inside_submits_jobs_to_the_python_of_its_environment(project, program: str) -> None:
    value = project.out(
        f"""
        import sys
        sys.executable = {program!r}  # as in uWSGI
        import kinetic

        @kinetic.run(accelerator="cpu")
        def python():
            return sys.executable, sys.prefix

        print(*python())
        """
    )

    assert value == f"{sys.prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]} {sys.prefix}\n"


def test_jobs_of_a_program_whose_python_a_profiler_replaced_by_a_script_run_without_it(project, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nMEASURED=1 exec {sys.executable} "$@"\n')  # as Scalene's
    script.chmod(0o700)

    value = project.out(
        f"""
        import os, sys
        sys.executable = {str(script)!r}
        import kinetic

        @kinetic.run(accelerator="cpu")
        def measured():
            with open(f"/proc/{{os.getppid()}}/environ") as file:
                return "MEASURED=" in file.read()

        print(measured())
        """
    )

    assert value == "False\n"


def test_a_batch_of_a_program_that_has_python_inside_is_resumed_by_a_python(project) -> None:
    group = project.out(
        """
        import os, sys
        sys.executable = "/usr/bin/true"  # as in uWSGI
        import kinetic

        @kinetic.run(accelerator="cpu")
        def python(number):
            return os.path.basename(sys.executable)

        print(python.run_async_map([1, 2, 3], max_concurrent=1).group_id, flush=True)
        os._exit(0)
        """
    ).strip()

    values = project.out(f"import kinetic\nprint(kinetic.attach_batch({group!r}, resume=True).results())")

    assert values == f"{3 * [f'python{sys.version_info[0]}.{sys.version_info[1]}']}\n"


def test_a_python_inside_the_project_has_its_own_modules_in_jobs(
    project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = project.root / ".pixi" / "envs" / "default"  # as of `conda create -p` as well, or without a sign
    for folder in ("bin", "lib"):
        (environment / folder).mkdir(parents=True)
    library = Path(os.__file__).parent
    (environment / "lib" / library.name).symlink_to(library)
    python = shutil.copy(os.path.realpath(sys.executable), environment / "bin")
    monkeypatch.setenv("PYTHONPATH", sysconfig.get_path("purelib"))

    value = project.out(
        """
        import os
        import kinetic

        @kinetic.run(accelerator="cpu")
        def paths():
            import argparse, sys
            return sys.prefix, argparse.__file__, os.listdir(".pixi/envs")

        print(*paths())
        """,
        python=str(python),
    )

    assert value == f"{environment} {environment}/lib/{library.name}/argparse.py []\n"


def test_jobs_outlive_the_environment_that_uv_run_makes_for_one_command(project, tmp_path: Path) -> None:
    def overlay(name: str) -> Path:  # as `uv run --with` makes it, over this environment
        folder = tmp_path / name
        packages = Path(sysconfig.get_path("purelib"))
        inside = folder / packages.relative_to(sys.prefix)
        inside.mkdir(parents=True)
        (inside / "_uv_ephemeral_overlay.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
        base = Path(os.path.realpath(sys.executable))
        (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\nextends-environment = {sys.prefix}\n")
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(base)
        return folder

    def submitted(folder: Path) -> str:
        return project.out(
            f"""
            import os
            import kinetic

            @kinetic.run(accelerator="cpu")
            def spawn(gone):
                import multiprocessing, sys, time
                while os.path.exists(gone):
                    time.sleep(0.01)
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    return pool.map(abs, [-3]), sys.prefix, os.environ["VIRTUAL_ENV"], os.environ["KINETIC_SUPERVISOR"]

            if __name__ == "__main__":
                os.environ["VIRTUAL_ENV"] = {str(folder)!r}
                print(spawn.run_async({str(folder)!r}).job_id)
            """,
            python=str(folder / "bin" / "python"),
        ).strip()

    found = []
    for name in ("first", "second"):
        job_id = submitted(folder := overlay(name))
        shutil.rmtree(folder)
        found.append(project.out(f"import kinetic\nprint(kinetic.attach({job_id!r}).result())"))

    (values, prefix, active, _), *_ = map(ast.literal_eval, found)
    assert found[0] == found[1]  # they share their supervisor
    assert (values, active) == ([3], prefix)
