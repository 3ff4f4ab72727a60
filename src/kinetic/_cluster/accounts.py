"""The project itself, who pays for it, its APIs, and the service account of the nodes with its one role."""

from __future__ import annotations

from kinetic._cluster import policies
from kinetic._cluster.project_apis import (
    ARTIFACTS,
    BILLING,
    COMPUTE,
    CONTAINER,
    IAM,
    PROJECTS,
    QUOTAS,
    SERVICES,
    STORAGE,
    billing_error,
    ignoring,
    is_disabled,
)
from kinetic._cluster.resource import Found, Resource
from kinetic._google.api import ApiError
from kinetic.errors import ClusterError

NODE_ROLE = "roles/container.defaultNodeServiceAccount"


class Project(Resource):
    """The project. It is made only where the user asked for that, and never changed or removed."""

    key = "project"
    seconds = (5, 30)

    @property
    def title(self) -> str:
        return f"project {self.spec.project}" + (f" in {self.spec.parent}" if self.spec.parent else "")

    def read(self) -> Found:
        """Return "missing" where it is not shown, too: of a stranger's project, Google says the same as of none."""
        try:
            page = self.apis.call(PROJECTS, "GET", f"v3/projects/{self.spec.project}")
        except ApiError as error:
            if error.status not in {403, 404}:
                raise
            is_off = is_disabled(error) and not self.apis.services[PROJECTS].user_project
            return Found("given", {}, "not known yet") if is_off else Found("missing")
        self.apis.number = str(page.get("name", "")).rpartition("/")[2]
        if page.get("state") not in {None, "ACTIVE"}:
            return Found("foreign", page, f"its state is {page['state']}: an id is not free before 30 days are over")
        return Found("given", page)

    def make(self, found: Found) -> None:
        self.apis.services[PROJECTS].user_project = ""  # a project that does not exist has no quota
        body = {"projectId": self.spec.project, "displayName": self.spec.project}
        try:
            operation = self.apis.call(
                PROJECTS, "POST", "v3/projects", body | ({"parent": self.spec.parent} if self.spec.parent else {})
            )
        except ApiError as error:
            if error.status != 409:
                raise
            if self.read().state == "given":  # made by another request
                return
            raise ClusterError(
                f"the project id {self.spec.project} is taken",
                why="ids of projects are global, and also those of deleted projects stay taken",
                next="kinetic up --create-project --project another-id",
                code="not-ours",
            ) from error
        self.apis.note_new_project()
        self.apis.finish(PROJECTS, operation, "v3")
        if self.read().state != "given":
            raise ClusterError(
                f"the project {self.spec.project} was not made",
                why="Google does not show it",
                next="run the same command again",
                code="google-refused",
            )


class Billing(Resource):
    """The account that pays for the project. It is linked only if the user named it, and never changed or removed."""

    key = "billing"
    needs = ("project",)
    rights = ("resourcemanager.projects.createBillingAssignment",)

    @property
    def title(self) -> str:
        name = f" {self.spec.billing_account}" if self.spec.billing_account else ""
        return f"billing account{name} of the project {self.spec.project}"

    @property
    def _path(self) -> str:
        return f"v1/projects/{self.spec.project}/billingInfo"

    def read(self) -> Found:
        """Return "given" where somebody pays, or where Google does not tell: then turning on APIs tells."""
        try:
            page = self.apis.call(BILLING, "GET", self._path)
        except ApiError as error:
            if error.status != 403:
                raise
            return Found(
                "missing" if self.spec.billing_account and is_disabled(error) else "given", {}, "not known yet"
            )
        account = str(page.get("billingAccountName", "")).removeprefix("billingAccounts/")
        if page.get("billingEnabled"):
            wanted = self.spec.billing_account
            if wanted and account != wanted:
                why = f"{account} pays for the project already, and kinetic does not change that"
                return Found("foreign", page, why)
            return Found("given", page)
        return Found("missing", page, f"its account {account} is closed" if account else "none is linked")

    def make(self, found: Found) -> None:
        if not self.spec.billing_account:
            raise billing_error(self.spec.project, found.why)
        if not found.page:  # its API is off: this one can be turned on without billing
            enable(self, [BILLING])
            now = self.read()
            if now.state == "given":
                return
        self.apis.call(
            BILLING, "PUT", self._path, {"billingAccountName": f"billingAccounts/{self.spec.billing_account}"}
        )


