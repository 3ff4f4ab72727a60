"""Every GPU and TPU that GKE offers, as data: names, labels, machine types, limits.

What follows from these (which topologies exist, on how many hosts) is arithmetic and lives in ``families``.

Where a row names no other source, it was read in Google's GKE cluster autoscaler as it was in 2026 (``AUTOSCALER``).
The limits of TPU shapes come from kuberay's kubectl plugin and xpk, TensorCores per chip and the two labels of v3
from ai-on-gke/tpu-device-plugin ``pkg/tpu/util/util.go``, all 2026.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


AUTOSCALER = "GKE cluster autoscaler (k8s.io/gke-autoscaling/cluster-autoscaler), machinetypes and labels, 2026"

_MAX_DIGITS = 9  # characters; a longer number is a typing accident
MAX_AXES = 3
_PLANE = 2  # axes of a generation whose chips form a flat torus
_CUBE_SIDE = 4  # chips; larger 3-D slices are built from whole 4x4x4 cubes
CUBE_CHIPS = _CUBE_SIDE**3
_SMALL_SIDES = frozenset((2, 4))  # chips; sides inside one cube


class GpuFamily(NamedTuple):
    """Describe one kind of GPU.

    Attributes:
        name: The word a user writes, e.g. "l4".
        aliases: Other accepted words, without the label.
        label: Value of the node label ``cloud.google.com/gke-accelerator``; also accepted as a name.
        machines: Machine type by GPUs per host (count).
        arm64: Whether the hosts are Arm machines and need an image for linux/arm64.
        on_demand_from: Smallest machine sold on demand (GPUs, count); below it there is only Spot or flex-start.
        source: Where the row was read.
    """

    name: str
    label: str
    machines: dict[int, str]
    aliases: tuple[str, ...] = ()
    arm64: bool = False
    on_demand_from: int = 1
    source: str = AUTOSCALER

    @property
    def words(self) -> tuple[str, ...]:
        """Return every word that names this family."""
        return (self.name, *self.aliases, self.label)

    @property
    def default_count(self) -> int:
        """Return how many GPUs the bare name asks for (count): the smallest machine there is."""
        return min(self.machines)


class TpuMachine(NamedTuple):
    """Describe one machine type that carries TPU chips.

    Attributes:
        machine_type: Compute Engine's name, e.g. "ct5lp-hightpu-4t".
        label: Value of the node label ``cloud.google.com/gke-tpu-accelerator``.
        chips: Chips per host (count).
        alone: The topology that one such host makes by itself; None when it only occurs as a part of a slice.
        joins: Whether several of them make a larger slice.
    """

    machine_type: str
    label: str
    chips: int
    alone: str | None
    joins: bool = False


class TpuFamily(NamedTuple):
    """Describe one TPU generation, and answer which shapes it comes in.

    Attributes:
        name: The word a user writes, e.g. "v5litepod".
        short: The word used in job ids, e.g. "v5e".
        machines: Its machine types, smallest first; at most one joins others to a slice.
        default_chips: Chips that the bare name asks for (count).
        largest: The largest topology; fixes the number of axes too.
        aliases: Other accepted words, node labels among them where a label belongs to the whole family.
        cores_per_chip: TensorCores per chip (count). Where it is 2, the numbers in Google's own names count cores.
        source: Where the row was read.
    """

    name: str
    short: str
    machines: tuple[TpuMachine, ...]
    default_chips: int
    largest: str
    aliases: tuple[str, ...] = ()
    cores_per_chip: int = 1
    source: str = AUTOSCALER

    @property
    def words(self) -> tuple[str, ...]:
        """Return every word that names this family."""
        return (self.name, *self.aliases)

    @property
    def axes(self) -> int:
        """Return how many numbers a topology of this family has (count)."""
        return len(sides_of(self.largest))

    @property
    def max_chips(self) -> int:
        """Return the chips of the largest slice (count)."""
        return chips_of(self.largest)

    @property
    def joining(self) -> TpuMachine | None:
        """Return the machine type that larger slices are made of, or None if there are no larger slices."""
        return next((machine for machine in self.machines if machine.joins), None)

    def canonical(self, topology: str) -> str:
        """Write the one canonical name of a slice, e.g. "tpu-v5litepod-2x4" or "tpu7x-2x2x1"."""
        prefix = "" if self.name.startswith("tpu") else "tpu-"
        return f"{prefix}{self.name}-{topology}"

    def offers(self, topology: str) -> bool:
        """Tell whether a topology exists.

        One host's own shapes exist. Beyond them a flat slice is AxA or Ax2A with A a power of two from 4 on; a
        3-D slice is AxBxC with A <= B <= C, of sides 2 and 4 up to one 4x4x4 cube, of multiples of 4 beyond it.

        Args:
            topology: Chips per axis as GKE writes it, e.g. "2x4"; "4x2" and "02x4" are not the same word.
        """
        if any(machine.alone == topology for machine in self.machines):
            return True
        sides = sides_of(topology)
        if topology != topology_of(sides) or len(sides) != self.axes or self.joining is None:
            return False
        if not 0 < prod(sides) <= self.max_chips or list(sides) != sorted(sides):
            return False
        return _is_flat_slice(sides) if self.axes == _PLANE else _is_box_slice(sides)

    def topology_for(self, chips: int) -> str | None:
        """Choose the topology that a bare number of chips means: the most compact one.

        Args:
            chips: Chips of the whole slice (count).

        Returns:
            A topology that ``offers`` accepts, or None when no slice has this many chips.
        """
        if chips == self.max_chips:
            return self.largest
        for machine in self.machines:
            if machine.alone is not None and machine.chips == chips:
                return machine.alone
        if not 0 < chips < self.max_chips:
            return None
        candidates = _flat_shapes(chips) if self.axes == _PLANE else _box_shapes(chips)
        shapes = [sides for sides in candidates if self.offers(topology_of(sides))]
        return topology_of(min(shapes, key=lambda sides: (sum(sides), sides[-1]))) if shapes else None

    def google_topology_for(self, number: int) -> str | None:
        """Return the topology that a number means in Google's own names, or None if it means nothing there.

        Args:
            number: TensorCores where a chip has two, else chips (count).
        """
        chips, rest = divmod(number, self.cores_per_chip)
        return None if rest else self.topology_for(chips)

    def machines_for(self, topology: str, *, multi_host: bool = False) -> tuple[TpuMachine, int]:
        """Say which machines carry a topology, and how many of them.

        Args:
            topology: One that ``offers`` accepts.
            multi_host: Prefer several small hosts where one large host would do (v5e and v6e ``2x4``).

        Returns:
            The machine type, and the hosts (count).

        Raises:
            ValueError: The topology does not exist; callers ask ``offers`` first.
        """
        if not self.offers(topology):
            message = f"{self.name} has no topology {topology}"
            raise ValueError(message)
        chips, joining = chips_of(topology), self.joining
        if multi_host and joining is not None and chips > joining.chips:
            return joining, chips // joining.chips
        for machine in self.machines:
            if machine.alone == topology:
                return machine, 1
        assert joining is not None, "offers() accepts a slice only where hosts join"  # noqa: S101 - for the type checker
        return joining, chips // joining.chips

    def usual_sizes(self) -> Iterator[tuple[int, str]]:
        """Yield the usual sizes, smallest first: chips (count) and the topology that the number means."""
        chips = 1
        while chips < self.max_chips:
            if topology := self.topology_for(chips):
                yield chips, topology
            chips *= 2
        yield self.max_chips, self.largest


def is_number(text: str) -> bool:
    """Tell whether a text is a plain number of a sensible length."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def is_topology(text: str) -> bool:
    """Tell whether a text has the form of a topology, such as "2x4"; it need not exist."""
    sides = text.split("x")
    return 1 < len(sides) <= MAX_AXES and all(is_number(side) for side in sides)


