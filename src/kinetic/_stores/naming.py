"""Which names a store accepts: the same everywhere, so that what works on this machine works in a bucket."""

from __future__ import annotations

import re

from kinetic.errors import OptionError

SCRATCH = ".tmp"  # half-written objects; no key
OWN = ".kinetic"  # what kinetic notes about a store itself; keys, but in no listing of the whole store
HIDDEN = frozenset({SCRATCH, OWN})
MOST_BYTES = 1024  # of a key: the limit of Cloud Storage and of S3

# No control characters, halves of surrogate pairs or non-characters: XML, in which buckets list, cannot spell them.
_KEY = re.compile(r"(?!/)(?!.*//)(?!(?:.*/)?\.\.?(?:/|\Z))[^\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]+(?<!/)")


def check_key(key: str) -> None:
    """Refuse what is not a key.

    Raises:
        OptionError: It is empty, leads out of the store, or cannot be spelled in every store.
    """
    if not _KEY.fullmatch(key) or key.partition("/")[0] == SCRATCH:
        raise OptionError(
            f"{key!r} is not a key",
            why="a key is a relative path without '.' or '..' and without control characters in it",
        )
    if len(key) * 4 > MOST_BYTES and len(key.encode()) > MOST_BYTES:
        raise OptionError(f"{key[:60]!r}… is not a key", why=f"it is longer than {MOST_BYTES} bytes")


def check_prefix(prefix: str) -> None:
    """Refuse what is not a prefix: empty, or a key and "/".

    Raises:
        OptionError: It is neither.
    """
    if prefix:
        if not prefix.endswith("/"):
            raise OptionError(f"{prefix!r} is not a prefix", why="a prefix is empty or a key followed by '/'")
        check_key(prefix[:-1])


def is_hidden(key: str) -> bool:
    """Say whether a listing of the whole store leaves this key out."""
    return key.startswith(".") and key.partition("/")[0] in HIDDEN
