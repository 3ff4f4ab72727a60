"""`kinetic accelerators`: the catalogue as tables, and what one name means."""

from __future__ import annotations

import json

import pytest

from kinetic import _hardware as hardware
from kinetic._jobs import locate
from kinetic._output import colors
from kinetic.errors import CapacityError


def rows(told) -> list[list[str]]:
    return [line.split() for line in told.stdout.splitlines()]


def test_every_gpu_and_every_tpu_is_listed(kinetic) -> None:
    told = kinetic("accelerators")

    assert (told.exit_code, told.stderr) == (0, "")
    shown = {row[0] for row in rows(told) if row}
    assert {f"gpu-{name}" for name in hardware.GPUS} <= shown
    assert {tpu.canonical("").rstrip("-") for tpu in hardware.TPUS.values()} <= shown


def test_a_row_of_a_gpu_has_its_counts_and_machines(kinetic) -> None:
    found = next(row for row in rows(kinetic("accelerators")) if row[:1] == ["gpu-t4"])

    assert found == "gpu-t4 1, 2, 4 n1-standard-4, n1-standard-8, n1-standard-16".split()


def test_a_row_of_a_tpu_has_chips_topology_hosts_and_chips_per_host(kinetic) -> None:
    found = rows(kinetic("accelerators"))

    assert "tpu-v5litepod v5e 16 4x4 4 4 ct5lp-hightpu-4t".split() in found
    assert "tpu-v5p 8 2x2x2 2 4 ct5p-hightpu-4t v5p-16".split() in found


