"""For tests of your code: run jobs on this machine in a separate home, or in the process of the test.

def test_my_training(tmp_path):
    with kinetic.testing.fake_backend(tmp_path):
        assert train(0.1) < 1.0
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kinetic._backends import registry
from kinetic._backends.fake import FakeBackend, FakeClock, changed_environment
from kinetic._stores.memory import MemoryStore

__all__ = ["FakeBackend", "FakeClock", "MemoryStore", "fake_backend", "temporary_home"]

_CLEARED_VARIABLES = ("PROJECT", "ZONE", "CLUSTER", "NAMESPACE", "STORE", "PROFILE", "PROFILES_FILE", "RUNTIME_DIR")


@contextmanager
def temporary_home(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Run jobs on this machine, with everything that kinetic keeps below a folder, until the block ends.

    Args:
        folder: An existing folder, best pytest's ``tmp_path``.

    Yields:
        The kinetic home.
    """
    with _pointed_at(folder, registry.HERE.name) as home:
        yield home


@contextmanager
def fake_backend(folder: str | os.PathLike[str], backend: FakeBackend | None = None) -> Iterator[FakeBackend]:
    """Run jobs in this process, with a store in memory and a clock that takes no time, until the block ends.

    Args:
        folder: An existing folder for keys and caches, best pytest's ``tmp_path``.
        backend: A backend with another clock or other durations than the default.

    Yields:
        The backend; its clock decides when jobs start and end.
    """
    made = FakeBackend() if backend is None else backend
    names = dict.fromkeys(("project", "zone", "cluster"), made.name) | {"namespace": made.namespace}
    store = f"memory://kinetic-{secrets.token_hex(8)}"
    entry = registry.Entry(made.name, lambda _: made, store=store, defaults=names)
    # Jobs of this process write into any folder that is chosen for their outputs.
    with registry.registered(entry), _pointed_at(folder, made.name, KINETIC_SHARED_STORE="1"):
        yield made


@contextmanager
def _pointed_at(folder: str | os.PathLike[str], backend: str, **more: str) -> Iterator[Path]:
    """Set the variables of this process so that it keeps everything below a folder, and submits to a backend."""
    home = Path(folder) / ".kinetic"
    changed = {f"KINETIC_{name}": "" for name in _CLEARED_VARIABLES}
    changed |= {"GOOGLE_CLOUD_PROJECT": "", "KINETIC_HOME": str(home), "KINETIC_BACKEND": backend, **more}
    with changed_environment(changed):
        yield home
