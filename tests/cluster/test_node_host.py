"""What a real node changes on a machine is put back: at its end, and by the next start after a kill."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import node_host, node_images
from cluster.node_host import BRIDGE, NOTE, Host, NodeUnavailableError

TESTS = Path(__file__).parents[1]
SETTING = Path("/proc/sys/vm/overcommit_memory")

# Does to the machine what a node does to it, leaves a process as a shim is left, and stays.
NODE = """
import signal, subprocess, sys, time
from pathlib import Path
from cluster import node_host
host = node_host.Host()
host.prepare()
name = host.make_cgroup("test")
Path("/proc/sys/vm/overcommit_memory").write_text("1")
subprocess.run(["ip", "link", "add", "kinetic-veth0", "type", "veth"], check=True)
subprocess.run(["ip", "link", "set", "kinetic-veth0", "master", node_host.BRIDGE], check=True)
host.run("inside", ["sh", "-c", f"mount -t tmpfs none /mnt && touch {host.folder}/inside && exec sleep 1000"])
quiet = {"start_new_session": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", str(host.folder)], **quiet)
pod = subprocess.Popen(["sleep", "1000"], **quiet)
for hierarchy in node_host.cgroup_hierarchies():
    inner = hierarchy / name.strip("/") / "pod"
    inner.mkdir()
    if (inner / "cpuset.cpus").exists():
        (inner / "cpuset.cpus").write_text((hierarchy / "cpuset.cpus").read_text())
        (inner / "cpuset.mems").write_text((hierarchy / "cpuset.mems").read_text())
    (inner / "cgroup.procs").write_text(str(pod.pid))
while not (host.folder / "inside").exists():
    time.sleep(0.01)
print(host.folder, pod.pid, flush=True)
if sys.stdin.readline():
    host.close()
"""


@pytest.fixture(autouse=True)
def machine_of_our_own() -> Iterator[None]:
    """A machine that allows it, and on which no other test of this file runs now."""
    reason = node_images.why_debian_will_not_do() or node_host.what_the_machine_forbids()
    if reason:
        pytest.skip(reason)
    with (Path(tempfile.gettempdir()) / "kinetic-test-node.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if NOTE.exists():
            pytest.skip("a real node runs on this machine, or one that was killed waits to be cleaned up")
        yield


class Changed:
    """A machine on which a process has changed what a node changes."""

    def __init__(self) -> None:
        self.setting = SETTING.read_text()
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout
        folder, pod = self.process.stdout.readline().split()
        self.folder, self.pod = Path(folder), int(pod)

    def is_as_before(self) -> bool:
        mounts = Path("/proc/mounts").read_text()
        left = [
            self.folder.exists(),
            NOTE.exists(),
            SETTING.read_text() != self.setting,
            *((Path("/sys/class/net") / name).exists() for name in (BRIDGE, "kinetic-veth0")),
            *(bool(list(each.glob(f"{node_host.CGROUP}-*"))) for each in node_host.cgroup_hierarchies()),
            is_alive(self.pod),
            bool(list(node_host.with_words(str(self.folder)))),
            str(self.folder) in mounts,
        ]
        return not any(left)


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.fixture
def changed() -> Iterator[Changed]:
    made = Changed()
    yield made
    made.process.kill()
    made.process.communicate()
    node_host.put_back()


def test_at_its_end_a_node_leaves_the_machine_as_it_was(changed: Changed) -> None:
    assert SETTING.read_text() == "1\n"
    assert (Path("/sys/class/net") / BRIDGE).exists()
    assert not changed.is_as_before()

    changed.process.communicate("end\n", timeout=30)

    assert changed.process.returncode == 0
    assert changed.is_as_before()


def test_what_a_killed_node_left_is_put_back_by_the_next_one_and_nothing_else_is_touched(changed: Changed) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])
    os.kill(changed.process.pid, signal.SIGKILL)
    changed.process.wait()
    assert is_alive(changed.pod)

    following = Host()
    following.prepare()
    before_it_ends = changed.folder.exists(), SETTING.read_text() == changed.setting, is_alive(changed.pod)
    following.close()

    assert before_it_ends == (False, True, False)
    assert changed.is_as_before()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_two_nodes_do_not_share_a_machine(changed: Changed) -> None:
    second = Host()

    with pytest.raises(NodeUnavailableError, match="another process runs the real node"):
        second.prepare()
    second.close()

    assert is_alive(changed.pod)
    assert changed.folder.exists()


def test_mounts_of_a_node_are_not_seen_by_the_machine(changed: Changed) -> None:
    assert str(changed.folder) not in Path("/proc/mounts").read_text()
    assert " /mnt tmpfs" not in Path("/proc/mounts").read_text()


def test_the_bridge_keeps_its_address_when_pods_come(changed: Changed) -> None:
    """Others would send to an address that ends with that pod, and wait 14 s for the next one."""
    address = Path(f"/sys/class/net/{BRIDGE}/address")
    lower = ["ip", "link", "add", "kinetic-veth1", "address", "02:00:00:00:00:01", "type", "veth"]
    subprocess.run(lower, check=True)
    try:
        before = address.read_text()
        subprocess.run(["ip", "link", "set", "kinetic-veth1", "master", BRIDGE], check=True)
        assert address.read_text() == before
    finally:
        subprocess.run(["ip", "link", "delete", "kinetic-veth1"], check=True)


def test_a_start_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = SETTING.read_text()
    host = Host()
    monkeypatch.setattr(node_host, "HIDDEN", ("/no/such/folder",))

    with pytest.raises(RuntimeError, match="mount namespace ended"):
        host.prepare()
    host.close()

    assert (host.folder.exists(), NOTE.exists(), SETTING.read_text()) == (False, False, before)
    assert not (Path("/sys/class/net") / BRIDGE).exists()


def test_a_network_that_the_machine_uses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = f'[{{"dst": "default", "dev": "eth0"}}, {{"dst": "{node_host.NETWORKS[0]}", "dev": "vpn0"}}]'
    monkeypatch.setattr(node_host, "_ip", lambda *words: taken)

    assert node_host.free_network() == node_host.NETWORKS[1]
