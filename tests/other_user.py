"""Another user of the machine, in a test: who may enter no folder that is closed to all but root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_NOBODY = 65534


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Be a user without rights where this process is root, who may enter each folder; all others stay who they are."""
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(_NOBODY)
        yield
    finally:
        if is_root:
            os.seteuid(0)
