"""Names in the compile cache: only one that was sealed with the cache's own key means a program."""

from __future__ import annotations

import pytest

from kinetic._stores.memory import MemoryStore
from kinetic._wire import cache_entries, documents
from kinetic._wire.cache_entries import Group
from kinetic.errors import IntegrityError

KEY = bytes(range(32))
GROUP = Group("jax", "tpu-v5e-1", "jax-0.10.2+jaxlib-0.10.2", "x86_64-0123abcd")
DIGEST = "ab" * 32


def entry(path: str = "jax/jit_f-1-cache", size: int = 5, key: bytes = KEY) -> cache_entries.CacheEntry:
    found = cache_entries.sealed(GROUP, path, DIGEST, size, key)
    assert found is not None
    return found


def test_an_entry_is_read_back_from_its_name_alone() -> None:
    made = entry()

    assert made.key.startswith(GROUP.prefix)
    assert cache_entries.verified(made.key, KEY) == made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tpu-v5e-1", "cpu"),
        ("0.10.2", "0.10.3"),
        ("0123abcd", "0123abce"),
        ("jit_f", "jit_g"),
        ("abab", "abac"),
        (".5.", ".6."),
        ("entries/", "entries/x/"),
    ],
)
def test_a_name_that_was_changed_anywhere_is_no_entry(old: str, new: str) -> None:
    assert cache_entries.verified(entry().key.replace(old, new, 1), KEY) is None


def test_the_seal_of_another_namespace_is_wrong() -> None:
    assert cache_entries.verified(entry(key=bytes(32)).key, KEY) is None


def test_keys_of_two_stores_and_of_a_job_differ() -> None:
    made = {
        documents.cache_key(KEY, "gs://a"),
        documents.cache_key(KEY, "gs://b"),
        documents.job_key(KEY, "a", "gs://a"),
    }

    assert len(made) == 3


@pytest.mark.parametrize(
    "path", ["../up", "a/../../b", "/etc/passwd", "a//b", ".hidden", "a/.b", "", "a\nb", "é", "x" * 251]
)
def test_a_path_that_leads_elsewhere_is_no_entry(path: str) -> None:
    assert cache_entries.sealed(GROUP, path, DIGEST, 1, KEY) is None


def test_a_name_too_long_for_a_store_is_no_entry() -> None:
    assert cache_entries.sealed(GROUP, "/".join(["x" * 200] * 5), DIGEST, 1, KEY) is None


@pytest.mark.parametrize("words", ["jax 0.10/..", "", "über", "-"])
def test_any_text_becomes_one_part_of_a_key(words: str) -> None:
    assert "/" not in cache_entries.word(words)
    assert cache_entries.is_path(cache_entries.word(words))


def test_the_state_of_a_slice_holds_only_entries_that_are_ours() -> None:
    store, at = MemoryStore("state"), "job/compiled/0"
    store.put(at, cache_entries.state_page([entry()], at, KEY))
    store.put("job/compiled/1", cache_entries.state_page([entry(key=bytes(32))], "job/compiled/1", KEY))

    assert cache_entries.read_state(store, at, KEY) == (entry(),)
    with pytest.raises(IntegrityError, match="compile cache of a slice"):
        cache_entries.read_state(store, at, bytes(32))
    with pytest.raises(IntegrityError, match="compile cache of a slice"):
        cache_entries.read_state(store, "job/compiled/1", KEY)
