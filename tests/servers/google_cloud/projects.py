"""A project: its APIs, its billing account, its service accounts, and who may do what in it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from servers.google_cloud import prices, refusals
from servers.google_cloud.refusals import Refusal

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]
_MOST_AT_ONCE = 20  # APIs that one batchEnable takes: its discovery document says so in words


class Policy:
    """An IAM policy: bindings, and an etag that every change renews."""

    def __init__(self, conflict: int) -> None:
        self.bindings: list[Page] = []
        self._version = 1
        self._conflict = conflict  # the status of a write with an old etag

    def read(self, version: int) -> Page:
        """Return the policy; without conditions unless version 3 is asked for, as Google does."""
        conditional = any("condition" in each for each in self.bindings)
        shown = [
            each if version >= 3 else {k: v for k, v in each.items() if k != "condition"} for each in self.bindings
        ]
        return {"version": 3 if conditional and version >= 3 else 1, "etag": self.etag, "bindings": shown}

    @property
    def etag(self) -> str:
        return base64.b64encode(f"policy-{self._version:06}".encode()).decode()

    def write(self, page: Page) -> None:
        """Replace the policy.

        Raises:
            Refusal: Somebody else has changed it since it was read.
        """
        if page.get("etag") and page["etag"] != self.etag:
            raise Refusal(
                self._conflict,
                "There were concurrent policy changes. Please retry the whole read-modify-write.",
                "ABORTED" if self._conflict == 409 else "conditionNotMet",
            )
        bindings = page.get("bindings", [])
        if any("condition" in each for each in bindings) and page.get("version", 1) < 3:
            raise Refusal(400, "Specified policy has conditional role bindings and needs version 3.")
        self.bindings = [each for each in bindings if each.get("members")]
        self._version += 1

    def members(self, role: str) -> set[str]:
        """Return who has a role."""
        return {member for each in self.bindings if each["role"] == role for member in each["members"]}

    def grant(self, role: str, member: str, **more: Any) -> None:
        """Add a binding, as another client would."""
        self.bindings.append({"role": role, "members": [member], **more})
        self._version += 1

    def rename(self, member: str, name: str) -> None:
        """Write a deleted account as Google does, wherever it has a role."""
        for each in self.bindings:
            if member in each["members"]:
                each["members"] = [name if each_member == member else each_member for each_member in each["members"]]
                self._version += 1


class Projects:
    """What serviceusage, cloudbilling, iam and cloudresourcemanager know of a project.

    Attributes:
        accounts: Service accounts by e-mail address.
        policy: Who has which role in the project.
        parent: Where the project was made.
        lifecycle: The project's state.
        identity_pool: Whether a cluster with workload identity has ever been made here.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.accounts: dict[str, Page] = {}
        self.policy = Policy(409)
        self.identity_pool = False
        self.parent = ""
        self.lifecycle = "ACTIVE"
        self._operations: dict[str, tuple[int, Page]] = {}
        self._unseen: dict[str, int] = {}
        self._shown_late: dict[str, list[Page]] = {}

    def answer(self, call: Call) -> Page:
        if call.service == "serviceusage":
            return self._services(call)
        if call.method == "cloudbilling.services.skus.list":
            return prices.answer(call.parts[1], call.query)
        if call.parts[0] in {"folders", "organizations"}:
            held = [each for each in call.body.get("permissions", []) if each not in self._cloud.denied]
            return {"permissions": held} if held else {}
        if call.method == "cloudresourcemanager.operations.get":
            return self._operation(f"operations/{call.parts[1]}")
        if call.method == "cloudresourcemanager.projects.create":
            return self._new_project(call.body)
        if call.parts[1] not in {self._cloud.project, self._cloud.number, "-"}:
            raise refusals.denied("resourcemanager.projects.get", f"projects/{call.parts[1]}")
        if call.service == "cloudbilling":
            return self._billing(call)
        if call.service == "iam":
            return self._accounts(call)
        return self._project(call)

    def _new_project(self, body: Page) -> Page:
        """Make the project, if its id is ours: all other ids are taken."""
        cloud = self._cloud
        if cloud.exists or body["projectId"] != cloud.project:
            raise Refusal(409, "Requested entity already exists", "ALREADY_EXISTS")
        cloud.exists, cloud.enabled, cloud.billing = True, {"serviceusage.googleapis.com"}, ""
        cloud.enabled.add("cloudresourcemanager.googleapis.com")  # in truth that of the login's own project
        self.parent = body.get("parent", "")
        name = f"operations/cp.{next(cloud.ids)}"
        self._operations[name] = (cloud.pending, {"projectId": cloud.project})
        return {"name": name}

    # ---------------------------------------------------------------------------------------------------------- APIs

    def _services(self, call: Call) -> Page:
        cloud = self._cloud
        if call.parts[0] == "operations":
            return self._operation(f"operations/{call.parts[1]}")
        if call.parts[1] not in {cloud.project, cloud.number}:
            raise refusals.denied("serviceusage.services.get", f"projects/{call.parts[1]}")
        if call.action == "batchGet":
            return {"services": [self._service(name.rpartition("/")[2]) for name in call.values("names")]}
        if call.action == "get":
            return self._service(call.parts[3])
        wanted = call.body.get("serviceIds", []) if call.action == "batchEnable" else [call.parts[3]]
        if len(wanted) > _MOST_AT_ONCE:
            raise Refusal(400, f"Too many services: {len(wanted)}")
        free = {"cloudbilling.googleapis.com"}  # else a project without billing could not get any through the API
        if not cloud.billing and set(wanted) - cloud.enabled - free:
            raise Refusal(
                400,
                f"Billing account for project '{cloud.number}' is not found. Billing must be enabled for activation of "
                "service(s) to proceed.",
                "FAILED_PRECONDITION",
                reason="UREQ_PROJECT_BILLING_NOT_FOUND",
            )
        for each in wanted:
            cloud.enable(each)
        name = f"operations/acf.p2-{cloud.number}-{next(cloud.ids)}"
        self._operations[name] = (cloud.pending, {"services": [self._service(each) for each in wanted]})
        return {"name": name}

    def _service(self, api: str) -> Page:
        state = "ENABLED" if api in self._cloud.enabled else "DISABLED"
        parent = f"projects/{self._cloud.number}"
        return {"name": f"{parent}/services/{api}", "parent": parent, "config": {"name": api}, "state": state}

    def _operation(self, name: str) -> Page:
        if name not in self._operations:
            raise refusals.missing(name)
        left, response = self._operations[name]
        makes = name.startswith("operations/cp.")
        fate = self._cloud.fates.get("create project" if makes else "batchEnable")
        if left or fate == "never":
            self._operations[name] = (left - 1, response)
            return {"name": name}
        if fate:
            return {"name": name, "done": True, "error": {"code": 13, "message": "internal"}}
        kind = (
            "google.cloud.resourcemanager.v3.Project"
            if makes
            else "google.api.serviceusage.v1.BatchEnableServicesResponse"
        )
        kind = f"type.googleapis.com/{kind}"
        return {"name": name, "done": True, "response": {"@type": kind, **response}}

    # ------------------------------------------------------------------------------------------------------- billing

    def _billing(self, call: Call) -> Page:
        cloud = self._cloud
        if call.verb == "PUT":
            cloud.billing = call.body["billingAccountName"]
        page = {"name": f"projects/{cloud.project}/billingInfo", "projectId": cloud.project}
        return page | ({"billingAccountName": cloud.billing, "billingEnabled": True} if cloud.billing else {})

    # ---------------------------------------------------------------------------------------------- service accounts

    def _accounts(self, call: Call) -> Page:
        cloud = self._cloud
        if call.action == "list":
            return {"accounts": list(self.accounts.values())} if self.accounts else {}
        if call.action == "create":
            return self._new_account(call.body)
        email = call.parts[3]
        if call.action == "get" and self._shown_late.get(email):
            return self._shown_late[email].pop()
        if not self.is_seen(email):
            raise Refusal(404, f"Unknown service account: {email}", "NOT_FOUND")
        if call.action == "get":
            return self.accounts[email]
        if call.action == "testIamPermissions":
            asked = call.body.get("permissions", [])
            return {"permissions": [each for each in asked if each not in cloud.denied]}
        if call.action == "delete":
            self._shown_late[email] = [self.accounts[email]] * cloud.shown_late
            unique = self.accounts.pop(email)["uniqueId"]
            for policy in (self.policy, *cloud.storage.policies.values(), *cloud.repositories.policies.values()):
                policy.rename(f"serviceAccount:{email}", f"deleted:serviceAccount:{email}?uid={unique}")
            return {}
        raise Refusal(400, f"{call.method} is not played")

    def _new_account(self, body: Page) -> Page:
        cloud, name = self._cloud, body.get("accountId", "")
        email = f"{name}@{cloud.project}.iam.gserviceaccount.com"
        if not 6 <= len(name) <= 30:
            raise Refusal(400, f"Account id {name} has a length that is not in 6..30")
        if email in self.accounts:
            raise Refusal(
                409, f"Service account {name} already exists within project projects/{cloud.project}.", "ALREADY_EXISTS"
            )
        self.accounts[email] = {
            **body.get("serviceAccount", {}),
            "name": f"projects/{cloud.project}/serviceAccounts/{email}",
            "projectId": cloud.project,
            "uniqueId": str(10**20 + next(cloud.ids)),
            "email": email,
            "etag": "MDEwMjE5MjA=",
        }
        self._unseen[email] = cloud.unseen
        return self.accounts[email]

    def is_seen(self, email: str) -> bool:
        """Return whether an account exists for who asks now; for a while a new one does not."""
        left = self._unseen.get(email, 0)
        self._unseen[email] = max(0, left - 1)
        return email in self.accounts and not left

    # ------------------------------------------------------------------------------------------------------- policies

    def _project(self, call: Call) -> Page:
        cloud = self._cloud
        if call.action == "get":
            return {
                "name": f"projects/{cloud.number}",
                "projectId": cloud.project,
                "state": self.lifecycle,
                "displayName": cloud.project,
            }
        if call.action == "testIamPermissions":
            asked = call.body.get("permissions", [])
            if len(asked) > 100:
                raise Refusal(400, "Request must contain at most 100 permissions.")
            held = [each for each in asked if each not in cloud.denied]
            return {"permissions": held} if held else {}
        if call.action == "getIamPolicy":
            return self.policy.read(call.body.get("options", {}).get("requestedPolicyVersion", 1))
        if call.action == "setIamPolicy":
            self.check_members(call.body["policy"])
            self.policy.write(call.body["policy"])
            return self.policy.read(3)
        raise Refusal(400, f"{call.method} is not played")

    def check_members(self, page: Page) -> None:
        """Refuse a policy that names an account or an identity pool that does not exist (ground.md, section 4.2)."""
        for member in {member for each in page.get("bindings", []) for member in each["members"]}:
            kind, _, name = member.partition(":")
            ours = name.endswith(f"@{self._cloud.project}.iam.gserviceaccount.com")
            if kind == "serviceAccount" and ours and name != self._cloud.account and not self.is_seen(name):
                raise Refusal(400, f"Service account {name} does not exist.")
            if kind == "principal" and ".svc.id.goog" in name and not self.identity_pool:
                raise Refusal(400, f"Identity Pool does not exist ({self._cloud.project}.svc.id.goog).")
