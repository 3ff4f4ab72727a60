"""Every row of the registry asks for what GKE has: facts of its documentation, written down once more here.

Written down and not derived, so that a mistake in the catalog is not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinetic._backends.kube import job_manifests
from kinetic._hardware import GPUS, TPUS, place

# name: (node label, GPUs per machine)
GPU_FACTS = {
    "l4": ("nvidia-l4", (1, 2, 4, 8)),
    "t4": ("nvidia-tesla-t4", (1, 2, 4)),
    "v100": ("nvidia-tesla-v100", (1, 2, 4, 8)),
    "a100": ("nvidia-tesla-a100", (1, 2, 4, 8, 16)),
    "a100-80gb": ("nvidia-a100-80gb", (1, 2, 4, 8)),
    "h100": ("nvidia-h100-80gb", (1, 2, 4, 8)),
    "h100-mega": ("nvidia-h100-mega-80gb", (8,)),
    "h200": ("nvidia-h200-141gb", (8,)),
    "b200": ("nvidia-b200", (8,)),
    "gb200": ("nvidia-gb200", (4,)),
    "gb300": ("nvidia-gb300", (4,)),
    "rtx-pro-6000": ("nvidia-rtx-pro-6000", (1, 2, 4, 8)),
    "p4": ("nvidia-tesla-p4", (1, 2, 4)),
    "p100": ("nvidia-tesla-p100", (1, 2, 4)),
}

FLAT = {"4x4": 4, "4x8": 8, "8x8": 16, "8x16": 32, "16x16": 64}
BOXES = {
    "2x2x2": 2,
    "2x2x4": 4,
    "2x4x4": 8,
    "4x4x4": 16,
    "4x4x8": 32,
    "4x8x8": 64,
    "8x8x8": 128,
    "8x8x16": 256,
    "8x16x16": 512,
    "16x16x16": 1024,
}
# name: {topology: (node label, hosts, chips of each pod)}
TPU_FACTS = {
    "v3": {"2x2": ("tpu-v3-device", 1, 4)}
    | {shape: ("tpu-v3-slice", hosts, 4) for shape, hosts in {**FLAT, "16x32": 128, "32x32": 256}.items()},
    "v4": {"2x2x1": ("tpu-v4-podslice", 1, 4)}
    | {shape: ("tpu-v4-podslice", hosts, 4) for shape, hosts in BOXES.items()},
    "v4-lite": {"2x2": ("tpu-v4-lite-device", 1, 4)},
    "v5litepod": {
        "1x1": ("tpu-v5-lite-podslice", 1, 1),
        "2x2": ("tpu-v5-lite-podslice", 1, 4),
        "2x4": ("tpu-v5-lite-podslice", 1, 8),
    }
    | {shape: ("tpu-v5-lite-podslice", hosts, 4) for shape, hosts in FLAT.items()},
    "v5e-device": {
        "1x1": ("tpu-v5-lite-device", 1, 1),
        "2x2": ("tpu-v5-lite-device", 1, 4),
        "2x4": ("tpu-v5-lite-device", 1, 8),
    },
    "v5p": {"2x2x1": ("tpu-v5p-slice", 1, 4)}
    | {shape: ("tpu-v5p-slice", hosts, 4) for shape, hosts in {**BOXES, "16x16x24": 1536}.items()},
    "v6e": {
        "1x1": ("tpu-v6e-slice", 1, 1),
        "2x2": ("tpu-v6e-slice", 1, 4),
        "2x4": ("tpu-v6e-slice", 1, 8),
    }
    | {shape: ("tpu-v6e-slice", hosts, 4) for shape, hosts in FLAT.items()},
    "tpu7x": {"1x1x1": ("tpu7x", 1, 1), "2x2x1": ("tpu7x", 1, 4)}
    | {shape: ("tpu7x", hosts, 4) for shape, hosts in {**BOXES, "16x16x32": 2048, "16x16x36": 2304}.items()},
    "tpu7": {"1x1x1": ("tpu7", 1, 1), "2x2x1": ("tpu7", 1, 4), "2x2x2": ("tpu7", 2, 4), "2x2x4": ("tpu7", 4, 4)}
    | {"2x4x4": ("tpu7", 8, 4), "4x4x4": ("tpu7", 16, 4)},
}

GPU_ROWS = [(name, count) for name, (_, counts) in GPU_FACTS.items() for count in counts]
TPU_ROWS = [(name, topology) for name, shapes in TPU_FACTS.items() for topology in shapes]


def pod_of(request) -> dict:
    return job_manifests.pod_template(request)["spec"]


def tolerated(pod: dict) -> Iterator[tuple]:
    for each in pod["tolerations"]:
        yield each["key"], each["operator"], each.get("value"), each["effect"]


def test_no_row_of_the_registry_is_missing_here() -> None:
    assert {name: tuple(sorted(family.machines)) for name, family in GPUS.items()} == {
        name: counts for name, (_, counts) in GPU_FACTS.items()
    }
    assert {name: {shape for _, shape in family.usual_sizes()} for name, family in TPUS.items()} == {
        name: set(shapes) for name, shapes in TPU_FACTS.items()
    }


@pytest.mark.parametrize(("name", "count"), GPU_ROWS)
def test_a_gpu_row_asks_for_its_machine_and_no_larger_one(ask, name: str, count: int) -> None:
    label, _ = GPU_FACTS[name]

    pod = pod_of(ask(f"gpu-{name}x{count}"))

    selector = {
        "cloud.google.com/gke-accelerator": label,
        "cloud.google.com/gke-accelerator-count": str(count),
    }
    arm = {"kubernetes.io/arch": "arm64"} if name in {"gb200", "gb300"} else {}
    assert pod["nodeSelector"] == selector | arm
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": str(count)}
    assert pod["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] == str(count)
    assert ("nvidia.com/gpu", "Exists", None, "NoSchedule") in tolerated(pod)


@pytest.mark.parametrize(("name", "topology"), TPU_ROWS)
def test_a_tpu_row_asks_for_all_chips_of_each_of_its_hosts(ask, name: str, topology: str) -> None:
    label, hosts, chips = TPU_FACTS[name][topology]
    request = ask(TPUS[name].canonical(topology))

    pod = pod_of(request)
    job = job_manifests.indexed_job(request)["spec"]

    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": label,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": str(chips)}
    assert (job["completions"], job["parallelism"]) == (hosts, hosts)
    assert ("google.com/tpu", "Exists", None, "NoSchedule") in tolerated(pod)


@pytest.mark.parametrize("name", ["v5litepod", "v6e"])
def test_two_small_hosts_are_told_from_one_large_one(ask, name: str) -> None:
    request = ask(f"tpu-{name}-2x4", multi_host=True)

    pod = pod_of(request)

    assert request.placement.hosts == 2
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert pod["nodeSelector"]["cloud.google.com/gke-accelerator-count"] == "4"


@pytest.mark.parametrize("accelerator", ["gpu-l4", "gpu-h100x8", "tpu-v5litepod-2x4", "tpu-v6e-4x4", "tpu7x-2x2x1"])
def test_spot_capacity_is_asked_for_and_its_taint_tolerated_by_value(ask, accelerator: str) -> None:
    pod = pod_of(ask(accelerator, spot=True))

    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert ("cloud.google.com/gke-spot", "Equal", "true", "NoSchedule") in tolerated(pod)
    assert pod["terminationGracePeriodSeconds"] == 15


def test_a_processor_asks_for_no_machine_in_particular(ask) -> None:
    pod = pod_of(ask("cpu"))

    assert "nodeSelector" not in pod
    assert "tolerations" not in pod
    assert "limits" not in pod["containers"][0]["resources"]


def test_a_cluster_that_is_not_googles_has_labels_of_its_own(ask) -> None:
    pod = pod_of(ask("gpu-l4", node_selector={"nvidia.com/gpu.product": "NVIDIA-L4"}))

    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-L4"}


def test_placements_of_every_row_can_be_made() -> None:
    assert all(place(f"gpu-{name}x{count}").chips == count for name, count in GPU_ROWS)