def enable(resource: Resource, names: list[str]) -> None:
    """Turn on APIs of the project, and wait until Google says that they are."""
    path = f"v1/projects/{resource.spec.project}/services:batchEnable"
    operation = resource.apis.call(SERVICES, "POST", path, {"serviceIds": names})
    try:
        resource.apis.finish(SERVICES, operation)
    finally:
        resource.apis.enabled |= {*names}


class Services(Resource):
    """The APIs that are needed; they stay on when a cluster is removed, since others may use them."""

    key = "services"
    needs = ("billing",)
    rights = ("serviceusage.services.enable", "serviceusage.services.list")
    seconds = (20, 60)

    @property
    def names(self) -> list[str]:
        names = [SERVICES, COMPUTE, CONTAINER, IAM, PROJECTS, STORAGE, QUOTAS]
        return names + ([ARTIFACTS] if self.spec.registry else [])

    @property
    def title(self) -> str:
        return f"APIs of the project {self.spec.project}"

    def read(self) -> Found:
        project = f"projects/{self.spec.project}"
        names = [f"{project}/services/{name}" for name in self.names]
        try:
            page = self.apis.call(SERVICES, "GET", f"v1/{project}/services:batchGet", query={"names": names})
        except ApiError as error:
            return self._without_right(error)
        found = page.get("services") or ()
        for each in found:  # "projects/123/services/compute.googleapis.com"
            number = str(each.get("name", "")).split("/")[1:2]
            if number and number[0].isdecimal():
                self.apis.number = number[0]
        on = {str(each.get("name", "")).rpartition("/")[2] for each in found if each.get("state") == "ENABLED"}
        off = [name for name in self.names if name not in on]
        return Found("missing", {"off": off}) if off else Found("given", {"off": []})

    def _without_right(self, error: ApiError) -> Found:
        """Return that all may be on: few roles may see that, and using one that is off says so."""
        try:
            page = self.apis.read(PROJECTS, f"v3/projects/{self.spec.project}") if error.status == 403 else None
        except ApiError:
            page = None
        if page is None:
            raise error
        self.apis.number = str(page.get("name", "")).rpartition("/")[2]
        return Found("given", {"off": []}, "this account may not see which are on")

    def make(self, found: Found) -> None:
        enable(self, found.page["off"])


class NodeAccount(Resource):
    """The service account that nodes run as; the Compute Engine default one has no role in many organizations."""

    key = "node-account"
    needs = ("services",)
    rights = ("iam.serviceAccounts.create", "iam.serviceAccounts.get", "iam.serviceAccounts.actAs")
    seconds = (1, 60)

    @property
    def title(self) -> str:
        return f"service account {self.spec.account.partition('@')[0]} of the nodes"

    @property
    def _path(self) -> str:
        return f"v1/projects/{self.spec.project}/serviceAccounts"

    def read(self) -> Found:
        page = self.apis.read(IAM, f"{self._path}/{self.spec.account}")
        return self.marked(page, self.spec.description, "description")

    def make(self, found: Found) -> None:
        name = self.spec.account.partition("@")[0]
        account = {"displayName": f"Nodes of {self.spec.cluster}", "description": self.spec.description}
        with ignoring(409):
            self.apis.call(IAM, "POST", self._path, {"accountId": name, "serviceAccount": account})
            return
        self.check_is_ours()

    def remove(self, found: Found) -> None:
        with ignoring(404):
            self.apis.call(IAM, "DELETE", f"{self._path}/{self.spec.account}")


class NodeRole(Resource):
    """The one role of the nodes' account in the project: write logs and metrics, and pull images."""

    key = "node-role"
    needs = ("node-account",)
    rights = ("resourcemanager.projects.getIamPolicy", "resourcemanager.projects.setIamPolicy")

    @property
    def title(self) -> str:
        return f"{NODE_ROLE} for {self.spec.account.partition('@')[0]}"

    def _policy(self) -> policies.ProjectPolicy:
        return policies.ProjectPolicy(self.apis)

    def read(self) -> Found:
        policy = self._policy().read()
        if policies.has(policy, NODE_ROLE, self.spec.account_member):
            return Found("ours", policy)
        # Of an account that was removed before its binding, the policy keeps a name with its number.
        left = policies.deleted_members(policy, self.spec.account_member)
        return Found("missing", policy, "a binding of a removed account is left" if left else "")

    def make(self, found: Found) -> None:
        policies.add(self._policy(), NODE_ROLE, self.spec.account_member)

    def remove(self, found: Found) -> None:
        policies.remove(self._policy(), self.spec.account_member)
