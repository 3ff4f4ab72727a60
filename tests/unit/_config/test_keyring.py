"""The key that seals results, where it cannot be made."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
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


def test_a_key_is_made_once_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    with ThreadPoolExecutor(8) as pool:
        made = set(pool.map(lambda _: home.own_key(tmp_path), range(8)))

    assert len(made) == 1
    assert [name for name in os.listdir(tmp_path / "keys") if name.startswith(".")] == [".creating"]
