"""A pod's volumes and variables, made from the objects of the API that they name."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.access import RefusedError
from cluster.containers import Mount

if TYPE_CHECKING:
    from cluster.calls import Calls

Pod = dict[str, Any]


class NotYetError(Exception):
    """Something that the pod names is not there; it may come."""


class NotHereError(Exception):
    """Something that a real node may have, and this one refuses to pretend."""


class Sources:
    """What one pod names: ConfigMaps, Secrets, tokens and itself."""

    def __init__(self, calls: Calls, pod: Pod, node: str) -> None:
        self._calls = calls
        self._pod = pod
        self._namespace = pod["metadata"]["namespace"]
        self._node = node
        self.pod_ip = ""

    async def config_map(self, name: str, *, optional: bool = False) -> dict[str, bytes]:
        found = await self._object("configmaps", "configmap", name, optional=optional)
        text = {key: value.encode() for key, value in (found.get("data") or {}).items()}
        return text | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}

    async def secret(self, name: str, *, optional: bool = False) -> dict[str, bytes]:
        found = await self._object("secrets", "secret", name, optional=optional)
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}

    async def _object(self, plural: str, kind: str, name: str, *, optional: bool) -> dict[str, Any]:
        try:
            return await self._calls.insist("GET", f"/api/v1/namespaces/{self._namespace}/{plural}/{name}")
        except RefusedError as refused:
            if refused.status != 404:
                raise
            if optional:
                return {}
            raise NotYetError(f'{kind} "{name}" not found') from refused

    async def volume(self, claim: str) -> Path:
        """Return the folder of this machine that a claim is bound to."""
        found = await self._object("persistentvolumeclaims", "persistentvolumeclaim", claim, optional=False)
        volume = await self._calls.insist("GET", f"/api/v1/persistentvolumes/{found['spec']['volumeName']}")
        return Path(volume["spec"]["hostPath"]["path"])

    async def token(self, source: dict[str, Any]) -> bytes:
        """Ask for a token of the pod's account, bound to the pod: deleted with it."""
        metadata = self._pod["metadata"]
        audience = source.get("audience")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        spec = {"expirationSeconds": source.get("expirationSeconds", 3600), "boundObjectRef": bound}
        spec["audiences"] = [audience] if audience else []
        account = self._pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        return (await self._calls.insist("POST", path, {"spec": spec}))["status"]["token"].encode()

    def field(self, path: str) -> str:
        """Return what a fieldRef names."""
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        single = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if single:
            return (metadata.get(single.group(1)) or {}).get(single.group(2), "")
        if path in {"metadata.labels", "metadata.annotations"}:
            table = metadata.get(path.removeprefix("metadata.")) or {}
            return "\n".join(f'{key}="{_quoted(value)}"' for key, value in sorted(table.items()))
        known = {
            "metadata.name": metadata["name"],
            "metadata.namespace": self._namespace,
            "metadata.uid": metadata["uid"],
            "spec.nodeName": self._node,
            "spec.serviceAccountName": spec.get("serviceAccountName", ""),
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": "127.0.0.1",
        }
        if path not in known:
            raise NotHereError(f"fieldRef {path} is not known to the test's node agent")
        return known[path]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ---------------------------------------------------------------------------------------------------------- variables


async def environment(container: dict[str, Any], sources: Sources) -> dict[str, str]:
    """Work out a container's own variables: those of whole objects first, then one by one."""
    found: dict[str, str] = {}
    for each in container.get("envFrom") or []:
        prefix = each.get("prefix", "")
        for kind, read in (("configMapRef", sources.config_map), ("secretRef", sources.secret)):
            if kind in each:
                values = await read(each[kind]["name"], optional=each[kind].get("optional", False))
                found |= {prefix + key: value.decode() for key, value in values.items()}
    for each in container.get("env") or []:
        value = await _value(each, sources, found)
        if value is not None:
            found[each["name"]] = value
    return found


async def _value(each: dict[str, Any], sources: Sources, known: dict[str, str]) -> str | None:
    origin = each.get("valueFrom")
    if not origin:
        return expand(each.get("value", ""), known)
    if "fieldRef" in origin:
        return sources.field(origin["fieldRef"]["fieldPath"])
    for kind, read in (("configMapKeyRef", sources.config_map), ("secretKeyRef", sources.secret)):
        if kind in origin:
            reference = origin[kind]
            optional = reference.get("optional", False)
            values = await read(reference["name"], optional=optional)
            if reference["key"] in values:
                return values[reference["key"]].decode()
            if optional:
                return None
            word = "Secret" if kind == "secretKeyRef" else "ConfigMap"
            raise NotYetError(f"couldn't find key {reference['key']} in {word} {reference['name']}")
    raise NotHereError(f"the test's node agent does not know valueFrom {sorted(origin)}")


def expand(text: str, known: dict[str, str]) -> str:
    """Replace `$(NAME)` where the name is known; `$$` is a plain `$`."""

    def one(match: re.Match[str]) -> str:
        return "$" if match.group(0) == "$$" else known.get(match.group(1), match.group(0))

    return re.sub(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)", one, text)


# ------------------------------------------------------------------------------------------------------------ volumes


