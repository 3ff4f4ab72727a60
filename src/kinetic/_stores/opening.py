"""From a store's address to the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.errors import OptionError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_memory: dict[str, Store] = {}


def open_store(url: str) -> Store:
    """Open the store at an address.

    Args:
        url: ``file:///absolute/folder``, an absolute folder, or ``memory://name`` (this process only).

    Raises:
        OptionError: No store of this kind.
    """
    if url.startswith("memory://"):
        from kinetic._stores.memory import MemoryStore  # only tests use it

        return _memory.setdefault(url, MemoryStore(url.removeprefix("memory://")))
    path = url.removeprefix("file://")
    if path.startswith("/"):
        from kinetic._stores.files import FileStore

        return FileStore(Path(path))
    raise OptionError(
        f"{url!r} is not a store that this version of kinetic can open",
        why="stores here: file:///folder, memory://name",
        next="unset KINETIC_STORE, or give it a file:// address",
    )
