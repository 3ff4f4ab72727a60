"""Every page is read through one typed reader: each field has its type and range, and none is forgotten."""

from __future__ import annotations

import json

import pytest

from kinetic._batches import control
from kinetic._jobs.handle import JobHandle
from kinetic._wire import documents, fields, inspection, order, outcomes, records, task
from kinetic.errors import IntegrityError

PAGES = [
    (outcomes.Outcome, outcomes._READERS),
    (order.Order, order._READERS),
    (order.Child, order._CHILD),
    (order.DataRef, order._REFERENCE_READERS),
    (outcomes.AttemptNote, outcomes._NOTE_READERS),
    (inspection.DebugPage, inspection._PAGE_READERS),
    (records.Group, records._GROUP_READERS),
    (records.Settings, records._SETTINGS),
    (task.Task, task.READERS),
    (task.PodSettings, task.POD_READERS),
    (control.LeasePage, control._LEASE_READERS),
    (records.ControlEntry, records._ENTRY),
    (order.Predecessor, order._PREDECESSOR),
]


@pytest.mark.parametrize(("page", "readers"), PAGES, ids=lambda each: getattr(each, "__name__", ""))
def test_every_field_of_a_page_has_its_reader(page, readers) -> None:
    assert set(readers) == set(page.__dataclass_fields__)


def test_every_field_of_a_handle_has_its_reader() -> None:
    assert set(records.HANDLE) == {name for name, each in JobHandle.__dataclass_fields__.items() if each.init}


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (fields.text(3), ["", "abc"], ["abcd", 1, None, b"a"]),
        (fields.integer(0, 9), [0, 9], [-1, 10, True, 1.0, "1", 10**5000]),
        (fields.number(0, 9), [0, 9, 0.5], [-0.1, 10, True, float("nan"), float("inf"), "1", 10**400]),
        (fields.boolean, [True, False], [0, 1, "true", None]),
        (fields.one_of("a", "b"), ["a", "b"], ["c", "", None, ["a"]]),
        (fields.sha256, ["0" * 64], ["", "0" * 63, "G" * 64, "0" * 64 + "\n"]),
        (fields.list_of(fields.boolean, 2), [[], [True]], [[True] * 3, [1], "ab", {}]),
        (fields.map_of(fields.boolean, 1), [{}, {"a": True}], [{"a": 1}, {"a": True, "b": True}, []]),
        (fields.optional(fields.boolean), [None, True], [0]),
    ],
)
def test_a_reader_takes_what_its_field_can_have_and_refuses_the_rest(reader, good, bad) -> None:
    for value in good:
        assert reader(value) in (value, tuple(value) if isinstance(value, list) else value)
    for value in bad:
        with pytest.raises(fields.FieldError) as refused:
            reader(value)
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize("missing", ["job_id", "order_sha256", "store_url", "umask", "environment"])
def test_a_task_with_a_missing_or_null_field_is_damaged_and_says_which(missing) -> None:
    whole = json.loads(task.Task("cpu-f-1", "0" * 64, "file:///s", "k", 0o22, None, {}).to_bytes())
    for odd in ({**whole, missing: None}, {name: value for name, value in whole.items() if name != missing}):
        with pytest.raises(IntegrityError, match=missing):
            task.Task.from_page(json.dumps(odd))


@pytest.mark.parametrize("levels", [documents.MOST_DEEP, documents.MOST_DEEP + 1])
def test_the_depth_of_a_page_is_told_without_parsing_it(levels) -> None:
    text = "[" * levels + '"]]]]{{{{\\""' + "]" * levels
    if levels > documents.MOST_DEEP:
        with pytest.raises(IntegrityError, match="damaged"):
            documents.parse(text, "it")
    else:
        assert documents.parse(text, "it")


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("30", 30), ("10m", 600), (" 1.5 h ", 5400), ("1h30m", 5400), ("1d 2h 5s", 93605), ("1w2d", 777600)],
)
def test_a_span_of_time_has_one_unit_or_several_from_the_largest_to_the_smallest(written: str, seconds: float) -> None:
    assert fields.seconds_of(written) == (seconds, written != "30")


@pytest.mark.parametrize(
    "written", ["", "h", "1h30", "90 5", "30m1h", "1h1h", "1hh", "-5m", "1e3", "1h,30m", ".5h", "1" * 40 + "!"]
)
def test_what_is_no_span_of_time_is_not_guessed(written: str) -> None:
    assert fields.seconds_of(written) is None
