"""Jobs on a real node whose images this client builds over a slow line, each timed phase by phase.

Kubelet, containerd and registry are real (`make node`); the node pulls past the line, as one beside its registry would.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster import binaries, node_host, nodes
from cluster.node_host import Host
from cluster.plane import Plane
from cluster.real_node import RealNodes
from servers import registry as registry_server
from servers.faults import FaultyProxy
from servers.gcs import GcsServer
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import Index, made_wheel

if TYPE_CHECKING:
    from _measure import Sandbox

JOB = """
import time
import kinetic

@kinetic.run(accelerator="cpu", container_image="bundled")
def first():
    now = time.time()
    import small0
    ticks = int(open("/proc/1/stat").read().rpartition(")")[2].split()[19])  # since the machine started, 10 ms each
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / 100
    return now, time.time() - age, small0.VERSION
"""
CLIENT = """
import json, resource, time
begun = time.time()
from timed import first
from kinetic._images import builders, bundled, image, uplink, wheels
uplink.PATIENCE_SECONDS = builders.PATIENCE_SECONDS = float("inf")  # the pods of this cluster reach no registry
spans = {}
def traced(owner, name, label):
    plain = getattr(owner, name)
    def run(*words, **more):
        start = time.time()
        try:
            return plain(*words, **more)
        finally:
            spans.setdefault(label, []).append((start, time.time()))
    setattr(owner, name, run)
traced(bundled, "_lock", "resolve")
traced(wheels.WheelCache, "_fetch_one", "fetch")
traced(image._Build, "_write", "write")
traced(image._Build, "_send", "send")
traced(image.ImageBuilder, "build", "build")
job = first.run_async()
submitted = time.time()
own, uv = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
cpu = sum(each.ru_utime + each.ru_stime for each in (own, uv))
line, process, version = job.result(timeout=300, cleanup=False)
print(json.dumps({"begun": begun, "spans": spans, "submitted": submitted, "cpu": cpu, "job": job.job_id,
                  "line": line, "process": process, "version": version}))
