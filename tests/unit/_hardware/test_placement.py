"""What a cluster is asked for: hosts, chips, labels, tolerations."""

from __future__ import annotations

import json

import pytest

from kinetic._hardware import GPUS, TPUS, Placement, place
from kinetic.errors import OptionError

EVERY_TPU = [row.canonical(topology) for row in TPUS.values() for _, topology in row.usual_sizes()]
EVERY_GPU = [f"gpu-{name}x{count}" for name, row in GPUS.items() for count in row.machines]


def tolerates(placement: Placement, key: str, value: str) -> bool:
    """Decide as the Kubernetes scheduler does whether a NoSchedule taint is tolerated."""
    for toleration in placement.tolerations:
        same_value = toleration["operator"] == "Exists" or toleration.get("value", "") == value
        if toleration["key"] == key and toleration["effect"] == "NoSchedule" and same_value:
            return True
    return False


# TPUs


def test_a_tpu_asks_for_all_chips_of_a_host_and_for_both_labels() -> None:
    placement = place("tpu-v5litepod-16")

    assert (placement.hosts, placement.chips_per_host, placement.chips) == (4, 4, 16)
    assert (placement.resource, placement.resource_count) == ("google.com/tpu", 4)
    assert placement.node_selector == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert placement.tolerations == ({"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},)
    assert placement.machine_type == "ct5lp-hightpu-4t"


def test_a_v5p_topology_of_2x2x1_is_one_host() -> None:
    placement = place("tpu-v5p-2x2x1")

    assert (placement.hosts, placement.chips_per_host) == (1, 4)


def test_v5p_8_is_eight_chips_on_two_hosts_and_says_what_google_means() -> None:
    placement = place("tpu-v5p-8")

    assert (placement.topology, placement.chips, placement.hosts) == ("2x2x2", 8, 2)
    assert "tpu-v5p-2x2x1" in placement.notes[0]


def test_tpu_v3_8_is_one_host_with_the_device_label() -> None:
    placement = place("tpu-v3-8")

    assert (placement.chips, placement.hosts, placement.machine_type) == (4, 1, "ct3-hightpu-4t")
    assert placement.node_selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v3-device"


def test_a_v3_slice_of_several_hosts_has_the_slice_label() -> None:
    placement = place("tpu-v3-32")

    assert (placement.topology, placement.hosts) == ("4x8", 8)
    assert placement.node_selector["cloud.google.com/gke-tpu-accelerator"] == "tpu-v3-slice"


@pytest.mark.parametrize("name", ["tpu-v5litepod-2x4", "tpu-v6e-8", "tpu-v6e", "tpu-v5e-8"])
def test_a_2x4_is_one_host_of_eight_chips(name: str) -> None:
    placement = place(name)

    assert (placement.hosts, placement.chips_per_host, placement.resource_count) == (1, 8, 8)
    assert placement.machine_type is not None
    assert placement.machine_type.endswith("-8t")
    assert "cloud.google.com/gke-accelerator-count" not in placement.node_selector


@pytest.mark.parametrize("name", ["tpu-v5litepod-2x4", "tpu-v6e-8", "tpu-v6e", "tpu-v5e-8"])
def test_a_2x4_is_two_hosts_of_four_chips_when_several_hosts_are_wanted(name: str) -> None:
    placement = place(name, multi_host=True)

    assert (placement.chips, placement.hosts, placement.chips_per_host, placement.resource_count) == (8, 2, 4, 4)
    assert placement.machine_type is not None
    assert placement.machine_type.endswith("-4t")
    assert placement.node_selector["cloud.google.com/gke-accelerator-count"] == "4"


@pytest.mark.parametrize("name", ["cpu", *EVERY_GPU, *EVERY_TPU])
def test_wanting_several_hosts_changes_nothing_but_the_2x4_of_v5e_and_v6e(name: str) -> None:
    differs = place(name) != place(name, multi_host=True)

    assert differs == (name in {"tpu-v5litepod-2x4", "tpu-v6e-2x4"})


@pytest.mark.parametrize("name", EVERY_TPU)
def test_the_hosts_of_a_slice_carry_its_chips_exactly(name: str) -> None:
    placement = place(name)

    assert placement.hosts * placement.chips_per_host == placement.chips
    assert placement.chips_per_host == placement.resource_count
    assert placement.machine_type is not None
    assert placement.machine_type.endswith(f"-{placement.chips_per_host}t")
    assert placement.node_selector["cloud.google.com/gke-tpu-topology"] == placement.topology
    assert placement.name == name


# GPUs


@pytest.mark.parametrize("name", EVERY_GPU)
def test_a_gpu_asks_for_its_label_and_its_count_on_one_host(name: str) -> None:
    placement = place(name)
    row = GPUS[placement.family]

    assert placement.hosts == 1
    assert placement.chips == placement.chips_per_host == placement.resource_count == int(name.rpartition("x")[2])
    assert placement.machine_type == row.machines[placement.chips]
    assert placement.node_selector["cloud.google.com/gke-accelerator"] == row.label
    assert (placement.resource, placement.topology) == ("nvidia.com/gpu", None)
    assert tolerates(placement, "nvidia.com/gpu", "present")


def test_several_machines_with_gpus_are_as_many_hosts_with_the_count_of_one() -> None:
    one, three = place("gpu-l4x4"), place("gpu-l4x4x3")

    assert (three.hosts, three.chips, three.chips_per_host, three.resource_count) == (3, 12, 4, 4)
    same = one._replace(accelerator="gpu-l4x4x3", name="gpu-l4x4x3", hosts=3, chips=12)
    assert three == same


def test_several_slices_are_as_many_times_the_hosts_of_one() -> None:
    one, two = place("tpu-v5e-16"), place("tpu-2xv5e-16")

    assert (two.hosts, two.slices, two.chips, two.chips_per_host, two.topology) == (8, 2, 32, 4, "4x4")
    assert two.one_slice == one._replace(accelerator="tpu-2xv5e-16")
    assert one.one_slice == one
    assert place("2xtpu7x-8").one_slice.name == place("tpu7x-8").name


def test_an_ordinary_gpu_asks_for_nothing_more() -> None:
    placement = place("gpu-l4")

    assert placement.node_selector == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert placement.tolerations == ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
    assert placement.notes == ()


@pytest.mark.parametrize("name", ["gb200", "gb300"])
def test_a_gpu_on_an_arm_host_gets_there_and_says_that_the_image_must_fit(name: str) -> None:
    placement = place(name)

    assert placement.node_selector["kubernetes.io/arch"] == "arm64"
    assert tolerates(placement, "kubernetes.io/arch", "arm64")
    assert any("linux/arm64" in note for note in placement.notes)


@pytest.mark.parametrize("name", ["gpu-h100", "gpu-h100x2", "gpu-h100x4"])
def test_a_small_h100_machine_on_demand_is_told_that_google_sells_it_as_spot(name: str) -> None:
    assert any("Spot or flex-start only" in note for note in place(name).notes)
    assert place(name, spot=True).notes == ()


def test_a_full_h100_machine_needs_no_note() -> None:
    assert place("gpu-h100x8").notes == ()


# CPU


def test_a_cpu_job_asks_for_nothing() -> None:
    placement = place("cpu")

    assert (placement.kind, placement.family, placement.chips, placement.hosts) == ("cpu", "cpu", 0, 1)
    assert (placement.chips_per_host, placement.resource_count) == (0, 0)
    assert (placement.resource, placement.machine_type, placement.topology) == (None, None, None)
    assert (placement.node_selector, placement.tolerations, placement.notes) == ({}, (), ())


@pytest.mark.parametrize(("name", "spot"), [("cpu", True), ("cpu:spot", False), ("cpu:spot", True)])
def test_spot_has_no_effect_on_a_cpu_job_and_says_so(name: str, spot: bool) -> None:
    placement = place(name, spot=spot)

    assert not placement.spot
    assert placement.node_selector == {}
    assert any("no effect" in note for note in placement.notes)


# Spot


@pytest.mark.parametrize(
    ("name", "spot"), [("gpu-l4", True), ("gpu-l4:spot", False), ("tpu-v5e-1:spot", False), ("v5e", True)]
)
def test_spot_comes_from_the_argument_or_the_name(name: str, spot: bool) -> None:
    placement = place(name, spot=spot)

    assert placement.spot
    assert placement.node_selector["cloud.google.com/gke-spot"] == "true"


def test_the_spot_toleration_carries_its_value() -> None:
    placement = place("tpu-v5e-1", spot=True)

    assert placement.tolerations[-1] == {
        "key": "cloud.google.com/gke-spot",
        "operator": "Equal",
        "value": "true",
        "effect": "NoSchedule",
    }


@pytest.mark.parametrize("name", [*EVERY_GPU, *EVERY_TPU])
def test_a_spot_job_tolerates_a_spot_node_of_its_kind_and_an_ordinary_job_does_not(name: str) -> None:
    ordinary, spot = place(name), place(name, spot=True)

    assert spot.resource is not None
    assert tolerates(spot, "cloud.google.com/gke-spot", "true")
    assert tolerates(spot, spot.resource, "present")
    assert not tolerates(ordinary, "cloud.google.com/gke-spot", "true")
    assert "cloud.google.com/gke-spot" not in ordinary.node_selector


# The noun itself


def test_a_placement_keeps_what_was_written_beside_the_canonical_name() -> None:
    placement = place(" TPU-v5e-8:spot ")

    assert (placement.accelerator, placement.name) == (" TPU-v5e-8:spot ", "tpu-v5litepod-2x4")


@pytest.mark.parametrize("name", ["cpu", *EVERY_GPU, *EVERY_TPU])
def test_a_placement_is_plain_data_with_a_source(name: str) -> None:
    placement = place(name, spot=True)

    assert json.loads(json.dumps(placement._asdict()))["name"] == placement.name
    assert placement.source


def test_a_placement_cannot_be_changed() -> None:
    placement = place("gpu-l4")

    with pytest.raises(AttributeError):
        placement.hosts = 2  # type: ignore[misc]


def test_two_placements_never_share_what_could_be_changed() -> None:
    first = place("gpu-l4")
    first.node_selector["changed"] = "yes"
    first.tolerations[0]["key"] = "changed"

    again = place("gpu-l4")

    assert "changed" not in again.node_selector
    assert again.tolerations[0]["key"] == "nvidia.com/gpu"


def test_an_unknown_accelerator_cannot_be_placed() -> None:
    with pytest.raises(OptionError, match="unknown accelerator"):
        place("banana")
