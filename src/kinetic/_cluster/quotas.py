"""How many chips or GPUs a project may have in a region. Quota is permission, not capacity.

What GKE's nodes use counts against Compute Engine, not against the Cloud TPU API. Older hardware has a metric of the
region; for newer one Cloud Quotas is asked, where a row that is not set says nothing: creation was seen to work and to
fail with it. So only a number that is too small is reported as missing, and nothing is refused because of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic._cluster.project_apis import COMPUTE, QUOTAS, ProjectApis
from kinetic._google.api import ApiError
from kinetic._hardware import Placement
from kinetic.errors import BackendUnavailableError

_REGIONAL = {  # a family, and the metric of the region; Spot has the same behind PREEMPTIBLE_
    "v4": "TPU_PODSLICE_V4",
    "v5litepod": "TPU_LITE_PODSLICE_V5",
    "v5e-device": "TPU_LITE_DEVICE_V5",
    "t4": "NVIDIA_T4_GPUS",
    "l4": "NVIDIA_L4_GPUS",
    "p4": "NVIDIA_P4_GPUS",
    "p100": "NVIDIA_P100_GPUS",
    "v100": "NVIDIA_V100_GPUS",
    "a100": "NVIDIA_A100_GPUS",
    "a100-80gb": "NVIDIA_A100_80GB_GPUS",
}
_TPU_FAMILY, _GPU_FAMILY = "TPUS-PER-TPU-FAMILY-per-project-region", "GPUS-PER-GPU-FAMILY-per-project-region"
_ROWS: dict[str, tuple[str, dict[str, str]]] = {  # a family, the id of its quota, and which row of it
    "v3": (_TPU_FAMILY, {"tpu_family": "CT3P"}),
    "v5p": ("TPU-V5P-per-project-region", {}),
    "v6e": (_TPU_FAMILY, {"tpu_family": "CT6E"}),
    "h100": (_GPU_FAMILY, {"gpu_family": "NVIDIA_H100"}),
    "h200": (_GPU_FAMILY, {"gpu_family": "NVIDIA_H200"}),
    "b200": (_GPU_FAMILY, {"gpu_family": "NVIDIA_B200"}),
    "gb200": (_GPU_FAMILY, {"gpu_family": "NVIDIA_GB200"}),
    "rtx-pro-6000": (_GPU_FAMILY, {"gpu_family": "NVIDIA_RTX_PRO_6000"}),
}
_SPOT_ROWS = {"v5p": "PREEMPTIBLE-TPU-V5P-per-project-region", "v6e": "PREEMPTIBLE-TPU-V6E-per-project-region"}
_ALL_GPUS = "GPUS_ALL_REGIONS"


class Quota(NamedTuple):
    """What a project may have of something in a region.

    Attributes:
        metric: Google's name of it.
        region: Where; "" for the whole project.
        limit: Chips or GPUs (count); None where nothing is set or known, infinity for no limit.
        used: Of these (count); 0 where it is not told.
        wanted: What one job takes (count).
    """

    metric: str
    region: str
    limit: float | None
    used: float
    wanted: int

    @property
    def is_short(self) -> bool:
        """Whether it is known that one job does not fit."""
        return self.limit is not None and self.limit - self.used < self.wanted

    def __str__(self) -> str:
        where = f" in {self.region}" if self.region else ""
        if self.limit is None:
            return f"{self.metric}{where}: not known, {self.wanted} wanted"
        return f"{self.metric}{where}: {self.limit:g}, {self.used:g} used, {self.wanted} wanted"


def quotas_of(apis: ProjectApis, wanted: Placement, region: str) -> list[Quota]:
    """Return the quotas that limit some hardware in a region; nothing for a CPU, and where Google does not tell."""
    if wanted.kind == "cpu":
        return []
    try:
        found = [_of_region(apis, wanted, region) or _of_service(apis, wanted, region)]
        if wanted.kind == "gpu":
            found.append(_of_project(apis, wanted))
    except (ApiError, BackendUnavailableError):  # who may not see quota may still use it
        return []
    return [each for each in found if each is not None]


def _of_region(apis: ProjectApis, wanted: Placement, region: str) -> Quota | None:
    metric = _REGIONAL.get(wanted.family)
    if metric is None:
        return None
    metric = f"PREEMPTIBLE_{metric}" if wanted.spot else metric
    page = apis.read(COMPUTE, f"compute/v1/projects/{apis.project}/regions/{region}", fields="quotas") or {}
    return _listed(page.get("quotas") or (), metric, region, wanted)


def _of_project(apis: ProjectApis, wanted: Placement) -> Quota | None:
    page = apis.read(COMPUTE, f"compute/v1/projects/{apis.project}", fields="quotas") or {}
    return _listed(page.get("quotas") or (), _ALL_GPUS, "", wanted)


def _listed(rows: Sequence[Mapping[str, Any]], metric: str, region: str, wanted: Placement) -> Quota | None:
    for each in rows:
        if each.get("metric") == metric:
            return Quota(metric, region, float(each.get("limit") or 0), float(each.get("usage") or 0), wanted.chips)
    return None


def _of_service(apis: ProjectApis, wanted: Placement, region: str) -> Quota | None:
    name, row = _ROWS.get(wanted.family, ("", {}))
    if wanted.spot and wanted.family in _SPOT_ROWS:
        name, row = _SPOT_ROWS[wanted.family], {}
    if not name:
        return None
    service = f"v1/projects/{apis.project}/locations/global/services/{COMPUTE}"
    page = apis.read(QUOTAS, f"{service}/quotaInfos/{name}") or {}
    return Quota(name, region, _most_specific(page.get("dimensionsInfos") or (), {"region": region, **row}), 0,
                 wanted.chips)  # fmt: skip


def _most_specific(infos: Sequence[Mapping[str, Any]], about: Mapping[str, str]) -> float | None:
    """Return the value of the row that fits with the most dimensions; -1 means no limit."""
    best: tuple[int, float] | None = None
    for each in infos:
        dimensions = each.get("dimensions") or {}
        value = (each.get("details") or {}).get("value")
        fits = all(about.get(name) == theirs for name, theirs in dimensions.items())
        if value is None or not fits or (best is not None and len(dimensions) <= best[0]):
            continue
        best = (len(dimensions), float("inf") if int(value) == -1 else float(value))
    return None if best is None else best[1]