def test_the_tables_fit_into_a_narrow_terminal(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(colors, "is_terminal", lambda _: True)

    told = kinetic("accelerators").stdout

    gpus, tpus, _ = told.split("\n\n", 2)
    assert max(map(len, [*gpus.splitlines(), *tpus.splitlines()])) <= 40
    assert tpus.splitlines()[0].split() == ["TPU", "CHIPS", "TOPOLOGY", "HOSTS"]


def test_plain_words_say_where_a_number_means_something_else_at_google(kinetic) -> None:
    told = kinetic("accelerators").stdout

    assert "v5p-8 means 8 chips here (2x2x2); Google's v5p-8 counts TensorCores and is 4 chips" in told


def test_every_name_in_the_document_means_what_stands_beside_it(kinetic) -> None:
    page = json.loads(kinetic("accelerators", "--json").stdout)

    assert page["schema_version"] == 1
    assert [gpu["name"] for gpu in page["gpus"]] == [*hardware.GPUS]
    for gpu in page["gpus"]:
        for size in gpu["sizes"]:
            found = hardware.place(size["accelerator"])
            assert (found.chips, found.machine_type) == (size["count"], size["machine_type"])
    for tpu in page["tpus"]:
        for size in tpu["sizes"]:
            found = hardware.place(size["by_number"])
            assert found.name == size["accelerator"]
            assert (found.chips, found.topology, found.hosts) == (size["chips"], size["topology"], size["hosts"])
            assert size["notes"] == [*found.notes]


def test_one_name_is_explained_with_its_note(kinetic) -> None:
    told = kinetic("accelerators", "tpu-v5p-8")
    found = dict(line.split("  ", 1) for line in told.stdout.splitlines())

    assert told.exit_code == 0
    assert found["name"].strip() == "tpu-v5p-2x2x2"
    assert found["hosts"].strip() == "2"
    assert found["chips per host"].strip() == "4"
    assert found["machine type"].strip() == "ct5p-hightpu-4t"
    assert "Google's v5p-8 counts TensorCores" in found["note"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", "it runs on the CPU"),
        ("gpu-l4", "this machine has no gpu-l4: the job runs on the CPU"),
        ("tpu-v5e-4", "is emulated: "),
    ],
)
def test_what_it_becomes_on_this_machine_is_said(name, words, kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_GPUS", "none")

    assert words in kinetic("accelerators", name).stdout
    assert json.loads(kinetic("accelerators", name, "--json").stdout)["accelerator"]["here"]["possible"] is True


def test_a_gpu_that_is_here_is_said_to_be(kinetic, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_GPUS", "0")

    assert "it runs on a GPU of this machine" in kinetic("accelerators", "gpu-l4").stdout


def test_what_this_machine_cannot_be_is_said_and_is_no_error(kinetic) -> None:
    told = kinetic("accelerators", "tpu-v5p-6144")

    assert told.exit_code == 0
    assert "on this machine  not possible: " in told.stdout
    assert (
        json.loads(kinetic("accelerators", "tpu-v5p-6144", "--json").stdout)["accelerator"]["here"]["possible"] is False
    )


def test_one_name_as_json_is_what_a_cluster_has_to_provide(kinetic) -> None:
    page = json.loads(kinetic("accelerators", "gpu-l4x4:spot", "--json").stdout)["accelerator"]

    assert (page["name"], page["chips"], page["spot"]) == ("gpu-l4x4", 4, True)
    assert page["node_selector"]["cloud.google.com/gke-accelerator"] == "nvidia-l4"


def test_an_unknown_name_is_a_mistake_with_the_nearest(kinetic) -> None:
    told = kinetic("accelerators", "gpu-l5")

    assert (told.exit_code, told.stdout) == (2, "")
    assert "gpu-l4" in told.stderr


def test_looking_makes_nothing(kinetic, home) -> None:
    kinetic("accelerators", "cpu")

    assert not home.exists()


def test_a_size_that_there_is_not_is_answered_with_a_command(kinetic) -> None:
    assert kinetic("accelerators", "tpu-v5e-9").stderr.endswith("next:  kinetic accelerators tpu-v5litepod-2x4\n")


# ----------------------------------------------------------------------------------------------------- asking a cluster


class Cluster:
    """A place that answers a check as it is told to, and keeps what it was asked."""

    is_here = False

    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()
        self.error: Exception | None = None
        self.asked: list[tuple[str, str, str, str]] = []

    def check(self, placement, settings) -> tuple[str, ...]:
        assert settings is not None
        if self.error is not None:
            raise self.error
        return self.notes


@pytest.fixture
def cluster(monkeypatch) -> Cluster:
    found = Cluster()

    def at(target, *, strict: bool = False) -> Cluster:
        found.asked.append((target.project.value, target.zone.value, target.cluster.value, target.backend.value))
        return found

    monkeypatch.setattr(locate, "backend_at", at)
    return found


def test_a_named_place_is_asked_what_a_submission_would_ask_it(kinetic, cluster) -> None:
    cluster.notes = ("nodes for tpu-v5litepod-8 that are up now: 0 of 1; the pool tpu grows to 2",)

    told = kinetic(*"accelerators tpu-v5e-8 --live --project acme --zone us-west4-a --cluster main".split())
    page = json.loads(kinetic("accelerators", "tpu-v5e-8", "--project", "acme", "--json").stdout)

    assert cluster.asked[0] == ("acme", "us-west4-a", "main", "gke")
    assert f"in the cluster   {cluster.notes[0]}" in told.stdout
    assert page["accelerator"]["cluster"] == {"notes": [*cluster.notes]}


def test_a_cluster_that_can_never_have_it_is_an_error_in_three_parts(kinetic, cluster) -> None:
    cluster.error = CapacityError("the cluster main has no machines for it", why="pools: cpu", next="make a pool")

    told = kinetic("accelerators", "tpu-v5e-8", "--cluster", "main", "--project", "acme")

    assert (told.exit_code, told.stdout) == (1, "")
    assert told.stderr.splitlines()[0].startswith("error: the cluster main has no machines for it [")


@pytest.mark.parametrize("words", [("--live",), ("--project", "acme"), ("--zone", "z"), ("--cluster", "c")])
def test_without_a_name_a_cluster_is_not_asked_and_the_reason_is_said(words, kinetic, cluster) -> None:
    told = kinetic("accelerators", *words)

    assert (told.exit_code, told.stdout, cluster.asked) == (2, "", [])
    assert f"error: {words[0]} requires the NAME of an accelerator" in told.stderr
    assert told.stderr.endswith("next:  kinetic accelerators tpu-v5e-1 --live\n")


def test_where_jobs_run_on_this_machine_there_is_no_cluster_to_ask(kinetic, cluster) -> None:
    told = kinetic("accelerators", "gpu-l4", "--live")

    assert (told.exit_code, cluster.asked) == (2, [])
    assert "error: no cluster is configured" in told.stderr
    assert "jobs run on this machine" in told.stderr
