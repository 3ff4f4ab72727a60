"""kill -9 of a batch's driver at any step: another process takes over, and every input is delivered, and run, once.

The points lie at and between the named steps of ``kinetic._wire.failpoints``. They are drawn from a seed that stands in
the name of each test; KINETIC_KILL_SEED=<seed> draws the same ones again. `make test` takes each step once, `make
nightly` adds delays.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kinetic._backends.local import expired_files
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._jobs import locate
from kinetic._wire import failpoints, keys

from .conftest import share_runner
from .kills import SEED, armed

NIGHTLY = 100

# What each input does: two fail once, so two of six are tried again.
FAILS = {0: 0, 1: 1, 2: 0, 3: 0, 4: 1, 5: 0}
VALUES = {number: number * 10 for number in FAILS}

# What becomes of a batch whose process dies exactly at a step. "never": it does not exist, and nothing of it runs.
# "value": whoever takes over delivers everything. "stopped": it is not gone on with. "removed": it was collected.
BECOMES = {
    **dict.fromkeys(failpoints.BATCH, "value"),
    "driver:inputs-written": "never",
    "driver:stopped-the-rest": "stopped",
    "client:children-marked": "removed",
}

# Taken over on another machine, which sees neither the queue nor the processes of the first.
ELSEWHERE = [
    pytest.param(name, marks=[] if name in {"driver:child-written", "driver:attempt-closed"} else pytest.mark.nightly)
    for name in failpoints.BATCH
    if name.startswith("driver:") and BECOMES[name] == "value"
]

SUBMIT = """
    inputs = [plan(number, fails=fails, seconds=0.02) for number, fails in {fails!r}.items()]
    batch = run(inputs, max_concurrent=2, {options})
    {rest}
"""
TAKE_OVER = """
    batch = kinetic.attach_batch(words[0], resume=True)
    delivered = [[job.group_index, job.exception() is None and job.result(cleanup=False)]
                 for job in batch.as_completed(timeout=60)]
    collected = batch.results(return_exceptions=True)
    tell([delivered, [value if isinstance(value, int) else type(value).__name__ for value in collected]])
"""
ASK = """
    batch = kinetic.attach_batch(words[0], poll_timeout=0)
    try:
        kinetic.attach_batch(words[0], resume=True)
        refused = ""
    except ValueError as error:
        refused = error.code
    values = batch.results(return_exceptions=True, cleanup=False)
    tell([refused, [value if isinstance(value, int) else type(value).__name__ for value in values],
          batch.status_counts()])
