"""How many chips or GPUs a project may have in a region. Quota is permission, not capacity.

What GKE's nodes use counts against Compute Engine, not against the Cloud TPU API. Older hardware has a metric of the
region; for newer one Cloud Quotas is asked, where a row that is not set says nothing: creation was seen to work and to
fail with it. So only a number that is too small is reported as missing, and nothing is refused because of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic._cluster.project_apis import COMPUTE, QUOTAS, ProjectApis, is_disabled, pages
from kinetic._google.api import ApiError, Page
from kinetic._hardware import Placement
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, BackendUnavailableError, ClusterError

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
_JUSTIFICATION = "Jobs of machine learning on GKE, submitted with kinetic."


class Quota(NamedTuple):
    """What a project may have of something in a region."""

    metric: str  # Google's name of it
    region: str  # where; "" for the whole project
    limit: float | None  # chips or GPUs (count); None where nothing is set or known, infinity for no limit
    used: float  # of these (count); 0 where it is not told
    wanted: int  # what one job takes (count)

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
    name, row = _row(wanted)
    if not name:
        return None
    page = apis.read(QUOTAS, _info_path(apis, name)) or {}
    return Quota(name, region, _most_specific(page.get("dimensionsInfos") or (), {"region": region, **row}), 0,
                 wanted.chips)  # fmt: skip


def _row(wanted: Placement) -> tuple[str, dict[str, str]]:
    if wanted.spot and wanted.family in _SPOT_ROWS:
        return _SPOT_ROWS[wanted.family], {}
    return _ROWS.get(wanted.family, ("", {}))


def _info_path(apis: ProjectApis, name: str) -> str:
    return f"v1/projects/{apis.project}/locations/global/services/{COMPUTE}/quotaInfos/{name}"


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


# ------------------------------------------------------------------------------------------------------ asking for more


class QuotaRequest(NamedTuple):
    """A quota that is smaller than what is wanted, and can be asked for."""

    quota_id: str  # Cloud Quotas' name of it
    # which row of it, e.g. {"region": "us-east5", "tpu_family": "CT6E"}; empty for the whole project
    dimensions: dict[str, str]
    limit: float | None  # what is allowed now (count); None where nothing is set
    amount: int  # what is wanted (count)
    earlier: Page  # the request for the same row that exists already; empty for none

    @property
    def name(self) -> str:
        """Return the id of the request: the same for the same row, so that asking again makes no second one."""
        if self.earlier:
            return str(self.earlier["name"]).rpartition("/")[2]
        row = json.dumps([self.quota_id, sorted(self.dimensions.items())]).encode()
        return f"kinetic-{hashlib.sha256(row).hexdigest()[:16]}"

    @property
    def was_sent(self) -> bool:
        """Return whether as much was asked for before."""
        return str((self.earlier.get("quotaConfig") or {}).get("preferredValue")) == str(self.amount)

    def __str__(self) -> str:
        where = self.dimensions.get("region", "")
        now = "not set" if self.limit is None else f"{self.limit:g}"
        return f"{self.quota_id}{f' in {where}' if where else ''}: {self.amount} (now {now})"


def requests_for(apis: ProjectApis, wanted: Placement, region: str, count: int) -> list[QuotaRequest]:
    """Return which quotas must grow for a number of chips or GPUs; nothing where all of them are large enough.

    Raises:
        ClusterError: Google has no such quota.
        AccessDeniedError: Our account may not read quotas.
    """
    name, row = _row(wanted)
    if not name and (metric := _REGIONAL.get(wanted.family)):
        # Their ids have the words of the metric; that there is such a quota is asked before anything is requested.
        name = f"{'PREEMPTIBLE_' * wanted.spot}{metric}-per-project-region".replace("_", "-")
    rows = [(name, {"region": region, **row})] if name else []
    if wanted.kind == "gpu":
        rows.append((f"{_ALL_GPUS}-per-project".replace("_", "-"), {}))
    found = []
    try:
        earlier = _earlier_requests(apis)
        for quota_id, about in rows:
            infos = apis.call(QUOTAS, "GET", _info_path(apis, quota_id)).get("dimensionsInfos") or ()
            limit = _most_specific(infos, about)
            if limit is None or limit < count:
                same = (each for each in earlier if _is_about(each, quota_id, about))
                found.append(QuotaRequest(quota_id, about, limit, count, next(same, {})))
    except ApiError as error:
        raise _refusal(error, apis.project, f"read the quota of {wanted.name}") from error
    if not rows:
        raise ClusterError(
            f"the name of the quota for {wanted.name} is not known",
            why="Google's list of quotas has no row for this hardware that kinetic knows",
            next=f"ask in the console: {console(apis.project)}",
            code="google-quota",
        )
    return found


def _is_about(request: Page, quota_id: str, dimensions: Mapping[str, str]) -> bool:
    return request.get("quotaId") == quota_id and (request.get("dimensions") or {}) == dimensions


def console(project: str) -> str:
    """Return where quotas of a project are shown and asked for by hand."""
    return f"https://console.cloud.google.com/iam-admin/quotas?project={project}"


def _earlier_requests(apis: ProjectApis) -> list[Page]:
    """Return all requests of the project: at most one may exist for a row, whoever made it."""
    path = f"v1/projects/{apis.project}/locations/global/quotaPreferences"
    listed = pages(lambda query: apis.call(QUOTAS, "GET", path, query=query), pageSize="100")
    return [each for page in listed for each in page.get("quotaPreferences") or ()]


def send_request(apis: ProjectApis, request: QuotaRequest, contact: str) -> Page:
    """Ask Google for a larger quota, and return its answer: often within seconds, sometimes within days.

    ``contact`` is the e-mail address to which Google writes.

    Raises:
        AccessDeniedError: Our account may not ask.
        ClusterError: Google refused the request.
    """
    body: Page = {
        "service": COMPUTE,
        "quotaId": request.quota_id,
        "quotaConfig": {"preferredValue": str(request.amount)},
        "contactEmail": contact,
        "justification": _JUSTIFICATION,
    }
    if request.dimensions:
        body["dimensions"] = request.dimensions
    path = f"v1/projects/{apis.project}/locations/global/quotaPreferences/{request.name}"
    try:
        return apis.call(QUOTAS, "PATCH", path, body, query={"allowMissing": "true"})
    except ApiError as error:
        raise _refusal(error, apis.project, f"take the request for {request}") from error


def _refusal(error: ApiError, project: str, doing: str) -> AccessDeniedError | ClusterError:
    what = f"Google refused to {doing} ({error.status})"
    if is_disabled(error):
        step = f"kinetic doctor --fix     or gcloud services enable {QUOTAS} --project {project}"
        return ClusterError(what, why=error.message, next=step, code="google-refused")
    if error.status == 403:
        step = f"ask an administrator of {project} for roles/cloudquotas.admin"
        return AccessDeniedError(what, why=error.message, next=step)
    return ClusterError(what, why=error.message, next=f"ask in the console: {console(project)}", code="google-quota")
