"""Names inside a slice: what cluster DNS would answer for headless Services, written into each pod's /etc/hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

HEAD = """# Kept by the test's node agent; names of headless Services stand at the end.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
"""


class Neighbour(NamedTuple):
    """A pod as names are made from it."""

    namespace: str
    hostname: str
    subdomain: str
    labels: dict[str, str]
    address: str
    is_ready: bool


def hostname(pod: dict[str, Any]) -> str:
    return pod["spec"].get("hostname") or pod["metadata"]["name"][:63]


def own_lines(pod: dict[str, Any], address: str) -> str:
    """Write what a kubelet writes: the pod itself, and the aliases that it asks for."""
    subdomain, namespace, name = pod["spec"].get("subdomain"), pod["metadata"]["namespace"], hostname(pod)
    full = f"{name}.{subdomain}.{namespace}.svc.cluster.local\t" if subdomain else ""
    aliases = [f"{each['ip']}\t{' '.join(each['hostnames'])}" for each in pod["spec"].get("hostAliases") or []]
    return HEAD + "".join(f"{line}\n" for line in [f"{address}\t{full}{name}", *aliases])


def service_lines(services: list[dict[str, Any]], pods: list[Neighbour], namespace: str) -> str:
    """Write the names that DNS would give to pods behind headless Services, as seen from a namespace."""
    lines = []
    for service in services:
        spec, where, name = service["spec"], service["metadata"]["namespace"], service["metadata"]["name"]
        if spec.get("clusterIP") != "None" or not spec.get("selector"):
            continue
        for pod in pods:
            if pod.namespace != where or not spec["selector"].items() <= pod.labels.items():
                continue
            if not (pod.is_ready or spec.get("publishNotReadyAddresses")):
                continue
            stems = [name] + ([f"{pod.hostname}.{name}"] if pod.subdomain == name else [])
            # What the search path of resolv.conf completes: a bare name is of one's own namespace.
            ends = [f".{where}.svc.cluster.local", f".{where}.svc", f".{where}"] + [""] * (where == namespace)
            lines.append(f"{pod.address}\t{' '.join(stem + end for stem in reversed(stems) for end in ends)}\n")
    return "".join(lines)


def write(path: Path, text: str) -> None:
    """Change a file that containers see, in place: another file under the same name would not be seen."""
    data = text.encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
