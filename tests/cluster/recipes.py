"""What a container is started with, from its spec, its pod and its image; what is not done here is refused."""

from __future__ import annotations

from glob import glob
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import names, volumes
from cluster.containers import Mount, Recipe, isolated
from cluster.volumes import NotHereError, NotYetError, Sources

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.images import Image

TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
GPU = "nvidia.com/gpu"
DRIVER = "/usr/local/nvidia"  # where GKE puts its libraries
# Fields of a container that would change what happens, and that are not done here.
UNKNOWN = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "volumeDevices")


class Place(NamedTuple):
    """Where a pod's things lie on this machine.

    Attributes:
        hosts: Its /etc/hosts.
        last_words: The folder for what its containers say last, a file each.
        api_port: Where its node finds the API server.
    """

    hosts: Path
    last_words: Path
    api_port: int


async def write(
    spec: dict[str, Any],
    pod: dict[str, Any],
    image: Image,
    sources: Sources,
    made: dict[str, Path | str],
    place: Place,
) -> Recipe:
    """Write the recipe for one run of a container.

    Raises:
        NotYetError: Something that it names is not there.
        NotHereError: It asks for something that the agent does not do.
    """
    refuse_what_is_unknown(spec)
    refuse_what_cannot_be_mounted(spec)
    hostname = names.hostname(pod)
    api = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(place.api_port)}
    own = {**api, **await volumes.environment(spec, sources)}
    words = [*(spec.get("command") or []), *(spec.get("args") or [])]
    command = [volumes.expand(word, own) for word in words]
    if not command:
        raise NotHereError("no command specified")
    security = {**(pod["spec"].get("securityContext") or {}), **(spec.get("securityContext") or {})}
    user = security.get("runAsUser", image.user)
    refuse_root(spec, pod, security, user)
    # Unless the image says so, as for a number that /etc/passwd does not know.
    home = {"HOME": "/"} if user and "HOME" not in image.environment else {}
    return Recipe(
        command,
        {**image.variables(), **home, "HOSTNAME": hostname, **own},
        image,
        [*volumes.mounts(spec, made, own), *_mounts_of_everybody(spec, place), *_mounts_of_gpus(spec)],
        spec.get("workingDir") or "/",
        hostname,
        user,
        security.get("runAsGroup", 0 if user else None),
        tuple(filter(None, (security.get("fsGroup"),))),
        "ALL" in ((security.get("capabilities") or {}).get("drop") or ()),
        security.get("allowPrivilegeEscalation") is False,
        bool(security.get("readOnlyRootFilesystem")),
    )


def refuse_root(spec: dict[str, Any], pod: dict[str, Any], security: dict[str, Any], user: int | None) -> None:
    """Refuse what a kubelet refuses: a container that must not be root, and would be."""
    if security.get("runAsNonRoot") and not user:
        about = f'pod: "{pod["metadata"]["name"]}_{pod["metadata"]["namespace"]}", container: {spec["name"]}'
        raise NotYetError(f"container has runAsNonRoot and image will run as root ({about})")


def refuse_what_is_unknown(spec: dict[str, Any]) -> None:
    for name in UNKNOWN:
        if spec.get(name):
            raise NotHereError(f"the test's node agent does not know {name} of containers")
    if spec.get("restartPolicy"):
        raise NotHereError("the test's node agent does not know sidecars (restartPolicy of an init container)")


def refuse_what_cannot_be_mounted(spec: dict[str, Any]) -> None:
    """Without namespaces a container sees this machine as it is; only its token may be missing from that."""
    places = [mount["mountPath"] for mount in spec.get("volumeMounts") or []]
    if not isolated() and any(place != TOKENS for place in places):
        raise NotHereError("this user may not make namespaces here, so there are no volumes: run the tests as root")


def _mounts_of_everybody(spec: dict[str, Any], place: Place) -> list[Mount]:
    """Mount what every container has: /etc/hosts, and the place for its last words."""
    words = place.last_words / spec["name"]
    words.parent.mkdir(parents=True, exist_ok=True)
    words.write_bytes(b"")
    words.chmod(0o666)
    where = spec.get("terminationMessagePath") or "/dev/termination-log"
    return [Mount("/etc/hosts", str(place.hosts)), Mount(where, str(words))]


def _mounts_of_gpus(spec: dict[str, Any]) -> list[Mount]:
    """Mount the GPUs of this machine, if it has any, and the driver, into a container that asks for GPUs.

    A container has the libraries of this machine's own folders anyway.
    """
    if GPU not in ((spec.get("resources") or {}).get("limits") or {}):
        return []
    devices = sorted(glob("/dev/nvidia*"))
    return [Mount(path, path) for path in (*devices, *glob(DRIVER))] if devices else []
