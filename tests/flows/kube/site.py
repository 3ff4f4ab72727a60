"""What tests see of their place: a bucket that can be out of reach, the objects of a namespace, and what was asked.

The API server, its controllers and the pods are looked at past the proxy; only the clients under test go through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.manifests import Objects
from cluster.plane import wait_for
from servers.faults import Fault, FaultyProxy
from servers.gcs import GcsServer

if TYPE_CHECKING:
    from cluster.agent import Agent
    from cluster.plane import Plane
    from cluster.proxy import Seen

NAME = "jobs-of-a-test"
OF_JOB = "job-id"
WRITES = ("POST", "PUT", "PATCH", "DELETE")
# Questions that have the form of writes.
QUESTIONS = ("selfsubjectaccessreviews", "selfsubjectrulesreviews", "dryRun=All")

JOBS = '''
    import hashlib
    import os
    import sys
    import time
    import kinetic

    def stay(until):
        while until and not os.path.exists(until):
            time.sleep(0.02)

    @kinetic.run(accelerator="cpu")
    def add(one, other):
        print("adding")
        return one + other

    @kinetic.run(accelerator="cpu")
    def talk(lines, until="", seconds=0):
        """Print numbered lines, wait for a file or some time, print one more."""
        for number in range(lines):
            print(f"line {number:04}")
        sys.stdout.flush()
        stay(until)
        time.sleep(seconds)
        print("the end")
        return lines

    @kinetic.run(accelerator="cpu")
    def fail(number):
        print("about to fail", number)
        raise ValueError(f"no {number}")

    @kinetic.run(accelerator="cpu", capture_env_vars=["TOKEN_OF_A_TEST", "MORE_OF_A_TEST"])
    def secret():
        """Return what only somebody who knows the values can have made."""
        values = (os.environ[name] for name in ("TOKEN_OF_A_TEST", "MORE_OF_A_TEST"))
        return [hashlib.sha256(value.encode()).hexdigest() for value in values]

    @kinetic.run(accelerator="cpu")
    def large(size):
        return bytes(range(256)) * (size // 256)

    @kinetic.run(accelerator="cpu")
    def again(folder, until):
        """Note each attempt; the first one waits."""
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        open(f"{folder}/attempt-{attempt}", "w").close()
        print("attempt", attempt, flush=True)
        stay(until if attempt == 0 else "")
        return attempt
'''


class Bucket:
    """A bucket of a server of this test's own, behind a proxy that injects faults; ``host`` is where that listens.

    Attributes:
        url: Where clients and pods find the service.
        address: Of the store.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._server = GcsServer().start()
        self._items = self._server.bucket(NAME)
        self._proxy = FaultyProxy(self._server.url, host)
        self.url = self._proxy.url
        self.address = f"gs://{NAME}/below"

    def close(self) -> None:
        self._proxy.close()
        self._server.close()

    def make(self, name: str) -> None:
        """Make another bucket."""
        self._server.bucket(name)

    def write(self, bucket: str, name: str, data: bytes) -> None:
        """Put something into a bucket, past the proxy."""
        self._server.buckets[bucket].put(name, data)

    def read(self, bucket: str, name: str) -> bytes:
        return self._server.buckets[bucket].get(name).data

    def names(self, prefix: str = "") -> list[str]:
        """List what lies in the store, past the proxy."""
        whole = f"below/{prefix}"
        return [name.removeprefix("below/") for name in sorted(self._items.items) if name.startswith(whole)]

    def written_at(self, name: str) -> float:
        """Return when something of the store was written, as Unix time."""
        return float(self._items.get(f"below/{name}").updated)

    def holds(self, text: str) -> list[str]:
        """List everything whose bytes or name contain a text."""
        return [name for name, item in self._items.items.items() if text.encode() in item.data or text in name]

    def fail(self, *, target: str = "", method: str = ".*", times: float = float("inf"), status: int = 503) -> Fault:
        """Refuse what fits from now on; return the fault, which knows how often it was met."""
        self._proxy.faults.append(fault := Fault("status", method=method, target=target, times=times, status=status))
        return fault

    def delay(self, seconds: float) -> None:
        """Answer each request so much later."""
        self._server.delay(seconds)

    def heal(self) -> None:
        self._proxy.faults = []


class Site(Objects):
    """A namespace of the test cluster, with what lies in it and what was asked of it."""

    def __init__(self, plane: Plane, agent: Agent, namespace: str, bucket: Bucket) -> None:
        super().__init__(plane.api, namespace)
        self.plane, self.agent, self.namespace, self.bucket = plane, agent, namespace, bucket
        self.sets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"

    # ------------------------------------------------------------------------------------------------- what is there

    def jobs(self, job_id: str = "") -> list[dict[str, Any]]:
        return self._of(f"{self.batch}/jobs", job_id)

    def job_sets(self, job_id: str = "") -> list[dict[str, Any]]:
        return self._of(self.sets, job_id)

    def secrets(self, job_id: str = "") -> list[dict[str, Any]]:
        return self._of(f"{self.core}/secrets", job_id)

    def pods_of(self, job_id: str = "") -> list[dict[str, Any]]:
        """List the pods of a job, the oldest first."""
        return sorted(self._of(f"{self.core}/pods", job_id), key=lambda pod: pod["metadata"]["creationTimestamp"])

    def _of(self, path: str, job_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api.get(path, labelSelector=f"{OF_JOB}={job_id}" if job_id else OF_JOB)[
            "items"
        ]
        return found

    def left(self, job_id: str) -> list[str]:
        """List what is there of a job in the cluster, whatever is on its way out left aside."""
        kinds = (self.jobs, self.job_sets, self.secrets)
        return [
            f"{kind.__name__}/{each['metadata']['name']}"
            for kind in kinds
            for each in kind(job_id)
            if "deletionTimestamp" not in each["metadata"]
        ]

    def running(self, job_id: str, but: str = "", seconds: float = 30) -> dict[str, Any]:
        """Wait until a pod of a job runs, another one than ``but``; return it."""

        def found() -> dict[str, Any] | None:
            for pod in reversed(self.pods_of(job_id)):
                if pod["status"].get("phase") == "Running" and pod["metadata"]["name"] != but:
                    return pod
            return None

        return wait_for(f"a pod of {job_id} to run", found, seconds)

    def gone(self, job_id: str) -> None:
        """Wait until nothing of a job is left in the cluster, not even pods.

        The garbage collector of a control plane learns of a kind that was just installed (JobSet) within half a minute.
        """
        wait_for(f"the end of {job_id}", lambda: not (self.left(job_id) or self.pods_of(job_id)), 90)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Make an object of the namespace."""
        made: dict[str, Any] = self.api.create(f"{self.core}/{path}", body)
        return made

    # --------------------------------------------------------------------------------------------- what was asked of it

    def asked(self) -> list[Seen]:
        """List what clients have asked the server so far."""
        return list(self.plane.proxy.seen)

    def writes(self) -> list[Seen]:
        """List what clients have changed so far."""
        return [
            each
            for each in self.asked()
            if each.method in WRITES and not any(question in each.target for question in QUESTIONS)
        ]

    def forget(self) -> None:
        """Forget what was asked so far."""
        self.plane.proxy.seen.clear()
