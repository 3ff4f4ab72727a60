"""The processes of a warm pod, started as a container would: what a thousand jobs and an idle hour leave and cost."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
from servers.gcs import GcsServer
from servers.image_fixtures import index
from unit._runner.test_what_tasks_may_not_change import may_mount

from kinetic._runner import processes
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, outcomes, python_runtime
from kinetic._wire.order import Artifact, Order
from kinetic._wire.outcomes import Outcome
from kinetic._wire.task import IN_SECRET, KEY_FILE, WARM, PodSettings, Task
from kinetic._wire.warm_pods import IDLE, MOST_LINE, Assignment, Greeting, WarmPod, refusal

__all__ = ["index"]
SOURCE = Path(__file__).parents[2] / "src"
KEY, POD_KEY = bytes(range(32)), bytes(range(1, 33))
POD = "cpu-warm-20261123-120000-abcdef0"
MOST_IDLE_BYTES = 80_000_000
IDLE_PROCESSES = 4  # the first one, what forks, and the next job's supervisor with its worker
# A warm pod whose clock runs faster: of an hour, it sees all.
FAST = """
import sys, time
from types import SimpleNamespace
from kinetic._runner.pod import entrypoint, warm_pod
FASTER, began = 120.0, time.monotonic()
real = dict(vars(time))
warm_pod.time = SimpleNamespace(**real | {"monotonic": lambda: began + FASTER * (real["monotonic"]() - began)})
warm_pod._SECRET_SECONDS /= FASTER
warm_pod.main([sys.argv[1]], sys.argv[2], sys.argv[3], entrypoint.get_ready)
"""

# One that has no credentials but the tokens of a metadata server; only the address of the service is another one.
GUARDED = """
import sys
from obstore.store import GCSStore
from kinetic._runner.pod import entrypoint, warm_pod
from kinetic._stores import credentials
def client(bucket, options):
    options["client_options"]["allow_http"] = True
    return GCSStore(bucket, config={"base_url": "http://SERVER"}, **options)
credentials._CLOUDS["gs"] = credentials._CLOUDS["gs"]._replace(client=client)
warm_pod.main([sys.argv[1]], sys.argv[2], sys.argv[3], entrypoint.get_ready)
"""

# One whose first fork server dies at the moment at which it gets its first job.
DYING = """
import os, signal, sys
from kinetic._runner.pod import entrypoint, fork_server, warm_pod
start = fork_server.ForkServer.start
def die(server, folder):
    fork_server.ForkServer.start = start
    os.kill(server.pid, signal.SIGKILL)
    os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    start(server, folder)
