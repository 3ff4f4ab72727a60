"""The snippets of the manual fit kinetic's types, also those that run only where PyTorch or its like is installed.

A block without a file name continues the one before it, as in test_docs_snippets. No test runs ``py`` blocks, which are
parts: they continue the last file of their page.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from flows.test_docs_snippets import FENCE, NAME, PAGES, README, ROOT

SETTINGS = {
    "typeCheckingMode": "basic",
    "extraPaths": [str(ROOT / "src")],
    "reportMissingImports": False,  # other packages, installed or not: what is checked are the names of kinetic
    "reportOptionalMemberAccess": False,  # `batch.jobs[0].tail()`: None only for an input that could not be submitted
    "reportRedeclaration": False,  # a page shows a function twice
    "reportUnusedExpression": False,  # the last line of a notebook's cell
}
PARSERS = {"yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads, "json": json.loads}


def write_snippets(folder: Path) -> int:
    """Write the Python of each page into a folder of its own, and return how many files that makes."""
    count = 0
    for page in [README, *PAGES]:
        if page.name == "api.md":
            continue  # its `py` blocks are signatures
        files: dict[str, str] = {}
        last = ""
        for _, language, text in FENCE.findall(page.read_text()):
            if language not in {"python", "py"}:
                continue
            named = NAME.match(text)
            last = named[1] if named else last or "snippet.py"
            files[last] = text if named else f"{files.get(last, '')}\n{text}"
        for name, text in files.items():
            path = folder / page.stem.replace("-", "_") / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            compile(text, str(path), "exec")
            count += 1
    return count


@pytest.mark.timeout(300)
def test_snippets_fit_the_types_of_kinetic(tmp_path: Path):
    assert write_snippets(tmp_path) > 80  # otherwise this test has lost its way in the pages
    roots = [{"root": each.name} for each in sorted(tmp_path.iterdir())]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({**SETTINGS, "executionEnvironments": roots}))

    bare = str(Path(sys.base_prefix, "bin", "python3"))  # none of our packages: the same everywhere, and quick
    command = [sys.executable, "-m", "pyright", "--pythonpath", bare, "--outputjson", "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    found = json.loads(done.stdout)["generalDiagnostics"]
    said = [f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}" for each in found]
    assert said == [], "\n".join(said)


def test_blocks_of_data_can_be_parsed():
    blocks = [
        (page, language, text)
        for page in [README, *PAGES]
        for _, language, text in FENCE.findall(page.read_text())
        if language in PARSERS
    ]

    assert len(blocks) > 10
    for page, language, text in blocks:
        assert PARSERS[language](text), f"{page.relative_to(ROOT)}: an empty block"
