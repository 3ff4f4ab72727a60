"""Objects and prefixes of a bucket in the job: the file, the tree, or a reason."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kinetic import _stores as stores
from kinetic._runner.data import provision
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._runner.data.provision import Address, split_address
from kinetic._stores.memory import MemoryStore
from kinetic._wire.order import DataRef
from kinetic.errors import DataChangedError, DataError, DataMissingError


class Bucket(MemoryStore):
    """A bucket that counts what is fetched, and takes keys that a folder could not."""

    def __init__(self, name):
        super().__init__(name)
        self.fetched = []

    def fetch(self, key, to, received=None):
        self.fetched.append(key)
        super().fetch(key, to, received)

    def force(self, key, content=b""):
        *above, name = key.split("/")
        folder = self._root
        for each in above:
            folder = folder.setdefault(f"{each}/", {})
        folder[name] = (content, time.time())


@pytest.fixture
def bucket():
    name = os.urandom(6).hex()
    stores._memory[f"memory://{name}"] = store = Bucket(name)
    yield store
    del stores._memory[f"memory://{name}"]


def ref(bucket, key, *, kind="prefix", **more):
    url = bucket if isinstance(bucket, str) else bucket.url
    name = key.rstrip("/").rpartition("/")[2] or url.rpartition("/")[2]
    return DataRef(kind, f"{url}/{key}", f"{url}/{key}", name, kind == "prefix", **more)


def provide(top, *refs, job="one", **more):
    here = {"folder": top / job / "data-0-0", "cache": top / "cache", "environ": {}, **more}
    return provision.provide(refs, JobFolders(**here))


def tree(path):
    return {str(each.relative_to(path)): each.read_bytes() for each in Path(path).rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    ("uri", "is_dir", "store", "key"),
    [
        ("gs://bucket", True, "gs://bucket", ""),
        ("gs://bucket/", True, "gs://bucket", ""),
        ("gs://bucket/a", True, "gs://bucket", "a/"),
        ("gs://bucket/a/b/", True, "gs://bucket", "a/b/"),
        ("gs://bucket/a/b.h5", False, "gs://bucket", "a/b.h5"),
        ("s3://bucket/b.h5", False, "s3://bucket", "b.h5"),
        ("file:///a/b", False, "file:///a", "b"),
        ("file:///a/b/", True, "file:///a/b", ""),
    ],
)
def test_an_address_is_a_store_and_a_key_in_it(uri, is_dir, store, key):
    assert split_address(uri, is_dir=is_dir) == Address(store, key)


def test_an_object_arrives_as_a_file_of_its_own_name(tmp_path, bucket):
    bucket.put("dir/f.h5", b"weights")
    bucket.put("dir/other", b"other")

    (path,) = provide(tmp_path, ref(bucket, "dir/f.h5", kind="object"))

    assert Path(path).name == "f.h5"
    assert Path(path).read_bytes() == b"weights"
    assert os.listdir(Path(path).parent) == ["f.h5"]


def test_a_prefix_arrives_as_a_folder(tmp_path, bucket):
    for number in range(50):
        bucket.put(f"dir/set/{number % 3}/{number}", b"%d" % number)
    bucket.put("dir/set-of-another", b"no")
    bucket.force("dir/set/empty/")
    bucket.force("dir/set/")

    (path,) = provide(tmp_path, ref(bucket, "dir/set/"))

    assert tree(path) == {f"{number % 3}/{number}": b"%d" % number for number in range(50)}
    assert Path(path, "empty").is_dir()
    assert Path(path).name == "set"


def test_a_folder_that_holds_only_its_own_marker_is_an_empty_folder(tmp_path, bucket):
    bucket.force("dir/set/")

    assert os.listdir(*provide(tmp_path, ref(bucket, "dir/set/"))) == []


@pytest.mark.parametrize("root", ["", "/"])
def test_the_root_of_a_bucket_is_everything_in_it(tmp_path, bucket, root):
    bucket.put("a", b"1")
    bucket.put("b/c", b"2")
    uri = bucket.url + root

    (path,) = provide(tmp_path, DataRef("prefix", uri, uri, bucket.url.rpartition("/")[2], is_dir=True))

    assert tree(path) == {"a": b"1", "b/c": b"2"}


def test_a_folder_of_this_machine_can_be_a_bucket(tmp_path):
    (tmp_path / "bucket" / "dir").mkdir(parents=True)
    (tmp_path / "bucket" / "dir" / "f").write_bytes(b"1")

    folder, file = provide(
        tmp_path,
        ref(f"file://{tmp_path}/bucket", "dir/"),
        ref(f"file://{tmp_path}/bucket/dir", "f", kind="object"),
    )

    assert tree(folder) == {"f": b"1"}
    assert Path(file).read_bytes() == b"1"


def test_what_is_named_twice_is_fetched_once(tmp_path, bucket):
    bucket.put("f", b"1")

    first, second = provide(tmp_path, ref(bucket, "f", kind="object"), ref(bucket, "f", kind="object"))

    assert first == second
    assert bucket.fetched == ["f"]


def test_what_lies_in_a_bucket_is_fetched_anew_for_each_job(tmp_path, bucket):
    bucket.put("f", b"old")
    provide(tmp_path, ref(bucket, "f", kind="object"))
    bucket.put("f", b"new")

    (path,) = provide(tmp_path, ref(bucket, "f", kind="object"), job="two")

    assert Path(path).read_bytes() == b"new"


@pytest.mark.parametrize("writable", [False, True])
def test_hosts_of_a_slice_fetch_once_and_have_a_copy_each(tmp_path, bucket, writable):
    bucket.put("dir/f", b"1")
    bucket.put("g", b"2")
    refs = ref(bucket, "dir/", writable=writable), ref(bucket, "g", kind="object", writable=writable)

    hosts = [provide(tmp_path, *refs, job=name, shared=tmp_path / "shared") for name in ("host-0", "host-1")]

    assert sorted(bucket.fetched) == ["dir/f", "g"]
    for folder, file in hosts:
        assert tree(folder) == {"f": b"1"}
        assert Path(file).read_bytes() == b"2"
    if writable or os.geteuid() == 0:
        Path(hosts[0][0], "f").write_bytes(b"changed")
        assert tree(hosts[1][0]) == {"f": b"1"}


# ---------------------------------------------------------------------------------------------------------- refusals


def test_a_misspelt_object_is_missing(tmp_path, bucket):
    bucket.put("dir/f.h5", b"1")

    with pytest.raises(DataMissingError, match="there is no object") as caught:
        provide(tmp_path, ref(bucket, "dir/g.h5", kind="object"))

    assert "spelling" in caught.value.next


def test_an_object_that_is_a_prefix_is_told_to_end_with_a_slash(tmp_path, bucket):
    bucket.put("dir/f.h5", b"1")

    with pytest.raises(DataMissingError) as caught:
        provide(tmp_path, ref(bucket, "dir", kind="object"))

    assert f"kinetic.Data('{bucket.url}/dir/')" in caught.value.next


def test_a_misspelt_prefix_is_no_empty_folder(tmp_path, bucket):
    bucket.put("dir/f.h5", b"1")

    with pytest.raises(DataMissingError, match="there is nothing under"):
        provide(tmp_path, ref(bucket, "dri/"))


@pytest.mark.parametrize("key", ["dir/../../escaped", "dir/..", "dir//absolute", "dir/./f", "dir/a/../../b", "dir/a//"])
def test_a_key_that_would_climb_out_is_refused(tmp_path, bucket, key):
    bucket.force(key, b"escaped")

    with pytest.raises(DataError, match="cannot become a folder") as caught:
        provide(tmp_path, ref(bucket, "dir/"))

    assert repr(key.removeprefix("dir/")) in caught.value.why
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_object_below_which_others_lie_is_refused(tmp_path, bucket):
    bucket.put("dir/a", b"1")
    bucket.force("dir/a/b", b"2")

    with pytest.raises(DataError, match="cannot become a folder"):
        provide(tmp_path, ref(bucket, "dir/"))


@pytest.mark.parametrize("kind", ["prefix", "object"])
@pytest.mark.parametrize("how", ["grew", "went"])
def test_what_changes_while_it_is_fetched_is_noticed(tmp_path, bucket, monkeypatch, kind, how):
    bucket.put("dir/f", b"1")

    def meanwhile(key, to, _received=None):
        bucket.force("dir/f", b"1234") if how == "grew" else bucket.delete("dir/f")
        Bucket.fetch(bucket, key, to)

    monkeypatch.setattr(bucket, "fetch", meanwhile)

    with pytest.raises(DataChangedError, match="while"):
        provide(tmp_path, ref(bucket, "dir/" if kind == "prefix" else "dir/f", kind=kind))
