"""A fresh interpreter that tells what a piece of code loaded."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# -I and -S: nothing of this environment runs before us (a .pth file may import half the standard library), so what is
# loaded afterwards was loaded by the code under test. Everything installed stays reachable: through the path alone.
PROGRAM = """
import sys
sys.path += {path!r}
before = set(sys.modules)
{code}
after = sorted(set(sys.modules) - before)
import json
print(json.dumps(after))
"""


@pytest.fixture
def loaded_by() -> Callable[[str], set[str]]:
    """Return a function that runs code in a fresh interpreter and returns the names of the modules it loaded."""

    def run(code: str) -> set[str]:
        path = [str(SOURCE), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        program = PROGRAM.format(path=path, code=code)
        command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout.splitlines()[-1]))

    return run
