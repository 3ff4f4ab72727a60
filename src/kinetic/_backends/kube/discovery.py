"""What a cluster told a client, for as long as it may be believed: so that a second job asks nothing.

Only what helps is kept. Whoever was refused something goes and has it changed, and is then asked about again.
"""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube.client import (
    CONFIG_MAP,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    LOCAL_QUEUE,
    POD,
    RULES_REVIEW,
    SECRET,
    SERVICE,
    WHO_REVIEW,
    WORKLOAD,
    Kind,
    response_json,
)
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client


LONG_SECONDS = 600.0  # seconds: permissions, a namespace, what the cluster serves
SHORT_SECONDS = 60.0  # seconds: that something is not there yet, or what others may clear away

T = TypeVar("T")


class ClusterCache:
    """What one client was told. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def ask(
        self, key: Hashable, question: Callable[[], T], seconds: Callable[[T], float] = lambda _: LONG_SECONDS
    ) -> T:
        """Return what is known, or ask; an error is not kept.

        Args:
            key: What it is about.
            question: Asks the cluster.
            seconds: How long an answer may be believed.
        """
        with self._lock:
            ends, value = self._kept.get(key, (float("-inf"), None))
        if self._clock() < ends:
            return value  # type: ignore[no-any-return]  # a key has one type of answer
        answer = question()
        with self._lock:
            self._kept[key] = (self._clock() + seconds(answer), answer)
        return answer

    def forget(self, key: Hashable) -> None:
        """Believe something no longer."""
        with self._lock:
            self._kept.pop(key, None)


class _Table:
    """The facts of all clients of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.facts: weakref.WeakKeyDictionary[Client, ClusterCache] = weakref.WeakKeyDictionary()


_table = _Table()


def cache_of(client: Client) -> ClusterCache:
    """Return what a client was told; it goes with the client."""
    with _table.lock:
        return _table.facts.setdefault(client, ClusterCache())


def _forget() -> None:
    """Start anew in a forked child, whose clients are others."""
    global _table  # noqa: PLW0603 - one table for each process
    _table = _Table()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


OWNED = ("create", "get", "list", "watch", "delete", "patch")  # what we do with the object that makes a job's pods
_ROLE = "edit"  # comes with every cluster, and allows all that a job needs but JobSets
_SHOWN = 6  # missing permissions in a message

Rules = list[dict[str, Any]]


class Permission(NamedTuple):
    """One thing that we must be allowed to do.

    Attributes:
        verb: As in roles.
        kind: To what.
        part: To which part of it, e.g. "log"; or "".
    """

    verb: str
    kind: Kind
    part: str = ""

    @property
    def resource(self) -> str:
        """What rules call it: "jobs", "pods/log"."""
        return f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural

    def __str__(self) -> str:
        """Write it for a message."""
        return f"{self.verb} {self.resource}" + (f".{self.kind.group}" if "." in self.kind.group else "")


def needed_permissions(maker: Kind, *, hosts: int = 1) -> tuple[Permission, ...]:
    """Return what a job needs whose pods are made by an object of a kind, on so many hosts (count)."""
    found = [Permission(verb, maker) for verb in OWNED]
    found += [Permission("list", POD), Permission("watch", POD), Permission("get", POD, "log")]
    found += [Permission("create", SECRET), Permission("get", CONFIG_MAP), Permission("create", CONFIG_MAP)]
    if hosts > 1 and maker == JOB:
        found.append(Permission("create", SERVICE))  # the other kinds that make slices bring their own
    return tuple(found)


def check_permissions(client: Client, needs: tuple[Permission, ...]) -> None:
    """Refuse what we may not do.

    Raises:
        AccessDeniedError: Something is not allowed; all of it is named, with the command that allows it.
    """
    cache_of(client).ask(("allowed", needs), lambda: _request_rules(client, needs))


def is_allowed(client: Client, need: Permission) -> bool:
    """Say whether we may do something."""
    return cache_of(client).ask(
        ("may", need),
        lambda: client.may(need.verb, need.kind, part=need.part).allowed,
        lambda allowed: LONG_SECONDS if allowed else SHORT_SECONDS,
    )


def _request_rules(client: Client, needs: tuple[Permission, ...]) -> bool:
    missing = _missing(client, needs, _rules(client))
    if missing:
        raise _denied(client, missing)
    return True


def _missing(client: Client, needs: tuple[Permission, ...], known: Rules) -> list[tuple[Permission, str]]:
    """Ask about each thing that the rules do not allow; return those that are refused, and why."""
    unsure = [need for need in needs if not _covers(known, need)]
    answers: dict[Permission, tuple[bool, str]] = {}

    def ask(need: Permission) -> None:
        answers[need] = client.may(need.verb, need.kind, part=need.part)

    kube_client.request_all([partial(ask, need) for need in unsure])
    return [(need, answers[need][1]) for need in unsure if not answers[need][0]]


def _rules(client: Client) -> Rules:
    """Ask for our rules; a cluster that does not tell is asked about everything."""
    review = {
        "apiVersion": RULES_REVIEW.api_version,
        "kind": RULES_REVIEW.name,
        "spec": {"namespace": client.namespace},
    }
    reply = client.transport.send("POST", RULES_REVIEW.path(""), body=json.dumps(review).encode())
    if reply.status == 401:
        raise client.refuse("create", RULES_REVIEW, "", reply)
    if not 200 <= reply.status < 300:
        return []
    status = response_json(reply.body).get("status") or {}
    return [each for each in status.get("resourceRules") or () if isinstance(each, dict)]


