"""The compile cache of a worker: what it fetches, sends and refuses, with a library that writes files and reports."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from kinetic._runner.worker import compile_cache, compilers
from kinetic._runner.worker.compile_cache import CompileCache, LibraryCache
from kinetic._stores.files import FileStore
from kinetic._wire import cache_entries, documents, keys
from kinetic._wire.cache_entries import Measurement
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import IN_SECRET, PodSettings, Task
from kinetic.errors import AccessDeniedError, IntegrityError, StoreUnreachableError

KEY = bytes(range(32))
NOTHING = Artifact("0" * 64, 0)
JOB_ORDER = Order("job-1", "train", NOTHING, NOTHING, plan={"root": "/work/project", "entry_rel": "train.py"})
PROGRAM = "jax/jit_f-0123-cache"


def program(seconds: float = 20.0, code: bytes = b"machine code") -> bytes:
    """Return a file as JAX writes it."""
    return zlib.compress(int(seconds).to_bytes(4, "big") + code)


class Jax:
    """As much of JAX as the cache sees: a folder in a variable, events, and files that appear between two of them."""

    def __init__(self) -> None:
        self.events: list = []
        self.durations: list = []
        self.monitoring = SimpleNamespace(
            register_event_listener=self.events.append,
            register_event_duration_secs_listener=self.durations.append,
        )

    def compile(self, name: str, seconds: float = 20.0, data: bytes = b"machine code") -> bool:
        """Compile a program, or find it; return whether it was found."""
        for on_event in self.events:
            on_event("/jax/compilation_cache/compile_requests_use_cache", platform="cpu")
        file = Path(os.environ["JAX_COMPILATION_CACHE_DIR"], f"{name}-cache")
        found = file.exists()
        if found:
            file.read_bytes()
            self.tell("/jax/compilation_cache/cache_hits")
            self.took("/jax/compilation_cache/compile_time_saved_sec", int(seconds) - 0.1)
        else:
            self.tell("/jax/compilation_cache/cache_misses")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(program(seconds, data))
        self.took("/jax/core/compile/backend_compile_duration", 0.1 if found else seconds)
        return found

    def tell(self, event: str) -> None:
        for listener in self.events:
            listener(event)

    def took(self, event: str, seconds: float) -> None:
        for listener in self.durations:
            listener(event, seconds, fun_name="f")


class Job:
    """One job with a cache, and what stands in its log."""

    def __init__(self, folder: Path, store, log: list[str], **task) -> None:
        page = Task("job-1", "0" * 64, store.url, "key-1", 0o022, None, {}, base=str(folder), suffix="-0-0")
        self.task = replace(page, cache_key=KEY.hex(), **task)
        self.cache = CompileCache(self.task, "cpu", store, lambda text: log.append(text.strip()))
        self.jax, self.log = Jax(), log

    def begin(self) -> LibraryCache:
        library = self.cache.begin("jax")
        assert library is not None
        library.listen(self.jax)
        return library

    def compile(self, *names: str, data: bytes = b"machine code") -> list[bool]:
        return [self.jax.compile(name, data=data) for name in names]


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    monkeypatch.setattr(compilers, "_ABOVE", str(tmp_path))
    monkeypatch.setattr(compilers, "_held", {})
    for library in compilers.LIBRARIES.values():
        for name in (*library.folders, *dict(library.settings), library.switch):
            if name:
                monkeypatch.setenv(name, "")  # so that it is restored
                monkeypatch.delenv(name)
    monkeypatch.setattr(compile_cache, "_SETTLED_SECONDS", 0.01)


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path) -> FileStore:
    return FileStore(tmp_path / "store")


@pytest.fixture
def job(tmp_path, store, log, monkeypatch):
    numbers = iter(range(100))

    def make(**how) -> Job:
        for name in compilers.LIBRARIES["jax"].folders:
            monkeypatch.delenv(name, raising=False)
        folder = tmp_path / f"job-{next(numbers)}"
        folder.mkdir()
        log.clear()
        return Job(folder, how.pop("store", store), log, **how)

    return make


def entries(store) -> list[str]:
    return [each.key for each in store.entries(keys.COMPILED_ENTRIES)]


def blobs(store) -> list[str]:
    return [each.key for each in store.entries(keys.COMPILED_BLOBS)]


def filled(job, *names: str, data: bytes = b"machine code") -> None:
    """Leave programs in the store, as an earlier job does."""
    first = job()
    first.begin()
    first.compile(*names, data=data)
    first.cache.finish()


# ----------------------------------------------------------------------------------------------------- what it is for


def test_the_next_job_finds_what_one_compiled_and_its_log_says_what_that_saved(job, store) -> None:
    first = job()
    first.begin()
    assert first.compile("jit_f", "jit_g") == [False, False]
    first.cache.finish()
    assert first.log == ["kinetic: compiled 2 programs (40 s)"]

    second = job()
    second.begin()
    assert second.compile("jit_f", "jit_g", "jit_h") == [True, True, False]
    second.cache.finish()

    assert second.log == ["kinetic: compiled 1 program (20 s), 2 from cache (saved 41 s)"]
    assert len(entries(store)) == 3
    assert len(blobs(store)) == 1  # all three are the same bytes


def test_many_minutes_are_said_in_minutes_and_nothing_is_said_of_a_moment(job) -> None:
    tally = compile_cache.Tally()
    tally.on_duration("/jax/core/compile/backend_compile_duration", 0.2)
    assert tally.summary() == ""
    tally.compiled, tally.seconds, tally.found, tally.saved = 3, 41.2, 27, 360.0

    assert tally.summary() == "compiled 3 programs (41 s), 27 from cache (saved about 6 min)"


def test_a_program_is_in_the_store_while_its_job_still_runs(job, store) -> None:
    running = job()
    library = running.begin()
    library.filled.wait(5)
    running.compile("jit_f")

    listed = threading.Event()
    while not entries(store):
        assert not listed.wait(0.01)
    running.cache.finish()


def test_other_versions_or_another_accelerator_find_nothing(job, store, monkeypatch) -> None:
    filled(job, "jit_f")

    other = job()
    other.cache._accelerator = "tpu-v5e-1"
    other.begin()
    assert other.compile("jit_f") == [False]
    other.cache.finish()
    assert {cache_entries.parse(key).group.hardware for key in entries(store)} == {"cpu", "tpu-v5e-1"}


def test_the_users_own_settings_win(job, monkeypatch) -> None:
    wanted = job()
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/theirs")
    assert wanted.cache.begin("jax") is None
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "/theirs"

    off = job()
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    assert off.cache.begin("jax") is None

    plain = job()
    monkeypatch.delenv("JAX_ENABLE_COMPILATION_CACHE")
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "all")
    plain.begin()
    assert os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] == "all"
    plain.cache.finish()


def test_a_process_that_user_code_forked_has_no_cache_of_its_own(job, monkeypatch) -> None:
    parent = job()
    monkeypatch.setattr(parent.cache, "_pid", os.getpid() + 1)

    assert parent.cache.begin("jax") is None
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_process_that_user_code_forks_while_programs_arrive_compiles_at_once(job, store, monkeypatch) -> None:
    arrived = threading.Event()
    monkeypatch.setattr(LibraryCache, "list_entries", lambda _: arrived.wait(30) and ())
    parent = job()
    parent.begin()

    if (child := os.fork()) == 0:
        os._exit(0 if parent.compile("jit_f") == [False] else 1)
    limit = time.monotonic() + 10
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < limit:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    arrived.set()
    parent.cache.finish()

    assert ended == (child, 0), "it waited for a thread that it does not have"


def test_files_of_a_library_that_reports_nothing_are_found_again(tmp_path, job, store) -> None:
    first = job()
    assert first.cache.begin("torch") is not None
    for name, data in (("inductor/ab/cab.py", b"code"), ("inductor/tmp123/x", b"half"), ("triton/K/k.cubin.lock", b"")):
        file = first.cache.libraries["torch"].folder / name
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
        os.utime(file, (1, 1))
    first.cache.libraries["torch"].filled.wait(5)
    first.cache.finish()
    assert first.log == ["kinetic: compile cache of torch: 0 files found, 1 added"]

    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        del os.environ[name]
    second = job()
    library = second.cache.begin("torch")
    library.wait()
    assert (Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "ab" / "cab.py").read_bytes() == b"code"
    second.cache.finish()
    assert second.log == ["kinetic: compile cache of torch: 1 files found, 0 added"]


def test_of_the_folder_of_vllm_only_what_was_compiled_is_kept(job, store) -> None:
    first = job()
    assert first.cache.begin("vllm") is not None
    root = Path(os.environ["VLLM_CACHE_ROOT"])
    compiled = "torch_compile_cache/1a2b/rank_0_0/graph.py", "deep_gemm/cache/kernel.gemm/kernel.cubin"
    for name in (*compiled, "assets/weights.bin", "deep_gemm/tmp/half.cubin"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
        os.utime(root / name, (1, 1))
    first.cache.libraries["vllm"].filled.wait(5)
    first.cache.finish()
    assert first.log == ["kinetic: compile cache of vllm: 0 files found, 2 added"]

    del os.environ["VLLM_CACHE_ROOT"]
    second = job()
    second.cache.begin("vllm").wait()
    root = Path(os.environ["VLLM_CACHE_ROOT"])
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert found == sorted(compiled)
    assert [(root / name).read_text() for name in found] == found
    second.cache.finish()


def process(code: str, store, tmp_path: Path, *, name: str = "vllm", host: str = "") -> subprocess.Popen[str]:
    """Run a job in a process of its own, which finds ``cache``, its ``library``, and ``root``, the library's folder."""
    head = f"""
        import os, sys
        from dataclasses import replace
        from pathlib import Path
        from kinetic._runner.worker import compilers
        from kinetic._runner.worker.compile_cache import CompileCache
        from kinetic._stores.files import FileStore
        from kinetic._wire.task import Task

        compilers._ABOVE = {str(tmp_path)!r}
        store = FileStore(Path({str(store.root)!r}))
        hosts, host = (2, int({host!r})) if {host!r} else (1, 0)
        base = f"{tmp_path}/{{os.getpid() if hosts == 1 else 'slice'}}"
        task = Task("job-1", "0" * 64, store.url, "key-1", 0o022, None, {{}}, base=base, suffix=f"-0-{{host}}")
        task = replace(task, cache_key={KEY.hex()!r}, hosts=hosts, host=host)
        cache = CompileCache(task, "gpu", store, sys.stdout.write)
        library = cache.begin({name!r})
        library.filled.wait(5)
        root = library.folder
    """
    words = [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


COMPILES_WITH_PATHS = """
    index = root / "vllm" / "torch_compile_cache" / "1a2b" / "index"
    if index.exists():
        print(Path(index.read_text()).read_text())
    else:
        index.parent.mkdir(parents=True)
        (index.parent / "graph").write_text("compiled before")
        index.write_text(f"{index.parent}/graph")
        print("compiles")  # and the function ends
    cache.finish()
"""


@pytest.mark.parametrize("name", ["torch", "vllm"])
def test_what_was_compiled_is_found_at_the_paths_that_stand_in_it(store, tmp_path, name: str) -> None:
    jobs = (process(COMPILES_WITH_PATHS, store, tmp_path, name=name) for _ in range(2))
    said = [job.communicate()[0].splitlines() for job in jobs]

    assert said[0] == ["compiles", f"kinetic: compile cache of {name}: 0 files found, 2 added"]
    assert said[1] == ["compiled before", f"kinetic: compile cache of {name}: 2 files found, 0 added"]
    assert not [*tmp_path.glob("kinetic-*-compiled/*/*")], "each job removes its own"


def test_two_jobs_that_use_vllm_at_the_same_time_have_folders_of_their_own(store, tmp_path) -> None:
    waits = "print(root, flush=True)\nsys.stdin.read()\n" + textwrap.dedent(COMPILES_WITH_PATHS)
    first, second = (process(waits, store, tmp_path) for _ in range(2))
    folders = [each.stdout.readline() for each in (first, second)]
    said = [each.communicate()[0].splitlines()[0] for each in (first, second)]

    assert folders[0] != folders[1]
    assert said == ["compiles", "compiles"], "what names another folder is not found"


def test_the_hosts_of_a_slice_that_is_emulated_have_one_folder_and_find_what_the_first_one_compiled(
    store, tmp_path
) -> None:
    process(COMPILES_WITH_PATHS, store, tmp_path).communicate()
    waits = "print(root, flush=True)\nsys.stdin.read()\n" + textwrap.dedent(COMPILES_WITH_PATHS)
    hosts = [process(waits, store, tmp_path, host=host) for host in ("0", "1")]
    folders = {host.stdout.readline() for host in hosts}
    said = [host.communicate()[0].splitlines() for host in hosts]

    assert len(folders) == 1
    assert said == 2 * [["compiled before", "kinetic: compile cache of vllm: 2 files found, 0 added"]]
    assert not [*tmp_path.glob("kinetic-*-compiled/vllm-*/*")], "the last one removes it"


def test_a_job_waits_for_the_folder_of_one_that_has_ended_and_still_sends(store, tmp_path) -> None:
    ends = f"print(root, flush=True)\nsys.stdin.readline()\n{textwrap.dedent(COMPILES_WITH_PATHS)}".replace(
        "cache.finish()", "compilers.note_end('vllm')\nprint('ended', flush=True)\nsys.stdin.read()\ncache.finish()"
    )
    first = process(ends, store, tmp_path)
    folder = first.stdout.readline()
    first.stdin.write("\n")
    first.stdin.flush()
    assert [first.stdout.readline() for _ in range(2)] == ["compiles\n", "ended\n"]

    second = process(f"print(root, flush=True)\n{textwrap.dedent(COMPILES_WITH_PATHS)}", store, tmp_path)
    first.communicate()

    assert second.communicate()[0].splitlines()[:2] == [folder.strip(), "compiled before"]


def test_a_job_that_finds_the_disk_full_lets_no_other_one_wait_for_its_folder(job, tmp_path, monkeypatch) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = compilers.shared_folder() / f"vllm-{compilers._first_place(job().task)}"
    left = folder / "graph"
    left.parent.mkdir(parents=True)
    left.touch()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_room)
        assert compilers.folder_of(job().task, compilers.LIBRARIES["vllm"]) is None

    with Path(f"{folder}.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [*compilers.shared_folder().rglob("graph")] == []  # what a killed job had left makes room


def test_what_a_killed_job_left_of_vllm_is_not_seen_by_the_next(store, tmp_path) -> None:
    killed = process(
        "(root / 'left').mkdir(parents=True)\nprint(root.exists(), flush=True)\nos._exit(9)", store, tmp_path
    )
    said = killed.communicate()[0], process("print(root.exists())", store, tmp_path).communicate()[0]

    assert said == ("True\n", "False\n")


@pytest.mark.parametrize("mode", [0o777, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used_for_vllm(job, tmp_path, mode: int) -> None:
    above = tmp_path / f"kinetic-{os.getuid()}-compiled"
    above.mkdir()
    above.chmod(mode)

    made = job()
    assert made.cache.begin("vllm") is None
    assert "VLLM_CACHE_ROOT" not in os.environ
    assert made.log == [
        f"kinetic: compile cache: nothing of vllm is kept: {above} cannot be made, or others can write to it"
    ]


def test_a_link_in_the_place_of_the_folder_is_not_followed_for_vllm(job, tmp_path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"kinetic-{os.getuid()}-compiled").symlink_to(tmp_path / "elsewhere")

    assert job().cache.begin("vllm") is None


# --------------------------------------------------------------------------------------------- what cannot be believed


def test_a_program_that_another_key_sealed_is_never_fetched(job, store) -> None:
    filled(job, "jit_f")
    good = cache_entries.parse(entries(store)[0])
    store.delete(good.key)
    evil = b"evil code"
    sha256 = hashlib.sha256(evil).hexdigest()
    store.put(keys.compiled_blob(sha256), evil)
    forged = cache_entries.sealed(good.group, good.path, sha256, len(evil), bytes(32))
    store.put(forged.key, b"")

    victim = job()
    library = victim.begin()
    assert victim.compile("jit_f") == [False]
    victim.cache.finish()

    assert [file.read_bytes() for file in library.folder.rglob("*-cache")] == [program()]
    assert victim.log[0].startswith("kinetic: compile cache: 1 of its entries in file://")
    assert "cannot be verified and are not used" in victim.log[0]
    assert len(victim.log) == 2


def test_bytes_that_were_changed_are_never_put_into_place_and_are_written_anew(job, store) -> None:
    filled(job, "jit_f", data=b"right")
    (blob,) = blobs(store)
    store.put(blob, b"wrong")

    victim = job()
    victim.begin()
    assert victim.compile("jit_f", data=b"right") == [False]
    victim.cache.finish()

    assert (
        victim.log[0] == "kinetic: compile cache: programs whose bytes are not what their entries promise are not used"
    )
    assert store.get(blob) == program(code=b"right")
    third = job()
    third.begin()
    assert third.compile("jit_f") == [True]
    third.cache.finish()


def test_of_two_programs_of_one_name_the_newer_is_used(job, store) -> None:
    filled(job, "jit_f", data=b"old")
    old = entries(store)[0]
    os.utime(store.root / old, (1, 1))
    second = job()
    library = second.cache.begin("jax")
    library.wait()
    file = library.folder / PROGRAM.replace("jit_f-0123", "jit_f")
    file.write_bytes(program(code=b"newer"))
    second.cache.finish()
    assert len(entries(store)) == 2

    third = job()
    library = third.cache.begin("jax")
    library.wait()
    assert (library.folder / "jax" / "jit_f-cache").read_bytes() == program(code=b"newer")
    third.cache.finish()


# ----------------------------------------------------------------------------------------------------- what may fail


@pytest.mark.parametrize("error", [StoreUnreachableError("503"), OSError(28, "no space"), ValueError("a bug")])
def test_a_store_that_fails_costs_one_line_and_the_job_compiles(job, store, monkeypatch, error) -> None:
    monkeypatch.setattr(FileStore, "entries", lambda *_, **__: (_ for _ in ()).throw(error))

    lonely = job()
    lonely.begin()
    assert lonely.compile("jit_f") == [False]
    lonely.cache.finish()

    assert [line for line in lonely.log if "the job compiles what it needs" in line] == [lonely.log[0]]


def test_a_full_disk_while_fetching_costs_one_line_and_leaves_no_half_program(job, store, monkeypatch) -> None:
    filled(job, "jit_f")
    monkeypatch.setattr(FileStore, "fetch", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))

    lonely = job()
    library = lonely.begin()
    library.wait()

    assert list(library.folder.rglob("*-cache")) == []
    assert "no space left" in lonely.log[0]
    lonely.cache.finish()


def test_a_store_that_may_not_be_written_is_read_and_said_once(job, store, monkeypatch) -> None:
    filled(job, "jit_f")
    tried = []

    def refuse(self, key, *_, **__):
        tried.append(key)
        raise AccessDeniedError("403")

    monkeypatch.setattr(FileStore, "put", refuse)

    reader = job()
    reader.begin()
    assert reader.compile("jit_f", "jit_g", "jit_h") == [True, False, False]
    reader.cache.finish()

    assert len(tried) == 1
    assert [line for line in reader.log if "does not take" in line] == [
        "kinetic: compile cache: the store does not take new programs: 403"
    ]


def test_a_program_that_is_removed_while_it_is_listed_is_compiled_and_written_again(job, store) -> None:
    filled(job, "jit_f")
    store.delete(keys.COMPILED_BLOBS)

    unlucky = job()
    unlucky.begin()
    assert unlucky.compile("jit_f") == [False]
    unlucky.cache.finish()
    assert unlucky.log == ["kinetic: compiled 1 program (20 s)"]

    third = job()
    third.begin()
    assert third.compile("jit_f") == [True]
    third.cache.finish()


def test_two_jobs_that_compile_the_same_at_once_leave_one_program(job, store, monkeypatch) -> None:
    first, second = job(), job()
    folders = []
    for each in (first, second):
        monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
        each.begin().filled.wait(5)
        folders.append(os.environ["JAX_COMPILATION_CACHE_DIR"])
    for each, folder in zip((first, second), folders, strict=True):
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", folder)
        each.compile("jit_f")
    for each in (first, second):
        each.cache.finish()

    assert len(entries(store)) == len(blobs(store)) == 1


def test_the_first_program_waits_for_the_store_and_no_longer_than_it_answers(job, store, monkeypatch) -> None:
    filled(job, "jit_f")
    release = threading.Event()
    real = FileStore.fetch
    monkeypatch.setattr(FileStore, "fetch", lambda *words: release.wait(10) and real(*words))

    patient = job()
    patient.begin()
    threading.Timer(0.2, release.set).start()
    assert patient.compile("jit_f") == [True]
    patient.cache.finish()

    release.clear()
    monkeypatch.setattr(compile_cache, "STALL_SECONDS", 0.3)
    stalled = job()
    stalled.begin()
    assert stalled.compile("jit_f") == [False]
    assert "nothing comes from the store any more" in stalled.log[0]
    release.set()
    stalled.cache.finish()


def test_no_more_is_fetched_than_fits_and_what_was_used_last_comes_first(job, store, monkeypatch) -> None:
    for number in range(3):
        filled(job, f"jit_{number}", data=os.urandom(100))
    by_path = {cache_entries.parse(key).path: key for key in entries(store)}
    for number in range(3):
        os.utime(store.root / by_path[f"jax/jit_{number}-cache"], (100 + number, 100 + number))
    monkeypatch.setattr(compile_cache, "MOST_FETCHED", 250)

    reader = job()
    library = reader.begin()
    library.wait()

    assert [entry.path for entry in library.entries] == ["jax/jit_2-cache", "jax/jit_1-cache"]
    reader.cache.finish()


def test_what_was_compiled_before_the_clock_went_back_an_hour_is_sent(job, store) -> None:
    running = job()
    library = running.begin()
    library.filled.wait(5)
    running.compile("jit_f")
    in_an_hour = time.time() + 3600
    os.utime(library.folder / "jax" / "jit_f-cache", (in_an_hour, in_an_hour))

    running.cache.finish()

    assert [cache_entries.parse(key).path for key in entries(store)] == ["jax/jit_f-cache"]


def test_half_of_a_program_that_another_process_is_writing_is_not_sent_until_it_is_whole(job, store) -> None:
    running = job()
    library = running.begin()
    library.filled.wait(5)
    running.compile("jit_f")
    file = library.folder / "jax" / "jit_of_a_subprocess-cache"
    whole = program(code=os.urandom(200_000))

    file.write_bytes(whole[:-1])
    library.send_new(0.0, with_small=True)
    half = [cache_entries.parse(key).path for key in entries(store)]
    file.write_bytes(whole)
    running.cache.finish()

    assert half == ["jax/jit_f-cache"]
    assert [cache_entries.parse(key).path for key in entries(store)] == [*half, "jax/jit_of_a_subprocess-cache"]


def test_a_program_that_a_killed_process_left_half_written_is_not_kept(job, store) -> None:
    first = job()
    library = first.begin()
    library.filled.wait(5)
    for name, data in (("cut", program()[:-5]), ("empty", b""), ("other", b"half of something")):
        (library.folder / "jax").mkdir(parents=True, exist_ok=True)
        (library.folder / "jax" / f"jit_{name}-cache").write_bytes(data)
    first.cache.finish()

    assert entries(store) == []
    assert first.log == []


def test_a_program_that_jax_removes_after_it_was_listed_is_passed_over(job, store, monkeypatch) -> None:
    running = job()
    library = running.begin()
    library.filled.wait(5)
    with library._lock, monkeypatch.context() as patched:  # so that its own thread does not look
        running.compile("jit_f", "jit_g")
        listed = list(library._files())
        (library.folder / "jax" / "jit_f-cache").unlink()
        patched.setattr(library, "_files", lambda: listed)
        library.send_new(0.0, with_small=True)
    running.compile("jit_h")
    running.cache.finish()

    assert [cache_entries.parse(key).path for key in entries(store)] == ["jax/jit_g-cache", "jax/jit_h-cache"]
    assert running.log == ["kinetic: compiled 3 programs (60 s)"]


def test_the_times_that_jax_notes_for_a_maximum_size_are_no_programs(job, store) -> None:
    running = job()
    library = running.begin()
    library.filled.wait(5)
    running.compile("jit_f")
    (library.folder / "jax" / "jit_f-atime").write_bytes(bytes(8))
    running.cache.finish()

    assert [cache_entries.parse(key).path for key in entries(store)] == ["jax/jit_f-cache"]


@pytest.mark.skipif(not (find_spec("jax") and find_spec("filelock")), reason="real JAX is needed, and filelock")
def test_the_real_jax_with_a_maximum_size_removes_what_was_fetched(job, store) -> None:
    from jax._src.lru_cache import LRUCache

    filled(job, "jit_f", data=os.urandom(300))
    later = job()
    library = later.begin()
    library.wait()

    LRUCache(os.environ["JAX_COMPILATION_CACHE_DIR"], max_size=500).put("jit_new", bytes(400))

    assert [file.name for file in library.folder.rglob("*-cache")] == ["jit_new-cache"]
    later.cache.finish()


def test_a_use_is_noted_once_a_day_and_only_of_what_was_used(job, store) -> None:
    filled(job, "jit_f", "jit_g")
    for key in entries(store):
        os.utime(store.root / key, (100, 100))

    user = job()
    user.begin()
    assert user.compile("jit_f") == [True]
    user.cache.finish()

    used = {cache_entries.parse(each.key).path: each.modified for each in store.entries(keys.COMPILED_ENTRIES)}
    assert used["jax/jit_f-cache"] > 1e9
    assert used["jax/jit_g-cache"] == 100


def test_where_reading_leaves_no_trace_a_job_that_found_something_used_it_all(job, store, monkeypatch) -> None:
    filled(job, "jit_f", "jit_g")
    for key in entries(store):
        os.utime(store.root / key, (100, 100))
    monkeypatch.setattr(compile_cache, "_shows_reads", lambda _: False)

    user = job()
    user.begin()
    assert user.compile("jit_f") == [True]
    user.cache.finish()

    assert all(each.modified > 1e9 for each in store.entries(keys.COMPILED_ENTRIES))


def test_a_store_that_is_away_for_a_moment_gets_the_programs_afterwards(job, store, monkeypatch) -> None:
    tries = []
    real = FileStore.put

    def refuse_once(self, key, *words, **more):
        tries.append(key)
        if len(tries) == 1:
            raise StoreUnreachableError("503")
        return real(self, key, *words, **more)

    monkeypatch.setattr(FileStore, "put", refuse_once)
    running = job()
    running.begin().filled.wait(5)
    running.compile("jit_f")

    listed = threading.Event()
    while not entries(store):
        assert not listed.wait(0.01)
    running.cache.finish()
    assert running.log[0] == "kinetic: compile cache: the store does not take new programs: 503"


@pytest.mark.parametrize(("name", "found"), [("worker:program-sent", False), ("worker:program-listed", True)])
def test_a_job_that_is_killed_while_it_writes_leaves_a_whole_program_or_none(job, store, tmp_path, name, found) -> None:
    program = f"""
        import os, sys, types
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_compile_cache import Job, FileStore
        folder = Path({str(tmp_path / "killed")!r}); folder.mkdir()
        job = Job(folder, FileStore({str(tmp_path / "store")!r}), [])
        job.begin(); job.compile("jit_f"); job.cache.finish()
        """
    source = str(Path(compile_cache.__file__).parents[3])
    environ = {**os.environ, "PYTHONPATH": source, "KINETIC_TEST_KILL": f"{name}@{tmp_path / 'mark'}"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr

    later = job()
    later.begin()
    assert later.compile("jit_f") == [found]
    later.cache.finish()
    assert len(entries(store)) == len(blobs(store)) == 1


# ------------------------------------------------------------------------------------------------------------- slices


@pytest.mark.parametrize("first", [0, 1])
def test_the_hosts_of_a_slice_use_what_the_first_one_found_and_nothing_newer(job, store, first) -> None:
    filled(job, "jit_f")
    hosts = [job(hosts=2, host=first)]
    libraries = [hosts[0].begin()]
    if first == 0:
        libraries[0].wait()
        filled(job, "jit_g")  # another job, in between
    hosts.append(job(hosts=2, host=1 - first))
    libraries.append(hosts[1].begin())

    for each, library in zip(hosts, libraries, strict=True):
        library.wait()
        assert [entry.path for entry in library.entries] == [PROGRAM.replace("f-0123", "f")]
        assert sorted(file.name for file in library.folder.rglob("*-cache")) == ["jit_f-cache"]
        assert each.log == []
        each.cache.finish()


@pytest.mark.parametrize(("name", "is_used"), [("torch", True), ("vllm", False)])
def test_a_host_with_another_folder_leaves_what_fails_there(
    job, tmp_path, monkeypatch, name: str, is_used: bool
) -> None:
    (tmp_path / "of-another-machine").mkdir()
    for hosts in (1, 2):
        leader = job(hosts=hosts)
        file = leader.cache.begin(name).folder / "vllm" / "torch_compile_cache" / "graph"
        leader.cache.libraries[name].wait()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"graph")
        os.utime(file, (1, 1))
        leader.cache.finish()
        for variable in compilers.LIBRARIES[name].folders:
            os.environ.pop(variable)

    compilers._held.clear()  # as in a process of its own,
    monkeypatch.setattr(compilers, "_ABOVE", f"{tmp_path}/of-another-machine")
    library = job(hosts=2, host=1).cache.begin(name)
    library.wait()

    assert (library.folder / "vllm" / "torch_compile_cache" / "graph").exists() is is_used


def test_of_a_slice_the_first_host_writes(job, store) -> None:
    for host in (0, 1):
        each = job(hosts=2, host=host)
        each.begin().wait()
        each.compile(f"jit_{host}")
        each.cache.finish()

    assert [cache_entries.parse(key).path for key in entries(store)] == ["jax/jit_0-cache"]


def test_where_the_first_host_says_nothing_no_host_uses_what_it_finds_later(job, monkeypatch) -> None:
    filled(job, "jit_f")
    follower = job(hosts=2, host=1)
    library = follower.begin()
    assert not library.filled.wait(0.3)  # nothing waits for it, so there is time

    monkeypatch.setattr(compile_cache, "_LIST_SECONDS", 0.0)
    assert follower.compile("jit_f") == [False]
    assert "the first host of the slice does not say what it found" in follower.log[0]
    follower.cache.finish()
    leader = job(hosts=2)
    leader.begin()

    assert leader.compile("jit_f") == [False]
    leader.cache.finish()


def test_a_first_host_that_cannot_list_the_store_lets_the_others_know(job, monkeypatch) -> None:
    filled(job, "jit_f")
    leader = job(hosts=2)
    monkeypatch.setattr(LibraryCache, "list_entries", lambda _: (_ for _ in ()).throw(AccessDeniedError("403")))
    leader.begin()
    assert leader.compile("jit_f") == [False]
    assert leader.log == ["kinetic: compile cache: 403; the job compiles what it needs"]
    leader.cache.finish()

    follower = job(hosts=2, host=1)
    follower.begin()

    assert follower.compile("jit_f") == [False]
    assert follower.log == []
    follower.cache.finish()


def test_a_first_host_that_cannot_tell_the_others_uses_nothing_itself(job, store, monkeypatch) -> None:
    filled(job, "jit_f")
    leader = job(hosts=2)
    monkeypatch.setattr(FileStore, "put", lambda *_, **__: (_ for _ in ()).throw(AccessDeniedError("403")))
    leader.begin()

    assert leader.compile("jit_f") == [False]
    assert leader.log == ["kinetic: compile cache: 403; the job compiles what it needs"]
    monkeypatch.undo()
    leader.cache.finish()


def test_a_host_whose_job_ends_asks_no_more_for_what_the_first_one_found(job, store) -> None:
    follower = job(hosts=2, host=1)
    library = follower.begin()

    follower.cache.finish()

    assert library.filled.wait(5)
    assert library.entries == ()
    assert list(store.entries("job-1/")) == []


# --------------------------------------------------------------------------------------- what the next batch is told


ORDER = JOB_ORDER
LATER = replace(ORDER, index=3)


def in_a_pod(job, order=ORDER, kind="tpu", **settings) -> Job:
    made = job(kind=kind)
    made.cache.order, made.cache.task = order, replace(made.task, pod=PodSettings(**settings))
    return made


def measurement(store) -> Measurement:
    at = cache_entries.measurement_key(ORDER)
    return documents.open_page(cache_entries.MEASUREMENT, store, at, KEY)


def test_a_job_in_a_pod_leaves_how_long_its_programs_take_to_compile_found_or_not(job, store) -> None:
    for _ in range(2):
        made = in_a_pod(job)
        made.begin()
        made.compile("jit_f", "jit_g")
        made.cache.finish()

        found = measurement(store)
        assert found.compile_seconds == pytest.approx(40.0, abs=1.0)
        assert found.code == cache_entries.code_of(ORDER)
    assert found.compile_seconds <= found.seconds < 60  # as if the second job had found nothing


def test_what_jax_does_not_keep_is_not_worth_a_wait(job, store) -> None:
    made = in_a_pod(job)
    made.begin().filled.wait(5)
    made.jax.took("/jax/core/compile/backend_compile_duration", 300.0)  # without a report that it is written
    made.cache.finish()

    assert measurement(store).compile_seconds == 0.0


def test_a_job_that_failed_or_for_which_nobody_waits_is_not_measured(job, store) -> None:
    how = {"on a machine": job, "failed": partial(in_a_pod, job), "later": partial(in_a_pod, job, LATER)}
    how["on a CPU"] = partial(in_a_pod, job, kind="cpu")
    for name, make in how.items():
        made = make()
        made.cache.order = made.cache.order or ORDER
        made.begin()
        made.compile("jit_f")
        made.cache.finish(succeeded=name != "failed")

    assert [each.key for each in store.entries(keys.compiled_measurement(""))] == []


def test_a_child_that_waited_and_compiled_its_own_programs_says_so(job, store) -> None:
    filled(job, "jit_f")
    for name in ("jit_f", "jit_of_its_own"):
        made = in_a_pod(job, replace(ORDER, index=1), waited=True)
        made.begin()
        made.compile(name)
        said_before = store.size(cache_entries.differs_key(ORDER))
        made.cache.finish()

    assert said_before is None
    assert store.size(cache_entries.differs_key(ORDER)) == 0


def test_the_first_child_notes_what_is_in_the_store_while_it_runs(job, store) -> None:
    first = in_a_pod(job, replace(ORDER, index=0), awaited_seconds=40.0)
    library = first.begin()
    library.filled.wait(5)
    first.compile("jit_f", "jit_g")

    pause = threading.Event()
    while not first.cache.task.compiled.exists() or first.cache.task.compiled.read_text() != "40.000":
        assert not pause.wait(0.01)
    assert len(entries(store)) == 2
    first.cache.finish()


# ------------------------------------------------------------------------------------------------------------ the key


def test_the_key_comes_from_the_secret_in_a_pod_and_a_short_one_is_refused(tmp_path, store) -> None:
    page = Task("job-1", "0" * 64, store.url, "key-1", 0o022, None, {}, cache_key=IN_SECRET)
    page = replace(page, pod=PodSettings(secret=str(tmp_path)))
    (tmp_path / "cache-key").write_bytes(KEY)
    assert compile_cache.read_key(page) == KEY

    (tmp_path / "cache-key").write_bytes(KEY[:16])
    with pytest.raises(IntegrityError, match="damaged"):
        compile_cache.read_key(page)


def test_the_key_is_in_no_text_of_a_task() -> None:
    page = Task("job-1", "0" * 64, "file:///x", "key-1", 0o022, None, {}, cache_key=KEY.hex())

    assert KEY.hex() not in repr(page)
