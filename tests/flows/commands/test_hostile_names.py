"""What comes from a store, a job or a file name steers no terminal, whichever command prints it: look at the bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import terminal

from kinetic._config import home as config_home
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle
from kinetic._stores.files import FileStore
from kinetic._wire import documents, keys

NASTY = "x\nPWNED\r\x1b]0;title\x07\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202eevil\u2066\x7f"
# Everything that a terminal would obey, in UTF-8; line feeds and tabs are ours.
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

SCRIPT = """
import sys
import kinetic

NASTY = {nasty!r}


@kinetic.run(accelerator="cpu")
def fails(word):
    print("printed", NASTY)
    open(kinetic.output_dir() + "/" + NASTY.replace("/", "_"), "w").write("x")
    raise ValueError("failed " + NASTY)


@kinetic.run(accelerator="cpu")
def returns(word):
    return NASTY


if sys.argv[1] == "fail":
    job = fails.run_async(NASTY)
    job.wait()
    print(job.job_id)
elif sys.argv[1] == "batch":
    batch = fails.run_async_map([NASTY, "b"], name=NASTY, tags={{"k" + NASTY: NASTY}})
    batch.wait()
    print(batch.group_id)
else:
    job = returns.run_async(sys.argv[1])
    job.wait()
    print(job.job_id)
