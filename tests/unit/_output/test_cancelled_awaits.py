"""Ctrl-C in a program with an event loop names the jobs that were awaited then, and no others."""

from __future__ import annotations

import asyncio

import pytest

from kinetic._output import tracebacks


@pytest.mark.parametrize(("seconds", "named"), [(0.5, True), (3600.0, False)])
def test_an_await_that_was_over_long_before_ctrl_c_is_not_named(
    seconds: float, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, told = [100.0], list[str]()
    monkeypatch.setattr(tracebacks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(tracebacks, "_awaits", [])
    monkeypatch.setattr(tracebacks, "install", lambda: None)
    tracebacks.note_cancelled_await(lambda: told.append("job"), asyncio.CancelledError())
    error = KeyboardInterrupt()
    error.__context__ = asyncio.CancelledError()

    now[0] += seconds
    text = tracebacks._text_of(error, None)

    assert (text == "", told) == (named, ["job"] if named else [])
