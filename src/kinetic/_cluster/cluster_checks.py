"""The checks of a target: its login, project, APIs and rights at Google, its cluster, its store, one accelerator."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._backends.kube import discovery, preflight
from kinetic._backends.kube.client import JOB_SET, NAMESPACE, NODE, SERVICE_ACCOUNT
from kinetic._backends.kube.connection import ClusterAddress, client_of, pools_of
from kinetic._backends.kube.transport import response_json, response_message
from kinetic._cluster import policies, quotas, regions, rights
from kinetic._cluster.accounts import Services
from kinetic._cluster.checks import Check, Problem, texts_of
from kinetic._cluster.project_apis import BILLING, COMPUTE, CONTAINER, PROJECTS, STORAGE, ProjectApis, check_operation
from kinetic._cluster.resource import KUBERNETES_MARK, Setup, Spec
from kinetic._cluster.storage import OBJECT_ROLE, pod_member
from kinetic._config import cluster as cluster_settings
from kinetic._google import api, clusters, default_credentials, login
from kinetic._google.api import ApiError, Page
from kinetic._google.locations import region_of
from kinetic._hardware import Placement, place
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client
    from kinetic._config.target import Target

_PERMISSIONS = ("container.clusters.get", "container.clusters.list", "container.clusters.connect")
_BUCKET_PERMISSIONS = (
    "storage.objects.create",
    "storage.objects.delete",
    "storage.objects.get",
    "storage.objects.list",
)
_WRITERS = (OBJECT_ROLE, "roles/storage.objectAdmin", "roles/storage.admin")
_RETRY = Retry(attempts=2, first_seconds=0.5, most_seconds=2.0)  # somebody waits for the answer
_LEAST_VERSION = (1, 29)  # Autopilot makes TPU nodes by itself from there on
_PROBE_SECONDS = 5.0  # for a connection to the cluster; jobs wait a minute, and somebody waits for this answer
_LIKELY = 0.3  # of Google's 0 to 1; below it a node is seldom given


class ClusterChecks:
    """The checks of one target."""

    def __init__(self, target: Target, environ: Mapping[str, str], accelerator: str = "") -> None:
        self._target, self._environ = target, environ
        self.placement: Placement = place(accelerator or "cpu")
        self._project = target.project.value
        self._location, self._cluster = target.zone.value, target.cluster.value
        self._settings = cluster_settings.read_settings(target.profile, environ)
        self._page: Page = {}
        self._address = ClusterAddress(
            self._project, self._location, self._cluster, target.namespace.value, target.context.value
        )

    @property
    def is_google(self) -> bool:
        """Return whether the cluster is found through Google."""
        return bool(self._project) and not self._target.context.value

    @property
    def is_here(self) -> bool:
        """Return whether jobs run on this machine, without a cluster."""
        return registry.is_here(self._target.backend.value)

    def checks(self) -> list[Check]:
        """Return all checks, in an order in which each comes after what it needs."""
        if self.is_here:
            return [Check("target", "target", self._no_cluster)]
        found = self._of_google() if self.is_google else []
        return [*found, *self._of_cluster(), *self._of_store(), *self._of_accelerator()]

    def _no_cluster(self) -> str:
        raise Problem(
            "WARN",
            "no cluster is configured: jobs run on this machine",
            why=f"the backend is {self._target.backend.value} ({self._target.backend.source})",
            next="kinetic up     or export KINETIC_PROJECT=your-project, or KINETIC_KUBE_CONTEXT=your-context "
            "and KINETIC_BACKEND=gke",
        )

    # -------------------------------------------------------------------------------------------------------- Google

    @cached_property
    def apis(self) -> ProjectApis:
        """Google's APIs for the project; a check waits for nothing that was just made."""
        return ProjectApis(self._project, login.Tokens(self._environ), self._environ, retry=_RETRY)

    @cached_property
    def _services(self) -> Services:
        return Services(Setup(Spec(self._project, self._cluster, self._location), self.apis))

    def _of_google(self) -> list[Check]:
        after = ("login",)
        return [
            Check("login", "login", self._login),
            Check("project", "project", self._is_project, after),
            Check("billing", "project", self._billing, ("login", "project"), lenient=True),
            Check("apis", "APIs", self._apis, ("login", "project")),
            Check("rights", "rights", self._rights, ("login", "project"), lenient=True),
            Check("cluster", "cluster", self._cluster_runs, ("login", "apis")),
            Check("dns-endpoint", "cluster", self._dns_endpoint, ("cluster",)),
            Check("workload-identity", "cluster", self._workload_identity, ("cluster",)),
            Check("fuse", "cluster", self._fuse, ("cluster",)),
        ]

    def _login(self) -> str:
        self.apis.tokens.get()
        file = default_credentials.file_of(self._environ)
        return f"there is a login in {file}" if file else "there is a login of this machine"

    def _is_project(self) -> str:
        try:
            found = self._services.read()
        except ApiError as error:
            raise Problem(
                "FAIL",
                f"the project {self._project} cannot be read ({error.status})",
                why=error.message,
                next=f"check its id ({self._target.project.source}), or ask its administrator for roles/viewer",
            ) from error
        self._off, self._unseen = found.page["off"], found.why
        return f"project {self._project}" + (f" (number {self.apis.number})" if self.apis.number else "")

    def _billing(self) -> str:
        service = api.Service(BILLING, self.apis.tokens, _RETRY, environ=self._environ)
        page = service.get(f"v1/projects/{self._project}/billingInfo")
        if not page.get("billingEnabled"):
            link = f"https://console.cloud.google.com/billing/linkedaccount?project={self._project}"
            raise Problem("FAIL", f"the project {self._project} has no billing account", next=f"link one: {link}")
        return "a billing account is linked"

    def _apis(self) -> str:
        if self._unseen:
            step = f"ask an administrator of {self._project} for roles/serviceusage.serviceUsageViewer to see it here"
            raise Problem("WARN", self._unseen, why="jobs run without that right", next=step)
        if self._off:
            names = " ".join(self._off)
            raise Problem(
                "FAIL" if {CONTAINER, STORAGE} & {*self._off} else "WARN",
                f"APIs are off in {self._project}: {', '.join(self._off)}",
                next=f"kinetic doctor --fix     or gcloud services enable {names} --project {self._project}",
                repair=self._enable,
            )
        return "all APIs are on"

    def _enable(self) -> None:
        self._services.make(self._services.read())
        self._off = self._services.read().page["off"]

    def _rights(self) -> str:
        missing = rights.missing(self.apis, _PERMISSIONS)
        if missing is None:
            raise Problem("SKIP", f"{PROJECTS} is off, so rights cannot be asked")
        if missing:
            raise Problem(
                "FAIL" if _PERMISSIONS[0] in missing else "WARN",
                f"this account lacks {', '.join(missing)}",
                why=f"asked of the project {self._project}",
                next="ask its administrator for roles/container.developer",
            )
        return "this account may use clusters of the project"

    # ------------------------------------------------------------------------------------------------- the GKE cluster

    @property
    def _cluster_path(self) -> str:
        return f"v1/projects/{self._project}/locations/{self._location}/clusters/{self._cluster}"

    def _cluster_runs(self) -> str:
        clusters.read_cluster(self.apis.services[CONTAINER], self._project, self._location, self._cluster)
        self._page = self.apis.call(CONTAINER, "GET", self._cluster_path)
        mode = "Autopilot" if texts_of(self._page, "autopilot", "enabled") == "True" else "Standard"
        return f"{mode} cluster {self._cluster} in {self._location}, {self._page.get('currentMasterVersion', '')}"

    def _dns_endpoint(self) -> str:
        config = (self._page.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
        if not config.get("allowExternalTraffic"):
            raise Problem(
                "WARN",
                "the cluster is reached by its IP address only",
                why="its DNS endpoint does not accept external traffic; an address can change and needs its own "
                "certificate",
                next=f"kinetic doctor --fix     or gcloud container clusters update {self._flags} --enable-dns-access",
                repair=lambda: self._update(
                    "desiredControlPlaneEndpointsConfig", {"dnsEndpointConfig": {"allowExternalTraffic": True}}
                ),
            )
        return "the DNS endpoint is on"

    @property
    def _flags(self) -> str:
        return f"{self._cluster} --location {self._location} --project {self._project}"

    def _workload_identity(self) -> str:
        pool = f"{self._project}.svc.id.goog"
        if not texts_of(self._page, "workloadIdentityConfig", "workloadPool"):
            raise Problem(
                "FAIL",
                "workload identity is off, so jobs have no right of their own to the bucket",
                why="the cluster has no workload pool; node pools that exist keep their old metadata until replaced",
                next=f"kinetic doctor --fix     or gcloud container clusters update {self._flags} "
                f"--workload-pool {pool}",
                repair=lambda: self._update("desiredWorkloadIdentityConfig", {"workloadPool": pool}),
            )
        return "workload identity is on"

    def _fuse(self) -> str:
        if texts_of(self._page, "addonsConfig", "gcsFuseCsiDriverConfig", "enabled") != "True":
            raise Problem(
                "WARN",
                "buckets cannot be mounted: the Cloud Storage FUSE driver is off",
                why="Data with fuse=True and volumes of buckets need it",
                next=f"kinetic doctor --fix     or gcloud container clusters update {self._flags} "
                "--update-addons GcsFuseCsiDriver=ENABLED",
                repair=lambda: self._update("desiredAddonsConfig", {"gcsFuseCsiDriverConfig": {"enabled": True}}),
            )
        return "buckets can be mounted"

    def _update(self, field: str, value: Page) -> None:
        """Change one field of the cluster, wait until it is done, and read the cluster again."""
        operation = self.apis.call(CONTAINER, "PUT", self._cluster_path, {"update": {field: value}})
        path = f"v1/projects/{self._project}/locations/{self._location}/operations/{operation['name']}"
        check_operation(self.apis.follow(CONTAINER, path, lambda page: page.get("status") == "DONE") or {})
        self._page = self.apis.call(CONTAINER, "GET", self._cluster_path)

    # ----------------------------------------------------------------------------------------------- inside the cluster

    @property
    def _client(self) -> Client:
        return client_of(self._address, self._environ)

    def _of_cluster(self) -> list[Check]:
        known = ("cluster",) if self.is_google else ()
        named, inside = self._settings, ("connection", "namespace")
        claims = ", ".join(each.claim for each in named.volume_claims)
        asked = (  # of a submission as well: the question, what of it is set, what is right then, and what it needs
            ("queue", named.queue, f"queue {named.queue}", inside),
            ("priority-class", named.priority_class, f"priority class {named.priority_class}", inside[:1]),
            ("runtime-class", named.runtime_class, f"runtime class {named.runtime_class}", inside[:1]),
            ("config-maps", named.config_maps, f"ConfigMaps {', '.join(named.config_maps)}", inside),
            ("volume-claims", claims, f"volume claims {claims}", inside),
            ("store-secret", named.store_secret, f"Secret {named.store_secret}", inside),
        )
        repairs = {"namespace-missing": self._make_namespace}
        return [
            Check("connection", "Kubernetes", self._connection, known),
            Check("version", "Kubernetes", self._version, inside[:1]),
            Check("namespace", "Kubernetes", self._namespace, inside[:1], repairs=repairs),
            Check("permissions", "Kubernetes", self._question("permissions", "this account may submit jobs"), inside),
            Check("service-account", "Kubernetes", self._service_account, inside),
            *(
                Check(key, "Kubernetes", self._question(key, right), needs)
                for key, is_set, right, needs in asked
                if is_set
            ),
            Check("jobset", "Kubernetes", self._jobset, inside),
            Check("nodes-ready", "Kubernetes", self._nodes_ready, inside[:1], lenient=True),
        ]

    def _question(self, name: str, right: str) -> Callable[[], str]:
        """Ask what a submission asks; its sentences are warnings."""

        def ask() -> str:
            pools = lambda: pools_of(self._address, self._environ)  # noqa: E731 - one use
            notes = preflight.questions(self._client, self.placement, self._settings, pools=pools)[name]()
            if notes:
                raise Problem("WARN", "; ".join(notes))
            return right

        return ask

    def _connection(self) -> str:
        reply = self._client.transport.send("GET", "/version", once_seconds=_PROBE_SECONDS)
        if reply.status != 200:
            raise Problem(
                "FAIL",
                f"{self._client.about} does not let us in ({reply.status})",
                why=response_message(reply.body),
                next="log in again: gcloud auth application-default login for GKE, or as your kubeconfig's user does",
            )
        self._served = response_json(reply.body)
        return f"{self._client.about} answers"

    def _version(self) -> str:
        written = texts_of(self._served, "gitVersion")
        match = re.match(r"v?(\d+)\.(\d+)", written)
        if match is None or (int(match[1]), int(match[2])) < _LEAST_VERSION:
            least = ".".join(map(str, _LEAST_VERSION))
            raise Problem(
                "WARN",
                f"Kubernetes {written or 'of an unknown version'} is older than {least}",
                why="TPU nodes on demand need it",
                next="upgrade the cluster's control plane",
            )
        return f"Kubernetes {written}"

    def _namespace(self) -> str:
        self._question("namespace", "")()
        if preflight.sees_namespace(self._client):
            return "the namespace exists"
        raise Problem(
            "WARN",
            f"this account may not see whether there is a namespace {self._client.namespace}",
            why="it may neither read the namespace nor create anything there",
            next="ask an administrator of the cluster, or name another in KINETIC_NAMESPACE",
        )

    def _make_namespace(self) -> None:
        name = self._client.namespace
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": KUBERNETES_MARK}}
        self._client.apply(NAMESPACE, manifest)
        discovery.cache_of(self._client).forget("namespace")

    def _service_account(self) -> str:
        self._question("service-account", "")()
        if not (name := preflight.service_account(self._client, self._settings)):
            where = self._client.namespace
            raise Problem(
                "WARN",
                f"jobs run as the default service account: the namespace {where} has none named {preflight.ACCOUNT}",
                why="rights of the jobs would be rights of everything in the namespace",
                next=f"kinetic doctor --fix     or kubectl create serviceaccount {preflight.ACCOUNT} -n {where}",
                repair=self._make_service_account,
            )
        if preflight.starts_followers(self._client, name):
            return f"jobs run as {name}, and their pods may start jobs that follow theirs"
        missing = "their pods may not start jobs that follow theirs: docs/chained-jobs.md has the Role"
        return f"jobs run as {name}; {missing}"

    def _make_service_account(self) -> None:
        metadata = {"name": preflight.ACCOUNT, "labels": dict(KUBERNETES_MARK)}
        manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        self._client.apply(SERVICE_ACCOUNT, manifest | {"automountServiceAccountToken": False})
        discovery.cache_of(self._client).forget((SERVICE_ACCOUNT, preflight.ACCOUNT))

    def _jobset(self) -> str:
        if not discovery.serves(self._client, JOB_SET):
            if self.placement.hosts == 1:
                return "JobSet is not installed; only slices of several hosts use it"
            if self.placement.slices > 1:
                raise Problem(
                    "FAIL",
                    f"JobSet is not installed, and {self.placement.name} has {self.placement.slices} slices",
                    next=self._jobset_step,
                )
            raise Problem(
                "WARN",
                "JobSet is not installed: a slice that loses a host is not restarted as a whole",
                why="an Indexed Job is used in its place",
                next=self._jobset_step,
            )
        try:
            self._client.create(JOB_SET, _probe(), dry_run=True)  # its webhook must answer: its port must be reachable
        except AccessDeniedError as error:
            if self.placement.hosts > 1:
                raise
            what = "this account may not create JobSets; only slices of several hosts use them"
            raise Problem("WARN", what, why=str(error.why or ""), next=str(error.next or "")) from error
        return "JobSet answers"

    @property
    def _jobset_step(self) -> str:
        """Return how JobSet is installed: `kinetic up` changes only clusters that it made."""
        mark = Spec(self._project, self._cluster, self._location).labels
        if not mark.items() <= (self._page.get("resourceLabels") or {}).items():
            return "ask an administrator of the cluster to install it: https://jobset.sigs.k8s.io/docs/installation"
        return f"kinetic up --jobset --project {self._project} --cluster {self._cluster}"

    def _nodes_ready(self) -> str:
        nodes = self._client.list(NODE, reduce=_readiness).objects
        sick = [str(each["name"]) for each in nodes if not each["ready"]]
        if sick:
            raise Problem(
                "WARN",
                f"{len(sick)} of {len(nodes)} nodes are not ready: {', '.join(sick[:5])}",
                next=f"kubectl describe node {sick[0]}",
            )
        return f"{len(nodes)} nodes, all of them ready"

    # ---------------------------------------------------------------------------------------------------- the store

    def _of_store(self) -> list[Check]:
        found = [Check("store-address", "store", self._store_address)]
        emulated = not self.is_google and bool(self._environ.get("STORAGE_EMULATOR_HOST"))
        if not self._bucket or emulated:  # an emulator has no policies
            return found
        logged_in = ("login",) if self.is_google else ()
        found.append(Check("store", "store", self._store_answers, ("store-address", *logged_in)))
        if self.is_google:
            needs = ("store", "project", "connection")
            found.append(Check("bucket-binding", "store", self._bucket_binding, needs, lenient=True))
        return found

    @property
    def _bucket(self) -> str:
        return self._target.bucket_name if self._target.store.value.startswith("gs://") else ""

    def _store_address(self) -> str:
        preflight.check_store(self._target.store.value, self._environ, self._settings)
        return f"the store is {self._target.store.value} ({self._target.store.source})"

    def _store_answers(self) -> str:
        service = self.apis.services[STORAGE]
        path = f"storage/v1/b/{self._bucket}/iam/testPermissions"
        try:
            page = service.get(path, permissions=[*_BUCKET_PERMISSIONS])
        except ApiError as error:
            if error.status != 404:
                raise
            raise Problem(
                "FAIL",
                f"there is no bucket {self._bucket}",
                why=error.message,
                next="kinetic up, or name another: export KINETIC_STORE=gs://your-bucket",
            ) from error
        missing = [each for each in _BUCKET_PERMISSIONS if each not in (page.get("permissions") or ())]
        if missing:
            raise Problem(
                "FAIL",
                f"this account lacks {', '.join(missing)} on gs://{self._bucket}",
                next=f"ask its administrator for {OBJECT_ROLE} on the bucket",
            )
        return f"this account may read and write gs://{self._bucket}"

    @property
    def _member(self) -> str:
        account = preflight.service_account(self._client, self._settings) or "default"
        return pod_member(self.apis.number, self._project, self._client.namespace, account)

    def _bucket_binding(self) -> str:
        if not self.apis.number:
            raise Problem("SKIP", "the number of the project is not known")
        policy = policies.BucketPolicy(self.apis, self._bucket)
        page = policy.read()
        if not page:
            raise Problem("SKIP", f"the policy of gs://{self._bucket} is not shown to this account")
        member = self._member
        if any(policies.has(page, role, member) for role in _WRITERS):
            return "jobs may use the bucket"
        raise Problem(
            "WARN",
            f"no binding of gs://{self._bucket} names the service account of jobs",
            why=f"{member} has none of {', '.join(_WRITERS)}; a group or an account of Google's may still allow it",
            next=f"kinetic doctor --fix     or gcloud storage buckets add-iam-policy-binding gs://{self._bucket} "
            f"--member {member} --role {OBJECT_ROLE}",
            repair=lambda: policies.add(policy, OBJECT_ROLE, self._member),  # --fix may have made the account by now
        )

    # ---------------------------------------------------------------------------------------------- the accelerator

    def _of_accelerator(self) -> list[Check]:
        if self.placement.kind == "cpu":
            return []
        name = self.placement.name
        found = [Check("nodes", "accelerator", self._question("nodes", f"there are nodes for {name}"), ("connection",))]
        if self.is_google:
            found += [
                Check("sold", "accelerator", self._sold, ("login", "apis"), lenient=True),
                Check("quota", "accelerator", self._quota, ("login", "apis"), lenient=True),
                Check("advice", "accelerator", self._advice, ("login", "sold"), lenient=True),
            ]
        return found

    def _sold(self) -> str:
        machine = str(self.placement.machine_type)
        zones = regions.zones_selling(self.apis, machine, must_answer=True)
        here = [zone for zone in zones if region_of(zone) == self.region]
        if not here:
            raise Problem(
                "FAIL",
                f"{machine} is not sold in {self.region}",
                why=f"it is in {', '.join(zones) or 'no zone that this project sees'}",
                next=f"kinetic up --region {region_of(zones[0])} --accelerator {self.placement.name}"
                if zones
                else "ask for another accelerator: kinetic accelerators",
            )
        return f"{machine} is sold in {', '.join(here)}"

    @property
    def region(self) -> str:
        """The region of the cluster."""
        return region_of(self._location)

    def _quota(self) -> str:
        found = quotas.quotas_of(self.apis, self.placement, self.region)
        short = [each for each in found if each.is_short]
        if short:
            raise Problem(
                "FAIL",
                f"the quota is too small for {self.placement.name}: {'; '.join(map(str, short))}",
                why="quota is permission; the node would not be made",
                next=f"kinetic doctor -a {self.placement.name} --request-quota {self.placement.chips}     "
                f"or see {quotas.console(self._project)}",
            )
        unknown = [each for each in found if each.limit is None]
        if unknown or not found:
            raise Problem(
                "WARN",
                f"the quota for {self.placement.name} is not known",
                why="; ".join(map(str, unknown)) or "Google does not tell this account",
                next=f"see {quotas.console(self._project)}",
            )
        return "; ".join(map(str, found))

    def _advice(self) -> str:
        model = "SPOT" if self.placement.spot else "STANDARD"
        body = {
            "size": self.placement.hosts,
            "instanceProperties": {"scheduling": {"provisioningModel": model}},
            "instanceFlexibilityPolicy": {"instanceSelections": {"a": {"machineTypes": [self.placement.machine_type]}}},
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE"},
        }
        path = f"compute/v1/projects/{self._project}/regions/{self.region}/advice/capacity"
        found = self.apis.call(COMPUTE, "POST", path, body).get("recommendations") or ()
        scores = [float((each.get("scores") or {}).get("obtainability") or 0) for each in found]
        if not scores:
            raise Problem("SKIP", "Google gives no advice about this hardware")
        if max(scores) < _LIKELY:
            raise Problem(
                "WARN",
                f"Google has little of {self.placement.machine_type} in {self.region} now: {max(scores):.0%}",
                next="try :spot, another region, or another accelerator",
            )
        return f"the chance of a node now is {max(scores):.0%}"


def _probe() -> dict[str, Any]:
    """Return a JobSet that is made in a dry run only."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "python:3.12-slim"}]}
    job = {"spec": {"completions": 1, "parallelism": 1, "template": {"spec": pod}}}
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.name,
        "metadata": {"generateName": "kinetic-check-"},
        "spec": {"replicatedJobs": [{"name": "main", "replicas": 1, "template": job}]},
    }


def _readiness(node: Mapping[str, Any]) -> dict[str, Any]:
    conditions: Sequence[Mapping[str, Any]] = (node.get("status") or {}).get("conditions") or ()
    ready = next((each.get("status") for each in conditions if each.get("type") == "Ready"), "True")
    return {"name": node["metadata"]["name"], "ready": ready == "True"}
