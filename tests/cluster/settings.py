"""The command lines of the control plane's programs, each word with its reason where it is not plain."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# What jobs need, and what gives their users reasons (quota, disruption). Not the endpoint controllers: they refuse
# loopback addresses, which is what the pods of our node agent have; names inside a slice come from the agent.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)
# Where nodes are real, pods have addresses that these take, and CoreDNS answers with them.
CONTROLLERS_OF_NAMES = ("endpoints-controller", "endpointslice-controller")


class Ports(NamedTuple):
    """Where each program listens, on 127.0.0.1."""

    etcd: int
    etcd_peers: int
    api: int
    controllers: int
    scheduler: int
    jobset_webhook: int
    jobset_health: int


class Patience(NamedTuple):
    """How long the control plane waits, in seconds; a real one is 3 to 30 times as patient.

    Attributes:
        node_silence: Without a sign of life before a node counts as lost (GKE: 40 and more).
        eviction: Before pods of a lost node are deleted (everywhere: 300).
    """

    node_silence: int = 16
    eviction: int = 10


def etcd(folder: Path, ports: Ports) -> list[str]:
    here, peers = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peers}"
    return [
        "--name=only",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={here}",
        f"--advertise-client-urls={here}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=only={peers}",
        "--unsafe-no-fsync",  # its data die with the test run anyway
        "--log-level=warn",
    ]


def api_server(folder: Path, ports: Ports, patience: Patience, *, fair: bool) -> list[str]:
    flow = [] if fair else ["--enable-priority-and-fairness=false", "--max-requests-inflight=0"]
    return [
        *flow,
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--secure-port={ports.api}",
        f"--tls-cert-file={folder / 'api.crt'}",
        f"--tls-private-key-file={folder / 'api.key'}",
        f"--client-ca-file={folder / 'ca.crt'}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        f"--service-account-key-file={folder / 'accounts.key'}",
        f"--service-account-signing-key-file={folder / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--service-cluster-ip-range=10.0.0.0/24",
        # To the node agent, which demands a certificate of ours: whoever reaches its port could run commands.
        f"--kubelet-certificate-authority={folder / 'ca.crt'}",
        f"--kubelet-client-certificate={folder / 'api-to-nodes.crt'}",
        f"--kubelet-client-key={folder / 'api-to-nodes.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--default-not-ready-toleration-seconds={patience.eviction}",
        f"--default-unreachable-toleration-seconds={patience.eviction}",
        "--allow-privileged=true",
        # As some clusters have it: who may not delete an object may not change its owner.
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--profiling=false",
        # A client that follows a log must not make a restart wait.
        "--shutdown-delay-duration=0s",
        "--shutdown-watch-termination-grace-period=0s",
    ]


def controller_manager(folder: Path, ports: Ports, patience: Patience, *, names: bool) -> list[str]:
    controllers = (*CONTROLLERS, *(CONTROLLERS_OF_NAMES if names else ()))
    return [
        f"--controllers={','.join(controllers)}",
        f"--kubeconfig={folder / 'components.yaml'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.controllers}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        f"--service-account-private-key-file={folder / 'accounts.key'}",
        f"--root-ca-file={folder / 'ca.crt'}",
        "--leader-elect=false",
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={patience.node_silence}s",
        # Every zone may lose all its nodes and is still evicted from at once: there are two or three nodes here.
        "--node-eviction-rate=10",
        "--secondary-node-eviction-rate=10",
        "--namespace-sync-period=5s",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


def scheduler(folder: Path, ports: Ports) -> list[str]:
    return [
        f"--kubeconfig={folder / 'components.yaml'}",
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.scheduler}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]
