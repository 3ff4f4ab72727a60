"""What debug=True asks before anything is submitted."""

from __future__ import annotations

import importlib.util
import io
import json
import socket
import sys
from types import SimpleNamespace

import pytest

from kinetic._backends.fake import FakeClock
from kinetic._backends.protocol import SYSTEM, DebugAddress
from kinetic._inspect import debugger, port_forward
from kinetic._jobs import calls, locate, wait
from kinetic._jobs import submit as job_submit
from kinetic._jobs.job_options import Options
from kinetic._jobs.status import Snapshot
from kinetic._stores.memory import MemoryStore
from kinetic._wire import inspection, keys
from kinetic._wire.inspection import DebugPage
from kinetic._wire.order import Artifact, Order
from kinetic.errors import (
    BackendUnavailableError,
    DebugError,
    IntegrityError,
    OptionError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus

DEBUG = Options(accelerator="cpu", debug=True)
NOTHING = Artifact.within(b"")


@pytest.mark.parametrize(("setting", "seconds"), [(None, 600.0), ("", 600.0), ("5", 5.0), ("0", 0.0), ("1.5", 1.5)])
def test_a_debug_job_waits_as_long_as_the_variable_says(setting, seconds) -> None:
    environ = {} if setting is None else {"KINETIC_DEBUG_WAIT_TIMEOUT": setting}

    assert job_submit.debug_wait_seconds(DEBUG, environ) == seconds


def test_another_job_waits_for_nobody() -> None:
    assert job_submit.debug_wait_seconds(Options(accelerator="cpu"), {"KINETIC_DEBUG_WAIT_TIMEOUT": "x"}) is None


@pytest.mark.parametrize("setting", ["soon", "-1", "inf", "nan"])
def test_a_time_that_is_none_is_refused(setting) -> None:
    with pytest.raises(OptionError, match=r"KINETIC_DEBUG_WAIT_TIMEOUT=.* is not a number of seconds"):
        job_submit.debug_wait_seconds(DEBUG, {"KINETIC_DEBUG_WAIT_TIMEOUT": setting})


def context(*, here: bool) -> SimpleNamespace:
    return SimpleNamespace(backend=SimpleNamespace(is_here=here, environ={}))


def test_without_debugpy_a_job_of_this_environment_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(DebugError, match="debugpy, which is not installed") as raised:
        job_submit.check_debug(DEBUG, context(here=True), "")

    assert raised.value.next == 'pip install "kinetic-jobs[debug]"'


def test_jobs_with_an_environment_of_their_own_need_no_debugpy_here(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    job_submit.check_debug(DEBUG, context(here=False), "")
    job_submit.check_debug(DEBUG, context(here=True), "/some/python")


def test_a_deadline_holds_for_no_session_and_that_is_said(capsys) -> None:
    job_submit.check_debug(DEBUG._replace(deadline=5.0), context(here=False), "")

    assert "the deadline of 5 s does not hold with debug=True" in capsys.readouterr().err


class SubmittedError(Exception):
    """A call came as far as its submission; nothing here runs a job."""


@pytest.fixture
def call(monkeypatch):
    """Return a function that begins a blocking call with debug=True."""

    def submit(*_: object) -> None:
        raise SubmittedError

    monkeypatch.setattr(calls, "submit_call", submit)
    return lambda: calls.call_and_wait(print, (), {}, "f", DEBUG)


def test_a_call_without_a_terminal_is_refused_unless_that_is_meant(monkeypatch, call) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "yes")
    with pytest.raises(RuntimeError, match="needs a terminal; nothing was submitted") as raised:
        call()
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    with pytest.raises(SubmittedError):
        call()

    assert "KINETIC_NO_TTY_DEBUG=1" in raised.value.next


def test_a_terminal_is_enough(monkeypatch, call) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    with pytest.raises(SubmittedError):
        call()


def test_a_batch_is_not_debugged_as_a_whole() -> None:
    with pytest.raises(OptionError, match="a batch cannot be submitted with debug=True"):
        job_submit.check_not_debug(DEBUG)


def test_an_order_of_an_older_version_asks_for_no_debugger() -> None:
    page = json.loads(Order("cpu-f-1", "f", NOTHING, NOTHING).to_bytes())
    del page["debug"]
    data = json.dumps(page).encode()

    from kinetic._wire import digests

    assert Order.from_bytes(data, sha256=digests.of_bytes(data)).debug is None


def test_the_page_of_a_server_comes_back_and_half_of_it_is_none() -> None:
    page = DebugPage(5678, "attached", 12.5, 99, (("/here", "/there"),))

    assert DebugPage.from_bytes(page.to_bytes()) == page
    with pytest.raises(IntegrityError):
        DebugPage.from_bytes(page.to_bytes()[:20])


@pytest.mark.parametrize("sealed_with", ["the job's token", "another token", "nothing", "the token, for another host"])
def test_where_a_debug_server_is_says_only_a_page_that_the_job_sealed(sealed_with, monkeypatch) -> None:
    store, job_key = MemoryStore("memory://debug"), b"k" * 32
    job = SimpleNamespace(job_id="gpu-f-1")
    found = {0: DebugAddress(0, machine="p")}
    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(debug_addresses=lambda *_, **__: found))
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "key_to_read", lambda _: job_key)
    page, at = DebugPage(4444, "waiting", pod="p"), keys.debug("gpu-f-1", 0, 0)
    key = inspection.page_key(inspection.token(b"x" * 32 if sealed_with == "another token" else job_key))
    sealed_for = keys.debug("gpu-f-1", 0, 1) if sealed_with == "the token, for another host" else at
    store.put(at, page.to_bytes() if sealed_with == "nothing" else page.sealed(sealed_for, key))

    addresses = port_forward.debug_addresses(job, [0])

    assert addresses == ({0: found[0]._replace(port=4444, state="waiting")} if sealed_with == "the job's token" else {})


