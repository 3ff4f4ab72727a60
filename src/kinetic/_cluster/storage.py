"""Where jobs keep what they read and write: the bucket, who may use it, and the repository for images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

from kinetic._backends.kube.preflight import ACCOUNT, BUILDER_ACCOUNT
from kinetic._cluster import policies
from kinetic._cluster.project_apis import ARTIFACTS, STORAGE, ignoring, is_unpaid, pages
from kinetic._cluster.resource import Change, Found, Resource
from kinetic._google import artifacts
from kinetic._google.api import ApiError, Page
from kinetic._stores.parallel import in_parallel

OBJECT_ROLE = "roles/storage.objectUser"
READER_ROLE = "roles/artifactregistry.reader"
WRITER_ROLE = "roles/artifactregistry.writer"
_PAGE = 1000
_AT_ONCE = 32  # objects that are removed side by side: one takes some 50 ms, and there may be tens of thousands
_MOST_PAGES = 20  # that are read to measure a bucket: 20,000 objects


class Bucket(Resource):
    """The bucket of jobs: results, logs, and the files that are sent."""

    key = "bucket"
    needs = ("services",)
    rights = ("storage.buckets.create", "storage.buckets.get")

    @property
    def title(self) -> str:
        return f"bucket gs://{self.spec.bucket}"

    @property
    def _path(self) -> str:
        return f"storage/v1/b/{self.spec.bucket}"

    def read(self) -> Found:
        try:
            page = self.apis.read(STORAGE, self._path)
        except ApiError as error:
            if error.status != 403 or is_unpaid(error):
                raise
            return Found("foreign", {}, "the name is taken, or this account may not see it: names are global")
        found = self.marked(page, self.spec.labels, "labels")
        number = str((page or {}).get("projectNumber", ""))
        if found.state != "missing" and self.apis.number and number not in {"", self.apis.number}:
            return Found("foreign", found.page, f"it belongs to another project (number {number})")
        return found

    def body(self) -> Page:
        """Return the bucket as Google is asked for it."""
        return {
            "name": self.spec.bucket,
            "location": self.setup.region,
            "storageClass": "STANDARD",
            "labels": self.spec.labels,
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": True},
                "publicAccessPrevention": "enforced",
            },
            # What kinetic removes is gone, and is not billed for another week.
            "softDeletePolicy": {"retentionDurationSeconds": "0"},
            "lifecycle": {
                "rule": [{"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 1}}],
            },
        }

    def make(self, found: Found) -> None:
        with ignoring(409):
            self.apis.call(STORAGE, "POST", "storage/v1/b", self.body(), query={"project": self.spec.project})
            return
        self.check_is_ours()

    def diff(self, found: Found) -> list[Change]:
        enforced = (found.page.get("iamConfiguration") or {}).get("publicAccessPrevention")
        return [] if enforced == "enforced" else [Change("public access prevention", str(enforced), "enforced")]

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        body = {"iamConfiguration": {"publicAccessPrevention": "enforced"}}
        self.apis.call(
            STORAGE, "PATCH", self._path, body, query={"ifMetagenerationMatch": str(found.page["metageneration"])}
        )

    def measure(self) -> tuple[int, int, bool]:
        """Return how many objects it has, old versions included, their bytes, and whether that is all of them."""
        query = {"versions": "true", "maxResults": str(_PAGE), "fields": "items(size),nextPageToken"}
        found = [*pages(lambda query: self.apis.read(STORAGE, f"{self._path}/o", **query), _MOST_PAGES, **query)]
        sizes = [int(each.get("size", 0)) for page in found for each in page.get("items") or ()]
        return len(sizes), sum(sizes), not found[-1].get("nextPageToken")

    def remove(self, found: Found) -> None:
        """Remove every version of every object, and then the bucket."""
        while True:
            page = self.apis.read(
                STORAGE, f"{self._path}/o", versions="true", maxResults=str(_PAGE), fields="items(name,generation)"
            )
            items = (page or {}).get("items") or ()
            if not items:
                break
            self.setup.report(f"removing the objects of gs://{self.spec.bucket}")
            self.apis.check_time(f"gs://{self.spec.bucket}")
            tasks = (partial(self._remove_object, str(each["name"]), str(each.get("generation", ""))) for each in items)
            for _ in in_parallel(None, tasks, limit=_AT_ONCE):
                pass
        with ignoring(404):
            self.apis.call(STORAGE, "DELETE", self._path)

    def _remove_object(self, name: str, generation: str) -> None:
        from urllib.parse import quote

        query = {"generation": generation} if generation else {}
        with ignoring(404):
            self.apis.call(STORAGE, "DELETE", f"{self._path}/o/{quote(name, safe='')}", query=query)


def pod_member(number: str, project: str, namespace: str, account: str) -> str:
    """Return how policies name an account of Kubernetes; the project's number and its id are both in it."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/{account}"


