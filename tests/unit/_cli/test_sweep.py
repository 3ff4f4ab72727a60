"""What `--sweep` means: values, ranges, products, and where they go in a command."""

from __future__ import annotations

import pytest

from kinetic._cli import sweep
from kinetic.errors import OptionError

WORDS = ("python", "train.py", "rate={lr}", "{other}")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("x=1e-2,1e-3", ["1e-2", "1e-3"]),
        ("x=0..3", ["0", "1", "2", "3"]),
        ("x=3..1", ["3", "2", "1"]),
        ("x=-2..2..2", ["-2", "0", "2"]),
        ("x=0..1,7", ["0", "1", "7"]),
        ("x=a=b", ["a=b"]),
        ('x=["a, b", 1, true]', ["a, b", "1", "true"]),
        ("x=1..", ["1.."]),
    ],
)
def test_values_are_read(text, values):
    assert [each["x"] for each in sweep.read(("true",), [text]).inputs] == values


def test_a_placeholder_is_replaced_and_other_names_are_appended():
    found = sweep.read(WORDS, ["lr=1,2", "seed=0..1"])

    assert found.words == (*WORDS, "--seed", "{seed}")
    assert list(found.commands()) == [
        ["python", "train.py", f"rate={lr}", "{other}", "--seed", seed] for lr in "12" for seed in "01"
    ]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (["x"], "not NAME=VALUES"),
        (["=1"], "not NAME=VALUES"),
        (["a b=1"], "not NAME=VALUES"),
        (["x="], "a value is empty"),
        (["x=1,,2"], "a value is empty"),
        (["x=1", "x=2"], "x is swept twice"),
        (["x=0..5..0"], "the step is 0"),
        (["x=["], "not a JSON list"),
        (["x=[]"], "no values"),
        (["x=0..99999999"], "100,000,000 values"),
        (["x=0..999", "y=0..999"], "1000 x 1000"),
    ],
)
def test_what_cannot_be_swept_is_an_error_that_says_why(written, why):
    with pytest.raises(OptionError) as caught:
        sweep.read(("true",), written)

    assert why in f"{caught.value.what} {caught.value.why}"
    assert caught.value.next
