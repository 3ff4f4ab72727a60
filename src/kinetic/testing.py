"""For tests of your own code: a store in memory, and a kinetic home of the test's own.

def test_my_training(tmp_path):
    with kinetic.testing.temporary_home(tmp_path):
        assert train(0.1) < 1.0
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetic._backends import registry
from kinetic._stores.memory import MemoryStore

__all__ = ["MemoryStore", "temporary_home"]

_POINTERS = ("PROJECT", "ZONE", "CLUSTER", "NAMESPACE", "STORE", "PROFILE", "PROFILES_FILE", "RUNTIME_DIR")


@contextmanager
def temporary_home(folder: Path) -> Iterator[Path]:
    """Run jobs on this machine, with everything that kinetic keeps below a folder, until the block ends.

    Args:
        folder: An existing folder, best pytest's ``tmp_path``.

    Yields:
        The kinetic home.
    """
    home = Path(folder) / ".kinetic"
    changed = {f"KINETIC_{name}": "" for name in _POINTERS} | {
        "KINETIC_HOME": str(home),
        "KINETIC_BACKEND": registry.HERE.name,
    }
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield home
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
