"""What client and warm pod tell each other: the page of the pod, the assignment of a task, and who carries a job out.

A warm pod takes tasks by their numbers. Whoever creates the key of a number has assigned its job; whoever creates the
binding of a job carries it out. See docs/design/decisions/0028-warm-pods.md.

The hosts of a slice talk to their leader over the network of pods, which may be read by others: so what the leader
hands over is encrypted.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import zlib
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from kinetic._wire import dataclass, documents, fields, keys
from kinetic._wire.documents import PageKind
from kinetic.errors import IntegrityError

_FIRST_PORT, _PORTS = 20_000, 10_000
ASSIGNMENT_FILE = "assignment.json"  # of the pod's Secret
HOSTS_PORT = 8480  # of process 1 of a slice's first host, at its pod's address, for the other hosts
IDLE, BUSY, STARTING = "idle", "busy", "starting"  # what a warm pod says of itself; of a slice, hosts may be missing
MOST_LINE = 2 << 20  # bytes of one message: a task of 128 KiB, and 1 MiB of variables
MOST_HANDED = 2 * MOST_LINE  # the same from host to host, in base64
IDLE_SECONDS, MOST_SECONDS = 1200.0, 28_800.0  # 20 minutes, and 8 hours
UNTOLD_SECONDS = 150.0  # until a number is skipped whose client died; a kubelet brings a Secret within two minutes
_POD = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_RUN, _READY, _TAKE, _END = "run", "ready", "take", "end"  # what a sealed message says; all but the first between hosts
# What a message without a seal asks for: that a job's supervisor look into the store now, since it was cancelled; to
# begin with a task that is held; and what is installed. Whoever may connect may delete the pod, or is its user.
CHECK, CONFIRM, INSTALLED = "check", "confirm", "installed"


@dataclass(frozen=True)
class WarmPod:
    """The page of a warm pod's process 1."""

    pod: str  # its id, by which it is found and listed
    store_url: str
    idle_seconds: float = IDLE_SECONDS
    most_seconds: float = MOST_SECONDS
    secret: str = "/kinetic/secret"  # noqa: S105 - a folder
    port: int = _FIRST_PORT
    hosts: int = 1  # of a slice (count)
    leader: str = ""  # name of the first host of a slice in the network of pods
    until: float = 0.0  # Unix time after which a slice is not started again; 0 for never

    def to_argument(self) -> str:
        """Return the page as one word of a command line, in which Kubernetes finds no ``$(NAME)`` to replace."""
        return documents.write({"schema": documents.SCHEMA, **vars(self)}).decode().replace("$", "\\u0024")

    @classmethod
    def from_page(cls, data: bytes | str) -> WarmPod:
        """Read the page."""
        what = "the page of this warm pod"
        return fields.build(cls, _WARM_POD, documents.read(data, what), what)


def port_of(pod: str) -> int:
    """Return the port of process 1, on the loopback interface of its pod: another one where pods share a network."""
    return _FIRST_PORT + zlib.crc32(pod.encode()) % _PORTS


@dataclass(frozen=True)
class Assignment:
    """One task for a warm pod, with what no store may hold."""

    sequence: int  # which of the pod's tasks it is, from 0
    job_id: str
    task: str  # the page of the task
    key: bytes = field(repr=False)  # the job's own
    environment: dict[str, str] = field(repr=False)  # captured variables
    cache_key: bytes = field(repr=False, default=b"")  # of the compile cache; empty where that is off
    restarts: int = 0  # how often the slice had been started again when it was given the task (count)
    is_held: bool = False  # the pod gets ready, and begins when its client confirms that nothing can be lost any more

    def to_bytes(self, key: bytes, nonce: str = "") -> bytes:
        """Write it, sealed with the pod's key; the nonce is the pod's own, of one connection."""
        keys_ = {"key": base64.b64encode(self.key).decode(), "cache_key": base64.b64encode(self.cache_key).decode()}
        return _sealed(_RUN, {**vars(self), **keys_}, key, nonce)

    @classmethod
    def from_bytes(cls, data: bytes, key: bytes, nonce: str = "") -> Assignment:
        """Read and verify it."""
        page = _verified(data, key, _RUN, nonce)
        return fields.build(cls, _ASSIGNMENT, page, "the assignment of a task")


