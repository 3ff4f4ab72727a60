"""Looking into a job that runs on a cluster, with the commands that people type: stacks, a shell, ports, by host."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.conftest import environment

from kinetic import attach
from kinetic._inspect import port_forward

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


SERVES = """
    import http.server
    import os
    import sys
    import threading
    import time
    import kinetic

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(os.environ["KINETIC_JOB_ID"].encode())

    @kinetic.run(accelerator="cpu")
    def serve(until):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port, flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)

    if __name__ == "__main__":
        print(serve.run_async(sys.argv[1]).job_id)
"""


@pytest.mark.real_node
@pytest.mark.usefixtures("machine")
def test_a_port_of_this_machine_leads_to_one_of_the_pod_until_the_job_ends(
    project: Any, kinetic: Any, shared: Any
) -> None:
    project.write("program.py", SERVES)
    job_id = project.run("program.py", str(shared / "go")).stdout.strip()
    wait_for("its server", lambda: kinetic("jobs", "logs", job_id).out.strip().isdecimal(), 60)
    port, local = kinetic("jobs", "logs", job_id).out.strip(), port_forward.free_port()

    with subprocess.Popen(
        [sys.executable, "-m", "kinetic", "jobs", "forward", job_id, f"{local}:{port}"],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        pages = [_read(local) for _ in range(2)]
        with attach(job_id).forward(int(port)) as other:
            pages.append(_read(other))
        (shared / "go").touch()
        err = process.stderr.read()

    assert f"127.0.0.1:{local} leads to port {port} of {job_id}, until that ends" in line
    assert pages == [job_id] * 3
    assert (process.returncode, f"{job_id} has ended: SUCCEEDED" in err) == (0, True), err


def _read(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as answer:
        return str(answer.read().decode())
