"""The runner of a pod: real processes that start the zip as a container would, with a store of files or of buckets."""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from flows.programs import COMPILES
from servers.faults import Fault, FaultyProxy
from servers.gcs import GcsServer
from servers.moto_s3 import MotoServer
from servers.wheels import environment_with_pip
from waiting import until

from kinetic._jobs import logs
from kinetic._project import archive
from kinetic._project.root import Plan
from kinetic._runner.worker import command
from kinetic._stores import open_store, protocol
from kinetic._stores.bucket import BucketStore
from kinetic._stores.files import FileStore
from kinetic._stores.protocol import Store
from kinetic._wire import cache_entries, digests, documents, inspection, keys, outcomes, pod_log_format, python_runtime
from kinetic._wire.order import OUTPUT_PAGES, Artifact, Order
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.records import HISTORY
from kinetic._wire.task import FAILED_EXIT, IMAGE_EXIT, IN_SECRET, INFRASTRUCTURE_EXIT, PodSettings, Task

SOURCE = Path(__file__).parents[2] / "src"

KEY = bytes(range(32))
JOB = "cpu-train-20261121-120000-abcdef0"
NO_OBSTORE = "raise ImportError('this image has no obstore')\n"


def function(text: str) -> Any:
    """Make the last function of a text, as one of a user's script: it travels by value."""
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(text), script)
    return [value for name, value in script.items() if callable(value) and not name.startswith("__")][-1]


class Pods:
    """One job in a store, and pods that carry it out."""

    def __init__(self, folder: Path, zipped: Path, store: Store, environ: dict[str, str]) -> None:
        self.folder, self.zipped, self.store, self.environ = folder, zipped, store, environ
        self.secret = folder / "secret"
        self.secret.mkdir()
        self.last_words = folder / "termination-log"
        self.last_words.touch()
        self.put_key(KEY)
        self.python, self.argument, self.inside = sys.executable, "", []
        self.started: list[subprocess.Popen[Any]] = []
        settings = PodSettings(secret=str(self.secret), last_words=str(self.last_words))
        self.page = Task(JOB, "0" * 64, store.url, "key-1", 0o022, None, {}, pod=settings)

    def tell(self, **settings: Any) -> None:
        """Change what the first process is told."""
        pod = {name: settings.pop(name) for name in PodSettings.__dataclass_fields__ if name in settings}
        self.page = replace(self.page, **settings, pod=replace(self.page.pod, **pod))

    def put_key(self, key: bytes) -> None:
        (self.secret / "job-key").write_bytes(key)

    def put_cache_key(self) -> None:
        (self.secret / "cache-key").write_bytes(KEY)
        self.tell(cache_key=IN_SECRET)

    def order(self, text: str, *args: Any, **more: Any) -> Pods:
        """Write the order of a job that calls the function with these arguments."""
        written = Order(
            JOB,
            "train",
            Artifact.within(cloudpickle.dumps(function(text))),
            Artifact.within(pickle.dumps((args, {}))),
            **{"fingerprint": {"python": python_runtime.python_version()}, "hosts": self.page.hosts, **more},
        ).to_bytes()
        self.store.put(keys.order(JOB), written)
        self.store.put(keys.record(JOB), b"{}")
        self.page = replace(self.page, order_sha256=digests.of_bytes(written))
        return self

    def command(self, *words: str) -> Pods:
        """Write the order of a job that runs a command."""
        written = Order(
            JOB,
            words[0],
            Artifact.within(pickle.dumps(command.run)),
            Artifact.within(pickle.dumps(((list(words), {}), {}))),
            fingerprint={"python": python_runtime.python_version()},
            is_command=True,
        ).to_bytes()
        self.store.put(keys.order(JOB), written)
        self.store.put(keys.record(JOB), b"{}")
        self.page = replace(self.page, order_sha256=digests.of_bytes(written), is_command=True)
        return self

    def start(self, *, text: bool = True, **environ: str) -> subprocess.Popen[Any]:
        """Start a pod."""
        beside = self.folder / f"pod-{len(self.started)}"
        beside.mkdir()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "PYTHON"))}
        process = subprocess.Popen(
            [*self.inside, self.python, str(self.zipped), self.argument or self.page.to_argument()],
            env={**clean, "TMPDIR": str(beside), **self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=text,
        )
        self.started.append(process)
        return process

    def run(self, **environ: str) -> tuple[int, str]:
        """Run a pod to its end; return its exit code and what it printed."""
        process = self.start(**environ)
        out, _ = process.communicate(timeout=60)
        return process.returncode, out

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()

    def outcome(self) -> Outcome | None:
        size = self.store.size(keys.result(JOB))
        if size is None:
            return None
        read = outcomes.read(
            size, lambda start, length: self.store.get(keys.result(JOB), start=start, length=length), KEY
        )
        assert read.body_length == 0 or digests.of_bytes(self.body(read)) == read.body_sha256
        return read

    def body(self, read: Outcome) -> bytes:
        return self.store.get(keys.result(JOB), length=read.body_length)

    def value(self) -> Any:
        read = self.outcome()
        assert read is not None
        assert read.body_length
        return pickle.loads(self.body(read))

    def log(self, attempt: int = 0, host: int = 0) -> str:
        return logs.text_of(logs.StoredLog(self.store, keys.logs(JOB, attempt, host)))

    def note(self, attempt: int = 0) -> AttemptNote:
        return outcomes.read_note(self.store, JOB, attempt, KEY)

    def keys_below(self, prefix: str) -> list[str]:
        return [entry.key.removeprefix(prefix) for entry in self.store.entries(prefix)]


@pytest.fixture
def pods(tmp_path: Path, zipped: Path) -> Iterator[Pods]:
    """Pods with a store of files."""
    made = Pods(tmp_path, zipped, FileStore(tmp_path / "store"), {})
    yield made
    made.end()


class Bucket:
    """A bucket behind a proxy that injects faults; the test itself speaks to the server."""

    def __init__(self) -> None:
        self.server = GcsServer().start()
        self.server.bucket("jobs")
        self.proxy = FaultyProxy(self.server.url)

    def close(self) -> None:
        self.proxy.close()
        self.server.close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    made = Bucket()
    yield made
    made.close()


@pytest.fixture
def cloud_pods(tmp_path: Path, zipped: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    """Pods with a store in a bucket."""
    for name in protocol.CREDENTIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.server.url)
    environ = {"STORAGE_EMULATOR_HOST": bucket.proxy.url}
    made = Pods(tmp_path, zipped, BucketStore("gs://jobs/here"), environ)
    yield made
    made.end()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


WAITS = """
    import os, time
    def wait(flag):
        print("waiting", flush=True)
        open(flag, "w").close()
        while not os.path.exists(flag + ".go"):
            time.sleep(0.01)
        return "went on"
"""


# ------------------------------------------------------------------------------------------------------- good ends


def test_a_pod_brings_the_value_into_the_store_and_ends_with_0(pods: Pods) -> None:
    pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)

    code, out = pods.run()

    assert code == 0, out
    assert pods.value() == 3
    read = pods.outcome()
    assert (read.status, read.witness, read.key_id, read.attempt) == ("succeeded", "runner", "key-1", 0)
    assert "adding" in out
    assert pods.log() == "adding\n"


def test_a_pod_speaks_to_a_bucket(cloud_pods: Pods) -> None:
    cloud_pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)

    code, out = cloud_pods.run()

    assert code == 0, out
    assert cloud_pods.value() == 3
    assert cloud_pods.log() == "adding\n"
    assert cloud_pods.keys_below(f"{JOB}/") == [
        "attempts/0", "handle.json", "logs/0/0/000000000000", "order.json", "result.pkl",
    ]  # fmt: skip


