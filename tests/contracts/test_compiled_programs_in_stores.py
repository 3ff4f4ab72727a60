"""The compile cache in every kind of store: what one job leaves the next one finds, whatever the store refuses."""

from __future__ import annotations

import os
import zlib
from types import SimpleNamespace

import pytest
from servers.azurite import AZURE
from servers.faults import Fault

from kinetic._maintenance import compiled_programs
from kinetic._runner.worker import compilers
from kinetic._runner.worker.compile_cache import CompileCache
from kinetic._wire import cache_entries, keys
from kinetic._wire.task import Task

KEY = bytes(range(32))
PROGRAM = zlib.compress((5).to_bytes(4, "big") + b"machine code")  # as JAX writes it
_TOOK = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that runs one job on a store: return what was there, and its log."""
    folders = iter(range(100))

    def run(store, *names, data=PROGRAM):
        for library in compilers.LIBRARIES.values():
            for name in (*library.folders, *dict(library.settings)):
                monkeypatch.setenv(name, "")
                monkeypatch.delenv(name)
        folder = tmp_path / f"job-{next(folders)}"
        folder.mkdir()
        page = Task("job-1", "0" * 64, store.url, "key-1", 0o022, None, {}, base=str(folder), cache_key=KEY.hex())
        log, durations = [], []
        cache = CompileCache(page, "cpu", store, lambda text: log.append(text.strip()))
        library = cache.begin("jax")
        library.listen(
            SimpleNamespace(
                monitoring=SimpleNamespace(
                    register_event_listener=lambda _: None,
                    register_event_duration_secs_listener=durations.append,
                )
            )
        )
        library.wait()
        place = library.folder / "jax"
        place.mkdir(parents=True, exist_ok=True)
        found = {name: (place / name).read_bytes() for name in names if (place / name).exists()}
        for name in names:
            if name not in found:
                (place / name).write_bytes(data)
        for listener in durations:
            listener(_TOOK, 5.0)
        cache.finish()
        return found, log

    return run


@pytest.fixture(params=["files", "memory", "gcs", "s3", AZURE])
def store(request, make_store):
    return make_store(request.param)


@pytest.fixture(params=["gcs", "s3", AZURE])
def wire(request, faulty):
    return faulty(request.param)


def test_the_next_job_finds_every_program_also_beyond_one_page_of_a_listing(store, job):
    names = [f"jit_{number}-cache" for number in range(9)]  # listings of these servers have seven to a page

    assert job(store, *names)[0] == {}
    found, log = job(store, *names)

    assert found == dict.fromkeys(names, PROGRAM)
    assert log == ["kinetic: compiled 1 program (5 s)"]
    assert len(list(store.entries(keys.COMPILED_BLOBS))) == 1


def test_what_another_key_sealed_is_left_out_with_one_line(store, job):
    job(store, "jit_f-cache")
    (entry,) = [cache_entries.parse(each.key) for each in store.entries(keys.COMPILED_ENTRIES)]
    for path in ("jax/jit_f-cache", "jax/jit_g-cache"):
        store.put(cache_entries.sealed(entry.group, path, entry.sha256, entry.size, bytes(32)).key, b"")

    found, log = job(store, "jit_f-cache", "jit_g-cache")

    assert list(found) == ["jit_f-cache"]
    assert [line for line in log if "2 of its entries" in line and "cannot be verified" in line] == log[:1]


def test_pruning_empties_a_store_and_jobs_fill_it_again(store, job):
    job(store, "jit_f-cache")
    entry = next(iter(store.entries(keys.COMPILED_ENTRIES)))

    assert compiled_programs.prune(store, entry.modified, seconds=1e9).files == 0
    assert compiled_programs.prune(store, entry.modified, most_bytes=0) == (1, len(PROGRAM))
    assert list(store.entries(keys.COMPILED)) == []
    assert job(store, "jit_f-cache")[0] == {}
    assert list(job(store, "jit_f-cache")[0]) == ["jit_f-cache"]


def test_a_service_that_fails_for_long_costs_one_line_for_reading_and_one_for_writing(wire, job):
    store, proxy, _ = wire
    proxy.faults = [Fault("status", status=503, times=1000)]

    found, log = job(store, "jit_f-cache")

    assert found == {}
    assert [line for line in log if "the job compiles what it needs" in line] == log[:1]
    assert len(log) <= 3, log


def test_a_bucket_that_may_only_be_read_is_read(wire, job):
    store, proxy, straight = wire
    job(straight, "jit_f-cache")
    proxy.faults = [Fault("status", status=403, method="PUT|POST", times=1000)]

    found, log = job(store, "jit_f-cache", "jit_g-cache")

    assert list(found) == ["jit_f-cache"], log
    assert len([line for line in log if "does not take new programs" in line]) == 1
    assert os.environ["JAX_COMPILATION_CACHE_DIR"]