@pytest.mark.parametrize(
    ("machine", "pod", "is_older"),
    [
        ("kinetic-train-abcde", "kinetic-train-abcde", False),
        ("kinetic-train-abcde", "kinetic-train-fghij", True),
        ("kinetic-slice-1", "kinetic-slice-1-abcde", False),  # a host of a slice
        ("some-machine.example", "kinetic-train-abcde", False),  # whose network the pod shares
        ("", "kinetic-train-abcde", False),  # of an older runner
    ],
)
def test_the_page_of_a_pod_that_was_replaced_does_not_count(machine, pod, is_older) -> None:
    assert DebugPage(5678, pod=machine).is_from_older_pod(pod) is is_older


def test_a_call_whose_job_is_there_already_takes_another_port_when_the_usual_one_is_taken(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(inspection, "PORT", taken)

        port = debugger._usable_port()

    assert port != taken
    port_forward.check_port(port)


class Place:
    """A place in which a job begins to run, and its debug server comes, after so many looks each; looks may fail."""

    is_here, poll_seconds, clock = False, 0.0, SYSTEM

    def __init__(self, *seen: object) -> None:
        self.seen = list(seen)

    def look(self, _: object) -> Snapshot:
        first = self.seen.pop(0)
        if isinstance(first, Exception):
            raise first
        return Snapshot(first)

    def watch(self, _: str, *, seconds: float) -> bool:
        """Tell at once."""
        return True

    def stop_watching(self, _: str) -> None:
        """Be told that nobody watches any more."""


@pytest.fixture
def waited(monkeypatch):
    """Return a function that waits for a server in a place."""

    def run(place: Place, found: list[object], timeout: float | None = None) -> DebugAddress:
        def addresses(_: object, hosts: object) -> dict[int, DebugAddress]:
            first = found.pop(0)
            if isinstance(first, Exception):
                raise first
            return {0: first} if first else {}

        monkeypatch.setattr(wait, "observe", place.look)
        monkeypatch.setattr(locate, "backend_of", lambda _: place)
        monkeypatch.setattr(port_forward, "debug_addresses", addresses)
        monkeypatch.setattr(locate, "can_be_seen", lambda _: True)
        monkeypatch.setattr(locate, "hosts_of", lambda _: 1)
        for module, name in ((debugger, "_POLL_CLUSTER_SECONDS"), (wait, "AGAIN_SECONDS")):
            monkeypatch.setattr(module, name, 0.001)
        return debugger.wait_for_server(SimpleNamespace(job_id="job", debug=True), timeout=timeout)

    return run


def test_a_store_and_a_cluster_that_do_not_answer_for_a_while_keep_nobody_from_attaching(waited) -> None:
    place = Place(
        JobStatus.PENDING,
        StoreUnreachableError("the store"),
        BackendUnavailableError("the cluster"),
        *[JobStatus.RUNNING] * 4,
    )
    address = DebugAddress(5678, state="waiting")

    found = waited(place, [None, StoreUnreachableError("the store"), None, address])

    assert found is address


def test_a_store_that_does_not_answer_at_first_is_told_at_once(waited) -> None:
    with pytest.raises(StoreUnreachableError):
        waited(Place(StoreUnreachableError("the store")), [])


def test_a_server_that_does_not_come_in_time_is_a_time_out_and_the_job_goes_on(waited) -> None:
    with pytest.raises(TimeoutError, match="was not there within"):
        waited(Place(*[JobStatus.RUNNING] * 10_000), [None] * 10_000, timeout=0.05)


def test_a_client_that_was_stopped_beyond_its_timeout_finds_the_server_that_came_meanwhile(waited) -> None:
    address, place = DebugAddress(5678, state="waiting"), Place(*[JobStatus.RUNNING] * 2)
    clock = place.clock = FakeClock()

    class Stopped(list[object]):
        def pop(self, index: int = -1) -> object:
            clock.sleep(100)  # within the first look
            return super().pop(index)

    found = waited(place, Stopped([None, address]), timeout=10)

    assert found is address


def test_a_job_that_ends_before_its_server_is_there_cannot_be_attached_to(waited) -> None:
    with pytest.raises(DebugError, match="has ended") as raised:
        waited(Place(JobStatus.PENDING, JobStatus.RUNNING, JobStatus.FAILED), [None])

    assert raised.value.code == "debug-over"


def test_the_launch_json_maps_what_exists_here_and_leaves_the_rest_to_the_editor(tmp_path) -> None:
    roots = ((str(tmp_path), "/job/work"), ("/not/on/this/machine", "/job/more"))

    (found,) = json.loads(debugger.launch_json(roots, local_port=5680))["configurations"]
    (elsewhere,) = json.loads(debugger.launch_json(roots[1:], working_dir="/checkout"))["configurations"]

    assert (found["name"], found["type"], found["request"]) == ("Kinetic Debug", "debugpy", "attach")
    assert found["connect"] == {"host": "localhost", "port": 5680}
    assert found["pathMappings"] == [
        {"localRoot": str(tmp_path), "remoteRoot": "/job/work"},
        {"localRoot": "${workspaceFolder}", "remoteRoot": "/job/more"},
    ]
    assert elsewhere["pathMappings"] == [{"localRoot": "/checkout", "remoteRoot": "/job/more"}]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_forwarded_port_leads_nowhere_once_its_job_has_ended_though_its_warm_pod_is_there(
    has_ended: bool,
    monkeypatch,
    tmp_path,
) -> None:
    asked, said, store = list[str](), list[str](), MemoryStore()

    def port_address(name: str, port: int, *, host: int) -> None:
        asked.append(name)

    backend = SimpleNamespace(is_here=False, port_address=port_address)
    job = SimpleNamespace(job_id="cpu-train-20261129-000000-abcdefa")
    if has_ended:
        store.put(keys.result(job.job_id), b"its verdict")
    monkeypatch.setattr(locate, "backend_of", lambda _: backend)
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(port_forward, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(port_forward.output, "report_once", said.append)

    with (
        port_forward.forwarded(job, 6006, host=0, local_port=None, advice=str) as port,  # type: ignore[arg-type] # its id is enough
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        assert connection.recv(10) == b""

    assert asked == ([] if has_ended else [job.job_id])
    assert said == [
        f"port 6006 of {job.job_id}: a connection was closed: nothing of the job listens at the moment [kinetic]"
    ]
