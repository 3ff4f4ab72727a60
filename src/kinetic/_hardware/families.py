"""What a family of accelerators is, and the arithmetic of TPU topologies.

Which topologies a TPU generation has, their chips and their hosts are formulas here and never a list, because the
three-dimensional generations have hundreds of shapes. The rule of the shapes is that of kuberay's kubectl plugin
(``isValid3DTopology``) and xpk (``generate_tpu_topologies``), both as of 2026.

The rows are named tuples: a frozen dataclass costs every import of kinetic three times as much (0.2 against 0.7 ms).
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

    def hosting(self, topology: str, *, multi_host: bool = False) -> tuple[TpuMachine, int]:
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

    def ladder(self) -> Iterator[tuple[int, str]]:
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
