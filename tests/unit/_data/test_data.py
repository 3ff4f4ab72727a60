"""Data as a user writes it: what it accepts, what it refuses, and what it says of itself."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import kinetic
from kinetic._blobs import file_tree
from kinetic._data import Data
from kinetic.errors import DataMissingError, OptionError, OptionTypeError


@pytest.fixture
def folder(tmp_path, fill):
    return fill(tmp_path / "my_set", {"a.txt": b"a", "sub/b.txt": b"b"})


@pytest.mark.parametrize("form", [str, Path, lambda path: f"file://{path}", lambda path: f"{path}/"])
def test_a_local_folder_may_be_written_in_any_form(folder, form):
    data = Data(form(folder))

    assert data.path == str(folder)
    assert (data.is_dir, data.is_local, data.is_gcs, data.is_s3, data.is_cloud, data.is_hf) == (
        *(True, True, False, False, False, False),
    )
    assert (data.fuse, data.hf_trust_remote_code) == (False, False)


def test_a_relative_path_is_made_absolute_when_the_object_is_made(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    data = Data("my_set")
    monkeypatch.chdir("/")

    assert data.path == str(folder)


def test_a_tilde_is_the_users_home(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder.parent))

    assert Data("~/my_set").path == str(folder)


def test_a_uri_made_by_pathlib_means_the_same_path(tmp_path, fill):
    folder = fill(tmp_path / "with blank%", {"a": b""})

    assert Data(folder.as_uri()).path == str(folder)
    assert Data(f"file://{folder}").path == str(folder)


@pytest.mark.parametrize(
    ("written", "path", "is_dir"),
    [
        ("gs://b/dir/", "gs://b/dir/", True),
        ("GS://b/Dir/", "gs://b/Dir/", True),
        ("gs://b/dir/weights.h5", "gs://b/dir/weights.h5", False),
        ("gs://b/", "gs://b/", True),
        ("gs://b", "gs://b/", True),
        ("S3://b/x.bin", "s3://b/x.bin", False),
        ("AZ://c@account/dir/", "az://c@account/dir/", True),
        ("hf://imdb?split=train", "hf://imdb?split=train", True),
        ("HF://owner/repo", "hf://owner/repo", True),
    ],
)
def test_an_address_keeps_its_case_but_for_the_scheme(written, path, is_dir, capsys):
    data = Data(written)

    assert (data.path, data.is_dir, data.is_local) == (path, is_dir, False)
    assert data.is_gcs == path.startswith("gs://")
    assert data.is_s3 == path.startswith("s3://")
    assert data.is_hf == path.startswith("hf://")
    assert capsys.readouterr().err == ""


def test_an_object_that_looks_like_a_folder_draws_a_warning(capsys):
    Data("gs://bucket/datasets/imagenet")

    assert "warning" in (told := capsys.readouterr().err)
    assert "'gs://bucket/datasets/imagenet/'" in told


@pytest.mark.parametrize(
    ("path", "kind", "says"),
    [
        ("", OptionError, "empty"),
        ("  ", OptionError, "empty"),
        (None, OptionTypeError, "NoneType"),
        (3, OptionTypeError, "int"),
        (b"/tmp", OptionTypeError, "bytes"),
        ("http://host/file", OptionError, "not a supported address"),
        ("file://host/file", OptionError, "host"),
        ("gs://", OptionError, "no bucket"),
        ("gs:///a", OptionError, "no bucket"),
        ("hf://", OptionError, "no data set"),
        ("hf://?split=train", OptionError, "no data set"),
        ("a\0b", OptionError, "NUL"),
        (Path("gs://b/x"), OptionError, "Data('gs://b/x')"),
        ("/dev/null", OptionError, "neither a file nor a folder"),
    ],
)
def test_what_cannot_be_data_is_refused_at_once(path, kind, says):
    with pytest.raises(kind, match=r".") as caught:
        Data(path)

    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "address",
    [
        "az://container@account/set.csv?sv=2024-11-04&sig=marker",
        "https://account.blob.core.windows.net/container/set.csv?sig=marker",
        "https://user:marker@example.com/set.csv",
        "hf://user:marker@owner/set",
    ],
)
def test_an_address_with_a_secret_is_refused_and_the_secret_not_shown(address, capsys):
    with pytest.raises(OptionError, match="holds a password, a signature or a token") as caught:
        Data(address)
    assert "marker" not in f"{caught.value} {caught.value.why} {caught.value.next} {capsys.readouterr()}"


@pytest.mark.parametrize("flags", [{"fuse": 1}, {"fuse": None}, {"hf_trust_remote_code": "yes"}])
def test_a_flag_is_true_or_false(folder, flags):
    with pytest.raises(TypeError):
        Data(folder, **flags)


def test_a_data_set_of_hugging_face_cannot_be_mounted():
    with pytest.raises(ValueError, match="cannot be mounted"):
        Data("hf://imdb", fuse=True)


def test_a_misspelt_path_names_its_neighbour(folder):
    with pytest.raises(FileNotFoundError) as caught:
        Data(folder.parent / "my_sett")

    assert isinstance(caught.value, DataMissingError)
    assert f"did you mean {str(folder)!r}" in str(caught.value)


def test_a_pattern_is_answered_with_the_folder_to_pass(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).touch()

    with pytest.raises(DataMissingError) as caught:
        Data(tmp_path / "*.csv")

    assert caught.value.next.startswith("2 names there match it, but patterns are not expanded: pass the folder")


def test_a_pattern_for_folders_is_answered_with_the_folder_above_them(tmp_path):
    with pytest.raises(DataMissingError) as caught:
        Data(tmp_path / "day=*" / "part.parquet")

    assert caught.value.next == f"patterns are not expanded: pass the folder, Data({str(tmp_path)!r})"


@pytest.mark.parametrize("scheme", ["gs", "s3", "hf"])
def test_an_address_with_one_slash_is_answered_with_two(scheme):
    with pytest.raises(DataMissingError, match=f"did you mean '{scheme}://bucket/x'"):
        Data(f"{scheme}:/bucket/x")


def test_a_path_into_nowhere_names_the_part_that_exists(folder):
    with pytest.raises(FileNotFoundError, match=f"check {folder}:"):
        Data(folder / "no" / "such" / "thing")


def test_a_link_that_leads_nowhere_says_where_it_leads(tmp_path):
    (tmp_path / "link").symlink_to("gone")

    with pytest.raises(FileNotFoundError, match="a broken link to gone") as caught:
        Data(tmp_path / "link")

    assert "did you mean" not in str(caught.value)


def test_inside_a_job_nothing_is_looked_for(monkeypatch, capsys):
    monkeypatch.setenv("KINETIC_JOB_ID", "cpu-train-20261120-134402-1f0c9ab")

    assert not Data("./set-of-the-client").is_dir
    Data("gs://bucket/no-slash")

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "more"),
    [({}, ""), ({"fuse": True}, ", fuse=True"), ({"hf_trust_remote_code": True}, ", hf_trust_remote_code=True")],
)
def test_its_text_is_what_was_written(folder, monkeypatch, flags, more):
    monkeypatch.chdir(folder.parent)

    assert repr(Data("./my_set", **flags)) == f"Data('./my_set'{more})"


def test_two_of_the_same_path_are_two(folder):
    one, other = Data(folder), Data(folder)

    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize("path", ["gs://b/a.bin", "s3://b/", "hf://imdb"])
def test_what_lies_elsewhere_has_no_content_hash(path):
    with pytest.raises(ValueError, match="no content hash"):
        Data(path).content_hash()


def test_the_hash_stays_what_it_was(folder):
    data = Data(folder)
    before = data.content_hash()

    (folder / "a.txt").write_text("edited")

    assert data.content_hash() == before
    assert Data(folder).content_hash() != before


def test_the_hash_is_computed_once_however_many_threads_ask(folder, monkeypatch):
    looked = []
    really = file_tree.digest_tree
    monkeypatch.setattr(file_tree, "digest_tree", lambda *words: (looked.append(words), really(*words))[1])
    data, gate = Data(folder), threading.Barrier(8)
    found = []

    def ask() -> None:
        gate.wait()
        found.append(data.content_hash())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(looked) == 1
    assert len(set(found)) == 1


@pytest.mark.parametrize("carry", [lambda data: pickle.loads(pickle.dumps(data)), copy.copy, copy.deepcopy])
def test_a_copy_keeps_everything_and_the_hash(folder, carry):
    data = Data(folder, fuse=True)
    before = data.content_hash()
    (folder / "a.txt").write_text("edited")

    carried = carry(data)

    assert (carried.path, carried.fuse, repr(carried)) == (data.path, True, repr(data))
    assert carried.content_hash() == before


def test_a_pickle_can_be_opened_where_the_path_does_not_exist(folder, tmp_path):
    pickled = pickle.dumps(Data(folder))
    folder.rename(tmp_path / "moved")

    assert pickle.loads(pickled).path == str(folder)


def test_without_a_home_folder_the_hash_is_computed_all_the_same(folder, monkeypatch):
    from kinetic._config import home
    from kinetic.errors import SettingsError

    def no_home(_environ):
        raise SettingsError("no home folder is known")

    expected = Data(folder).content_hash()
    monkeypatch.setattr(home, "kinetic_home", no_home)

    assert Data(folder).content_hash() == expected


def test_making_data_loads_nothing_heavy():
    code = (
        "import sys, kinetic.errors, threading, stat\nbefore = set(sys.modules)\n"
        "from kinetic._data import Data\nData('/')\nData('gs://b/x.bin')\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}

    told = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)

    ours = {"kinetic._data", "kinetic._data.data"}
    heavy = {"hashlib", "json", "concurrent.futures", "dataclasses", "urllib.parse", "kinetic._config"}
    assert ours <= set(told.stdout.split())
    assert not heavy & set(told.stdout.split())


def test_local_data_is_a_path_of_this_machine_for_whoever_opens_it_here(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    data = kinetic.Data(tmp_path / "config.json")

    assert isinstance(data, os.PathLike)
    assert os.fspath(data) == str(tmp_path / "config.json")
    with open(data) as file:
        assert file.read() == "{}"


@pytest.mark.parametrize("address", ["gs://bucket/set/", "s3://bucket/one", "hf://owner/name"])
def test_data_elsewhere_is_no_path_before_a_job_has_it(address):
    with pytest.raises(OptionError, match="is not on this machine"):
        os.fspath(kinetic.Data(address))


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("gs://", "name the bucket, as in gs://bucket/folder/"),
        ("hf://", "name the data set, as in hf://data-set"),
    ],
)
def test_an_address_that_names_nothing_is_answered_with_an_example(address, advice) -> None:
    with pytest.raises(OptionError) as caught:
        Data(address)

    assert caught.value.next == advice
