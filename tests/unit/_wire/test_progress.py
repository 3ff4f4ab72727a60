"""Reports of progress: how often they are written, that the last one is, and what cannot be reported."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kinetic
from kinetic._wire import progress as wire
from kinetic._wire.progress import Progress
from kinetic.errors import OptionError


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "log-0-0.progress"
    monkeypatch.setenv(wire.VARIABLE, str(path))
    monkeypatch.setattr(wire, "_writer", wire._Writer())
    return path


def test_the_last_of_many_reports_arrives_and_few_are_written(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (written.append(str(names[1])), replace(*names)))
    began = time.monotonic()
    for step in range(20_000):
        kinetic.progress(step + 1, 20_000, loss=1 / (step + 1))
    seconds = time.monotonic() - began
    wire.flush()

    found = wire.read(reported)

    assert found is not None
    assert (found.done, found.total, found.metrics) == (20_000, 20_000, {"loss": 1 / 20_000})
    assert len(written) <= 3 + seconds / 0.5
    assert os.listdir(reported.parent) == [reported.name]


def test_a_report_that_waits_is_written_soon_without_another_one(reported: Path) -> None:
    kinetic.progress(1, 3)
    kinetic.progress(2, 3)
    limit = time.monotonic() + 10
    while (found := wire.read(reported)) is None or found.done != 2:
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_outside_of_a_job_nothing_is_written_and_nothing_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(wire.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)

    kinetic.progress(1, 2, loss=0.5)

    assert os.listdir(tmp_path) == []
    assert capsys.readouterr() == ("", "")


def test_a_program_that_is_started_by_a_job_reports_too_up_to_its_last_report(reported: Path) -> None:
    code = "import kinetic\nfor step in range(50): kinetic.progress(step + 1, 50)"

    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )

    found = wire.read(reported)
    assert found is not None
    assert found.done == 50


def _report(step: int) -> None:
    kinetic.progress(step, 9)
    kinetic.progress(step + 1, 9)
    wire.flush()


def test_a_forked_child_reports_although_its_parent_was_writing(reported: Path) -> None:
    kinetic.progress(1, 9)
    kinetic.progress(2, 9)  # a thread waits with it

    child = multiprocessing.get_context("fork").Process(target=_report, args=(7,))
    child.start()
    child.join(10)

    assert child.exitcode == 0
    found = wire.read(reported)
    assert found is not None
    assert found.done in {8, 2}


@pytest.mark.parametrize(
    ("arguments", "metrics", "said"),
    [
        ((math.nan,), {}, "done must be a finite number, got nan"),
        ((math.inf,), {}, "done must be a finite number"),
        (("5",), {}, "done is not a number: '5'"),
        ((1, "many"), {}, "total is not a number"),
        ((1, math.inf), {}, "total must be a finite number"),
        ((1, -1), {}, "total must be 0 or more, got -1"),
        ((1, 2), {"loss": "low"}, "loss is not a number: 'low'"),
        ((1, 2), {f"m{n}": 1.0 for n in range(17)}, "17 metrics cannot be reported"),
        ((1, 2), {"x" * 65: 1.0}, "1 metrics cannot be reported"),
    ],
)
def test_what_is_not_a_number_is_refused_everywhere(
    arguments: tuple[object, ...], metrics: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(wire.VARIABLE, raising=False)

    with pytest.raises(OptionError, match=said) as raised:
        kinetic.progress(*arguments, **metrics)  # type: ignore[arg-type]

    assert raised.value.why
    assert raised.value.next


def test_a_loss_that_is_not_finite_ends_no_training(reported: Path) -> None:
    import numpy as np

    kinetic.progress(np.int64(3), np.float32(10), loss=math.nan, rate=np.float32(0.5))

    found = wire.read(reported)
    assert found is not None
    assert (found.done, found.total, found.metrics) == (3, 10, {"loss": None, "rate": 0.5})
    json.dumps(found.to_json(), allow_nan=False)


def test_a_count_that_begins_anew_has_its_own_rate() -> None:
    first = Progress(80, 100, {}, at=110.0, began=100.0, began_with=0)
    again = Progress(10, 100, {}, at=120.0, began=115.0, began_with=5)

    assert first.seconds_left(110.0) == pytest.approx(2.5)
    assert again.seconds_left(120.0) == pytest.approx(90.0)
    assert again.seconds_left(130.0) == pytest.approx(80.0)
    assert Progress(10, None).seconds_left() is None
    assert Progress(100, 100, {}, 2.0, 1.0, 0).seconds_left() is None


def test_reports_of_a_new_count_begin_anew(reported: Path) -> None:
    for done in (1, 50, 99, 1, 2):
        kinetic.progress(done, 100)
    wire.flush()

    found = wire.read(reported)
    assert found is not None
    assert (found.done, found.began_with) == (2, 1)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"done": "x"}', b'{"done": 1e999}', b"x" * 100_000, b"[" * 8000, b"\xff"]
)
def test_a_file_that_holds_something_else_is_no_report(reported: Path, data: bytes) -> None:
    reported.write_bytes(data)

    assert wire.read(reported) is None


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = os.open(tmp_path / "pipe", os.O_RDWR)

    assert wire.read(tmp_path / "pipe") is None
    os.close(writing)


def test_the_time_of_a_suspend_does_not_count_for_what_is_left(reported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinetic.progress(0, 100)
    awake, woken = time.monotonic() + 60, time.time() + 60 + 8 * 3600
    monkeypatch.setattr(time, "monotonic", lambda: awake)
    monkeypatch.setattr(time, "time", lambda: woken)
    kinetic.progress(50, 100)

    found = wire.read(reported)

    assert found is not None
    assert found.at == woken
    assert 59 < (found.seconds_left() or 0) < 61


def test_a_time_that_no_clock_has_is_not_told() -> None:
    assert Progress(1e-200, 1e300, {}, 10.0, 1.0).seconds_left(11.0) is None


def test_a_link_in_the_place_of_the_file_is_not_followed(reported: Path, tmp_path: Path) -> None:
    target = tmp_path / "theirs"
    target.write_text(json.dumps(Progress(1.0).to_json()))
    reported.symlink_to(target)

    assert wire.read(reported) is None
