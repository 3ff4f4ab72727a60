"""Warm pods: the next job begins in the pod of the last one, and keeps every promise of a job with a pod of its own."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cluster import nodes
from cluster.plane import wait_for

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

LEAVING = """
    import os, subprocess, sys, kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m", capture_env_vars=["TOKEN_OF_A_TEST"])
    def leave():
        import numpy
        for path in ("/tmp/left", "/dev/shm/left", os.path.expanduser("~/left")):
            open(path, "w").write(os.environ["TOKEN_OF_A_TEST"])
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        os.environ["LEFT"] = "1"
        return os.getpid()

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def look():
        loaded = sys.modules["kinetic._runner.worker.preloaded_modules"].hidden.module("numpy") is not None
        import numpy
        files = [path for path in ("/tmp/left", "/dev/shm/left", os.path.expanduser("~/left")) if os.path.exists(path)]
        names = [open(f"/proc/{pid}/cmdline").read() for pid in os.listdir("/proc") if pid.isdigit()]
        variables = [name for name in ("LEFT", "TOKEN_OF_A_TEST") if name in os.environ]
        return files, [name for name in names if "sleep" in name], variables, loaded, float(numpy.random.rand())
"""


def pods_of_warm(site: Any) -> list[dict[str, Any]]:
    """List the pods that take many jobs, the oldest first."""
    return [pod for pod in site.pods_of() if pod["metadata"]["labels"]["app"] == "kinetic-warm"]


def is_warm(job: dict[str, Any]) -> bool:
    """Say whether a Job is one that makes a warm pod."""
    return bool(job["metadata"]["labels"]["app"] == "kinetic-warm")


def warm_job(site: Any) -> dict[str, Any]:
    (found,) = filter(is_warm, site.jobs())
    return found


def says(site: Any) -> str:
    """Return what the only warm pod has written."""
    logs = [str(site.log(pod["metadata"]["name"])) for pod in pods_of_warm(site)]
    assert len(logs) == 1, "\n---- another pod:\n".join(logs)
    return logs[0]


def is_idle(site: Any, times: int) -> Any:
    """Say whether the only warm pod has been idle so often."""
    return lambda: says(site).count(" is idle; it ends in ") >= times


def busy_task(clients: Any, shared: Any) -> str:
    """Submit a job whose first attempt keeps its warm pod busy, and return its id."""
    call = f"again.with_options(keep_warm='10m').run_async({str(shared)!r}, '/never')"
    job_id = clients.run(f"from one import again\ntell({call}.job_id)")
    wait_for("its first attempt", (shared / "attempt-0").exists)
    return str(job_id)


@pytest.mark.real_node
def test_the_next_job_runs_in_the_pod_of_the_last_one(clients: Any, site: Any) -> None:
    values, logs = clients.run("""
        from one import add
        add = add.with_options(keep_warm="10m")
        jobs = [add.run_async(1, 2)]
        first = jobs[0].result(cleanup=False)
        jobs.append(add.run_async(3, 4))
        second = jobs[1].result(cleanup=False)
        tell([[first, second], [job.logs() for job in jobs]])
    """)

    assert (values, logs) == ([3, 7], ["adding\n", "adding\n"])
    (pod,) = site.pods_of()
    assert (pod["metadata"]["labels"]["app"], pod["status"]["phase"]) == ("kinetic-warm", "Running")
    assert [job["spec"]["suspend"] for job in site.jobs() if "kinetic/warm" in job["metadata"]["labels"]] == [True] * 2


def test_a_call_of_a_client_that_knows_its_warm_pod_sends_five_requests_that_change_something(
    clients: Any, site: Any
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    site.forget()

    values = clients.run("""
        from one import add
        add = add.with_options(keep_warm="10m")
        tell([add(number, 1) for number in range(5)])
    """)

    assert values == [1, 2, 3, 4, 5]
    writes = [(each.method, each.target.partition("?")[0].rpartition(f"/{site.namespace}/")[2].split("/")[0])
              for each in site.writes()]  # fmt: skip
    assert Counter(writes) == {
        ("POST", "jobs"): 5,  # the task, suspended
        ("POST", "secrets"): 5,
        ("PATCH", "secrets"): 10,  # what the pod reads if it is started again, and the task's owner; while it is told
        ("DELETE", "jobs"): 5,  # while the client continues
    }
    reads = [each for each in site.asked() if each.method == "GET"]
    assert len([each for each in reads if "/portforward?" in each.target]) == 1, "one connection for all of them"
    others = [each for each in reads if "/portforward?" not in each.target and "/log?" not in each.target]
    # Ten of the first call: what may run here, the pods, the watch. A call that ends before the watch has seen its job
    # asks for the job and its pod: on a fast machine each does, on a slow one none.
    assert len(others) <= 10 + 4 * len(values), others
    assert len(site.pods_of()) == 1


def test_of_threads_that_call_at_once_one_gets_the_warm_pod(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))

    values = clients.run("""
        import threading
        from concurrent.futures import ThreadPoolExecutor
        from one import add
        add = add.with_options(keep_warm="10m")
        add(0, 0)
        together = threading.Barrier(3)
        def call(number):
            together.wait()
            return add.run_async(number, 1).result(cleanup=False)
        with ThreadPoolExecutor(3) as pool:
            tell(list(pool.map(call, range(3))))
    """)

    assert values == [1, 2, 3]
    logs = [site.log(pod["metadata"]["name"]).count("the job succeeded") for pod in pods_of_warm(site)]
    assert logs[0] >= 1 + 1 + 1, "each of the three took another machine"
    assert len(site.pods_of()) <= 1 + 2


def test_a_client_reads_of_its_warm_pods_log_what_came_after_its_own_job_was_sent(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    site.forget()
    begun = time.time()

    printed = clients.run("""
        import contextlib, io
        from one import talk
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            talk.with_options(keep_warm="10m")(2, seconds=1)
        tell(printed.getvalue())
    """)

    assert printed == "line 0000\nline 0001\nthe end\n"
    queries = [parse_qs(urlsplit(each.target).query) for each in site.asked() if "/log?" in each.target]
    assert queries
    for query in queries:  # a node's clock may differ from the server's by a minute; the pod has told its own
        since = datetime.fromisoformat(query["sinceTime"][0]).timestamp()
        assert begun - 10 < since <= time.time()


def test_a_save_under_kinetic_dev_runs_in_the_pod_of_the_run_before(clients: Any, site: Any) -> None:
    clients.project.write("saved.py", "def work():\n    return 'first'\n")

    values, code = clients.run("""
        import signal, subprocess
        def save(text):
            with open("saved.py", "w") as file:
                file.write(text)
        words = [sys.executable, "-m", "kinetic", "dev", "-a", "cpu", "saved.py::work"]
        dev = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        values = [dev.stdout.readline()]
        save("import time\\ndef work():\\n    print('begun', flush=True)\\n    time.sleep(1000)\\n")
        values.append(dev.stdout.readline())
        save("def work():\\n    return 'third'\\n")
        values.append(dev.stdout.readline())
        dev.send_signal(signal.SIGINT)
        tell([values, dev.wait()])
    """)

    assert (values, code) == (["'first'\n", "begun\n", "'third'\n"], 130)
    (pod,) = site.pods_of()
    assert (pod["metadata"]["labels"]["app"], pod["status"]["phase"]) == ("kinetic-warm", "Running")


def test_what_a_task_leaves_behind_is_gone_before_the_next_one(
    clients: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_A_TEST", "tr0ub4dor-and-3")
    clients.project.write("leaving.py", LEAVING)

    clients.run("from leaving import leave\ntell(leave())")
    wait_for("an idle pod", is_idle(site, 1))
    first = clients.run("from leaving import look\ntell(look())")
    wait_for("an idle pod", is_idle(site, 2), 60)
    second = clients.run("from leaving import look\nimport time\ntime.sleep(3)\ntell(look())")

    assert (first[:3], second[:3]) == ([[], [], []], [[], [], []])
    assert second[3], "numpy was imported before the fork"
    assert first[4] != second[4]
    (pod,) = site.pods_of()
    assert site.bucket.holds("tr0ub4dor-and-3") == []
    assert "tr0ub4dor-and-3" not in json.dumps([pod, *site.jobs()])


def test_a_cancelled_task_ends_and_its_pod_takes_the_next_one(clients: Any, site: Any, kinetic: Any) -> None:
    job_id = clients.run("from one import talk\ntell(talk.with_options(keep_warm='10m').run_async(3, '/never').job_id)")
    wait_for("its lines", lambda: any("line 0002" in site.log(pod["metadata"]["name"]) for pod in pods_of_warm(site)))

    cancelled = kinetic("jobs", "cancel", job_id)
    wait_for("an idle pod", is_idle(site, 1), 20)
    value = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")

    assert cancelled.code == 0, cancelled.err
    assert value == 3
    assert len(site.pods_of()) == 1


def test_a_task_continues_with_the_next_attempt_after_its_pod_was_deleted(clients: Any, site: Any, shared: Any) -> None:
    job_id = busy_task(clients, shared)
    (pod,) = pods_of_warm(site)

    site.api.delete(f"{site.core}/pods/{pod['metadata']['name']}")
    value = clients.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id)

    assert value == 1
    assert {each["metadata"]["labels"]["app"] for each in site.pods_of()} == {"kinetic-warm"}


def test_whoever_waits_starts_a_task_cold_when_its_warm_pod_was_stopped(
    clients: Any, site: Any, shared: Any, kinetic: Any
) -> None:
    job_id = busy_task(clients, shared)

    listed = json.loads(kinetic("warm", "list", "--json").out)["warm_pods"]
    stopped = kinetic("warm", "stop", listed[0]["name"][:12])
    wait_for("the end of the pod", lambda: not warm_job(site)["status"].get("active"), 60)
    explained = kinetic("jobs", "explain", job_id)
    value = clients.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id)

    assert [(each["state"], each["job_id"]) for each in listed] == [("busy", job_id)]
    assert stopped.code == 0, stopped.err
    assert "in a pod of its own" in explained.out + explained.err
    assert value == 1
    assert site.bucket.names(f"{job_id}/") == []


def test_of_two_clients_that_want_one_pod_each_gets_its_value_and_no_job_begins_twice(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    script = """
        from one import add
        job = add.with_options(keep_warm='10m').run_async(words[0], 'x')
        value = job.result(cleanup=False)
        tell([job.job_id, value])
    """

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda word: clients.run(script, word), ["a", "b"]))

    assert [value for _, value in found] == ["ax", "bx"]
    for job_id, _ in found:
        assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


RACING = """
    import os, random, time
    from one import add
    add, me, folder, found = add.with_options(keep_warm="10m"), words[0], words[1], []
    for number in range(20):
        open(f"{folder}/{number}-{me}", "w").close()
        while not all(os.path.exists(f"{folder}/{number}-{each}") for each in "ab"):
            time.sleep(0.001)
        time.sleep(random.Random(f"{me}-{number}").random() * 0.1)
        job = add.run_async(me, str(number))
        found.append([job.job_id, job.result(cleanup=False)])
    tell(found)
