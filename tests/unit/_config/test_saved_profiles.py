"""Writing profiles: whole or not at all, one writer after another, and nothing of anybody else's lost."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kinetic._config import profiles
from kinetic._config.profiles import Profile
from kinetic.errors import OptionError, SettingsError

SOURCE = Path(__file__).parents[3] / "src"
TEAM = Profile("team", project="acme", zone="us-west4-a", cluster="main")
SOLO = Profile("solo", project="solo", zone="us-east5-b", cluster="one")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"KINETIC_HOME": str(tmp_path / "home")}


@pytest.fixture
def file(environ) -> Path:
    return profiles.profiles_file(environ)


def page_of(file: Path) -> dict:
    return json.loads(file.read_text())


def beside(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir() if path.name != f".{file.name}.lock")


def program(text: str, environ: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """Start a Python program that may use the store."""
    head = "import json, os, sys, time\nfrom kinetic._config import profiles as profile_store, profiles\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(text), *words],
        env={**os.environ, **environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        text=True,
    )


# What is written.


def test_what_was_saved_can_be_read(environ):
    full = TEAM._replace(
        namespace="ml", backend="gke", store="gs://b", context="c", options={"accelerator": "gpu-l4", "deadline": 60}
    )
    full = full._replace(queue="gold", pull_secrets="a,b", node_selector="pool=gpus", ttl_hours="0.5")

    profiles.save(environ, full)

    assert profiles.load(environ).saved == {"team": full}


def test_the_first_profile_becomes_the_current_one_and_the_second_does_not(environ):
    assert profiles.save(environ, TEAM) is True
    assert profiles.save(environ, SOLO) is False

    assert profiles.load(environ).current == "team"


def test_the_first_profile_leaves_a_choice_of_this_machine_alone(environ):
    profiles.use(environ, "local")

    assert profiles.save(environ, TEAM) is False
    assert profiles.load(environ).current == "local"


def test_the_file_is_sorted_indented_ended_and_private(environ, file):
    profiles.save(environ, TEAM)

    assert file.read_text() == textwrap.dedent("""\
        {
          "current": "team",
          "profiles": {
            "team": {
              "cluster": "main",
              "project": "acme",
              "zone": "us-west4-a"
            }
          }
        }
        """)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert beside(file) == [file.name]


def test_a_file_that_others_could_read_is_private_afterwards(environ, file):
    file.parent.mkdir()
    file.write_text("{}")
    file.chmod(0o644)

    profiles.save(environ, TEAM)

    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_a_later_version_wrote_stays(environ, file):
    file.parent.mkdir()
    later = {"project": "x", "zone": "z", "cluster": "c", "lanes": ["a"], "options": {"rank": 1}}
    file.write_text(json.dumps({"version": 9, "current": None, "profiles": {"theirs": later, "team": later}}))

    profiles.save(environ, TEAM, replace=True)
    profiles.save(environ, SOLO)
    profiles.use(environ, "solo")
    profiles.remove(environ, "solo")

    assert page_of(file) == {
        "version": 9,
        "current": None,
        "profiles": {
            "theirs": later,
            "team": {"project": "acme", "zone": "us-west4-a", "cluster": "main", "lanes": ["a"]},
        },
    }


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(environ, file, tmp_path):
    file.parent.mkdir()
    (tmp_path / "dotfiles").mkdir()
    file.symlink_to(tmp_path / "dotfiles" / "profiles.json")

    profiles.save(environ, TEAM)

    assert file.is_symlink()
    assert page_of(tmp_path / "dotfiles" / "profiles.json")["current"] == "team"


# What is refused.


def test_a_name_that_is_taken_is_refused_unless_it_is_to_be_replaced(environ, file):
    profiles.save(environ, TEAM)

    with pytest.raises(OptionError, match="a profile named 'team' already exists") as caught:
        profiles.save(environ, TEAM._replace(zone="z"))

    assert str(file) in caught.value.why
    assert "--force" in caught.value.next
    profiles.save(environ, TEAM._replace(zone="z"), replace=True)
    assert profiles.load(environ).saved["team"].zone == "z"


def test_a_name_that_cannot_be_one_is_refused(environ, file):
    with pytest.raises(OptionError, match="cannot be the name of a profile"):
        profiles.save(environ, TEAM._replace(name="a b"))

    assert not file.exists()


def test_the_built_in_profile_can_be_used_but_neither_made_nor_removed(environ):
    assert profiles.use(environ, "local") == profiles.LOCAL
    assert profiles.choose(environ).profile == profiles.LOCAL

    with pytest.raises(OptionError, match="built in"):
        profiles.save(environ, TEAM._replace(name="local"), replace=True)
    with pytest.raises(OptionError, match="built in"):
        profiles.remove(environ, "local")


@pytest.mark.parametrize("change", [profiles.use, profiles.remove])
def test_a_profile_that_is_not_there_can_be_neither_used_nor_removed(environ, file, change):
    profiles.save(environ, TEAM)
    before = file.read_bytes()

    with pytest.raises(SettingsError, match="no profile is named 'taem'") as caught:
        change(environ, "taem")

    assert "team" in caught.value.why
    assert file.read_bytes() == before


def test_a_file_that_cannot_be_read_is_not_overwritten(environ, file):
    file.parent.mkdir()
    file.write_text("{ half a page")

    with pytest.raises(SettingsError, match="cannot be read"):
        profiles.save(environ, TEAM)

    assert file.read_text() == "{ half a page"


def test_a_folder_that_cannot_be_made_is_told(environ, tmp_path):
    (tmp_path / "file").write_text("a file")

    with pytest.raises(SettingsError, match="cannot be written") as caught:
        profiles.save({**environ, "KINETIC_PROFILES_FILE": str(tmp_path / "file" / "profiles.json")}, TEAM)

    assert str(tmp_path / "file") in caught.value.why


# Leaving and removing.


def test_removing_the_current_one_leaves_none_current(environ):
    profiles.save(environ, TEAM)
    profiles.save(environ, SOLO)

    assert profiles.remove(environ, "solo") is False
    assert profiles.load(environ).current == "team"
    assert profiles.remove(environ, "team") is True
    assert profiles.load(environ).current == ""


def test_unset_names_the_one_that_was_current_and_writes_nothing_when_none_was(environ, file):
    assert profiles.unset(environ) == ""
    assert not file.exists()
    profiles.save(environ, TEAM)

    assert profiles.unset(environ) == "team"
    assert profiles.load(environ).current == ""
    assert [*profiles.load(environ).saved] == ["team"]


# Many writers.


def test_two_processes_that_write_at_once_lose_nothing(environ, file):
    text = """
        for number in range(40):
            name = f"{sys.argv[1]}{number}"
            profile_store.save(os.environ, profiles.Profile(name, "p", "z", "c"))
    """
    writers = [program(text, environ, word) for word in ("a", "b")]
    torn = 0
    while any(writer.poll() is None for writer in writers):
        torn += file.exists() and not page_of(file)["profiles"]  # a reader always finds a whole page

    assert [writer.wait() for writer in writers] == [0, 0]
    for writer in writers:
        writer.communicate()
    assert torn == 0
    assert len(profiles.load(environ).saved) == 80
    assert beside(file) == [file.name]


def test_threads_of_one_process_lose_nothing(environ):
    text = """
        import threading
        def work(word):
            for number in range(20):
                profile_store.save(os.environ, profiles.Profile(f"{word}{number}", "p", "z", "c"))
        threads = [threading.Thread(target=work, args=word) for word in "abcd"]
        for each in threads: each.start()
        for each in threads: each.join()
        print(len(profiles.load(os.environ).saved))
    """

    assert program(text, environ).communicate()[0] == "80\n"


def test_a_writer_that_is_killed_in_the_middle_leaves_the_old_page_and_stops_nobody(environ, file):
    profiles.save(environ, TEAM)
    before = file.read_bytes()
    text = """
        def stuck(*_):
            print("in the middle", flush=True)
            time.sleep(60)
        os.replace = stuck
        profile_store.save(os.environ, profiles.Profile("solo", "p", "z", "c"))
    """
    writer = program(text, environ)
    assert writer.stdout.readline() == "in the middle\n"
    assert len(beside(file)) == 2  # the page and the half-written one

    writer.send_signal(signal.SIGKILL)
    writer.communicate()

    assert file.read_bytes() == before
    profiles.save(environ, SOLO)
    assert [*profiles.load(environ).saved] == ["solo", "team"]
    assert beside(file) == [file.name]  # the next writer took the half-written one away


def test_writers_killed_at_any_moment_leave_a_whole_page(environ, file):
    profiles.save(environ, TEAM)
    text = """
        print("ready", flush=True)
        for number in range(100_000):
            profile_store.save(os.environ, profiles.Profile("solo", f"p{number}", "z", "c"), replace=True)
    """
    for milliseconds in (0, 1, 2, 3, 5, 8):
        writer = program(text, environ)
        assert writer.stdout.readline() == "ready\n"
        time.sleep(milliseconds / 1000)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()

        assert profiles.load(environ).saved["team"] == TEAM
        profiles.use(environ, "team")


def test_a_change_waits_for_the_writer_before_it(environ, file):
    profiles.save(environ, TEAM)
    text = """
        with profile_store._change(os.environ) as (page, before):
            print("held", flush=True)
            time.sleep(0.5)
            page["profiles"]["slow"] = {"project": "p", "zone": "z", "cluster": "c"}
    """
    writer = program(text, environ)
    assert writer.stdout.readline() == "held\n"

    profiles.save(environ, SOLO)

    writer.communicate()
    assert [*profiles.load(environ).saved] == ["slow", "solo", "team"]


def test_a_writer_that_never_ends_is_told_and_not_waited_for_for_ever(environ, monkeypatch):
    profiles.save(environ, TEAM)
    monkeypatch.setattr(profiles, "_LOCK_SECONDS", 0.05)
    writer = program("with profile_store._change(os.environ): print('held', flush=True); time.sleep(60)", environ)
    assert writer.stdout.readline() == "held\n"

    with pytest.raises(SettingsError, match="being written by another process"):
        profiles.save(environ, SOLO)

    writer.kill()
    writer.communicate()


def test_a_file_system_without_locks_is_written_all_the_same(environ, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "lockf", refuse)

    profiles.save(environ, TEAM)

    assert profiles.load(environ).current == "team"
