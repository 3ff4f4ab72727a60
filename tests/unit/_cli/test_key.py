"""`kinetic key` carries the key that seals results from one machine to another."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kinetic._config import home as config_home


def test_a_key_goes_from_one_home_to_another(tmp_path, kinetic, monkeypatch) -> None:
    exported = kinetic("key", "export")
    key_id = config_home.list_ids(tmp_path / "home")[0]
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "other"))

    imported = kinetic("key", "import", input=exported.stdout)

    assert imported.exit_code == 0
    assert key_id in imported.stderr
    assert config_home.find_key(tmp_path / "other", key_id) == bytes.fromhex(exported.stdout)


def test_at_a_terminal_the_import_says_what_to_type(tmp_path, home) -> None:
    typing, terminal = os.openpty()
    environment = {**os.environ, "KINETIC_HOME": str(home)}
    try:
        os.write(typing, b"ab" * 32 + b"\n\x04")  # Return and Ctrl-D
        command = [sys.executable, "-m", "kinetic", "key", "import"]
        done = subprocess.run(
            command, stdin=terminal, capture_output=True, env=environment, cwd=tmp_path, text=True, check=False
        )
    finally:
        os.close(typing)
        os.close(terminal)

    assert done.stderr.splitlines()[0] == "Paste the key and press Return, then Ctrl-D:"
    assert done.stderr.splitlines()[1] == f"imported the key {config_home.list_ids(home)[0]}"


def test_a_key_can_be_read_from_a_file(tmp_path, kinetic) -> None:
    (tmp_path / "kinetic.key").write_text("ab" * 32)

    assert kinetic("key", "import", str(tmp_path / "kinetic.key")).exit_code == 0
    assert len(config_home.list_ids(tmp_path / "home")) == 1


def test_only_the_key_itself_goes_to_standard_output(kinetic) -> None:
    told = kinetic("key", "export")

    assert len(bytes.fromhex(told.stdout)) == 32
    assert told.stdout.strip() not in told.stderr


def test_a_chosen_key_can_be_exported(home, kinetic) -> None:
    key_id = config_home.add_key(home, "cd" * 32)

    assert kinetic("key", "export", key_id).stdout == "cd" * 32 + "\n"


def test_the_list_shows_ids_and_no_keys(home, kinetic) -> None:
    key_id = config_home.add_key(home, "cd" * 32)

    told = kinetic("key", "list")

    assert told.stdout.splitlines() == ["KEY ID", key_id]
    assert json.loads(kinetic("key", "ls", "--json").stdout) == {"schema_version": 1, "keys": [{"key_id": key_id}]}


def test_looking_makes_no_key(home, kinetic) -> None:
    told = kinetic("key", "list")

    assert (told.exit_code, told.stdout) == (0, "")
    assert not home.exists()


def test_an_unknown_key_is_refused_with_those_that_there_are(home, kinetic) -> None:
    key_id = config_home.add_key(home, "cd" * 32)

    told = kinetic("key", "export", "ffff")

    assert (told.exit_code, told.stdout) == (2, "")
    assert key_id in told.stderr


@pytest.mark.parametrize("text", ["", "zz", "abcd", "not hexadecimal at all"])
def test_what_is_not_a_key_is_not_added(text, home, kinetic) -> None:
    told = kinetic("key", "import", input=text)

    assert told.exit_code == 1
    assert told.stderr.startswith("error: this is not a valid key")
    assert told.stderr.splitlines()[-1].startswith("next:  ")
    assert config_home.list_ids(home) == []
