"""Tables fit the terminal without ever cutting an id, and hold nothing that could move a terminal's cursor."""

from __future__ import annotations

import pytest

from kinetic._cli.job_table import COLUMNS
from kinetic._output import format as format_
from kinetic._output import format as output_format
from kinetic._output.format import Column

JOB_ID = "v5e1-train-model-20261120-143000-1a2b3c4"
ROW = [
    JOB_ID,
    "train_model",
    "FAILED",
    "ValueError: " + "x" * 200,
    "tpu-v5litepod-1",
    "this machine",
    "3m ago",
    "12.0s",
]


@pytest.mark.parametrize("width", [200, 140, 120, 100, 80, 70, 60, len(JOB_ID) + 2 + len("STATUS")])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = format_.table_lines(COLUMNS, [ROW], columns_wide=width)

    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [None, 200, 80, 50, 10, 1])
def test_the_id_and_the_status_are_never_cut(width: int | None) -> None:
    _, line = format_.table_lines(COLUMNS, [ROW], columns_wide=width)

    assert line.startswith(JOB_ID)
    assert "FAILED" in line


def test_the_reason_is_shortened_before_anything_is_left_out() -> None:
    full = format_.table_lines(COLUMNS, [ROW], columns_wide=None)[1]

    line = format_.table_lines(COLUMNS, [ROW], columns_wide=len(full) - 100)[1]

    assert len(line) == len(full) - 100
    assert "…" in line
    assert line.endswith("12.0s")


def test_columns_that_are_left_out_are_named() -> None:
    full = len(format_.table_lines(COLUMNS, [ROW])[1])
    shown = format_.table_lines(COLUMNS, [ROW], columns_wide=70)[0]

    names = format_.left_out(COLUMNS, [ROW], 70)

    assert names
    assert not any(name in shown for name in names.split(", "))
    assert format_.left_out(COLUMNS, [ROW], full) == ""


def test_a_table_is_whole_where_there_is_no_terminal() -> None:
    assert "x" * 200 in format_.table_lines(COLUMNS, [ROW])[1]


@pytest.mark.parametrize("name", ["train", "名前"])
def test_one_long_cell_does_not_push_the_columns_of_other_lines_away(name: str) -> None:
    others = [[f"{JOB_ID[:-1]}{n}", name, "FAILED", reason, *ROW[4:]] for n, reason in enumerate(("", "KeyError: 3"))]

    head, long, *short = format_.table_lines(COLUMNS, [ROW, *others])

    assert "x" * 200 in long
    assert long.endswith("12.0s")
    assert max(map(format_.width, [head, *short])) < 260
    assert len({format_.width(line[: line.index("tpu-")]) for line in short}) == 1


def test_columns_stand_below_each_other_whatever_their_letters_are() -> None:
    lines = format_.table_lines([Column("NAME"), Column("NEXT")], [["名前", "a"], ["plain", "b"]])

    assert [format_.width(line.rpartition(" ")[0]) for line in lines[1:]] == [6, 6]


def test_a_long_text_is_shortened_without_measuring_the_rest_for_each_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured, width = list[int](), format_.width
    monkeypatch.setattr(format_, "width", lambda text: measured.append(len(text)) or width(text))

    short = format_.shortened("ä" * 4000, 40)

    assert short == "ä" * 39 + "…"
    assert sum(measured) < 5000


def test_a_wide_letter_counts_twice_when_a_cell_is_shortened() -> None:
    short = format_.shortened("名前名前名前", 6)

    assert format_.width(short) <= 6
    assert short.endswith("…")


def test_what_would_move_the_cursor_is_written_out() -> None:
    (_, line) = format_.table_lines([Column("REASON")], [["red \x1b[31m\nnext\ttab [/tmp/x]"]])

    assert line == r"red \x1b[31m\nnext\ttab [/tmp/x]"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.04, "0.0s"),
        (59.9, "59.9s"),
        (60, "1m 00s"),
        (3599, "59m 59s"),
        (3600, "1h 00m"),
        (90_061, "25h 01m"),
    ],
)
def test_a_duration_reads_as_people_say_it(seconds: float | None, text: str) -> None:
    assert format_.duration_cell(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0s ago"), (59, "59s ago"), (60, "1m ago"), (7200, "2h ago"), (200_000, "2d ago")]
)
def test_an_age_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert f"{format_.age_text(seconds)} ago" == text


def test_a_size_has_the_number_of_its_noun() -> None:
    assert [format_.size_text(count) for count in (0, 1, 2, 1000)] == ["0 bytes", "1 byte", "2 bytes", "1.0 kB"]


@pytest.mark.parametrize(
    ("value", "fits"),
    [
        ({"a": [1, None, "x"]}, True),
        (float("nan"), False),
        (["\xfc\u2603"], True),
        (["name\udce9"], False),
        ({1, 2}, False),
        (object(), False),
        (b"x", False),
        ({1: "a", 2: {"b": "c"}}, True),
        ([{1: "a", "1": "b"}], False),
    ],
)
def test_only_what_json_can_hold_counts_as_json(value: object, fits: bool) -> None:
    assert output_format.is_json(value) is fits


def test_a_last_column_that_wraps_continues_below_itself_and_is_never_cut() -> None:
    columns = (Column("NAME"), Column("WHY", flexible=True, wraps=True))
    rows = [["a", "one two three four five six seven"], ["b", "short"]]

    lines = format_.table_lines(columns, rows, columns_wide=24)

    assert lines == ["NAME  WHY", "a     one two three four", "      five six seven", "b     short"]
    assert format_.table_lines(columns, rows)[1].endswith("six seven")
