"""Lines on standard error: what is said once a day."""

from __future__ import annotations

from pathlib import Path

from kinetic._output import terminal as output

DAY = 24 * 3600.0


def test_a_notice_is_due_once_a_day_in_each_folder(tmp_path: Path) -> None:
    due = [
        output.is_notice_due("news", tmp_path / "notices", now=now)
        for now in (1e9, 1e9 + DAY - 1, 1e9 + DAY, 1e9 + DAY + 1)
    ]

    assert due == [True, False, True, False]
    assert output.is_notice_due("other news", tmp_path / "notices", now=1e9)
    assert output.is_notice_due("news", tmp_path / "elsewhere", now=1e9)


def test_a_notice_whose_mark_cannot_be_written_is_due_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert output.is_notice_due("news", tmp_path / "file" / "notices", now=1e9)
    assert output.is_notice_due("news", tmp_path / "file" / "notices", now=1e9)


def test_a_mark_from_the_future_does_not_silence_a_notice(tmp_path: Path) -> None:
    output.is_notice_due("news", tmp_path, now=2e9)

    assert output.is_notice_due("news", tmp_path, now=1e9)
