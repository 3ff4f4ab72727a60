"""Jobs of this machine that wait for others: none waits for ever, and none is closed that another process started."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._backends.local import followers, runtime_files
from kinetic._backends.local.backend import LocalBackend
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._backends.local.supervisor import QueueSource
from kinetic._runner.supervisor import attempts
from kinetic._stores import open_store
from kinetic._wire import keys
from kinetic._wire.order import Predecessor
from kinetic._wire.outcomes import Outcome
from kinetic._wire.task import Task
from kinetic.errors import StoreUnreachableError

FIRST, SECOND = "cpu-a-20261123-103059-1234567", "cpu-b-20261123-103059-1234568"
KEY = bytes(32)


class Site:
    """A queue in which the second job waits for the first, which has ended."""

    def __init__(self, folder: Path) -> None:
        self.store, self.paths = open_store(f"file://{folder}/store"), Paths(folder / "run")
        self.paths.make()
        self.queue = Queue(self.paths.queue)
        after = [Predecessor(FIRST, "a").to_json()]
        self.task = Task(SECOND, "0" * 64, self.store.url, "k", 0o22, None, {}, after=after)
        runtime_files.folders.make(self.paths.job(SECOND))
        runtime_files.write_tasks(self.paths, [(self.task, KEY)], {SECOND: KEY})
        self.queue.add([(SECOND, "", 0)], "template", "{}", Limits(1, ()), {SECOND: [FIRST]})

    def end_first(self, status: str) -> None:
        attempts.seal_outcome(self.store, Outcome(FIRST, status, cause="exception"), KEY)

    @property
    def state(self) -> tuple[str, str]:
        row = self.queue.jobs([SECOND])[SECOND]
        return row.state, row.verdict


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.queue.close()


def test_a_job_starts_once_what_it_follows_has_succeeded(site: Site) -> None:
    site.end_first("succeeded")

    followers.settle(site.paths, site.queue)

    assert site.state == ("queued", "")


@pytest.mark.parametrize("what", ["launch", "followed_keys"])
@pytest.mark.parametrize("how", [Path.unlink, lambda path: path.write_bytes(b"{")], ids=["gone", "damaged"])
def test_a_job_of_which_a_file_is_lost_ends_and_says_so(site: Site, what: str, how: Callable[[Path], Any]) -> None:
    how(getattr(site.paths, what)(SECOND))
    site.end_first("succeeded")

    followers.settle(site.paths, site.queue)

    state, verdict = site.state
    found = site.store.size(keys.result(SECOND))
    assert state == "ended"
    assert found is not None or verdict not in {"", "ended", "succeeded"}


def test_who_was_late_does_not_touch_what_another_process_has_ended(site: Site) -> None:
    names = [FIRST]
    site.queue.end(SECOND, "succeeded")
    runtime_files.remove_task(site.paths, SECOND)

    followers._settle_one(site.paths, site.queue, SECOND, names)

    assert site.state == ("ended", "succeeded")


def test_who_was_late_does_not_close_what_another_process_has_started(site: Site) -> None:
    site.queue.note_successes(SECOND, [FIRST])
    site.queue.claim("supervisor", "template")
    site.end_first("failed")  # as the value of one that was removed since would look

    followers._settle_one(site.paths, site.queue, SECOND, [FIRST])

    assert site.state == ("claimed", "")
    assert site.store.size(keys.result(SECOND)) is None


def test_explain_names_the_command_that_knows_a_batch(site: Site) -> None:
    site.queue.add([("cpu-c", "", 0)], "template", "{}", Limits(1, ()), {"cpu-c": ["grp-0a1b2c3d"]})
    backend = LocalBackend(site.paths.runtime, {})

    found = [backend.explain(name) for name in (SECOND, "cpu-c")]

    assert [each.next for each in found if each] == [
        f"kinetic jobs explain {FIRST}",
        "kinetic batch status grp-0a1b2c3d",
    ]


def test_a_job_waits_for_a_store_that_does_not_answer_before_it_reads_what_it_follows(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = QueueSource(SimpleNamespace(paths=site.paths, queue=site.queue, wake=0), None, site.task)  # type: ignore[arg-type]
    source._is_cloud, source.store = True, Away(site)
    monkeypatch.setattr(source, "wait", lambda _: False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    site.end_first("succeeded")

    assert source._values_of_predecessors() == [{}]
    assert sys.stderr.getvalue().count("waits for its store") == 1


class Away:
    """A store that does not answer the first question."""

    def __init__(self, site: Site) -> None:
        self._site, self._asked = site, 0

    def __getattr__(self, name: str) -> Any:
        self._asked += 1
        if self._asked == 1:
            raise StoreUnreachableError("it does not answer")
        return getattr(self._site.store, name)


@pytest.mark.parametrize(("count", "text"), [(1, "1 of its jobs is"), (3, "3 of its jobs are")])
def test_a_batch_is_counted(count: int, text: str) -> None:
    queue: Any = SimpleNamespace(waits_for=lambda _: ["grp-1"], jobs=lambda _: {}, group_rows=lambda _: [None] * count)

    assert followers.states(queue, "cpu-a") == f"grp-1: {text} pending or running"


def test_a_batch_whose_driver_may_be_gone_is_not_counted_as_zero() -> None:
    queue: Any = SimpleNamespace(waits_for=lambda _: ["grp-1"], jobs=lambda _: {}, group_rows=lambda _: [])

    assert "inputs may be left that no process submits" in followers.states(queue, "cpu-a")