"""


def points(seed: int) -> Iterator[object]:
    draw = random.Random(seed)
    for name in failpoints.BATCH:
        yield pytest.param(name, 0.0, id=f"seed {seed}, {name}")
    names = [
        name for name in failpoints.BATCH if not name.startswith("supervisor")
    ]  # a little later, it has lost another job
    for number in range(NIGHTLY):
        name, later = names[number % len(names)], draw.uniform(0.0005, 0.15)
        words = f"seed {seed}, nightly {number}, {name} + {later * 1000:.1f} ms"
        yield pytest.param(name, later, id=words, marks=pytest.mark.nightly)


@pytest.fixture
def site(batches: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    monkeypatch.setenv("KINETIC_MACHINE_ID", "here")
    share_runner(batches.home / "run" / "here", tmp_path_factory)
    return batches


@pytest.mark.parametrize(("name", "later"), [*points(SEED)])
def test_a_driver_killed_at_any_step_loses_nothing_and_doubles_nothing(
    site: Any, name: str, later: float, wait_until: Callable[..., None]
) -> None:
    print(f"KINETIC_KILL_SEED={SEED}")

    code = _kill(site, name, later)
    became = _what_became(site, name, later, code)

    if became == "never":
        assert site.noted() == []
    elif became == "stopped":
        _check_stopped(site)
    elif became == "removed":
        _check_removed(site)
    else:
        _check_value(site)
    _check_nothing_is_left(site, wait_until)


def _kill(site: Any, name: str, later: float) -> int:
    """Let the driver, or a supervisor, be killed at a step, and return how the client ended."""
    mark = site.home.parent / "killed"
    stops, collects = name == "driver:stopped-the-rest", name == "client:children-marked"
    options = "fail_fast=True" if stops else "retries=1"
    code = SUBMIT.format(fails=FAILS, options=options, rest="batch.results()" if collects else "batch.wait()")
    client = site.start(code, **{failpoints.VARIABLE: armed(name, later, mark)})
    _, err = client.communicate(timeout=60)
    assert client.returncode in {0, -9}, err
    assert mark.exists(), f"nobody came by {name}"
    assert client.returncode == -9 or later or name.startswith("supervisor")
    return int(client.returncode)


def _what_became(site: Any, name: str, later: float, code: int) -> str:
    """Say what may be expected; a little later than a step, the batch may be there, or its client have ended well."""
    if not later:
        return BECOMES[name]
    if BECOMES[name] == "never":
        return "value" if _group(site) else "never"
    if BECOMES[name] == "removed" and code == 0:
        return "removed"
    return BECOMES[name]


def _group(site: Any) -> str:
    """Return the id of the one batch that has a manifest, or "" when there is none."""
    found = [path.parent.name for path in site.store.glob("_groups/*/manifest.json")]
    return found[0] if found else ""


@pytest.mark.parametrize("name", [*ELSEWHERE])
def test_another_machine_loses_nothing_and_doubles_nothing_either(site: Any, name: str) -> None:
    _kill(site, name, 0.0)
    then = time.time() - 61
    for lease in site.store.glob("_groups/*/leases/*"):
        os.utime(lease, (then, then))  # nobody there can see that the driver is gone; they wait for a minute

    _check_value(site, KINETIC_MACHINE_ID="there")


def _check_value(site: Any, **more: str) -> None:
    delivered, collected = site.run(TAKE_OVER, _group(site), **more)

    assert sorted(map(tuple, delivered)) == sorted(VALUES.items())
    assert collected == [*VALUES.values()]
    assert Counter(page["n"] for page in site.noted("ends")) == dict.fromkeys(FAILS, 1)
    assert Counter(page["n"] for page in site.noted("begins")) == {n: 1 + fails for n, fails in FAILS.items()}


def _check_stopped(site: Any) -> None:
    """The first failure was the last thing that mattered: what ran ended, and nothing more was launched."""
    refused, values, _ = site.run(ASK, _group(site))

    assert refused == "batch-stopped"
    assert values[1] == "ValueError"
    assert [value for value in values if value not in {"ValueError", "JobCancelledError"}] == [
        10 * page["n"] for page in sorted(site.noted("ends"), key=lambda page: page["n"])
    ]
    assert max(Counter(page["n"] for page in site.noted("begins")).values()) == 1


def _check_removed(site: Any) -> None:
    """The values had reached the client that died: nothing is run again for them; they may still be there."""
    _, values, counts = site.run(ASK, _group(site))

    assert all(value in {VALUES[number], "ResultMissingError"} for number, value in enumerate(values))
    assert counts == {"NOT_FOUND": len(FAILS)}
    assert Counter(page["n"] for page in site.noted("ends")) == dict.fromkeys(FAILS, 1)


def _check_nothing_is_left(site: Any, wait_until: Callable[..., None]) -> None:
    """No row in work, and after the next sweep nothing that belongs to nobody."""
    paths = Paths(site.home / "run" / "here")
    with closing(Queue(paths.queue)) as queue:
        wait_until(lambda: not queue.rows("state != 'ended'"), "the end of every row")
        now = (
            max(path.stat().st_mtime for path in [site.home, *site.home.rglob("*")])
            + expired_files.MONTH
            + expired_files.HOUR
        )
        expired_files.sweep(paths, queue, site.store / ".tmp", locate.read_page, now=now)
        known = {row.job_id for row in queue.rows()}
    group = _group(site)
    assert {path.name for path in site.store.glob("_groups/*")} == ({group} if group else set())
    assert {path.name for path in paths.jobs.iterdir()} <= known
    assert [*(site.store / ".tmp").iterdir()] == []
    for folder in site.store.iterdir():
        if folder.name not in keys.RESERVED | {".tmp"}:
            assert (folder / "handle.json").exists(), f"{_names(folder)} cannot be found by anybody"
    assert not group or {path.name for path in paths.groups.iterdir()} <= {f"{group}.json"}


def _names(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*")]
