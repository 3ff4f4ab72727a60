"""The keys that seal results: one for each namespace, 32 random bytes, in ``{home}/keys/{id}``, for their owner only.

A key never changes: another key has another id, and results sealed with the old one stay readable as long as its file
exists.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from kinetic._wire import documents, folders
from kinetic.errors import SettingsError

_CURRENT = "this-home"


def own_key(home: Path) -> tuple[str, bytes]:
    """Return the id and bytes of this home's key, made on first use; of several makers at once, one wins."""
    folder = home / "keys"
    pointer = folder / _CURRENT
    try:
        folders.make(folder)
        if not pointer.exists():
            key = os.urandom(documents.KEY_BYTES)
            _create(folder / documents.key_id(key), key.hex())
            _create(pointer, documents.key_id(key))
        key_id = pointer.read_text().strip()
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise SettingsError(
            f"the key that seals this home's results cannot be created or read in {folder}",
            why=f"{error.filename or folder}: {error.strerror or error}",
            next="free some space there, or set KINETIC_HOME to a folder on another disk"
            if full
            else "make sure that you can write there, or set KINETIC_HOME to a folder that you can write to",
        ) from error
    found = find_key(home, key_id)
    if found is None:
        raise SettingsError(
            "the key that seals this home's results is gone",
            why=f"{pointer} names {key_id}, and {folder / key_id} is missing",
            next=f"restore that file, or remove {pointer} to start with a new key",
        )
    return key_id, found


def find_key(home: Path, key_id: str) -> bytes | None:
    """Return a key of this keyring, or None."""
    if not key_id.isalnum():
        return None
    try:
        key = bytes.fromhex((home / "keys" / key_id).read_text().strip())
    except (OSError, ValueError):
        return None
    return key if documents.key_id(key) == key_id else None


def list_ids(home: Path) -> list[str]:
    """Return the ids of the keys in this keyring."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in (home / "keys").iterdir() if find_key(home, path.name))
    return []


def add_key(home: Path, text: str) -> str:
    """Add a key that another machine exported, and return its id."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != documents.KEY_BYTES:
        raise SettingsError("this is not a valid key", why=f"a key is {2 * documents.KEY_BYTES} hexadecimal digits")
    folders.make(home / "keys")
    _create(home / "keys" / documents.key_id(key), key.hex())
    return documents.key_id(key)


def _create(path: Path, text: str) -> None:
    """Create a file atomically; an existing one stays."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    with open(beside, "x", opener=folders.opener) as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
        folders.sync(path.parent)  # without its key no result can be read
    finally:
        beside.unlink()
