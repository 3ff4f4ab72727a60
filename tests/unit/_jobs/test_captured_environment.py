"""Which variables a job receives, and what is said about them."""

from __future__ import annotations

import pytest

from kinetic._jobs import job_options
from kinetic.errors import OptionError, OptionTypeError

ENVIRON = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "HF_HOME": "/models",
    "HF_TOKEN": "hf_abcdef",
    "WANDB_API_KEY": "wandb_123456",
    "A": "1",
    "AB": "2",
    "B": "3",
    "A*": "odd",
}


def captured(*patterns: str) -> dict[str, str]:
    return job_options.capture(job_options.check(patterns), ENVIRON).values


def notes(*patterns: str) -> tuple[str, ...]:
    return job_options.capture(job_options.check(patterns), ENVIRON).notes


def test_an_exact_name_is_captured_with_its_value() -> None:
    assert captured("A", "B") == {"A": "1", "B": "3"}


def test_a_name_that_is_not_set_is_passed_over_in_silence() -> None:
    assert captured("NOT_THERE") == {}
    assert notes("NOT_THERE") == ()


def test_an_empty_value_is_a_value() -> None:
    assert job_options.capture(("EMPTY",), {"EMPTY": ""}).values == {"EMPTY": ""}


def test_a_name_with_a_star_at_its_end_matches_beginnings() -> None:
    assert captured("A*") == {"A": "1", "AB": "2", "A*": "odd"}
    assert captured("HF_*") == {"HF_HOME": "/models", "HF_TOKEN": "hf_abcdef"}


def test_a_star_alone_is_everything_that_does_not_describe_this_machine() -> None:
    assert set(captured("*")) == set(ENVIRON) - {"PATH", "HOME"}


def test_a_star_elsewhere_is_refused_rather_than_silently_matching_nothing() -> None:
    with pytest.raises(OptionError, match="matches no variable"):
        job_options.check(["A*B"])


def test_an_exact_name_takes_what_a_star_would_not() -> None:
    assert captured("PATH") == {"PATH": "/bin"}
    assert captured("HOME*") == {}
    assert captured("HOME*", "HOME") == {"HOME": "/home/me"}


def test_eighteen_names_describe_a_machine() -> None:
    assert sorted(job_options.PROCESS_NAMES) == sorted(
        "PATH HOME PYTHONPATH LD_LIBRARY_PATH LD_PRELOAD VIRTUAL_ENV CONDA_PREFIX CONDA_DEFAULT_ENV SHELL TMPDIR TEMP "
        "TMP HOSTNAME USER LOGNAME SSH_AUTH_SOCK KUBERNETES_SERVICE_HOST KERAS_BACKEND".split()
    )


@pytest.mark.parametrize("name", sorted(job_options.PROCESS_NAMES))
def test_a_star_never_takes_a_name_that_describes_a_machine(name: str) -> None:
    environ = {name: "value", "OTHER": "1"}

    assert job_options.capture(("*",), environ).values == {"OTHER": "1"}
    assert job_options.capture((f"{name[:2]}*",), environ).values.get(name) is None
    assert job_options.capture((name,), environ).values == {name: "value"}


def test_what_was_captured_is_said_by_name_and_number() -> None:
    assert notes("B", "A") == ("captured 2 environment variable(s): A, B",)


def test_what_a_star_left_out_is_said() -> None:
    assert notes("H*", "P*")[0] == "not captured, because they describe this machine: HOME, PATH"


def test_what_looks_like_a_secret_is_named_even_when_it_was_asked_for() -> None:
    told = notes("HF_TOKEN", "WANDB_API_KEY", "A")

    assert told[-1] == "secrets by their names, given to the job and not stored anywhere else: HF_TOKEN, WANDB_API_KEY"


@pytest.mark.parametrize(
    "name", ["my_token", "A_SECRET_B", "SSHKEYS", "DbPassword", "AWS_CREDENTIALS", "A_CONNECTION_STRING"]
)
def test_six_words_make_a_name_a_secret(name: str) -> None:
    assert any("secrets by their names" in note for note in job_options.capture((name,), {name: "x"}).notes)


def test_no_value_is_ever_said() -> None:
    told = " ".join(notes("*", "PATH"))

    assert not [value for value in ENVIRON.values() if len(value) > 3 and value in told]


def test_the_repr_of_what_was_captured_is_no_place_for_a_value_either() -> None:
    found = job_options.capture(("HF_TOKEN",), ENVIRON)

    assert "hf_abcdef" not in repr(found)


def test_capturing_happens_when_it_is_asked_and_not_before() -> None:
    environ = {"A": "1"}
    patterns = job_options.check(["A"])
    environ["A"] = "2"

    assert job_options.capture(patterns, environ).values == {"A": "2"}


def test_nothing_is_captured_by_default() -> None:
    assert job_options.check(None) == ()
    assert job_options.capture((), ENVIRON) == ({}, (), "")


def test_a_bare_string_is_refused() -> None:
    with pytest.raises(OptionTypeError, match="letter by letter"):
        job_options.check("HF_TOKEN")
