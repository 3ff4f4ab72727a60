"""What a real node changes on this machine, and how everything is put back: also by the next start after a kill.

Mounts are in a mount namespace of the node's own, which ends with its last process. There, /run, /var/log and /var/lib
are folders of a file system in memory, which also holds images, containers and logs: nothing of them is left on a disk,
and no pod waits for one. What is left for us to undo is written down before it is changed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster import binaries, node_images
from cluster.processes import Process

NOTE = Path("/run/kinetic-test-node.json")
LOCK = "\0kinetic-test-node"  # an abstract socket: of the whole machine, and gone with the process that holds it
BRIDGE = "kinetic-node"
ADDRESS = "02:6b:69:6e:65:74"  # of the bridge; the first byte says that no maker gave it
CGROUP = "kinetic-node"  # the beginning of the name of each node's cgroup
CGROUPS = Path("/sys/fs/cgroup")
# What a kubelet sets without asking, and what a plugin of the network may.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
HIDDEN = ("/run", "/var/log", "/var/lib")  # folders that these programs write to, whatever their configuration says
NETWORKS = [ipaddress.ip_network(f"10.{second}.77.0/24") for second in (213, 187, 151, 119, 67)]
_PROGRAMS = ("ip", "unshare", "nsenter", "setpriv")


class NodeUnavailableError(Exception):
    """A real node cannot be started here; the words say why and what to do."""


def why_not() -> str:
    """Return why no real node can be started on this machine, or ""."""
    if reason := node_images.why_debian_will_not_do():
        return reason
    if absent := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"the real node needs {', '.join(absent)} on the PATH"
    if lacking := [*binaries.NODE.missing(), *node_images.missing()]:
        return f"the real node is not built ({', '.join(lacking)}): run `make node`"
    return what_the_machine_forbids()


def what_the_machine_forbids() -> str:
    """Try, in namespaces that end at once, what a node does; return what is refused, or ""."""
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return "this machine's kernel has no overlay file system"
    for hierarchy in cgroup_hierarchies():
        probe = hierarchy / f"{CGROUP}-probe"
        try:
            probe.mkdir(exist_ok=True)
            probe.rmdir()
        except OSError as error:
            return f"this machine forbids cgroups: mkdir {probe}: {error.strerror}"
    tries = {
        "mounts": ["unshare", "--mount", "--propagation", "slave", "mount", "-t", "tmpfs", "none", "/mnt"],
        "bridges": ["unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"],
        "veth pairs": ["unshare", "--net", "ip", "link", "add", "probe", "type", "veth"],
    }
    for what, command in tries.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"this machine forbids {what}: `{' '.join(command)}` says {done.stderr.strip()}"
    return ""


def cgroup_hierarchies() -> list[Path]:
    """List the roots of the cgroup hierarchies: one with version 2, one for each controller with version 1."""
    if (CGROUPS / "cgroup.procs").exists():
        return [CGROUPS]
    return sorted({each.parent.resolve() for each in CGROUPS.glob("*/cgroup.procs")})


class Host:
    """This machine, with everything of a node's that does not end by itself.

    Attributes:
        folder: Of the node's programs; its path in their command lines marks them as ours.
        disk: In memory, and seen by the node's programs only.
        gateway: This machine's address on the bridge: pods reach servers there, and kubelets listen there.
        network: Of the pods.
        shared: A folder that this machine and all containers see under the same path.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"kinetic-node-{secrets.token_hex(4)}"
        self.shared, self.disk = self.folder / "shared", self.folder / "disk"
        self.network = free_network()
        self.gateway = str(self.network[1])
        self._lock: socket.socket | None = None
        self._holder: Process | None = None

    def prepare(self) -> None:
        """Clean up after a former node, write down what will change, and change it.

        Raises:
            NodeUnavailableError: Somebody else runs a real node on this machine.
        """
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(LOCK)
        except OSError:
            lock.close()
            raise NodeUnavailableError("another process runs the real node of this machine: wait for its end") from None
        self._lock = lock
        put_back()
        note = {"folder": str(self.folder), "sysctls": read_sysctls(), "boot": _boot()}
        NOTE.with_suffix(".new").write_text(json.dumps(note))
        NOTE.with_suffix(".new").replace(NOTE)  # from here on the next start can undo what follows
        for folder in (self.folder, self.shared, self.disk):
            folder.mkdir(mode=0o755)
        self.shared.chmod(0o1777)
        # With an address of its own: otherwise it takes one of its pods', and when that pod ends, the others lose it.
        _ip("link", "add", BRIDGE, "address", ADDRESS, "type", "bridge")
        _ip("addr", "add", f"{self.gateway}/{self.network.prefixlen}", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        self._make_namespace()

    def _make_namespace(self) -> None:
        """Make a mount namespace, held by a process of ours until we or it are gone."""
        pairs = [(str(self.disk / name.replace("/", "_")), name) for name in HIDDEN]
        steps = [f"mount -t tmpfs -o mode=755 none {self.disk}"]
        steps += [f"mkdir {hidden} && mount --bind {hidden} {name}" for hidden, name in pairs]
        script = " && ".join([*steps, f"touch {self.folder}/mounted", "exec sleep infinity"])
        words = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script]
        self._holder = Process("mount namespace", words, self.folder / "namespace.log")
        self._holder.wait_until((self.folder / "mounted").exists, 10)

    def run(self, name: str, words: list[str], **environment: str) -> Process:
        """Start a program in the node's mount namespace."""
        assert self._holder is not None, "prepare comes first"
        inside = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *words]
        return Process(name, inside, self.folder / f"{name.replace('/', '-')}.log", environment)

    def make_cgroup(self, name: str) -> str:
        """Make a cgroup in each hierarchy for the pods of one node; return its path as a kubelet names it."""
        for hierarchy in cgroup_hierarchies():
            made = hierarchy / f"{CGROUP}-{name}"
            made.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):  # of version 1: nothing runs where these are empty
                if (hierarchy / setting).exists() and (made / setting).exists():
                    (made / setting).write_text((hierarchy / setting).read_text())
        return f"/{CGROUP}-{name}"

    def close(self) -> None:
        """Put everything back. Processes of the node need not be gone; they are after this."""
        if self._holder is not None:
            self._holder.kill()
        if self._lock is not None:
            put_back()
            self._lock.close()


