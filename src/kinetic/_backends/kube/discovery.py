"""What a cluster allows and serves, remembered for as long as it may be believed: a second job asks nothing.

Only answers that help are kept. A denied permission is asked about again, because someone may have granted it.
"""

from __future__ import annotations

import shlex
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube.client import (
    CONFIG_MAP,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    POD,
    RULES_REVIEW,
    SECRET,
    SERVICE,
    WHO_REVIEW,
    Kind,
)
from kinetic._backends.kube.transport import response_json
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

LONG_SECONDS = 600.0  # permissions, a namespace, what the cluster serves
SHORT_SECONDS = 60.0  # that something is missing, or what others may delete

T = TypeVar("T")


class ClusterCache:
    """The answers that one client got. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def ask(
        self, key: Hashable, question: Callable[[], T], seconds: Callable[[T], float] = lambda _: LONG_SECONDS
    ) -> T:
        """Return what is known, or ask; `seconds` says how long an answer may be believed. An error is not kept."""
        with self._lock:
            ends, value = self._kept.get(key, (float("-inf"), None))
        if self._clock() < ends:
            return value  # type: ignore[no-any-return]  # a key has one type of answer
        answer = question()
        with self._lock:
            self._kept[key] = (self._clock() + seconds(answer), answer)
        return answer

    def forget(self, key: Hashable) -> None:
        with self._lock:
            self._kept.pop(key, None)


# A forked child has other clients, see kube.connection, and so other caches.
_caches: weakref.WeakKeyDictionary[Client, ClusterCache] = weakref.WeakKeyDictionary()


def cache_of(client: Client) -> ClusterCache:
    """Return the cache of a client; it lives as long as the client."""
    return _caches.setdefault(client, ClusterCache())


# --------------------------------------------------------------------------------------------------------- permissions

OWNED = ("create", "get", "list", "watch", "delete", "patch")  # what we do with the object that makes a job's pods
_ROLE = "edit"  # comes with every cluster, and allows all that a job needs but JobSets
_SHOWN = 6  # missing permissions in a message


class Permission(NamedTuple):
    """One thing that we must be allowed to do: a verb, as in roles, to a kind, or to a part of it, e.g. "log"."""

    verb: str
    kind: Kind
    part: str = ""

    @property
    def resource(self) -> str:
        """What rules call it: "jobs", "pods/log"."""
        return f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural

    @property
    def is_added(self) -> bool:
        """Whether its kind was added to Kubernetes by something installed in the cluster."""
        return "." in self.kind.group

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.kind.group}" if self.is_added else "")

    def is_covered_by(self, rule: dict[str, Any]) -> bool:
        """Return whether a rule allows it; one that is for some names only does not."""
        part = f"*/{self.part}" if self.part else "*"
        return (
            not rule.get("resourceNames")
            and bool({self.verb, "*"} & set(rule.get("verbs") or ()))
            and bool({self.kind.group, "*"} & set(rule.get("apiGroups") or ()))
            and bool({self.resource, part, "*"} & set(rule.get("resources") or ()))
        )


def needed_permissions(maker: Kind, *, hosts: int = 1) -> tuple[Permission, ...]:
    """Return what a job needs whose pods are made by an object of a kind, on so many hosts (count)."""
    found = [Permission(verb, maker) for verb in OWNED if verb != "watch"]  # without it, the informer polls
    found += [Permission("list", POD), Permission("get", POD, "log")]
    found += [Permission("create", SECRET), Permission("get", CONFIG_MAP), Permission("create", CONFIG_MAP)]
    if hosts > 1 and maker == JOB:
        found.append(Permission("create", SERVICE))  # the other kinds that make slices bring their own
    return tuple(found)


def check_permissions(client: Client, needs: tuple[Permission, ...]) -> None:
    """Raise an error if we may not do something."""
    cache_of(client).ask(("allowed", needs), lambda: _request_rules(client, needs))


def is_allowed(client: Client, need: Permission) -> bool:
    return cache_of(client).ask(
        ("may", need),
        lambda: client.review_access(need.verb, need.kind, part=need.part).allowed,
        lambda allowed: LONG_SECONDS if allowed else SHORT_SECONDS,
    )


def _request_rules(client: Client, needs: tuple[Permission, ...]) -> bool:
    """Ask for our rules, and about each permission that none of them allows: a cluster need not tell all rules."""
    reply = client.review(RULES_REVIEW, {"namespace": client.namespace})
    if reply.status == 401:
        raise client.error_for("create", RULES_REVIEW, "", reply)
    rules = (response_json(reply.body).get("status") or {}).get("resourceRules") or () if reply.status < 300 else ()
    unsure = [need for need in needs if not any(need.is_covered_by(each) for each in rules if isinstance(each, dict))]
    answers = kube_client.request_all(
        [partial(client.review_access, need.verb, need.kind, part=need.part) for need in unsure]
    )
    denied = [(need, answer.why) for need, answer in zip(unsure, answers, strict=True) if not answer.allowed]
    if denied:
        raise _denied(client, [need for need, _ in denied], next((why for _, why in denied if why), ""))
    return True


def _denied(client: Client, missing: list[Permission], why: str) -> AccessDeniedError:
    shown = ", ".join(map(str, missing[:_SHOWN]))
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    user = _username(client)
    return AccessDeniedError(
        f"missing permissions in the namespace {client.namespace} of {client.about}: {shown}{more}",
        why=f"{f'your user there is {user}' if user else 'the cluster does not tell which user you are'}, and none of "
        f"its roles allows this{f': {why}' if why else ''}",
        next=f"{_grant_commands(user, client.namespace, missing)}     or ask an administrator of the cluster to",
    )


def _grant_commands(user: str, namespace: str, missing: list[Permission]) -> str:
    """Write the commands that allow it: a role of every cluster's, and one of its own for kinds that were added."""
    account = user.removeprefix("system:serviceaccount:")
    subject = f"--serviceaccount={account}" if account != user else f"--user={shlex.quote(user or 'YOU')}"
    short = user.rpartition(":")[2].partition("@")[0].lower()
    short = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in short).strip("-")
    name = f"kinetic-{short or 'user'}"
    commands = []
    if not all(need.is_added for need in missing):
        commands.append(f"kubectl create rolebinding {name} --clusterrole={_ROLE} {subject} -n {namespace}")
    added = sorted({need.kind.full_name for need in missing if need.is_added})
    if added:
        verbs = f"--verb={','.join(OWNED)} --resource={','.join(added)}"
        commands.append(f"kubectl create role kinetic-slices {verbs} -n {namespace}")
        commands.append(f"kubectl create rolebinding {name}-slices --role=kinetic-slices {subject} -n {namespace}")
    return " && ".join(commands)


