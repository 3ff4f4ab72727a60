"""Every GPU and TPU that GKE offers, as data: names, labels, machine types, and the topologies of TPU slices.

Which topologies a TPU generation has, their chips and their hosts are formulas and never a list, because the
three-dimensional generations have hundreds of shapes. The rule of the shapes is that of kuberay's kubectl plugin
(``isValid3DTopology``) and xpk (``generate_tpu_topologies``), as are their limits, both as of 2026.

Where a row names no other source, it was read in Google's GKE cluster autoscaler as it was in 2026 (``AUTOSCALER``).
TensorCores per chip and the two labels of v3 are from ai-on-gke/tpu-device-plugin ``pkg/tpu/util/util.go``, 2026.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kinetic._wire import NamedTuple

AUTOSCALER = "GKE cluster autoscaler (k8s.io/gke-autoscaling/cluster-autoscaler), machinetypes and labels, 2026"
_N1 = "Compute Engine: GPUs on N1 machines; counts from general knowledge, not read again"

_MAX_DIGITS = 9  # characters; a longer number is a typing accident
MAX_AXES = 3
_PLANE = 2  # axes of a generation whose chips form a flat torus
_CUBE_SIDE = 4  # chips; larger 3-D slices are built from whole 4x4x4 cubes
CUBE_CHIPS = _CUBE_SIDE**3


# Rows are named tuples: frozen dataclasses would cost every import of kinetic three times as much (0.2 against 0.7 ms).
class GpuFamily(NamedTuple):
    """One kind of GPU."""

    name: str  # the word a user writes, e.g. "l4"
    label: str  # value of the node label ``cloud.google.com/gke-accelerator``; also accepted as a name
    machines: dict[int, str]  # machine type by GPUs per host (count)
    aliases: tuple[str, ...] = ()  # other accepted words, without the label
    arm64: bool = False  # whether the hosts are Arm machines and need an image for linux/arm64
    on_demand_from: int = 1  # smallest machine sold on demand (GPUs, count); below it there is only Spot or flex-start
    source: str = AUTOSCALER  # where the row was read

    @property
    def default_count(self) -> int:
        """GPUs that the bare name asks for (count): the smallest machine."""
        return min(self.machines)


class TpuMachine(NamedTuple):
    """One machine type that carries TPU chips."""

    machine_type: str  # Compute Engine's name, e.g. "ct5lp-hightpu-4t"
    label: str  # value of the node label ``cloud.google.com/gke-tpu-accelerator``
    chips: int  # chips per host (count)
    own_topology: str | None  # the topology of a single such host; None when it only occurs as a part of a slice
    multi_host: bool = False  # whether several of them form a larger slice


class TpuFamily(NamedTuple):
    """One TPU generation, and which topologies it comes in."""

    name: str  # the word a user writes, e.g. "v5litepod"
    short: str  # the word used in job ids, e.g. "v5e"
    machines: tuple[TpuMachine, ...]  # its machine types, smallest first; at most one is multi-host
    largest: str  # the largest topology; fixes the number of axes too
    default_chips: int = 4  # chips that the bare name asks for (count)
    # other accepted words, node labels among them where a label belongs to the whole family
    aliases: tuple[str, ...] = ()
    # TensorCores per chip (count). Where it is 2, the numbers in Google's own names count cores
    cores_per_chip: int = 1

    @property
    def axes(self) -> int:
        """Numbers in a topology of this family (count)."""
        return len(sides_of(self.largest))

    @property
    def max_chips(self) -> int:
        """Chips of the largest slice (count)."""
        return chips_of(self.largest)

    @property
    def _slice_machine(self) -> TpuMachine | None:
        """The machine type of slices of several hosts, or None if there are no such slices."""
        return next((machine for machine in self.machines if machine.multi_host), None)

    def canonical(self, topology: str) -> str:
        """Return the one canonical name of a slice, e.g. "tpu-v5litepod-2x4" or "tpu7x-2x2x1"."""
        prefix = "" if self.name.startswith("tpu") else "tpu-"
        return f"{prefix}{self.name}-{topology}"

    def offers(self, topology: str) -> bool:
        """Return whether a topology exists, as GKE writes it: "2x4" does, "4x2" and "02x4" do not.

        A single host's own topology exists. Beyond those, a flat slice is AxA or Ax2A with A a power of two from 4 on;
        a 3-D slice is AxBxC with A <= B <= C, of sides 2 and 4 up to one 4x4x4 cube, of multiples of 4 beyond it.
        """
        if any(machine.own_topology == topology for machine in self.machines):
            return True
        sides = sides_of(topology)
        if topology != topology_of(sides) or len(sides) != self.axes or self._slice_machine is None:
            return False
        if not 0 < prod(sides) <= self.max_chips or list(sides) != sorted(sides):
            return False
        if self.axes == _PLANE:
            short, long = sides
            return short >= _CUBE_SIDE and short.bit_count() == 1 and long in (short, 2 * short)
        if prod(sides) <= CUBE_CHIPS:
            return {2, 4}.issuperset(sides)
        return all(side % _CUBE_SIDE == 0 for side in sides)

    def topology_for(self, chips: int) -> str | None:
        """Return the most compact topology with a number of chips (count), or None if no slice has so many."""
        if chips == self.max_chips:
            return self.largest
        for machine in self.machines:
            if machine.own_topology is not None and machine.chips == chips:
                return machine.own_topology
        if not 0 < chips < self.max_chips:
            return None
        shapes = [sides for sides in _boxes(chips, self.axes) if self.offers(topology_of(sides))]
        return topology_of(min(shapes, key=lambda sides: (sum(sides), sides[-1]))) if shapes else None

    def google_topology_for(self, number: int) -> str | None:
        """Return the topology that a number means in Google's own names, which count TensorCores, or None."""
        chips, rest = divmod(number, self.cores_per_chip)
        return None if rest else self.topology_for(chips)

    def machines_for(self, topology: str, *, multi_host: bool = False) -> tuple[TpuMachine, int]:
        """Return the machine type that carries a topology, and how many of them (count).

        With ``multi_host``, several small hosts are preferred to one large host (v5e and v6e ``2x4``).

        Raises:
            ValueError: The topology does not exist.
        """
        if not self.offers(topology):
            message = f"{self.name} has no topology {topology}"
            raise ValueError(message)
        chips, part = chips_of(topology), self._slice_machine
        single = next((machine for machine in self.machines if machine.own_topology == topology), None)
        if single is not None and not (multi_host and part is not None and chips > part.chips):
            return single, 1
        assert part is not None, "offers() accepts a larger slice only with a machine for it"  # noqa: S101 - for mypy
        return part, chips // part.chips

    def usual_sizes(self) -> Iterator[tuple[int, str]]:
        """Yield the usual sizes, smallest first: chips (count) and the topology that the number means."""
        chips = 1
        while chips < self.max_chips:
            if topology := self.topology_for(chips):
                yield chips, topology
            chips *= 2
        yield self.max_chips, self.largest


