"""Every GPU and TPU that GKE offers, as data: names, labels, machine types, limits.

What follows from these (which topologies exist, on how many hosts) is arithmetic and lives in ``families``.

Where a row names no other source, it was read in Google's GKE cluster autoscaler as it was in 2026 (``AUTOSCALER``).
The limits of TPU shapes come from kuberay's kubectl plugin and xpk, TensorCores per chip and the two labels of v3
from ai-on-gke/tpu-device-plugin ``pkg/tpu/util/util.go``, all 2026.
"""

from __future__ import annotations

from kinetic._hardware.families import AUTOSCALER, GpuFamily, TpuFamily, TpuMachine

_N1 = "Compute Engine: GPUs on N1 machines; counts from general knowledge, not read again"

DEFAULT_GPU = "l4"
DEFAULT_TPU = "v5litepod"

# What a number without a name means. It keeps meaning this when the tables grow: moving "tpu-64" to another
# generation would silently change the price and the speed of somebody's job.
GPU_FOR_COUNT = {1: "h100", 2: "h100", 4: "h100", 8: "h100", 16: "a100"}
TPU_FOR_COUNT = {
    1: "v5litepod",
    4: "v5litepod",
    8: "v6e",
    16: "v6e",
    32: "v5p",
    64: "v5litepod",
    128: "v5litepod",
    256: "v5litepod",
    512: "v4",
    1024: "v4",
    2048: "v4",
    4096: "v4",
}


def _gpus(*families: GpuFamily) -> dict[str, GpuFamily]:
    return {family.name: family for family in families}


def _tpus(*families: TpuFamily) -> dict[str, TpuFamily]:
    return {family.name: family for family in families}


