"""What a large batch costs a cluster: a Job for each child, as kinetic makes them, beside one Indexed Job.

Control plane, controllers and scheduler are real, with the API server's own limits on (priority and fairness) and a
client that they apply to. The node is simulated: a pod succeeds as soon as it has its node, and leaves the mark that a
child of the batch leaves. So nothing of this is the time of user code or of containers. Needs the test cluster
(`make cluster`), and is passed over without it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from _measure import NOOP, Bench, Sandbox, memory_of

if TYPE_CHECKING:
    from cluster.access import Endpoint

TESTS = str(Path(__file__).parents[1] / "tests")
sys.path[:0] = [TESTS]

CLIENT = (
    NOOP
    + """
batches = []

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024 / 1e6

def check():
    noop.run_async(0).cleanup()  # makes the runner's ConfigMap, and checks what is then remembered

def submit(count):
    batches.append(noop.run_async_map(range(count), max_concurrent=None))
    return batches[-1].group_id

def wait():
    batches[-1].wait()
    return {status: count for status, count in batches[-1].status_counts().items()}

def look(group_id):
    begun = time.perf_counter()
    kinetic.attach_batch(group_id, poll_timeout=0).status_counts()
    return time.perf_counter() - begun

def clean():
    batches[-1].cleanup()

serve(peak=peak, check=check, submit=submit, wait=wait, look=look, clean=clean)
"""
)

# Runs beside the client: pods are found by the label that names their job.
NODE = f"""
import asyncio
import contextlib
import threading

sys.path[:0] = [{TESTS!r}]
from cluster.access import Endpoint, RefusedError
from cluster.calls import Calls
from cluster.nodes import Node, NodeSpec
from cluster.statuses import now, terminated

children = {{}}  # by the label of a child's pods: the name of the mark that it leaves
loop = asyncio.new_event_loop()

async def run(url, authority, token):
    calls, wide = Calls(Endpoint(url, authority, token)), asyncio.Semaphore(16)
    amounts = {{"cpu": "1000000", "memory": "1000Ti", "ephemeral-storage": "1000Ti", "pods": "1000000"}}
    spec = NodeSpec("simulated", {{"kubernetes.io/hostname": "simulated"}}, (), amounts)
    node = Node(spec, "127.0.0.1", 10250, calls)
    await node.register()
    seen, tasks = set(), set()
    async for change in calls.watch("/api/v1/pods", fieldSelector="spec.nodeName=simulated"):
        for pod in change.objects:
            if change.kind != "DELETED" and pod["metadata"]["uid"] not in seen:
                seen.add(pod["metadata"]["uid"])
                tasks.add(task := asyncio.ensure_future(end(calls, wide, pod)))
                task.add_done_callback(tasks.discard)

async def end(calls, wide, pod):
    about = pod["metadata"]
    labels = about.get("labels") or {{}}
    while "kinetic/group" in labels and labels["job-id"] not in children:
        await asyncio.sleep(0.05)
    async with wide:
        if labels.get("job-id") in children:
            await asyncio.to_thread(store.put, children[labels["job-id"]], b"")
        state = terminated(0, "Completed", now(), "simulated://" + about["uid"])
        status = {{"name": pod["spec"]["containers"][0]["name"], "state": state, "ready": False, "restartCount": 0}}
        status |= {{"image": "simulated", "imageID": ""}}
        with contextlib.suppress(RefusedError):
            path = f"/api/v1/namespaces/{{about['namespace']}}/pods/{{about['name']}}"
            await calls.patch_status(path, {{"phase": "Succeeded", "containerStatuses": [status]}})

def start(url, authority, token):
    threading.Thread(target=loop.run_until_complete, args=(run(url, authority, token),), daemon=True).start()

