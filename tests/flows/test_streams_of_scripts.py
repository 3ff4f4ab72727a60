"""What a job prints is shown by its script, whatever the streams of that are, and its value arrives in any case."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_a_script_may_replace_its_streams_by_whatever_print_can_use(project) -> None:
    out = project.out(
        """
        import pathlib, sys
        import kinetic

        class Tee:
            def __init__(self, stream):
                self.stream = stream

            def write(self, text):
                self.stream.write(text)

        @kinetic.run(accelerator="cpu")
        def train(name, instead):
            print("training", name, instead)
            return name, instead

        found = []
        for name in ("stdout", "stderr"):
            kept = getattr(sys, name)
            for instead in (Tee(kept), None):
                words = name, type(instead).__name__
                setattr(sys, name, instead)
                found += [words == train(*words), [words] == train.run_async_map([words], input_mode="args").results()]
                setattr(sys, name, kept)
        print(found)
        """
    )

    shown = [f"training {words}" in out for words in ("stdout Tee", "stdout NoneType", "stderr Tee", "stderr NoneType")]
    assert shown == [True, False, True, True]
    assert out.endswith(f"{[True] * 8}\n")


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", "\\xfcber \\u2603\n"), ("latin-1", "\xfcber \\u2603\n")])
def test_what_a_job_prints_is_shown_in_any_locale_and_its_value_arrives(
    project, monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    project.write(
        "script.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train():
            print("über \N{SNOWMAN}")
            return 7

        print(train())
        """,
    )
    monkeypatch.setenv("PYTHONIOENCODING", encoding)

    done = subprocess.run([sys.executable, "script.py"], cwd=project.root, capture_output=True, check=False, timeout=60)

    assert (done.returncode, done.stdout.decode(encoding)) == (0, f"{shown}7\n"), done.stderr


def test_a_value_arrives_where_its_jobs_log_cannot_be_written(project) -> None:
    project.write(
        "full.py",
        """
        import os, sys
        import kinetic

        @kinetic.run(accelerator="cpu")
        def train(number):
            print("training", number)
            return number

        kept = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 1)
        first = train(1)
        sys.stdout = open(os.devnull, "w")
        sys.stdout.close()
        os.write(kept, f"{first} {train(2)}".encode())
        """,
    )

    done = project.run("full.py")

    assert done.stdout == "1 2", done.stderr
    assert "is not shown any more: standard output cannot be written to\nwhy:   [Errno 9]" in done.stderr
    assert "why:   I/O operation on closed file" in done.stderr
    assert done.stderr.count("next:  kinetic jobs logs cpu-train-") == 2
