"""The pages on clusters hold what the code asks for: rights, tables of hardware, commands, and files to paste."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from kinetic._backends.kube import discovery
from kinetic._backends.kube.client import JOB, JOB_SET, Kind
from kinetic._backends.kube.job_manifests import JobRequest, placed, resources
from kinetic._config.cluster import ClusterSettings
from kinetic._google.clusters import NodePools
from kinetic._hardware import GPUS, TPUS, place

DOCS = Path(__file__).parents[2] / "docs"
CLUSTERS, HARDWARE = DOCS / "clusters.md", DOCS / "kubernetes-accelerators.md"
PAGES = [CLUSTERS, HARDWARE, DOCS / "distributed.md", DOCS / "spot.md", DOCS / "cost.md"]

# What the Role on the page allows beyond what is checked before a job, and who would miss it.
BEYOND = {
    ("jobs", "watch"): "to hear of changes at once; without it, jobs are listed every two seconds",
    ("jobsets", "watch"): "the same",
    ("pods", "watch"): "to hear of the end of a batch's child a second sooner",
    ("services", "get"): "a creation whose answer was lost",
    ("secrets", "get"): "the same; and to go on with a batch from elsewhere",
    ("secrets", "delete"): "to clean up after a batch",
    ("secrets", "patch"): "to assign a job to a warm pod",
    ("configmaps", "get"): "to see that kinetic's code is there already",
    ("serviceaccounts", "get"): "to find the account named kinetic",
    ("events", "list"): "kinetic jobs explain",
    ("namespaces", "get"): "to fit pods to the level of Pod Security, and to OpenShift's users",
    ("localqueues", "get"): "a queue of Kueue",
    ("localqueues", "list"): "a queue of Kueue",
    ("podgroups", "create"): "hosts that Volcano starts together",
    ("podgroups", "get"): "a creation whose answer was lost",
    ("workloads", "get"): "a queue of Kueue",
    ("workloads", "list"): "a queue of Kueue",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def role() -> dict[str, Any]:
    documents = [document for text in blocks(CLUSTERS, "yaml") for document in yaml.safe_load_all(text)]
    (found,) = [document for document in documents if document["kind"] == "Role"]
    return dict(found)


def rights(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return the rights of a Role: group, resource and verb."""
    return {
        (group, resource, verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def checked() -> set[tuple[str, str, str]]:
    kinds: list[tuple[Kind, int]] = [(JOB, 1), (JOB, 2), (JOB_SET, 2)]
    needs = chain.from_iterable(discovery.needed_permissions(kind, hosts=hosts) for kind, hosts in kinds)
    return {(need.kind.group, need.resource, need.verb) for need in needs}


def test_the_role_on_the_page_allows_what_is_checked_before_a_job():
    assert checked() - rights(role()) == set()


def test_the_role_on_the_page_allows_nothing_without_a_reason():
    beyond = {(resource, verb) for _, resource, verb in rights(role()) - checked()}

    assert beyond - set(BEYOND) == set()


def test_the_binding_on_the_page_gives_that_role():
    documents = [document for text in blocks(CLUSTERS, "yaml") for document in yaml.safe_load_all(text)]

    (binding,) = [document for document in documents if document["kind"] == "RoleBinding"]

    assert binding["roleRef"]["name"] == role()["metadata"]["name"]
    assert binding["metadata"]["namespace"] == role()["metadata"]["namespace"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_can_be_pasted_can_be_read(page: Path):
    for text in blocks(page, "sh"):
        done = subprocess.run(["sh", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), text
    for text in blocks(page, "json"):
        json.loads(text)
    for text in blocks(page, "yaml"):
        assert all(yaml.safe_load_all(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_kinetics_own_commands_exist(page: Path):
    from kinetic._cli import command_tree

    known = (
        set(command_tree.commands_of()),
        set(command_tree.commands_of("jobs")),
        set(command_tree.commands_of("batch")),
    )
    lines = [line for text in blocks(page, "sh") for line in text.splitlines() if line.startswith("kinetic ")]

    for _, word, *rest in (line.split() for line in lines):
        assert word in known[0]
        if word in {"jobs", "batch"}:
            assert rest[0] in known[1 if word == "jobs" else 2]


def rows(page: Path) -> list[list[str]]:
    """Return the cells of all rows of all tables."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_gpus_is_the_registrys():
    told = [row for row in rows(HARDWARE) if row[0].startswith("`gpu-")]

    assert told == [
        [
            f"`gpu-{family.name}`",
            f"`{family.label}`",
            ", ".join(map(str, family.machines)),
            ", ".join(f"`{machine}`" for machine in dict.fromkeys(family.machines.values())),
        ]
        for family in GPUS.values()
    ]


def test_the_table_of_tpus_is_the_registrys():
    told = [row for row in rows(HARDWARE) if row[0].startswith("`tpu")]
    known = []
    for family in TPUS.values():
        name = family.canonical("").rstrip("-")
        for machine in family.machines:
            shapes = [f"`{machine.own_topology}` alone"] if machine.own_topology else []
            shapes += [f"larger ones, up to `{family.largest}`"] if machine.multi_host else []
            words = [f"`{name}`", f"`{machine.label}`", str(machine.chips), "; ".join(shapes)]
            known.append([*words, f"`{machine.machine_type}`"])

    assert told == known


def test_every_label_and_every_taint_is_on_the_page():
    page = HARDWARE.read_text()
    names = [f"gpu-{family.name}{spot}" for family in GPUS.values() for spot in ("", ":spot")]
    names += [family.canonical(family.largest) for family in TPUS.values()]
    placements = [*map(place, names), place("tpu-v6e-2x4", multi_host=True)]

    labels = {label for placement in placements for label in placement.node_selector}
    settings = ClusterSettings(queue="research")
    taints = {toleration["key"] for placement in placements for toleration in placed(placement, settings).tolerations}

    assert [name for name in sorted(labels | taints) if name not in page] == []


def test_the_node_pools_are_those_that_kinetic_proposes():
    pools = NodePools("acme", "us-central1-a", "main", ("us-central1-a",), autopilot=False, limits=None, pools=())
    told = dict(text.removeprefix("# for ").split("\n", 1) for text in blocks(HARDWARE, "sh") if "# for " in text)

    assert len(told) > 3
    for name, command in told.items():
        proposed = pools.capacity_for(place(name)).next
        assert " ".join(command.replace("\\\n", " ").split()) == proposed


def test_the_modest_requests_are_those_that_are_made():
    def written(accelerator: str) -> list[str]:
        requests = resources(JobRequest("j", "n", place(accelerator)))["requests"]
        return [requests["cpu"], *(requests[name].replace("Gi", " GiB") for name in ("memory", "ephemeral-storage"))]

    found = {row[0]: row[1:] for row in rows(HARDWARE)}

    assert found["`cpu`"] == written("cpu")
    assert found["GPUs and TPUs"] == written("gpu-l4") == written("tpu-v5e-4")
