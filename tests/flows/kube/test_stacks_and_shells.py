"""Looking into a job that runs on a cluster, with the commands that people type: stacks and a shell, host by host."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from cluster.plane import wait_for

SLICE = """
    import os
    import sys
    import time
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def stay(until):
        waits_as_leader(until) if os.environ["KINETIC_HOST_INDEX"] == "0" else waits_as_another(until)
        return "done"

    def waits_as_leader(until):
        print("started", flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)

    def waits_as_another(until):
        waits_as_leader(until)

    if __name__ == "__main__":
        print(stay.run_async(sys.argv[1]).job_id)
"""


@pytest.mark.real_node
@pytest.mark.timeout(180)
def test_every_host_of_a_slice_answers_and_a_shell_opens_on_any(
    project: Any, kinetic: Any, machines: Any, shared: Any
) -> None:
    machines()
    project.write("program.py", SLICE)
    job_id = project.run("program.py", str(shared / "go")).stdout.strip()
    for host in ("0", "1"):
        wait_for(f"host {host}", lambda: "started" in kinetic("jobs", "logs", job_id, "--host", host).out, 60)  # noqa: B023

    everywhere = kinetic("jobs", "stacks", job_id)
    page = json.loads(kinetic("jobs", "stacks", job_id, "--host", "1", "--json").out)
    shells = [kinetic("jobs", "shell", job_id, "--host", host, "--", *ASK) for host in ("0", "1")]
    nobody = kinetic("jobs", "shell", job_id, "--host", "2", "--", "true")
    nothing = kinetic("jobs", "shell", job_id, "--", "no-such-program")
    (shared / "go").touch()
    value = kinetic("jobs", "result", job_id)

    assert everywhere.code == 0, everywhere.err
    first, second = re.split(r"^host \d\n", everywhere.out, flags=re.MULTILINE)[1:]
    assert everywhere.out.startswith("host 0\n")
    assert ("in waits_as_another" in first, "in waits_as_leader" in first) == (False, True)
    assert "in waits_as_another" in second
    assert [(each["host"], "in waits_as_another" in each["text"]) for each in page["hosts"]] == [(1, True)]
    assert [each.code for each in shells] == [7, 7], [each.err for each in shells]
    assert [each.out.splitlines()[:2] for each in shells] == [
        [f"0 of 2 {job_id}", "there"],
        [f"1 of 2 {job_id}", "there"],
    ]
    assert (nobody.code, f"{job_id} has no host 2" in nobody.err) == (2, True)
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err.startswith("error: there is no no-such-program in the job's image [no-command]\n")
    assert value.out == "done\n", value.err


ASK = (
    "sh",
    "-c",
    "echo $KINETIC_HOST_INDEX of $KINETIC_HOST_COUNT $KINETIC_JOB_ID; test -f program.py && echo there; exit 7",
)
