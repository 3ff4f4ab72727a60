"""Profiles: what the file may say, and which of them holds."""

from __future__ import annotations

import json
import os

import pytest

from kinetic._config.profiles import LOCAL, Profile, check_new_name, choose, load, profiles_file
from kinetic.errors import OptionError, SettingsError

TEAM = {"project": "acme", "zone": "us-west4-a", "cluster": "main", "namespace": "ml"}
SOLO = {"project": "solo", "zone": "us-east5-b", "cluster": "one"}


@pytest.fixture
def save(tmp_path):
    """Write a profiles file and return the environment that points to it."""

    def write(page, **environ):
        text = page if isinstance(page, str) else json.dumps(page)
        (tmp_path / "profiles.json").write_text(text)
        return {"KINETIC_HOME": str(tmp_path), **environ}

    return write


# The file.


def test_the_profiles_lie_in_the_home_unless_a_file_is_named(tmp_path):
    assert profiles_file({"KINETIC_HOME": str(tmp_path)}) == tmp_path / "profiles.json"
    assert profiles_file({"HOME": str(tmp_path), "KINETIC_PROFILES_FILE": "~/mine.json"}) == tmp_path / "mine.json"


def test_without_a_file_there_are_no_profiles(tmp_path):
    profiles = load({"KINETIC_HOME": str(tmp_path)})

    assert profiles.current == ""
    assert profiles.saved == {}
    assert profiles.names == ["local"]


def test_a_profile_holds_a_place_and_job_options(save):
    more = {"backend": "gke", "store": "gs://b", "context": "c", "options": {"accelerator": "gpu-l4"}}

    profiles = load(save({"current": "team", "profiles": {"team": TEAM | more, "solo": SOLO}}))

    assert profiles.current == "team"
    assert profiles.saved["team"] == Profile(
        "team", "acme", "us-west4-a", "main", "ml", "gke", "gs://b", "c", {"accelerator": "gpu-l4"}
    )
    assert profiles.saved["solo"] == Profile("solo", "solo", "us-east5-b", "one")


def test_what_a_later_version_wrote_does_not_hurt(save):
    environ = save(
        {"current": None, "version": 9, "profiles": {"team": TEAM | {"lanes": ["x"], "store": None, "ttl_hours": None}}}
    )

    assert load(environ).saved["team"].cluster == "main"


def test_a_mark_of_byte_order_does_not_hurt(save):
    assert load(save("\ufeff{}")).saved == {}


