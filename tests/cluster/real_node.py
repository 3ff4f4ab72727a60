"""Real nodes of the test cluster: kubelet, containerd and runc, with CoreDNS for the names of pods.

They take the place of the node agent: tests add nodes as they are described, and get nodes of these with the labels,
taints and devices of the description. Amounts of CPU and memory are this machine's own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cluster import binaries, node_images
from cluster.access import Access, Endpoint, RefusedError
from cluster.node_host import BRIDGE, Host
from cluster.plane import wait_for
from cluster.processes import answers, free_ports

if TYPE_CHECKING:
    from cluster.certificates import Authority
    from cluster.nodes import NodeSpec
    from cluster.processes import Process

DOMAIN = "cluster.local"
UNUSED = {"key": "kinetic.test/unused", "value": "yes", "effect": "NoSchedule"}  # what no test has added
# CoreDNS as clusters have it: what it found it repeats for 30 s, what it did not find for 5.
COREFILE = """\
.:53 {{
    bind {gateway}
    errors
    kubernetes {domain} {{
        kubeconfig {kubeconfig}
    }}
    cache 30
}}
"""
HOSTS = """\
server = "http://{address}"
[host."http://{address}"]
  capabilities = ["pull", "resolve"]
"""


class RealNodes:
    """All real nodes of a test cluster: further ones are started when a test adds more than there are.

    Attributes:
        gateway: This machine's address as pods and nodes see it; servers for pods listen there.
        shared: A folder that the test and all containers see under the same path.
    """

    def __init__(self, endpoint: Endpoint, authority: Authority, host: Host, packages: Path | None = None) -> None:
        """Prepare; ``packages``: a folder that all containers see as that of their Python, and cannot write to."""
        self._host, self._endpoint, self._authority = host, endpoint, authority
        self._packages = packages
        self.gateway, self.shared = host.gateway, host.shared
        self._api = Access(endpoint)
        self._nodes: list[RealNode] = []
        self._specs: dict[str, NodeSpec] = {}
        self._dns: Process | None = None

    def start(self) -> RealNodes:
        """Start the first node and the DNS server; if that fails, leave nothing."""
        try:
            self._host.prepare()
            self._kubeconfig = self._endpoint.write_kubeconfig(self._host.folder / "kubeconfig.yaml")
            self._write_network()
            self._start_dns()
            self._start_node()
        except BaseException:
            self.stop()
            raise
        return self

    def _write_network(self) -> None:
        address = {
            "type": "host-local",
            "dataDir": str(self._host.disk / "addresses"),
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        address["ranges"] = [
            [{"subnet": str(self._host.network), "rangeStart": str(self._host.network[16]), "gateway": self.gateway}]
        ]
        # No gateway of the plugin's, no masquerading: it would turn on forwarding and write NAT chains. Pods reach one
        # another and this machine, and nothing else: no test comes to depend on the internet.
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": False, "ipMasq": False, "ipam": address}
        folder = self._host.folder / "network"
        folder.mkdir()
        page = {"cniVersion": "1.0.0", "name": "kinetic-node", "plugins": [bridge]}
        (folder / "10-bridge.conflist").write_text(json.dumps(page))

    def _start_dns(self) -> None:
        file = self._host.folder / "Corefile"
        file.write_text(COREFILE.format(gateway=self.gateway, domain=DOMAIN, kubeconfig=self._kubeconfig))
        (self._host.folder / "resolv.conf").write_text(f"nameserver {self.gateway}\n")
        self._dns = self._host.run("coredns", [str(binaries.NODE.program("coredns")), "-conf", str(file)])

    def _start_node(self) -> RealNode:
        node = RealNode(str(len(self._nodes)), self._host, self._authority, self._kubeconfig, self._packages)
        self._nodes.append(node)
        node.start(self._api)
        return node

    def stop(self) -> None:
        """End everything, and put back what was changed on this machine."""
        for node in self._nodes:
            node.kill()
        if self._dns is not None:
            self._dns.kill()
        self._api.close()
        self._host.close()

    # ------------------------------------------------------------------------------------------------- the test's way

    def add_node(self, spec: NodeSpec) -> str:
        """Give a node the labels, taints and devices of a description; return its name, which is its own."""
        free = [node for node in self._nodes if node.name not in self._specs]
        node = free[0] if free else self._start_node()
        self._specs[node.name] = spec
        labels = {key: value for key, value in spec.labels.items() if not key.startswith("kubernetes.io/")}
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in spec.taints]
        self._describe(node.name, labels, taints, _devices(spec))
        return node.name

    def discard_node(self, described: str) -> None:
        """Take from a node what `add_node` gave it: nothing runs there until it is added again."""
        for name in [name for name, spec in self._specs.items() if spec.name == described]:
            spec = self._specs.pop(name)
            labels = {key: None for key in spec.labels if not key.startswith("kubernetes.io/")}
            self._describe(name, labels, [UNUSED], dict.fromkeys(_devices(spec)))
            self._end_pods(name)

    def _end_pods(self, node: str) -> None:
        """End what a test left: the next one needs the CPUs, and a kubelet counts those of pods that still end."""

        def left() -> list[dict[str, Any]]:
            pods: list[dict[str, Any]] = self._api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")["items"]
            return [pod for pod in pods if pod["status"].get("phase") not in {"Succeeded", "Failed"}]

        for pod in left():
            with contextlib.suppress(RefusedError):  # it is gone by now
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                self._api.delete(path, gracePeriodSeconds="1")
        wait_for(f"the pods of {node} to end", lambda: not left())

    def _describe(self, name: str, labels: Any, taints: list[dict[str, str]], devices: Any) -> None:
        path = f"/api/v1/nodes/{name}"
        self._api.merge(f"{path}/status", {"status": {"capacity": devices, "allocatable": devices}})
        self._api.merge(path, {"metadata": {"labels": labels}, "spec": {"taints": taints}})

    def trust_registry(self, address: str, *, through: str = "") -> None:
        """Let the nodes pull from a registry without TLS: containerd does so for whom its configuration names.

        ``through``: Another address of the same registry, from which they pull what is named after the first.
        """
        folder = self._host.folder / "registries" / address
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts.toml").write_text(HOSTS.format(address=through or address))

    def push_python(self, address: str) -> str:
        """Put the image of Python into a registry that has no TLS; return its name there."""
        return self._nodes[0].push(node_images.PYTHON, f"{address}/library/python:{node_images.VERSION}-slim")

    def pids(self, namespace: str, pod: str) -> dict[str, int]:
        """Return the first process of each running container, as this machine counts them."""
        found = self._api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")
        (node,) = [each for each in self._nodes if each.name == found["spec"]["nodeName"]]
        running = dict(line.split()[:2] for line in node.ctr("tasks", "list").splitlines()[1:])
        ids = {each["name"]: each["containerID"].rpartition("/")[2] for each in found["status"]["containerStatuses"]}
        return {name: int(running[number]) for name, number in ids.items() if number in running}

    def images(self) -> set[str]:
        """Return the names of the images that some node has."""
        return {name for node in self._nodes for name in node.ctr("images", "list", "--quiet").split()}


def _store_client() -> list[Path]:
    """Return the folders of the store's client: prebuilt images have it, and these pods cannot install it."""
    distribution = importlib.metadata.distribution("obstore")
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
    return [Path(str(distribution.locate_file(top))) for top in sorted(tops)]


