"""A job on a cluster from its call to its result, as its user sees it; and nothing of it stays that nobody wants."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for
from flows.programs import COMPILES

pytestmark = pytest.mark.usefixtures("machine")


def submit(clients: Any, call: str) -> str:
    """Submit a job from a process of its own; return the id."""
    return str(clients.run(f"from one import *\ntell({call}.job_id)"))


# -------------------------------------------------------------------------------------------------------------- values


@pytest.mark.real_node
def test_a_call_returns_the_value_and_prints_the_log(clients: Any) -> None:
    clients.project.write("call.py", "from one import add\nprint(add(1, 2))\n")

    done = clients.project.run("call.py")

    assert (done.returncode, done.stdout) == (0, "adding\n3\n"), done.stderr


def test_the_first_line_says_in_which_cluster_and_namespace_jobs_run(clients: Any, namespace: str) -> None:
    clients.project.write("call.py", "from one import add\nprint(add.run_async(1, 2).job_id)\n")

    done = clients.project.run("call.py")

    assert done.stderr.splitlines()[0] == f"kinetic: jobs run in the namespace {namespace} of the context test"


def test_a_backend_and_a_context_are_enough_without_a_project(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINETIC_PROJECT")
    monkeypatch.setenv("KINETIC_BACKEND", "gke")

    found = clients.run("from one import *\njob = add.run_async(1, 2)\ntell([job.backend, job.result()])")

    assert found == ["gke", 3]


def test_an_exception_arrives_with_its_remote_traceback(clients: Any) -> None:
    name, words, notes = clients.run("""
        from one import fail
        try:
            fail.run_async(7).result()
        except ValueError as error:
            tell([type(error).__name__, str(error), error.__notes__])
    """)

    assert (name, words) == ("ValueError", "no 7")
    assert "Remote traceback" in notes[0]
    assert 'raise ValueError(f"no {number}")' in notes[0]


def test_a_value_of_five_megabytes_comes_home(clients: Any) -> None:
    size = 5 << 20

    found = clients.run(f"""
        import hashlib
        from one import large
        value = large({size})
        tell([len(value), value == bytes(range(256)) * ({size} // 256)])
    """)

    assert found == [size, True]


# ------------------------------------------------------------------------------------------------------ what goes along


@pytest.mark.real_node
def test_captured_variables_reach_the_job_and_neither_the_bucket_nor_the_pod(
    clients: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = ["tr0ub4dor-and-3", "with $(HOME) and ünïcödé\nin two lines"]
    monkeypatch.setenv("TOKEN_OF_A_TEST", values[0])
    monkeypatch.setenv("MORE_OF_A_TEST", values[1])

    job_id, digests = clients.run("""
        from one import secret
        job = secret.run_async()
        tell([job.job_id, job.result(cleanup=False)])
    """)

    assert digests == [hashlib.sha256(value.encode()).hexdigest() for value in values]
    assert site.bucket.holds(values[0]) == []
    for found in (site.jobs(job_id), site.pods_of(job_id), site.api.get(f"{site.core}/configmaps")["items"]):
        assert found
        assert values[0] not in json.dumps(found)


def test_a_custom_image_is_what_the_pod_runs(clients: Any, site: Any, agent: Any) -> None:
    python = agent.registry.pull("python:3")
    agent.registry.add("registry.test/mine:7", python._replace(environment={"BAKED_IN": "yes"}))

    job_id, value = clients.run("""
        import os, kinetic
        @kinetic.run(accelerator="cpu", container_image="registry.test/mine:7")
        def baked():
            return os.environ["BAKED_IN"]
        job = baked.run_async()
        tell([job.job_id, job.result(cleanup=False)])
    """)

    assert value == "yes"
    (pod,) = site.pods_of(job_id)
    assert [each["image"] for each in pod["spec"]["containers"]] == ["registry.test/mine:7"]


def test_a_gpu_job_runs_on_a_machine_with_that_gpu(clients: Any, site: Any, add_node: Any, namespace: str) -> None:
    with_gpu = add_node(nodes.gpu(f"gpu-{namespace}"))

    job_id = clients.run("""
        import kinetic
        job = kinetic.run(accelerator="gpu-l4")(lambda: 1).run_async()
        job.result(cleanup=False)
        tell(job.job_id)
    """)

    (pod,) = site.pods_of(job_id)
    assert pod["spec"]["nodeName"] == with_gpu
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"


# ------------------------------------------------------------------------------------------------------------ its life


def test_the_status_goes_from_pending_over_running_to_succeeded(clients: Any) -> None:
    found = clients.run(
        """
        from one import talk
        seen = []
        def tell_(status):
            seen.append(status.value)
            if status.value == "RUNNING":
                open(go, "w").close()
        job = talk.run_async(1, go)
        first = job.status().value
        job.result(on_status_change=tell_, cleanup=False)
        tell([first, seen, job.status().value])
        """
    )

    first, seen, last = found
    assert first in {"PENDING", "RUNNING"}
    assert seen in (["PENDING", "RUNNING", "SUCCEEDED"], ["RUNNING", "SUCCEEDED"])
    assert last == "SUCCEEDED"


def test_a_result_removes_the_job_its_secret_and_what_was_stored_and_keeps_the_log(clients: Any, site: Any) -> None:
    job_id, status, log = clients.run("""
        from one import add
        job = add.run_async(1, 2)
        job.result()
        tell([job.job_id, job.status().value, job.logs()])
    """)
    attached = clients.run("tell(kinetic.attach(words[0]).logs())", job_id)

    assert status == "NOT_FOUND"
    assert (log, attached) == ("adding\n", "adding\n")
    assert site.left(job_id) == []
    assert site.bucket.names(f"{job_id}/") == []
    assert site.bucket.names("history/") == [f"history/{job_id}.json", f"history/~logs/{job_id}.0.0.gz"]
    site.gone(job_id)


def test_a_result_that_is_kept_can_be_collected_again_with_its_log(clients: Any, site: Any) -> None:
    job_id = submit(clients, "add.run_async(1, 2)")

    kept = clients.run("tell(kinetic.attach(words[0]).result(cleanup=False))", job_id)
    again = clients.run(
        "job = kinetic.attach(words[0])\ntell([job.status().value, job.logs(), job.result(cleanup=False)])", job_id
    )

    assert (kept, again) == (3, ["SUCCEEDED", "adding\n", 3])
    assert any(name.startswith("jobs/") for name in site.left(job_id))


def test_a_failure_keeps_everything_until_it_is_cleaned_up(clients: Any, site: Any) -> None:
    job_id = submit(clients, "fail.run_async(7)")

    found = clients.run(
        """
        job = kinetic.attach(words[0])
        error = job.exception()
        tell([str(error), job.status().value, "about to fail 7" in job.logs()])
        """,
        job_id,
    )
    kept = site.left(job_id)
    clients.run("kinetic.attach(words[0]).cleanup()\ntell(0)", job_id)

    assert found == ["no 7", "FAILED", True]
    assert any(name.startswith("jobs/") for name in kept)
    assert site.left(job_id) == []
    assert site.bucket.names(f"{job_id}/") == []


def test_a_verdict_in_the_store_is_enough_when_the_job_was_deleted(clients: Any, site: Any) -> None:
    job_id = submit(clients, "add.run_async(1, 2)")
    wait_for("the verdict", lambda: f"{job_id}/result.pkl" in site.bucket.names(f"{job_id}/"))
    (name,) = [job["metadata"]["name"] for job in site.jobs(job_id)]
    site.api.delete(f"{site.batch}/jobs/{name}", propagationPolicy="Background")
    site.gone(job_id)

    found = clients.run("job = kinetic.attach(words[0])\ntell([job.status().value, job.logs(), job.result()])", job_id)

    assert found == ["SUCCEEDED", "adding\n", 3]


@pytest.mark.real_node
def test_a_deadline_ends_the_job(clients: Any) -> None:
    found = clients.run("""
        from one import talk
        job = talk.with_options(deadline=1).run_async(1, "/never")
        error = job.exception()
        tell([error.code, job.status().value, "in stay" in job.logs()])
    """)

    assert found == ["deadline", "FAILED", True]


def test_jobs_are_listed_also_those_that_still_wait(clients: Any) -> None:
    done, waits = clients.run("""
        from one import add, talk
        done, waits = add.run_async(1, 2), talk.run_async(1, go)
        done.wait()
        while not waits.running():
            time.sleep(0.05)
        tell([done.job_id, waits.job_id])
    """)

    found = clients.run("tell({job.job_id: job.status().value for job in kinetic.list_jobs()})")
    by_namespace = clients.run(
        "tell([len(kinetic.list_jobs(namespace=name)) for name in (kinetic.list_jobs()[0].namespace, 'other')])"
    )
    clients.go.touch()

    assert found == {done: "SUCCEEDED", waits: "RUNNING"}
    assert by_namespace == [2, 0]


# -------------------------------------------------------------------------------------------------------------- the log


@pytest.mark.real_node
def test_a_log_is_followed_as_it_grows_and_is_the_same_afterwards(clients: Any) -> None:
    job_id = submit(clients, f"talk.run_async(300, {str(clients.go)!r})")
    follower = clients.start("kinetic.attach(words[0]).logs(follow=True)", job_id)
    clients.run(
        "job = kinetic.attach(words[0])\nwhile 'line 0299' not in job.tail(1): time.sleep(0.05)\ntell(0)", job_id
    )
    assert follower.poll() is None

    clients.go.touch()
    followed, told = follower.communicate(timeout=60)

    assert follower.returncode == 0, told
    assert followed.splitlines() == [*(f"line {number:04}" for number in range(300)), "the end"]
    assert clients.run("tell(kinetic.attach(words[0]).logs())", job_id) == followed


@pytest.mark.real_node
def test_a_log_of_two_megabytes_has_every_byte_while_it_grows_and_afterwards(clients: Any) -> None:
    lines = 200_000

    found, followed = clients.both(
        f"""
        import contextlib, hashlib, io
        from one import talk
        job = talk.run_async({lines})
        seen = io.StringIO()
        with contextlib.redirect_stdout(seen):
            job.logs(follow=True)
        whole = "".join(f"line {{number:04}}\\n" for number in range({lines})) + "the end\\n"
        tell([seen.getvalue() == whole, job.logs() == whole, job.tail(2)])
        """
    )

    assert found == [True, True, f"line {lines - 1}\nthe end"], followed


# ------------------------------------------------------------------------------------------------------ other processes


def test_another_machine_with_the_key_attaches_and_collects(
    clients: Any, kinetic: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = submit(clients, f"talk.run_async(3, {str(clients.go)!r})")
    exported = kinetic("key", "export").out
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("KINETIC_MACHINE_ID", "elsewhere")

    clients.go.touch()
    without = kinetic("jobs", "result", job_id, "--timeout", "60")
    (tmp_path / "key").write_text(exported)
    imported = clients.project.execute("sh", "-c", f"{sys.executable} -m kinetic key import < {tmp_path}/key")
    collected = clients.run(
        "job = kinetic.attach(words[0])\ntell([job.result(timeout=60), job.status().value])", job_id
    )

    assert without.code != 0
    assert "kinetic key import" in without.err
    assert imported.returncode == 0, imported.stderr
    assert collected == [3, "NOT_FOUND"]


def test_of_two_processes_that_collect_at_once_one_has_the_value_and_both_end(clients: Any) -> None:
    job_id = submit(clients, f"talk.run_async(3, {str(clients.go)!r})")
    code = """
        job = kinetic.attach(words[0])
        tell("attached")
        try:
            tell(job.result(timeout=60))
        except kinetic.errors.KineticError as error:
            tell(type(error).__name__)
    """
    both = [clients.start(code, job_id) for _ in range(2)]
    for each in both:
        assert each.stdout.readline() == 'told:"attached"\n'

    clients.go.touch()
    told = [each.communicate(timeout=90) for each in both]

    values = [clients.told(out)[-1] for out, _ in told]
    assert 3 in values, told
    assert all(value in (3, "ResultMissingError", "KeyMissingError") for value in values)


# --------------------------------------------------------------------------------------------------------- cancel, stop


@pytest.mark.real_node
def test_a_job_is_cancelled_while_it_runs_and_its_pod_ends(clients: Any, site: Any) -> None:
    job_id = submit(clients, "talk.run_async(3, '/never')")
    site.running(job_id)

    found = clients.run(
        """
        job = kinetic.attach(words[0])
        job.cancel()
        try:
            job.result()
        except RuntimeError as error:
            tell([type(error).__name__, error.code, job.status().value])
        """,
        job_id,
    )

    assert found == ["JobCancelledError", "job-cancelled", "NOT_FOUND"]
    assert site.jobs(job_id) == []
    site.gone(job_id)


def test_ctrl_c_lets_go_of_the_job_and_prints_two_commands(clients: Any, site: Any) -> None:
    clients.project.write("waits.py", f"from one import talk\ntalk(1, {str(clients.go)!r})\n")
    client = clients.project.start("waits.py")
    assert client.stdout.readline() == "line 0000\n"  # so it waits for its job now

    client.send_signal(signal.SIGINT)
    _, said = client.communicate(timeout=30)

    assert client.returncode == -signal.SIGINT  # as a shell expects it of a program that Ctrl-C ended
    (job_id,) = {job["metadata"]["labels"]["job-id"] for job in site.jobs()}
    assert f"kinetic jobs logs {job_id} --follow" in said
    assert f"kinetic jobs cancel {job_id}" in said
    assert clients.run("tell(kinetic.attach(words[0]).status().value)", job_id) == "RUNNING"
    clients.go.touch()
    assert clients.run("tell(kinetic.attach(words[0]).result())", job_id) == 1


# ------------------------------------------------------------------------------------------------------- the commands


def test_the_commands_know_a_job_of_a_cluster(clients: Any, kinetic: Any, site: Any) -> None:
    job_id = submit(clients, f"talk.run_async(3, {str(clients.go)!r})")
    site.running(job_id)
    wait_for("its first lines", lambda: "line 0002" in kinetic("jobs", "logs", job_id).out)

    (listed,) = json.loads(kinetic("jobs", "list", "--json").out)["jobs"]
    status = kinetic("jobs", "status", job_id)
    log = kinetic("jobs", "logs", job_id)
    explained = kinetic("jobs", "explain", job_id)
    cancelled = kinetic("jobs", "cancel", job_id)
    after = kinetic("jobs", "status", job_id)
    why = kinetic("jobs", "explain", job_id)

    assert (listed["job_id"], listed["status"]) == (job_id, "RUNNING")
    assert status.out == f"{job_id}: RUNNING\n"
    assert log.out == "".join(f"line {number:04}\n" for number in range(3))
    assert (explained.code, cancelled.code) == (0, 0), explained.err + cancelled.err
    assert re.search("FAILED|CANCELLED|NOT_FOUND", after.out)
    assert "cancelled" in why.out


def test_run_from_the_command_line_prints_log_and_value(clients: Any, kinetic: Any) -> None:
    clients.project.write("train.py", "def train(rate: float):\n    print('training', rate)\n    return [rate]\n")

    told = kinetic("run", "-a", "cpu", "train.py::train", "1e-3")

    assert (told.code, told.out) == (0, "training 0.001\n[0.001]\n"), told.err


def test_doctor_tries_a_job_that_writes_to_the_store_and_removes_it(
    kinetic: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_KEEP_WARM", "10m")  # of other jobs: no pod stays for this one

    told = kinetic("doctor", "--try", "cpu", "--yes")

    assert told.code == 0, told.out + told.err
    assert re.search(
        rf"PASS  trial: a job on cpu ran on \S+ and wrote its result to {site.bucket.address} in", told.out
    )
    assert site.jobs() == []
    assert [name for name in site.bucket.names() if name.startswith("hello")] == []


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_a_child_of_a_batch_finds_what_a_job_compiled(clients: Any) -> None:
    text = f"""
    import kinetic
    {COMPILES}
    @kinetic.run(accelerator="cpu")
    def compiles(number):
        return is_found()
    """
    clients.project.write("compiles.py", text)

    first, log = clients.run(
        "from compiles import compiles\njob = compiles.run_async(0)\ntell([job.result(cleanup=False), job.tail(20)])"
    )
    (again,) = clients.run(
        'from compiles import compiles\ntell(compiles.run_async_map([0], input_mode="single").results())'
    )
    assert "kinetic: compiled" in log
    assert (first, again) == (False, True)


def test_the_key_of_the_compile_cache_travels_in_the_secret_and_only_where_there_is_a_cache(
    clients: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cache = submit(clients, "add.run_async(1, 2)")
    (secret,) = site.secrets(with_cache)
    monkeypatch.setenv("KINETIC_COMPILE_CACHE", "off")
    without = submit(clients, "add.run_async(1, 2)")
    (other,) = site.secrets(without)

    assert sorted(secret["data"]) == ["cache-key", "environment.json", "job-key"]
    assert sorted(other["data"]) == ["environment.json", "job-key"]
    assert secret["data"]["cache-key"] not in json.dumps(site.jobs(with_cache))


def test_a_job_imports_another_project_that_its_requirements_name(clients: Any) -> None:
    other = clients.project.root.parent / "other"
    (other / "src").mkdir(parents=True)
    (other / "pyproject.toml").write_text('[project]\nname = "other"\ndependencies = []\n')
    (other / "src" / "other.py").write_text("def name():\n    return __file__\n")
    clients.project.write("requirements.txt", "-e ../other\n")
    clients.project.write(
        "train.py",
        """
        import kinetic

        @kinetic.run(accelerator="cpu")
        def where():
            import other

            return other.name()

        if __name__ == "__main__":
            print(where())
        """,
    )

    done = clients.project.run("train.py", timeout=100)

    assert done.stdout.endswith("/work/.kinetic-beside/other/src/other.py\n"), done.stderr
