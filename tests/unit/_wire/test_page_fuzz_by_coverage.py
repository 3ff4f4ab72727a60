"""Every reader of a page, for a minute each, with inputs that reach further into its code; `make nightly` runs it.

KINETIC_FUZZ_SECONDS says how long each reader is tried. The first inputs are the honest pages of ``test_page_fuzz``.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = int(os.environ.get("KINETIC_FUZZ_SECONDS", "60"))


def _names() -> list[str]:
    """Return the names of the readers, without importing the module of another test."""
    tree = ast.parse((HERE / "test_page_fuzz.py").read_text())
    (readers,) = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "READERS"
    ]
    return [ast.literal_eval(key) for key in readers.keys]


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: there is no wheel of it for this Python or system; see [dependency-groups] fuzz",
)
@pytest.mark.parametrize("name", _names())
def test_no_input_that_reaches_new_code_gets_anything_but_our_errors_out_of_a_reader(name, tmp_path) -> None:
    limits = [f"-max_total_time={SECONDS}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536"]
    command = [sys.executable, str(HERE / "fuzz_a_page.py"), name, str(tmp_path), *limits]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False)

    assert done.returncode == 0, done.stderr[-4000:]