async def prepare(pod: Pod, sources: Sources, folder: Path) -> dict[str, Path | str]:
    """Make every volume; return folders by name, or the options of tmpfs for memory that one container alone uses."""
    made: dict[str, Path | str] = {}
    for volume in pod["spec"].get("volumes") or []:
        kind = next(key for key in volume if key != "name")
        if kind == "persistentVolumeClaim":
            made[volume["name"]] = await sources.volume(volume[kind]["claimName"])
            continue
        if kind not in MAKERS:
            raise NotHereError(_refusal(kind, volume[kind]))
        if kind == "emptyDir" and volume[kind].get("medium") == "Memory" and _users(pod, volume["name"]) == 1:
            made[volume["name"]] = _memory(volume[kind])
            continue
        place = folder / "volumes" / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        files = await MAKERS[kind](volume[kind], sources)
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).touch(mode=0o600)
            (place / name).write_bytes(content)
            (place / name).chmod(_mode(volume[kind], name))
        made[volume["name"]] = place
        if kind == "emptyDir":
            place.chmod(0o777)
        group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None and os.geteuid() == 0:
            _give_to(place, group, writable=kind == "emptyDir")
    return made


def _mode(source: dict[str, Any], name: str) -> int:
    """Return the mode of a file: its own, else that of its volume."""
    own = (each.get("mode") for each in source.get("items") or [] if each.get("path") == name)
    return next(filter(None, own), source.get("defaultMode", 0o644))


def _give_to(place: Path, group: int, *, writable: bool) -> None:
    """Do what a kubelet does for an fsGroup: everything is of that group, and it may read it, and write an emptyDir."""
    for each in (place, *place.rglob("*")):
        mask = 0o660 if writable else 0o440
        mask |= 0o2110 if each.is_dir() else 0
        os.chown(each, -1, group)
        each.chmod(each.stat().st_mode & 0o7777 | mask)


def _refusal(kind: str, source: dict[str, Any]) -> str:
    if kind == "csi":  # as a kubelet says it
        return f"kubernetes.io/csi: driver name {source.get('driver')} not found in the list of registered CSI drivers"
    return f"the test's node agent refuses volumes of kind {kind}"


def _users(pod: Pod, volume: str) -> int:
    containers = [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
    return sum(any(mount["name"] == volume for mount in each.get("volumeMounts") or []) for each in containers)


def _memory(source: dict[str, Any]) -> str:
    limit = source.get("sizeLimit")
    return "mode=1777" + (f",size={quantity(limit)}" if limit else "")


def quantity(text: str) -> int:
    """Return a quantity of bytes, as Kubernetes writes it, as a number."""
    units = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text))
    assert match, f"{text!r} is no quantity"
    return int(float(match.group(1)) * units[match.group(2)])


async def _empty(_: dict[str, Any], __: Sources) -> dict[str, bytes]:
    return {}


async def _config_map(source: dict[str, Any], sources: Sources) -> dict[str, bytes]:
    return _items(source, await sources.config_map(source["name"], optional=source.get("optional", False)))


async def _secret(source: dict[str, Any], sources: Sources) -> dict[str, bytes]:
    name = source.get("secretName") or source["name"]  # the first alone, the second as part of a projection
    return _items(source, await sources.secret(name, optional=source.get("optional", False)))


async def _downward(source: dict[str, Any], sources: Sources) -> dict[str, bytes]:
    return {each["path"]: sources.field(each["fieldRef"]["fieldPath"]).encode() for each in source.get("items") or []}


async def _token(source: dict[str, Any], sources: Sources) -> dict[str, bytes]:
    return {source["path"]: await sources.token(source)}


async def _projected(source: dict[str, Any], sources: Sources) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for each in source.get("sources") or []:
        for kind, part in each.items():
            if kind not in PARTS:
                raise NotHereError(f"the test's node agent refuses projections of kind {kind}")
            files |= await PARTS[kind](part, sources)
    return files


def _items(source: dict[str, Any], values: dict[str, bytes]) -> dict[str, bytes]:
    wanted = source.get("items")
    if not wanted:
        return values
    for each in wanted:
        if each["key"] not in values and not source.get("optional"):
            raise NotYetError(f"references non-existent config key: {each['key']}")
    return {each["path"]: values[each["key"]] for each in wanted if each["key"] in values}


Maker = Callable[[dict[str, Any], Sources], Awaitable[dict[str, bytes]]]
PARTS: dict[str, Maker] = {
    "configMap": _config_map,
    "secret": _secret,
    "downwardAPI": _downward,
    "serviceAccountToken": _token,
}
MAKERS: dict[str, Maker] = {
    "emptyDir": _empty,
    "configMap": _config_map,
    "secret": _secret,
    "downwardAPI": _downward,
    "projected": _projected,
}


def mounts(container: dict[str, Any], made: dict[str, Path | str], known: dict[str, str]) -> list[Mount]:
    """Say what a container sees where, outer folders first."""
    found = []
    for each in container.get("volumeMounts") or []:
        volume = made[each["name"]]
        if isinstance(volume, str):
            found.append(Mount(each["mountPath"], options=volume))
            continue
        part = each.get("subPath") or expand(each.get("subPathExpr", ""), known)
        source = volume / part if part else volume
        if part and not source.exists():
            source.mkdir(parents=True)
        found.append(Mount(each["mountPath"], str(source), writable=not each.get("readOnly", False)))
    return sorted(found, key=lambda mount: mount.target.count("/"))
