"""Cells of a notebook and a warm pod: they use it without a word, also when a cell with their function runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flows.kube.test_warm_pods import pods_of_warm

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

DEFINED = """
import kinetic, os

@kinetic.run(accelerator="cpu"{more})
def train(x):
    return x * {factor}

print(train(2))
"""


def executed(clients: Any, home: Path, monkeypatch: pytest.MonkeyPatch, *cells: str) -> list[str]:
    """Run cells in a real kernel, and return what each printed."""
    folder = home.parent / "notebook"
    folder.mkdir()
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(folder / name.lower()))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "src"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {"metadata": {"path": str(clients.project.root)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout")
        for cell in notebook.cells
    ]


def test_cells_use_the_warm_pod_also_when_their_function_is_defined_anew(
    clients: Any, site: Any, home: Path, kinetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = kinetic("warm", "start", "cpu", "--idle", "10m")
    (home / "warm-pods.json").unlink()  # as on another machine, which has started none

    printed = executed(
        clients,
        home,
        monkeypatch,
        DEFINED.format(more="", factor=1),
        DEFINED.format(more="", factor=10),
        DEFINED.format(more=', keep_warm="10m"', factor=100),
    )

    assert started.code == 0, started.err
    assert printed == ["2\n", "20\n", "200\n"]
    assert len(pods_of_warm(site)) == len(site.pods_of()) == 1