def sides_of(topology: str) -> tuple[int, ...]:
    """Split a topology into chips per axis: "2x4" is (2, 4)."""
    return tuple(int(side) for side in topology.split("x"))


def topology_of(sides: tuple[int, ...]) -> str:
    """Write chips per axis as a topology: (2, 4) is "2x4"."""
    return "x".join(str(side) for side in sides)


def chips_of(topology: str) -> int:
    """Return the chips of a topology (count): the product of its sides."""
    return prod(sides_of(topology))


def _is_flat_slice(sides: tuple[int, ...]) -> bool:
    short, long = sides
    return short >= _CUBE_SIDE and short & (short - 1) == 0 and long in (short, 2 * short)


def _is_box_slice(sides: tuple[int, ...]) -> bool:
    if prod(sides) <= CUBE_CHIPS:
        return _SMALL_SIDES.issuperset(sides)
    return all(side % _CUBE_SIDE == 0 for side in sides)


def _flat_shapes(chips: int) -> Iterator[tuple[int, ...]]:
    short = 1 << ((chips.bit_length() - 1) // 2)
    if chips % short == 0:
        yield short, chips // short


def _box_shapes(chips: int) -> Iterator[tuple[int, ...]]:
    step = min(_SMALL_SIDES) if chips <= CUBE_CHIPS else _CUBE_SIDE
    for first in range(step, chips + 1, step):
        if first**3 > chips:
            return
        for second in range(first, chips + 1, step):
            if first * second**2 > chips:
                break
            if chips % (first * second) == 0:
                yield first, second, chips // (first * second)


_N1 = "Compute Engine: GPUs on N1 machines; counts from general knowledge, not read again"

DEFAULT_GPU = "l4"
DEFAULT_TPU = "v5litepod"

# What a number without a name means. It keeps meaning this when the tables grow: moving "tpu-64" to another
# generation would silently change the price and the speed of somebody's job.
GPU_FOR_COUNT = {1: "h100", 2: "h100", 4: "h100", 8: "h100", 16: "a100"}
TPU_FOR_COUNT = {
    1: "v5litepod",
    4: "v5litepod",
    8: "v6e",
    16: "v6e",
    32: "v5p",
    64: "v5litepod",
    128: "v5litepod",
    256: "v5litepod",
    512: "v4",
    1024: "v4",
    2048: "v4",
    4096: "v4",
}


def _gpus(*families: GpuFamily) -> dict[str, GpuFamily]:
    return {family.name: family for family in families}


def _tpus(*families: TpuFamily) -> dict[str, TpuFamily]:
    return {family.name: family for family in families}


GPUS = _gpus(
    GpuFamily("l4", "nvidia-l4", {1: "g2-standard-4", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"}),
    GpuFamily("t4", "nvidia-tesla-t4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
    GpuFamily(
        "v100",
        "nvidia-tesla-v100",
        {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32", 8: "n1-standard-64"},
        source=_N1,
    ),
    GpuFamily(
        "a100",
        "nvidia-tesla-a100",
        {1: "a2-highgpu-1g", 2: "a2-highgpu-2g", 4: "a2-highgpu-4g", 8: "a2-highgpu-8g", 16: "a2-megagpu-16g"},
        aliases=("a100-40", "a100-40gb"),
    ),
    # There is no a2-ultragpu-16g, whatever other tables say: the family ends at 8.
    GpuFamily(
        "a100-80gb",
        "nvidia-a100-80gb",
        {1: "a2-ultragpu-1g", 2: "a2-ultragpu-2g", 4: "a2-ultragpu-4g", 8: "a2-ultragpu-8g"},
        aliases=("a100-80",),
    ),
    # a3-edgegpu-8g carries the same GPU and label; it has no flex-start and is never chosen here.
    GpuFamily(
        "h100",
        "nvidia-h100-80gb",
        {1: "a3-highgpu-1g", 2: "a3-highgpu-2g", 4: "a3-highgpu-4g", 8: "a3-highgpu-8g"},
        aliases=("h100-80", "h100-80gb"),
        on_demand_from=8,  # inferred from what Google sells, not read in a table
    ),
    GpuFamily("h100-mega", "nvidia-h100-mega-80gb", {8: "a3-megagpu-8g"}, aliases=("h100-mega-80gb",)),
    GpuFamily("h200", "nvidia-h200-141gb", {8: "a3-ultragpu-8g"}, aliases=("h200-141gb",)),
    GpuFamily("b200", "nvidia-b200", {8: "a4-highgpu-8g"}),
    GpuFamily("gb200", "nvidia-gb200", {4: "a4x-highgpu-4g"}, arm64=True),
    GpuFamily(
        "gb300",
        "nvidia-gb300",
        {4: "a4x-maxgpu-4g-metal"},
        arm64=True,
        source=f"{AUTOSCALER}; docs.nvidia.com/aicr, GKE A4X Max networking",
    ),
    # g4-standard-6, -12 and -24 carry a fraction of one GPU and need an explicit machine type: not offered here.
    GpuFamily(
        "rtx-pro-6000",
        "nvidia-rtx-pro-6000",
        {1: "g4-standard-48", 2: "g4-standard-96", 4: "g4-standard-192", 8: "g4-standard-384"},
        aliases=("rtxpro6000",),
        source="accelerated-platforms ComputeClasses (g4), 2026",
    ),
    GpuFamily("p4", "nvidia-tesla-p4", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
    GpuFamily("p100", "nvidia-tesla-p100", {1: "n1-standard-4", 2: "n1-standard-8", 4: "n1-standard-16"}, source=_N1),
)

TPUS = _tpus(
    # One v3 host and a part of a v3 slice are different machines with different labels. "tpu-v3-podslice", which
    # is found in older code, is on no node.
    TpuFamily(
        "v3",
        "v3",
        (
            TpuMachine("ct3-hightpu-4t", "tpu-v3-device", 4, "2x2"),
            TpuMachine("ct3p-hightpu-4t", "tpu-v3-slice", 4, None, joins=True),
        ),
        default_chips=4,
        largest="32x32",  # a whole v3 pod; nothing larger has a source
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4",
        "v4",
        (TpuMachine("ct4p-hightpu-4t", "tpu-v4-podslice", 4, "2x2x1", joins=True),),
        default_chips=4,
        largest="16x16x16",
        aliases=("v4-podslice",),
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4-lite",
        "v4-lite",
        (TpuMachine("ct4l-hightpu-4t", "tpu-v4-lite-device", 4, "2x2"),),
        default_chips=4,
        largest="2x2",
        aliases=("v4lite", "v4-lite-device"),
    ),
    TpuFamily(
        "v5litepod",
        "v5e",
        (
            TpuMachine("ct5lp-hightpu-1t", "tpu-v5-lite-podslice", 1, "1x1"),
            TpuMachine("ct5lp-hightpu-4t", "tpu-v5-lite-podslice", 4, "2x2", joins=True),
            TpuMachine("ct5lp-hightpu-8t", "tpu-v5-lite-podslice", 8, "2x4"),
        ),
        default_chips=4,
        largest="16x16",
        aliases=("v5e", "v5-lite-podslice"),
    ),
    TpuFamily(
        "v5e-device",
        "v5e-device",
        (
            TpuMachine("ct5l-hightpu-1t", "tpu-v5-lite-device", 1, "1x1"),
            TpuMachine("ct5l-hightpu-4t", "tpu-v5-lite-device", 4, "2x2"),
            TpuMachine("ct5l-hightpu-8t", "tpu-v5-lite-device", 8, "2x4"),
        ),
        default_chips=4,
        largest="2x4",
        aliases=("v5-lite-device",),
    ),
    # The pod has 8960 chips (140 cubes, xpk's limit); the largest slice that is documented has 6144.
    TpuFamily(
        "v5p",
        "v5p",
        (TpuMachine("ct5p-hightpu-4t", "tpu-v5p-slice", 4, "2x2x1", joins=True),),
        default_chips=8,
        largest="16x16x24",
        aliases=("v5p-slice",),
        cores_per_chip=2,
    ),
    TpuFamily(
        "v6e",
        "v6e",
        (
            TpuMachine("ct6e-standard-1t", "tpu-v6e-slice", 1, "1x1"),
            TpuMachine("ct6e-standard-4t", "tpu-v6e-slice", 4, "2x2", joins=True),
            TpuMachine("ct6e-standard-8t", "tpu-v6e-slice", 8, "2x4"),
        ),
        default_chips=8,
        largest="16x16",
        aliases=("v6e-slice",),
    ),
    # tpu7x-ultranet-4t has the same shape and must be asked for by machine type: not offered here.
    TpuFamily(
        "tpu7x",
        "tpu7x",
        (
            TpuMachine("tpu7x-standard-1t", "tpu7x", 1, "1x1x1"),
            TpuMachine("tpu7x-standard-4t", "tpu7x", 4, "2x2x1", joins=True),
        ),
        default_chips=4,
        largest="16x16x36",  # 144 cubes
        aliases=("v7x", "7x"),
        cores_per_chip=2,
    ),
    # No source says how large a tpu7 slice can be, nor how its names count: one cube, and chips, until one does.
    TpuFamily(
        "tpu7",
        "tpu7",
        (
            TpuMachine("tpu7-standard-1t", "tpu7", 1, "1x1x1"),
            TpuMachine("tpu7-standard-4t", "tpu7", 4, "2x2x1", joins=True),
        ),
        default_chips=4,
        largest="4x4x4",
        aliases=("v7",),
    ),
)


def find_gpu(word: str) -> GpuFamily | None:
    """Return the GPU family that a lower-case word names, or None."""
    return next((family for family in GPUS.values() if word in family.words), None)


def find_tpu(word: str) -> TpuFamily | None:
    """Return the TPU family that a lower-case word names, or None."""
    return next((family for family in TPUS.values() if word in family.words), None)