class Access(Resource):
    """A right of pods: the Kubernetes account itself has it, without an account of Google's between.

    It needs the cluster: the identity pool of a project exists once a cluster was made in it. The member is the account
    of that name in the namespace of every cluster of the project.
    """

    role: str
    account: str
    place: str  # what the role is on, for the title

    @property
    @abstractmethod
    def policy(self) -> policies.Policy:
        """The policy that has the role."""

    @property
    def title(self) -> str:
        return f"{self.role} on the {self.place} for {self.spec.namespace}/{self.account}"

    @property
    def member(self) -> str:
        """The account, as policies name it."""
        return pod_member(self.apis.number, self.spec.project, self.spec.namespace, self.account)

    def read(self) -> Found:
        policy = self.policy.read()
        return Found("ours" if policies.has(policy, self.role, self.member) else "missing", policy)

    def make(self, found: Found) -> None:
        policies.add(self.policy, self.role, self.member)

    def remove(self, found: Found) -> None:
        policies.remove(self.policy, self.member)


class BucketAccess(Access):
    """The right of jobs to use the bucket."""

    key = "bucket-access"
    needs = ("bucket", "cluster")
    rights = ("storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy")
    role, account, place = OBJECT_ROLE, ACCOUNT, "bucket"

    @property
    def policy(self) -> policies.BucketPolicy:
        return policies.BucketPolicy(self.apis, self.spec.bucket)


class BuilderBucketAccess(BucketAccess):
    """The same right of pods that build images: their order and their outcome are in the bucket, too."""

    key = "builder-bucket-access"
    account = BUILDER_ACCOUNT


class Repository(Resource):
    """The repository for images that are built for jobs, which nodes read with their own account."""

    key = "repository"
    needs = ("services", "node-account")
    rights = (
        "artifactregistry.repositories.create",
        "artifactregistry.repositories.get",
        "artifactregistry.repositories.setIamPolicy",
        "artifactregistry.repositories.getIamPolicy",
    )
    seconds = (5, 15)
    is_local = True

    @property
    def title(self) -> str:
        return f"repository {self.spec.own_name} in {self.setup.region}"

    @property
    def _place(self) -> artifacts.Repository:
        return artifacts.Repository(self.spec.project, self.setup.region, self.spec.own_name)

    def read(self) -> Found:
        found = self.marked(self.apis.read(ARTIFACTS, self._place.path), self.spec.labels, "labels")
        if found.state != "ours":
            return found
        return found._replace(page={**found.page, "policy": _RepositoryPolicy(self).read()})

    def diff(self, found: Found) -> list[Change]:
        if policies.has(found.page.get("policy") or {}, READER_ROLE, self.spec.account_member):
            return []
        return [Change("read access of the nodes", "none", READER_ROLE)]

    def make(self, found: Found) -> None:
        path, query = f"{self._place.parent}/repositories", {"repositoryId": self._place.name}
        body = artifacts.page_of_new(self.spec.labels)
        with ignoring(409):
            self.apis.finish(ARTIFACTS, self.apis.call(ARTIFACTS, "POST", path, body, query=query))
        self.check_is_ours()
        self.change(found, ())

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        policies.add(_RepositoryPolicy(self), READER_ROLE, self.spec.account_member)

    def remove(self, found: Found) -> None:
        with ignoring(404):
            self.apis.finish(ARTIFACTS, self.apis.call(ARTIFACTS, "DELETE", self._place.path))


class RepositoryAccess(Access):
    """The right to write images, of pods that build them: a job with it could replace the images of others."""

    key = "repository-access"
    needs = ("repository", "cluster")
    rights = Repository.rights[2:]
    is_local = True
    role, account, place = WRITER_ROLE, BUILDER_ACCOUNT, "repository"

    @property
    def policy(self) -> _RepositoryPolicy:
        return _RepositoryPolicy(Repository(self.setup))


class _RepositoryPolicy:
    """The policy of the repository."""

    def __init__(self, repository: Repository) -> None:
        self.apis = repository.apis
        self._path = repository._place.path  # noqa: SLF001 - its own policy

    def read(self) -> Page:
        """Return the policy; an empty one where there is no such repository."""
        query = {"options.requestedPolicyVersion": "3"}
        return self.apis.read(ARTIFACTS, f"{self._path}:getIamPolicy", **query) or {}

    def write(self, policy: Page) -> Page:
        return self.apis.call(ARTIFACTS, "POST", f"{self._path}:setIamPolicy", {"policy": policy})