@dataclass(frozen=True)
class Greeting:
    """What a warm pod says to whoever connects, and on each connection again when it changes."""

    pod: str
    state: str  # IDLE or BUSY
    sequence: int  # of the task that it takes next, or has
    nonce: str  # for the next message on this connection
    job_id: str = ""  # what it does
    decided: str = ""  # the last job that has its verdict: what it does if it still removes what is left of that
    until: float = 0.0  # Unix time at which it ends, if it stays idle
    tasks: int = 0  # how many it has carried out (count)
    restarts: int = 0  # how often the slice was started again (count)
    said: float = 0.0  # Unix time of this greeting, by the clock that also stamps the lines of the pod's log

    def to_bytes(self) -> bytes:
        """Write it."""
        return documents.write({"schema": documents.SCHEMA, **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Greeting:
        """Read it; nothing of it is believed that a key of the store does not confirm."""
        what = "the greeting of a warm pod"
        return fields.build(cls, _GREETING_READERS, documents.read(data, what, most_bytes=MOST_LINE), what)


def request(do: str, **about: str) -> bytes:
    """Return a message without a seal: CHECK or CONFIRM, about a ``job_id``, or INSTALLED."""
    return documents.write({"schema": documents.SCHEMA, "do": do, **about})


def read_request(data: bytes) -> tuple[str, str]:
    """Return what a message asks for, and about which job; an assignment, which has a seal, asks for something else."""
    page = documents.read(data, "a message to a warm pod", most_bytes=MOST_LINE)
    return str(page.get("do")), str(page.get("job_id") or "")


def answer(why: str = "", **found: Mapping[str, str]) -> bytes:
    """Return a warm pod's answer: "" if it does what it was asked to do, else why not; and what it was asked for."""
    return documents.write({"schema": documents.SCHEMA, "why": why, **found})


def installed_versions(data: bytes) -> dict[str, str]:
    """Read what is ``installed`` from an answer, by normalized names; the pod compares again before it believes it."""
    found = documents.read(data, "the answer of a warm pod", most_bytes=MOST_LINE).get("installed")
    return {str(name): str(version) for name, version in found.items()} if isinstance(found, dict) else {}


def refusal(data: bytes) -> str | None:
    """Return why a warm pod does not do what it was asked to do, or ""; None if this is a greeting and no answer."""
    found = documents.read(data, "the answer of a warm pod", most_bytes=MOST_LINE)
    return None if "state" in found else str(found.get("why") or "")


# --------------------------------------------------------------------------------------------------- hosts of a slice


@dataclass(frozen=True)
class Ready:
    """What a host of a slice says to the leader: it is clean, and waits for a task."""

    host: int
    sequence: int  # of the task that it takes next
    nonce: str  # its own

    def to_bytes(self, key: bytes, nonce: str) -> bytes:
        """Write it, sealed with the pod's key; the nonce is the leader's."""
        return _sealed(_READY, vars(self), key, nonce)

    @classmethod
    def from_bytes(cls, data: bytes, key: bytes, nonce: str) -> Ready:
        """Read and verify it."""
        return fields.build(cls, _READY_READERS, _verified(data, key, _READY, nonce), "the report of a host")


def leader_greeting(nonce: str) -> bytes:
    """Return what a slice's leader says to whoever connects."""
    return documents.write({"schema": documents.SCHEMA, "nonce": nonce})


def leader_nonce(data: bytes) -> str:
    """Return the nonce of such a greeting."""
    return str(documents.read(data, "the greeting of a slice's leader", most_bytes=4096).get("nonce") or "")


def handed_over(assignment: bytes, key: bytes, nonce: str) -> bytes:
    """Return an assignment for another host, encrypted and sealed; the nonce is that host's, and used once."""
    return _sealed(_TAKE, {"hidden": base64.b64encode(_crypt(assignment, key, nonce)).decode()}, key, nonce)


def end_request(key: bytes, nonce: str) -> bytes:
    """Return the request of the leader that a host end, since the slice does."""
    return _sealed(_END, {}, key, nonce)


def assignment_from_leader(data: bytes, key: bytes, nonce: str) -> bytes:
    """Return the assignment in a leader's message, or nothing if it asks this host to end."""
    page = documents.read(data, "a message of a slice's leader", most_bytes=MOST_HANDED)
    do = str(page.get("do"))
    if do == _END and documents.has_seal(page, key, _purpose(_END, nonce)):
        return b""
    page = _verified(data, key, _TAKE, nonce)
    return _crypt(_bytes_of(page.get("hidden")), key, nonce)


def _crypt(data: bytes, key: bytes, nonce: str) -> bytes:
    """Encrypt or decrypt: exclusive or with a stream that SHAKE-256 makes of the key and a nonce that is used once."""
    stream = hashlib.shake_256(hmac.digest(key, f"warm stream\0{nonce}".encode(), "sha256")).digest(len(data))
    mixed = int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")
    return mixed.to_bytes(len(data), "little")


def _purpose(do: str, nonce: str) -> str:
    return f"warm {do}\0{nonce}"


def _sealed(do: str, page: Mapping[str, Any], key: bytes, nonce: str) -> bytes:
    whole = {**page, "schema": documents.SCHEMA, "do": do}
    return documents.write(documents.with_seal(whole, key, _purpose(do, nonce)))


def _verified(data: bytes, key: bytes, do: str, nonce: str) -> dict[str, Any]:
    page = documents.read(data, "a message to a warm pod", most_bytes=MOST_HANDED)
    if page.get("do") != do or not documents.has_seal(page, key, _purpose(do, nonce)):
        raise IntegrityError(
            "a message to this warm pod has a wrong seal", why="its sender does not have the pod's key"
        )
    return page


def _bytes_of(value: object) -> bytes:
    try:
        return base64.b64decode(str(value), validate=True)
    except ValueError as error:
        raise fields.FieldError(f"is not base64: {error}") from None


_NAME = fields.text(63, _POD)
_SEQUENCE = fields.integer(0, keys.MOST_ATTEMPTS)
_SPAN = fields.number(0, fields.SECONDS)
_WARM_POD = {
    "pod": _NAME,
    **fields.each(fields.text(fields.PATH), "store_url", "secret"),
    **fields.each(_SPAN, "idle_seconds", "most_seconds", "until"),
    "port": fields.integer(1, 65_535),
    "hosts": fields.integer(1, 100_000),
    "leader": fields.text(fields.NAME),
}
_ASSIGNMENT = {
    **fields.each(_SEQUENCE, "sequence", "restarts"),
    "job_id": keys.JOB_ID,
    "task": fields.text(MOST_LINE, least=1),
    **fields.each(_bytes_of, "key", "cache_key"),
    "environment": fields.map_of(fields.text(fields.TEXT), 1_000_000, fields.text(fields.TEXT)),
    "is_held": fields.boolean,
}
_GREETING_READERS = {
    "pod": _NAME,
    "state": fields.one_of(IDLE, BUSY, STARTING),
    **fields.each(_SEQUENCE, "sequence", "tasks", "restarts"),
    **fields.each(fields.text(fields.NAME), "nonce", "job_id", "decided"),
    **fields.each(_SPAN, "until", "said"),
}
_READY_READERS = {"host": fields.integer(0, 100_000), "sequence": _SEQUENCE, "nonce": fields.text(fields.NAME)}

# ------------------------------------------------------------------------------------------------------------ bindings


@dataclass(frozen=True)
class Binding:
    """Which pod a job is bound to: that one carries it out."""

    pod: str  # a warm pod; "" for a pod of the job's own
    placed: float = 0.0  # Unix time, by the clock of whoever decided it
    attempts: int = 0  # how many a warm slice had made before, which is gone: those of the job's own hosts follow
    why: str = ""  # why the warm pod before gave the job back


@dataclass(frozen=True)
class Numbered:
    """Which job a number of a warm pod stands for."""

    job_id: str
    assigned: float = 0.0  # Unix time


_TEXT_OR_NONE = fields.text(63, re.compile(rf"(?:{_POD.pattern})?"))
BINDING = PageKind(
    "placement",  # the name in its seal, as in its key
    "the binding",
    fields.builder(
        Binding, {"pod": _TEXT_OR_NONE, "placed": _SPAN, "attempts": _SEQUENCE, "why": fields.text(fields.LINE)}
    ),
    4096,
)
NUMBERED = PageKind(
    "assignment", "the assignment", fields.builder(Numbered, {"job_id": keys.JOB_ID, "assigned": _SPAN}), 4096
)
