"""Jobs and batches in a real kernel: cells that change in place, tracebacks with the lines of a cell, and the page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browser as browsers
import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.timeout(180)
EVIL = '<img src=x onerror="document.title=1">'
CELLS = [
    """
import os, time
import kinetic

@kinetic.run(accelerator="cpu")
def train(steps, path):
    for step in range(steps):
        kinetic.progress(step + 1, 2 * steps, loss=0.5)
    while not os.path.exists(path):
        time.sleep(0.02)
    return steps
""",
    "job = train.run_async(10, os.path.abspath('go'))\njob",
    """
from IPython.display import display
display(job)
while (found := job.progress()) is None or found.done < 10:
    time.sleep(0.05)
time.sleep(2.5)
open("go", "w").close()
job.wait()
time.sleep(2.5)
""",
    """
SECRET = "never sent"

def helper(number):
    text = "a line of this cell"
    return 1 / number


@kinetic.run(accelerator="cpu")
def fails(number):
    before = 1
    return helper(number) + before

failed = fails.run_async(0)
print(failed.exception().__notes__[0])
""",
    f"""

batch = kinetic.collections.map(train, [dict(steps=n, path=os.getcwd()) for n in range(1, 4)], name={EVIL!r})
batch
""",
    "values = batch.results()\nvalues",
    """
@kinetic.run(accelerator="cpu")
def pause(seconds):
    time.sleep(seconds)

print(len(kinetic.collections.map(pause, [2.5, 0]).results()))
""",
    "quick = kinetic.collections.map(pause, [0, 0])\nquick",
    "quick.results()",
    "single = pause.run_async(0)\nsingle",
    "single.result()",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Run the cells in a real kernel with a home of its own, and return the notebook with its outputs."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        prepare(folder, patch)
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
        client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder / "work")}}
        )
        client.execute()
        yield notebook


def prepare(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Give the kernels that are started from now on a home below a folder, and its ``work`` as their project."""
    patch.setenv("KINETIC_HOME", str(folder / "home"))
    patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    patch.setenv("IPYTHONDIR", str(folder / "ipython"))
    patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "jupyter"))
    patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    (folder / "work").mkdir()
    (folder / "work" / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\n')


def pages(cell: Any) -> list[str]:
    return ["".join(output.data["text/html"]) for output in cell.outputs if "text/html" in output.get("data", {})]


def test_the_card_of_a_job_is_one_output_that_followed_it_to_its_end(executed: Any) -> None:
    (page,) = pages(executed.cells[2])

    assert "SUCCEEDED" in page
    assert 'aria-valuenow="50"' in page
    assert "10 of 20, loss 0.5" in page
    (output,) = [each for each in executed.cells[2].outputs if each.output_type == "display_data"]
    assert re.fullmatch(r"cpu-train-\S+: SUCCEEDED, 10 of 20, loss 0.5", output.data["text/plain"])


def test_the_same_output_was_drawn_at_the_end_of_a_cell(executed: Any) -> None:
    (page,) = pages(executed.cells[1])

    assert "<b>kinetic job</b>" in page


def test_a_traceback_from_a_job_has_the_lines_of_the_cell_and_nothing_else_of_it(executed: Any) -> None:
    (output,) = executed.cells[3].outputs

    assert "return helper(number) + before" in output.text
    assert "return 1 / number" in output.text
    assert "ZeroDivisionError" in output.text
    assert "never sent" not in output.text


def test_a_batch_is_a_grid_in_which_names_are_text(executed: Any) -> None:
    (page,) = pages(executed.cells[4])

    assert "<b>kinetic batch</b>" in page
    assert page.count('title="[') == 3
    assert EVIL not in page
    assert executed.cells[5].outputs[-1].data["text/plain"] == "[1, 2, 3]"


def test_results_that_take_a_while_come_with_a_bar_in_one_output(executed: Any) -> None:
    (page,) = pages(executed.cells[6])

    assert 'aria-valuenow="100"' in page
    assert "2 succeeded" in page
    assert "kinetic: grp" not in "".join(each.get("text", "") for each in executed.cells[6].outputs)


def test_cards_of_a_notebook_that_ends_soon_show_what_the_next_cell_has_waited_for(executed: Any) -> None:
    (batch,), (job,) = pages(executed.cells[7]), pages(executed.cells[9])

    assert "2 succeeded" in batch
    assert "SUCCEEDED" in job


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_and_names_are_text_in_a_real_browser(dark: bool, executed: Any, tmp_path: Path) -> None:
    browsers.skip_without_browser()
    drawn = "".join(f"<section>{page}</section>" for cell in executed.cells for page in pages(cell))
    colors = "background:#111;color:#eee" if dark else "background:#fff;color:#111"
    page = tmp_path / "notebook.html"
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Notebook</title><body style="{colors}">'
        f"<main><h1>Notebook</h1>{drawn}</main>"
    )

    with browsers.chromium() as browser, browsers.visit(browser, page.as_uri(), dark=dark) as visit:
        assert visit.violations() == []
        assert visit.page.title() == "Notebook"
        assert EVIL in visit.page.inner_text("main")
        assert visit.page.locator("img").count() == 0
        box = visit.page.get_by_role("progressbar").first.bounding_box()
        assert box is not None
        assert box["width"] > 100
        assert visit.errors == []


