"""A cluster whose store is in Azure, as on AKS: Azurite is the service, and the pods get the key in a Secret."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from servers import azurite

from kinetic._stores import open_store

IDENTITY = "azure.workload.identity/use"
LOOK = """
    import os
    import kinetic

    @kinetic.run(accelerator="cpu")
    def look(folder):
        with open(os.path.join(kinetic.output_dir(), "counted.txt"), "w") as file:
            file.write("yes")
        print("looking")
        return sorted(os.listdir(folder)), kinetic.output_dir()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[azurite.Azurite]:
    with azurite.started() as server:
        yield server


@pytest.fixture
def container(server: azurite.Azurite, site: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty container, which this machine opens by a connection string and pods by a Secret."""
    name = f"jobs-{site.namespace}"[:63].rstrip("-")
    server.container(name)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string)
    entries = {"AZURE_STORAGE_KEY": base64.b64encode(azurite.KEY.encode()).decode()}
    about = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "azure"}, "data": entries}
    site.api.create(f"{site.core}/secrets", about)
    monkeypatch.setenv("KINETIC_STORE_SECRET", "azure")
    monkeypatch.setenv("KINETIC_STORE", f"az://{name}/team")
    return f"az://{name}@{azurite.ACCOUNT}/team"


def test_jobs_of_a_cluster_keep_all_in_a_container_of_azure(
    clients: Any, machine: str, container: str, site: Any, kinetic: Any, tmp_path: Any
) -> None:
    clients.project.write("look.py", LOOK)
    sets = container.removesuffix("/team") + "/sets"
    open_store(sets).put("one/a.txt", b"a")
    submit = f"""
        from look import *
        job = look.run_async(kinetic.Data("{sets.replace(f"@{azurite.ACCOUNT}", "")}/one/"))
        tell((job.job_id, job.result(cleanup=False)))
    """

    job_id, (names, outputs) = clients.run(submit)

    assert names == ["a.txt"]
    assert outputs.startswith(f"{container}/")
    assert kinetic("jobs", "logs", job_id).out == "looking\n"
    assert kinetic("outputs", "get", job_id, "counted.txt", "--to", str(tmp_path)).code == 0
    assert (tmp_path / "counted.txt").read_text() == "yes"
    labels = [pod["metadata"]["labels"].get(IDENTITY) for pod in site.pods_of(job_id)]
    assert labels == ["true"]
    assert kinetic("jobs", "cleanup", job_id, "--yes").code == 0
    assert [entry.key for entry in open_store(container).entries(f"{job_id}/")] == []


def test_a_program_that_attaches_needs_the_address_and_an_account_of_its_own_only(
    clients: Any, machine: str, container: str, server: azurite.Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = clients.run("from one import add\njob = add.run_async(2, 3)\njob.wait()\ntell(job.job_id)")

    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_KEY", azurite.KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"{server.url}/{azurite.ACCOUNT}")
    monkeypatch.setenv("KINETIC_STORE", container)

    assert clients.run(f"import kinetic\ntell(kinetic.attach({job_id!r}).result())") == 5
