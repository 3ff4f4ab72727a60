"""Keys of the home: read once for any number of jobs, and never trusted longer than their files exist."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._config import home as config_home
from kinetic._jobs import locate
from kinetic.errors import SettingsError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return locate.home()


def test_the_file_of_a_key_is_read_once_for_any_number_of_jobs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, key = config_home.own_key(home)
    reads: list[str] = []
    find_key = config_home.find_key
    monkeypatch.setattr(config_home, "find_key", lambda *words: reads.append(words[1]) or find_key(*words))

    found = [locate.key_for(f"job-{number}", key_id, "file:///store") for number in range(100)]

    assert locate.namespace_key(key_id) == key
    assert len(set(found)) == 100
    assert reads == [key_id]


def test_a_key_that_was_removed_or_changed_is_not_used_any_more(home: Path) -> None:
    key_id, _ = config_home.own_key(home)
    before = locate.namespace_key(key_id)
    path = home / "keys" / key_id

    text = path.read_text()
    path.unlink()
    without = locate.namespace_key(key_id)
    path.write_text("0" * len(text))
    os.utime(path, ns=(1, 1))
    changed = locate.namespace_key(key_id)

    assert before is not None
    assert (without, changed) == (None, None)


@pytest.mark.parametrize("key_id", ["", "../this-home", "a/b", "a\0b"])
def test_what_cannot_be_the_id_of_a_key_names_no_file(home: Path, key_id: str) -> None:
    config_home.own_key(home)

    assert locate.namespace_key(key_id) is None


@pytest.mark.parametrize("damaged", [b"", b"\xff\xfe not an id"])
def test_a_damaged_name_of_the_home_s_own_key_is_an_error_that_names_its_file(home: Path, damaged: bytes) -> None:
    config_home.own_key(home)
    pointer = home / "keys" / "this-home"
    pointer.write_bytes(damaged)

    with pytest.raises(SettingsError) as raised:
        config_home.own_key(home)

    assert raised.value.why == f"{pointer}, which names it, is damaged"
    assert f"remove {pointer} to start with a new key" in str(raised.value)
