"""Libraries that change what every process of a home sees of its machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def preloaded(tmp_path: Path) -> Callable[..., str]:
    """Return a function that compiles a library with some names defined, to be put into LD_PRELOAD."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("needs Linux and a C compiler")

    def build(name: str, **defined: str) -> str:
        library = tmp_path / f"{name}.so"
        words = [f'-D{key}="{value}"' for key, value in defined.items()]
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", *words, "-o", library, HERE / f"{name}.c", "-ldl"], check=True
        )
        return str(library)

    return build