fork_server.ForkServer.start = die
warm_pod.main([sys.argv[1]], sys.argv[2], sys.argv[3], entrypoint.get_ready)
"""


class State(NamedTuple):
    """What processes of a pod hold."""

    processes: int
    descriptors: int
    files: list[str]
    bytes: int  # of memory, shared pages counted by share
    own_bytes: int  # of these, those that are not of files: the share of files grows when other programs end


class Pod:
    """The processes of a warm pod, and a client that is connected to it all the time."""

    def __init__(self, folder: Path, store: Store, **environ: str) -> None:
        self.folder, self.store = folder, store
        secret = folder / "secret"
        for path in (secret, folder / "tmp", folder / "home", folder / "base"):
            path.mkdir()
        (secret / KEY_FILE).write_bytes(POD_KEY)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.page = WarmPod(
            POD, store.url, idle_seconds=100_000.0, most_seconds=100_000.0, secret=str(secret), port=port
        )
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "PYTHON"))}
        own = {"TMPDIR": str(folder / "tmp"), "HOME": str(folder / "home"), "PYTHONPATH": str(SOURCE)}
        self.environ = {**clean, **own, **environ}
        self.process: subprocess.Popen[bytes] | None = None
        self.greetings: list[Greeting] = []
        self.store_requirement = ""  # what a job's pod installs to open the store, where the image lacks it
        self._rest = b""

    def start(self, zipped: Path | None = None, program: str = FAST) -> Pod:
        """Start it: the zip as in a container, or a program, which is one with a faster clock."""
        fast = [sys.executable, "-c", program, self.page.to_argument(), str(self.folder / "base"), str(SOURCE)]
        words = [sys.executable, str(zipped), WARM, self.page.to_argument()] if zipped else fast
        if may_mount():  # as in a container, where it unmounts what is new: here that is another's
            words = ["unshare", "--mount", *words]
        with (self.folder / "out").open("wb") as out:
            self.process = subprocess.Popen(words, env=self.environ, stdout=out)
        limit = time.monotonic() + 20
        while True:
            try:
                self.client = socket.create_connection(("127.0.0.1", self.page.port), timeout=60)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < limit, (self.folder / "out").read_text()
                time.sleep(0.02)
        return self

    def run(self, function: Callable[..., object], *args: object, **settings: Any) -> Any:
        """Give it a job on the one connection, wait until it is idle again, and return the job's value."""
        job_id = self.decide(function, *args, **settings)
        value = self.value(job_id)  # it is there once the pod says so
        self.hear(lambda found: found.state == IDLE and found.sequence > int(job_id[-7:], 16))
        return value

    def decide(self, function: Callable[..., object], *args: object, **settings: Any) -> str:
        """Give it a job, with settings of a task, and wait until that has its verdict; return its name."""
        hello = self.hear(lambda found: found.state == IDLE)
        job_id = f"cpu-train-20261123-120000-{hello.sequence:07x}"
        order = Order(
            job_id,
            "train",
            Artifact.within(cloudpickle.dumps(function)),
            Artifact.within(pickle.dumps((args, {}))),
            fingerprint={"python": python_runtime.python_version()},
        ).to_bytes()
        self.store.put(keys.order(job_id), order)
        self.store.put(keys.record(job_id), b"{}")
        pod = PodSettings(last_words=str(self.folder / "last"), store_requirement=self.store_requirement)
        task = Task(job_id, digests.of_bytes(order), self.store.url, "key-1", 0o022, None, {}, pod=pod)
        page = replace(task, **settings).to_argument()
        assignment = Assignment(hello.sequence, job_id, page, KEY, {})
        self.greetings.clear()
        self.client.sendall(assignment.to_bytes(POD_KEY, hello.nonce) + b"\n")
        self.hear(lambda found: found.decided == job_id)
        return job_id

    def hear(self, holds: Callable[[Greeting], bool]) -> Greeting:
        """Read until the last greeting is of some kind, and return it; an answer must not be a refusal."""
        while not (self.greetings and holds(self.greetings[-1])):
            while b"\n" not in self._rest:
                data = self.client.recv(MOST_LINE)
                assert data, (self.folder / "out").read_text()
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\n")
            if (why := refusal(line)) is None:
                self.greetings.append(Greeting.from_bytes(line))
            else:
                assert why == ""
        return self.greetings[-1]

    def outcome(self, job_id: str) -> Outcome:
        at = keys.result(job_id)
        size = self.store.size(at)
        assert size is not None
        return outcomes.read(size, lambda start, length: self.store.get(at, start=start, length=length), KEY)

    def value(self, job_id: str) -> Any:
        read = self.outcome(job_id)
        assert read.succeeded, read.error
        return pickle.loads(self.store.get(keys.result(job_id), length=read.body_length))

    def state(self) -> State:
        """Return what its processes hold once it is idle, with what waits for the next job."""
        assert self.process is not None
        limit, found, descriptors, before = time.monotonic() + 20, [0], 0, -1
        while len(found) != IDLE_PROCESSES or descriptors != before:
            assert time.monotonic() < limit, (found, descriptors)
            time.sleep(0.05)
            found, before = processes.tree_of(self.process.pid), descriptors
            with contextlib.suppress(FileNotFoundError):  # what asks the store
                descriptors = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in found)
        files = sorted(str(path) for name in ("tmp", "home") for path in (self.folder / name).rglob("*"))
        return State(
            len(found),
            descriptors,
            files,
            *(sum(shared_bytes(pid, kind) for pid in found) for kind in ("Pss", "Pss_Anon")),
        )

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.client.close()


