"""The plan of ``kinetic up`` as commands of gcloud and kubectl, for an administrator who must approve or run them.

Each command is made from the resource that it makes: its name, its mark and its body. What was made this way has
the marks, so ``kinetic up`` finds it, adds what is missing, and ``kinetic down`` removes it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinetic._cluster import network, storage
from kinetic._cluster.accounts import NODE_ROLE, Billing, NodeAccount, NodeRole, Project, Services
from kinetic._cluster.control_plane import CONTAINER_SCOPE, Cluster, Pool
from kinetic._cluster.jobset import VERSION as JOBSET_VERSION
from kinetic._cluster.jobset import JobSet
from kinetic._cluster.namespace import KubernetesResource
from kinetic._cluster.plan import Plan, Step
from kinetic._cluster.resource import Resource
from kinetic._google.api import Page

_JOBSET = "https://github.com/kubernetes-sigs/jobset/releases/download"
_RANGES = {
    "clusterSecondaryRangeName": "cluster_secondary_range_name",
    "servicesSecondaryRangeName": "services_secondary_range_name",
}
_ACCOUNT = "ACCOUNT_ID"  # of the one who pays, where the user named none


def commands_of(plan: Plan) -> list[str]:
    """Return the lines of a shell script that does what a plan does; comments say what each part is."""
    spec = plan.setup.spec
    lines = [
        f"# What kinetic up would do: {spec.cluster} in {plan.setup.location} of the project {spec.project}.",
        "# Run as someone who has the roles; then: kinetic up, which finds all of it and saves a profile.",
    ]
    connected = False
    for step in plan.to_do:
        if step.resource.in_cluster and not connected:
            connected = True
            lines += ["", "# the way into the cluster", _connect(step.resource)]
        lines += ["", f"# {step.resource.title}" + "".join(f"; {each}" for each in step.changes), *_commands(step)]
    return lines if plan.to_do else [*lines, "# everything is there"]


def _commands(step: Step) -> list[str]:
    found = next(make for kind, make in _MAKERS.items() if isinstance(step.resource, kind))
    return [*found(step)]


def _line(*words: str, **flags: str) -> str:
    """Write a command; names of flags have "_" for "-", and a value of "" is a flag without one."""
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        words += (flag, value) if value else (flag,)
    return shlex.join(words)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _project(step: Step) -> list[str]:
    spec = step.resource.spec
    kind, _, number = spec.parent.partition("/")
    parent = {kind.removesuffix("s"): number} if number else {}
    return [_line("gcloud", "projects", "create", spec.project, **parent)]


def _billing(step: Step) -> list[str]:
    spec = step.resource.spec
    account = spec.billing_account or _ACCOUNT
    return [_line("gcloud", "billing", "projects", "link", spec.project, billing_account=account)]


def _services(step: Step) -> list[str]:
    return [_line("gcloud", "services", "enable", *step.found.page["off"], project=step.resource.spec.project)]


def _network(step: Step) -> list[str]:
    spec = step.resource.spec
    about = {"project": spec.project, "description": spec.description}
    modes = {"subnet_mode": "custom", "bgp_routing_mode": "regional"}
    return [_line("gcloud", "compute", "networks", "create", spec.own_name, **about, **modes)]


def _subnet(step: Step) -> list[str]:
    spec, place = step.resource.spec, {"project": step.resource.spec.project, "region": step.resource.setup.region}
    command = ("gcloud", "compute", "networks", "subnets")
    access = {"enable_private_ip_google_access": ""}
    if step.action == "change":
        return [_line(*command, "update", spec.own_name, **place, **access)]
    about = {"description": spec.description, "network": spec.own_name, "range": network.RANGE}
    return [_line(*command, "create", spec.own_name, **place, **about, **access)]


def _router(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, network.Router)  # noqa: S101 - for mypy
    spec, nat = resource.spec, resource.nat()
    place = {"project": spec.project, "region": resource.setup.region}
    about = {"network": spec.own_name, "description": spec.description}
    router = _line("gcloud", "compute", "routers", "create", spec.own_name, **place, **about)
    ports = {"min_ports_per_vm": str(nat["minPortsPerVm"]), "max_ports_per_vm": str(nat["maxPortsPerVm"])}
    ways = {"auto_allocate_nat_external_ips": "", "nat_all_subnet_ip_ranges": "", "enable_dynamic_port_allocation": ""}
    gateway = _line(
        "gcloud", "compute", "routers", "nats", "create", spec.own_name, router=spec.own_name, **place, **ways, **ports
    )
    return [gateway] if step.action == "change" else [router, gateway]


def _node_account(step: Step) -> list[str]:
    spec = step.resource.spec
    name = spec.account.partition("@")[0]
    about = {"display_name": f"Nodes of {spec.cluster}", "description": spec.description}
    return [_line("gcloud", "iam", "service-accounts", "create", name, project=spec.project, **about)]


def _node_role(step: Step) -> list[str]:
    spec = step.resource.spec
    binding = {"member": spec.account_member, "role": NODE_ROLE, "condition": "None"}
    return [_line("gcloud", "projects", "add-iam-policy-binding", spec.project, **binding)]


def _bucket(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, storage.Bucket)  # noqa: S101 - for mypy
    spec, body, address = resource.spec, resource.body(), f"gs://{resource.spec.bucket}"
    prevent = {"public_access_prevention": ""}
    if step.action == "change":
        return [_line("gcloud", "storage", "buckets", "update", address, **prevent)]
    place = {"project": spec.project, "location": body["location"], "default_storage_class": body["storageClass"]}
    rules = {"uniform_bucket_level_access": "", **prevent, "soft_delete_duration": "0"}
    return [
        _line("gcloud", "storage", "buckets", "create", address, **place, **rules),
        _file("lifecycle.json", body["lifecycle"]),
        _line(
            "gcloud", "storage", "buckets", "update", address,
            update_labels=_labels(spec.labels), lifecycle_file="lifecycle.json",
        ),
    ]  # fmt: skip


def _file(name: str, page: Page) -> str:
    return f"cat > {name} <<'EOF'\n{json.dumps(page, indent=2)}\nEOF"


def _repository(step: Step) -> list[str]:
    spec, place = step.resource.spec, {"project": step.resource.spec.project, "location": step.resource.setup.region}
    command = ("gcloud", "artifacts", "repositories")
    made = _line(*command, "create", spec.own_name, **place, repository_format="docker", labels=_labels(spec.labels))
    binding = {"member": spec.account_member, "role": storage.READER_ROLE}
    read = _line(*command, "add-iam-policy-binding", spec.own_name, **place, **binding)
    return [read] if step.action == "change" else [made, read]


def _cluster(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, Cluster)  # noqa: S101 - for mypy
    spec, location = resource.spec, resource.setup.location
    where = {"project": spec.project, "location": location}
    net = spec.network or spec.own_name
    subnet = resource.setup.subnet or spec.subnet or ("" if spec.network else spec.own_name)
    common = {
        "network": net,
        **({"subnetwork": subnet} if subnet else {}),
        **{_RANGES[name]: value for name, value in resource.setup.ranges.items()},
        "release_channel": "regular",
        **({} if spec.public_nodes else {"enable_private_nodes": ""}),
        "enable_private_endpoint": "",
        "enable_dns_access": "",
        "service_account": spec.account,
        "scopes": CONTAINER_SCOPE,
        "labels": _labels(spec.labels),
    }
    lines = []
    if step.action == "remake":
        lines.append(_line("gcloud", "container", "clusters", "delete", spec.cluster, **where))
    if not spec.standard:
        return [*lines, _line("gcloud", "container", "clusters", "create-auto", spec.cluster, **where, **common)]
    system = resource.system_pool()
    config, scaling = system["config"], system["autoscaling"]
    nodes = {
        "node_locations": location,
        "num_nodes": str(system["initialNodeCount"]),
        "enable_autoscaling": "",
        "min_nodes": str(scaling["minNodeCount"]),
        "max_nodes": str(scaling["maxNodeCount"]),
        "machine_type": config["machineType"],
        "disk_type": config["diskType"],
        "disk_size": str(config["diskSizeGb"]),
        "autoscaling_profile": "optimize-utilization",
        "enable_ip_alias": "",
        "enable_dataplane_v2": "",
        "enable_image_streaming": "",
        "workload_pool": spec.pool,
        "addons": "GcsFuseCsiDriver,GcePersistentDiskCsiDriver",
    }
    return [*lines, _line("gcloud", "container", "clusters", "create", spec.cluster, **where, **common, **nodes)]


def _pool(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, Pool)  # noqa: S101 - for mypy
    spec, body = resource.spec, resource.body()
    config, scaling = body["config"], body["autoscaling"]
    where = {"project": spec.project, "location": resource.setup.location, "cluster": spec.cluster}
    flags: dict[str, str] = {"machine_type": config["machineType"], "num_nodes": "0", "enable_autoscaling": ""}
    flags |= {
        "total_min_nodes": str(scaling["totalMinNodeCount"]),
        "total_max_nodes": str(scaling["totalMaxNodeCount"]),
    }
    flags |= {"location_policy": scaling["locationPolicy"], "service_account": spec.account, "scopes": CONTAINER_SCOPE}
    flags |= {"workload_metadata": config["workloadMetadataConfig"]["mode"], "enable_image_streaming": ""}
    flags |= {"max_pods_per_node": body["maxPodsConstraint"]["maxPodsPerNode"], "labels": _labels(spec.labels)}
    if "locations" in body:
        flags["node_locations"] = ",".join(body["locations"])
    if config.get("spot"):
        flags["spot"] = ""
    for each in config.get("accelerators") or ():
        kind, count = each["acceleratorType"], each["acceleratorCount"]
        flags["accelerator"] = f"type={kind},count={count},gpu-driver-version=default"
    if disk := (config.get("bootDisk") or {}).get("diskType"):
        flags["disk_type"] = disk
    if topology := (body.get("placementPolicy") or {}).get("tpuTopology"):
        flags["tpu_topology"] = topology
    before = []
    if resource.has_policy:
        flags["placement_policy"] = resource.name
        shape = {"type": "HIGH_THROUGHPUT", "accelerator_topology": str(resource.wanted.topology)}
        place = {"project": spec.project, "region": resource.setup.region, "description": spec.description}
        policy = ("gcloud", "compute", "resource-policies", "create", "workload-policy", resource.name)
        before.append(_line(*policy, **place, **shape))
    made = _line("gcloud", "container", "node-pools", "create", resource.name, **where, **flags)
    gone = _line("gcloud", "container", "node-pools", "delete", resource.name, **where)
    return [gone, *before, made] if step.action == "remake" else [*before, made]


def _access(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, storage.Access)  # noqa: S101 - for mypy
    spec, number = resource.spec, resource.apis.number
    place, name, where = "storage buckets", f"gs://{spec.bucket}", {}
    if isinstance(resource, storage.RepositoryAccess):
        place, name = "artifacts repositories", spec.own_name
        where = {"project": spec.project, "location": resource.setup.region}
    command = _line("gcloud", *place.split(), "add-iam-policy-binding", name, **where, role=resource.role)
    if number:
        return [f"{command} --member {shlex.quote(resource.member)}"]
    asked = f"NUMBER=$(gcloud projects describe {shlex.quote(spec.project)} --format 'value(projectNumber)')"
    member = storage.pod_member("$NUMBER", spec.project, spec.namespace, resource.account)
    return [asked, f'{command} --member "{member}"']


def _kubernetes(step: Step) -> list[str]:
    resource = step.resource
    assert isinstance(resource, KubernetesResource)  # noqa: S101 - for mypy
    manifest: dict[str, Any] = resource.manifest()
    if resource.kind.namespaced:
        manifest["metadata"] = {"namespace": resource.spec.namespace, **manifest["metadata"]}
    return [f"kubectl apply --server-side -f - <<'EOF'\n{json.dumps(manifest, indent=2)}\nEOF"]


def _jobset(_: Step) -> list[str]:
    return [_line("kubectl", "apply", "--server-side", "-f", f"{_JOBSET}/v{JOBSET_VERSION}/manifests.yaml")]


def _connect(resource: Resource) -> str:
    spec = resource.spec
    where = {"project": spec.project, "location": resource.setup.location, "dns_endpoint": ""}
    return _line("gcloud", "container", "clusters", "get-credentials", spec.cluster, **where)


_MAKERS: Mapping[type[Resource], Callable[[Step], Sequence[str]]] = {
    Project: _project,
    Billing: _billing,
    Services: _services,
    network.Network: _network,
    network.Subnet: _subnet,
    network.Router: _router,
    NodeAccount: _node_account,
    NodeRole: _node_role,
    storage.Bucket: _bucket,
    storage.Repository: _repository,
    Cluster: _cluster,
    Pool: _pool,
    storage.BucketAccess: _access,
    storage.RepositoryAccess: _access,
    KubernetesResource: _kubernetes,
    JobSet: _jobset,
}