def is_number(text: str) -> bool:
    """Return whether a text is a plain number of a sensible length."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def is_topology(text: str) -> bool:
    """Return whether a text has the form of a topology, such as "2x4"; it need not exist."""
    sides = text.split("x")
    return 1 < len(sides) <= MAX_AXES and all(map(is_number, sides))


def sides_of(topology: str) -> tuple[int, ...]:
    """Split a topology into chips per axis: "2x4" is (2, 4)."""
    return tuple(map(int, topology.split("x")))


def topology_of(sides: tuple[int, ...]) -> str:
    """Join chips per axis to a topology: (2, 4) is "2x4"."""
    return "x".join(map(str, sides))


def chips_of(topology: str) -> int:
    """Return the chips of a topology (count): the product of its sides."""
    return prod(sides_of(topology))


def _boxes(chips: int, axes: int, shortest: int = 1) -> Iterator[tuple[int, ...]]:
    """Yield the sides, in ascending order, of every box with so many chips."""
    if axes == 1:
        yield (chips,)
        return
    side = shortest
    while side**axes <= chips:
        if chips % side == 0:
            yield from ((side, *rest) for rest in _boxes(chips // side, axes - 1, side))
        side += 1


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


_GPU_ROWS = (
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

_TPU_ROWS = (
    # One v3 host and a part of a v3 slice are different machines with different labels. "tpu-v3-podslice", which
    # is found in older code, is on no node.
    TpuFamily(
        "v3",
        "v3",
        (
            TpuMachine("ct3-hightpu-4t", "tpu-v3-device", 4, "2x2"),
            TpuMachine("ct3p-hightpu-4t", "tpu-v3-slice", 4, None, multi_host=True),
        ),
        largest="32x32",  # a whole v3 pod; nothing larger has a source
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4",
        "v4",
        (TpuMachine("ct4p-hightpu-4t", "tpu-v4-podslice", 4, "2x2x1", multi_host=True),),
        largest="16x16x16",
        aliases=("v4-podslice",),
        cores_per_chip=2,
    ),
    TpuFamily(
        "v4-lite",
        "v4-lite",
        (TpuMachine("ct4l-hightpu-4t", "tpu-v4-lite-device", 4, "2x2"),),
        largest="2x2",
        aliases=("v4lite", "v4-lite-device"),
    ),
    TpuFamily(
        "v5litepod",
        "v5e",
        (
            TpuMachine("ct5lp-hightpu-1t", "tpu-v5-lite-podslice", 1, "1x1"),
            TpuMachine("ct5lp-hightpu-4t", "tpu-v5-lite-podslice", 4, "2x2", multi_host=True),
            TpuMachine("ct5lp-hightpu-8t", "tpu-v5-lite-podslice", 8, "2x4"),
        ),
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
        largest="2x4",
        aliases=("v5-lite-device",),
    ),
    # The pod has 8960 chips (140 cubes, xpk's limit); the largest slice that is documented has 6144.
    TpuFamily(
        "v5p",
        "v5p",
        (TpuMachine("ct5p-hightpu-4t", "tpu-v5p-slice", 4, "2x2x1", multi_host=True),),
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
            TpuMachine("ct6e-standard-4t", "tpu-v6e-slice", 4, "2x2", multi_host=True),
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
            TpuMachine("tpu7x-standard-4t", "tpu7x", 4, "2x2x1", multi_host=True),
        ),
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
            TpuMachine("tpu7-standard-4t", "tpu7", 4, "2x2x1", multi_host=True),
        ),
        largest="4x4x4",
        aliases=("v7",),
    ),
)

GPUS = {family.name: family for family in _GPU_ROWS}
TPUS = {family.name: family for family in _TPU_ROWS}


def find_gpu(word: str) -> GpuFamily | None:
    """Return the GPU family that a lower-case word names, or None."""
    return next((family for family in _GPU_ROWS if word in (family.name, *family.aliases, family.label)), None)


def find_tpu(word: str) -> TpuFamily | None:
    """Return the TPU family that a lower-case word names, or None."""
    return next((family for family in _TPU_ROWS if word in (family.name, *family.aliases)), None)
