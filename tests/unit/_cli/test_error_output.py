"""Every error has three parts on standard error and the exit code that the manual promises."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import click
import pytest

from kinetic import errors
from kinetic._cli import error_output, pools, shared_options, up

EXIT_CODES = {
    errors.KineticError: 1,
    errors.BackendUnavailableError: 1,
    errors.IntegrityError: 1,
    errors.CredentialsError: 1,
    errors.JobNotFoundError: 1,
    errors.ResultMissingError: 1,
    errors.ResultUnreadableError: 1,
    errors.OptionError: 2,
    errors.OptionTypeError: 2,
    errors.JobTimeoutError: 124,
    errors.JobError: 125,
    errors.JobCancelledError: 125,
    errors.RunnerError: 125,
}


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
def test_each_kind_of_error_has_its_exit_code(kind: type[errors.KineticError], capsys) -> None:
    assert error_output.report(kind("it happened")) == EXIT_CODES[kind]


def test_an_error_is_told_in_three_aligned_parts(capsys) -> None:
    error_output.report(
        errors.KineticError("it happened", why="one\n       two\nthree", next="kinetic jobs list", code="a-code")
    )

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "error: it happened [a-code]",
        "why:   one",
        "       two",
        "       three",
        "next:  kinetic jobs list",
    ]


def test_parts_that_an_error_does_not_have_are_left_out(capsys) -> None:
    error_output.report(errors.KineticError("it happened"))

    assert capsys.readouterr().err == "error: it happened [kinetic]\n"


@pytest.mark.parametrize(("number", "advice"), [(errno.EFBIG, "ulimit -f unlimited"), (errno.EMFILE, "ulimit -n 4096")])
def test_a_limit_of_the_process_is_named_instead_of_a_folder(number: int, advice: str, capsys) -> None:
    error = errors.StoreUnreachableError("the store refused 'a'", next="check the folder's owner and permissions")
    error.__cause__ = OSError(number, "refused")

    error_output.report(error)

    assert capsys.readouterr().err.endswith(f": {advice}\n")


def test_an_error_that_nobody_expected_is_one_line_and_how_to_see_more(capsys) -> None:
    code = error_output.report(ZeroDivisionError("division\nby zero"))

    told = capsys.readouterr().err
    assert code == 1
    assert told.startswith("error: ZeroDivisionError: division by zero [unexpected]\n")
    assert "--debug" in told
    assert "Traceback" not in told


def test_debug_shows_the_traceback_first(capsys) -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError as error:
        error_output.report(error, debug=True)

    assert capsys.readouterr().err.startswith("Traceback (most recent call last)")


def test_the_traceback_of_a_job_stands_before_the_three_parts(capsys) -> None:
    error = errors.JobError("f raised ValueError")
    error.add_note("Remote traceback:\nTraceback (most recent call last):\n  in the job\n")

    error_output.report(error)

    assert capsys.readouterr().err.splitlines() == [
        "Traceback (most recent call last):",
        "  in the job",
        "error: f raised ValueError [job-failed]",
    ]


def test_ctrl_c_needs_no_words(capsys) -> None:
    assert error_output.report(KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_terminal_shows_colours_unless_it_is_told_not_to(no_color, coloured, monkeypatch, capsys) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    error_output.print_parts("it failed", code="x", why="because")
    shown = capsys.readouterr().err

    assert ("\x1b[1;33m" in shown) is coloured
    assert "why:" in shown


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["cost", "cpuu"], "write cpu"),
        (["pool", "add", "cpuu"], "write cpu"),
        (["up", "--accelerator", "cpuu"], "write --accelerator cpu"),
        (
            ["up", "--accelerator", "2xv5e-16"],
            "kinetic up --accelerator tpu-v5litepod-4x4     and with --standard: kinetic pool add tpu-2xv5litepod-4x4",
        ),
        (["doctor", "--accelerator", "cpuu"], "write --accelerator cpu"),
        (["doctor", "--try", "cpuu"], "write --try cpu"),
        (["profile", "create", "team", "--option", "accelerator=cpuu"], "write --option accelerator=cpu"),
        (["profile", "create", "team", "--option", "cpu"], "write --option accelerator=gpu-l4, for example"),
        (["jobs", "list", "--tag"], "kinetic jobs list -h"),
        (["--profle"], "kinetic -h"),
    ],
)
def test_the_next_step_is_written_for_the_command_that_was_called(words, advice, kinetic) -> None:
    told = kinetic(*words)

    assert (told.exit_code, told.stderr.splitlines()[-1]) == (2, f"next:  {advice}")


def test_a_missing_choice_is_one_line(kinetic) -> None:
    told = kinetic("completion")

    assert told.stderr.splitlines() == [
        "error: missing argument 'bash|zsh|fish'. Choose from: bash, zsh, fish [usage]",
        "next:  kinetic completion -h",
    ]


def test_advice_with_a_link_keeps_the_link() -> None:
    command = click.Command("up", params=[click.Option(["--project"]), click.Option(["--zone"])])
    link = "https://console.cloud.google.com/billing/linkedaccount?project=acme&zone=here"

    assert (
        error_output.as_typed(f"open {link}, or write project=acme", command) == f"open {link}, or write --project acme"
    )


def _interrupted() -> None:
    raise KeyboardInterrupt


def test_ctrl_c_says_what_google_continues_with_and_how_to_go_on(capsys, monkeypatch) -> None:
    monkeypatch.setattr(shared_options, "typed_again", lambda: "kinetic up --cluster team")
    setup = SimpleNamespace(project="acme", spec=SimpleNamespace(cluster="team"))

    with pytest.raises(SystemExit) as of_a_pool:
        pools._do(setup, _interrupted, "make the pool")
    pool = capsys.readouterr().err
    with pytest.raises(SystemExit) as of_a_cluster, up._shown(setup, "making the cluster", "makes", "continues"):
        _interrupted()
    cluster = capsys.readouterr().err

    assert (of_a_pool.value.code, of_a_cluster.value.code) == (130, 130)
    assert "Google continues with what it began [interrupted]" in pool
    assert pool.splitlines()[-1] == "next:  run the same command again: it continues"
    assert "it makes team in acme if it has begun with that" in cluster
    assert cluster.splitlines()[-1] == "next:  kinetic up --cluster team continues"
