"""From the words behind `FILE.py::func` to arguments: by position and by name, read by annotation."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Optional

import click
import pytest

from kinetic._cli import function_arguments
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from ipaddress import IPv4Address

UNREAD = object()


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


@dataclass
class Size:
    rows: int


Rate = NewType("Rate", float)


def read(function, *typed: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found = function_arguments.read_arguments(function, typed, "train.py::train")
    return found.args, found.kwargs


def called(function, *typed: str) -> Any:
    """Call the function as it would be called, so that what counts is what arrives."""
    args, kwargs = read(function, *typed)
    return function(*args, **kwargs)


def refusal(function, *typed: str) -> OptionError:
    with pytest.raises(OptionError) as raised:
        read(function, *typed)
    return raised.value


# ---------------------------------------------------------------------------------------------------------- one by one


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (int, "7", 7),
        (int, "-7", -7),
        (int, "1_000", 1000),
        (int, "007", 7),
        (float, "1e-3", 0.001),
        (float, "3", 3.0),
        (complex, "1+2j", 1 + 2j),
        (str, "7", "7"),
        (str, "[1]", "[1]"),
        (str, "None", "None"),
        (bool, "true", True),
        (bool, "No", False),
        (Path, "a/b", Path("a/b")),
        (Decimal, "0.10", Decimal("0.10")),
        (Fraction, "1/3", Fraction(1, 3)),
        (date, "2026-11-27", date(2026, 11, 27)),
        (list[date], "2026-11-27,2026-11-28", [date(2026, 11, 27), date(2026, 11, 28)]),
        (datetime | None, "2026-11-27T10:00:00+00:00", datetime(2026, 11, 27, 10, tzinfo=UTC)),
        (Size, '{"rows": 2}', Size(2)),
        (list[int], "1,2,3", [1, 2, 3]),
        (list[int], "[1, 2]", [1, 2]),
        (list[int], "", []),
        (list[str], "1,b", ["1", "b"]),
        (list[str], "['a,b', 'c']", ["a,b", "c"]),
        (list[str], "[a, b]", ["a", "b"]),
        (list[Path], "a,b", [Path("a"), Path("b")]),
        (list[list[int]], "[[1, 2], [3]]", [[1, 2], [3]]),
        (list, "1,x", [1, "x"]),
        (Sequence[float], "1,2", [1.0, 2.0]),
        (tuple[int, str], "1,2", (1, "2")),
        (tuple[int, ...], "1,2,3", (1, 2, 3)),
        (set[int], "1,1,2", {1, 2}),
        (frozenset[int], "3", frozenset({3})),
        (dict, "{'a': 1}", {"a": 1}),
        (dict[str, bool], '{"a": true}', {"a": True}),
        (int | None, "None", None),
        (int | None, "3", 3),
        (Optional[str], "None", None),  # noqa: UP045 - both spellings are written
        (str | int, "3", 3),
        (str | int, "x", "x"),
        (list[int] | None, "1,2", [1, 2]),
        (Literal["sgd", "adam"], "adam", "adam"),
        (Literal["sgd", "adam"], "ADAM", "adam"),
        (Literal[1, 2], "2", 2),
        (Colour, "RED", Colour.RED),
        (Colour, "blue", Colour.BLUE),
        (Annotated[int, "a note"], "3", 3),
        (Annotated[int, "a note"] | None, "3", 3),
        (Rate, "3", 3.0),
        (Any, "[1, 'a']", [1, "a"]),
        (object, "x", "x"),
        (function_arguments.EMPTY, "1e3", 1000.0),
        (function_arguments.EMPTY, "None", None),
        (function_arguments.EMPTY, "2024-01-01", "2024-01-01"),
        (function_arguments.EMPTY, "a b", "a b"),
        (function_arguments.EMPTY, r"\d", r"\d"),
        ([int], "5", 5),  # no type at all: it says nothing
    ],
    ids=str,
)
def test_a_word_is_converted_to_the_type(kind, word, value) -> None:
    found = function_arguments.Value(kind).convert(word, None, None)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "word", "told"),
    [
        (int, "1.5", "'1.5' is not a valid integer"),
        (float, "abc", "'abc' is not a valid float"),
        (bool, "maybe", "'maybe' is not a valid boolean"),
        (list[int], "1,x", "'x' is not a valid integer"),
        (tuple[int, int], "1", "tuple[int, int] takes 2 values, got 1"),
        (dict, "[1]", "'[1]' is not a valid dict"),
        (Literal["sgd", "adam"], "adm", "'adm' is not one of"),
        (Colour, "GREEN", "'GREEN' is not one of 'RED', 'BLUE'."),
        (int | None, "x", "'x' is not a valid integer"),
        (Decimal, "x", "'x' is not a valid Decimal."),
        (date, "27.11.", "'27.11.' is not a valid date."),
        (Size, "{'cols': 2}", "\"{'cols': 2}\" is not a valid Size ("),
        (int | bool, "x", "'x' is not a valid int or bool"),
        (None, "x", "'x' is not"),
    ],
    ids=str,
)
def test_a_word_that_is_not_of_the_type_is_an_error(kind, word, told) -> None:
    with pytest.raises(click.BadParameter) as raised:
        function_arguments.Value(kind).convert(word, None, None)

    assert raised.value.message.startswith(told)


def test_the_first_type_of_a_union_that_accepts_the_word_is_taken() -> None:
    assert function_arguments.Value(int | Path | bool).convert("x", None, None) == Path("x")


# ----------------------------------------------------------------------------------------------------- the whole line


def train(lr: float, steps: int = 10, *, verbose: bool = False, tags: list[str] | None = None) -> Any:
    """Train a small model.

    And more of it.
    """
    return lr, steps, verbose, tags


@pytest.mark.parametrize(
    ("typed", "result"),
    [
        (["0.1"], (0.1, 10, False, None)),
        (["0.1", "5"], (0.1, 5, False, None)),
        (["--lr", "0.1", "--steps=5"], (0.1, 5, False, None)),
        (["--lr", "0.1", "5"], (0.1, 5, False, None)),
        (["5", "--lr", "0.1"], (0.1, 5, False, None)),
        (["0.1", "--verbose"], (0.1, 10, True, None)),
        (["--verbose", "0.1"], (0.1, 10, True, None)),
        (["0.1", "--verbose", "--no-verbose"], (0.1, 10, False, None)),  # the last one counts, as in all of click
        (["0.1", "--no-verbose"], (0.1, 10, False, None)),
        (["0.1", "--tags", "a,b", "--tags", "c"], (0.1, 10, False, ["a", "b", "c"])),
        (["-1e-3", "-5"], (-0.001, -5, False, None)),
        (["--lr", "-1"], (-1.0, 10, False, None)),
        (["--", "0.1"], (0.1, 10, False, None)),
        (["--lr=0.1", "--steps=1=1"], None),
        (["--lr=0.1", "--verbose=false"], None),
    ],
    ids=str,
)
def test_words_become_arguments(typed, result) -> None:
    if result is None:
        refusal(train, *typed)
    else:
        assert called(train, *typed) == result


def test_names_may_be_written_with_dashes_or_underscores() -> None:
    def function(learning_rate: float):
        return learning_rate

    assert called(function, "--learning-rate", "1") == called(function, "--learning_rate", "1") == 1.0


def test_any_number_of_words_goes_to_a_starred_parameter() -> None:
    def function(first: int, second: int = 2, *rest: float):
        return first, second, rest

    assert called(function, "1") == (1, 2, ())
    assert called(function, "1", "5", "6", "7") == (1, 5, (6.0, 7.0))
    assert called(function, "--second", "5", "1", "6") == (1, 5, (6.0,))


def test_unknown_names_go_to_a_double_starred_parameter() -> None:
    def function(a, **others):
        return a, others

    assert called(function, "1", "--b", "2", "--c=x", "--d") == (1, {"b": 2, "c": "x", "d": True})


def test_positional_only_parameters_may_be_named_all_the_same() -> None:
    def function(a, b=2, /, c=3):
        return a, b, c

    assert called(function, "--a", "1", "--c", "5") == (1, 2, 5)


def test_behind_two_dashes_everything_is_a_value() -> None:
    def function(*texts: str):
        return texts

    assert called(function, "a", "--", "--b", "-c") == ("a", "--b", "-c")


def test_a_default_that_is_a_bool_makes_a_flag() -> None:
    def function(fast=False):
        return fast

    assert called(function, "--fast") is True
    assert called(function, "--no-fast") is False


def test_a_parameter_may_be_called_no_something() -> None:
    def function(no_cache: bool = False, cache: bool = True):
        return no_cache, cache

    assert called(function, "--no-cache") == (True, True)  # its own name comes first


@pytest.mark.parametrize("value", ["false", "True"])
def test_a_flag_takes_no_value_and_gives_none_to_another_parameter(value) -> None:
    def train(steps, name="x", *, fast=True):
        return steps, name, fast

    error = refusal(train, "1", "--fast", value)

    assert error.what == f"Option '--fast' does not take a value, got '{value}': write --fast or --no-fast."
    assert called(train, "--fast", "1", value) == (1, {"True": True}.get(value, value), True)
    assert called(train, "1", "--name", "false", "--no-fast") == (1, "false", False)


def test_keywords_of_any_name_leave_the_flags_and_types_of_the_parameters_alone() -> None:
    def function(keep: bool = True, max_steps: str = "1", **others):
        return keep, max_steps, others

    assert called(function, "--no-keep", "--max_steps", "3", "--seed", "4") == (False, "3", {"seed": 4})


def test_an_annotation_that_exists_for_type_checkers_only_hides_no_other() -> None:
    def function(amount: IPv4Address, count: int):
        return amount, count

    assert called(function, "1.5", "2") == (1.5, 2)


def test_a_function_without_a_signature_takes_anything() -> None:
    args, kwargs = read(max, "1", "2")

    assert (args, kwargs) == ((1, 2), {})


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ([], "Missing argument: lr"),
        (["abc"], "Invalid value for '--lr': 'abc' is not a valid float."),
        (["1", "2", "3"], "Got unexpected extra argument: 3"),
        (["1", "--speed", "2"], "No such option '--speed'."),
        (["1", "-v"], "No such option '-v'."),
        (["--lr"], "Option '--lr' requires an argument."),
        (["1", "--no-steps"], "No such option '--no-steps'."),
    ],
    ids=str,
)
def test_words_that_do_not_match_the_signature_are_an_error_in_one_sentence(typed, told) -> None:
    assert refusal(train, *typed).what.startswith(told)


def test_a_misspelled_name_is_answered_with_the_nearest() -> None:
    assert "--steps" in refusal(train, "1", "--step", "3").what


def test_every_missing_argument_is_named() -> None:
    def function(a, b, *, c):
        return None

    assert refusal(function).what == "Missing arguments: a, b, c"


def test_a_refusal_carries_the_usage_and_the_way_to_it() -> None:
    refused = refusal(train, "abc")

    assert refused.code == "arguments"
    assert refused.next == "kinetic run train.py::train --help"
    assert refused.__notes__ == [function_arguments.usage(train, "train.py::train")]


# -------------------------------------------------------------------------------------------------------------- usage


def test_the_usage_shows_signature_types_defaults_and_the_first_line_of_the_docstring() -> None:
    usage = function_arguments.usage(train, "train.py::train")

    assert usage.startswith("Usage: kinetic run [OPTIONS] train.py::train [ARGUMENTS]\n")
    assert "  train(lr: float, steps: int = 10, *, verbose: bool = False, tags: list[str] |" in usage
    assert "  Train a small model.\n" in usage
    assert "And more of it" not in usage
    for option, kind, default in (("--lr", "float", "[required]"), ("--steps", "int", "[default: 10]")):
        assert [option, kind, *default.split()] in [line.split() for line in usage.splitlines()]
    assert "--verbose / --no-verbose" in usage


def test_the_usage_names_choices_and_shows_defaults_as_they_are_typed() -> None:
    def function(
        colour: Colour = Colour.BLUE, way: Literal["up", "down"] = "up", to: Path = Path("here"), *more: int, **others
    ):
        return None

    told = function_arguments.usage(function, "f.py::function")

    options = [line.split() for line in told.splitlines()]
    assert ["--colour", "RED|BLUE", "[default:", "BLUE]"] in options
    assert ["--to", "Path", "[default:", "'here']"] in options
    assert "up|down" in told
    assert "More values go to *more." in told


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (("--help",), True),
        (("-h",), True),
        (("--", "--help"), True),
        (("1", "--help"), True),
        (("1", "--", "--help"), False),
        ((), False),
        (("help",), False),
    ],
)
def test_help_is_asked_for_before_or_behind_the_first_two_dashes(typed, wanted) -> None:
    assert function_arguments.wants_help(typed) is wanted
