"""What we must be allowed to do in a namespace, whether we are, and the command that allows it.

One question brings the list of our rules; it may be incomplete, as where Google's IAM decides too. So what the list
does not allow is asked about one by one, and only that.
"""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.kube import facts, together
from kinetic._backends.kube.kinds import CONFIG_MAP, JOB, POD, RULES_REVIEW, SECRET, SERVICE, WHO_REVIEW, Kind
from kinetic._backends.kube.refusals import page_of
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

OWNED = ("create", "get", "list", "watch", "delete", "patch")  # what we do with the object that makes a job's pods
_ROLE = "edit"  # comes with every cluster, and allows all that a job needs but JobSets
_SHOWN = 6  # missing permissions in a message

Rules = list[dict[str, Any]]


class Need(NamedTuple):
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


def needed(maker: Kind, *, hosts: int = 1) -> tuple[Need, ...]:
    """Return what a job needs whose pods are made by an object of a kind, on so many hosts (count)."""
    found = [Need(verb, maker) for verb in OWNED]
    found += [Need("list", POD), Need("watch", POD), Need("get", POD, "log")]
    found += [Need("create", SECRET), Need("get", CONFIG_MAP), Need("create", CONFIG_MAP)]
    if hosts > 1 and maker == JOB:
        found.append(Need("create", SERVICE))  # the other kinds that make slices bring their own
    return tuple(found)


def check(client: Client, needs: tuple[Need, ...]) -> None:
    """Refuse what we may not do.

    Raises:
        AccessDeniedError: Something is not allowed; all of it is named, with the command that allows it.
    """
    facts.of(client).ask(("allowed", needs), lambda: _ask(client, needs))


def may(client: Client, need: Need) -> bool:
    """Say whether we may do something."""
    return facts.of(client).ask(
        ("may", need),
        lambda: client.may(need.verb, need.kind, part=need.part).allowed,
        lambda allowed: facts.LASTING if allowed else facts.BRIEF,
    )


def _ask(client: Client, needs: tuple[Need, ...]) -> bool:
    missing = _missing(client, needs, _rules(client))
    if missing:
        raise _denied(client, missing)
    return True


def _missing(client: Client, needs: tuple[Need, ...], known: Rules) -> list[tuple[Need, str]]:
    """Ask about each thing that the rules do not allow; return those that are refused, and why."""
    unsure = [need for need in needs if not _covers(known, need)]
    answers: dict[Need, tuple[bool, str]] = {}

    def ask(need: Need) -> None:
        answers[need] = client.may(need.verb, need.kind, part=need.part)

    together.ask_all([partial(ask, need) for need in unsure])
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
    status = page_of(reply.body).get("status") or {}
    return [each for each in status.get("resourceRules") or () if isinstance(each, dict)]


def _covers(known: Rules, need: Need) -> bool:
    """Say whether a rule allows it; one that is for some names only does not."""
    part = f"*/{need.part}" if need.part else "*"
    return any(
        not rule.get("resourceNames")
        and {need.verb, "*"} & set(rule.get("verbs") or ())
        and {need.kind.group, "*"} & set(rule.get("apiGroups") or ())
        and {need.resource, part, "*"} & set(rule.get("resources") or ())
        for rule in known
    )


def _denied(client: Client, missing: list[tuple[Need, str]]) -> AccessDeniedError:
    words = [str(need) for need, _ in missing]
    shown = ", ".join(words[:_SHOWN]) + (f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else "")
    why = next((why for _, why in missing if why), "")
    who = _who(client)
    return AccessDeniedError(
        f"{client.about} does not let us {shown} in the namespace {client.namespace}",
        why=f"{'we are ' + who if who else 'nobody says who we are there'}, and no role of ours allows it"
        + (f": {why}" if why else ""),
        next=f"{_commands(who, client.namespace, [need for need, _ in missing])}     or ask who runs the cluster to",
    )


def _commands(who: str, namespace: str, missing: list[Need]) -> str:
    """Write the commands that allow it: a role of every cluster's, and one of its own for kinds that were added."""
    found = []
    subject, name = _subject(who), f"kinetic-{_plain(who)}"
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


def _plain(who: str) -> str:
    words = who.rpartition(":")[2].partition("@")[0].lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words).strip("-") or "user"


def _who(client: Client) -> str:
    """Return the name that the cluster has for us, "" where it does not say."""
    review = {"apiVersion": WHO_REVIEW.api_version, "kind": WHO_REVIEW.name}
    try:
        reply = client.transport.send("POST", WHO_REVIEW.path(""), body=json.dumps(review).encode())
    except KineticError:
        return ""
    if not 200 <= reply.status < 300:
        return ""  # an older cluster does not know the question
    about = (page_of(reply.body).get("status") or {}).get("userInfo") or {}
    return str(about.get("username") or "")