def put_back() -> None:
    """Undo what is written down, step by step, so that one that is killed here is continued by the next."""
    if not NOTE.exists():
        return
    note: dict[str, Any] = json.loads(NOTE.read_text())
    folder = Path(note["folder"])
    if note["boot"] == _boot():  # a new start of the machine has undone the rest
        end_processes(folder)
        if (Path("/sys/class/net") / BRIDGE).exists():
            for port in (Path("/sys/class/net") / BRIDGE / "brif").iterdir():
                with contextlib.suppress(subprocess.CalledProcessError):  # it goes with its network namespace
                    _ip("link", "delete", port.name)
            _ip("link", "delete", BRIDGE)
        for hierarchy in cgroup_hierarchies():
            for root in hierarchy.glob(f"{CGROUP}-*"):
                _remove_cgroup(root)
        for name, value in note["sysctls"].items():
            if read_sysctls().get(name) != value:
                (Path("/proc/sys") / name).write_text(value)
    shutil.rmtree(folder, ignore_errors=True)
    NOTE.unlink()


def end_processes(folder: Path) -> None:
    """Kill the processes in the node's cgroups and those whose command line names its folder: shims outlive containerd.

    Raises:
        RuntimeError: Some do not end.
    """
    limit = time.monotonic() + 20
    while left := {*_in_cgroups(), *with_words(str(folder))}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > limit:
            raise RuntimeError(f"processes of the real node do not end: {sorted(left)}")
        time.sleep(0.02)


def _in_cgroups() -> Iterator[int]:
    for hierarchy in cgroup_hierarchies():
        for root in hierarchy.glob(f"{CGROUP}-*"):
            for procs in root.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    yield from map(int, procs.read_text().split())


def with_words(words: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if words.encode() in path.read_bytes() and pid != os.getpid():
                yield pid


def _remove_cgroup(root: Path) -> None:
    """Remove a cgroup with those below it; the kernel needs a moment to forget processes."""
    limit = time.monotonic() + 10
    while root.exists():
        for each in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                each.rmdir()
        try:
            root.rmdir()
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.02)


def read_sysctls() -> dict[str, str]:
    """Read the settings of the kernel that a node changes."""
    paths = {name: Path("/proc/sys") / name for name in SYSCTLS}
    return {name: path.read_text().strip() for name, path in paths.items() if path.exists()}


def free_network() -> ipaddress.IPv4Network:
    """Find a network for the pods that this machine has no route to.

    Raises:
        NodeUnavailableError: All that are tried are in use.
    """
    routes = json.loads(_ip("-json", "-4", "route", "show"))
    taken = [
        ipaddress.ip_network(each["dst"]) for each in routes if each["dst"] != "default" and each.get("dev") != BRIDGE
    ]
    for network in NETWORKS:
        if not any(network.overlaps(other) for other in taken):
            return network
    raise NodeUnavailableError(f"all networks that the real node could use have routes here: {NETWORKS}")


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