@pytest.mark.parametrize("place", [{"backend": "local"}, {"context": "kind-kind"}])
def test_a_profile_for_this_machine_or_for_a_context_needs_no_project(save, place):
    assert load(save({"profiles": {"p": place}})).saved["p"].project == ""


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("{", "it is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ([], "its top level is a list, not an object"),
        ("null", "its top level is null, not an object"),
        ({"current": 3}, '"current" is a number, not the name of a profile or null'),
        ({"current": True}, '"current" is true, not the name of a profile or null'),
        ({"profiles": []}, '"profiles" is a list, not an object'),
        ({"profiles": None}, '"profiles" is null, not an object'),
        ({"profiles": {"p": "acme"}}, "profile 'p' is a string, not an object"),
        ({"profiles": {"p": {"zone": "z", "cluster": "c"}}}, "profile 'p' has no project"),
        ({"profiles": {"p": {"project": "x", "cluster": "c"}}}, "profile 'p' has no zone"),
        ({"profiles": {"p": {"project": "x", "zone": "z"}}}, "profile 'p' has no cluster"),
        ({"profiles": {"p": {"project": "", "namespace": "n"}}}, "profile 'p' has no project, zone, cluster"),
        ({"profiles": {"p": TEAM | {"zone": 1.5}}}, "\"zone\" of profile 'p' is a number, not a string"),
        ({"profiles": {"p": TEAM | {"store": {}}}}, "\"store\" of profile 'p' is an object, not a string"),
        ({"profiles": {"p": TEAM | {"options": []}}}, "\"options\" of profile 'p' is a list, not an object"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_told_in_three_parts(save, tmp_path, page, why):
    environ = save(page)

    with pytest.raises(SettingsError) as caught:
        load(environ)

    assert str(caught.value).splitlines() == [
        f"the profiles in {tmp_path / 'profiles.json'} cannot be read [settings]",
        f"why:   {why}",
        "next:  correct the file, move it away, or set KINETIC_PROFILES_FILE to another one",
    ]


def test_bytes_that_are_no_text_are_told(save, tmp_path):
    environ = save("")
    (tmp_path / "profiles.json").write_bytes(b"\xff\xfe{")

    with pytest.raises(SettingsError, match="it is not JSON: 'utf-8' codec can't decode byte 0xff"):
        load(environ)


def test_json_that_is_too_deep_is_told(save):
    with pytest.raises(SettingsError, match="it is not JSON"):
        load(save("[" * 200_000))


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path):
    (tmp_path / "profiles.json").mkdir()

    with pytest.raises(SettingsError, match="why:   IsADirectoryError: Is a directory"):
        load({"KINETIC_HOME": str(tmp_path)})


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_told(save, tmp_path):
    environ = save({})
    (tmp_path / "profiles.json").chmod(0)

    with pytest.raises(SettingsError, match="why:   PermissionError: Permission denied\nnext:  set KINETIC_HOME"):
        load(environ)


# The choice.


@pytest.mark.parametrize(
    ("named", "variable", "current", "expected"),
    [
        ("solo", "team", "team", ("solo", "argument")),
        ("", "solo", "team", ("solo", "KINETIC_PROFILE")),
        (None, "solo", "team", ("solo", "KINETIC_PROFILE")),
        (None, "local", "team", ("local", "KINETIC_PROFILE")),
        (None, "", "team", ("team", "current")),
        (None, "", "local", ("local", "current")),
        (None, "", None, (None, "default")),
        (None, "", "", (None, "default")),
    ],
)
def test_a_named_profile_beats_the_environment_beats_the_current_one(save, named, variable, current, expected):
    environ = save({"current": current, "profiles": {"team": TEAM, "solo": SOLO}}, KINETIC_PROFILE=variable)

    choice = choose(environ, named)

    assert (choice.profile.name if choice.profile else None, choice.source) == expected
    assert choice.notes == ()


def test_a_current_profile_that_is_gone_counts_as_none_and_is_told(save, tmp_path):
    choice = choose(save({"current": "old", "profiles": {"team": TEAM}}))

    assert choice.profile is None
    assert choice.notes == (
        (
            f"no profile is active: the current profile 'old' in {tmp_path / 'profiles.json'} does not exist; "
            "existing: local, team"
        ),
    )


def test_an_unknown_profile_of_the_environment_lists_those_there_are(save, tmp_path):
    environ = save({"profiles": {"team": TEAM, "solo": SOLO}}, KINETIC_PROFILE="taem")

    with pytest.raises(SettingsError) as caught:
        choose(environ)

    assert str(caught.value).splitlines() == [
        "no profile is named 'taem' (set by KINETIC_PROFILE) [settings]",
        f"why:   profiles in {tmp_path / 'profiles.json'}: solo, team; built in: local",
        "next:  export KINETIC_PROFILE=team     or unset it",
    ]


def test_an_unknown_profile_of_an_argument_lists_those_there_are(tmp_path):
    with pytest.raises(SettingsError) as caught:
        choose({"KINETIC_HOME": str(tmp_path)}, "team")

    assert str(caught.value).splitlines() == [
        "no profile is named 'team' [settings]",
        f"why:   profiles in {tmp_path / 'profiles.json'}: none; built in: local",
        'next:  write profile="local"',
    ]


def test_the_name_local_always_means_this_machine(save, tmp_path):
    choice = choose(save({"current": "local", "profiles": {"local": TEAM}}))

    assert choice.profile == LOCAL
    assert choice.notes == (
        f'the profile "local" in {tmp_path / "profiles.json"} is not used: the name is built in and means this machine',
    )


# The name.


@pytest.mark.parametrize("name", ["a", "7", "team-west4_b", "x" * 64])
def test_a_plain_word_may_name_a_profile(name):
    assert check_new_name(name) == name


@pytest.mark.parametrize("name", ["", "-a", "_a", "a b", "a.b", "a/b", "é", "x" * 65, "a\n"])
def test_other_names_are_refused_with_the_rule(name):
    with pytest.raises(OptionError) as caught:
        check_new_name(name)

    assert str(caught.value).splitlines() == [
        f"{name!r} cannot be the name of a profile [option]",
        (
            "why:   a name starts with a letter or digit, followed by letters, digits, '-' and '_', "
            "and has at most 64 characters"
        ),
        "next:  use a plain word, such as team or team-west4",
    ]
