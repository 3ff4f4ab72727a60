"""All the data of a job: references in order, each thing sent once, volumes where they may be mounted."""

from __future__ import annotations

import pytest

from kinetic._data import Data, ship
from kinetic._data.data import check_volumes
from kinetic._data.ship import ship_all
from kinetic.errors import DataChangedError, OptionError, OptionTypeError


@pytest.fixture
def root(tmp_path, fill):
    return fill(tmp_path / "set", {"a": b"1", "b/c": b"2"})


def test_arguments_come_first_and_then_volumes(root, store, cache):
    one, other = Data(root / "a"), Data(root)

    refs = ship_all([one, other], {"/data": other, "/one/": one}, store, cache=cache)

    assert [(ref.name, ref.is_dir, ref.mount) for ref in refs] == [
        ("a", False, ""),
        ("set", True, ""),
        ("set", True, "/data"),
        ("a", False, "/one"),
    ]
    assert refs[0].manifest == refs[3].manifest != refs[1].manifest == refs[2].manifest


def test_the_same_data_is_sent_once(root, store, cache, monkeypatch):
    monkeypatch.chdir(root.parent)
    shipped = []
    really = ship.ship
    monkeypatch.setattr(
        ship,
        "ship",
        lambda data, *words, **more: (shipped.append(data), really(data, *words, **more))[1],
    )
    data = Data(root)

    refs = ship_all([data, data, Data("set")], {"/data": data}, store, cache=cache)

    assert shipped == [data]
    assert [ref.path for ref in refs] == [str(root), str(root), "set", str(root)]


def test_the_same_path_copied_and_mounted_are_two(root, memory, cache):
    copied, mounted = ship_all([Data(root), Data(root, fuse=True)], {}, memory, cache=cache)

    assert (copied.kind, copied.fuse, mounted.kind, mounted.fuse) == ("shipped", False, "prefix", True)


def test_one_whose_hash_was_asked_for_before_an_edit_is_refused_beside_one_that_was_not(root, store, cache):
    old = Data(root)
    old.content_hash()
    (root / "a").write_bytes(b"edited")

    with pytest.raises(DataChangedError):
        ship_all([Data(root), old], {}, store, cache=cache)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_a_job_may_ask_for_copies_that_it_may_change(root, store, cache, monkeypatch, value, expected):
    monkeypatch.setenv("KINETIC_DATA_WRITABLE", value)

    (ref,) = ship_all([Data(root)], {}, store, cache=cache)

    assert ref.writable is expected


def test_what_lies_in_a_bucket_is_referred_to(root, store, cache):
    store.store.put("dir/a", b"1")

    refs = ship.ship_all(
        [Data("gs://bucket/dir/"), Data("hf://imdb", hf_trust_remote_code=True), Data("hf://imdb")],
        {},
        store,
        cache=cache,
        opener=lambda url: store.store,
    )

    assert [(ref.kind, ref.trust) for ref in refs] == [("prefix", False), ("hf", True), ("hf", False)]


def test_volumes_are_checked_before_anything_is_sent(root, store, cache):
    with pytest.raises(ValueError, match="root of the file system"):
        ship_all([Data(root)], {"/": Data(root)}, store, cache=cache)

    assert store.take() == []


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["data"], "not absolute"),
        ([""], "not absolute"),
        (["./data"], "not absolute"),
        (["/"], "root of the file system"),
        (["//"], "root of the file system"),
        (["/a/../b"], "plain form, '/b'"),
        (["/a//b"], "plain form, '/a/b'"),
        (["/a/."], "plain form, '/a'"),
        (["//a"], "plain form"),
        (["/a\0b"], "plain form"),
        (["/_kinetic"], "reserved for kinetic"),
        (["/_kinetic/fuse-data/0"], "reserved for kinetic"),
        (["/data", "/data/"], "another volume is mounted at '/data'"),
        (["/data", "/data/train"], "one cannot be inside the other"),
        (["/data/train", "/data"], "one cannot be inside the other"),
    ],
)
def test_a_path_that_cannot_be_mounted_is_refused_with_the_reason(root, paths, says):
    with pytest.raises(OptionError, match=r".") as caught:
        check_volumes({path: Data(root) for path in paths})

    assert says in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_neighbours_are_no_conflict(root):
    paths = ["/data", "/data2", "/da", "/_kinetics", "/a/b", "/a/c"]

    assert list(check_volumes({path: Data(root) for path in paths})) == paths


@pytest.mark.parametrize("volumes", [{"/data": "gs://bucket/"}, {3: None}, {b"/data": None}])
def test_a_volume_is_a_path_and_a_data(volumes):
    with pytest.raises(OptionTypeError, match="is not a path and a Data"):
        check_volumes(volumes)