def shared_bytes(pid: int, kind: str) -> int:
    """Return the memory of a process; pages that it shares with others are counted by its share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):  # one that looked into the store has ended
        return 0
    found = re.search(rf"^{kind}:\s+(\d+) kB", text, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    """Return a function that starts the processes of a warm pod whose store is at an address."""
    with contextlib.ExitStack() as ending:

        def run(url: str, *, zipped: Path | None = None, program: str = FAST, **environ: str) -> Pod:
            pod = Pod(tmp_path, open_store(url), **environ)
            ending.callback(pod.end)
            return pod.start(zipped, program)

        yield run


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    server = GcsServer().start()
    server.bucket("jobs")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("jobs", "store"),
    [
        (50, "a folder"),
        pytest.param(1000, "a bucket", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
def test_nothing_grows_in_a_warm_pod_with_each_job(
    start: Any, cloud: GcsServer, zipped: Path, tmp_path: Path, jobs: int, store: str
) -> None:
    url = "gs://jobs/below" if store == "a bucket" else f"file://{tmp_path}/store"
    pod = start(url, zipped=zipped, STORAGE_EMULATOR_HOST=cloud.url)
    early = [pod.run(abs, -number) for number in range(10)]
    before = pod.state()

    values = [pod.run(abs, -number) for number in range(jobs - 10)]
    after = pod.state()

    assert early + values == [*range(10), *range(jobs - 10)]
    assert (after.processes, after.descriptors, after.files) == (before.processes, before.descriptors, before.files)
    assert after.own_bytes < before.own_bytes + 2_000_000


def test_the_next_job_is_carried_out_by_the_pair_that_waits_unless_that_has_died(start: Any, tmp_path: Path) -> None:
    pod = start(f"file://{tmp_path}/store")

    def pair() -> list[int]:
        pod.state()
        return processes.tree_of(pod.process.pid)[2:]

    def run_without(pid: int) -> list[int]:
        os.kill(pid, signal.SIGKILL)
        while processes.state(pid) not in {"Z", "X"}:
            time.sleep(0.01)
        return run()

    def run() -> list[int]:
        found: list[int] = pod.run(lambda: [os.getppid(), os.getpid()])
        return found

    pod.run(abs, -1)
    waiting, ran = pair(), run()
    supervisor, dead_worker = pair()
    without_worker = run_without(dead_worker)
    dead_supervisor, _ = pair()
    without_supervisor = run_without(dead_supervisor)

    assert ran == waiting
    assert without_worker[0] == supervisor
    assert without_worker[1] != dead_worker
    assert dead_supervisor not in without_supervisor


def test_a_job_begins_though_the_process_that_would_fork_it_has_just_died(start: Any, tmp_path: Path) -> None:
    pod = start(f"file://{tmp_path}/store", program=DYING)

    assert pod.run(abs, -1) == 1


class Listing(NamedTuple):
    """An argument that becomes, when a worker opens it, the names in a folder."""

    folder: str

    def __reduce__(self) -> tuple[Callable[[str], list[str]], tuple[str]]:
        return os.listdir, (self.folder,)


def fail_once(found: list[str], flag: str) -> list[list[str]]:
    """Return what was found in the folder of the task, by the attempt before and by this one."""
    import json

    import kinetic

    if os.path.exists(flag):
        return [json.loads(Path(flag).read_text()), sorted(found)]
    Path(flag).write_text(json.dumps(sorted(found)))
    kinetic.progress(90, 100)
    Path("../left").touch()
    raise ValueError("the first attempt fails")


fail_once.__module__ = "__main__"


@pytest.mark.parametrize("is_command", [False, True])
def test_a_retry_begins_with_what_the_first_attempt_began_with(start: Any, tmp_path: Path, is_command: bool) -> None:
    pod = start(f"file://{tmp_path}/store")
    folder, flag = Listing(f"{tmp_path}/base/task"), str(tmp_path / "flag")

    first, second = pod.run(fail_once, folder, flag, retries=1, is_command=is_command, cache_key=IN_SECRET)

    assert first == second
    assert (tmp_path / "out").read_text().count("another one follows") == 1


def stop_supervisor() -> None:
    """Stop what waits for the deadline of this job, and what waits for that."""
    supervisor = os.getppid()
    for pid in (processes.parent_of(supervisor), supervisor):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(100)


stop_supervisor.__module__ = "__main__"


def test_a_job_that_stops_its_supervisor_is_ended_at_its_deadline(start: Any, tmp_path: Path) -> None:
    pod = start(f"file://{tmp_path}/store")
    pod.client.settimeout(10)

    outcome = pod.outcome(pod.decide(stop_supervisor, deadline=0.5))

    assert outcome.cause == "deadline"


def leave_pipe(path: str) -> None:
    """Leave a named pipe, into which nothing is ever written, in the folder of the task."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.mkfifo(path)


