"""The life of one pod on its node: volumes, init containers, containers, and the end that it is brought to."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cluster import names, recipes, statuses, volumes
from cluster.access import RefusedError
from cluster.containers import Container, Exit, Recipe
from cluster.recipes import Place
from cluster.seats import Seat
from cluster.volumes import NotHereError, NotYetError, Sources

if TYPE_CHECKING:
    from cluster.calls import Calls
    from cluster.images import Image, Registry
    from cluster.nodes import Node

# How long a node waits before it tries something again; a kubelet begins with 10 s and goes up to 5 minutes.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 8.0
# "" or "now": the pod is out of memory now; any other text: as soon as a container has written it.
OUT_OF_MEMORY = "kinetic.test/out-of-memory"


class Ending(NamedTuple):
    """Why and how a pod is brought to its end.

    Attributes:
        grace_seconds: Between SIGTERM and SIGKILL.
        reason: Of the pod, e.g. "DeadlineExceeded"; with one, the pod has failed whatever its containers say.
        message: In words.
        disruption: Reason of the condition DisruptionTarget; "": this is none.
    """

    grace_seconds: float
    reason: str = ""
    message: str = ""
    disruption: str = ""


class House(Protocol):
    """What a pod needs of its agent."""

    calls: Calls
    registry: Registry
    api_port: int

    def names_changed(self, namespace: str) -> None: ...
    async def event(self, pod: dict[str, Any], reason: str, message: str) -> None: ...


class PodWorker:
    """Runs one pod until its object is gone.

    Attributes:
        pod: The object as it was last seen.
        address: Of this pod alone.
        hosts: The file that its containers see as /etc/hosts.
    """

    def __init__(self, pod: dict[str, Any], node: Node, address: str, folder: Path, house: House) -> None:
        self.pod = pod
        self.node = node
        self.address = address
        self.hosts = folder / "hosts"
        self._place = Place(self.hosts, folder / "last-words", house.api_port)
        self.is_ready = False
        self._folder = folder
        self._house = house
        spec = pod["spec"]
        self._init = [Seat(each, is_init=True) for each in spec.get("initContainers") or []]
        self._main = [Seat(each, is_init=False) for each in spec["containers"]]
        self._policy = spec.get("restartPolicy", "Always")
        self._sources = Sources(house.calls, pod, node.spec.name)
        self._sources.pod_ip = address
        self._volumes: dict[str, Path | str] = {}
        self._conditions = statuses.Conditions()
        self._began = statuses.now()
        self._has_started = False
        self._finished = False
        self._ending: Ending | None = None
        self._ends = asyncio.Event()
        self._deleted = asyncio.Event()
        self._dirty = asyncio.Event()
        self._reported = asyncio.Event()
        self._stopped = asyncio.Event()
        self._pod_path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self._live_task = asyncio.ensure_future(self._live())
        self._report_task = asyncio.ensure_future(self._report())

    # ----------------------------------------------------------------------------------------- what others tell the pod

    def update(self, pod: dict[str, Any]) -> None:
        """Take in what changed in the object."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self.end(Ending(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
            self._deleted.set()
        if (pod["metadata"].get("annotations") or {}).get(OUT_OF_MEMORY) in {"", "now"}:
            self.out_of_memory()

    def end(self, ending: Ending) -> None:
        """Bring the pod to its end; the first cause counts, and a shorter grace than its own."""
        if self._ending is None:
            self._ending = ending
        elif ending.grace_seconds < self._ending.grace_seconds:
            self._ending = self._ending._replace(grace_seconds=ending.grace_seconds)
            self._kill_after(ending.grace_seconds)
        if ending.disruption:
            self._conditions.set("DisruptionTarget", true=True, reason=ending.disruption, message=ending.message)
        self._ends.set()
        self._tell()

    def _kill_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._kill)

    def _kill(self) -> None:
        for seat in (*self._init, *self._main):
            if seat.container:
                seat.container.kill()

    def out_of_memory(self) -> None:
        """Do to the running containers what the kernel does to those that want too much."""
        for seat in (*self._init, *self._main):
            if seat.container and seat.container.pid:
                seat.out_of_memory = True
                seat.container.kill()

    async def vanish(self) -> None:
        """End at once without a word, like the pods of a machine that loses its power; or whose object is gone."""
        self._report_task.cancel()
        self._kill()
        self.end(Ending(0))
        # A container that was just about to start still does, and is ended; but nobody waits for a server that is away.
        stopped = asyncio.ensure_future(self._stopped.wait())
        await asyncio.wait({self._live_task, stopped}, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        for task in (self._live_task, stopped):
            task.cancel()
        await asyncio.gather(self._live_task, self._report_task, stopped, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def wait_until_ended(self) -> None:
        """Return when the containers have ended and the server knows it."""
        reported = asyncio.ensure_future(self._reported.wait())
        await asyncio.wait({self._live_task, reported}, return_when=asyncio.FIRST_COMPLETED)
        reported.cancel()

    def seat(self, container: str) -> Seat | None:
        return next((seat for seat in (*self._init, *self._main) if seat.spec["name"] == container), None)

    def neighbour(self) -> names.Neighbour:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        return names.Neighbour(
            metadata["namespace"],
            names.hostname(self.pod),
            spec.get("subdomain", ""),
            metadata.get("labels") or {},
            self.address,
            self.is_ready,
        )

    # ------------------------------------------------------------------------------------------------- from end to end

    async def _live(self) -> None:
        self._folder.mkdir(parents=True)
        names.write(self.hosts, names.own_lines(self.pod, self.address))
        self._house.names_changed(self.pod["metadata"]["namespace"])
        for kind in ("Initialized", "Ready", "ContainersReady", "PodReadyToStartContainers"):
            self._conditions.set(kind, true=False, reason="ContainersNotReady")
        self._tell()
        deadline = asyncio.ensure_future(self._deadline())
        try:
            if await self._prepare_volumes() and await self._run_init():
                self._conditions.set("Initialized", true=True)
                for seat in self._main:
                    seat.state = statuses.waiting("ContainerCreating")
                await asyncio.gather(*(self._run(seat) for seat in self._main))
        finally:
            deadline.cancel()
        self._finish()
        self._stopped.set()
        await self._deleted.wait()
        await self._reported.wait()
        await self._remove()

    async def _deadline(self) -> None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None:
            await asyncio.sleep(seconds)
            words = "Pod was active on the node longer than the specified deadline"
            self.end(Ending(self._grace(), "DeadlineExceeded", words))

    def _grace(self) -> float:
        return self.pod["spec"].get("terminationGracePeriodSeconds", 30)

    async def _prepare_volumes(self) -> bool:
        """Make the volumes, as soon as all that they name is there; tell whether it came to that."""
        return await self._retry(self._make_volumes, "FailedMount", "ContainerCreating")

    async def _make_volumes(self) -> None:
        self._volumes = await volumes.prepare(self.pod, self._sources, self._folder)
        self._conditions.set("PodReadyToStartContainers", true=True)

    async def _retry(self, attempt: Any, event: str, reason: str, seat: Seat | None = None) -> bool:
        """Try until it works or the pod ends; what is missing meanwhile is told as a kubelet does."""
        pause = FIRST_PAUSE_SECONDS
        while not self._ends.is_set():
            try:
                await attempt()
                return True
            except (NotYetError, NotHereError, RefusedError) as error:
                if pause == FIRST_PAUSE_SECONDS:
                    await self._house.event(self.pod, event, str(error))
                for each in [seat] if seat else self._init or self._main:
                    each.state = statuses.waiting(reason, str(error) if seat else "")
                self._tell()
                await self._ends_within(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return False

    async def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ends.wait(), seconds)
        return self._ends.is_set()

    async def _run_init(self) -> bool:
        for seat in self._init:
            if not await self._run(seat):
                return False
        return True

    async def _run(self, seat: Seat) -> bool:
        """Run a container as often as its pod's policy says; tell whether it has done its work."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            ended = await self._run_once(seat)
            if ended is None or self._ends.is_set():
                return False
            if ended.code == 0 and (seat.is_init or self._policy != "Always"):
                return True
            if self._policy == "Never":
                return False
            seat.last_state = seat.state
            words = f"back-off {pause}s restarting failed container={seat.spec['name']}"
            seat.state = statuses.waiting("CrashLoopBackOff", words)
            self._tell()
            if await self._ends_within(pause):
                return False
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            seat.restarts += 1

    # ------------------------------------------------------------------------------------------------ one run of one

    async def _run_once(self, seat: Seat) -> Exit | None:
        """Run a container once; None: the pod ended before it could start."""
        image = await self._pull(seat)
        if image is None:
            return None
        recipe: list[Recipe] = []

        async def write() -> None:
            recipe[:] = [await recipes.write(seat.spec, self.pod, image, self._sources, self._volumes, self._place)]

        if not await self._retry(write, "Failed", "CreateContainerConfigError", seat):
            return None
        run = f"{seat.spec['name']}-{seat.restarts}"
        seat.container = Container(self._folder / "containers" / run, recipe[0])
        seat.container_id = f"test://{self.pod['metadata']['uid']}-{run}"
        seat.logs = [*seat.logs[-1:], seat.container.log]
        problem = await seat.container.start()
        began = statuses.now()
        self._has_started = True
        if problem:
            await self._house.event(self.pod, "Failed", f"Error: {problem}")
            words = f"failed to start container: {problem}"
            seat.state = statuses.terminated(128, "StartError", statuses.NEVER, seat.container_id, words)
            self._tell()
            return Exit(128, problem)
        seat.state = statuses.running(began)
        self._tell()
        ended = await self._wait_or_end(seat, seat.container)
        seat.state = seat.epitaph(ended, began, self._place.last_words / seat.spec["name"])
        self._tell()
        return ended

    async def _pull(self, seat: Seat) -> Image | None:
        """Find the image; while it does not exist, say so as a kubelet does."""
        name, pause = seat.spec["image"], FIRST_PAUSE_SECONDS
        while (image := self._house.registry.pull(name)) is None:
            words = f'failed to pull image "{name}": rpc error: {self._house.registry.failure(name)}'
            seat.state = statuses.waiting("ErrImagePull", words)
            self._tell()
            await self._house.event(self.pod, "Failed", f"Failed to pull image: {words}")
            if await self._ends_within(pause):
                return None
            seat.state = statuses.waiting("ImagePullBackOff", f'Back-off pulling image "{name}": {words}')
            self._tell()
            await self._house.event(self.pod, "BackOff", f'Back-off pulling image "{name}"')
            if await self._ends_within(pause):
                return None
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return None if self._ends.is_set() else image

    async def _wait_or_end(self, seat: Seat, container: Container) -> Exit:
        ended = asyncio.ensure_future(container.wait())
        ends = asyncio.ensure_future(self._ends.wait())
        hungry = asyncio.ensure_future(self._wait_for_hunger(container))
        try:
            await asyncio.wait({ended, ends}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                assert self._ending is not None
                container.signal(signal.SIGTERM)
                await asyncio.wait({ended}, timeout=self._ending.grace_seconds)
                container.kill()
            return await ended
        finally:
            for task in (ends, hungry):
                task.cancel()

    async def _wait_for_hunger(self, container: Container) -> None:
        wanted = (self.pod["metadata"].get("annotations") or {}).get(OUT_OF_MEMORY)
        if wanted is not None:
            if wanted not in {"", "now"}:
                await container.log.wait_for(wanted.encode())
            self.out_of_memory()

    # ------------------------------------------------------------------------------------------------------- reporting

    def _finish(self) -> None:
        """Give every container a final state: one that never ran, or waited to run again, does not run any more."""
        for seat in (*self._init, *self._main):
            if "waiting" in seat.state and self._ends.is_set() and seat.last_state:
                seat.state = seat.last_state
        self._finished = True
        self._tell()

    def _tell(self) -> None:
        """Have the server told, soon; the latest state is enough."""
        ready = bool(self._main) and all("running" in seat.state for seat in self._main)
        if ready != self.is_ready:
            self.is_ready = ready
            self._house.names_changed(self.pod["metadata"]["namespace"])
        self._reported.clear()
        self._dirty.set()

    def _status(self) -> dict[str, Any]:
        phase = statuses.phase(
            self._policy,
            initialized=all(seat.status()["ready"] for seat in self._init),
            states=[seat.state for seat in self._main],
            started=self._has_started,
        )
        if phase in {"Succeeded", "Failed"} and not self._finished:
            phase = "Running"  # a pod is done when nothing of it runs any more
        if self._finished and phase in {"Pending", "Running"}:
            phase = "Failed"
        reason: dict[str, Any] = {}
        if self._ending and self._ending.reason and self._finished:
            phase = "Failed"
            reason = {"reason": self._ending.reason, "message": self._ending.message}
        why = "PodCompleted" if phase == "Succeeded" else ("" if self.is_ready else "ContainersNotReady")
        for kind in ("Ready", "ContainersReady"):
            self._conditions.set(kind, true=self.is_ready, reason=why)
        return {
            "phase": phase,
            "startTime": self._began,
            "hostIP": self.node.address,
            "hostIPs": [{"ip": self.node.address}],
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": self._conditions.list(),
            "initContainerStatuses": [seat.status() for seat in self._init],
            "containerStatuses": [seat.status() for seat in self._main],
            **reason,
        }

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            await self.node.online.wait()
            self._dirty.clear()
            # A refusal: the object is gone or another one by now, and nobody wants to know any more.
            with contextlib.suppress(RefusedError):
                await self._house.calls.patch_status(self._pod_path, self._status())
            if self._finished and not self._dirty.is_set():
                self._reported.set()

    async def _remove(self) -> None:
        """Let the object go: nothing of the pod runs here any more."""
        await self.node.online.wait()
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        with contextlib.suppress(RefusedError):
            await self._house.calls.insist("DELETE", self._pod_path, body)
