"""What is seen of an error: one short traceback of the user's frames, wherever tracebacks are shown."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

HEADER = "Traceback (most recent call last)"

THEIRS = """
    import kinetic

    def inner(number):
        raise ValueError(f"no such thing: {number}")

    @kinetic.run(accelerator="cpu")
    def fail(number):
        print("begun")
        inner(number)

    def calls_it():
        return fail(3)
"""


@pytest.fixture
def theirs(project: Any) -> Any:
    project.write("theirs.py", THEIRS)
    return project


def frames(text: str) -> list[str]:
    """Return the functions that a traceback names, in its order."""
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith('  File "')]


def is_ours_seen(text: str) -> bool:
    return "kinetic/_" in text or "cloudpickle" in text


def test_a_failed_call_ends_with_one_traceback_that_leads_from_the_script_into_the_job(theirs: Any) -> None:
    theirs.write("script.py", "from theirs import calls_it\ncalls_it()\n")

    done = theirs.run("script.py")

    assert done.returncode == 1
    assert done.stderr.count(HEADER) == 1
    assert frames(done.stderr) == ["<module>", "calls_it", "fail", "inner"]
    assert not is_ours_seen(done.stderr)
    assert done.stderr.count(f'  File "{theirs.root}/theirs.py", line ') == 3  # and not the job's copy of it
    assert frames(done.stdout) == ["fail", "inner"]
    assert done.stdout.count(f'  File "{theirs.root}/theirs.py", line ') == 2
    (follow,) = [line for line in done.stderr.splitlines() if "--follow" in line]
    job_id = follow.split()[-2]
    assert follow == f"kinetic: follow the job with: kinetic jobs logs {job_id} --follow"
    assert done.stderr.endswith(f"ValueError: no such thing: 3\nkinetic: the job's log: kinetic jobs logs {job_id}\n")
    assert done.stderr.count(f"kinetic jobs logs {job_id}") == 2


@pytest.mark.parametrize("way", ["terminal", "pipe"])
def test_where_log_and_error_go_to_one_place_the_traceback_stands_there_once(way: str, theirs: Any) -> None:
    script = "from theirs import calls_it\ncalls_it()\n"

    if way == "terminal":
        text = theirs.watch("-c", script, columns=400).screen
    else:
        text = theirs.execute("sh", "-c", f"{sys.executable} -c '{script}' 2>&1").stdout

    assert text.count(HEADER) == 1, text
    assert frames(text) == ["fail", "inner"]
    assert text.splitlines()[-1].startswith("kinetic: the job's log: kinetic jobs logs cpu-fail-")


def without_source(text: str) -> str:
    """Return a traceback without the lines of a script that was given with -c, which Python shows since 3.13."""
    return re.sub(r'(File "<string>", .*\n)(?:(?:  \| )? {4}.*\n)+', r"\1", text)


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ('kinetic.run(accelerator="gpu-l5")', "OptionError: unknown GPU"),
        ('theirs.fail.with_options(accelerator="gpu-l5")', "OptionError: unknown GPU"),
        ("theirs.fail(1, 2)", "CallableError: "),
        ("theirs.fail.run_async(__import__('threading').Lock())", "ArgumentNotPicklableError: argument 0"),
        ("theirs.fail.run_async_map([])", "OptionError: "),
        ('kinetic.attach("cpu-nothing")', "JobNotFoundError: "),
        ('kinetic.Data("wrods.py")', "DataMissingError: "),
        ("kinetic.Data(123)", "OptionTypeError: "),
    ],
)
def test_a_mistake_shows_its_three_parts_and_nothing_else(
    mistake: str, said: str, theirs: Any, monkeypatch: Any
) -> None:
    script = f"import kinetic, theirs\n{mistake}\n"

    monkeypatch.setenv("KINETIC_DEBUG", "false")
    done = theirs.run("-c", script)
    monkeypatch.setenv("KINETIC_DEBUG", "1")
    debugged = theirs.run("-c", script)

    told = [line for line in without_source(done.stderr).splitlines() if not line.startswith("kinetic: ")]
    if "JobNotFound" in said:
        assert frames(done.stderr) == ["<module>"]
        told = told[2:]
    assert told[0].startswith(f"kinetic.errors.{said}"), done.stderr
    assert {line[:7] for line in told[1:]} <= {"why:   ", "next:  ", "       "}
    assert not is_ours_seen(done.stderr)
    assert is_ours_seen(debugged.stderr)
    assert (done.returncode, debugged.returncode) == (1, 1)


def test_who_catches_the_exception_gets_it_untouched_and_every_tool_shows_the_users_frames(theirs: Any) -> None:
    out = theirs.out(
        """
        import io, logging, pdb, sys, traceback
        import theirs

        try:
            theirs.calls_it()
        except ValueError as error:
            caught = error
            logging.basicConfig(stream=sys.stdout)
            logging.exception("logged")
        assert type(caught) is ValueError and caught.args == ("no such thing: 3",) and caught.__cause__ is None
        assert [frame.name for frame in traceback.extract_tb(caught.__traceback__)] == ["<module>", "calls_it"]
        assert len(caught.__notes__) == 1
        debugger = pdb.Pdb(stdin=io.StringIO("where\\np caught.args\\nq\\n"), stdout=sys.stdout)
        debugger.reset()
        debugger.interaction(None, caught.__traceback__)
        """
    )

    assert "ERROR:root:logged\nTraceback" in out
    assert "return fail(3)" in out
    assert not is_ours_seen(out)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hook_of_the_users_own_is_called_with_the_exception(when: str, theirs: Any) -> None:
    hook = "import sys\nsys.excepthook = lambda kind, error, at: print('theirs:', kind.__name__, error, at.tb_lineno)\n"
    call = "import theirs\ntheirs.fail(3)\n"
    first = "import theirs\ntry:\n    theirs.fail(1)\nexcept ValueError:\n    pass\n"

    done = theirs.run("-c", hook + call if when == "before" else first + hook + call)

    assert "theirs: ValueError no such thing: 3" in done.stdout
    assert HEADER not in done.stderr


def test_an_error_that_is_none_of_ours_is_shown_as_python_shows_it(theirs: Any) -> None:
    script = "import theirs\ntry:\n    theirs.fail(1)\nexcept ValueError:\n    pass\n{}['missing']\n"

    done = theirs.run("-c", script)

    assert without_source(done.stderr).endswith(
        "Traceback (most recent call last):\n  File \"<string>\", line 6, in <module>\nKeyError: 'missing'\n"
    )


def test_a_call_of_ours_that_does_not_fit_shows_the_users_line_only(theirs: Any) -> None:
    theirs.write("script.py", "from theirs import fail\nfail.run_async_map([1], retry=2)\n")

    done = theirs.run("script.py")

    assert frames(done.stderr) == ["<module>"]
    assert done.stderr.endswith("got an unexpected keyword argument 'retry'. Did you mean 'retries'?\n")


def test_pytest_shows_the_users_frames_and_what_an_assert_in_a_job_says(theirs: Any) -> None:
    theirs.write(
        "test_theirs.py",
        "import kinetic, theirs\n\n"
        "def test_one():\n    theirs.calls_it()\n\n"
        "def test_two():\n    kinetic.attach('cpu-nothing')\n\n"
        "def test_three():\n"
        "    @kinetic.run(accelerator='cpu')\n"
        "    def checks(number):\n        (lambda: number)()\n        assert number == 3, 'not three'\n\n"
        "    checks(4)\n",
    )

    done = theirs.execute(
        sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-q", "test_theirs.py"
    )

    assert "3 failed" in done.stdout, done.stdout + done.stderr
    assert "theirs.py:13: ValueError" in done.stdout, done.stdout
    assert "AssertionError: not three" in done.stdout  # and no NameError of what pytest made of the statement
    assert not is_ours_seen(done.stdout)


def test_a_notebook_shows_the_users_frames_and_of_mistakes_and_interrupts_a_message(theirs: Any) -> None:
    done = theirs.run(
        "-c",
        """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance(colors="nocolor")