leave_pipe.__module__ = "__main__"


@pytest.mark.parametrize("name", ["imports.json", "data/links"])
def test_a_pipe_in_the_place_of_a_file_that_the_pod_reads_holds_up_no_job(
    start: Any, tmp_path: Path, name: str
) -> None:
    pod = start(f"file://{tmp_path}/store")
    pod.client.settimeout(10)

    pod.run(leave_pipe, f"{tmp_path}/base/task/{name}")

    assert pod.run(abs, -1) == 1


def mount_in_working_directory(disk: str) -> list[str]:
    """Mount a disk that keeps files, and one in memory with a file that an escaped process holds."""
    mounted = ctypes.CDLL(None).mount
    for source, name, kind, flags in ((disk, "disk", None, 4096), ("none", "memory", b"tmpfs", 0)):
        os.mkdir(name)
        assert mounted(source.encode(), os.path.abspath(name).encode(), kind, flags, None) == 0
    with open("memory/held", "w") as held:
        subprocess.Popen(["sleep", "100"], stdout=held, start_new_session=True, env={})
    return os.listdir("disk")


mount_in_working_directory.__module__ = "__main__"  # so that it travels by value: pods have no tests


@pytest.mark.skipif(not may_mount(), reason="this user may not mount")
def test_a_disk_that_a_job_mounted_in_its_folder_keeps_its_files(start: Any, zipped: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "file").write_text("precious")
    pod = start(f"file://{tmp_path}/store", zipped=zipped)

    found = pod.run(mount_in_working_directory, str(tmp_path / "disk"))
    after = pod.run(os.listdir, ".")

    assert found == ["file"]
    assert (tmp_path / "disk" / "file").read_text() == "precious"
    assert after == []
    assert f"{tmp_path}/tmp" not in Path(f"/proc/{pod.process.pid}/mounts").read_text()


def test_an_idle_warm_pod_takes_80_mb_and_asks_its_store_once_a_minute(start: Any, cloud: GcsServer) -> None:
    pod = start("gs://jobs/below", STORAGE_EMULATOR_HOST=cloud.url)
    pod.run(abs, -1)
    begun = len(cloud.seen)
    time.sleep(5.0)  # ten minutes of its clock
    asked = [method for method, path in cloud.seen[begun:] if not path.endswith("connection")]

    assert 8 <= len(asked) <= 11, asked
    assert {*asked} == {"GET"}
    assert pod.state().bytes <= MOST_IDLE_BYTES


def test_who_waits_for_the_next_job_is_connected_to_the_store(start: Any, cloud: GcsServer, wait_until: Any) -> None:
    def connected() -> int:
        return sum(method == "HEAD" and path.endswith("connection") for method, path in list(cloud.seen))

    pod = start("gs://jobs/below", STORAGE_EMULATOR_HOST=cloud.url)
    pod.run(abs, -1)
    wait_until(lambda: connected() == 4)  # supervisor and worker of the first job, and those of the next

    assert pod.run(abs, -2) == 2
    wait_until(lambda: connected() == 6)