"""


@pytest.mark.nightly
def test_two_clients_that_race_for_warm_pods_twenty_times_run_each_job_once(
    clients: Any, site: Any, shared: Any
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))

    racers = [clients.start(RACING, name, str(shared)) for name in "ab"]
    outs = [racer.communicate(timeout=250) for racer in racers]

    for name, (out, err) in zip("ab", outs, strict=True):
        (found,) = clients.told(out) or [err]
        assert [value for _, value in found] == [f"{name}{number}" for number in range(20)]
        for job_id, _ in found:
            assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


def test_a_warm_pod_can_be_started_before_its_first_job(clients: Any, site: Any, kinetic: Any) -> None:
    started = kinetic("warm", "start", "cpu", "--idle", "10m")
    again = kinetic("warm", "start", "cpu")
    value = clients.run("from one import add\ntell(add(1, 2))")
    listed = json.loads(kinetic("warm", "list", "--json").out)["warm_pods"]
    another = kinetic("warm", "start", "cpu", "--another")

    assert started.code == 0, started.err
    assert "is idle already" in again.err
    assert value == 3
    assert [(each["name"], each["jobs"]) for each in listed] == [(started.out.strip(), 2)]
    names = {f"kinetic-{each.out.strip()}" for each in (started, another)}
    assert {job["metadata"]["name"] for job in site.jobs() if is_warm(job)} == names
    assert len(names) == len(site.pods_of()) == 2


def test_a_job_that_is_cancelled_before_its_warm_pod_has_a_machine_leaves_none_beside_the_next_one(
    clients: Any, site: Any, kinetic: Any
) -> None:
    begin = "from one import add\ntell(add.with_options(accelerator='gpu-l4', keep_warm='10m').run_async(1, 2).job_id)"
    first = clients.run(begin)

    another = kinetic("warm", "start", "gpu-l4")
    kinetic("jobs", "cancel", first)
    clients.run(begin)
    one = [job["metadata"]["name"] for job in site.jobs() if is_warm(job)]
    clients.run(begin)

    assert (another.code, "is starting already" in another.err) == (2, True)
    assert len(one) == 1
    assert len([job for job in site.jobs() if is_warm(job)]) == 2, "one whose job still waits for its machine stays"


def test_a_warm_pod_that_cannot_start_or_is_stopped_before_it_has_a_machine_leaves_nothing(
    clients: Any, site: Any, kinetic: Any
) -> None:
    site.plane.proxy.fail(method="POST", target="/secrets", status=403)
    refused = kinetic("warm", "start", "gpu-l4")
    left = site.jobs()

    interrupted, code = clients.run("""
        import signal, subprocess
        words = [sys.executable, "-m", "kinetic", "warm", "start", "gpu-l4"]
        start = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        for line in start.stderr:
            if "kinetic: waiting: " in line:
                start.send_signal(signal.SIGINT)
                break
        tell([start.stderr.read(), start.wait()])
    """)
    stopped = kinetic("warm", "stop", "--all")
    listed = [kinetic("jobs", "list").out for _ in range(2)]

    assert (refused.code, left) == (1, []), refused.err
    assert (code, "kinetic warm stop" in interrupted, "kinetic jobs cancel" in interrupted) == (130, True, False)
    assert stopped.code == 0, stopped.err
    assert "it is cancelled: its warm pod " in listed[0]
    assert listed[1] == ""
    assert re.search(r"warm-start +CANCELLED", kinetic("jobs", "list", "--all").out)
    assert [job for job in site.jobs() if not is_warm(job)] == []


def test_who_waits_for_the_machine_or_the_quota_of_an_own_idle_warm_pod_is_told_how_to_end_that(
    clients: Any, site: Any, kinetic: Any, add_node: Any
) -> None:
    busy = "all matching nodes are busy"
    add_node(nodes.gpu(f"gpu-{site.namespace}", "nvidia-l4"))
    clients.run("from one import add\ntell(add.with_options(accelerator='gpu-l4', keep_warm='10m')(1, 2))")
    job_id = clients.run("from one import add\ntell(add.with_options(accelerator='gpu-l4', keep_warm=0)"
                         ".run_async(1, 2).job_id)")  # fmt: skip

    def explained() -> str:
        out = str(kinetic("jobs", "explain", job_id).out)
        return out if busy in out else ""

    name = pods_of_warm(site)[0]["metadata"]["labels"]["job-id"]
    assert f"next:  kinetic warm stop {name} " in wait_for("the reason", explained)

    kinetic("jobs", "cancel", job_id)
    site.put("resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}})
    wait_for("the quota to count", lambda: site.api.get(f"{site.core}/resourcequotas/small")["status"].get("used"))
    job_id = clients.run("from one import add\ntell(add.with_options(accelerator='gpu-l4', keep_warm=0)"
                         ".run_async(1, 2).job_id)")  # fmt: skip
    busy = "the quota small of the namespace"
    assert f"next:  kinetic warm stop {name} " in wait_for("the reason", explained)


def test_a_warm_pod_ends_by_itself_when_it_is_idle(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='3s')(1, 2))")

    wait_for("its end", has_ended(site), 60)


def has_ended(site: Any) -> Any:
    """Say whether the only warm pod has ended by itself."""
    return lambda: warm_job(site)["status"].get("succeeded") == 1


def test_a_warm_pod_that_is_idle_at_its_maximum_ends_then(clients: Any, site: Any, kinetic: Any) -> None:
    started = kinetic("warm", "start", "cpu", "--idle", "10m", "--max", "6s")
    wait_for("its end", has_ended(site), 60)
    value = clients.run("from one import add\ntell(add(1, 2))")

    assert "its pod stays for 10 min 00 s after the last job as the warm pod cpu-warm-" in started.err
    assert "ends: at its maximum of 6 s" in says(site)
    assert value == 3


def test_a_job_that_runs_at_the_maximum_of_its_warm_pod_runs_to_its_end_and_is_the_last_one(
    clients: Any, site: Any, shared: Any
) -> None:
    submit = "again.with_options(keep_warm='10m').run_async(words[0], words[0] + '/go').job_id"
    job_id = clients.run(f"from one import again\ntell({submit})", str(shared), KINETIC_WARM_MAX="2s")
    wait_for("its first attempt", (shared / "attempt-0").exists)
    (pod,) = pods_of_warm(site)
    begun = datetime.fromisoformat(pod["status"]["startTime"])
    wait_for("its maximum", lambda: datetime.now(UTC) > begun + timedelta(seconds=6))

    (shared / "go").touch()
    value = clients.run("tell(kinetic.attach(words[0]).result(cleanup=False))", job_id)
    wait_for("its end", has_ended(site), 60)

    assert value == 0
    assert "ends: at its maximum of 2 s" in says(site)
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    assert warm_job(site)["spec"]["activeDeadlineSeconds"] > 7 * 86_400, "the guard would end a long job"
