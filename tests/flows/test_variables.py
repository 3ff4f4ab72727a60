"""Variables of the environment that do not do what their user thinks: one warning, before anything is packed."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest


def test_variables_that_do_nothing_are_warned_of_once_and_before_packing(project: Any, monkeypatch: Any) -> None:
    project.write(
        "theirs.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["NOT_SET_HERE", "NOR_THIS_*", "KINETIC_MINE"])
        def work(what):
            return 1
        """,
    )
    monkeypatch.setenv("KINETIC_ACELERATOR_", "cpu")
    monkeypatch.setenv("KINETIC_MINE", "captured on purpose")
    monkeypatch.setenv("KINETIC_DATA_WRITABLE", "true")

    done = project.run("-c", "import theirs\ntheirs.work(1)\ntheirs.work(open('/dev/null'))\n")

    warnings = [line for line in done.stderr.splitlines() if "warning:" in line]
    assert len(warnings) == 3, done.stderr
    assert warnings[0].startswith("kinetic: warning: kinetic does not read KINETIC_ACELERATOR_")
    assert warnings[1].endswith("KINETIC_DATA_WRITABLE='true' has no effect: only KINETIC_DATA_WRITABLE=1 turns it on")
    assert (
        warnings[2] == "kinetic: warning: capture_env_vars: NOT_SET_HERE is not set here, so the job will not have it"
    )


def test_the_warning_comes_although_the_call_cannot_be_packed(project: Any) -> None:
    project.write(
        "theirs.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu", capture_env_vars=["NOT_SET_HERE"])
        def work(what):
            return 1
        """,
    )

    done = project.run("-c", "import theirs\ntheirs.work(__import__('threading').Lock())\n")

    assert "NOT_SET_HERE is not set here" in done.stderr
    assert "ArgumentNotPicklableError" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no such names")
def test_bytes_that_are_not_utf8_reach_a_job_as_its_variables_and_words(project: Any, monkeypatch: Any) -> None:
    odd = os.fsdecode(b"/opt/x\xe9")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{odd}")
    project.write("theirs.py", "import kinetic, os\n\n@kinetic.run()\ndef path():\n    return os.environ['PATH']\n")

    found = project.out("import theirs; print(ascii(theirs.path()))")
    code = "import kinetic, sys; kinetic.run_command(['test', sys.argv[1], '=', '/opt/x\\udce9']).result()"
    ran = project.run("-c", code, odd)
    monkeypatch.setenv("PYTHONPATH", odd)
    batch = project.out("import theirs; print(ascii(theirs.path.run_async_map([(), ()]).results()))")
    monkeypatch.delenv("PYTHONPATH")
    refused = project.run("-c", "import theirs; theirs.path.with_options(name='x\\udce9')()")

    assert found.strip().endswith("/opt/x\\udce9'")
    assert ran.returncode == 0, ran.stderr
    assert batch.count("/opt/x\\udce9'") == 2
    assert "OptionError: the record cannot be written [page]\nwhy:   not valid UTF-8: " in refused.stderr