def _mount(source: Path, at: Path, mode: str) -> dict[str, Any]:
    return {"type": "bind", "source": str(source), "destination": str(at), "options": ["rbind", mode]}


def _devices(spec: NodeSpec) -> dict[str, str]:
    return {name: amount for name, amount in spec.capacity.items() if "/" in name}


class RealNode:
    """One kubelet with a containerd of its own.

    Attributes:
        name: As the cluster knows it.
        folder: With the configuration and the logs of its programs.
        disk: With everything else, where only they see it.
    """

    def __init__(
        self, number: str, host: Host, authority: Authority, kubeconfig: Path, packages: Path | None = None
    ) -> None:
        self.name = f"real-{number}"
        self._packages = packages
        self.folder, self.disk = host.folder / number, host.disk / number
        self._number, self._host, self._kubeconfig = number, host, kubeconfig
        self._port, self._health = free_ports(2)
        self._socket = self.folder / "containerd.sock"
        self.folder.mkdir()
        self._pair = authority.issue(self.name, folder=self.folder, hosts=(host.gateway,))
        self._clients = str(authority.certificate)
        self._processes: list[Process] = []

    def start(self, api: Access) -> None:
        """Start both, and return when the node is ready."""
        self._start_containerd()
        for image in (node_images.pause_tar(), node_images.python_tar()):
            self.ctr("images", "import", "--local", str(image))
        self.ctr("images", "tag", node_images.PYTHON, node_images.OF_CLUSTER_TESTS)
        kubelet = self._start_kubelet()
        kubelet.wait_until(lambda: answers(self._health, "/healthz", tls=False))
        wait_for(f"{self.name} to be ready", lambda: self._is_ready(api))

    def _is_ready(self, api: Access) -> bool:
        try:
            conditions = api.get(f"/api/v1/nodes/{self.name}")["status"].get("conditions", [])
        except RefusedError:
            return False
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def kill(self) -> None:
        for process in reversed(self._processes):
            process.kill()

    def ctr(self, *words: str) -> str:
        """Run a command of containerd's own client."""
        command = [str(binaries.NODE.program("ctr")), "--address", str(self._socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def push(self, image: str, name: str) -> str:
        """Push an image under another name; return that."""
        self.ctr("images", "tag", image, name)
        self.ctr("images", "push", "--local", "--plain-http", name)
        self.ctr("images", "remove", name)
        return name

    # -------------------------------------------------------------------------------------------------- configuration

    def _start_containerd(self) -> None:
        path = self.folder / "containerd.toml"
        path.write_text(self._containerd_configuration())
        path_of_programs = f"{binaries.NODE.folder() / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"  # where it finds its shim
        words = [str(binaries.NODE.program("containerd")), "--config", str(path)]
        containerd = self._host.run(f"{self._number}/containerd", words, PATH=path_of_programs)
        self._processes.append(containerd)
        containerd.wait_until(self._socket.exists)
        containerd.wait_until(self._answers)

    def _answers(self) -> bool:
        command = [str(binaries.NODE.program("ctr")), "--address", str(self._socket), "version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _containerd_configuration(self) -> str:
        base = json.loads(subprocess.run(
            [str(binaries.NODE.program("ctr")), "oci", "spec"], capture_output=True, check=True
        ).stdout)  # fmt: skip
        base["mounts"].append(_mount(self._host.shared, self._host.shared, "rw"))
        if self._packages is not None:
            base["mounts"].append(_mount(self._packages, Path(node_images.SITE_PACKAGES), "ro"))
        for package in () if self._packages is not None else _store_client():
            base["mounts"].append(_mount(package, Path(node_images.SITE_PACKAGES) / package.name, "ro"))
        (self.folder / "base.json").write_text(json.dumps(base))
        debian = node_images.debian()
        return f"""\
version = 3
imports = []
root = '{self.disk / "root"}'
state = '{self.disk / "state"}'
disabled_plugins = ['io.containerd.nri.v1.nri', 'io.containerd.internal.v1.opt']
[grpc]
  address = '{self._socket}'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{node_images.PAUSE}'
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = '{self._host.folder / "registries"}'
[plugins.'io.containerd.cri.v1.runtime']
  # Without CAP_SYS_RESOURCE nobody may lower these numbers, and no container would start.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  enable_cdi = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['{debian / "usr/lib/cni"}']
  conf_dir = '{self._host.folder / "network"}'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  base_runtime_spec = '{self.folder / "base.json"}'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = '{debian / "usr/sbin/runc"}'
  Root = '{self.disk / "runc"}'
  SystemdCgroup = false
"""

    def _start_kubelet(self) -> Process:
        path = self.folder / "kubelet.yaml"
        path.write_text(yaml.safe_dump(self._kubelet_configuration()))
        words = [
            f"--config={path}",
            f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={self.disk / 'kubelet'}",
            f"--cert-dir={self.folder / 'kubelet-certificates'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self._host.gateway}",
        ]
        kubelet = self._host.run(f"{self._number}/kubelet", [str(binaries.NODE.program("kubelet")), *words])
        self._processes.append(kubelet)
        return kubelet

    def _kubelet_configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Not on all addresses: the node agents of other tests listen on loopback ones, on the same port.
            "address": self._host.gateway,
            "port": self._port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self._health,
            "tlsCertFile": str(self._pair.certificate),
            "tlsPrivateKeyFile": str(self._pair.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": self._clients},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "clusterDNS": [self._host.gateway],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self._host.folder / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            # One for each: a kubelet removes from its own whatever it does not know, as the pods of another.
            "cgroupRoot": self._host.make_cgroup(self._number),
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "oomScoreAdj": 0,
            "registerWithTaints": [UNUSED],
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,  # of which it uses a quarter
            "evictionHard": {"memory.available": "50Mi"},  # the disk of a machine of ours may be rather full
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": str(self.disk / "volume-plugins"),
        }
