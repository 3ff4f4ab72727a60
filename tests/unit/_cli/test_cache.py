"""``kinetic cache``: what is in the compile cache, and what of it goes; on a real store of files."""

from __future__ import annotations

import hashlib
import json
import os
import time

import pytest

from kinetic._config import home as config_home
from kinetic._stores.files import FileStore
from kinetic._wire import cache_entries, documents, keys
from kinetic._wire.cache_entries import Group

TPU = Group("jax", "tpu-v5e-1", "jax-0.10.2+jaxlib-0.10.2", "x86_64-0123abcd")
DAY = 24 * 3600.0


@pytest.fixture
def add(home):
    """Return a function that adds a program, sealed with this home's key, or with another one."""
    store = FileStore(home / "store")

    def put(path: str, size: int, *, days: float = 0.0, key: bytes | None = None) -> None:
        _, own = config_home.own_key(config_home.ensure_home(os.environ))
        data = hashlib.sha256(path.encode()).digest() * (size // 32)
        sha256 = hashlib.sha256(data).hexdigest()
        entry = cache_entries.sealed(TPU, path, sha256, size, key or documents.cache_key(own, store.url))
        store.put(keys.compiled_blob(sha256), data)
        store.put(entry.key, b"")
        for name in (entry.key, keys.compiled_blob(sha256)):
            os.utime(store.root / name, (time.time() - days * DAY,) * 2)

    return put


def test_an_empty_cache_says_so_and_pruning_it_removes_nothing(kinetic, home) -> None:
    assert "There are no compiled programs in file://" in kinetic("cache", "list").stderr
    assert kinetic("cache", "prune").stderr.strip() == "there was nothing to remove"
    assert json.loads(kinetic("cache", "list", "--json").stdout)["groups"] == []


def test_programs_are_listed_by_library_and_hardware_and_others_are_counted(kinetic, home, add) -> None:
    add("jax/jit_f-cache", 64_000)
    add("jax/jit_g-cache", 32_000, days=3)
    add("jax/jit_h-cache", 3200, key=bytes(32))

    shown = kinetic("cache", "list")
    page = json.loads(kinetic("cache", "list", "--json").stdout)

    assert shown.stdout.splitlines()[1].split()[:5] == ["jax", "tpu-v5e-1", "2", "96.0", "kB"]
    assert "jax-0.10.2 jaxlib-0.10.2" in shown.stdout
    assert shown.stderr.strip() == "1 not shown: sealed with another key; no job of yours uses them"
    assert page["unverified"] == 1
    assert {name: page["groups"][0][name] for name in ("hardware", "files", "size_bytes")} == {
        "hardware": "tpu-v5e-1",
        "files": 2,
        "size_bytes": 96_000,
    }


def test_pruning_asks_or_is_told_and_a_dry_run_changes_nothing(kinetic, home, add) -> None:
    add("jax/old-cache", 64_000, days=9)
    add("jax/new-cache", 32_000)

    dry = kinetic("cache", "prune", "--older-than", "7d", "--dry-run")
    refused = kinetic("cache", "prune", "--older", "7d")
    assert dry.stderr.strip() == "would remove 1 compiled file, 64.0 kB"
    assert "kinetic cache prune --older 7d --yes" in refused.stderr
    assert refused.exit_code != 0
    assert json.loads(kinetic("cache", "list", "--json").stdout)["groups"][0]["files"] == 2

    done = json.loads(kinetic("cache", "prune", "--older", "7d", "--yes", "--json").stdout)
    assert (done["files"], done["size_bytes"], done["removed"]) == (1, 64_000, True)
    assert kinetic("cache", "prune", "--keep", "0", "--yes").stderr.strip() == "removed 1 compiled file, 32.0 kB"
    assert "There are no compiled programs" in kinetic("cache", "list").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--older", "soon"), "'soon' is not a valid duration"),
        (("--older", "7"), "'7' is not a valid duration"),  # of what? 7 seconds would remove nearly everything
        (("--keep", "10"), "--keep='10' is not a size"),
        (("--keep", "-1Gi"), "--keep='-1Gi' is not a size"),
    ],
)
def test_what_is_no_time_or_size_is_refused(kinetic, home, words, message) -> None:
    refused = kinetic("cache", "prune", *words)

    assert message in refused.stderr
    assert "next:" in refused.stderr