GPUS = _gpus(
    GpuFamily("l4", "nvidia-l4", {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}),
    GpuFamily("t4", "nvidia-tesla-t4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
    GpuFamily(
        "v100",
        "nvidia-tesla-v100",
        {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"},
        source=_N1,
    ),
    GpuFamily(
        "a100",
        "nvidia-tesla-a100",
        {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"},
        aliases=("a100-40", "a100-40gb"),
    ),
    # There is no a2-ultragpu-16g, whatever other tables say: the family ends at 8.
    GpuFamily(
        "a100-80gb",
        "nvidia-a100-80gb",
        {1: "a2-ultragpu-1g", 2: "a2-ultragpu-2g", 4: "a2-ultragpu-4g", 8: "a2-ultragpu-8g"},
        aliases=("a100-80",),
    ),
    # a3-edgegpu-8g carries the same GPU and label; it has no flex-start and is never chosen here.
    GpuFamily(
        "h100",
        "nvidia-h100-80gb",
        {1: "a3-highgpu-1g", 2: "a3-highgpu-2g", 4: "a3-highgpu-4g", 8: "a3-highgpu-8g"},
        aliases=("h100-80", "h100-80gb"),
        on_demand_from=8,  # inferred from what Google sells, not read in a table
    ),
    GpuFamily("h100-mega", "nvidia-h100-mega-80gb", {8: "a3-megagpu-8g"}, aliases=("h100-mega-80gb",)),
    GpuFamily("h200", "nvidia-h200-141gb", {8: "a3-ultragpu-8g"}, aliases=("h200-141gb",)),
    GpuFamily("b200", "nvidia-b200", {8: "a4-highgpu-8g"}),
    GpuFamily("gb200", "nvidia-gb200", {4: "a4x-highgpu-4g"}, arm64=True),
    GpuFamily(
        "gb300",
        "nvidia-gb300",
        {4: "a4x-maxgpu-4g-metal"},
        arm64=True,
        source=f"{AUTOSCALER}; docs.nvidia.com/aicr, GKE A4X Max networking",
    ),
    # g4-standard-6, -12 and -24 carry a fraction of one GPU and need an explicit machine type: not offered here.
    GpuFamily(
        "rtx-pro-6000",
        "nvidia-rtx-pro-6000",
        {1: "g4-standard-48", 2: "g4-standard-96", 4: "g4-standard-192", 8: "g4-standard-384"},
        aliases=("rtxpro6000",),
        source="accelerated-platforms ComputeClasses (g4), 2026",
    ),
    GpuFamily("p4", "nvidia-tesla-p4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
    GpuFamily("p100", "nvidia-tesla-p100", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
)

TPUS = _tpus(
    # One v3 host and a part of a v3 slice are different machines with different labels. "tpu-v3-podslice", which
    # is found in older code, is on no node.
    TpuFamily(
        "v3",
        "v3",
        (
            TpuMachine("ct3-hightpu-4t", "tpu-v3-device", 4, "2x2"),
            TpuMachine("ct3p-hightpu-4t", "tpu-v3-slice", 4, None, joins=True),
        ),
        default_chips=4,
        largest="32x32",  # a whole v3 pod; nothing larger has a source
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4",
        "v4",
        (TpuMachine("ct4p-hightpu-4t", "tpu-v4-podslice", 4, "2x2x1", joins=True),),
        default_chips=4,
        largest="16x16x16",
        aliases=("v4-podslice",),
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4-lite",
        "v4-lite",
        (TpuMachine("ct4l-hightpu-4t", "tpu-v4-lite-device", 4, "2x2"),),
        default_chips=4,
        largest="2x2",
        aliases=("v4lite", "v4-lite-device"),
    ),
    TpuFamily(
        "v5litepod",
        "v5e",
        (
            TpuMachine("ct5lp-hightpu-1t", "tpu-v5-lite-podslice", 1, "1x1"),
            TpuMachine("ct5lp-hightpu-4t", "tpu-v5-lite-podslice", 4, "2x2", joins=True),
            TpuMachine("ct5lp-hightpu-8t", "tpu-v5-lite-podslice", 8, "2x4"),
        ),
        default_chips=4,
        largest="16x16",
        aliases=("v5e", "v5-lite-podslice"),
    ),
    TpuFamily(
        "v5e-device",
        "v5e-device",
        (
            TpuMachine("ct5l-hightpu-1t", "tpu-v5-lite-device", 1, "1x1"),
            TpuMachine("ct5l-hightpu-4t", "tpu-v5-lite-device", 4, "2x2"),
            TpuMachine("ct5l-hightpu-8t", "tpu-v5-lite-device", 8, "2x4"),
        ),
        default_chips=4,
        largest="2x4",
        aliases=("v5-lite-device",),
    ),
    # The pod has 8960 chips (140 cubes, xpk's limit); the largest slice that is documented has 6144.
    TpuFamily(
        "v5p",
        "v5p",
        (TpuMachine("ct5p-hightpu-4t", "tpu-v5p-slice", 4, "2x2x1", joins=True),),
        default_chips=8,
        largest="16x16x24",
        aliases=("v5p-slice",),
        cores_per_chip=2,
    ),
    TpuFamily(
        "v6e",
        "v6e",
        (
            TpuMachine("ct6e-standard-1t", "tpu-v6e-slice", 1, "1x1"),
            TpuMachine("ct6e-standard-4t", "tpu-v6e-slice", 4, "2x2", joins=True),
            TpuMachine("ct6e-standard-8t", "tpu-v6e-slice", 8, "2x4"),
        ),
        default_chips=8,
        largest="16x16",
        aliases=("v6e-slice",),
    ),
    # tpu7x-ultranet-4t has the same shape and must be asked for by machine type: not offered here.
    TpuFamily(
        "tpu7x",
        "tpu7x",
        (
            TpuMachine("tpu7x-standard-1t", "tpu7x", 1, "1x1x1"),
            TpuMachine("tpu7x-standard-4t", "tpu7x", 4, "2x2x1", joins=True),
        ),
        default_chips=4,
        largest="16x16x36",  # 144 cubes
        aliases=("v7x", "7x"),
        cores_per_chip=2,
    ),
    # No source says how large a tpu7 slice can be, nor how its names count: one cube, and chips, until one does.
    TpuFamily(
        "tpu7",
        "tpu7",
        (
            TpuMachine("tpu7-standard-1t", "tpu7", 1, "1x1x1"),
            TpuMachine("tpu7-standard-4t", "tpu7", 4, "2x2x1", joins=True),
        ),
        default_chips=4,
        largest="4x4x4",
        aliases=("v7",),
    ),
)


def find_gpu(word: str) -> GpuFamily | None:
    """Return the GPU family that a lower-case word names, or None."""
    return next((family for family in GPUS.values() if word in family.words), None)


def find_tpu(word: str) -> TpuFamily | None:
    """Return the TPU family that a lower-case word names, or None."""
    return next((family for family in TPUS.values() if word in family.words), None)