shell.run_cell("import kinetic, theirs")
assert isinstance(shell.run_cell("theirs.calls_it()").error_in_exec, ValueError)
print("second cell")
shell.run_cell("kinetic.run(accelerator='gpu-l5')")
shell.run_cell("@kinetic.run(accelerator='cpu')\\ndef lists():\\n    !ls\\nlists()")
print("third cell")
shell.run_cell(
    "import asyncio\\n"
    "asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)\\n"  # as "interrupt kernel" does
    "await theirs.fail.run_async(3)"
)
""",
    )

    first, _, more = done.stdout.partition("second cell\n")
    second, _, third = more.partition("third cell\n")
    assert done.returncode == 0, done.stderr
    assert "return fail(3)" in first
    assert "kinetic jobs logs cpu-fail-" in first
    assert not is_ours_seen(done.stdout), done.stdout
    assert [line[:7] for line in second.splitlines()] == ["kinetic", "why:   ", "next:  "] * 2
    assert "the function lists uses a magic or a command of the notebook" in second
    assert third.strip() == ""  # Ctrl-C, and no error
    assert [line.split()[1] for line in done.stderr.splitlines()[-3:]] == ["detached:", "follow:", "cancel:"]


def test_the_lines_of_what_was_typed_into_the_session_of_a_script_are_shown(project: Any) -> None:
    out = project.out("""
        import linecache
        import kinetic

        typed = "def typed(number):\\n    return 1 / number\\n"  # a cell of marimo, or after `python -i`
        linecache.cache["<cell>"] = (len(typed), None, typed.splitlines(keepends=True), "<cell>")
        exec(compile(typed, "<cell>", "exec"))
        print(kinetic.run(accelerator="cpu")(typed).run_async(0).exception().__notes__[0])
    """)

    assert '  File "<cell>", line 2, in typed\n    return 1 / number\n' in out


def test_the_frames_of_the_users_own_code_below_ours_stay(theirs: Any) -> None:
    done = theirs.run(
        "-c",
        "import theirs\ndef inputs():\n    yield 1\n    raise KeyError('gone')\ntheirs.fail.run_async_map(inputs())\n",
    )

    assert frames(done.stderr)[-1] == "inputs"
    assert not is_ours_seen(done.stderr)
    assert done.stderr.endswith("KeyError: 'gone'\n")


def test_a_failed_batch_shows_one_traceback(theirs: Any) -> None:
    done = theirs.run("-c", "import theirs\ntheirs.fail.run_async_map([1, 2]).results()\n")

    assert done.stderr.count(HEADER) == 1, done.stderr
    assert "BatchError: batch grp-" in done.stderr
    assert not is_ours_seen(done.stderr)


KINDS = """
    import kinetic

    @kinetic.run(accelerator="cpu")
    def fail(kind):
        if kind == "group":
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ExceptionGroup("many", [error])
        if kind == "stop":
            raise StopIteration(4)
        if kind == "quotes":
            raise RuntimeError("a worker said:\\nTraceback (most recent call last):\\nValueError: theirs")
        if kind == "generator":
            return (each for each in ())
        raise Unpicklable("mine")

    class Unpicklable(ValueError):
        def __reduce__(self):
            raise TypeError("it is bound to this process")