def test_a_pod_begins_with_one_interpreter_and_five_requests(cloud_pods: Pods, bucket: Bucket, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text("VALUE = 42\n")
    plan = Plan(project, "", "", ("",))
    shipped = archive.ship(plan, cloud_pods.store, cache=tmp_path / "cache", environ={})
    cloud_pods.order(
        """
        import os, sys, threading
        def looks(flag):
            import mine
            assert "kinetic._runner.worker.compile_cache" not in sys.modules
            above = os.getppid()
            with open(f"/proc/{above}/task/{above}/children") as file:
                processes = file.read().split()
            open(flag, "w").close()
            while not os.path.exists(flag + ".go"):
                pass
            return mine.VALUE, sys.orig_argv[1], len(processes), sorted(each.name for each in threading.enumerate())
        """,
        str(tmp_path / "flag"),
        manifest=shipped.manifest,
        packs=shipped.packs,
        plan=plan.to_json(),
    )
    cloud_pods.put_cache_key()  # the job compiles nothing, and pays nothing

    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    before = list(bucket.proxy.requests)
    (tmp_path / "flag.go").touch()
    out, _ = pod.communicate(timeout=60)

    assert pod.returncode == 0, out
    value, started, processes, threads = cloud_pods.value()
    assert (value, started, processes) == (42, str(cloud_pods.zipped), 1)  # the worker was forked, not started
    assert threads == ["MainThread"]  # the one that flushes is none of Python's objects
    assert [method for method, _ in before].count("HEAD") == 2  # the outcome and the history, at the same time
    assert sorted(method for method, _ in before if method != "HEAD") == ["GET", "GET", "PUT"]


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_a_fresh_pod_finds_what_another_compiled_and_opens_nothing_that_is_not_ours(
    cloud_pods: Pods, bucket: Bucket
) -> None:
    def run() -> tuple[bool, str, list[str]]:
        cloud_pods.store.delete(f"{JOB}/")
        cloud_pods.order(COMPILES)
        seen = len(bucket.proxy.requests)
        code, out = cloud_pods.run()
        assert code == 0, out
        asked = [path for _, path in bucket.proxy.requests[seen:]]
        return cloud_pods.value(), out, [path for path in asked if "compiled" in path]

    cloud_pods.put_cache_key()
    # Else a program that takes 20 ms the second time only, on a busy machine, is a new one.
    variables = json.dumps({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"})
    (cloud_pods.secret / "environment.json").write_text(variables)
    is_found, out, asked = run()
    assert not is_found
    assert re.search(r"kinetic: compiled \d+ programs? \(\d+ s\)", out), out
    assert len(asked) == 6  # two listings; bytes and entry of a program, and of the small ones
    entry, small = sorted(cloud_pods.store.entries(keys.COMPILED_ENTRIES), key=lambda each: "/functions/" in each.key)
    assert "/functions/" in small.key

    evil = b"not a program"
    sha256 = digests.of_bytes(evil)
    cloud_pods.store.put(keys.compiled_blob(sha256), evil)
    parsed = cache_entries.parse(entry.key)
    forged = cache_entries.sealed(parsed.group, parsed.path, sha256, len(evil), bytes(32))
    cloud_pods.store.put(forged.key, b"")
    is_found, out, asked = run()
    assert is_found
    assert " from cache (saved" in out
    assert "1 of its entries in gs://jobs/here cannot be verified and are not used" in out
    assert len(asked) == 3  # one listing, and the bytes of both
    assert not any(sha256 in path for path in asked)


def test_a_pod_that_comes_late_runs_nothing(pods: Pods, tmp_path: Path) -> None:
    pods.order("def touch(path):\n    open(path, 'a').write('x')", str(tmp_path / "touched"))
    pods.run()

    code, out = pods.run()

    assert code == 0
    assert pod_log_format.VERDICT in out
    assert (tmp_path / "touched").read_text() == "x"
    assert pods.keys_below(keys.attempts(JOB)) == ["0"]


def test_a_job_finds_kinetic_in_its_image(pods: Pods) -> None:
    pods.order("""
        def names():
            import kinetic
            @kinetic.run(accelerator="cpu")
            def inner(n):
                return n * 2
            return inner(4), kinetic.Data.__name__, kinetic.errors.Preempted.__name__, kinetic.output_dir()
    """)
    pods.tell(output_dir="gs://b/out", checkpoint_dir="gs://b/out/checkpoints")

    code, out = pods.run()

    assert code == 0, out
    assert pods.value() == (8, "Data", "Preempted", "gs://b/out")


OUTPUTS = "gs://jobs/out"
WRITES = """
    def train(flag=""):
        import os, pathlib, signal, subprocess, sys, time
        folder = os.environ["KINETIC_OUTPUT_DIR"]
        before = sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file())
        os.makedirs(os.path.join(folder, "plots"), exist_ok=True)
        with open(os.path.join(folder, "plots", "loss.txt"), "w") as file:
            file.write("0.5")
        (pathlib.Path(os.environ["KINETIC_CHECKPOINT_DIR"]) / "step-1").write_text("one")
        words = "import os; open(os.environ['KINETIC_OUTPUT_DIR'] + '/of a program', 'w').write('two')"
        subprocess.run([sys.executable, "-c", words], check=True)
        if not before:
            os.symlink("step-1", os.environ["KINETIC_CHECKPOINT_DIR"] + "/latest")
        open("beside.txt", "w").close()
        if flag == "raise":
            raise ValueError("as asked")
        if flag and not before:
            open(flag, "w").close()
            time.sleep(60)
        if flag:
            os.remove(f"{folder}/plots/loss.txt")
        return before
"""
WRITTEN = ["checkpoints/latest", "checkpoints/step-1", "of a program", "plots/loss.txt"]


def writes_to_a_bucket(pods: Pods, *args: Any) -> Store:
    """Let the job write with ``open()`` below an address; return the store of that."""
    pods.order(WRITES, *args, output_dir=OUTPUTS)
    pods.tell(output_dir=OUTPUTS, checkpoint_dir=f"{OUTPUTS}/checkpoints")
    return open_store(OUTPUTS)


def files_in(store: Store) -> list[str]:
    return [entry.key for entry in store.entries("") if not entry.key.startswith(OUTPUT_PAGES)]


@pytest.mark.parametrize("how", ["", "raise"])
def test_what_a_job_writes_with_open_below_an_address_is_sent_there(cloud_pods: Pods, how: str) -> None:
    outputs = writes_to_a_bucket(cloud_pods, how)

    code, out = cloud_pods.run()

    assert code == (FAILED_EXIT if how else 0), out
    assert files_in(outputs) == WRITTEN
    assert outputs.get("checkpoints/latest") == b"one"
    assert "the job wrote beside.txt into its working folder" in cloud_pods.log()


def test_a_later_attempt_finds_what_the_one_before_wrote_and_may_remove_it(cloud_pods: Pods, tmp_path: Path) -> None:
    outputs = writes_to_a_bucket(cloud_pods, str(tmp_path / "waits"))
    outputs.put(".kinetic-files/7.json", documents.write({"schema": 1, "files": {"../../escaped": [1, 1]}}))
    outputs.put("of/another", b"written in another way")
    pod = cloud_pods.start()
    until((tmp_path / "waits").exists)
    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=60)
    assert set(WRITTEN) < set(files_in(outputs))

    code, out = cloud_pods.run()

    assert code == 0, out
    assert cloud_pods.value() == WRITTEN
    assert files_in(outputs) == [*WRITTEN[:2], "of a program", "of/another"]
    assert f"kinetic: fetched {len(WRITTEN)} file(s) that an earlier attempt wrote to {OUTPUTS}" in cloud_pods.log(1)


def test_a_job_ends_once_a_bucket_that_refused_its_files_has_them(cloud_pods: Pods, bucket: Bucket) -> None:
    outputs = writes_to_a_bucket(cloud_pods)
    bucket.proxy.faults.append(Fault("status", method="PUT", target="loss", times=2, status=403))

    code, out = cloud_pods.run()

    assert code == 0, out
    assert files_in(outputs) == WRITTEN


USES_KINETIC = """
    def uses(path):
        import sys
        import kinetic
        @kinetic.run(accelerator="tpu-v5e-1", capture_env_vars=["LANG"])
        def inner(n):
            return n * 2
        try:
            inner.run_async(1)
        except TypeError as error:
            refused = str(error)
        used = inner(4), inner.local(5), bool(kinetic.output_dir()), issubclass(kinetic.errors.Preempted, Exception)
        stand_ins = [name for name, module in sys.modules.items() if type(module).__module__.endswith("stand_ins")]
        return used, refused, stand_ins
"""


@pytest.mark.parametrize("cloud_pods", ["plain", "obstore"], indirect=True)
def test_a_job_that_uses_kinetic_needs_nothing_outside_of_what_travels_and_compiles_nothing(
    cloud_pods: Pods,
) -> None:
    cloud_pods.order(USES_KINETIC, "")
    cloud_pods.tell(output_dir="gs://b/out", checkpoint_dir="gs://b/out/checkpoints")

    code, out = cloud_pods.run(LANG="C.UTF-8")

    assert code == 0, out
    used, refused, stand_ins = cloud_pods.value()
    assert used == (8, 10, True, True)
    assert "cannot be submitted from inside a job" in refused
    assert stand_ins == []
    (package,) = cloud_pods.folder.glob("pod-0/kinetic-pod/runners/pod/kinetic")
    assert [*package.rglob("*.pyc")]
    assert list(package.parent.rglob("__pycache__/*.pyc")) == []


def test_data_that_a_job_names_itself_needs_nothing_outside_of_what_travels(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "set.txt").write_text("three lines")
    pods.order(
        """
        def reads(path):
            import sys
            import kinetic
            @kinetic.run(accelerator="cpu")
            def inner(file):
                return open(file).read()
            text, digest = inner(kinetic.Data(path)), kinetic.Data(path).content_hash()
            return text, len(digest), [n for n, m in sys.modules.items() if type(m).__module__.endswith("stand_ins")]
        """,
        str(tmp_path / "set.txt"),
    )

    code, out = pods.run()

    assert code == 0, out
    assert pods.value() == ("three lines", 64, [])


def test_names_of_the_client_can_be_imported_in_a_pod_and_say_so_when_they_are_called(pods: Pods) -> None:
    pods.order("""
        def names():
            import kinetic
            from kinetic import BatchHandle, JobHandle, attach, attach_batch, collections, jobs, list_jobs, testing
            def annotated(handle: JobHandle[int], batch: "BatchHandle[int]") -> None: ...
            said = []
            for call in (lambda: attach("job-1"), lambda: list_jobs(), lambda: attach_batch("g"), lambda: JobHandle()):
                try:
                    call()
                except kinetic.errors.CallableError as error:
                    said.append((error.what, error.next))
            everything = [getattr(kinetic, name) is not None for name in kinetic.__all__]
            try:
                import kinetic._no_such_room
            except ModuleNotFoundError:
                said.append("no such room")
            return said, all(everything), isinstance(3, JobHandle)
    """)

    code, out = pods.run()

    assert code == 0, out
    said, everything, is_one = pods.value()
    assert [what for what, _ in said[:4]] == [
        f"{name} cannot be used inside a job on a cluster"
        for name in ("attach", "list_jobs", "attach_batch", "JobHandle")
    ]
    assert all("where the job is submitted" in after for _, after in said[:4])
    assert (said[4:], everything, is_one) == (["no such room"], True, False)


def test_an_error_in_a_pod_names_the_lines_of_the_function_and_none_of_ours(pods: Pods) -> None:
    pods.order("def fails():\n    import json\n    return json.loads('{')")

    code, _ = pods.run()

    read = pods.outcome()
    assert code == FAILED_EXIT
    assert read.error["type"].endswith("JSONDecodeError")
    assert "kinetic/_runner" not in read.error["traceback"]


def test_a_job_sees_captured_values_before_its_arguments_are_opened(pods: Pods) -> None:
    class Opened:
        def __reduce__(self) -> Any:
            return os.getenv, ("TOKEN",)

    (pods.secret / "environment.json").write_text(json.dumps({"TOKEN": "secret 1", "LANG": "C.UTF-8"}))
    pods.order(
        """
        import os
        def names(token):
            ours = {name: value for name, value in os.environ.items() if name.startswith("KINETIC_")}
            return token, ours, os.environ["OF_IMAGE"], os.environ["LANG"]
        """,
        Opened(),
    )

    code, _ = pods.run(OF_IMAGE="yes", LANG="de_DE")

    token, ours, image, lang = pods.value()
    assert (code, token, image, lang) == (0, "secret 1", "yes", "C.UTF-8")
    assert ours.pop("KINETIC_PROGRESS_FILE").endswith("/log.progress")
    assert ours == {
        "KINETIC_JOB_ID": JOB, "KINETIC_ATTEMPT": "0", "KINETIC_HOST_INDEX": "0", "KINETIC_HOST_COUNT": "1",
    }  # fmt: skip


NAMES = """
    import os
    def names():
        return os.environ.get("JOB_ID"), os.environ.get("GCS_BUCKET")
"""


def test_programs_for_the_package_before_find_its_names_for_job_and_bucket(cloud_pods: Pods) -> None:
    cloud_pods.order(NAMES)

    code, _ = cloud_pods.run()

    assert (code, cloud_pods.value()) == (0, (JOB, "jobs"))


def test_what_a_user_captured_under_the_names_of_the_package_before_is_theirs(pods: Pods) -> None:
    (pods.secret / "environment.json").write_text(json.dumps({"JOB_ID": "mine"}))
    pods.order(NAMES)

    code, _ = pods.run()

    assert (code, pods.value()) == (0, ("mine", None))


def test_the_key_of_the_job_is_nowhere_in_the_memory_of_the_worker(pods: Pods, tmp_path: Path) -> None:
    pods.put_key(key := os.urandom(32))
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    until(lambda: pods.log() == "waiting\n")  # by now the parent has read the key

    in_parent, in_worker = holds(pod.pid, key), holds(children_of(pod.pid)[0], key)

    assert (in_parent, in_worker) == (True, False)


def holds(pid: int, wanted: bytes) -> bool:
    """Say whether some bytes are in the memory of a process."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, modes, *_ = line.split()
            begin, end = (int(each, 16) for each in span.split("-"))
            with contextlib.suppress(OSError, OverflowError):
                if "w" in modes and wanted in os.pread(memory.fileno(), end - begin, begin):
                    return True
    return False


def test_a_child_of_a_batch_sets_its_mark(pods: Pods) -> None:
    mark = keys.mark("grp-00000000", 3, 0)
    pods.order("def fails():\n    raise ValueError('three')")
    pods.tell(mark=mark)

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert pods.store.size(documents.sealed_name(mark, "failed", KEY)) == 0


# -------------------------------------------------------------------------------------------------------- bad ends


def test_an_exception_is_a_verdict_and_fails_the_job_at_once(pods: Pods) -> None:
    pods.order("def fails():\n    raise ValueError('no such file')")

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "no such file" in pods.last_words.read_text()
    assert "no such file" in out
    read = pods.outcome()
    assert (read.status, read.cause) == ("failed", "exception")
    assert repr(pods.value()) == "ValueError('no such file')"


def test_a_worker_that_is_killed_is_a_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)

    os.kill(children_of(pod.pid)[0], signal.SIGKILL)
    pod.communicate(timeout=30)

    assert pod.returncode == FAILED_EXIT
    assert pods.outcome().cause == "signal"
    assert "waiting" in pods.outcome().error["log"]


def test_os_exit_with_0_in_user_code_is_no_success(pods: Pods) -> None:
    pods.order("import os\ndef leave():\n    os._exit(0)")

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert pods.outcome().cause == "exit"


FORKS = """
    import os, sys, time
    def train(end):
        if os.fork() == 0:
            if end == "exits":
                sys.exit(0)
            if end == "raises":
                raise ValueError("the child's")
            return "the child's"
        time.sleep(6 if end == "exits" else 0.3)  # longer than a job is given for its exit handlers
        return "the parent's"
"""


@pytest.mark.parametrize("end", ["exits", "raises", "returns"])
def test_a_forked_child_does_not_speak_for_the_job(pods: Pods, end: str) -> None:
    pods.order(FORKS, end)

    code, _ = pods.run()

    assert (code, pods.value()) == (0, "the parent's")


@pytest.mark.parametrize("ends", ["returns", "raises"])
def test_a_function_that_closes_every_descriptor_and_opens_its_own_files_is_heard(
    pods: Pods, tmp_path: Path, ends: str
) -> None:
    (tmp_path / "theirs").mkdir()
    pods.order(
        """
        import os
        def train(folder, ends):
            os.closerange(0, 256)
            for number in range(40):
                os.write(os.open(f"{folder}/{number}", os.O_RDWR | os.O_CREAT), b"theirs")
            if ends == "raises":
                raise ValueError("with files of mine")
            return "done"
        """,
        str(tmp_path / "theirs"),
        ends,
    )

    code, _ = pods.run()

    found = pods.value()
    assert code == (FAILED_EXIT if ends == "raises" else 0)
    assert found == "done" if ends == "returns" else found.args == ("with files of mine",)
    assert {path.read_bytes() for path in (tmp_path / "theirs").iterdir()} == {b"theirs"}


def test_a_deadline_is_a_verdict(pods: Pods) -> None:
    pods.order("import time\ndef sleep():\n    time.sleep(60)")
    pods.tell(deadline=0.5)

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert pods.outcome().cause == "deadline"


def test_another_order_than_the_launched_one_is_not_carried_out(pods: Pods, tmp_path: Path) -> None:
    pods.order("def touch(path):\n    open(path, 'w')", str(tmp_path / "touched"))
    pods.tell(order_sha256="0" * 64)

    code, _ = pods.run()

    assert code == FAILED_EXIT
    assert not (tmp_path / "touched").exists()
    read = pods.outcome()
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "artifact verification", "integrity")


def test_another_python_than_the_clients_opens_nothing(pods: Pods) -> None:
    pods.order("def one():\n    return 1", fingerprint={"python": "3.9.1"})

    code, _ = pods.run()

    assert code == FAILED_EXIT
    read = pods.outcome()
    assert (read.phase, read.error["code"]) == ("artifact verification", "python-mismatch")
    assert "3.9.1" in read.error["why"]


def test_a_python_that_is_too_old_says_so(zipped: Path, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.version_info, sys.argv = (3, 8, 2), [{str(zipped)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == IMAGE_EXIT
    assert "this image has Python 3.8" in done.stdout


def test_an_image_with_another_python_than_the_clients_says_so_and_begins_nothing(pods: Pods, tmp_path: Path) -> None:
    code = f"""
import runpy, sys
sys.version_info, sys.argv = (3, 99, 2), [{str(pods.zipped)!r}]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == IMAGE_EXIT
    ours = ".".join(map(str, sys.version_info[:2]))
    assert f"this image has Python 3.99, and the job was submitted with Python {ours}" in done.stdout.splitlines()[-1]
    assert "choose another container_image" in done.stdout.splitlines()[-1]


def test_an_image_whose_python_has_no_lzma_says_so(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "lzma.py").write_text("raise ImportError('No module named _lzma')")

    done = subprocess.run(
        [sys.executable, str(pods.zipped)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == IMAGE_EXIT
    assert "the Python of this image has no lzma" in done.stdout


def test_a_pod_without_the_key_begins_nothing(pods: Pods, tmp_path: Path) -> None:
    pods.order("def touch(path):\n    open(path, 'w')", str(tmp_path / "touched"))
    (pods.secret / "job-key").unlink()

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "the key of this job is missing" in out
    assert not (tmp_path / "touched").exists()


def test_a_job_that_was_removed_is_not_brought_back(pods: Pods) -> None:
    pods.order("def one():\n    return 1")
    at = keys.history(JOB)
    pods.store.put(at, documents.seal_page(HISTORY, {"job_id": JOB, "resource_removed": True}, at, KEY))

    code, out = pods.run()

    assert code == FAILED_EXIT
    assert "removed" in out
    assert pods.outcome() is None


def test_a_page_that_is_none_fails_at_once(pods: Pods) -> None:
    done = subprocess.run([sys.executable, str(pods.zipped), "{"], capture_output=True, text=True, check=False)

    assert done.returncode == FAILED_EXIT
    assert "the launch page of this pod is damaged" in done.stdout


# ------------------------------------------------------------------------------------------------------ preemption


def test_a_pod_that_is_taken_away_leaves_a_note_and_its_log_and_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None
    assert "taken away" in pods.note().details["why"]
    assert pods.log() == "waiting\n"


def test_nothing_is_written_of_a_job_that_was_removed_while_it_ran(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.delete(keys.job(JOB))

    pod.send_signal(signal.SIGTERM)  # as the cluster does when its Job is deleted
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.keys_below(keys.job(JOB)) == []


def test_the_next_pod_is_the_next_attempt(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS + "        ", str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)
    (tmp_path / "flag.go").touch()

    code, _ = pods.run()

    assert code == 0
    assert pods.value() == "went on"
    assert pods.outcome().attempt == 1
    assert pods.log(attempt=1) == "waiting\n"


def test_a_failure_of_a_pod_that_was_replaced_is_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS.replace('return "went on"', 'raise OSError("cut off from the world")'), str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.put(keys.attempt(JOB, 1), AttemptNote(JOB, 1, "replacement", time.time()).to_bytes(KEY), if_absent=True)

    (tmp_path / "flag.go").touch()
    out, _ = pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT, out
    assert pods.outcome() is None
    assert "another attempt has taken its place" in out
    assert pods.log() != ""


def test_a_value_of_a_pod_that_was_replaced_counts(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()
    until((tmp_path / "flag").exists)
    pods.store.put(keys.attempt(JOB, 1), AttemptNote(JOB, 1, "replacement", time.time()).to_bytes(KEY), if_absent=True)

    (tmp_path / "flag.go").touch()
    pod.communicate(timeout=30)

    assert pods.value() == "went on"


def test_user_code_has_time_to_save_its_work(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time, kinetic.errors
        def train(folder):
            def save(*_):
                time.sleep(0.5)
                open(folder + "/saved", "w").close()
                raise kinetic.errors.Preempted("saved")
            signal.signal(signal.SIGTERM, save)
            open(folder + "/begun", "w").close()
            time.sleep(60)
    """, str(tmp_path))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "begun").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert (tmp_path / "saved").exists()
    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_command_saves_its_work_when_its_pod_is_taken_away_and_the_next_pod_goes_on(
    pods: Pods, tmp_path: Path
) -> None:
    begun, saved = tmp_path / "begun", tmp_path / "saved"
    script = f"""
    if [ -e {saved} ]; then echo resumed; exit 0; fi
    trap 'sleep 0.5; echo half > {saved}; echo saved; exit 0' TERM
    touch {begun}; while :; do sleep 0.1; done
    """
    first = pods.command("sh", "-c", script).start()
    until(begun.exists)

    first.send_signal(signal.SIGTERM)
    out, _ = first.communicate(timeout=60)
    between = pods.outcome()
    code, again = pods.run()

    assert first.returncode == INFRASTRUCTURE_EXIT, out
    assert "saved" in out
    assert saved.exists()
    assert between is None
    assert (code, "resumed" in again) == (0, True), again
    found = pods.outcome()
    assert found is not None
    assert (found.status, found.attempt, pickle.loads(pods.body(found))) == ("succeeded", 1, 0)


def test_the_exit_code_of_a_command_is_the_verdict_of_its_pod(pods: Pods) -> None:
    code, out = pods.command("python", "-c", "import kinetic, sys; print('here'); sys.exit(3)").run()

    found = pods.outcome()
    assert found is not None
    assert (code, found.status, found.cause, found.error["exit_code"]) == (FAILED_EXIT, "failed", "exit", 3)
    assert "here" in out
    assert "Traceback" not in out


def test_preempted_is_no_verdict_without_a_signal_either(pods: Pods) -> None:
    pods.order("def train():\n    from kinetic.errors import Preempted\n    raise Preempted('the notice came')")

    code, _ = pods.run()

    assert code == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None
    assert "Preempted" in pods.note().details["why"]


def test_leaving_by_sys_exit_when_told_to_end_is_no_success(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, sys, time
        def train(flag):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            open(flag, "w").close()
            time.sleep(60)
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_value_that_is_returned_in_time_counts(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time
        def train(flag):
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            return "in time"
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == 0
    assert pods.value() == "in time"


def test_a_value_does_not_wait_for_the_log_of_a_pod_that_must_go(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, time
        def train(flag):
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            print("a log that no store takes", flush=True)
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            return "in time"
    """, str(tmp_path / "flag"))  # fmt: skip
    (tmp_path / "store" / JOB / "logs").touch()
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        pod.communicate(timeout=4)  # what Spot leaves of its 15 s when user code took 10, less one
    pod.kill()

    assert pods.value() == "in time"


def test_children_of_user_code_are_not_told_to_end_with_it(pods: Pods, tmp_path: Path) -> None:
    pods.order("""
        import signal, subprocess, sys, time
        def train(flag):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            ended = []
            signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
            open(flag, "w").close()
            while not ended:
                time.sleep(0.01)
            time.sleep(0.3)
            return child.poll()
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until((tmp_path / "flag").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pods.outcome().status == "succeeded"
    assert pods.outcome().value_type == "builtins.NoneType"


def test_a_pod_ends_at_once_when_it_is_told_to_before_the_job_began(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def one():\n    return 1")
    bucket.proxy.faults.append(Fault("status", times=1e9))
    pod = cloud_pods.start()
    until(lambda: len(bucket.proxy.requests) >= 2)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=5)

    assert pod.returncode == INFRASTRUCTURE_EXIT


def test_a_job_that_is_taken_away_too_often_fails(pods: Pods) -> None:
    pods.order("def train():\n    from kinetic.errors import Preempted\n    raise Preempted('again')")
    pods.tell(most_attempts=2)

    codes = [pods.run()[0] for _ in range(3)]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, FAILED_EXIT]
    assert pods.outcome().cause == "preempted"
    assert "2 times" in pods.outcome().error["message"]


def test_a_job_that_is_evicted_for_want_of_memory_again_and_again_fails(pods: Pods, tmp_path: Path) -> None:
    memory, much, little = tmp_path / "meminfo", "MemAvailable:   16000000 kB\n", "MemAvailable:     101000 kB\n"
    memory.write_text(much)
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    inside += [f'mount --bind {memory} /proc/meminfo && exec "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives no namespaces to tests")
    flag = tmp_path / "flag"
    pods.inside = inside
    pods.order(WAITS, str(flag))

    codes = []
    for _ in range(3):
        pod = pods.start()
        until(flag.exists)
        memory.write_text(little)
        pod.send_signal(signal.SIGTERM)
        pod.communicate(timeout=15)
        codes.append(pod.returncode)
        flag.unlink()
        memory.write_text(much)
    codes.append(pods.run()[0])

    assert codes == [INFRASTRUCTURE_EXIT] * 3 + [FAILED_EXIT]
    assert [pods.note(attempt).details["short_of"] for attempt in range(3)] == ["memory"] * 3
    assert pods.outcome().cause == "evicted"
    assert "ran out of memory" in pods.outcome().error["message"]
    assert "ran out of memory" in pods.last_words.read_text()


def test_a_pod_that_is_taken_away_while_its_store_is_out_of_reach_ends_in_time(
    cloud_pods: Pods, bucket: Bucket, tmp_path: Path
) -> None:
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(Fault("status", times=1e9))

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=15)  # what Spot gives

    assert pod.returncode == INFRASTRUCTURE_EXIT


def test_a_worker_in_an_interpreter_of_its_own_is_told_to_end_too(cloud_pods: Pods, tmp_path: Path) -> None:
    cloud_pods.order(
        """
        import signal, time, kinetic.errors
        def train(folder):
            def save(*_):
                open(folder + "/saved", "w").close()
                raise kinetic.errors.Preempted("saved")
            signal.signal(signal.SIGTERM, save)
            open(folder + "/begun", "w").close()
            time.sleep(60)
        """,
        str(tmp_path),
    )
    pod = cloud_pods.start()
    until((tmp_path / "begun").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert (tmp_path / "saved").exists()
    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert cloud_pods.outcome() is None


class Slow:
    """An argument that takes its time to be opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        code = f"import time; open({str(self.folder / 'opening')!r}, 'w').close(); time.sleep(60)"
        return exec, (code,)


def test_a_pod_that_is_taken_away_while_arguments_are_opened_leaves_no_verdict(pods: Pods, tmp_path: Path) -> None:
    pods.order("def one(slow):\n    return 1", Slow(tmp_path))
    pod = pods.start()
    until((tmp_path / "opening").exists)

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_worker_that_is_killed_before_the_function_began_may_be_repeated(pods: Pods, tmp_path: Path) -> None:
    pods.order("def one(slow):\n    return 1", Slow(tmp_path))
    pod = pods.start()
    until((tmp_path / "opening").exists)

    os.kill(children_of(pod.pid)[0], signal.SIGKILL)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.outcome() is None


def test_a_result_whose_store_is_out_of_reach_is_no_success_when_the_pod_must_go(
    cloud_pods: Pods, bucket: Bucket, tmp_path: Path
) -> None:
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(Fault("status", method="PUT", times=1e9, status=400))
    (tmp_path / "flag.go").touch()
    assert any("it is tried again" in line for line in iter(pod.stdout.readline, ""))

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert cloud_pods.outcome() is None


def test_a_job_that_somebody_cancelled_is_ended_and_keeps_that_verdict(slices: Pods, tmp_path: Path) -> None:
    act(slices, "open(flag + str(host), 'w').close()\ntime.sleep(60)")
    hosts = start_all(slices)
    until(lambda: len(list(tmp_path.glob("flag*"))) == 3)

    slices.store.put(keys.result(JOB), Outcome(JOB, "cancelled").footer(KEY), if_absent=True)

    assert ends_of(hosts) == [0, 0, 0]
    assert slices.outcome().status == "cancelled"


# ---------------------------------------------------------------------------------------------- stores in trouble


def test_a_store_out_of_reach_is_told_and_the_next_pod_may_try(pods: Pods) -> None:
    pods.tell(store_url="gs://jobs/here")
    nobody = str(pods.folder / "nobody")

    code, out = pods.run(HOME=nobody, GCE_METADATA_IP="127.0.0.1:9", GCE_METADATA_HOST="127.0.0.1:9")

    assert code == INFRASTRUCTURE_EXIT
    assert "gs://jobs rejected our credentials" in out


def test_an_image_that_cannot_open_its_store_gets_what_can(
    tmp_path: Path, zipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = MotoServer()
    server.bucket("jobs")
    words = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": server.url}
    for name, value in words.items():
        monkeypatch.setenv(name, value)
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "obstore.py").write_text(NO_OBSTORE)
    certificates = {name: os.environ[name] for name in ("SSL_CERT_FILE",) if name in os.environ}
    pods = Pods(tmp_path, zipped, open_store("s3://jobs/here"), {**words, **certificates, "PYTHONPATH": str(hidden)})
    try:
        pods.tell(store_requirement=f"obstore=={metadata.version('obstore')}")
        pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)

        code, out = pods.run()

        assert code == 0, out
        assert "this image cannot open the job's store: installing obstore" in out
        assert pods.value() == 3
    finally:
        pods.end()
        server.close()


def test_what_opens_a_store_and_cannot_be_installed_is_told_and_the_next_pod_may_try(pods: Pods) -> None:
    pods.tell(store_requirement="no-such-package-of-kinetic==1")

    code, out = pods.run()

    assert code == INFRASTRUCTURE_EXIT
    assert "could not be installed into this pod" in out


def test_a_slice_waits_for_its_store_and_gives_up_rather_than_start_again_without_end(slices: Pods) -> None:
    slices.tell(store_url="gs://jobs/here", patience_seconds=0.5)

    code, out = slices.run(STORAGE_EMULATOR_HOST="http://127.0.0.1:9", JOB_COMPLETION_INDEX="0")

    assert code == FAILED_EXIT
    assert "so the slice gives up" in out


def test_a_slice_whose_store_rejects_its_account_gives_up_rather_than_start_again_without_end(
    cloud_pods: Pods, bucket: Bucket
) -> None:
    cloud_pods.tell(hosts=3, patience_seconds=0.5)
    bucket.proxy.faults.append(Fault("status", times=1e9, status=403))

    code, out = cloud_pods.run(JOB_COMPLETION_INDEX="0", JOBSET_RESTART_ATTEMPT="0", KUBERNETES_SERVICE_HOST="10.0.0.1")

    assert code == FAILED_EXIT, out
    assert "so the slice gives up" in out
    assert "next:  give the pod's service account the role Storage Object User" in out


def test_a_slice_whose_host_cannot_begin_is_started_again_ten_times(slices: Pods) -> None:
    slices.argument = "@/no/such/file"  # as on a full disk, what fails leaves no note in the store

    codes = [slices.run(JOB_COMPLETION_INDEX="0", JOBSET_RESTART_ATTEMPT=number)[0] for number in ("0", "9", "10")]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, FAILED_EXIT]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_job_that_cannot_fetch_what_it_needs_fails_with_the_fourth_attempt_and_says_why(
    cloud_pods: Pods, bucket: Bucket, hosts: int
) -> None:
    cloud_pods.tell(hosts=hosts, poll_seconds=0.1, grace_seconds=5)
    cloud_pods.order("def add(a, b):\n    return a + b", 1, 2)
    bucket.proxy.faults.append(Fault("status", target="order", times=1e9, status=403))

    codes = []
    for attempt in range(4):
        count = {"JOBSET_RESTART_ATTEMPT": str(attempt)} if hosts > 1 else {}
        started = [cloud_pods.start(JOB_COMPLETION_INDEX=str(host), **count) for host in range(hosts)]
        codes += [ends_of(started)]

    outcome = cloud_pods.outcome()
    assert codes == [[INFRASTRUCTURE_EXIT] * hosts] * 3 + [[FAILED_EXIT] * hosts]
    assert outcome is not None
    assert outcome.error["message"].startswith("gs://jobs rejected our credentials")
    assert cloud_pods.note(0).details["why"].count("\n") == 0


def test_a_storm_of_503_delays_a_job_and_loses_nothing(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def add(a, b):\n    print('adding')\n    return a + b", 1, 2)
    bucket.proxy.faults += [Fault("status", times=3), Fault("drop", times=2, after=4), Fault("lose", method="PUT")]

    code, out = cloud_pods.run()

    assert code == 0, out
    assert cloud_pods.value() == 3
    assert cloud_pods.log() == "adding\n"


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        ({"method": "PUT", "status": 400}, "it is tried again"),
        ({"status": 403}, "kinetic| finished; waiting for credentials: "),
    ],
    ids=["a store that takes nothing", "credentials that expired while the job ran"],
)
def test_a_result_waits_for(cloud_pods: Pods, bucket: Bucket, tmp_path: Path, refusal: dict, said: str) -> None:
    refused = Fault("status", times=1e9, **refusal)
    cloud_pods.order(WAITS, str(tmp_path / "flag"))
    pod = cloud_pods.start()
    until((tmp_path / "flag").exists)
    bucket.proxy.faults.append(refused)
    (tmp_path / "flag.go").touch()
    assert any(said in line for line in iter(pod.stdout.readline, ""))

    refused.times = 0
    out, _ = pod.communicate(timeout=60)

    assert pod.returncode == 0, out
    assert cloud_pods.value() == "went on"


# ------------------------------------------------------------------------------------------------------------ logs


def test_a_log_of_many_megabytes_arrives_whole(pods: Pods) -> None:
    pods.order("""
        def talk(lines):
            for number in range(lines):
                print(f"{number:09d} " + "x" * 89)
            return lines
    """, 50_000)  # fmt: skip

    code, out = pods.run()

    expected = "".join(f"{number:09d} {'x' * 89}\n" for number in range(50_000))
    assert code == 0
    assert pods.log() == expected
    assert expected in out
    starts = [int(key) for key in pods.keys_below(keys.logs(JOB, 0, 0))]
    assert starts == [number << 20 for number in range(len(expected) // (1 << 20) + 1)]
    assert logs.tail(logs.StoredLog(pods.store, keys.logs(JOB, 0, 0)), 1).startswith("000049999 x")


def test_a_log_can_be_followed_in_the_store_while_the_job_runs(pods: Pods, tmp_path: Path) -> None:
    pods.order(WAITS, str(tmp_path / "flag"))
    pod = pods.start()

    until(lambda: pods.log() == "waiting\n")

    assert pod.poll() is None


def test_the_output_of_a_container_gives_back_the_log_byte_for_byte(pods: Pods) -> None:
    pods.order(r"""
        def talk():
            import os
            os.write(1, b"\xff\n\n10 %\r100 %\r\nkinetic| mine\n" + b"x" * 100_000 + b"\nno end")
    """)

    pod = pods.start(text=False)
    out, _ = pod.communicate(timeout=60)

    reader = pod_log_format.Reader()
    stored = logs.StoredLog(pods.store, keys.logs(JOB, 0, 0))
    assert reader.read(out) == stored.read(0, stored.size())
    assert reader.claim == pod_log_format.Claim(JOB, 0, 0)
    assert reader.has_verdict
    assert out.startswith(
        f"{pod_log_format.RUNNER_PREFIX}job {JOB}\n".encode()
        + f"{pod_log_format.RUNNER_PREFIX}attempt 0 of {JOB}, host 0 of 1\r\n".encode()
    )
    assert out.endswith(
        f"no endkinetic|-\n{pod_log_format.RUNNER_PREFIX}{pod_log_format.VERDICT}: the job succeeded\n".encode()
    )


def test_every_line_of_the_runner_is_marked(pods: Pods) -> None:
    pods.order("def fail():\n    print('mine')\n    raise ValueError('of\\ntwo lines')")

    _, out = pods.run()

    ours = [line for line in out.splitlines() if line.startswith(pod_log_format.RUNNER_PREFIX)]
    assert next(line for line in out.splitlines() if line not in ours) == "mine"
    assert ours[-2:] == [
        f"{pod_log_format.RUNNER_PREFIX}{pod_log_format.VERDICT}: the job failed: of",
        f"{pod_log_format.RUNNER_PREFIX}two lines",
    ]


def test_what_the_parent_itself_warns_of_moves_nothing_out_of_its_place(pods: Pods, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy"
    noisy.mkdir()
    complaint = "import os; os.register_at_fork(before=lambda: os.write(2, b'a library complains\\n'))"
    (noisy / "sitecustomize.py").write_text(complaint)
    pods.order("def one():\n    print('mine')\n    return 1")

    pod = pods.start(text=False, PYTHONPATH=str(noisy))
    out, _ = pod.communicate(timeout=60)

    stored = logs.StoredLog(pods.store, keys.logs(JOB, 0, 0))
    assert stored.read(0, 100).startswith(b"a library complains\n")
    assert pod_log_format.Reader().read(out) == stored.read(0, stored.size())


def test_a_store_that_takes_no_log_does_not_hold_up_the_job(cloud_pods: Pods, bucket: Bucket) -> None:
    cloud_pods.order("def talk():\n    for n in range(20_000):\n        print('x' * 200)\n    return 'done'")
    bucket.proxy.faults.append(Fault("status", method="PUT", status=400, times=1e9, after=1))
    pod = cloud_pods.start()

    until(lambda: bucket.proxy.faults[0].met)
    bucket.proxy.faults.clear()
    out, _ = pod.communicate(timeout=60)

    assert pod.returncode == 0, out[-2000:]
    assert cloud_pods.value() == "done"
    assert len(cloud_pods.log()) == 20_000 * 201


def test_a_job_is_not_held_up_by_an_output_that_nobody_reads(pods: Pods) -> None:
    pods.order("def talk():\n    for n in range(20_000):\n        print('x' * 99)\n    return 'done'")
    pod = pods.start()  # into a pipe of 64 KiB

    pod.wait(timeout=30)

    assert pod.returncode == 0
    assert len(pods.log()) == 20_000 * 100


# ----------------------------------------------------------------------------------------------- as the first process


def test_the_first_process_of_a_container_obeys_sigterm_and_reaps_what_is_not_its_own(
    pods: Pods, tmp_path: Path
) -> None:
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine gives no namespaces to tests")
    pods.inside = inside
    pods.order("""
        import os, subprocess, sys, time
        def train(flag):
            subprocess.run(["sh", "-c", "sleep 0.05 & sleep 60 & exit 0"])  # both become children of the first process
            time.sleep(0.3)
            states = [open(f"/proc/{pid}/stat").read().split()[2] for pid in os.listdir("/proc") if pid.isdigit()]
            open(flag, "w").write(f"{os.getppid()} {states.count('Z')}")
            time.sleep(60)
    """, str(tmp_path / "flag"))  # fmt: skip
    pod = pods.start()
    until(lambda: (tmp_path / "flag").exists() and (tmp_path / "flag").read_text())
    [first] = children_of(pod.pid)

    os.kill(first, signal.SIGTERM)
    pod.communicate(timeout=30)

    assert (tmp_path / "flag").read_text() == "1 0"
    assert pod.returncode == INFRASTRUCTURE_EXIT
    assert pods.note().details["why"]


def test_a_page_may_lie_in_a_file(pods: Pods, tmp_path: Path) -> None:
    pods.order("def one():\n    return 1")
    (tmp_path / "page").write_text(pods.page.to_argument())
    pods.argument = f"@{tmp_path}/page"

    code, out = pods.run()

    assert code == 0, out


def test_captured_variables_of_the_interpreter_itself_count(pods: Pods) -> None:
    (pods.secret / "environment.json").write_text(json.dumps({"PYTHONHASHSEED": "7"}))
    pods.order("def seed():\n    import sys\n    return hash('a'), sys.flags.hash_randomization")

    code, out = pods.run()

    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "7"}, stdout=-1, check=True
    )
    assert code == 0, out
    assert pods.value()[0] == int(expected.stdout)


def test_a_pod_that_shall_stay_ends_when_it_is_told_to(pods: Pods) -> None:
    pods.order("def one():\n    return 1")
    pods.tell(holds=True)
    pod = pods.start()
    assert any("runs until it is asked to end" in line for line in iter(pod.stdout.readline, ""))

    pod.send_signal(signal.SIGTERM)
    pod.communicate(timeout=30)

    assert pod.returncode == 0
    assert pods.value() == 1


def test_nothing_of_a_pod_is_left_beside_the_store_of_files(pods: Pods) -> None:
    pods.order("def one():\n    return 1")

    pods.run()

    assert list(pods.store.scratch().iterdir()) == []


# --------------------------------------------------------------------------------------------------- several hosts


@pytest.fixture
def slices(pods: Pods) -> Pods:
    pods.tell(hosts=3, poll_seconds=0.1, grace_seconds=5)
    return pods


def start_all(slices: Pods) -> list[subprocess.Popen[str]]:
    """Start all hosts of a set, as a JobSet does, which says how often it did so before."""
    return [slices.start(JOB_COMPLETION_INDEX=str(host), JOBSET_RESTART_ATTEMPT="0") for host in range(3)]


def ends_of(hosts: list[subprocess.Popen[str]]) -> list[int]:
    for host in hosts:
        host.communicate(timeout=60)
    return [host.returncode for host in hosts]


HOST = """
import os, time

def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)

def act(folder):
    host, flag = int(os.environ["KINETIC_HOST_INDEX"]), folder + "/flag"
"""


def act(slices: Pods, body: str) -> None:
    """Order what every host does; it knows its number as ``host`` and has a ``flag`` that it can wait for."""
    slices.order(HOST + textwrap.indent(textwrap.dedent(body), "    "), str(slices.folder))


def test_the_leader_owns_the_value_of_a_slice(slices: Pods) -> None:
    act(slices, "print(f'host {host}')\nreturn host, os.environ['KINETIC_HOST_COUNT']")

    codes = ends_of(start_all(slices))

    assert codes == [0, 0, 0]
    assert slices.value() == (0, "3")
    assert [slices.log(host=host) for host in range(3)] == ["host 0\n", "host 1\n", "host 2\n"]
    assert slices.keys_below(keys.attempts(JOB)) == ["0"]


@pytest.mark.parametrize("body", ["return host", "if host == 2:\n    raise ValueError('two')\ntime.sleep(600)"])
def test_a_slice_ends_when_its_function_does_and_not_at_the_next_look(slices: Pods, body: str) -> None:
    slices.tell(poll_seconds=3600.0)
    act(slices, body)

    ends_of(start_all(slices))  # in well under a minute: hosts tell each other

    assert slices.outcome() is not None


def test_the_failure_of_a_host_is_noticed_while_the_leader_runs_and_is_told_with_its_name(slices: Pods) -> None:
    act(slices, "if host == 2:\n    raise ValueError('two')\ntime.sleep(60)")

    codes = ends_of(start_all(slices))

    assert codes == [FAILED_EXIT, 0, FAILED_EXIT]
    read = slices.outcome()
    assert (read.host, read.error["hosts"], read.cause) == (2, 3, "exception")
    assert "in act" in read.error["traceback"]
    assert repr(slices.value()) == "ValueError('two')"


def test_the_cause_is_the_host_that_does_not_complain_of_its_peers(slices: Pods, tmp_path: Path) -> None:
    act(
        slices,
        """
        if host == 0:
            open(flag, "w").close()
            raise RuntimeError("Connection reset by peer: heartbeat timed out")
        wait_for(flag)
        if host == 1:
            raise KeyError("the cause")
        time.sleep(60)
        """,
    )

    codes = ends_of(start_all(slices))

    assert codes == [FAILED_EXIT, FAILED_EXIT, 0]
    assert slices.outcome().host == 1


def test_a_host_that_fails_after_the_leader_returned_fails_the_job(slices: Pods, tmp_path: Path) -> None:
    act(
        slices,
        """
        if host == 1:
            wait_for(flag + ".go")
            raise ValueError("late")
        return host
        """,
    )
    hosts = start_all(slices)
    until(lambda: "succeeded" in str(slices.keys_below(keys.hosts(JOB, 0))))
    (tmp_path / "flag.go").touch()

    codes = ends_of(hosts)

    assert codes == [FAILED_EXIT, FAILED_EXIT, 0]
    assert slices.outcome().host == 1


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, INFRASTRUCTURE_EXIT), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_host_that_is_gone_with_or_without_a_word_leaves_no_verdict(
    slices: Pods, tmp_path: Path, how: signal.Signals, code: int
) -> None:
    act(
        slices,
        """
        if host == 1:
            open(flag, "w").close()
            time.sleep(60)
        wait_for(flag + ".gone")
        raise RuntimeError("training failed")
        """,
    )
    hosts = start_all(slices)
    until((tmp_path / "flag").exists)

    hosts[1].send_signal(how)
    if how == signal.SIGKILL:
        hosts[1].wait()
    (tmp_path / "flag.gone").touch()
    hosts[0].communicate(timeout=30)
    hosts[2].send_signal(signal.SIGTERM)  # as the cluster does, which starts the whole set again
    codes = ends_of(hosts)

    assert codes == [INFRASTRUCTURE_EXIT, code, INFRASTRUCTURE_EXIT]
    assert slices.outcome() is None
    if how == signal.SIGKILL:
        assert "host 1" in slices.note().details["why"]


def word_of(host: int, word: str, key: bytes = KEY) -> str:
    return documents.sealed_name(keys.host(JOB, 0, host), word, key)


def test_a_set_that_was_started_again_is_another_attempt(slices: Pods) -> None:
    act(slices, "return os.environ['KINETIC_ATTEMPT']")

    hosts = [slices.start(JOB_COMPLETION_INDEX=str(host), JOBSET_RESTART_ATTEMPT="2") for host in range(3)]

    assert ends_of(hosts) == [0, 0, 0]
    assert slices.value() == "2"
    assert slices.outcome().attempt == 2


@pytest.mark.parametrize("word", ["failed", "preempted", "succeeded"])
def test_words_of_a_host_that_somebody_else_wrote_end_nothing(slices: Pods, tmp_path: Path, word: str) -> None:
    act(slices, "wait_for(flag)\nreturn 'right'")
    forged = Outcome(JOB, word, host=1, body_length=3, body_sha256=digests.of_bytes(b"abc"))
    hosts = start_all(slices)
    until(lambda: slices.store.size(word_of(2, "begun")) is not None)
    for place in (word_of(1, word, b"x" * 32), f"{keys.host(JOB, 0, 1)}/{word}", f"{keys.host(JOB, 0, 1)}.{word}"):
        slices.store.put(place, b"abc" + forged.footer(b"x" * 32))
    slices.store.put(word_of(0, "call", b"x" * 32), b"")
    (tmp_path / "flag").touch()

    assert ends_of(hosts) == [0, 0, 0]
    assert slices.value() == "right"
    assert slices.store.size(word_of(1, "here")) is None


def test_the_verdict_of_a_slice_has_the_digests_of_the_logs_of_all_its_hosts(slices: Pods) -> None:
    act(slices, "print('it is host', host)")

    assert ends_of(start_all(slices)) == [0, 0, 0]

    logs = {log.host: log for log in slices.outcome().logs}
    for host in range(3):
        printed = slices.log(host=host).encode()
        assert printed.decode() == f"it is host {host}\n"
        assert (logs[host].size_bytes, logs[host].blocks) == (len(printed), (digests.of_bytes(printed),))


def test_what_an_earlier_life_of_the_set_told_does_not_count(slices: Pods) -> None:
    act(slices, "print('second life')\nreturn host")
    for start in (0, 12, 20):
        slices.store.put(keys.log_segment(JOB, 0, 1, start), b"first life\n\n"[: 12 if start == 0 else 8])
    taken = Outcome(JOB, "preempted", host=1)
    slices.store.put(word_of(1, "preempted"), taken.footer(KEY))
    follower = slices.start(JOB_COMPLETION_INDEX="1")
    until(lambda: slices.store.size(word_of(1, "succeeded")) is not None)  # it is quicker than the leader

    others = [slices.start(JOB_COMPLETION_INDEX=str(host)) for host in (0, 2)]

    assert ends_of([follower, *others]) == [0, 0, 0]
    assert slices.value() == 0
    assert slices.log(host=1) == "second life\n"


def test_a_host_that_sees_no_verdict_since_the_job_was_collected_and_removed_does_not_wait_for_it(slices: Pods) -> None:
    slices.tell(hosts=2)
    act(slices, "return host")
    other = slices.start(JOB_COMPLETION_INDEX="1", JOBSET_RESTART_ATTEMPT="0")
    until(lambda: slices.store.size(word_of(1, "succeeded")) is not None)

    slices.store.delete(keys.job(JOB))
    out, _ = other.communicate(timeout=30)

    assert other.returncode == 0, out
    assert "kinetic| the job had its verdict, and was removed" in out
    assert slices.keys_below(keys.job(JOB)) == []


def test_a_debugger_that_came_to_an_earlier_life_of_the_set_does_not_count(slices: Pods) -> None:
    pytest.importorskip("debugpy")
    slices.tell(hosts=2)
    slices.order(f"{HOST}    return host", str(slices.folder), debug=2.0)
    (slices.secret / "environment.json").write_text(json.dumps({inspection.TOKEN_VARIABLE: inspection.token(KEY)}))
    slices.store.put(inspection.mark_begun(JOB, 0, inspection.page_key(inspection.token(KEY))), b"")
    leader = slices.start(JOB_COMPLETION_INDEX="0")
    until(lambda: slices.store.size(word_of(0, "begun")) is not None)
    for forged in (inspection.mark_begun(JOB, 0, b"x" * 32), f"{JOB}/debug/0/begun"):
        slices.store.put(forged, b"")

    other = slices.start(JOB_COMPLETION_INDEX="1")

    assert ends_of([leader, other]) == [0, 0]
    for host in (0, 1):
        assert "no debugger came within 2 s; train begins without one" in slices.log(host=host)


@pytest.mark.timeout(180)
def test_the_processes_of_jax_find_and_wait_for_each_other(slices: Pods, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    slices.tell(coordinator=f"localhost:{port}", hosts=2)
    act(
        slices,
        """
        import jax
        met = jax.process_count(), jax.device_count(), jax.process_index()
        wait_for(flag + str(host))  # the leader is done before its peer, and must not take the meeting point away
        return met
        """,
    )

    hosts = [
        slices.start(JOB_COMPLETION_INDEX=str(host), JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="2") for host in (0, 1)
    ]
    (tmp_path / "flag0").touch()
    until(lambda: any(path.stat().st_size for path in tmp_path.rglob("word")), seconds=60)
    time_is_left = hosts[0].poll() is None
    (tmp_path / "flag1").touch()

    assert time_is_left
    assert ends_of(hosts) == [0, 0]
    assert slices.value() == (2, 4, 0)


def test_a_host_that_does_not_know_which_one_it_is_says_so(slices: Pods) -> None:
    act(slices, "return 1")

    code, out = slices.run()

    assert code == FAILED_EXIT
    assert "which of 3 hosts" in out


# ---------------------------------------------------------------------------------------------------- requirements


def wheel(folder: Path, name: str, code: str, *requires: str) -> Path:
    """Build a package by hand, as small as one can be."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", code)
        needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path


@pytest.fixture
def image(pods: Pods, tmp_path: Path) -> Pods:
    """Pods whose Python is an environment of the test's own, which a job may install into, with uv on its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "image")], check=True)
    pods.python = str(tmp_path / "image" / "bin" / "python")
    binary = Path(importlib.import_module("uv").find_uv_bin()).parent
    pods.environ |= {"PATH": f"{binary}:{os.environ['PATH']}", "UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}
    return pods


def requiring(pods: Pods, text: str) -> Pods:
    pods.tell(requirements=asdict(Artifact.within(text.encode())))
    return pods


def test_requirements_are_installed_before_the_function_is_opened(image: Pods, tmp_path: Path) -> None:
    file = wheel(tmp_path, "tiny_theirs", "ANSWER = 42")
    requiring(image, f"# theirs\n{file}\n").order("def ask():\n    import tiny_theirs\n    return tiny_theirs.ANSWER")

    code, out = image.run()

    assert code == 0, out
    assert image.value() == 42
    assert "tiny-theirs" in image.log()
    assert list((tmp_path / "image").rglob("tiny_theirs.py"))


def test_requirements_go_into_a_folder_of_the_job_where_the_image_is_closed(image: Pods, tmp_path: Path) -> None:
    file = wheel(tmp_path, "tiny_theirs", "ANSWER = 42")
    closed = tmp_path / "closed"
    closed.mkdir()
    lie = "import os\nreal = os.access\nos.access = lambda path, mode: mode != os.W_OK and real(path, mode)\n"
    (closed / "sitecustomize.py").write_text(lie)  # this user may write anywhere, as root may
    requiring(image, str(file)).order("""
        import subprocess, sys
        def ask():
            import tiny_theirs
            child = subprocess.run([sys.executable, "-c", "import tiny_theirs as t; print(t.ANSWER)"], stdout=-1)
            return tiny_theirs.ANSWER, int(child.stdout)
    """)

    code, out = image.run(PYTHONPATH=str(closed))

    assert code == 0, out
    assert image.value() == (42, 42)
    assert not list((tmp_path / "image").rglob("tiny_theirs.py"))


def test_requirements_that_cannot_be_installed_are_a_verdict_with_its_phase(image: Pods, tmp_path: Path) -> None:
    requiring(image, f"{tmp_path}/missing-1.0-py3-none-any.whl").order("def one():\n    return 1")

    code, _ = image.run()

    assert code == FAILED_EXIT
    read = image.outcome()
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "dependency install", "dependency-install")
    assert "missing-1.0" in image.log()


def test_a_file_of_requirements_without_any_installs_nothing(pods: Pods) -> None:
    requiring(pods, "# none\n\n").order("def one():\n    return 1")

    code, out = pods.run(PATH="/nonexistent")

    assert code == 0, out


def test_other_requirements_than_the_submitted_ones_are_not_installed(image: Pods, tmp_path: Path) -> None:
    image.store.put("requirements.txt", b"changed")
    image.tell(requirements=asdict(Artifact("0" * 64, 7, key="requirements.txt")))
    image.order("def one():\n    return 1")

    code, _ = image.run()

    assert code == FAILED_EXIT
    assert (image.outcome().phase, image.outcome().error["code"]) == ("dependency install", "integrity")


def test_a_stranger_of_our_name_is_not_installed_into_a_pod_either(image: Pods, tmp_path: Path) -> None:
    wheel(tmp_path, "kinetic", "raise SystemExit('not ours')")
    file = wheel(tmp_path, "theirs", "ANSWER = 42", "kinetic>=1")
    lines = f"--no-index\n--find-links {tmp_path}\n{file}\n"
    requiring(image, lines).order("def ask():\n    import theirs\n    return theirs.ANSWER")

    code, out = image.run()

    assert code == 0, out
    assert image.value() == 42
    assert not list((tmp_path / "image").rglob("kinetic*"))


def test_a_stranger_of_our_name_in_the_image_is_named_and_not_imported(image: Pods, tmp_path: Path) -> None:
    packages = next((tmp_path / "image").rglob("site-packages"))
    with zipfile.ZipFile(wheel(tmp_path, "kinetic", "raise SystemExit('not ours')")) as file:
        file.extractall(packages)
    image.order("def ask():\n    import kinetic\n    return kinetic.__version__")

    code, out = image.run()

    assert code == 0, out
    assert f"another package named kinetic (kinetic 1.0 in {packages})" in out


INSTALLING = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from kinetic._runner.pod import install as requiring
print(requiring.uv(Path(sys.argv[2])))
"""


def test_an_image_without_uv_gets_exactly_the_one_that_was_tried_and_nothing_of_the_project_runs(
    tmp_path: Path,
) -> None:
    python = environment_with_pip(tmp_path / "image")
    project, base = tmp_path / "project", tmp_path / "base"
    base.mkdir()
    for name in ("uv", "pip"):
        (project / name).mkdir(parents=True)
        (project / name / "__main__.py").write_text("raise SystemExit('the project was run')")
        (project / name / "__init__.py").write_text("")
    words = [str(python), "-c", INSTALLING, str(SOURCE), str(base)]
    environ = {**os.environ, "PATH": str(python.parent), "PYTHONPATH": str(project)}

    done = subprocess.run(words, cwd=project, env=environ, capture_output=True, text=True, check=False)
    said = subprocess.run([str(base / "uv" / "bin" / "uv"), "--version"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"kinetic: fetching uv=={python_runtime.INSTALLER_VERSIONS['uv']}" in done.stdout
    assert said.stdout.split()[1] == python_runtime.INSTALLER_VERSIONS["uv"]


def test_another_file_than_the_one_that_was_tried_is_not_installed(tmp_path: Path) -> None:
    file = wheel(tmp_path, "uv", "")
    forged = file.rename(tmp_path / f"uv-{python_runtime.INSTALLER_VERSIONS['uv']}-py3-none-any.whl")
    python = environment_with_pip(tmp_path / "image")
    words = [str(python), "-c", INSTALLING, str(SOURCE), str(tmp_path)]
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(forged.parent), "PATH": "/nonexistent"}

    done = subprocess.run(words, env={**os.environ, **index}, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list(tmp_path.glob("uv/bin/uv"))


# --------------------------------------------------------------------------------------------------------- retries

FAILS_TWICE = """
    import os
    def train():
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        print("this is attempt", attempt)
        if attempt < 2:
            raise ValueError(f"attempt {attempt}")
        return attempt
"""


def test_a_failed_attempt_makes_room_for_another_pod_while_there_are_retries(pods: Pods) -> None:
    pods.tell(retries=2)
    pods.order(FAILS_TWICE)

    codes = [pods.run()[0] for _ in range(3)]

    assert codes == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, 0]
    assert pods.value() == 2
    assert [pods.note(number).details.get("failed") for number in range(3)] == [
        "ValueError: attempt 0",
        "ValueError: attempt 1",
        None,
    ]
    logs = [pods.log(number) for number in range(3)]
    assert ["this is attempt" in log for log in logs] == [True] * 3
    assert logs[1].endswith("kinetic: attempt 1 failed: ValueError: attempt 1; trying again (retry 2 of 2)\n")


def test_the_last_retry_that_fails_is_the_verdict(pods: Pods) -> None:
    pods.tell(retries=1)
    pods.order(FAILS_TWICE)

    (first, out), (last, _) = pods.run(), pods.run()

    assert (first, last) == (INFRASTRUCTURE_EXIT, FAILED_EXIT)
    assert "kinetic| attempt 0 failed: ValueError: attempt 0; trying again (retry 1 of 1)\n" in out
    read = pods.outcome()
    assert (read.attempt, read.cause, read.error["message"]) == (1, "exception", "attempt 1")


def test_failures_are_not_taken_for_a_machine_that_is_taken_away_again_and_again(pods: Pods) -> None:
    pods.tell(retries=2, most_attempts=2)
    pods.order(FAILS_TWICE)

    assert [pods.run()[0] for _ in range(3)] == [INFRASTRUCTURE_EXIT, INFRASTRUCTURE_EXIT, 0]


def test_hosts_that_cannot_tell_their_attempts_apart_are_not_tried_again(slices: Pods) -> None:
    slices.tell(retries=3)
    act(slices, "raise ValueError('boom')")

    assert ends_of([slices.start(JOB_COMPLETION_INDEX=str(host)) for host in range(3)]) == [FAILED_EXIT] * 3


def test_a_job_set_begins_anew_after_a_failure(slices: Pods) -> None:
    slices.tell(retries=1)
    act(slices, "raise ValueError('boom')")

    def life(restarts: str) -> list[int]:
        more = {"JOBSET_RESTART_ATTEMPT": restarts}
        hosts = [slices.start(JOB_COMPLETION_INDEX=str(host), **more) for host in range(3)]
        first = hosts[0].wait(60)
        for host in hosts[1:]:
            host.terminate()  # as JobSet does
        return [first, *(host.wait(60) for host in hosts[1:])]

    assert life("0")[0] == INFRASTRUCTURE_EXIT
    assert slices.outcome() is None
    assert life("1")[0] == FAILED_EXIT
    assert slices.outcome().attempt == 1


# ------------------------------------------------------------------------------------------------------ accelerators

SEES = "import os\ndef see():\n    print('the function')\n    return os.environ.get('JAX_PLATFORMS')"

# The driver's library, played: it initializes with one code and counts so many devices.
DRIVER = """
#include <unistd.h>
int cuInit(unsigned flags) { sleep(%(sleeps)d); return %(code)d; }
int cuDeviceGetCount(int *count) { *count = %(count)d; return 0; }
"""
COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_a_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler here")
no_gpu = pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="there is a GPU here")
no_tpu = pytest.mark.skipif(
    bool(glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")), reason="there is a TPU here"
)


def driver(folder: Path, *, code: int = 0, count: int = 1, sleeps: int = 0) -> dict[str, str]:
    """Build a library that plays the driver's, and return what lets a pod find it."""
    source = folder / "driver.c"
    source.write_text(DRIVER % {"code": code, "count": count, "sleeps": sleeps})
    assert COMPILER is not None
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def with_chips(pods: Pods, kind: str, chips: int = 1, *, required: bool = True) -> Pods:
    pods.tell(kind=kind, chips=chips, require_accelerator=required)
    return pods.order(SEES)


@no_gpu
@no_tpu
@pytest.mark.parametrize(("kind", "why"), [("gpu", "libcuda.so.1: cannot open"), ("tpu", "there is no /dev/accel")])
def test_a_job_whose_accelerator_does_not_come_up_fails_and_the_first_line_of_its_log_says_why(
    pods: Pods, kind: str, why: str
) -> None:
    code, _ = with_chips(pods, kind).run()

    read = pods.outcome()
    first = pods.log().splitlines()[0]
    assert code == FAILED_EXIT
    assert (read.cause, read.phase, read.error["code"]) == ("runner", "accelerator check", "no-accelerator")
    assert first.startswith(f"kinetic: the {kind.upper()} of this pod did not come up: ")
    assert why in first
    assert "the function" not in pods.log()


@no_gpu
@no_tpu
@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_a_job_that_does_not_require_its_accelerator_runs_on_the_cpu_and_says_so_first(pods: Pods, kind: str) -> None:
    code, _ = with_chips(pods, kind, required=False).run()

    assert code == 0
    assert pods.value() == "cpu"
    first, *others = pods.log().splitlines()
    assert first.startswith(f"kinetic: the {kind.upper()} of this pod did not come up: ")
    assert first.endswith("; the job runs on the CPU")
    assert others == ["the function"]


@needs_a_compiler
def test_a_job_whose_gpus_came_up_runs_with_them_and_says_nothing(pods: Pods, tmp_path: Path) -> None:
    code, out = with_chips(pods, "gpu", 4).run(**driver(tmp_path, count=4), CUDA_VISIBLE_DEVICES="")

    assert code == 0, out
    assert (pods.value(), pods.log()) == ("cuda,cpu", "the function\n")


@needs_a_compiler
@pytest.mark.parametrize(
    ("driven", "why"),
    [
        ({"code": 100}, "CUDA says 100 (no device is detected)"),
        ({"code": 999}, "CUDA says 999"),
        ({"count": 3}, "3 of 4 are there"),
    ],
)
def test_a_driver_that_does_not_work_is_told(pods: Pods, tmp_path: Path, driven: dict[str, int], why: str) -> None:
    code, _ = with_chips(pods, "gpu", 4).run(**driver(tmp_path, **driven))

    assert code == FAILED_EXIT
    assert pods.log().splitlines()[0] == f"kinetic: the GPU of this pod did not come up: {why}"


@pytest.mark.parametrize(("kind", "platforms"), [("cpu", "cpu"), ("", None)])
def test_the_pod_says_where_jax_computes(pods: Pods, kind: str, platforms: str | None) -> None:
    with_chips(pods, kind).run()

    assert pods.value() == platforms


def test_an_image_and_a_captured_variable_know_better_where_jax_computes(pods: Pods) -> None:
    with_chips(pods, "cpu").run(JAX_PLATFORMS="of the image")
    assert pods.value() == "of the image"

    pods.store.delete(keys.result(JOB))
    (pods.secret / "environment.json").write_text('{"JAX_PLATFORMS": "captured"}')
    pods.run(JAX_PLATFORMS="of the image")
    assert pods.value() == "captured"
