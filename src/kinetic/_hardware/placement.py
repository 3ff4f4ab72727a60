"""What a cluster has to provide for an accelerator: hosts, chips, node selector, tolerations. Plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kinetic._hardware import accelerator_names, catalog

if TYPE_CHECKING:
    from kinetic._hardware.accelerator_names import HardwareName, Kind

_GPU_LABEL = "cloud.google.com/gke-accelerator"
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
_CHIPS_LABEL = "cloud.google.com/gke-accelerator-count"
_SPOT_LABEL = "cloud.google.com/gke-spot"
_ARCH_LABEL = "kubernetes.io/arch"
_GPU_RESOURCE = "nvidia.com/gpu"
_TPU_RESOURCE = "google.com/tpu"

Toleration = dict[str, str]


class Placement(NamedTuple):
    """Hold the hardware of one job, resolved.

    Attributes:
        accelerator: The name exactly as the user wrote it.
        name: Its canonical spelling, e.g. "tpu-v5litepod-2x4".
        kind: "cpu", "gpu" or "tpu".
        family: Key in ``catalog.GPUS`` or ``catalog.TPUS``; "cpu" for a CPU.
        chips: GPUs, or TPU chips, of all hosts together (count); 0 for a CPU.
        hosts: Machines, and so pods (count); 1 for anything but a TPU slice.
        chips_per_host: Chips that each pod asks for (count): all that its host has, as the TPU device plugin demands.
        topology: TPU chips per axis, e.g. "2x4"; None for all else.
        machine_type: Compute Engine's machine type; None for a CPU, where any will do.
        node_selector: Labels that a node must carry.
        tolerations: Kubernetes tolerations, ready for a pod.
        resource: The extended resource a pod asks for, e.g. "google.com/tpu"; None for a CPU.
        resource_count: How much of it each pod asks for (count).
        spot: Whether the capacity may be taken away with about 30 s notice.
        notes: Plain sentences for the user: what the name may mean elsewhere, what the hardware needs.
        source: Where the facts were read.
    """

    accelerator: str
    name: str
    kind: Kind
    family: str
    chips: int
    hosts: int
    chips_per_host: int
    topology: str | None
    machine_type: str | None
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    resource: str | None
    resource_count: int
    spot: bool
    notes: tuple[str, ...]
    source: str


def place(accelerator: str, *, spot: bool = False, multi_host: bool = False) -> Placement:
    """Say what hardware a name asks for.

    Args:
        accelerator: As a user writes it, e.g. "tpu-v5litepod-2x4" (chips per axis) or "gpu-l4x4" (GPUs).
        spot: Ask for capacity that may be taken away with about 30 s notice; ":spot" in the name does the same.
            A CPU job ignores both.
        multi_host: Take two hosts of 4 chips for the ``2x4`` of v5e and v6e, which is one host of 8 otherwise.
            It changes nothing else.

    Returns:
        Hosts (count), chips per host (count), node selector and tolerations.

    Raises:
        OptionError: Unknown name (the message has the three nearest), or a size it does not come in.

    Source: per row, in the field ``source``; labels and taints as in GKE's autoscaler and device plugin, 2026.
    """
    wanted = accelerator_names.parse(accelerator)
    if wanted.kind == "tpu":
        return _place_tpu(wanted, spot=spot or wanted.spot, multi_host=multi_host)
    if wanted.kind == "gpu":
        return _place_gpu(wanted, spot=spot or wanted.spot)
    return _place_cpu(wanted, spot=spot)


def _place_cpu(wanted: HardwareName, *, spot: bool) -> Placement:
    note = ("spot has no effect on a CPU job: it runs on ordinary capacity",) if spot else ()
    return Placement(
        accelerator=wanted.written,
        name=wanted.canonical,
        kind=wanted.kind,
        family=wanted.family,
        chips=0,
        hosts=1,
        chips_per_host=0,
        topology=None,
        machine_type=None,
        node_selector={},
        tolerations=(),
        resource=None,
        resource_count=0,
        spot=False,
        notes=wanted.notes + note,
        source="any node: nothing is asked for",
    )


def _place_gpu(wanted: HardwareName, *, spot: bool) -> Placement:
    family = catalog.GPUS[wanted.family]
    selector = {_GPU_LABEL: family.label}
    tolerations = [_tolerate_any(_GPU_RESOURCE)]
    notes = list(wanted.notes)
    if family.arm64:
        # GKE taints every Arm node, so that an x86 image does not land there by accident.
        selector[_ARCH_LABEL] = "arm64"
        tolerations.append(_tolerate(_ARCH_LABEL, "arm64"))
        notes.append(f"{family.name} hosts are Arm machines: the image must be built for linux/arm64")
    if wanted.chips < family.on_demand_from and not spot:
        notes.append(
            f"Google sells machines with fewer than {family.on_demand_from} {family.name} as Spot or flex-start only: "
            f"write {wanted.canonical}:spot if no such machine comes up"
        )
    return Placement(
        accelerator=wanted.written,
        name=wanted.canonical,
        kind=wanted.kind,
        family=wanted.family,
        chips=wanted.chips,
        hosts=1,
        chips_per_host=wanted.chips,
        topology=None,
        machine_type=family.machines[wanted.chips],
        node_selector=selector | _spot_selector(spot=spot),
        tolerations=(*tolerations, *_spot_tolerations(spot=spot)),
        resource=_GPU_RESOURCE,
        resource_count=wanted.chips,
        spot=spot,
        notes=tuple(notes),
        source=family.source,
    )


def _place_tpu(wanted: HardwareName, *, spot: bool, multi_host: bool) -> Placement:
    family = catalog.TPUS[wanted.family]
    topology = wanted.topology or family.largest  # a TPU name always has one; this pleases the type checker only
    machine, hosts = family.hosting(topology, multi_host=multi_host)
    selector = {_TPU_LABEL: machine.label, _TOPOLOGY_LABEL: topology}
    if machine != family.hosting(topology)[0]:
        # Both labels are also on the one large host, and its device plugin refuses a pod that asks for half of it.
        selector[_CHIPS_LABEL] = str(machine.chips)
    return Placement(
        accelerator=wanted.written,
        name=wanted.canonical,
        kind=wanted.kind,
        family=wanted.family,
        chips=wanted.chips,
        hosts=hosts,
        chips_per_host=machine.chips,
        topology=topology,
        machine_type=machine.machine_type,
        node_selector=selector | _spot_selector(spot=spot),
        tolerations=(_tolerate_any(_TPU_RESOURCE), *_spot_tolerations(spot=spot)),
        resource=_TPU_RESOURCE,
        resource_count=machine.chips,
        spot=spot,
        notes=wanted.notes,
        source=family.source,
    )


def _spot_selector(*, spot: bool) -> dict[str, str]:
    return {_SPOT_LABEL: "true"} if spot else {}


def _spot_tolerations(*, spot: bool) -> tuple[Toleration, ...]:
    # Without its value an Equal toleration tolerates only an empty taint: the pod would stay pending for ever.
    return (_tolerate(_SPOT_LABEL, "true"),) if spot else ()


def _tolerate(key: str, value: str) -> Toleration:
    return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}


def _tolerate_any(key: str) -> Toleration:
    # GKE writes the taint as key=present:NoSchedule; Exists holds for any value it may choose.
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}
