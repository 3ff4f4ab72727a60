"""Where outputs and checkpoints lie, by one rule."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic._wire import order as wire_order
from kinetic._wire.order import Artifact, Order
from kinetic.errors import OptionError

NOTHING = Artifact.within(b"")


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("/data/out/", "/data/out"),
        ("file:///data/out/", "/data/out"),
        ("gs://bucket/out/", "gs://bucket/out"),
        ("s3://bucket", "s3://bucket"),
        ("GS://Bucket/Out", "gs://Bucket/Out"),
        ("FILE:///data", "/data"),
        ("/data/../out", "/out"),
    ],
)
def test_an_output_directory_is_written_in_one_way(written, address):
    assert wire_order.output_address(written) == address


def test_a_relative_path_begins_at_the_current_folder_and_a_tilde_at_the_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")

    assert wire_order.output_address("runs/a") == f"{tmp_path}/runs/a"
    assert wire_order.output_address("~/runs") == "/home/me/runs"


def test_an_address_that_went_through_a_path_is_refused_with_the_one_that_was_meant():
    with pytest.raises(OptionError) as caught:
        wire_order.output_address(os.fspath(Path("gs://bucket/out")))

    assert caught.value.next == 'output_dir="gs://bucket/out"'


@pytest.mark.parametrize("written", ["gs://", "s3:///"])
def test_an_address_without_a_bucket_is_refused_with_how_one_is_written(written: str) -> None:
    with pytest.raises(OptionError, match="has no bucket") as raised:
        wire_order.output_address(written)

    assert raised.value.next.endswith('://bucket/folder"')


@pytest.mark.parametrize(
    ("argument", "environ", "chosen"),
    [
        ("/a", {"KINETIC_OUTPUT_DIR": "/b"}, "/a"),
        (None, {"KINETIC_OUTPUT_DIR": "/b"}, "/b"),
        (None, {"KINETIC_OUTPUT_DIR": ""}, ""),
        (None, {}, ""),
    ],
)
def test_the_argument_wins_over_the_variable(argument, environ, chosen):
    assert wire_order.resolve_output_dir(argument, environ) == chosen


@pytest.mark.parametrize(
    ("output_dir", "group", "index", "found"),
    [
        ("/out", "", None, "/out/checkpoints"),
        ("/out/", "", None, "/out/checkpoints"),
        ("gs://b/out", "", None, "gs://b/out/checkpoints"),
        ("gs://b/out", "grp-1", 7, "gs://b/out/grp-1/7/checkpoints"),
        ("/out/grp-1/7", "grp-1", 7, "/out/grp-1/7/checkpoints"),
        ("/out/grp-1/17", "grp-1", 7, "/out/grp-1/17/grp-1/7/checkpoints"),
        ("/out", "grp-1", None, "/out/checkpoints"),
        ("", "", None, ""),
    ],
)
def test_each_child_of_a_batch_has_checkpoints_of_its_own(output_dir, group, index, found):
    assert wire_order.checkpoint_dir(output_dir, group, index) == found


def test_the_checkpoints_of_an_order_do_not_depend_on_its_attempt():
    orders = [
        Order("grp-1-7", "f", NOTHING, NOTHING, output_dir="/out", group="grp-1", index=7, group_attempt=n)
        for n in (0, 1)
    ]

    assert {wire_order.checkpoints_of(order) for order in orders} == {"/out/grp-1/7/checkpoints"}


def test_a_folder_is_made_and_an_address_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert wire_order.make_output_dir(f"{tmp_path}/a/b") == f"{tmp_path}/a/b"
    assert wire_order.make_output_dir("gs://bucket/out") == "gs://bucket/out"

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a" / "b").is_dir()


def test_what_jobs_wrote_into_the_project_does_not_ship_with_the_next_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wire_order.make_default_output_dir()

    assert wire_order.excluded_output_folders(f"{tmp_path}/runs/a", [f"{tmp_path}/src"]) == [
        tmp_path / "runs" / "a",
        tmp_path / "outputs",
    ]


def test_a_folder_named_outputs_that_is_the_users_own_ships(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / ".gitignore").write_text("*.bin\n")

    wire_order.make_default_output_dir()

    assert wire_order.excluded_output_folders("", [str(tmp_path)]) == []
    assert (tmp_path / "outputs" / ".gitignore").read_text() == "*.bin\n"


@pytest.mark.parametrize("needed", ["", "/src", "/src/deep"])
def test_a_folder_that_holds_the_code_ships_though_outputs_go_there(tmp_path, monkeypatch, needed):
    monkeypatch.chdir("/")

    assert wire_order.excluded_output_folders(f"{tmp_path}{needed}", [f"{tmp_path}/src/deep"]) == []
