"""Data in a bucket that the cluster has mounted for this pod: shown where it is, and not fetched."""

from __future__ import annotations

import functools

from kinetic._runner.data import provision
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._wire.order import DataRef

FOLDER = DataRef("prefix", "gs://bucket/images/", "gs://bucket/images/", "images", is_dir=True, fuse=True)
WEIGHTS = "gs://bucket/dir/weights.h5"
FILE = DataRef("object", WEIGHTS, WEIGHTS, "weights.h5", is_dir=False, fuse=True)


def test_a_mounted_folder_is_read_where_it_is_mounted(tmp_path):
    (tmp_path / "0").mkdir()

    (found,) = provision.as_mounted([FOLDER], str(tmp_path))

    assert (found.kind, found.uri) == ("view", str(tmp_path / "0"))


def test_of_the_folder_around_a_mounted_file_the_file_is_meant(tmp_path):
    (tmp_path / "1").mkdir()

    _, found = provision.as_mounted([FOLDER, FILE], str(tmp_path))

    assert (found.kind, found.uri) == ("view", str(tmp_path / "1" / "weights.h5"))


def test_what_nobody_mounted_is_fetched(tmp_path):
    assert provision.as_mounted([FOLDER, FILE], str(tmp_path)) == [FOLDER, FILE]


def test_a_mounted_folder_of_a_job_holds_what_the_bucket_holds(tmp_path, monkeypatch):
    shown = tmp_path / "buckets" / "0"
    shown.mkdir(parents=True)
    (shown / "a.txt").write_text("one")
    looking = functools.partial(provision.as_mounted, folder=str(tmp_path / "buckets"))
    monkeypatch.setattr(provision, "as_mounted", looking)

    (path,) = provision.provide([FOLDER], JobFolders(tmp_path / "job", tmp_path / "cache", {}))

    assert (tmp_path / path / "a.txt").read_text() == "one"