"""


@pytest.fixture
def submit(project: Any) -> Callable[[str], str]:
    """Return a function that lets a script with nasty words in all places submit something, and returns its id."""
    project.write("nasty.py", SCRIPT.format(nasty=NASTY))

    def run(what: str) -> str:
        done = project.run("nasty.py", what)
        assert done.returncode == 0, done.stderr
        check(done.stderr)
        return str(done.stdout.splitlines()[-1])

    return run


def check(text: str) -> None:
    """Fail where a text steers a terminal, or where a name in it has begun a line of its own."""
    found = STEERS.search(text)
    assert found is None, f"{found[0]!r} in {text!r}"
    assert not [line for line in text.splitlines() if line.startswith("PWNED")], text


def test_names_and_reasons_of_a_failed_job_steer_no_terminal(submit: Any, kinetic: Any) -> None:
    job_id = submit("fail")

    for words in (
        ("jobs", "list"),
        ("jobs", "list", "--all"),
        ("jobs", "show", job_id),
        ("jobs", "status", job_id),
        ("jobs", "explain", job_id),
        ("jobs", "wait", job_id),
        ("jobs", "result", job_id),
        ("outputs", "ls", job_id),
        ("outputs", "get", job_id),
        ("disk",),
        ("jobs", "stacks", job_id),
        ("jobs", "cancel", job_id),
        ("jobs", "list", "--json"),
        ("jobs", "show", job_id, "--json"),
        ("outputs", "ls", job_id, "--json"),
        ("jobs", "cleanup", job_id),
        ("jobs", "list", "--all"),
    ):
        told = kinetic(*words)
        check(told.out if words[1:2] != ("result",) else told.out.replace("PWNED", ""))
        check(told.err.replace("\nPWNED", "\n") if words[1:2] == ("result",) else told.err)  # the job's own traceback


def test_the_name_the_tags_and_the_inputs_of_a_batch_steer_no_terminal(submit: Any, kinetic: Any) -> None:
    group_id = submit("batch")

    for words in (
        ("batch", "list"),
        ("batch", "status", group_id),
        ("batch", "status", group_id, "--all"),
        ("batch", "status", group_id, "--watch"),
        ("batch", "results", group_id),
        ("jobs", "list"),
        ("batch", "resume", group_id),
        ("batch", "cancel", group_id),
        ("batch", "cleanup", group_id),
    ):
        told = kinetic(*words)
        check(told.out)
        check(told.err)


def test_a_value_is_printed_as_it_is_into_a_pipe_and_tamed_on_a_terminal(
    submit: Any, kinetic: Any, command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    job_id = submit("text")

    piped = kinetic("jobs", "result", job_id)
    seen = terminal.run([*command, "jobs", "result", job_id], cwd=tmp_path, env=environment)

    assert piped.out == f"{NASTY}\n"
    text = seen.raw.decode().replace("\r\n", "\n").replace("x\nPWNED\r", "x")  # what the value itself says
    check(text)
    assert "evil" in text


def test_the_log_of_a_job_keeps_its_colours_on_a_terminal_and_sets_nothing_there(
    project: Any, kinetic: Any, command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    project.write(
        "prints.py",
        r"""
        import sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def prints():
            for number in range(3):
                print(f"\r\x1b[K\x1b[31mstep {number}\x1b[0m", end="")
            print("\n\x1b]0;title\x07a\x1b]52;c;cHduZWQ=\x1b\\b\x1b[2J\x1b[5;5Hc\x1b[99Bd\x9b2Je\u202ef\x1b[?1049hg\x1bch")
            print("\x1b]0;never ended")
            print("last")

        if __name__ == "__main__":
            prints()
        """,
    )

    ways = [["prints.py"], ["-m", "kinetic", "run", "prints.py::prints"], ["-m", "kinetic", "jobs", "logs", "@last"]]
    seen = [project.watch(*way) for way in ways]
    piped = kinetic("jobs", "logs", "@last", "--raw").out

    for one in seen:
        text = one.raw.decode()
        assert "\x1b[31mstep 2\x1b[0m" in text, text
        assert re.search(r"a\s?b\s?c\s?d\\x9b2Je\\u202efgh", text), text
        assert "step 2\n" in one.screen + "\n"
        assert "0;never ended" in one.screen
        assert "last" in one.screen
        rest = re.sub(r"\x1b\[[0-9;]*m|\x1b\[K|\r", "", text)
        assert STEERS.search(rest.replace("\x1b[J", "")) is None, rest
    assert "\x1b]52;c;cHduZWQ=\x1b\\b\x1b[2J\x1b[5;5Hc\x1b[99Bd" in piped  # byte for byte


def test_a_sealed_record_with_nasty_words_steers_no_terminal(home: Path, kinetic: Any, submit: Any) -> None:
    job_id = submit("text")
    store = FileStore(home / "store")
    handle = JobHandle.from_dict({**_page(store, job_id), "func_name": NASTY, "display_name": NASTY, "host": NASTY})
    handle.image_uri = handle.namespace = handle.zone = handle.created_at = NASTY
    key_id, key = config_home.own_key(home)
    handle.key_id = key_id
    page = locate.seal_record(
        handle.to_dict(), {"machine": NASTY, "python": NASTY}, documents.job_key(key, job_id, store.url)
    )
    store.delete(keys.record(job_id))
    store.put(keys.record(job_id), page)

    for words in (("list", "--all"), ("show", job_id), ("status", job_id), ("explain", job_id), ("logs", job_id)):
        told = kinetic("jobs", *words)
        check(told.out)
        check(told.err)


def _page(store: FileStore, job_id: str) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(store.get(keys.record(job_id)))
    return dict(found.get("handle", found))


def test_names_of_folders_in_a_store_and_in_a_project_steer_no_terminal(
    home: Path, project: Any, kinetic: Any, submit: Any
) -> None:
    submit("text")
    nasty = NASTY.replace("/", "_")
    for name in (f"cpu-{nasty}", nasty):
        (home / "store" / name).mkdir()
        (home / "store" / name / "handle.json").write_text("{}")
    os.symlink("/nowhere", project.root / f"link{nasty}")
    (project.root / f"{nasty}.pem").write_text("secret")
    (project.root / nasty).mkdir()
    (project.root / nasty / "file").write_text("x")
    (project.root / ".env").write_text("x")

    for words in (("jobs", "list"), ("jobs", "list", "--all"), ("batch", "list"), ("disk",), ("disk", "--clean")):
        told = kinetic(*words)
        check(told.out)
        check(told.err)
    packed = kinetic("package", "--dry-run", str(project.root / "nasty.py"))
    ran = project.run("nasty.py", "text")
    typed = kinetic("jobs", "show", NASTY)
    missing = kinetic("run", f"{NASTY}.py::{NASTY}")

    for text in (packed.out, packed.err, ran.stderr, typed.err, missing.err):
        check(text)
