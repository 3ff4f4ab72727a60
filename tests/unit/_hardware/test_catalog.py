"""The tables, against the facts they were read from, and the arithmetic of topologies."""

from __future__ import annotations

import re
from math import prod

import pytest

from kinetic._hardware import GPUS, TPUS, GpuFamily, catalog

GPU_ROWS = [
    ("t4", "nvidia-tesla-t4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}),
    ("p4", "nvidia-tesla-p4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}),
    ("p100", "nvidia-tesla-p100", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}),
    ("v100", "nvidia-tesla-v100", {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"}),
    ("l4", "nvidia-l4", {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}),
    (
        "a100",
        "nvidia-tesla-a100",
        {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"},
    ),
    (
        "a100-80gb",
        "nvidia-a100-80gb",
        {1: "a2-ultragpu-1g", 2: "a2-ultragpu-2g", 4: "a2-ultragpu-4g", 8: "a2-ultragpu-8g"},
    ),
    (
        "h100",
        "nvidia-h100-80gb",
        {1: "a3-highgpu-1g", 2: "a3-highgpu-2g", 4: "a3-highgpu-4g", 8: "a3-highgpu-8g"},
    ),
    ("h100-mega", "nvidia-h100-mega-80gb", {8: "a3-megagpu-8g"}),
    ("h200", "nvidia-h200-141gb", {8: "a3-ultragpu-8g"}),
    ("b200", "nvidia-b200", {8: "a4-highgpu-8g"}),
    ("gb200", "nvidia-gb200", {4: "a4x-highgpu-4g"}),
    ("gb300", "nvidia-gb300", {4: "a4x-maxgpu-4g-metal"}),
    (
        "rtx-pro-6000",
        "nvidia-rtx-pro-6000",
        {1: "g4-standard-48", 2: "g4-standard-96", 4: "g4-standard-192", 8: "g4-standard-384"},
    ),
]

# family, topology, hosts, machine type, node label: one row for each cell of the two tables of shapes.
TPU_SHAPES = [
    ("v3", "2x2", 1, "ct3-hightpu-4t", "tpu-v3-device"),
    ("v3", "4x4", 4, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "4x8", 8, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "8x8", 16, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "8x16", 32, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "16x16", 64, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "16x32", 128, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v3", "32x32", 256, "ct3p-hightpu-4t", "tpu-v3-slice"),
    ("v4-lite", "2x2", 1, "ct4l-hightpu-4t", "tpu-v4-lite-device"),
    ("v5e-device", "1x1", 1, "ct5l-hightpu-1t", "tpu-v5-lite-device"),
    ("v5e-device", "2x2", 1, "ct5l-hightpu-4t", "tpu-v5-lite-device"),
    ("v5e-device", "2x4", 1, "ct5l-hightpu-8t", "tpu-v5-lite-device"),
    ("tpu7x", "1x1x1", 1, "tpu7x-standard-1t", "tpu7x"),
    ("tpu7x", "16x16x36", 2304, "tpu7x-standard-4t", "tpu7x"),
    ("tpu7", "1x1x1", 1, "tpu7-standard-1t", "tpu7"),
    ("tpu7", "2x2x1", 1, "tpu7-standard-4t", "tpu7"),
    ("v5p", "16x16x24", 1536, "ct5p-hightpu-4t", "tpu-v5p-slice"),
    *(
        (family, topology, hosts, f"{machine}-{chips_per_host}t", label)
        for family, machine, label in (
            ("v5litepod", "ct5lp-hightpu", "tpu-v5-lite-podslice"),
            ("v6e", "ct6e-standard", "tpu-v6e-slice"),
        )
        for topology, hosts, chips_per_host in (
            ("1x1", 1, 1),
            ("2x2", 1, 4),
            ("2x4", 1, 8),
            ("4x4", 4, 4),
            ("4x8", 8, 4),
            ("8x8", 16, 4),
            ("8x16", 32, 4),
            ("16x16", 64, 4),
        )
    ),
    *(
        (family, topology, hosts, machine, label)
        for family, machine, label in (
            ("v4", "ct4p-hightpu-4t", "tpu-v4-podslice"),
            ("v5p", "ct5p-hightpu-4t", "tpu-v5p-slice"),
            ("tpu7x", "tpu7x-standard-4t", "tpu7x"),
        )
        for topology, hosts in (
            ("2x2x1", 1),
            ("2x2x2", 2),
            ("2x2x4", 4),
            ("2x4x4", 8),
            ("4x4x4", 16),
            ("4x4x8", 32),
            ("4x8x8", 64),
            ("8x8x8", 128),
            ("8x8x16", 256),
            ("8x16x16", 512),
            ("16x16x16", 1024),
        )
    ),
]


def gpu_names(family: GpuFamily) -> tuple[str, ...]:
    return (family.name, *family.aliases, family.label)


@pytest.mark.parametrize(("name", "label", "machines"), GPU_ROWS, ids=[row[0] for row in GPU_ROWS])
def test_a_gpu_row_has_its_label_and_machines(name: str, label: str, machines: dict[int, str]) -> None:
    row = GPUS[name]

    assert row.label == label
    assert row.machines == machines


def test_every_gpu_row_is_checked_here() -> None:
    assert set(GPUS) == {row[0] for row in GPU_ROWS}


def test_every_tpu_family_is_checked_here() -> None:
    assert set(TPUS) == {row[0] for row in TPU_SHAPES}


@pytest.mark.parametrize(("name", "topology", "hosts", "machine_type", "label"), TPU_SHAPES)
def test_a_topology_has_its_hosts_and_machine(
    name: str, topology: str, hosts: int, machine_type: str, label: str
) -> None:
    machine, counted = TPUS[name].machines_for(topology)

    assert TPUS[name].offers(topology)
    assert (machine.machine_type, machine.label, counted) == (machine_type, label, hosts)


@pytest.mark.parametrize(("name", "topology"), [row[:2] for row in TPU_SHAPES])
def test_the_number_of_chips_of_a_usual_shape_means_that_shape(name: str, topology: str) -> None:
    chips = prod(int(side) for side in topology.split("x"))

    assert TPUS[name].topology_for(chips) == topology


def test_the_label_tpu_v3_podslice_that_no_node_carries_is_nowhere() -> None:
    labels = {machine.label for family in TPUS.values() for machine in family.machines}

    assert "tpu-v3-podslice" not in labels


def test_an_a100_80gb_machine_with_16_gpus_does_not_exist() -> None:
    assert max(GPUS["a100-80gb"].machines) == 8


def test_only_grace_hosts_are_arm_machines() -> None:
    assert {name for name, row in GPUS.items() if row.arm64} == {"gb200", "gb300"}


def test_every_row_names_its_source() -> None:
    sources = [gpu.source for gpu in GPUS.values()] + [catalog.AUTOSCALER]

    assert all(re.search(r"20\d\d|not read again|docs\.", source) for source in sources)


def test_no_word_names_two_things() -> None:
    words = [word for gpu in GPUS.values() for word in gpu_names(gpu)]
    words += [word for tpu in TPUS.values() for word in (tpu.name, *tpu.aliases)]

    assert len(words) == len(set(words))
    assert not {"cpu", "gpu", "tpu"}.intersection(words)


def test_every_word_finds_its_family() -> None:
    assert all(catalog.find_gpu(word) is gpu for gpu in GPUS.values() for word in gpu_names(gpu))
    assert all(catalog.find_tpu(word) is tpu for tpu in TPUS.values() for word in (tpu.name, *tpu.aliases))


def test_every_number_without_a_name_means_something_that_exists() -> None:
    assert all(count in GPUS[name].machines for count, name in catalog.GPU_FOR_COUNT.items())
    assert all(TPUS[name].topology_for(chips) for chips, name in catalog.TPU_FOR_COUNT.items())


def test_the_defaults_exist() -> None:
    assert GPUS[catalog.DEFAULT_GPU].default_count == 1
    assert TPUS[catalog.DEFAULT_TPU].default_chips == 4


@pytest.mark.parametrize("name", list(TPUS))
def test_every_machine_that_stands_alone_has_the_chips_of_its_topology(name: str) -> None:
    for machine in TPUS[name].machines:
        assert machine.own_topology is None or catalog.chips_of(machine.own_topology) == machine.chips


@pytest.mark.parametrize("name", list(TPUS))
def test_at_most_one_machine_of_a_family_forms_larger_slices(name: str) -> None:
    assert sum(machine.multi_host for machine in TPUS[name].machines) <= 1


@pytest.mark.parametrize("name", list(TPUS))
def test_the_default_and_the_largest_size_of_a_family_exist(name: str) -> None:
    family = TPUS[name]

    assert family.topology_for(family.default_chips) is not None
    assert family.offers(family.largest)
    assert family.topology_for(family.max_chips) == family.largest


@pytest.mark.parametrize("name", list(TPUS))
def test_every_number_of_chips_up_to_the_limit_gives_a_true_shape_or_none(name: str) -> None:
    family = TPUS[name]

    for chips in range(-1, family.max_chips + 70):
        topology = family.topology_for(chips)
        if topology is None:
            continue
        machine, hosts = family.machines_for(topology)
        assert family.offers(topology)
        assert catalog.chips_of(topology) == chips == hosts * machine.chips


@pytest.mark.parametrize("name", ["v4", "v5p", "tpu7x"])
def test_a_3d_generation_comes_in_every_multiple_of_64_chips_up_to_its_limit(name: str) -> None:
    family = TPUS[name]

    sizes = {chips for chips in range(65, family.max_chips + 200) if family.topology_for(chips)}

    assert sizes == set(range(128, family.max_chips + 1, 64))


@pytest.mark.parametrize("name", ["v4", "v5p", "tpu7x"])
def test_inside_one_cube_a_3d_slice_has_sides_of_2_and_4(name: str) -> None:
    sides = range(1, 9)
    shapes = {f"{a}x{b}x{c}" for a in sides for b in sides for c in sides if a * b * c <= 64}

    offered = {shape for shape in shapes if TPUS[name].offers(shape)}

    assert offered - {"1x1x1"} == {"2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4"}
    assert ("1x1x1" in offered) == (name == "tpu7x")


@pytest.mark.parametrize("topology", ["4x4x12", "4x8x12", "8x12x16", "4x4x128"], ids=lambda topology: f"v5p-{topology}")
def test_a_3d_shape_beyond_the_usual_ones_exists_when_its_sides_are_ascending_multiples_of_4(topology: str) -> None:
    assert TPUS["v5p"].offers(topology)


@pytest.mark.parametrize(
    "topology", ["2x4x16", "4x4x6", "8x4x4", "2x2x8", "16x16x28", "4x4x4x4", "4x16", "0x4x4", "04x4x4", "1x1x1"]
)
def test_a_3d_shape_that_breaks_the_rule_does_not_exist(topology: str) -> None:
    assert not TPUS["v5p"].offers(topology)


@pytest.mark.parametrize("topology", ["1x2", "4x2", "2x8", "4x16", "6x6", "3x4", "16x32", "02x4", "0x0", "2x2x1"])
def test_a_flat_shape_that_breaks_the_rule_does_not_exist(topology: str) -> None:
    assert not TPUS["v6e"].offers(topology)


def test_v3_has_no_2x4_because_its_slices_begin_at_16_chips() -> None:
    assert not TPUS["v3"].offers("2x4")
    assert TPUS["v3"].topology_for(8) is None


def test_a_number_of_chips_means_the_most_compact_shape() -> None:
    assert TPUS["v5p"].topology_for(512) == "8x8x8"
    assert TPUS["v5p"].topology_for(192) == "4x4x12"
    assert TPUS["v5p"].topology_for(768) == "8x8x12"


def test_several_small_hosts_can_be_preferred_to_one_large_host() -> None:
    machine, hosts = TPUS["v6e"].machines_for("2x4", multi_host=True)

    assert (machine.machine_type, hosts) == ("ct6e-standard-4t", 2)


@pytest.mark.parametrize("multi_host", [False, True])
def test_asking_for_the_hosts_of_a_topology_that_does_not_exist_is_an_error(multi_host: bool) -> None:
    with pytest.raises(ValueError, match="v6e has no topology 2x8"):
        TPUS["v6e"].machines_for("2x8", multi_host=multi_host)


@pytest.mark.parametrize(
    ("name", "chips", "google"),
    [("v4", 4, 8), ("v5p", 16, 32), ("tpu7x", 64, 128), ("v5p", 6144, 12288), ("v6e", 8, 8), ("v5litepod", 16, 16)],
)
def test_google_counts_tensorcores_where_a_chip_has_two(name: str, chips: int, google: int) -> None:
    family = TPUS[name]

    assert family.google_topology_for(google) == family.topology_for(chips)


def test_an_odd_number_of_tensorcores_is_no_google_name() -> None:
    assert TPUS["v5p"].google_topology_for(9) is None


def test_the_usual_sizes_of_a_family_end_at_its_largest_slice() -> None:
    assert list(TPUS["v5litepod"].usual_sizes()) == [
        (1, "1x1"),
        (4, "2x2"),
        (8, "2x4"),
        (16, "4x4"),
        (32, "4x8"),
        (64, "8x8"),
        (128, "8x16"),
        (256, "16x16"),
    ]
    assert list(TPUS["v5p"].usual_sizes())[-2:] == [(4096, "16x16x16"), (6144, "16x16x24")]


@pytest.mark.parametrize("text", ["", "2", "2x", "x2", "2x2x2x2", "axb", "2x-2", "²x2", "2x9999999999"])
def test_a_text_that_is_no_topology_is_not_taken_for_one(text: str) -> None:
    assert not catalog.is_topology(text)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "٣", "²", "9999999999"])
def test_a_text_that_is_no_plain_number_is_not_taken_for_one(text: str) -> None:
    assert not catalog.is_number(text)
