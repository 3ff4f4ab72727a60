"""Programs that compile in less than a second: one archive for each function, verified before it is opened."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from unit._runner.worker.test_compile_cache import JOB_ORDER, Job, blobs, clean, entries, job, log, program, store

from kinetic._runner.worker import compilers, small_programs
from kinetic._stores.files import FileStore
from kinetic._wire import cache_entries, keys
from kinetic.errors import AccessDeniedError

__all__ = ["clean", "job", "log", "store"]
OTHER = replace(JOB_ORDER, function_name="evaluate")


def compiled(job, *names: str, order=JOB_ORDER, seconds: float = 0.4, **how) -> tuple[list[bool], Job]:
    """Run a job of a function to its end: which of the programs it found."""
    made = job(**how)
    made.cache.order = order
    made.begin()
    found = [made.jax.compile(name, seconds, name.encode()) for name in names]
    made.cache.finish()
    return found, made


def paths(store) -> list[str]:
    return [cache_entries.parse(key).path for key in entries(store)]


def archived(store) -> list[str]:
    """Return the names of the programs in the only archive."""
    (key,) = (key for key in entries(store) if "/functions/" in key)
    with zipfile.ZipFile(store.root / keys.compiled_blob(cache_entries.parse(key).sha256)) as archive:
        return archive.namelist()


def test_the_small_programs_of_a_function_are_one_object_and_found_by_its_next_job(job, store) -> None:
    assert compiled(job, "jit_f", "jit_g", "jit_h", "jit_i")[0] == [False] * 4
    assert len(entries(store)) == len(blobs(store)) == 1

    found, second = compiled(job, "jit_f", "jit_g", "jit_h", "jit_i")

    assert found == [True] * 4
    assert second.log == ["kinetic: 4 programs from cache (saved 1 s)"], "0.4 s each, though JAX says 0"
    assert len(entries(store)) == len(blobs(store)) == 1


def test_a_program_of_a_second_or_more_is_an_object_of_its_own_for_all_functions(job, store) -> None:
    compiled(job, "jit_large", seconds=3.0)
    compiled(job, "jit_small")

    assert sorted(path.partition("/")[0] for path in paths(store)) == ["functions", "jax"]
    assert compiled(job, "jit_large", "jit_small", order=OTHER)[0] == [True, False]


def test_another_function_does_not_fetch_them(job, store, monkeypatch) -> None:
    compiled(job, "jit_f")
    fetched = []
    real = FileStore.fetch
    monkeypatch.setattr(FileStore, "fetch", lambda self, key, to: fetched.append(key) or real(self, key, to))

    assert compiled(job, "jit_g", order=OTHER)[0] == [False]
    assert fetched == []
    assert len(entries(store)) == 2


def test_a_new_program_is_added_and_the_archive_before_is_removed(job, store) -> None:
    compiled(job, "jit_f", "jit_g")
    compiled(job, "jit_f", "jit_new")  # not g, which another input may need again

    assert archived(store) == ["jax/jit_f-cache", "jax/jit_g-cache", "jax/jit_new-cache"]
    assert len(entries(store)) == 1
    assert compiled(job, "jit_f", "jit_g", "jit_new")[0] == [True] * 3


def test_a_job_that_compiles_nothing_new_writes_nothing(job, store, monkeypatch) -> None:
    compiled(job, "jit_f")
    before = entries(store)
    monkeypatch.setattr(FileStore, "put", lambda *_, **__: pytest.fail("nothing is new"))

    assert compiled(job, "jit_f")[0] == [True]
    assert entries(store) == before


def test_a_use_is_noted_once_a_day(job, store) -> None:
    compiled(job, "jit_f")
    (key,) = entries(store)
    os.utime(store.root / key, (100, 100))

    compiled(job)
    assert (store.root / key).stat().st_mtime == 100, "nothing was compiled, so nothing was used"
    compiled(job, "jit_f")
    assert (store.root / key).stat().st_mtime > 1e9


@pytest.mark.parametrize("limits", [{"MOST_PROGRAMS": 2}, {"MOST_BYTES": 2 * len(program(0, b"jit_a"))}])
def test_where_there_is_no_room_those_that_were_not_used_go(job, store, monkeypatch, limits) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(small_programs, name, value)
    compiled(job, "jit_a", "jit_b")
    compiled(job, "jit_b", "jit_c")

    assert archived(store) == ["jax/jit_b-cache", "jax/jit_c-cache"]


def at_once(job, *names: tuple[str, ...]) -> list[Job]:
    """Run jobs of one function at the same time, each with its programs: none has ended when the last one begins."""
    jobs = []
    for each in names:
        made = job()
        made.cache.order = JOB_ORDER
        made.begin().wait()
        for name in each:
            made.jax.compile(name, 0.4, name.encode())
        jobs.append(made)
    for made in jobs:
        made.cache.finish()
    return jobs


def test_of_many_jobs_that_compile_the_same_at_once_only_the_first_sends_it(job, store, monkeypatch) -> None:
    sent = []
    real = FileStore.put
    monkeypatch.setattr(
        FileStore, "put", lambda self, key, *more, **how: sent.append(key) or real(self, key, *more, **how)
    )

    at_once(job, *[("jit_f", "jit_g")] * 5)

    assert len(entries(store)) == len(blobs(store)) == 1
    assert len([key for key in sent if key in blobs(store)]) == 1


def test_jobs_that_compile_different_programs_at_once_leave_one_archive_with_all(job, store) -> None:
    at_once(job, ("jit_f", "jit_g"), ("jit_g", "jit_h"), ("jit_i",))

    assert len(entries(store)) == 1
    assert archived(store) == [f"jax/jit_{name}-cache" for name in "fghi"]


def test_an_archive_is_in_the_store_while_its_job_still_runs(job, store, monkeypatch) -> None:
    monkeypatch.setattr(small_programs, "SEND_SECONDS", 0.05)
    running = job()
    running.cache.order = JOB_ORDER
    running.begin().filled.wait(5)
    running.jax.compile("jit_f", 0.4)

    listed = threading.Event()
    while not entries(store):
        assert not listed.wait(0.01)
    running.cache.finish()
    assert archived(store) == ["jax/jit_f-cache"]


def test_an_archive_that_was_changed_is_not_opened_and_is_written_anew(job, store) -> None:
    compiled(job, "jit_f")
    (blob,) = blobs(store)
    was = store.get(blob)
    store.put(blob, was[:-1] + b"x")

    found, victim = compiled(job, "jit_f")

    assert found == [False]
    assert victim.log[0].endswith("programs whose bytes are not what their entries promise are not used")
    assert compiled(job, "jit_f")[0] == [True]


def test_a_name_in_an_archive_that_leads_elsewhere_is_passed_over(tmp_path) -> None:
    archive = tmp_path / "archive"
    with zipfile.ZipFile(archive, "w") as packed:
        for name in ("../outside", "/outside", "jax/.hidden", "jax/jit_f-cache"):
            packed.writestr(name, b"code")
    folder = tmp_path / "folder"

    found = list(small_programs.SmallPrograms(folder, JOB_ORDER).unpack(archive, None))

    assert found == ["jax/jit_f-cache"]
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "archive",
        "folder/jax/jit_f-cache",
    ]


def test_of_a_slice_the_first_host_writes_and_all_hosts_use_one_archive(job, store) -> None:
    for host in (0, 1):
        made = job(hosts=2, host=host)
        made.cache.order = JOB_ORDER
        made.begin().wait()
        assert made.jax.compile("jit_f", 0.4) is False
        made.cache.finish()
    assert len(entries(store)) == 1

    again = replace(JOB_ORDER, index=None)
    for host in (0, 1):
        made = job(hosts=2, host=host, attempt=1)
        made.cache.order = again
        made.begin().wait()
        assert made.jax.compile("jit_f", 0.4) is True
        made.cache.finish()


def test_the_first_host_of_a_slice_takes_in_nothing_that_its_other_hosts_do_not_have(job, store) -> None:
    first = job(hosts=2, host=0)
    first.cache.order = JOB_ORDER
    library = first.begin()
    library.wait()
    first.jax.compile("jit_f", 0.4)
    compiled(job, "jit_of_another_job")
    library.send_new(0.0, with_small=True)

    assert sorted(file.name for file in library.folder.rglob("*-cache")) == ["jit_f-cache"]
    first.cache.finish()


def test_a_store_from_which_nothing_can_be_removed_keeps_both_archives_and_the_newer_is_used(
    job, store, monkeypatch
) -> None:
    def refuse(self, prefix):
        raise AccessDeniedError("403")

    compiled(job, "jit_f")
    os.utime(store.root / entries(store)[0], (1, 1))
    monkeypatch.setattr(FileStore, "delete", refuse)
    _, second = compiled(job, "jit_f", "jit_g")

    assert len(entries(store)) == 2
    assert second.log == ["kinetic: compiled 1 program (less than 1 s), 1 from cache (saved less than 1 s)"]
    assert compiled(job, "jit_f", "jit_g")[0] == [True, True]


def test_a_small_program_is_packed_once_it_is_whole(job, store) -> None:
    running = job()
    running.cache.order = JOB_ORDER
    library = running.begin()
    library.wait()
    running.jax.compile("jit_f", 0.4)
    file = library.folder / "jax" / "jit_of_a_subprocess-cache"
    whole = program(0, os.urandom(1000))

    file.write_bytes(whole[:500])
    library.send_new(0.0, with_small=True)
    half = archived(store)
    file.write_bytes(whole)
    running.cache.finish()

    assert half == ["jax/jit_f-cache"]
    assert archived(store) == [*half, "jax/jit_of_a_subprocess-cache"]


def test_how_long_a_program_compiled_is_read_from_the_file_of_jax(tmp_path) -> None:
    file = tmp_path / "file"
    for data, expected in (
        (program(0), 0),
        (program(77, os.urandom(100_000)), 77),
        (b"machine code", None),
        (b"", None),
        (program(3)[:2], None),
        (program(3, os.urandom(100_000))[:-1], None),
        (b"\x28\xb5\x2f\xfd cut off", None),
    ):
        file.write_bytes(data)
        assert compilers.whole_seconds(file) == expected


@pytest.mark.skipif(not (find_spec("zstandard") or find_spec("compression")), reason="this Python has no zstd")
def test_the_same_where_jax_compresses_with_zstd(tmp_path) -> None:
    page = (5).to_bytes(4, "big") + os.urandom(300_000)
    if find_spec("compression"):
        from compression import zstd

        data = zstd.compress(page)
    else:
        import zstandard

        data = zstandard.ZstdCompressor().compress(page)
    (tmp_path / "file").write_bytes(data)
    (tmp_path / "half").write_bytes(data[:-1])

    assert compilers.whole_seconds(tmp_path / "file") == 5
    assert compilers.whole_seconds(tmp_path / "half") is None


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
@pytest.mark.timeout(180)  # importing it takes half a minute on a busy machine
def test_the_real_jax_writes_what_is_read_here(tmp_path) -> None:
    from jax._src import compilation_cache

    page = compilation_cache.combine_executable_and_time(b"executable", 42)
    (tmp_path / "file").write_bytes(compilation_cache.compress_executable(page))

    assert compilers.whole_seconds(Path(tmp_path / "file")) == 42


def test_packing_the_programs_is_no_use_of_them(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    path = tmp_path / "jax" / "jit_f-cache"
    path.write_bytes(b"program")
    os.utime(path, (1, time.time()))
    programs = small_programs.SmallPrograms(tmp_path, JOB_ORDER)
    programs.take("jax/jit_f-cache")

    programs.pack(tmp_path / "archive", 1, 0.4, shows_reads=True)

    assert path.stat().st_atime == 1
    assert zipfile.ZipFile(tmp_path / "archive").read("jax/jit_f-cache") == b"program"