def wait_for_go(flag: str) -> str:
    """Print a line before and after a file appears."""
    print("before", flush=True)
    Path(flag).touch()
    while not Path(f"{flag}.go").exists():
        time.sleep(0.02)
    print("after", flush=True)
    return "went on"


wait_for_go.__module__ = "__main__"


def test_tokens_of_the_metadata_server_that_expire_between_two_jobs_and_in_one_are_asked_for_anew(
    start: Any, cloud: GcsServer, tmp_path: Path
) -> None:
    def hand_out(token: str) -> None:
        cloud.tokens, cloud.issue = {"emulator", token}, [(token, 3600)]  # the first is the test's own

    hand_out("first")
    server = cloud.url.partition("://")[2]
    program = GUARDED.replace("SERVER", server)
    pod = start("gs://jobs/below", program=program, GCE_METADATA_HOST=server, STORAGE_EMULATOR_HOST="")
    values = [pod.run(abs, -1)]

    hand_out("second")
    values.append(pod.run(abs, -2))
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(pod.run, wait_for_go, str(tmp_path / "flag"))
        while not (tmp_path / "flag").exists():
            time.sleep(0.02)
        hand_out("third")
        (tmp_path / "flag.go").touch()
        values.append(third.result())

    assert values == [1, 2, "went on"]
    log = pod.store.get("cpu-train-20261123-120000-0000002/logs/0/0/000000000000")
    assert log.splitlines() == [b"before", b"after"]


def hand_over(port: int, key_file: str, page: str) -> list[str]:
    """Be a job that has read the key of its pod, and tries to be the client of the next one."""
    answers = []
    for later in (0, 1):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            hello, key = Greeting.from_bytes(connection.recv(MOST_LINE)), Path(key_file).read_bytes()
            job_id = "cpu-forged-20261123-120000-0000000"
            forged = Assignment(hello.sequence + later, job_id, page, bytes(32), {})
            connection.sendall(forged.to_bytes(key, hello.nonce) + b"\n")
            answers.append(f"{hello.state}: {refusal(connection.recv(MOST_LINE))}")
    return answers


hand_over.__module__ = "__main__"


def test_a_job_that_has_read_the_key_of_its_pod_cannot_hand_it_the_next_one(
    start: Any, zipped: Path, tmp_path: Path
) -> None:
    pod = start(f"file://{tmp_path}/store", zipped=zipped)
    page = Task("cpu-forged-20261123-120000-0000000", "0" * 64, pod.store.url, "key-1", 0o022, None, {},
                pod=PodSettings()).to_argument()  # fmt: skip

    answers = pod.run(hand_over, pod.page.port, str(tmp_path / "secret" / KEY_FILE), page)
    after = pod.run(abs, -1)

    assert answers == ["busy: this pod is past its task 0", "busy: this pod is past its task 1"]
    assert after == 1
    assert "forged" not in (tmp_path / "out").read_text()


def test_what_opens_the_store_is_installed_once_in_an_image_that_lacks_it(
    start: Any, cloud: GcsServer, zipped: Path, tmp_path: Path, index: Any
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "obstore.py").write_text("raise ImportError('this image has no obstore')\n")
    for name in ("obstore", "typing_extensions"):
        index(repacked(tmp_path, name))
    environ = {"PYTHONPATH": str(hidden), "UV_DEFAULT_INDEX": index.simple, "UV_CACHE_DIR": str(tmp_path / "uv")}
    pod = start("gs://jobs/here", zipped=zipped, **environ)
    pod.store_requirement = f"obstore=={metadata.version('obstore')}"

    values, seconds = [], []
    for number in range(3):
        begun = time.monotonic()
        values.append(pod.run(lambda value: value + 1, number))
        seconds.append(time.monotonic() - begun)

    out = (tmp_path / "out").read_text()
    assert values == [1, 2, 3], out
    assert out.count("this image cannot open the job's store: installing obstore") == 1, seconds
    assert "in trouble" not in out


