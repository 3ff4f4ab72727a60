"""The project's own file: how its jobs run, never where."""

from __future__ import annotations

import pytest

from kinetic._config.project_options import _PLACES, read_project_options
from kinetic.errors import SettingsError


@pytest.fixture
def project(tmp_path):
    """Write a pyproject.toml and return its folder."""

    def write(text):
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path

    return write


def test_a_project_may_say_how_its_jobs_run(project):
    options = read_project_options(
        project("""
            [tool.kinetic]
            accelerator = "gpu-l4"
            by_value = ["helpers", "lib.deep"]
            container_image = "python:3.12"
            deadline = "2h"
            extras = ["train"]
            groups = ["gpu"]
            retries = 3
            spot = true
            [tool.kinetic.resources]
            memory = "8Gi"
        """)
    )

    assert options.values == {
        "accelerator": "gpu-l4",
        "by_value": ["helpers", "lib.deep"],
        "container_image": "python:3.12",
        "deadline": "2h",
        "extras": ["train"],
        "groups": ["gpu"],
        "retries": 3,
        "spot": True,
        "resources": {"memory": "8Gi"},
    }
    assert options.by_value == ("helpers", "lib.deep")
    assert (options.extras, options.groups) == (("train",), ("gpu",))


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "[tool.ruff]\n", "# kinetic\n[tool.ruff]\n"])
def test_a_project_that_says_nothing_sets_nothing(project, text):
    options = read_project_options(project(text))

    assert options.values == {}
    assert options.by_value == ()
    assert options.extras == options.groups == ()


def test_a_project_without_the_file_sets_nothing(tmp_path):
    assert read_project_options(tmp_path).values == {}
    assert read_project_options(tmp_path / "absent").values == {}


def test_a_file_that_does_not_mention_kinetic_is_not_even_parsed(project):
    assert read_project_options(project("this is [ not TOML")).values == {}


@pytest.mark.parametrize("key", sorted(_PLACES))
def test_a_project_may_never_say_where_its_jobs_run(project, key):
    folder = project(f'[tool.kinetic]\naccelerator = "cpu"\n{key} = "elsewhere"\n')

    with pytest.raises(SettingsError) as caught:
        read_project_options(folder)

    assert str(caught.value).splitlines() == [
        f"{key!r} in [tool.kinetic] of {folder / 'pyproject.toml'} is not allowed [settings]",
        (
            "why:   a project cannot set where jobs run, where results go or what is captured: "
            "a cloned repository must not redirect your jobs"
        ),
        f"next:  remove the line, and use {_PLACES[key]}",
    ]


@pytest.mark.parametrize("key", ["project", "cluster", "store", "backend", "zone", "namespace", "context"])
def test_every_part_of_a_target_is_among_the_forbidden_keys(key):
    assert key in _PLACES


def test_a_misspelt_option_is_refused_with_the_nearest(project):
    folder = project('[tool.kinetic]\naccelerater = "cpu"\n')

    with pytest.raises(SettingsError) as caught:
        read_project_options(folder)

    assert str(caught.value).splitlines() == [
        (
            f"'accelerater' in [tool.kinetic] of {folder / 'pyproject.toml'} is not an option that a project can set "
            "[settings]"
        ),
        (
            "why:   options: accelerator, base_packages, by_value, compile_cache, container_image, deadline, extras, "
            "groups, keep_warm, "
            "max_cost, require_accelerator, resources, retries, spot, wait_image"
        ),
        "next:  write accelerator, or remove the line",
    ]


def test_an_option_that_resembles_none_is_refused(project):
    with pytest.raises(
        SettingsError,
        match=r"next:  remove the line; if a newer version has this option: pip install --upgrade kinetic-jobs$",
    ):
        read_project_options(project("[tool.kinetic]\nxyz = 1\n"))


@pytest.mark.parametrize(
    ("line", "wanted", "found"),
    [
        ("accelerator = 4", "a string", "4"),
        ('by_value = "helpers"', "a list of strings", "'helpers'"),
        ("by_value = [1]", "a list of strings", "[1]"),
        ("deadline = true", "a number or a string", "True"),
        ("resources = 1", "a table or a string", "1"),
        ("base_packages = 1", "true or false", "1"),
        ("retries = true", "a number", "True"),
        ("retries = 1.5", "a number", "1.5"),
        ("spot = 1", "true or false", "1"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(project, line, wanted, found):
    folder = project(f"[tool.kinetic]\n{line}\n")

    with pytest.raises(SettingsError) as caught:
        read_project_options(folder)

    key = line.split()[0]
    assert str(caught.value).splitlines() == [
        f"{key!r} in [tool.kinetic] of {folder / 'pyproject.toml'} must be {wanted} [settings]",
        f"why:   it is {found}",
        "next:  correct the line, or remove it",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[tool.kinetic", "it is not TOML: Expected ']' at the end of a table declaration"),
        ("tool = 'kinetic'", "tool.kinetic must be a table, and it is 'kinetic'"),
        ("[tool]\nkinetic = 1", "tool.kinetic must be a table, and it is 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(project, text, why):
    folder = project(text)

    with pytest.raises(SettingsError) as caught:
        read_project_options(folder)

    first, second, third = str(caught.value).splitlines()
    assert first == f"the options of the project in {folder / 'pyproject.toml'} cannot be read [settings]"
    assert second.startswith(f"why:   {why}")
    assert third == "next:  correct the file, or use another folder with KINETIC_PACKAGE_ROOT"


def test_the_mark_that_editors_on_windows_write_in_front_is_passed_over(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.kinetic]\nretries = 2\n", encoding="utf-8-sig")

    assert read_project_options(tmp_path).values == {"retries": 2}


def test_a_file_that_is_no_text_is_told(tmp_path):
    (tmp_path / "pyproject.toml").write_bytes(b"# kinetic \xff")

    with pytest.raises(SettingsError, match="it is not TOML: 'utf-8' codec"):
        read_project_options(tmp_path)


def test_a_folder_in_the_place_of_the_file_is_told(tmp_path):
    (tmp_path / "pyproject.toml").mkdir()

    with pytest.raises(SettingsError, match="IsADirectoryError"):
        read_project_options(tmp_path)
