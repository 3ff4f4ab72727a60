"""What this room needs to know of hardware that somebody wants; the room of hardware itself is beside this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

_GPU_LABEL = "cloud.google.com/gke-accelerator"
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"


class Hardware(Protocol):
    """What is wanted: as much of ``_hardware.Placement``."""

    @property
    def name(self) -> str:
        """Its canonical spelling."""

    @property
    def kind(self) -> str:
        """Whether it is a "cpu", a "gpu" or a "tpu"."""

    @property
    def chips(self) -> int:
        """GPUs or TPU chips of all hosts together (count)."""

    @property
    def hosts(self) -> int:
        """Machines (count)."""

    @property
    def chips_per_host(self) -> int:
        """Chips of each machine (count)."""

    @property
    def topology(self) -> str | None:
        """TPU chips per axis."""

    @property
    def machine_type(self) -> str | None:
        """Compute Engine's machine type."""

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels that a node must carry."""

    @property
    def tolerations(self) -> Sequence[Mapping[str, str]]:
        """Taints that its pods tolerate."""

    @property
    def spot(self) -> bool:
        """Whether it may be taken away."""


def is_tolerated(taint: tuple[str, str, str], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """Say whether pods with some tolerations may go to where a taint (key, value, effect) is."""
    key, value, effect = taint
    for each in tolerations:
        if each.get("key", key) != key or each.get("effect", effect) != effect:
            continue
        if each.get("operator") == "Exists" or each.get("value", "") == value:
            return True
    return False


def label(wanted: Hardware) -> str:
    """Return Google's word for the accelerator, which labels, limits and commands share; "" for a CPU."""
    return wanted.node_selector.get(_GPU_LABEL) or wanted.node_selector.get(_TPU_LABEL) or ""
