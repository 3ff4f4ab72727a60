"""The nodes of the test cluster: a small kubelet that runs pods as processes of this machine.

Truthful in what a scheduler, a Job controller and a user can see: phases, states, exit codes, signals, logs, names.
Not done, and refused rather than pretended: hostPath and CSI volumes, probes, lifecycle hooks, sidecars. All pods
share this machine's network; each has a loopback address of its own. Memory runs out when a test asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cluster import names, statuses
from cluster.access import Endpoint, RefusedError
from cluster.calls import Calls, Change
from cluster.images import Registry
from cluster.nodes import Node, NodeSpec
from cluster.pods import OUT_OF_MEMORY, Ending, PodWorker
from cluster.serving import NoSuchError, Server

if TYPE_CHECKING:
    from cluster.certificates import Authority, Pair
    from cluster.containers import Container
    from cluster.logs import Log

# A real kubelet listens on the first, perhaps on all addresses; then agents take the next that nobody has.
KUBELET_PORTS = (10250, 20250, 30250)
# GKE gives user pods 15 of the 30 seconds that follow the notice.
SPOT_GRACE_SECONDS = 15
T = TypeVar("T")


class Agent:
    """Runs all nodes of a test cluster on a thread of its own; its methods are called from the test's thread.

    Attributes:
        registry: The images that exist; add your own.
        address: Where it listens for the API server.
        port: On which port.
    """

    def __init__(
        self, endpoint: Endpoint, authority: Authority, folder: Path, registry: Registry | None = None
    ) -> None:
        self.registry = registry or Registry()
        self.api_port = int(endpoint.url.rsplit(":", 1)[1])
        self._endpoint = endpoint
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._socket, self._block = claim_block()
        self.address, self.port = self._socket.getsockname()
        self._pair: Pair = authority.issue("nodes", folder=folder, hosts=(self.address,))
        self._authority = str(authority.certificate)
        self._numbers = itertools.count()
        self._nodes: dict[str, Node] = {}
        self._workers: dict[str, PodWorker] = {}
        self._services: dict[str, dict[str, Any]] = {}
        self._dark: set[tuple[str, str]] = set()  # pods on machines without power: whoever asks for them hears nothing
        self._stale: set[str] = set()  # namespaces whose names are to be written anew
        self._background: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="node agent", daemon=True)

    def start(self) -> Agent:
        self._thread.start()
        self._do(self._start())
        return self

    def stop(self) -> None:
        """End all pods' processes and everything else; the objects stay as they are."""
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)

    async def _start(self) -> None:
        self.calls = Calls(self._endpoint)
        self._server = Server(self)
        await self._server.start(self._socket, self._pair, self._authority)
        self._spawn(self._follow_services())
        self._spawn(self._follow_pods())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _stop(self) -> None:
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        for node in self._nodes.values():
            node.silence()
        await asyncio.gather(*(worker.vanish() for worker in self._workers.values()))
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.close()
        await self.calls.close()

    # ------------------------------------------------------------------------------------------------- the test's way

    def add_node(self, spec: NodeSpec) -> str:
        """Register a node; return its name. The scheduler uses it as soon as the server has heard from it."""

        async def add() -> str:
            node = self._nodes[spec.name] = Node(spec, self.address, self.port, self.calls)
            await node.register()
            return spec.name

        return self._do(add())

    def remove_node(self, name: str) -> None:
        """Delete a node's object, with whatever still runs there: the cloud has taken the machine away."""

        async def remove() -> None:
            await self._lose_power(name)
            await self._nodes.pop(name).remove()

        self._do(remove())

    def discard_node(self, name: str) -> None:
        """Remove a node if it is still there."""
        if name in self._nodes:
            self.remove_node(name)

    def preempt(self, name: str, grace_seconds: float = SPOT_GRACE_SECONDS, *, remove: bool = True) -> None:
        """Take a spot machine away as its cloud does: it says so, pods get SIGTERM and their grace, then it is gone.

        Returns when it is over.
        """

        async def shut_down() -> None:
            node = self._nodes[name]
            await node.announce_shutdown()
            here = self._workers_on(name)
            for worker in here:
                own = worker.pod["spec"].get("terminationGracePeriodSeconds", 30)
                words = (statuses.SHUTDOWN_REASON, statuses.SHUTDOWN_MESSAGE, "TerminationByKubelet")
                worker.end(Ending(min(own, grace_seconds), *words))
            await asyncio.gather(*(worker.wait_until_ended() for worker in here))
            if remove:
                await self._lose_power(name)
                await self._nodes.pop(name).remove()

        self._do(shut_down())

    def kill(self, name: str) -> None:
        """Cut a node's power: its processes are gone, and nobody says so; its object stays until it is deleted."""
        self._do(self._lose_power(name))

    async def _lose_power(self, name: str) -> None:
        self._nodes[name].silence()
        here = self._workers_on(name)
        self._dark |= (unheard := {_key(worker.pod) for worker in here})
        self._server.cut(unheard)
        for worker in here:
            self._workers.pop(worker.pod["metadata"]["uid"], None)
        await asyncio.gather(*(worker.vanish() for worker in here))

    def set_offline(self, name: str) -> None:
        """Cut a node's network: pods go on, nothing is reported and nothing is heard."""

        async def offline() -> None:
            self._nodes[name].online.clear()
            self._server.cut({_key(worker.pod) for worker in self._workers_on(name)})

        self._do(offline())

    def set_online(self, name: str) -> None:
        async def online() -> None:
            self._nodes[name].online.set()
            pods = await self.calls.insist("GET", "/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
            await self._take_list(pods["items"], only=name)

        self._do(online())

    def take_away_capacity(self, name: str, resource: str) -> None:
        """Have a node lose its devices, e.g. "google.com/tpu"; pods that run go on."""
        self._do(self._nodes[name].take_away(resource))

    def give_back_capacity(self, name: str, resource: str) -> None:
        self._do(self._nodes[name].give_back(resource))

    def out_of_memory(self, namespace: str, pod: str) -> None:
        """Simulate that the kernel ended a pod's containers because they wanted too much memory."""

        async def starve() -> None:
            path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
            body = {"metadata": {"annotations": {OUT_OF_MEMORY: "now"}}}
            await self.calls.insist("PATCH", path, body, kind="application/merge-patch+json")

        self._do(starve())

    def pids(self, namespace: str, pod: str) -> dict[str, int]:
        """Return the first process of each running container, as this machine counts them."""

        async def look() -> dict[str, int]:
            worker = self._worker(namespace, pod)
            seats = [worker.seat(each["name"]) for each in worker.pod["spec"]["containers"]]
            return {seat.spec["name"]: seat.container.pid for seat in seats if seat and seat.container}

        return self._do(look())

    # ------------------------------------------------------------------------------------------ what the server tells

    async def _follow_pods(self) -> None:
        async for change in self.calls.watch("/api/v1/pods", fieldSelector="spec.nodeName!="):
            if change.kind == "LISTED":
                await self._take_list(change.objects)
            else:
                await self._take(change.kind, change.objects[0])

    async def _take_list(self, pods: list[dict[str, Any]], only: str = "") -> None:
        """Take in all there is; what we have and the server has not is gone."""
        there = {pod["metadata"]["uid"] for pod in pods}
        for uid, worker in list(self._workers.items()):
            name = worker.node.spec.name
            if uid not in there and only in {"", name} and worker.node.online.is_set():
                await self._take("DELETED", worker.pod)
        for pod in pods:
            await self._take("MODIFIED", pod)

    async def _take(self, kind: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        node = self._nodes.get(pod["spec"].get("nodeName", ""))
        if node is None or not node.is_alive or not node.online.is_set():
            return
        worker = self._workers.get(uid)
        if kind == "DELETED":
            if worker is not None:
                del self._workers[uid]
                self._spawn(worker.vanish())
                self.names_changed(pod["metadata"]["namespace"])
            return
        if worker is None:
            if pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
                return  # of an earlier life of this node
            worker = PodWorker(pod, node, self._next_address(), self._folder / "pods" / uid, self)
            self._workers[uid] = worker
        worker.update(pod)

    def _next_address(self) -> str:
        number = next(self._numbers)
        return f"127.{self._block}.{1 + number // 250 % 250}.{1 + number % 250}"

    async def _follow_services(self) -> None:
        async for change in self.calls.watch("/api/v1/services"):
            self._take_services(change)

    def _take_services(self, change: Change) -> None:
        before = dict(self._services)
        if change.kind == "LISTED":
            self._services.clear()
        for service in change.objects:
            self._services[service["metadata"]["uid"]] = service
            if change.kind == "DELETED":
                del self._services[service["metadata"]["uid"]]
        for service in (*before.values(), *change.objects):
            self.names_changed(service["metadata"]["namespace"])

    def names_changed(self, namespace: str) -> None:
        """Have the names in a namespace written anew, once for all changes of this moment."""
        if not self._stale:
            self._loop.call_soon(self._write_names)
        self._stale.add(namespace)

    def _write_names(self) -> None:
        stale, self._stale = self._stale, set()
        everybody = [worker.neighbour() for worker in self._workers.values()]
        for namespace in stale:
            services = [each for each in self._services.values() if each["metadata"]["namespace"] == namespace]
            pods = [pod for pod in everybody if pod.namespace == namespace]
            lines = names.service_lines(services, pods, namespace)
            for worker in self._workers.values():
                if worker.pod["metadata"]["namespace"] == namespace:
                    with contextlib.suppress(FileNotFoundError):  # its folder is not made yet, or gone
                        names.write(worker.hosts, names.own_lines(worker.pod, worker.address) + lines)

    async def event(self, pod: dict[str, Any], reason: str, message: str) -> None:
        """Write an event as a kubelet does; only warnings, since each costs a request."""
        metadata = pod["metadata"]
        body = {
            "metadata": {"generateName": f"{metadata['name']}."},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1"}
            | {key: metadata[key] for key in ("name", "namespace", "uid")},
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": "kubelet", "host": pod["spec"].get("nodeName", "")},
            "firstTimestamp": statuses.now(),
            "lastTimestamp": statuses.now(),
            "count": 1,
        }
        with contextlib.suppress(RefusedError):  # its namespace may be on its way out
            await self.calls.insist("POST", f"/api/v1/namespaces/{metadata['namespace']}/events", body)

    # ---------------------------------------------------------------------------------------- what the server asks for

    def _workers_on(self, node: str) -> list[PodWorker]:
        return [worker for worker in self._workers.values() if worker.node.spec.name == node]

    def _worker(self, namespace: str, pod: str) -> PodWorker:
        for worker in reversed(self._workers.values()):  # a name may be used again; the newest has it
            if _key(worker.pod) == (namespace, pod):
                return worker
        if (namespace, pod) in self._dark:
            raise ConnectionResetError
        raise NoSuchError(f'pod "{pod}" not found on this node')

    def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> Log:
        worker = self._worker(namespace, pod)
        self._must_be_reachable(worker)
        seat = worker.seat(container)
        if seat is None or (previous and len(seat.logs) < 2):
            raise NoSuchError(f'previous terminated container "{container}" in pod "{pod}" not found')
        if not seat.logs:
            reason = seat.state.get("waiting", {}).get("reason", "ContainerCreating")
            raise NoSuchError(f'container "{container}" in pod "{pod}" is waiting to start: {reason}')
        return seat.logs[-2 if previous else -1]

    def container(self, namespace: str, pod: str, container: str) -> Container:
        worker = self._worker(namespace, pod)
        self._must_be_reachable(worker)
        seat = worker.seat(container)
        if seat is None or seat.container is None or not seat.container.pid:
            raise NoSuchError(f'container "{container}" in pod "{pod}" does not run')
        return seat.container

    def address_of(self, namespace: str, pod: str) -> str:
        worker = self._worker(namespace, pod)
        self._must_be_reachable(worker)
        return worker.address

    @staticmethod
    def _must_be_reachable(worker: PodWorker) -> None:
        if not worker.node.online.is_set():
            raise ConnectionResetError  # as nobody answered: the connection ends without a word


def _key(pod: dict[str, Any]) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


class NoBlockError(Exception):
    """Every port that an agent could listen on is taken; the words are for whoever runs the tests."""


def claim_block(ports: Sequence[int] = KUBELET_PORTS) -> tuple[socket.socket, int]:
    """Find addresses 127.X.*.* that no other agent on this machine uses, by listening where it would.

    Raises:
        NoBlockError: All of these ports are taken on all of these addresses.
    """
    for port in ports:
        for attempt in range(240):
            block = 10 + (os.getpid() + attempt) % 240
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((f"127.{block}.0.1", port))
                sock.listen()  # two may bind the same address, and only one of them may listen there
            except OSError:
                sock.close()
                continue
            return sock, block
    named = ", ".join(map(str, ports))
    raise NoBlockError(f"the ports {named} are taken on all addresses 127.10.0.1 to 127.249.0.1: is that a kubelet?")