"""
_PULLED = re.compile(r"Successfully pulled image .* in (?P<took>[0-9hms.µ]+) \(")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6}


def why_not() -> str:
    """Return why no job can run on a real node here, or ""."""
    if binaries.missing():
        return "there is no test cluster here: make cluster"
    return node_host.why_not() or registry_server.build()


class Site:
    """A cluster of one real node, a registry with a line before it, and an index of made packages.

    Attributes:
        line: Before the registry; only clients use it.
        index: Serves the packages.
    """

    def __init__(self, sandbox: Sandbox, plane: Plane, line: RegistryProxy, index: Index, base: str) -> None:
        self.line, self.index, self._base = line, index, base
        self._sandbox, self._plane = sandbox, plane
        self._folder = sandbox.folder / "index"
        self._scheduled: dict[str, float] = {}
        threading.Thread(target=self._watch, name="pods", daemon=True).start()
        sandbox.script("timed.py", JOB)
        sandbox.script("client.py", CLIENT)
        self.publish("uv", {"not_uv.py": ""})  # nothing is installed in these pods
        found = importlib.metadata.distribution("obstore")
        files = {
            str(file): Path(str(found.locate_file(file))).read_bytes()
            for file in found.files or ()
            if file.parts[0] != ".." and "__pycache__" not in file.parts and ".dist-info" not in file.parts[0]
        }
        self.publish("obstore", files, found.version)

    def publish(self, name: str, files: dict[str, Any], version: str = "1.0") -> None:
        """Add a wheel to the index."""
        self.index(made_wheel(self._folder, name, version, files))

    def run(self, requirements: dict[str, str], *, megabits: float = 20) -> dict[str, float]:
        """Submit the job in a new process with these versions; return how many seconds each phase took.

        Args:
            requirements: Version by package; that of small0 is found by the job.
            megabits: Of the line to the registry; 0 passes it by.
        """
        self.line.rules.megabits = megabits
        registry = self.line.address if megabits else self.line.upstream
        images = {
            "KINETIC_IMAGE_REPO": f"{registry}/team/kinetic",
            "KINETIC_BASE_IMAGE": f"{registry}/{self._base}",
        }
        lines = ", ".join(f'"{name}=={version}"' for name, version in requirements.items())
        page = f'[project]\nname = "shop"\nversion = "1"\ndependencies = [{lines}]\n'
        (self._sandbox.project / "pyproject.toml").write_text(page)
        done = subprocess.run(
            [sys.executable, "client.py"],
            env=self._sandbox.environ | images,
            cwd=self._sandbox.project,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{done.stderr[:2000]}\n…\n{done.stderr[-2000:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        if told["version"] != requirements["small0"]:
            raise RuntimeError(f"the job found small0 {told['version']}")
        spans = {name: (min(each[0] for each in found), max(each[1] for each in found))
                 for name, found in told["spans"].items()}  # fmt: skip
        pod = self._pod_of(told["job"])
        pull = self._pull_seconds(pod)
        scheduled = self._scheduled[pod]
        phases = {f"{name} s": end - start for name, (start, end) in spans.items()}
        return phases | {
            "submit s": told["submitted"] - told["begun"],
            "cpu s": told["cpu"],
            "schedule s": scheduled - told["submitted"],
            "pull s": pull,
            "start s": told["process"] - scheduled - pull,
            "runner s": told["line"] - told["process"],
            "total s": told["line"] - told["begun"],
        }

    def _pod_of(self, job_id: str) -> str:
        found = self._plane.api.get("/api/v1/namespaces/default/pods", labelSelector=f"job-id={job_id}")["items"]
        return str(found[-1]["metadata"]["name"])

    def _pull_seconds(self, pod: str) -> float:
        limit = time.monotonic() + 10
        while time.monotonic() < limit:  # a kubelet sends its events a moment later
            selector = f"involvedObject.name={pod},reason=Pulled"
            events = self._plane.api.get("/api/v1/namespaces/default/events", fieldSelector=selector)["items"]
            for event in events:
                if found := _PULLED.search(event["message"]):
                    parts = re.findall(r"([0-9.]+)(h|ms|µs|m|s)", found["took"])
                    return sum(float(number) * _UNITS[unit] for number, unit in parts)
                return 0.0  # it was there
            time.sleep(0.05)
        raise RuntimeError(f"the kubelet says nothing of the image of {pod}")

    def _watch(self) -> None:
        """Note when each pod gets its node, on the clock of this machine."""
        with contextlib.suppress(Exception), self._plane.api.stream(
            "/api/v1/namespaces/default/pods", watch="true"
        ) as lines:  # fmt: skip
            for line in lines:
                pod = json.loads(line)["object"]
                if pod.get("spec", {}).get("nodeName"):
                    self._scheduled.setdefault(pod["metadata"]["name"], time.time())


@contextlib.contextmanager
def started(sandbox: Sandbox) -> Iterator[Site]:
    """Start a cluster with one real node and everything that its jobs need; end and undo all of it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinetic-cluster-")))
        plane = Plane(folder, names=True).start()
        stack.callback(plane.stop)
        real = RealNodes(plane.nodes, plane.authority, Host()).start()
        stack.callback(real.stop)
        real.add_node(nodes.cpu("real"))
        store = GcsServer().start()
        stack.callback(store.close)
        store.bucket("jobs")
        reachable = FaultyProxy(store.url, real.gateway)
        stack.callback(reachable.close)
        address = stack.enter_context(registry_server.started(sandbox.folder / "registry"))
        line = stack.enter_context(RegistryProxy(address, Rules(mounts=True)))
        index = Index()
        stack.callback(index.close)
        real.trust_registry(address)
        real.trust_registry(line.address, through=address)
        base = real.push_python(address).partition("/")[2]
        sandbox.environ |= {
            "KUBECONFIG": str(plane.kubeconfig),
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBE_CONTEXT": "test",
            "KINETIC_NAMESPACE": "default",
            "KINETIC_STORE": "gs://jobs/bench",
            "STORAGE_EMULATOR_HOST": reachable.url,
            "KINETIC_BASE_PACKAGES": "0",
            "KINETIC_REQUIRE_ACCELERATOR": "0",
            "UV_DEFAULT_INDEX": index.simple,
            "UV_CACHE_DIR": str(sandbox.folder / "uv"),
        }
        yield Site(sandbox, plane, line, index, base)
