"""Making what a job needs in a cluster, in an order in which dying anywhere leaves nothing that runs by mistake.

A single job: its Job or JobSet, suspended; the Secret, and the Service of hosts that need names, both owned by it; then
it is let go. A child of a batch, whose Secret is there already: one Job that runs at once. Names are derived, so that
each step can be repeated, and "it is there already" is success.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kinetic._backends.kube import asking, capacity, checking, facts, keeping, names, slices
from kinetic._backends.kube.kinds import CONFIG_MAP, JOB, LEADER_WORKER_SET, SECRET, SERVICE
from kinetic._backends.kube.request import RUNNER_FILE
from kinetic._packing import runner_zip
from kinetic._wire.pod import ENVIRONMENT_FILE, KEY_FILE
from kinetic._wire.seal import KEY_BYTES
from kinetic._wire.steps import step
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.kinds import Kind
    from kinetic._backends.kube.request import JobRequest
    from kinetic._backends.protocol import Launch

KEPT_FILE = "kept.json"  # of a batch's Secret: what another client needs to go on with it
_NOT_FOR_CLIENTS = ("captured", "environ", "addresses")  # in a file of its own; a client's own; of this machine's jobs
MOST_KEYS = 20_000  # in one Secret: 640 KB of 1 MiB; further children bring their own


class Maker:
    """Makes the objects of jobs in one namespace.

    Args:
        client: Returns the connection of the moment: whoever logs in anew has another.
        account: Finds the service account for a launch.
        kind_for_slices: Finds what makes the pods of several hosts here.
        environ: This client's environment.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        account: Callable[[Launch], str],
        kind_for_slices: Callable[[], Kind],
        environ: Mapping[str, str],
    ) -> None:
        self._client_now, self._environ = client, environ
        self._account, self._kind_for_slices = account, kind_for_slices
        self._keys_of: dict[str, int] = {}  # how many keys the Secret of a batch has
        self._lock = threading.Lock()

    @property
    def _client(self) -> Client:
        return self._client_now()

    def make(self, launch: Launch, umask: int) -> Object:
        """Make everything that one job needs, and let it run.

        Returns:
            The object that makes its pods.
        """
        shared = self._shared_key(launch)
        secret = names.group_secret(launch.group) if shared is not None else names.secret(launch.order.job_id)
        built = runner_zip.build()
        request = asking.request_of(
            launch,
            self._client.namespace,
            runner=self.ensure_runner(),
            secret=secret,
            account=self._account(launch),
            environ=self._environ if launch.environ is None else launch.environ,
            by_count=capacity.selects_by_count(self._client, launch.placement),
            security=checking.pod_security(self._client),
        )
        kind = JOB if launch.placement.hosts == 1 else self._kind_for_slices()
        at = 0 if shared is None else shared * KEY_BYTES
        manifest = asking.manifest_of(request, launch, kind, key_at=at, runner_sha256=built.sha256, umask=umask)
        if shared is not None and kind is not LEADER_WORKER_SET and launch.placement.hosts == 1:
            manifest["spec"]["suspend"] = bool(request.queue)
            return self._client.create(kind, manifest)
        return self._make_alone(request, manifest, kind, launch, needs_secret=shared is None)

    def _make_alone(
        self, request: JobRequest, manifest: Object, kind: Kind, launch: Launch, *, needs_secret: bool
    ) -> Object:
        made = self._client.create(kind, manifest)
        step("client:job-created")
        made = {"apiVersion": kind.api_version, "kind": kind.name, **made}
        if needs_secret:
            entries = {KEY_FILE: launch.key, ENVIRONMENT_FILE: json.dumps(dict(launch.captured)).encode()}
            self._client.create(SECRET, keeping.secret(request, entries, made))
            step("client:secret-created")
        if kind is JOB and request.placement.hosts > 1:
            self._client.create(SERVICE, slices.service(request, made["metadata"]["uid"]))
        if request.queue or kind is LEADER_WORKER_SET:
            return made  # Kueue lets it go; a LeaderWorkerSet cannot be held
        return self._client.patch(kind, made["metadata"]["name"], {"spec": {"suspend": False}}) or made

    def ensure_runner(self) -> str:
        """See to it that the ConfigMap with the runner is there, and that it is ours; return its name.

        What is in it is compared with what we have. That is believed for a minute, and not of another cluster: somebody
        may clear it away, or make the namespace anew, while this process lives, and pods would wait for it.
        """
        with self._lock:
            client = self._client
            return facts.of(client).ask("runner", lambda: _ensure_runner(client), lambda _: facts.BRIEF)

    # ------------------------------------------------------------------------------------------------ batches

    def keep(self, group: str, owner: str, kept: Mapping[str, object], keys: Sequence[bytes]) -> None:
        """Make the Secret that the children of a batch share; everything is in it once, as there is 1 MiB of room."""
        chosen = keys[:MOST_KEYS]
        for_clients = {name: value for name, value in kept.items() if name not in _NOT_FOR_CLIENTS}
        entries = {
            KEY_FILE: b"".join(chosen),
            ENVIRONMENT_FILE: json.dumps(kept.get("captured") or {}).encode(),
            KEPT_FILE: json.dumps({**for_clients, "keys": len(chosen)}).encode(),
        }
        self._client.create(SECRET, keeping.group_secret(group, self._client.namespace, owner, entries))
        self._keys_of[group] = len(chosen)

    def note_kept(self, group: str, keys: int) -> None:
        """Take note of how many keys the Secret of a batch has that another client made."""
        self._keys_of[group] = keys

    def _shared_key(self, launch: Launch) -> int | None:
        """Return which key of its batch's Secret a launch uses; None when it needs a Secret of its own."""
        order = launch.order
        if not launch.group or order.index is None or order.group_attempt:
            return None
        return order.index if order.index < self._keys_of.get(launch.group, 0) else None


def _ensure_runner(client: Client) -> str:
    from kinetic._version import __version__

    built = runner_zip.build()
    name = names.runner(__version__, built.sha256)
    wanted = keeping.runner(client.namespace, __version__, built.sha256, {RUNNER_FILE: built.data})
    found = client.get(CONFIG_MAP, name)
    if found is None:
        client.create(CONFIG_MAP, wanted)  # somebody else may come first
        found = client.get(CONFIG_MAP, name) or {}
    if (found.get("binaryData") or {}) != wanted["binaryData"] or found.get("data"):
        raise LaunchError(
            f"the ConfigMap {name} does not hold the code of kinetic that its name stands for",
            why="somebody made or changed it, and every job of this version would run what is in it",
            next=f"ask who did; then: kubectl delete configmap {name} -n {client.namespace}, and submit again",
            code="runner-changed",
        )
    return name
