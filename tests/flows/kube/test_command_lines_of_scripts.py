"""The words of a script's command line in jobs on a cluster: in the Secrets of captured values, and nowhere else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.conftest import last_json
from flows.kube.test_warm_pods import is_idle, says

WORD = "--hook=https://hooks.test/T0-s3cr3t-c0ffee"
SCRIPT = """
    import hashlib, json, os, sys
    import kinetic

    def digest(words):
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()

    @kinetic.run(accelerator="cpu")
    def words(*_):
        assert not [name for name in os.environ if "WORDS" in name]
        return digest(sys.argv[1:])

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def team():
        print("host", os.environ["KINETIC_HOST_INDEX"], "has", digest(sys.argv[1:]))

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def warm():
        loaded = sys.modules["kinetic._runner.worker.preloaded_modules"].hidden.module("numpy") is not None
        import numpy
        return digest(sys.argv[1:]), loaded
"""


def out(clients: Any, lines: str, *words: str) -> Any:
    """Run a script with words to its good end; return what the last line of its output says."""
    clients.project.write("script.py", SCRIPT + lines)
    done = clients.project.run("script.py", *words, timeout=100)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return last_json(done.stdout)


@pytest.mark.real_node
@pytest.mark.usefixtures("machine")
def test_jobs_batches_and_followers_have_the_words_which_are_in_secrets_only(clients: Any, site: Any) -> None:
    own, digests = out(
        clients,
        """
    first = words.run_async()
    jobs = [first, words.run_async(first)]
    found = [*words.run_async_map([1, 2]).results(cleanup=False), *(job.result(cleanup=False) for job in jobs)]
    print(json.dumps([digest(sys.argv[1:]), found]))
    """,
        WORD,
        "x",
    )

    assert digests == [own] * 4
    assert site.bucket.holds(WORD) == []
    secrets = [base64.b64decode(value) for each in site.secrets() for value in each.get("data", {}).values()]
    assert any(WORD.encode() in value for value in secrets)
    for found in (site.jobs(), site.pods_of(), site.api.get(f"{site.core}/configmaps")["items"]):
        assert found
        assert WORD not in json.dumps(found)
        assert base64.b64encode(WORD.encode()).decode()[:-4] not in json.dumps(found)
    assert not any(WORD in site.log(pod["metadata"]["name"]) for pod in site.pods_of())


@pytest.mark.usefixtures("machine")
def test_a_job_of_a_warm_pod_has_the_words_of_its_own_client_and_finds_its_libraries_imported(
    clients: Any, site: Any
) -> None:
    found = []
    for number in range(3):
        found.append(out(clients, "\n    print(json.dumps([digest(sys.argv[1:]), *warm()]))", WORD, str(number)))
        wait_for("an idle pod", is_idle(site, number + 1), 60)

    assert [own == digest for own, digest, _ in found] == [True] * 3
    assert len({own for own, *_ in found}) == 3
    assert found[2][2], "numpy was imported before the fork"
    assert len(site.pods_of()) == 1
    assert site.bucket.holds(WORD) == []
    assert WORD not in says(site)
    assert WORD not in json.dumps([*site.pods_of(), *site.jobs()])


def test_all_hosts_of_a_slice_have_the_words(clients: Any, machines: Any, kinetic: Any) -> None:
    machines()

    own = out(
        clients, "\n    team.run_async().result(cleanup=False)\n    print(json.dumps(digest(sys.argv[1:])))", WORD
    )
    log = kinetic("jobs", "logs", "@last", "--host", "all").out

    assert [f"[host {host}] host {host} has {own}" in log for host in range(2)] == [True] * 2, log
    assert WORD not in log