def expect(group_id, count):
    global store
    from kinetic._backends.kube.job_manifests import label_value
    from kinetic._batches import batch_handle, state
    from kinetic._jobs import locate
    from kinetic._wire import documents, keys
    store = batch_handle.store_of(None, None)
    group = state.load_group(store, group_id)
    for index in range(count):
        child = group.child_id(index, 0)
        key = locate.key_for(child, group.key_id, store.url)
        children[label_value(child)] = documents.sealed_name(keys.mark(group_id, index, 0), "succeeded", key)

serve(start=start, expect=expect)
"""

COMPONENTS = ("kube-apiserver", "etcd", "kube-controller-manager")


class Cost(NamedTuple):
    """What something cost."""

    seconds: float
    requests: int  # of the client
    megabytes: float  # of the client's requests and their answers
    refused: int  # 429, by priority and fairness
    handled: int  # requests that the API server had of all its clients


def main() -> None:
    sizes = {
        "children": (200, "how many children the batch has"),
        "minutes": (25, "how long all of it may take; what was reached by then is printed"),
        "indexed": (1, "1 measures an Indexed Job as well, 0 does not"),
    }
    bench = Bench("a large batch on a cluster with simulated nodes", runs=1, quick_runs=1, sizes=sizes)
    from cluster import binaries

    if binaries.missing():
        bench.skip("batches on a cluster", "there is no test cluster: make cluster")
        bench.end()
    signal.signal(signal.SIGALRM, _time_is_over)
    signal.alarm(60 * bench.sizes["minutes"])
    with Sandbox() as sandbox, _cluster(sandbox) as (plane, client):
        node = sandbox.session("node.py", NODE)
        token = plane.nodes
        node.ask("start", token.url, str(token.authority), token.token)
        with node:
            _many_jobs(bench, sandbox, plane, node)
            if bench.sizes["indexed"]:
                _indexed_job(bench, plane, client)
    bench.end()


def _time_is_over(*_: object) -> None:
    raise TimeoutError("the time is over; --minutes gives it more")


@contextmanager
def _cluster(sandbox: Sandbox) -> Iterator[tuple[Any, Endpoint]]:
    """Start the control plane, and let the client be a service account, which priority and fairness apply to."""
    from cluster import accounts
    from cluster.access import Endpoint
    from cluster.plane import Plane

    folder = sandbox.folder / "cluster"
    folder.mkdir()
    plane = Plane(folder, fair=True).start()
    try:
        token = accounts.account_token(plane, "default", "submitter")
        accounts.bind(plane, "default", "submitter", {"kind": "ClusterRole", "name": "edit"}, "submitter")
        client = Endpoint(plane.proxy.url, plane.authority.certificate, token)
        sandbox.environ |= {
            "KUBECONFIG": str(client.write_kubeconfig(folder / "submitter.yaml")),
            "KINETIC_BACKEND": "gke",
            "KINETIC_KUBE_CONTEXT": "test",
            "KINETIC_STORE": str(sandbox.folder / "store"),
            "KINETIC_SHARED_STORE": "1",
        }
        yield plane, client
    finally:
        plane.stop()


def _many_jobs(bench: Bench, sandbox: Sandbox, plane: Any, node: Any) -> None:
    count = bench.sizes["children"]
    with sandbox.session("client.py", CLIENT) as client:
        client.ask("check")
        before, memory = float(client.ask("peak")), _memory(plane)
        groups: list[str] = []
        client_pid = client.process.pid
        found: dict[str, int] = {}

        def run() -> None:
            groups.append(client.ask("submit", count))
            node.ask("expect", groups[0], count)
            found.update(client.ask("wait"))

        with _progress(plane, client_pid):
            cost = _cost(plane, run)
        _report(bench, f"{count} children, a Job for each", count, cost)
        if found != {"SUCCEEDED": count}:
            raise SystemExit(f"the counts are wrong: {found}")
        bench.limit("… peak memory of the client; vs before", [float(client.ask("peak"))], 300, "MB", [before])
        _report_memory(bench, plane, memory)
        with sandbox.session("looker.py", CLIENT) as looker:
            times: list[float] = []
            look = _cost(plane, lambda: times.append(looker.ask("look", groups[0])))
        bench.limit("… a look at all of them by another process", [times[0] * 1e3], 1000, "ms")
        bench.limit("… requests of a look", [look.requests], 4 + count // 500, "")
        _report(bench, "… removing them", count, _cost(plane, lambda: client.ask("clean")))


def _indexed_job(bench: Bench, plane: Any, client: Endpoint) -> None:
    """Measure the least that could be: one Job with as many indexes, whose pods are smaller than ours, and a watch."""
    from cluster.access import Access

    count, memory = bench.sizes["children"], _memory(plane)
    path = "/apis/batch/v1/namespaces/default/jobs"
    container = {"name": "c", "image": "python:3", "command": ["python3", "-c", "pass"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"completionMode": "Indexed", "completions": count, "parallelism": count, "backoffLimitPerIndex": 3}
    api = Access(client)

    def run() -> None:
        api.create(path, {"metadata": {"name": "indexed"}, "spec": {**spec, "template": template}})
        query = {"watch": "true", "fieldSelector": "metadata.name=indexed"}
        with api.stream(path, **query) as lines:
            while not json.loads(next(lines))["object"]["status"].get("completionTime"):
                pass

    def remove() -> None:
        api.delete(f"{path}/indexed", propagationPolicy="Background")
        while plane.api.get("/api/v1/namespaces/default/pods", limit="1")["items"]:
            time.sleep(0.2)

    with _progress(plane):
        cost = _cost(plane, run)
    _report(bench, f"{count} indexes of one Job", count, cost)
    _report_memory(bench, plane, memory)
    _report(bench, "… removing it and its pods", count, _cost(plane, remove))
    api.close()


def _cost(plane: Any, act: Callable[[], object]) -> Cost:
    handled, proxy = _handled(plane), plane.proxy
    requests, size = len(proxy.seen), proxy.sent_bytes + proxy.received_bytes
    begun = time.perf_counter()
    act()
    seconds = time.perf_counter() - begun
    seen = proxy.seen[requests:]
    return Cost(
        seconds,
        len(seen),
        (proxy.sent_bytes + proxy.received_bytes - size) / 1e6,
        sum(each.status == 429 for each in seen),
        _handled(plane) - handled,
    )


@contextmanager
def _progress(plane: Any, client: int = 0) -> Iterator[None]:
    """Print each minute to stderr how far it is: a step that gets slower with the size is seen there."""
    over, begun = threading.Event(), time.perf_counter()

    def look() -> None:
        while not over.wait(60):
            seconds, mb = time.perf_counter() - begun, [round(each) for each in _memory(plane)]
            own = f", client {memory_of(client):.0f} MB" if client else ""
            seen = len(plane.proxy.seen)
            print(f"{seconds:5.0f} s: {seen} requests of the client{own}, control plane {mb} MB", file=sys.stderr)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _handled(plane: Any) -> int:
    """Return how many requests the API server has answered, those of its controllers and of the node among them."""
    lines = plane.api.get("/metrics").splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("apiserver_request_total{")))


def _report(bench: Bench, name: str, count: int, cost: Cost) -> None:
    bench.limit(f"{name}: seconds", [cost.seconds], 600, "s")
    bench.limit("… requests of the client; vs children", [cost.requests], 1.1 * count + 20, "", [count])
    bench.limit("… bytes of the client for each", [cost.megabytes * 1e3 / count], 30, "kB")
    bench.limit("… requests of the client that were refused (429)", [cost.refused], 0, "")
    bench.limit("… all requests that the API server handled for each", [cost.handled / count], 20, "")


def _memory(plane: Any) -> list[float]:
    return [memory_of(plane.process(name).pid) for name in COMPONENTS]


def _report_memory(bench: Bench, plane: Any, before: list[float]) -> None:
    for name, value, base in zip(COMPONENTS, _memory(plane), before, strict=True):
        bench.limit(f"… memory of {name}; vs before", [value], 4000, "MB", [base])


if __name__ == "__main__":
    main()
