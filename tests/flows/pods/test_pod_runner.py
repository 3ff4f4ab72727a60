"""The runner of a pod: what a job finds there, and how it ends well."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from flows.programs import COMPILES
from servers.faults import Fault
from waiting import until

from kinetic._project import archive
from kinetic._project.root import Plan
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import cache_entries, digests, documents, keys, pod_log_format
from kinetic._wire.order import OUTPUT_PAGES
from kinetic._wire.task import FAILED_EXIT, IMAGE_EXIT, INFRASTRUCTURE_EXIT

from .conftest import JOB, KEY, WAITS, Bucket, Pods, children_of


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
    kept = sorted(cloud_pods.store.entries(keys.COMPILED_ENTRIES), key=lambda each: "/functions/" in each.key)
    entry, *_, small = kept  # more than two where a program of a millisecond took a busy machine a second
    assert len(asked) == 2 + 2 * len(kept)  # two listings; bytes and entry of a program, and of the small ones
    assert "/functions/" in small.key
    assert "/functions/" not in entry.key

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
    assert len(asked) == 1 + len(kept)  # one listing, and the bytes of both
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


@pytest.fixture
def read_only(pods: Pods) -> Pods:
    """Pods whose root, and with it their home, cannot be written to, as a policy of a cluster may want it."""
    protect = "mount -o remount,bind,ro"
    other = f"for path in /tmp /var/tmp; do if mountpoint -q $path; then {protect} $path; fi; done"
    script = f'mount --bind {pods.folder} {pods.folder} && {protect} / && {other} && exec "$@"'
    pods.inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*pods.inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount a read-only root")
    return pods


def test_a_job_whose_image_is_read_only_has_its_home_where_it_can_write(read_only: Pods) -> None:
    read_only.order("import os\ndef look():\n    return os.path.expanduser('~'), os.access('/', os.W_OK)")

    code, out = read_only.run(HOME="/root")

    assert code == 0, out
    assert read_only.value() == ("/tmp", False)


def test_a_pod_that_can_write_nowhere_says_what_to_do(read_only: Pods) -> None:
    read_only.order("def look(): ...")

    code, out = read_only.run(TMPDIR="/root")

    assert (code, out.count("\n")) == (IMAGE_EXIT, 1)
    assert "no folder to write to" in out
    assert "KINETIC_VOLUME_CLAIMS" in out