def repacked(folder: Path, name: str) -> Path:
    """Write the wheel of an installed package."""
    found = metadata.distribution(name)
    tag = re.search(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    path = folder / f"{name}-{found.version}-{tag[1] if tag else ''}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))
    return path


def test_a_client_too_many_takes_the_place_of_the_one_that_was_quiet_for_the_longest_time(
    start: Any, zipped: Path, tmp_path: Path
) -> None:
    pod = start(f"file://{tmp_path}/store", zipped=zipped)
    pod.hear(lambda found: found.state == IDLE)

    with contextlib.ExitStack() as ending:
        others = [ending.enter_context(socket.create_connection(("127.0.0.1", pod.page.port), 60)) for _ in range(8)]
        greeted = [Greeting.from_bytes(each.recv(MOST_LINE)).state for each in others]
        rest = pod.client.recv(MOST_LINE)
        pod.client.close()
        pod.client, pod.greetings[:] = socket.create_connection(("127.0.0.1", pod.page.port), 60), []
        value = pod.run(abs, -3)

    assert greeted == [IDLE] * 8
    assert rest == b"", "its connection was closed"
    assert value == 3


CHOOSES = """
import os
BACKEND = os.environ.get("CHOSEN_BACKEND", "another")
PROCESS = os.getpid()
"""


def test_a_library_that_reads_a_variable_when_it_is_imported_finds_what_the_function_has_set(
    start: Any, zipped: Path, tmp_path: Path
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for name in ("early", "chooses"):
        (packages / f"{name}.py").write_text(CHOOSES)
    pod = start(f"file://{tmp_path}/store", zipped=zipped, PYTHONPATH=str(packages))

    def chosen(backend: str) -> list[object]:
        import early

        if backend:
            os.environ["CHOSEN_BACKEND"] = backend
        import chooses

        return [chooses.BACKEND, *(os.getpid() == module.PROCESS for module in (early, chooses))]

    found = [pod.run(chosen, "")]
    pod.state()  # until what forks the next job has imported both
    found += [pod.run(chosen, backend) for backend in ("", "jax", "torch", "")]

    was_imported_before = ["another", False, False]
    assert found == [
        ["another", True, True],
        was_imported_before,
        ["jax", True, True],  # in an interpreter that has imported neither
        ["torch", True, True],
        was_imported_before,
    ]


def test_only_a_library_that_starts_a_thread_is_imported_by_each_job(start: Any, zipped: Path, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "chooses.py").write_text(CHOOSES)
    (packages / "threaded.py").write_text(
        f"{CHOOSES}import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    pod = start(f"file://{tmp_path}/store", zipped=zipped, PYTHONPATH=str(packages))

    def imported_here() -> list[bool]:
        import chooses
        import threaded

        return [os.getpid() == module.PROCESS for module in (chooses, threaded)]

    found = []
    for _ in range(4):
        found.append(pod.run(imported_here))
        pod.state()  # until what forks the next job has imported what it can

    assert found == [[True, True], [True, True], [False, True], [False, True]]


@pytest.mark.skipif(not may_mount(), reason="only root may mount")
def test_what_a_job_has_mounted_stays_whole_when_it_begins_again(start: Any, zipped: Path, tmp_path: Path) -> None:
    packages, precious = tmp_path / "site-packages", tmp_path / "precious"
    packages.mkdir()
    precious.mkdir()
    (precious / "data").touch()
    (packages / "chooses.py").write_text(CHOOSES)
    pod = start(f"file://{tmp_path}/store", zipped=zipped, PYTHONPATH=str(packages))

    def chosen(source: str) -> list[object]:
        if source:
            os.makedirs("mounted", exist_ok=True)
            subprocess.run(["mount", "--bind", source, "mounted"], check=True)
            os.environ["CHOSEN_BACKEND"] = "jax"
        import chooses

        return [chooses.BACKEND, os.getpid() == chooses.PROCESS]

    pod.run(chosen, "")
    pod.state()

    assert pod.run(chosen, str(precious)) == ["jax", True]
    assert [each.name for each in precious.iterdir()] == ["data"]