def _covers(known: Rules, need: Permission) -> bool:
    """Say whether a rule allows it; one that is for some names only does not."""
    part = f"*/{need.part}" if need.part else "*"
    return any(
        not rule.get("resourceNames")
        and {need.verb, "*"} & set(rule.get("verbs") or ())
        and {need.kind.group, "*"} & set(rule.get("apiGroups") or ())
        and {need.resource, part, "*"} & set(rule.get("resources") or ())
        for rule in known
    )


def _denied(client: Client, missing: list[tuple[Permission, str]]) -> AccessDeniedError:
    words = [str(need) for need, _ in missing]
    shown = ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
    why = next((why for _, why in missing if why), "")
    who = _username(client)
    return AccessDeniedError(
        f"{client.about} does not let us {shown} in the namespace {client.namespace}",
        why=f"{'we are ' + who if who else 'nobody says who we are there'}, and no role of ours allows it"
        + (f": {why}" if why else ""),
        next=f"{_commands(who, client.namespace, [need for need, _ in missing])}     or ask who runs the cluster to",
    )


def _commands(who: str, namespace: str, missing: list[Permission]) -> str:
    """Write the commands that allow it: a role of every cluster's, and one of its own for kinds that were added."""
    found = []
    subject, name = _subject(who), f"kinetic-{_role_binding_suffix(who)}"
    if any("." not in need.kind.group for need in missing):
        found.append(f"kubectl create rolebinding {name} --clusterrole={_ROLE} {subject} -n {namespace}")
    added = sorted({f"{need.kind.plural}.{need.kind.group}" for need in missing if "." in need.kind.group})
    if added:
        verbs = f"--verb={','.join(OWNED)} --resource={','.join(added)}"
        found.append(f"kubectl create role kinetic-slices {verbs} -n {namespace}")
        found.append(f"kubectl create rolebinding {name}-slices --role=kinetic-slices {subject} -n {namespace}")
    return " && ".join(found)


def _subject(who: str) -> str:
    account = who.removeprefix("system:serviceaccount:")
    return f"--serviceaccount={account}" if account != who else f"--user={shlex.quote(who or 'YOU')}"


def _role_binding_suffix(who: str) -> str:
    words = who.rpartition(":")[2].partition("@")[0].lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words).strip("-") or "user"


def _username(client: Client) -> str:
    """Return the name that the cluster has for us, "" where it does not say."""
    review = {"apiVersion": WHO_REVIEW.api_version, "kind": WHO_REVIEW.name}
    try:
        reply = client.transport.send("POST", WHO_REVIEW.path(""), body=json.dumps(review).encode())
    except KineticError:
        return ""
    if not 200 <= reply.status < 300:
        return ""  # an older cluster does not know the question
    about = (response_json(reply.body).get("status") or {}).get("userInfo") or {}
    return str(about.get("username") or "")


_GROUPS = Kind("", "v1", "apis", "API group", namespaced=False)  # for messages; it lies at /apis

Groups = dict[str, tuple[str, ...]]


def api_groups(client: Client) -> Groups:
    """Return the versions of each group of kinds that the cluster serves, the preferred one first."""
    return cache_of(client).ask("groups", lambda: _request_groups(client), lambda _: LONG_SECONDS)


def serves(client: Client, kind: Kind) -> bool:
    """Say whether the cluster knows a kind."""
    return kind.version in api_groups(client).get(kind.group, ())


def kind_for_slices(client: Client) -> Kind:
    """Return the kind of object that makes the pods of a slice.

        JobSet is served                               a JobSet: a slice that lost a host begins anew as a whole
        it is not                                      an Indexed Job, which every cluster has
        it is not, and we may not make Jobs, but may
        make LeaderWorkerSets                          a LeaderWorkerSet: made for servers, so it needs most care

    The answer is kept, so that all slices of a process are made alike.
    """
    return cache_of(client).ask("slices", lambda: _kind_for_slices(client))


def local_queue(client: Client) -> Kind | None:
    """Return the kind of Kueue's queues in a version that the cluster serves; None without Kueue."""
    return _served(client, LOCAL_QUEUE)


def workload(client: Client) -> Kind | None:
    """Return the kind of what Kueue knows of a job in a version that the cluster serves; None without Kueue."""
    return _served(client, WORKLOAD)


def _served(client: Client, kind: Kind) -> Kind | None:
    versions = api_groups(client).get(kind.group, ())
    if not versions:
        return None
    return kind if kind.version in versions else kind._replace(version=versions[0])


def _kind_for_slices(client: Client) -> Kind:
    if serves(client, JOB_SET):
        return JOB_SET
    if not serves(client, LEADER_WORKER_SET) or is_allowed(client, Permission("create", JOB)):
        return JOB
    return LEADER_WORKER_SET if is_allowed(client, Permission("create", LEADER_WORKER_SET)) else JOB


def _request_groups(client: Client) -> Groups:
    reply = client.transport.send("GET", "/apis")
    if reply.status != 200:
        raise client.refuse("list", _GROUPS, "", reply)
    found: Groups = {}
    for each in response_json(reply.body).get("groups") or ():
        preferred = (each.get("preferredVersion") or {}).get("version")
        others = [str(one.get("version")) for one in each.get("versions") or ()]
        found[str(each.get("name"))] = tuple(dict.fromkeys([*([str(preferred)] if preferred else []), *others]))
    return found