def test_autoreload_updates_a_decorated_function_that_was_imported_by_name(project: Any) -> None:
    out = project.out("""
        import os
        from IPython.core.interactiveshell import InteractiveShell

        def edit(number):
            with open("edited.py", "w") as file:
                file.write("import kinetic\\n@kinetic.run(accelerator='cpu')\\ndef train():\\n")
                file.write(f"    return {number}\\n")
            os.utime("edited.py", (number, number))

        edit(1)
        shell = InteractiveShell.instance(colors="nocolor")
        shell.run_cell("%load_ext autoreload")
        shell.run_cell("%autoreload 2")
        shell.run_cell("from edited import train; later = train.run_async")
        edit(2)
        shell.run_cell("print(train.local(), train(), later().result())")
    """)

    assert out.splitlines()[-1] == "2 2 2"


def test_interrupting_a_cell_that_awaits_a_job_ends_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_client import manager  # installed with nbclient

    prepare(tmp_path, monkeypatch)
    cell = """
import os, time, kinetic

@kinetic.run(accelerator="cpu")
def pause(folder):
    open(f"{folder}/began", "w").close()
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)

await pause.run_async(os.getcwd())
"""
    kernels, client = manager.start_new_kernel(cwd=str(tmp_path / "work"))
    try:
        asked = client.execute(cell)
        while not (tmp_path / "work" / "began").exists():
            time.sleep(0.02)
        kernels.interrupt_kernel()
        output = []
        while not output or output[-1].get("execution_state") != "idle":
            message = client.get_iopub_msg(timeout=30)
            output += [message["content"]] if message["parent_header"].get("msg_id") == asked else []
        (tmp_path / "work" / "go").touch()
    finally:
        client.stop_channels()
        kernels.shutdown_kernel()

    assert any("ename" in each for each in output)
    assert "keeps running" in "".join(each.get("text", "") for each in output)


@pytest.mark.parametrize("is_loaded_first", [True, False])
def test_autoreload_reaches_what_was_imported_beside_a_decorated_function(is_loaded_first: bool, project: Any) -> None:
    program = """
        import os
        from IPython.core.interactiveshell import InteractiveShell

        def edit(number, train, other):
            with open("edited.py", "w") as file:
                file.write(f"import kinetic\\ndef other(): return {other}\\n")
                file.write(f"class Model:\\n    def size(self): return {other}\\n")
                file.write("@kinetic.run(accelerator='cpu')\\ndef train(model):\\n")
                file.write(f"    return {train}, other(), model.size()\\n")
            os.utime("edited.py", (number + 4e9, number + 4e9))

        edit(1, 1, 1)
        shell = InteractiveShell.instance(colors="nocolor")
        cells = "from edited import Model, other, train", "%load_ext autoreload", "%autoreload 2"
        for cell in (*cells[1:], cells[0]) if IS_LOADED_FIRST else cells:
            shell.run_cell(cell)
        edit(2, 1, 2)
        shell.run_cell("print(other(), Model().size(), train(Model()), train.local(Model()))")
        edit(3, 2, 2)
        shell.run_cell("print(other(), Model().size(), train(Model()), train.local(Model()))")
        edit(4, 2, 3)
        shell.run_cell("print(other(), Model().size(), train(Model()), train.local(Model()))")
    """.replace("IS_LOADED_FIRST", str(is_loaded_first))

    project.write("cells.py", program)
    done = project.run("cells.py")

    seen = done.stdout.splitlines()[-3:]
    assert seen == ["2 2 (1, 2, 2) (1, 2, 2)", "2 2 (2, 2, 2) (2, 2, 2)", "3 3 (2, 3, 3) (2, 3, 3)"], done.stderr
    assert "edited since" not in done.stderr


def test_a_class_of_a_cell_that_has_fields_only_is_defined_in_the_job_by_the_cell_that_was_run_last(
    project: Any,
) -> None:
    pytest.importorskip("msgspec")
    out = project.out("""
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance(colors="nocolor")
        shell.run_cell("import kinetic, msgspec")
        shell.run_cell("async def nothing(): pass")
        first = "class Point(msgspec.Struct, frozen=True):\\n    x: int\\n    y: int = 1\\nawait nothing()"
        cells = first, first.replace("1", "2"), first
        shell.run_cell("@kinetic.run(accelerator='cpu')\\ndef move(point): return point, Point(point.x + 1)")
        for cell in cells:
            shell.run_cell(cell, store_history=True)
            shell.run_cell("before = Point(3); found = move(before); print(found, type(found[1]) is Point)")
    """)

    one, two = (f"(Point(x=3, y={y}), Point(x=4, y={y})) True" for y in (1, 2))
    assert out.splitlines() == [one, two, one]


def test_a_function_that_asks_whether_it_is_in_a_notebook_hears_that_it_is_not(project: Any) -> None:
    project.write(
        "cell.py",
        """
        import os
        import kinetic

        def shell_name():
            try:
                return type(get_ipython()).__name__
            except NameError:
                return "none"

        @kinetic.run(accelerator="cpu")
        def look():
            os.system("true")
            return shell_name()

        print(look.local(), look())
        """,
    )
    out = project.out("""
        from IPython.core.interactiveshell import InteractiveShell

        with open("cell.py") as cell:
            InteractiveShell.instance(colors="nocolor").run_cell(cell.read())
    """)

    assert out == "InteractiveShell none\n"


def test_importing_kinetic_loads_nothing_of_notebooks(project: Any) -> None:
    out = project.out("""
        import sys
        import kinetic
        theirs = ("IPython", "ipykernel", "kinetic._output", "linecache")
        print([name for name in sys.modules if name.startswith(theirs)])
    """)

    assert out == "[]\n"
