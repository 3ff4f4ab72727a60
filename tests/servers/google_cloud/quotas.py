"""Cloud Quotas: limits by id and dimensions, and requests for more.

Google ships no discovery document of it; ours is written by hand from its reference (v1, read 2026-11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from servers.discovery import Document
from servers.google_cloud import refusals

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]

_TEXT = {"type": "string"}
_COUNT = {"type": "string", "format": "int64"}
_TEXTS = {"type": "array", "items": _TEXT}
_MAP = {"type": "object", "additionalProperties": _TEXT}
_READ_ONLY = {"readOnly": True}


def _object(**properties: Page) -> Page:
    return {"type": "object", "properties": properties}


def _method(name: str, verb: str, path: str, response: str, request: str = "", **parameters: Page) -> Page:
    return {
        "id": f"cloudquotas.projects.locations.{name}",
        "httpMethod": verb,
        "path": path,
        "parameters": {each: {"location": "query", **about} for each, about in parameters.items()},
        "response": {"$ref": response},
        **({"request": {"$ref": request}} if request else {}),
    }


_LOCATION = "v1/projects/{project}/locations/{location}"
_PAGES = {"pageSize": {"type": "integer"}, "pageToken": _TEXT}
DOCUMENT = Document(
    {
        "parameters": {"fields": _TEXT, "alt": _TEXT, "prettyPrint": {"type": "boolean"}},
        "schemas": {
            "QuotaInfo": _object(
                name=_TEXT,
                quotaId=_TEXT,
                metric=_TEXT,
                service=_TEXT,
                isPrecise=_TEXT,
                refreshInterval=_TEXT,
                containerType=_TEXT,
                dimensions=_TEXTS,
                metricDisplayName=_TEXT,
                quotaDisplayName=_TEXT,
                metricUnit=_TEXT,
                isFixed={"type": "boolean"},
                dimensionsInfos={"type": "array", "items": {"$ref": "DimensionsInfo"}},
                isConcurrent={"type": "boolean"},
                serviceRequestQuotaUri=_TEXT,
            ),
            "DimensionsInfo": _object(dimensions=_MAP, details={"$ref": "QuotaDetails"}, applicableLocations=_TEXTS),
            "QuotaDetails": _object(value=_COUNT),
            "ListQuotaPreferencesResponse": _object(
                quotaPreferences={"type": "array", "items": {"$ref": "QuotaPreference"}},
                nextPageToken=_TEXT,
                unreachable=_TEXTS,
            ),
            "ListQuotaInfosResponse": _object(
                quotaInfos={"type": "array", "items": {"$ref": "QuotaInfo"}}, nextPageToken=_TEXT
            ),
            "QuotaPreference": _object(
                name=_TEXT,
                dimensions=_MAP,
                quotaConfig={"$ref": "QuotaConfig"},
                etag=_TEXT,
                createTime={**_TEXT, **_READ_ONLY},
                updateTime={**_TEXT, **_READ_ONLY},
                service=_TEXT,
                quotaId=_TEXT,
                reconciling={"type": "boolean", **_READ_ONLY},
                justification=_TEXT,
                contactEmail=_TEXT,
            ),
            "QuotaConfig": _object(
                preferredValue=_COUNT,
                stateDetail={**_TEXT, **_READ_ONLY},
                grantedValue={**_COUNT, **_READ_ONLY},
                traceId={**_TEXT, **_READ_ONLY},
                annotations=_MAP,
                requestOrigin={**_TEXT, **_READ_ONLY},
            ),
        },
        "methods": {
            "get": _method(
                "services.quotaInfos.get", "GET", f"{_LOCATION}/services/{{service}}/quotaInfos/{{id}}", "QuotaInfo"
            ),
            "list": _method(
                "services.quotaInfos.list",
                "GET",
                f"{_LOCATION}/services/{{service}}/quotaInfos",
                "ListQuotaInfosResponse",
                **_PAGES,
            ),
            "listPreferences": _method(
                "quotaPreferences.list",
                "GET",
                f"{_LOCATION}/quotaPreferences",
                "ListQuotaPreferencesResponse",
                filter=_TEXT,
                orderBy=_TEXT,
                **_PAGES,
            ),
            "patch": _method(
                "quotaPreferences.patch",
                "PATCH",
                f"{_LOCATION}/quotaPreferences/{{id}}",
                "QuotaPreference",
                "QuotaPreference",
                updateMask=_TEXT,
                allowMissing={"type": "boolean"},
                validateOnly={"type": "boolean"},
                ignoreSafetyChecks=_TEXT,
            ),
        },
    }
)


class Quotas:
    """The limits of a project that Compute Engine's older metrics do not have.

    Attributes:
        rows: Dimensions and limit of each row, by quota id; None is a row without a value.
        preferences: What was asked for, by id.
        grants: Whether a request is granted at once.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.rows: dict[str, list[tuple[dict[str, str], int | None]]] = {
            "TPUS-PER-TPU-FAMILY-per-project-region": [
                ({}, None),
                ({"region": "us-east5", "tpu_family": "CT6E"}, 8),
            ],
            "PREEMPTIBLE-TPU-V6E-per-project-region": [({}, 1536)],
            "TPU-V5P-per-project-region": [({}, 0)],
            "TPU-LITE-PODSLICE-V5-per-project-region": [({}, 16)],
            "GPUS-PER-GPU-FAMILY-per-project-region": [({"gpu_family": "NVIDIA_H100"}, 0)],
            "GPUS-ALL-REGIONS-per-project": [({}, 4)],
        }
        self.preferences: dict[str, Page] = {}
        self.grants = False

    def answer(self, call: Call) -> Page:
        _, project, _, _, kind, *names = call.parts
        if project not in {self._cloud.project, self._cloud.number}:
            raise refusals.denied("cloudquotas.quotas.get", f"projects/{project}")
        if kind == "quotaPreferences" and not names:
            return {"quotaPreferences": [*self.preferences.values()]} if self.preferences else {}
        if kind == "quotaPreferences":
            if not call.body.get("contactEmail"):  # "required when requesting a quota increase", QuotaPreference
                raise refusals.Refusal(400, "contact email is required", "INVALID_ARGUMENT")
            row = [call.body["quotaId"], call.body.get("dimensions") or {}]
            for name, page in self.preferences.items():
                if name != names[0] and [page["quotaId"], page.get("dimensions") or {}] == row:
                    raise refusals.Refusal(409, f"quotaPreferences/{name} already exists", "ALREADY_EXISTS")
            path = f"projects/{project}/locations/global/quotaPreferences/{names[0]}"
            config = {**call.body["quotaConfig"], "stateDetail": "The quota preference is being reconciled."}
            granted = self.grants and {"grantedValue": config["preferredValue"], "stateDetail": ""}
            config |= granted or {}
            page = {**call.body, "name": path, "quotaConfig": config, "reconciling": not self.grants, "etag": "1"}
            page.pop("contactEmail", None)  # input only
            self.preferences[names[0]] = page
            return page
        if call.action == "list":
            return {"quotaInfos": [self._info(name) for name in self.rows]}
        if names[2] not in self.rows:
            raise refusals.missing("/".join(call.parts))
        return self._info(names[2])

    def _info(self, name: str) -> Page:
        rows = [
            {
                **({"dimensions": dimensions} if dimensions else {}),
                **({"details": {"value": str(value)}} if value is not None else {}),
                "applicableLocations": [dimensions["region"]]
                if "region" in dimensions
                else sorted(self._cloud.compute.regions),
            }
            for dimensions, value in self.rows[name]
        ]
        path = f"projects/{self._cloud.number}/locations/global/services/compute.googleapis.com/quotaInfos/{name}"
        about = {
            "quotaId": name,
            "service": "compute.googleapis.com",
            "metric": f"compute.googleapis.com/{name.lower()}",
        }
        return {"name": path, **about, "dimensionsInfos": rows}