def _username(client: Client) -> str:
    """Return our name in the cluster, "" where it does not say: an older one does not know the question."""
    try:
        reply = client.review(WHO_REVIEW, {})
    except KineticError:
        return ""
    status = response_json(reply.body).get("status") if reply.status < 300 else None
    return str(((status or {}).get("userInfo") or {}).get("username") or "")


# ----------------------------------------------------------------------------------------------------- what is served

_GROUPS = Kind("", "v1", "apis", "API group", namespaced=False)  # for messages; its path is /apis


def api_groups(client: Client) -> dict[str, tuple[str, ...]]:
    """Return the versions of each API group that the cluster serves, the preferred one first."""
    return cache_of(client).ask("groups", lambda: _request_groups(client))


def _request_groups(client: Client) -> dict[str, tuple[str, ...]]:
    reply = client.transport.send("GET", "/apis")
    if reply.status != 200:
        raise client.error_for("list", _GROUPS, "", reply)
    found = {}
    for each in response_json(reply.body).get("groups") or ():
        versions = [each.get("preferredVersion") or {}, *(each.get("versions") or ())]
        names = [str(one["version"]) for one in versions if one.get("version")]
        found[str(each.get("name"))] = tuple(dict.fromkeys(names))
    return found


def serves(client: Client, kind: Kind) -> bool:
    return kind.version in api_groups(client).get(kind.group, ())


def served(client: Client, kind: Kind) -> Kind | None:
    """Return a kind in a version that the cluster serves; None where it has none."""
    versions = api_groups(client).get(kind.group, ())
    if not versions:
        return None
    return kind if kind.version in versions else kind._replace(version=versions[0])


def kind_for_slices(client: Client) -> Kind:
    """Return the kind of object that makes the pods of a slice.

        JobSet is served                               a JobSet: a slice that lost a host restarts as a whole
        it is not                                      an Indexed Job, which every cluster has
        it is not, and we may not create Jobs, but may
        create LeaderWorkerSets                        a LeaderWorkerSet: made for servers, so it needs most care

    The answer is kept, so that all slices of a process are made alike.
    """
    return cache_of(client).ask("slices", lambda: _kind_for_slices(client))


def _kind_for_slices(client: Client) -> Kind:
    if serves(client, JOB_SET):
        return JOB_SET
    if not serves(client, LEADER_WORKER_SET) or is_allowed(client, Permission("create", JOB)):
        return JOB
    return LEADER_WORKER_SET if is_allowed(client, Permission("create", LEADER_WORKER_SET)) else JOB
