"""How long a test may take, by the folder it lives in; and what a test may ask for anywhere."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import promises
import pytest
import scratch

TESTS = Path(__file__).parent
DURATIONS = TESTS.parent / "build" / "test-durations.tsv"
RAN_ON_A_NODE = TESTS.parent / "build" / "ran-on-a-real-node"  # what follows in the same make does not run these again

# Whole jobs and whole clusters: of these, `make test` runs what proves a promise of promises.py, `make test-all` all.
WHOLE_FOLDERS = {"flows", "cluster"}
QUICK_FOLDERS = {"unit", "architecture"}  # nothing in them is marked `whole`; of the contracts, those of a cluster are

# Seconds, for a machine with a load of 30. Units and contracts start a process or two at most, architecture reads every
# file of the repository, and flows run whole jobs, one after another.
SECONDS_BY_FOLDER = {"unit": 60, "contracts": 60, "architecture": 90, "flows": 120}


# One process of a run has all tests whose file begins like this: what takes long is made once for them (a table that
# runs, a site, a kernel, a browser, a base image, a server, types), and warm pods share the ports of this machine.
TOGETHER = (
    "tests/architecture/test_floors",
    "tests/architecture/test_types",
    "tests/cluster/test_preflight",
    "tests/flows/dashboard/test_dashboard_page",
    "tests/flows/kube/test_warm_",
    "tests/flows/test_docs_site",
    "tests/flows/test_images_in_containers",
    "tests/flows/test_notebooks",
    "tests/flows/test_what_user_code_does",
)

# What runs on a control plane of ours comes first, so that those of all processes rest for the second half of a run.
OF_A_CLUSTER = ("tests/cluster/", "tests/flows/kube/", "tests/contracts/test_backend.py")

# Of these `make test-rest` takes half, see below: they are nearly half of its time.
HALF = ("tests/flows/kube/", "tests/cluster/", "tests/flows/test_docs_snippets.py")

PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)  # before pytest chooses where its own temporary folders are
def pytest_configure(config: pytest.Config) -> None:
    """Give the run a folder for all that is temporary, and take Ctrl-C as a terminal would have us.

    A shell has what it starts in the background ignore Ctrl-C.
    """
    for name in ("KINETIC_HOME", "KINETIC_RUNTIME_DIR"):  # of the user's shell: each test has folders of its own
        os.environ.pop(name, None)
    if not hasattr(config, "workerinput"):  # workers of xdist inherit TMPDIR
        folder = scratch.begin()
        # The first cleanup that is asked for is the last one done: clusters that live in the folder have ended by then.
        config.add_cleanup(lambda: scratch.end(folder, passed=config.stash.get(PASSED, False)))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str | None:
    return (words := scratch.too_little_room()) and f"WARNING: {words}"


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out single tests, and those of TOGETHER or of a file of units as one.

    xdist_group changes no id that pytest 9.2 reads. To hand out a test of milliseconds costs more than to run it.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:  # to be overridden, says xdist
            alone = nodeid.partition("::")[0] if nodeid.startswith("tests/unit/") else nodeid
            return next((start for start in TOGETHER if nodeid.startswith(start)), alone)

    config.option.loadscopereorder = False  # the order is ours, see below
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remember how the run ended, for what is kept of it."""
    session.config.stash[PASSED] = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Pass over the files of which -m takes nothing: each process of a run would read them all first, for seconds."""
    if not collection_path.name.startswith("test_"):
        return None
    folder, asked = folder_of(collection_path), config.option.markexpr
    if "not whole" in asked and folder in WHOLE_FOLDERS:
        return not any(test.startswith(f"{file_of(collection_path)}::") for test in promises.TESTS) or None
    return ("and whole" in asked and folder in QUICK_FOLDERS) or None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have every second process of a run read the files from the last to the first: each compiles half for both."""
    report = yield
    worker = getattr(collector.config, "workerinput", {}).get("workerid", "gw0")
    if isinstance(collector, pytest.Dir) and int(worker.removeprefix("gw")) % 2:
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # -m reads the marks, and the order is ours once all were shuffled
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Mark what only `make test-all` or `make nightly` runs, and give each test the time-out of its folder.

    First comes what needs a control plane, and then what one process does alone, or has more time than a flow: else the
    others wait for it.
    """
    if hasattr(config, "workerinput"):  # all processes name the same tests in the same order
        items.sort(key=lambda item: str(item.path))
    for item in items:
        if item.nodeid.startswith(OF_A_CLUSTER):
            item.add_marker(pytest.mark.of_a_cluster)
        if folder_of(item.path) in WHOLE_FOLDERS and test_of(item) not in promises.TESTS:
            item.add_marker(pytest.mark.whole)
        seconds = SECONDS_BY_FOLDER.get(folder_of(item.path))
        if seconds is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(seconds))
    for item in beyond_the_samples(items):
        item.add_marker(pytest.mark.nightly)
    yield
    items.sort(
        key=lambda item: (
            not item.get_closest_marker("of_a_cluster"),
            not item.nodeid.startswith(TOGETHER),
            not has_more_time(item),
        )
    )


def has_more_time(item: pytest.Item) -> bool:
    """Return whether a test says that it may take longer than others of its kind."""
    marker = item.get_closest_marker("timeout")
    return marker is not None and marker.args[0] > max(SECONDS_BY_FOLDER.values())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(call: pytest.CallInfo[Any]) -> None:
    """Give each entry of a traceback a line: pytest 9.2 ends the whole run at one that a time-out left without."""
    error, seen = call.excinfo.value if call.excinfo is not None else None, set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        entry = error.__traceback__
        while entry is not None and (after := entry.tb_next) is not None:
            if after.tb_lineno is None:
                line = after.tb_frame.f_code.co_firstlineno
                entry.tb_next = TracebackType(after.tb_next, after.tb_frame, after.tb_lasti, line)
            entry = entry.tb_next
        error = error.__cause__ or error.__context__


def pytest_collection_finish() -> None:
    """Have nothing look for garbage among the thousands of tests any more: they stay until the end."""
    gc.freeze()


def beyond_the_samples(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what KINETIC_TEST_SAMPLE_SEED does not draw.

    It draws n of the variants of a test marked `sampled(n)`, and of `make test-rest` half of what only a simulated
    cluster runs, and of the pages whose programs run.
    """
    is_rest = bool(items) and "and whole" in items[0].config.option.markexpr
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("nightly"):
            continue
        if item.get_closest_marker("sampled"):
            variants.setdefault(test_of(item), []).append(item)
        elif is_rest and item.nodeid.startswith(HALF) and not item.get_closest_marker("real_node"):
            variants.setdefault(item.path.parent.name, []).append(item)
    for test, each in variants.items():
        marker = each[0].get_closest_marker("sampled")
        count = marker.args[0] if marker else (len(each) + 1) // 2
        draw = random.Random(f"{os.environ.get('KINETIC_TEST_SAMPLE_SEED', '0')} {test}")
        drawn = {id(item) for item in draw.sample(each, min(count, len(each)))}
        yield from (item for item in each if id(item) not in drawn)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the seconds of each test, set-up included, slowest first; and whether there was a real node for them."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    DURATIONS.parent.mkdir(exist_ok=True)
    DURATIONS.write_text("".join(f"{each:.2f}\t{test}\n" for test, each in seconds.most_common()))
    if os.environ.get("KINETIC_TEST_REAL_NODE") == "1" and terminalreporter.stats.get("passed"):
        RAN_ON_A_NODE.touch()


@pytest.fixture
def no_more_threads() -> Iterator[None]:
    """Let nobody start a thread while the test runs: no machine has room for a stack of that size."""
    before = threading.stack_size(1 << 62)
    yield
    threading.stack_size(before)


@functools.cache  # asked twice for each of 13,000 tests
def folder_of(path: Path) -> str:
    """Return the first folder below tests/, or "" for a file that lies elsewhere."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def test_of(item: pytest.Item) -> str:
    """Return the file and the name of a test, without its parameters."""
    name = getattr(item, "originalname", item.name)
    return f"{file_of(item.path)}::{name}" if item.path.is_relative_to(TESTS) else name


def file_of(path: Path) -> str:
    """Return the path of a file of tests as pytest writes it."""
    return path.relative_to(TESTS.parent).as_posix()
