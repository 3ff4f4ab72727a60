"""What lies in buckets is looked for before a job starts, and the address of a data set is understood or refused."""

from __future__ import annotations

import os
from urllib.parse import parse_qs

import pytest

from kinetic._data import Data, remote_refs
from kinetic._output import terminal
from kinetic._stores.memory import MemoryStore
from kinetic._wire.order import DataRef
from kinetic.errors import (
    AccessDeniedError,
    CredentialsError,
    DataMissingError,
    OptionError,
    StoreError,
    StoreUnreachableError,
)

OBJECTS = ["dir/weights.h5", "dir/train/a", "dir/train/b", "top"]


@pytest.fixture
def refer(monkeypatch):
    """Refer to data in buckets that are stores in memory, by the address of the bucket."""
    monkeypatch.setattr(terminal, "_said", set())
    buckets = {f"{scheme}://bucket": MemoryStore(os.urandom(4).hex()) for scheme in ("gs", "s3")}
    for store in buckets.values():
        for key in OBJECTS:
            store.put(key, b"x")
    buckets["gs://empty"] = MemoryStore(os.urandom(4).hex())

    return lambda path, **flags: remote_refs.refer_to(Data(path, **flags), opener=buckets.__getitem__)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_an_object_is_one_file(refer, scheme):
    uri = f"{scheme}://bucket/dir/weights.h5"

    assert refer(uri) == DataRef(kind="object", uri=uri, path=uri, name="weights.h5", is_dir=False)


@pytest.mark.parametrize(
    ("path", "name"), [("dir/", "dir"), ("dir/train/", "train"), ("", "bucket")], ids=["folder", "deeper", "all of it"]
)
def test_a_prefix_is_a_folder(refer, path, name):
    uri = f"gs://bucket/{path}"

    assert refer(uri, fuse=True) == DataRef(kind="prefix", uri=uri, path=uri, name=name, is_dir=True, fuse=True)


def test_the_address_is_in_small_letters_and_the_message_as_written(refer):
    ref = refer("GS://bucket/dir/")

    assert (ref.uri, ref.path) == ("gs://bucket/dir/", "GS://bucket/dir/")


@pytest.mark.parametrize(
    ("written", "other"),
    [("gs://bucket/dir", "gs://bucket/dir/"), ("gs://bucket/top/", "gs://bucket/top")],
    ids=["a slash is missing", "a slash too many"],
)
def test_a_slash_too_few_or_too_many_is_told(refer, written, other):
    with pytest.raises(DataMissingError) as caught:
        refer(written)

    assert f"Data({other!r})" in str(caught.value)


@pytest.mark.parametrize("path", ["gs://bucket/no.bin", "gs://bucket/no/", "gs://bucket/di/", "gs://empty/"])
def test_what_is_not_there_is_missing_before_anything_starts(refer, path):
    with pytest.raises(FileNotFoundError, match="there is no"):
        refer(path)


@pytest.mark.parametrize("path", ["gs://bucket/outputs/job", "gs://bucket/outputs/job/"])
def test_the_output_folder_of_a_job_that_is_waited_for_need_not_be_there_yet(path):
    def refer(path: str):
        awaited = ["gs://bucket/outputs/job"]
        return remote_refs.refer_to(Data(path), opener=lambda _: MemoryStore("a"), awaited=awaited)

    found, below = refer(path), refer(f"{path.rstrip('/')}/model.pt")

    assert (found.kind, found.uri, found.is_dir, found.name) == ("prefix", "gs://bucket/outputs/job/", True, "job")
    assert (below.kind, below.uri) == ("object", "gs://bucket/outputs/job/model.pt")
    with pytest.raises(DataMissingError):
        refer("gs://bucket/outputs/job-2/")


def test_a_bucket_that_does_not_exist_is_missing():
    class NoBucket(MemoryStore):
        def entry(self, key):
            raise StoreError("the bucket gs://no does not exist", code="store-missing")

        def entries(self, prefix, *, after=""):
            raise StoreError("the bucket gs://no does not exist", code="store-missing")

    for path in ("gs://no/a.bin", "gs://no/a/", "gs://no/"):
        with pytest.raises(DataMissingError, match="the bucket gs://no does not exist"):
            remote_refs.refer_to(Data(path), opener=lambda _url: NoBucket())


def test_a_bucket_that_does_not_answer_is_not_taken_for_an_empty_one():
    class Silent(MemoryStore):
        def entry(self, key):
            raise StoreUnreachableError("gs://no did not answer")

    with pytest.raises(StoreUnreachableError):
        remote_refs.refer_to(Data("gs://no/a.bin"), opener=lambda _url: Silent())


@pytest.mark.parametrize("kind", [CredentialsError, AccessDeniedError])
def test_without_credentials_here_the_job_may_have_them(monkeypatch, capsys, kind):
    monkeypatch.setattr(terminal, "_said", set())

    def opener(_url):
        raise kind("nobody is logged in")

    refs = [remote_refs.refer_to(Data("gs://bucket/dir/"), opener=opener) for _ in range(2)]

    assert refs[0].kind == "prefix"
    assert capsys.readouterr().err.count("only the job will see whether it exists: nobody is logged in") == 1


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://imdb", ("imdb", "", "", "")),
        ("hf://imdb?split=train", ("imdb", "train", "", "")),
        ("hf://owner/repo/?config_name=en&revision=main", ("owner/repo", "", "en", "main")),
        ("hf://imdb?split=train+test", ("imdb", "train+test", "", "")),
        ("hf://imdb?split=train[:10%]", ("imdb", "train[:10%]", "", "")),
        ("hf://imdb?split=train%5B:5%25%5D", ("imdb", "train[:5%]", "", "")),
        ("hf://imdb?split=&revision=v1", ("imdb", "", "", "v1")),
        ("hf:///folder/in the/job?split=train", ("/folder/in the/job", "train", "", "")),
    ],
)
def test_the_address_of_a_data_set_is_understood(refer, uri, expected):
    found = remote_refs.data_set(uri)

    assert found == expected
    assert remote_refs.data_set(found.uri) == expected
    ref = refer(uri, hf_trust_remote_code=True)
    assert (ref.kind, ref.is_dir, ref.trust, ref.path) == ("hf", True, True, uri)
    assert parse_qs(ref.uri.partition("?")[2]).get("split", [""]) == [expected[1]]  # as any reader would see it


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://imdb?splt=train", "known: split, config_name, revision"),
        ("hf://imdb?split=a&split=b", "'split' twice"),
        ("hf://a/b/c", "does not name a data set"),
        ("hf://a//b", "does not name a data set"),
        ("hf:///", "does not name a data set"),
    ],
)
def test_the_address_of_a_data_set_is_refused_with_a_reason(refer, uri, says):
    with pytest.raises(OptionError, match=r".") as caught:
        refer(uri)

    assert says in str(caught.value)


@pytest.mark.parametrize(("typed", "advice"), [("splt=test", "write split=test"), ("foo=1", "remove foo=1")])
def test_an_unknown_parameter_of_a_data_set_is_answered_with_what_to_write(typed, advice):
    with pytest.raises(OptionError, match="unknown parameter") as caught:
        remote_refs.data_set(f"hf://imdb?{typed}")

    assert caught.value.next == advice