"""


def test_an_error_of_ours_that_a_function_raised_is_shown_once(project: Any) -> None:
    project.write("asks.py", "import kinetic\n@kinetic.run('cpu')\ndef ask():\n    kinetic.attach('cpu-nothing')\n")

    told = project.run("-c", "import asks\nasks.ask()\n").stderr

    assert told.count("no job cpu-nothing was found") == told.count(HEADER) == 1, told
    assert frames(told) == ["<module>", "ask"]


def test_the_frames_of_the_script_go_into_the_traceback_of_the_error_itself(project: Any) -> None:
    project.write("kinds.py", KINDS)
    group = without_source(project.run("-c", "import kinds\nkinds.fail('group')\n").stderr)
    stop = project.run("-c", "import kinds\nkinds.fail('stop')\n").stderr
    quotes = project.run("-c", "import kinds\nkinds.fail('quotes')\n").stderr

    margin = f'  + Exception Group {HEADER}:\n  |   File "<string>", line 2, in <module>\n  |   File "'
    assert margin in group, group
    assert group.count("<string>") == 1, group
    assert frames(stop) == ["<module>", "fail"], stop
    assert not is_ours_seen(stop)
    assert quotes.index(f'{HEADER}:\n  File "<string>"') < quotes.index("RuntimeError: a worker said"), quotes


@pytest.mark.parametrize("kind", ["unpicklable", "generator"])
@pytest.mark.parametrize("way", ["terminal", "pipe"])
def test_what_could_not_be_sent_is_explained_below_one_traceback(kind: str, way: str, project: Any) -> None:
    project.write("kinds.py", KINDS)
    script = f"import kinds\nkinds.fail({kind!r})\n"

    text = project.watch("-c", script, columns=400).screen if way == "terminal" else project.run("-c", script).stderr

    assert text.count(HEADER) == 1, text
    assert "kinetic/_" not in text, text
    expected = "fail returned a builtins.generator" if kind == "generator" else "fail raised kinds.Unpicklable: mine"
    assert text.count(expected) == 1, text
    assert text.index(HEADER) < text.index(expected) < text.index("kinetic: the job's log: "), text


def test_a_mistake_in_a_file_names_the_line_that_made_it(project: Any) -> None:
    project.write("models.py", "import kinetic\n\n@kinetic.run(accelerator='gpu-l5')\ndef train():\n    pass\n")
    project.write("script.py", "import models\n")

    done = project.run("script.py")

    assert done.stderr.splitlines()[-1] == f"where: {project.root / 'models.py'}:3", done.stderr
