"""Each script of examples/ runs on this machine and prints what it promises, or says which package is missing here.

The scripts with checkpoints of Keras and Orbax have tests of their own in test_outputs.py. Of those that train with
JAX, Keras or scikit-learn, two are drawn; `make nightly` runs all, and `make test-torch` those with PyTorch.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

# Some train for real, in jobs that each import their libraries.
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("few_threads")]

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED_ELSEWHERE = {"resume_keras.py": "test_outputs.py", "resume_orbax.py": "test_outputs.py"}
# Script: the packages it needs, and what it prints.
PRINTED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "checkpoint_json.py": ((), (r"\{'attempt': 1, 'begun': 50, 'sum': 5050\}",)),
    "chained_jobs.py": ((), (r"the best: \{'rate': 0\.5, 'score': 142\.5\}", "published with 0")),
    "command_jobs.py": ((), ("ended with 0 and wrote 0.01", "sh -c 'exit 3' ended with exit code 3 - FAILED")),
    "data_folder.py": (
        (),
        (r"first: \{'a.txt': 3, 'b.txt': 5\}", r"then: \{'a.txt': 3, 'b.txt': 6\}", "differs: True"),
    ),
    "detached_job.py": ((), ("it ended as SUCCEEDED", "five: 12 letters so far", "its value: 12")),
    "digits.py": (("jax", "keras", "sklearn"), (r"accuracy: 9\d\.\d% of 360",)),
    "first_job.py": ((), ("the job says 5", "without a job: 5")),
    "lora_tiny.py": (("torch", "transformers", "peft"), (r"adapter_config.json",)),
    "optuna_search.py": (("optuna", "sklearn"), (r"round 1: best so far 0\.9",)),
    "output_plot.py": ((), ("the highest point: 81", r"the picture: .*curve\.svg \d+ bytes")),
    "profile_jax.py": (("jax",), (r"perfetto_trace\.json\.gz", r"\.xplane\.pb")),
    "retry_flaky.py": ((), ("3 gave 30", "4 failed: 4 never works", r"failed jobs: \[4\]")),
    "slice_sum.py": (("jax",), (r"\{'hosts': 4, 'chips': 16, 'sum': 120\.0\}",)),
    "sweep.py": (("sklearn",), ("12 trainings: grp-",)),
    "tensorboard_curves.py": (("tensorboardX",), ("3 curves: ",)),
    "test_with_fake.py": ((), ("passed: three jobs",)),
    "torch_digits.py": (("torch", "sklearn"), (r"'accuracy': 0\.9",)),
    "two_steps.py": ((), ("prepared: 10", r"trained: \[22\.5, 45\.0\]")),
    "vllm_generate.py": (("vllm",), ("…",)),
    "volume_words.py": ((), ("words: 3",)),
}


TRAIN = {"jax", "keras", "optuna", "sklearn"}  # ten to twenty seconds of the processor for each script
TAKE_LONG = pytest.mark.sampled(2)


def cases() -> list[object]:
    """Return the scripts; those with PyTorch are no sample, since a run either has it for all of them or skips them."""
    needs = {name: {*packages} for name, (packages, _) in sorted(PRINTED.items())}
    long = {name for name, packages in needs.items() if packages & TRAIN and "torch" not in packages}
    return [pytest.param(name, marks=[TAKE_LONG] if name in long else []) for name in needs]


def skip_without(packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)}: needed by this example, and not installed here")


@pytest.mark.parametrize("name", cases())
def test_an_example_prints_what_it_promises(name: str, project):
    packages, expected = PRINTED[name]
    skip_without(packages)
    project.write(name, (EXAMPLES / name).read_text())

    done = project.run(name, timeout=280)

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert [words for words in expected if not re.search(words, done.stdout)] == [], done.stdout


def test_the_cells_of_the_notebook_run_in_a_real_kernel_and_show_what_they_promise(project, monkeypatch):
    skip_without(("ipykernel", "nbclient", "sklearn"))
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "src"))
    monkeypatch.setenv("IPYTHONDIR", str(project.root.parent / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    folder = {"metadata": {"path": str(project.root)}}

    nbclient.NotebookClient(notebook, timeout=280, kernel_name="python3", resources=folder).execute()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.get("text", "") for output in outputs)
    data = [output.data for output in outputs if "data" in output]
    drawn = "".join("".join(each.get("text/html", "")) for each in data)
    values = [each["text/plain"] for each in data if "text/html" not in each]
    assert "trying C = 1.0" in printed  # the log of a call that waits
    assert drawn.count("<b>kinetic job</b>") == 2
    assert "<b>kinetic batch</b>" in drawn
    assert any(re.fullmatch(r"\[0\.9\d+, 0\.9\d+, 0\.9\d+\]", value) for value in values), values
    assert "0.206" in values
    assert "return 1 / number" in printed


def test_every_example_has_a_test_and_a_row_in_the_manual():
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".ipynb"}}
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()

    assert files == {*PRINTED, *TESTED_ELSEWHERE, "notebook.ipynb"}
    assert [name for name in sorted(files) if f"(../examples/{name})" not in page] == []
    for name, file in TESTED_ELSEWHERE.items():
        assert name in (Path(__file__).parent / file).read_text()
