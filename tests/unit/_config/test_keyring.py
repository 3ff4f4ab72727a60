"""The key that seals results, where it cannot be made."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kinetic._config import home
from kinetic.errors import SettingsError


@pytest.mark.parametrize(
    ("number", "help_"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "free some space"), (errno.EACCES, "can write")],
)
def test_what_to_do_fits_why_the_key_cannot_be_made(
    number: int, help_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(number, os.strerror(number), str(folder))

    monkeypatch.setattr(home.folders, "make", fail)

    with pytest.raises(SettingsError, match="cannot be created or read") as raised:
        home.own_key(tmp_path)

    assert help_ in str(raised.value.next)
