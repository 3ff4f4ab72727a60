"""Cloud Storage's buckets: their settings and policies; their objects are those of servers.gcs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from servers.google_cloud import refusals
from servers.google_cloud.projects import Policy
from servers.google_cloud.refusals import Refusal
from servers.http11 import Request

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]


class Storage:
    """The buckets of a project.

    Attributes:
        buckets: Their settings, by name.
        policies: Who may do what with each.
        foreign: Names that belong to other projects.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.buckets: dict[str, Page] = {}
        self.policies: dict[str, Policy] = {}
        self.foreign: set[str] = set()

    def add(self, name: str, **more: Any) -> Page:
        """Add a bucket, as another client would."""
        return self._insert({"name": name, **more})

    def answer(self, call: Call) -> Page:
        if call.action == "list" and call.method.startswith("storage.buckets."):
            return {"kind": "storage#buckets", **({"items": list(self.buckets.values())} if self.buckets else {})}
        if call.action == "insert" and call.method.startswith("storage.buckets."):
            if call.query["project"] not in {self._cloud.project, self._cloud.number}:
                raise refusals.denied("storage.buckets.create", call.query["project"])
            return self._insert(call.body)
        name = call.parts[1]
        if name in self.foreign:
            who = self._cloud.account
            raise Refusal(403, f"{who} does not have storage.buckets.get access to the Google Cloud Storage bucket.")
        if name not in self.buckets:
            raise Refusal(404, "The specified bucket does not exist.")
        if call.method.startswith("storage.objects."):
            return self._objects(call)
        return getattr(self, f"_{call.action}")(name, call)  # type: ignore[no-any-return]

    def _insert(self, body: Page) -> Page:
        cloud, name = self._cloud, body["name"]
        if name in self.foreign:
            raise Refusal(
                409, "The requested bucket name is not available. Please select a different name.", "conflict"
            )
        if name in self.buckets:
            raise Refusal(409, "Your previous request to create the named bucket succeeded.", "conflict")
        location = body.get("location", "US").upper()
        if location == "EUROPE":  # the multi-region is called EU
            raise Refusal(400, "The specified location constraint is not valid.")
        self.buckets[name] = {
            **body,
            "kind": "storage#bucket",
            "id": name,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "projectNumber": cloud.number,
            "location": location,
            "locationType": "multi-region" if location in {"US", "EU", "ASIA"} else "region",
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": "2026-11-23T00:00:00.000Z",
            "updated": "2026-11-23T00:00:00.000Z",
        }
        self.policies[name] = Policy(412)
        self.policies[name].grant("roles/storage.legacyBucketOwner", f"projectOwner:{cloud.project}")
        cloud.objects.bucket(name)
        return self.buckets[name]

    def _get(self, name: str, _: Call) -> Page:
        return self.buckets[name]

    def _patch(self, name: str, call: Call) -> Page:
        page = self.buckets[name]
        wanted = call.query.get("ifMetagenerationMatch")
        if wanted is not None and wanted != page["metageneration"]:
            raise Refusal(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")
        changed = {**page, **call.body, "metageneration": str(int(page["metageneration"]) + 1)}
        if "labels" in call.body:
            labels = {**page.get("labels", {}), **call.body["labels"]}
            changed["labels"] = {name: value for name, value in labels.items() if value is not None}
        self.buckets[name] = changed
        return changed

    def _delete(self, name: str, _: Call) -> Page:
        if self._cloud.objects.buckets[name].items:
            raise Refusal(409, "The bucket you tried to delete is not empty.", "conflict")
        del self.buckets[name], self.policies[name], self._cloud.objects.buckets[name]
        return {}

    def _getIamPolicy(self, name: str, call: Call) -> Page:  # noqa: N802 - Google's name of the method
        version = int(call.query.get("optionsRequestedPolicyVersion", "1"))
        return {"kind": "storage#policy", **self.policies[name].read(version)}

    def _setIamPolicy(self, name: str, call: Call) -> Page:  # noqa: N802 - as above
        self._cloud.projects.check_members(call.body)
        self.policies[name].write(call.body)
        return {"kind": "storage#policy", **self.policies[name].read(3)}

    def _testIamPermissions(self, _: str, call: Call) -> Page:  # noqa: N802 - as above
        held = [each for each in call.values("permissions") if each not in self._cloud.denied]
        return {"kind": "storage#testIamPermissionsResponse", **({"permissions": held} if held else {})}

    def _objects(self, call: Call) -> Page:
        body = json.dumps(call.body).encode() if call.body else b""
        given = self._cloud.objects.answer(Request(call.verb, f"/{call.path}", call.query, call.headers, body))
        page: Page = json.loads(bytes(given.body) or b"{}")
        if given.status >= 300:
            raise Refusal(given.status, page.get("error", {}).get("message", ""))
        return page
