"""Indexes that only pip knows, or only uv of this machine: when a message names them, and what it shows."""

from __future__ import annotations

import os
import sys

import pytest

from kinetic._project import configured_indexes
from kinetic._wire.python_runtime import SETTING

ACME = "https://ci:secret-word@pypi.acme.example/simple"
NAME = "pypi"
USUAL = f"https://{NAME}.org/simple"


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize("address", [ACME, "https://ci:p@ss@pypi.acme.example/simple"])
def test_an_index_of_a_variable_of_pip_is_named_without_its_login(environ, address):
    note = configured_indexes.note_of_pip(["six"], environ | {"PIP_INDEX_URL": address})

    assert note == (
        "pip uses https://pypi.acme.example/simple (PIP_INDEX_URL), and uv, which installs for jobs, does not: "
        "export UV_DEFAULT_INDEX=https://pypi.acme.example/simple"
    )


def test_a_token_behind_the_address_of_an_index_is_shown_neither_of_pip_nor_of_uv(environ):
    address = "https://pypi.acme.example/simple?access_token=secret-word"

    of_pip = configured_indexes.note_of_pip(["six"], environ | {"PIP_INDEX_URL": address})
    of_uv = configured_indexes.note_for_pods(["six"], environ | {"UV_INDEX_URL": address}, ())

    assert of_pip.count("https://pypi.acme.example/simple?access_token=***") == 2
    assert "https://pypi.acme.example/simple?access_token=*** (UV_INDEX_URL)" in of_uv
    assert "secret-word" not in of_pip + of_uv


@pytest.mark.parametrize(
    "place",
    [
        ".config/pip/pip.conf",
        ".pip/pip.conf",
        "Library/Application Support/pip/pip.conf",
        "venv/pip.conf",
        "named.conf",
    ],
)
def test_an_index_of_a_file_of_pip_is_named_with_the_file(environ, tmp_path, place):
    file = tmp_path / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[global]\ntimeout = 60\nextra-index-url =\n    {ACME}\n    https://other.example/simple\n")

    note = configured_indexes.note_of_pip([], environ | {"PIP_CONFIG_FILE": str(tmp_path / "named.conf")})

    assert f"https://other.example/simple ({file}), and uv" in note
    assert note.endswith("export UV_INDEX='https://pypi.acme.example/simple https://other.example/simple'")
    assert "secret-word" not in note


def test_an_index_is_named_also_where_a_file_of_pip_spells_it_with_underscores(environ, tmp_path):
    # pip 23 takes index_url for index-url
    file = tmp_path / "named.conf"
    file.write_text(f"[global]\nindex_url = {ACME}\n")

    note = configured_indexes.note_of_pip([], environ | {"PIP_CONFIG_FILE": str(file)})

    assert note.endswith("export UV_DEFAULT_INDEX=https://pypi.acme.example/simple")


@pytest.mark.parametrize(
    ("lines", "more"),
    [
        (["--index-url https://pypi.acme.example/simple", "six"], {}),
        (["six", f'{SETTING}tool.uv.index = [{{url = "https://pypi.acme.example/simple"}}]'], {}),
        (["six"], {"UV_DEFAULT_INDEX": "https://pypi.acme.example/simple"}),
        (["six"], {"PIP_INDEX_URL": USUAL}),
    ],
)
def test_nothing_is_told_where_uv_knows_an_index_or_pip_has_the_usual_one(environ, lines, more):
    assert configured_indexes.note_of_pip(lines, environ | {"PIP_INDEX_URL": ACME} | more) == ""


def test_nothing_is_told_where_pip_is_told_to_read_no_file(environ, tmp_path):
    (tmp_path / ".pip").mkdir()
    (tmp_path / ".pip" / "pip.conf").write_text(f"[global]\nindex-url = {ACME}\n")

    notes = [configured_indexes.note_of_pip(["six"], environ | more) for more in ({"PIP_CONFIG_FILE": os.devnull}, {})]

    assert notes[0] == ""
    assert "pypi.acme.example" in notes[1]


def test_nothing_is_told_where_a_file_of_uv_or_none_of_pip_can_be_read(environ, tmp_path):
    for folder, name, text in (("uv", "uv.toml", ""), ("pip", "pip.conf", f"index-url = {ACME}")):
        (tmp_path / ".config" / folder).mkdir(parents=True)
        (tmp_path / ".config" / folder / name).write_text(text)
    with_uv = configured_indexes.note_of_pip(["six"], environ | {"PIP_INDEX_URL": ACME})
    (tmp_path / ".config" / "uv" / "uv.toml").unlink()

    assert (with_uv, configured_indexes.note_of_pip(["six"], environ)) == ("", "")


def test_what_uv_uses_here_and_pods_do_not_is_named_without_its_login(environ, tmp_path):
    file = tmp_path / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(f'index-url = "{USUAL}"\n[[index]]\nname = "x"\nurl = "{ACME}"\n')
    told = environ | {"UV_INDEX": f"acme=https://other.example/simple {ACME}", "UV_FIND_LINKS": "/srv/wheels"}

    assert configured_indexes.note_for_pods(["six"], told, ()) == (
        "uv uses https://other.example/simple https://pypi.acme.example/simple (UV_INDEX), "
        "/srv/wheels (UV_FIND_LINKS), "
        f"https://pypi.acme.example/simple ({file}) here, and pods, which install this job's packages when they start, "
        'do not: pass capture_env_vars=["UV_INDEX*", "UV_FIND_LINKS"], or name it in the project, if pods can reach it'
    )
    without_files = configured_indexes.note_for_pods(["six"], told | {"UV_NO_CONFIG": "true"}, ())
    assert str(file) not in without_files


@pytest.mark.parametrize(
    ("lines", "more", "captured"),
    [
        (["--extra-index-url https://ci:${WORD}@pypi.acme.example/simple/", "six"], {"UV_INDEX": ACME}, ()),
        (["six"], {"UV_INDEX": ACME}, ("UV_INDEX",)),
        (["six"], {"UV_DEFAULT_INDEX": USUAL}, ()),
        (["six"], {"UV_CONFIG_FILE": "/nowhere/uv.toml"}, ()),
    ],
)
def test_nothing_is_told_of_an_index_that_pods_know_too(environ, lines, more, captured):
    assert configured_indexes.note_for_pods(lines, environ | more, captured) == ""
