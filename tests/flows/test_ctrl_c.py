"""Ctrl-C in a blocking call: an ordinary KeyboardInterrupt for whoever catches it, and a job that goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

WORK = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="cpu")
    def work(until):
        print("begun", flush=True)
        while not os.path.exists(until):
            time.sleep(0.01)
        return "stayed"
"""


def test_a_program_that_catches_ctrl_c_goes_on_and_finds_the_job_again(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "careful.py",
        f"""
        import kinetic
        from work import work

        try:
            work({str(until)!r})
        except KeyboardInterrupt as error:
            print(type(error) is KeyboardInterrupt, error.__context__ is None or error.__suppress_context__)
            job_id = str(error).split()[0]
        open({str(until)!r}, "w").close()
        print(kinetic.attach(job_id).result(timeout=20))
        """,
    )
    client = project.start("careful.py")
    assert client.stdout.readline() == "begun\n"  # so it waits for its job now

    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=30)

    assert (client.returncode, out.splitlines()) == (0, ["True True", "stayed"]), err
    assert "Traceback" not in err


def test_in_an_interactive_session_the_job_is_named_and_the_next_line_runs(project: Any, tmp_path: Path) -> None:
    until = tmp_path / "until"
    project.write("work.py", WORK)
    project.write(
        "session.py",
        f"""
        import code
        import sys

        lines = iter([
            "from work import work",
            "work({str(until)!r})",
            "print('still here', file=sys.stderr)",
        ])

        def typed(prompt):
            try:
                return next(lines)
            except StopIteration:
                raise EOFError from None

        code.interact(banner="", readfunc=typed, local={{"sys": sys}}, exitmsg="")
        """,
    )
    client = project.start("session.py")
    assert client.stdout.readline() == "begun\n"  # so it waits for its job now

    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=30)
    until.touch()

    assert client.returncode == 0
    (job,) = [name for name in os.listdir(tmp_path / "home" / "store") if name.startswith("cpu-work-")]
    assert f"kinetic jobs logs {job} --follow" in err
    assert f"KeyboardInterrupt: {job} goes on; cancel it with: kinetic jobs cancel {job}\n" in err
    assert "still here" in err
