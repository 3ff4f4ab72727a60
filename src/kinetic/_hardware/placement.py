"""What a cluster has to provide for an accelerator: hosts, chips, node selector, tolerations. Plain data."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Literal, NamedTuple

from kinetic._hardware import catalog
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kinetic._hardware.catalog import GpuFamily, TpuFamily


_NEAREST = 3  # names that are suggested for an unknown one (count)
_SHOWN = 40  # characters; whatever was pasted by accident does not fill the terminal
_BOX_RULE = "AxBxC with A <= B <= C, all multiples of 4,"


def not_a_string(accelerator: object) -> OptionTypeError:
    """Answer something that is not even a name."""
    return OptionTypeError(
        f"accelerator must be a string, not {type(accelerator).__name__}",
        next=_write(["tpu-v5e-1", "gpu-l4", "cpu"]),
    )


def unknown(written: str, wanted: str, word: str) -> OptionError:
    """Answer a name that nothing has, with the three nearest names.

    Args:
        written: The name as the user wrote it.
        wanted: "gpu" or "tpu" when the name had that prefix, else "".
        word: The name without its prefix, in lower case.
    """
    stem, _ = _split_size(word)
    misplaced = wanted == "gpu" and catalog.find_tpu(stem) is not None  # "gpu-v5e": the prefix is what is wrong
    nearest = _nearest("" if misplaced else wanted, word)
    dashed = _dashed_gpu(word) if wanted != "tpu" else None
    return OptionError(
        f"unknown {'GPU' if wanted == 'gpu' else 'accelerator'} {_quoted(written)}",
        why="a count of GPUs follows an x, not a dash" if dashed else f"the nearest names are {listed(nearest, 'and')}",
        next=_write([dashed or nearest[0]]),
    )


def no_such_number(written: str, wanted: str) -> OptionError:
    """Answer a number without a name that no preferred accelerator has."""
    offers = []
    if wanted != "tpu":
        offers.append(f"GPU counts are {listed(catalog.GPU_FOR_COUNT)}")
    if wanted != "gpu":
        offers.append(f"TPU chip counts are {listed(catalog.TPU_FOR_COUNT)}")
    return OptionError(
        f"no accelerator goes by the number in {_quoted(written)}",
        why="; ".join(offers),
        next=_write(["tpu-v5e-8" if wanted == "tpu" else "gpu-l4x4"]),
    )


def no_such_gpu_count(written: str, family: GpuFamily, count: int) -> OptionError:
    """Answer a count of GPUs that no machine has."""
    near = _around(count, family.machines)
    return OptionError(
        f"{_quoted(written)} asks for {count} {plural('GPU', count)}, and no {family.name} machine has that many",
        why=f"{family.name} comes in machines of {listed(family.machines)}",
        next=_write(f"gpu-{family.name}" if fitting == 1 else f"gpu-{family.name}x{fitting}" for fitting in near),
    )


def no_such_chip_count(written: str, family: TpuFamily, chips: int) -> OptionError:
    """Answer a number of TPU chips that no slice has."""
    rungs = dict(family.usual_sizes())
    why = f"{family.short} comes in {listed(rungs)} chips{_beyond(family, 'multiple of 64')}"
    topologies = [rungs[rung] for rung in _around(chips, rungs)]
    meant = family.google_topology_for(chips)
    if meant is not None:
        why += f"; Google's {family.short}-{chips} counts TensorCores, two per chip, and is {meant}"
        topologies = [meant]
    return OptionError(
        f"{_quoted(written)} asks for {chips} {plural('chip', chips)}, and no {family.short} slice has that many",
        why=why,
        next=_write(map(family.canonical, topologies)),
    )


def no_such_topology(written: str, family: TpuFamily, size: str) -> OptionError:
    """Answer a topology that does not exist; the same sides in another order, e.g. "4x2", are recognised."""
    topologies = [topology for _, topology in family.usual_sizes()]
    meant = _meant_topology(family, size) if catalog.is_topology(size) else None
    return OptionError(
        f"{_quoted(written)} asks for {_quoted(size)}, and no {family.short} slice has that shape",
        why=f"{family.short} comes as {listed(topologies)}{_beyond(family, _BOX_RULE)}",
        next=_write(map(family.canonical, [meant] if meant else topologies[:2])),
    )


def _quoted(written: str) -> str:
    return f'"{written if len(written) <= _SHOWN else written[:_SHOWN] + "…"}"'


def plural(noun: str, count: int) -> str:
    """Write a noun for a count: "chip" or "chips"."""
    return noun if count == 1 else f"{noun}s"


def listed(words: Iterable[object], last: str = "or") -> str:
    """Join words for a sentence: "1, 2 or 4"."""
    *first, final = (str(word) for word in words)
    return f"{', '.join(first)} {last} {final}" if first else final


def _write(spellings: Iterable[str]) -> str:
    return "write " + " or ".join(f'accelerator="{spelling}"' for spelling in spellings)


def _around(number: int, offered: Iterable[int]) -> list[int]:
    """Return the offered numbers next below and next above: one or two of them."""
    offered = sorted(offered)
    below = [fitting for fitting in offered if fitting < number][-1:]
    above = [fitting for fitting in offered if fitting > number][:1]
    return below + above


def _beyond(family: TpuFamily, rule: str) -> str:
    """Say how the shapes go on that are too many to list."""
    if family.axes < catalog.MAX_AXES or family.max_chips <= catalog.CUBE_CHIPS:
        return ""
    return f", and any {rule} up to {family.max_chips} chips"


def _meant_topology(family: TpuFamily, size: str) -> str | None:
    """Find what a wrong topology was meant to be: the same sides in another order, or the same number of chips."""
    for sides in permutations(catalog.sides_of(size)):
        if family.offers(topology := catalog.topology_of(sides)):
            return topology
    return family.topology_for(catalog.chips_of(size))


def _dashed_gpu(word: str) -> str | None:
    """Return what "l4-4" was meant to be, or None."""
    head, _, count = word.rpartition("-")
    family = catalog.find_gpu(head)
    if family is None or not catalog.is_number(count) or int(count) not in family.machines:
        return None
    return f"gpu-{family.name}x{int(count)}"


def _nearest(wanted: str, word: str) -> list[str]:
    """Return the three names that look most like a word, each of another family, with its size where it fits."""
    from difflib import SequenceMatcher  # 2 ms; only when something is wrong

    stem, size = _split_size(word)

    def likeness(candidate: tuple[str, str]) -> float:
        spelling, _ = candidate
        return max(SequenceMatcher(None, spelling, text).ratio() for text in (word, stem))

    chosen: dict[str, str] = {}
    for spelling, family in sorted(_spellings(wanted), key=likeness, reverse=True):
        chosen.setdefault(family, _suggestion(spelling, family, size))
    return list(chosen.values())[:_NEAREST]


def _spellings(wanted: str) -> Iterator[tuple[str, str]]:
    """Yield every spelling that may be suggested, with its family; node labels are not among them."""
    if wanted == "":
        yield "cpu", "cpu"
    if wanted != "gpu":
        yield from ((word, tpu.name) for tpu in catalog.TPUS.values() for word in dict.fromkeys((tpu.short, tpu.name)))
    yield from ((word, gpu.name) for gpu in catalog.GPUS.values() for word in (gpu.name, *gpu.aliases))


def _split_size(word: str) -> tuple[str, str]:
    """Split "v5x-2x4" into "v5x" and "-2x4", "l5x4" into "l5" and "x4"; the size may be empty."""
    stem, _, size = word.rpartition("-")
    if stem and (catalog.is_number(size) or catalog.is_topology(size)):
        return stem, f"-{size}"
    stem, _, size = word.rpartition("x")
    if stem and catalog.is_number(size):
        return stem, f"x{size}"
    return word, ""


def _suggestion(spelling: str, family: str, size: str) -> str:
    """Write a known spelling as a user would, with the size they asked for where that family has it."""
    if family in catalog.GPUS:
        fits = size.startswith("x") and int(size[1:]) in catalog.GPUS[family].machines
        return f"gpu-{spelling}{size if fits else ''}"
    if family not in catalog.TPUS:
        return spelling
    tpu, number = catalog.TPUS[family], size.removeprefix("-")
    fits = size.startswith("-") and (
        tpu.topology_for(int(number)) is not None if catalog.is_number(number) else tpu.offers(number)
    )
    name = spelling if spelling.startswith("tpu") else f"tpu-{spelling}"
    return f"{name}{size if fits else ''}"


Kind = Literal["cpu", "gpu", "tpu"]

SLUG_LENGTH = 16  # characters; a job id carries a function name, a date and a hash as well, and must fit 63
_SPOT = ":spot"
_GOOGLE_V3_HOST = 8  # TensorCores; "v3-8" is what everybody calls one v3 host


class HardwareName(NamedTuple):
    """Hold what a name means, before anything is said about machines.

    Attributes:
        written: The name exactly as the user wrote it.
        canonical: The one spelling of this hardware, e.g. "tpu-v5litepod-2x4", "gpu-l4x4", "cpu"; without spot.
        kind: "cpu", "gpu" or "tpu".
        family: Key in ``catalog.GPUS`` or ``catalog.TPUS``; "cpu" for a CPU.
        chips: GPUs, or TPU chips of the whole slice (count); 0 for a CPU.
        topology: TPU chips per axis, e.g. "2x4"; None for all else.
        spot: Whether the name ends in ":spot"; never for a CPU.
        slug: A short DNS-safe word for job ids, e.g. "v5e1".
        notes: Plain sentences for the user where the name may mean something else than they think.
    """

    written: str
    canonical: str
    kind: Kind
    family: str
    chips: int
    topology: str | None
    spot: bool
    slug: str
    notes: tuple[str, ...] = ()


def parse(accelerator: str) -> HardwareName:
    """Read an accelerator name.

    Args:
        accelerator: As a user writes it, e.g. "tpu-v5litepod-2x4" (chips per axis), "tpu-v5e-8" (chips),
            "gpu-l4x4" (GPUs), "cpu", or any of them with ":spot".

    Returns:
        The family, the count and the topology, with one canonical spelling; parsing that again gives the same.

    Raises:
        OptionError: Unknown name (the message has the three nearest), or a count or topology that the named
            accelerator does not have (the message lists those it has).
        OptionTypeError: Not a string.

    Source: the grammar of keras-team/kinetic, with the corrections named in this module.
    """
    if not isinstance(accelerator, str):
        raise not_a_string(accelerator)
    text = accelerator.strip().lower()
    spot = text.endswith(_SPOT)
    text = text.removesuffix(_SPOT)
    if _is_cpu(text):
        return _cpu(accelerator, text, spot=spot)
    wanted, word = _split_prefix(text)
    reading = (
        _read_number(accelerator, wanted, word, spot=spot)
        or (_read_gpu(accelerator, word, spot=spot) if wanted != "tpu" else None)
        or (_read_tpu(accelerator, word, spot=spot) if wanted != "gpu" else None)
    )
    if reading is None:
        raise unknown(accelerator, wanted, word)
    return reading


def category(accelerator: str) -> Kind:
    """Say whether a name asks for a CPU, a GPU or a TPU: what an image must be built for.

    Raises:
        OptionError: As ``parse``.
    """
    return parse(accelerator).kind


def slug(accelerator: str) -> str:
    """Shorten a name to a DNS-safe word for job ids.

    Returns:
        At most 16 characters of a-z, 0-9 and "-", beginning with a letter and not ending in a dash: "tpu-v5e-1"
        is "v5e1", "tpu-v5litepod-2x4" is "v5e-2x4", "gpu-l4x4" is "l4x4".

    Raises:
        OptionError: As ``parse``.
    """
    return parse(accelerator).slug


def _is_cpu(text: str) -> bool:
    head, _, number = text.partition(":")
    return text == "cpu" or (head == "cpu" and catalog.is_number(number))


def _cpu(written: str, text: str, *, spot: bool) -> HardwareName:
    notes = []
    if text != "cpu":
        notes.append(f'the number in "{written}" has no effect: "cpu" asks for a machine, not for cores')
    if spot:
        notes.append(f'":spot" in "{written}" has no effect: CPU jobs run on ordinary capacity')
    return HardwareName(written, "cpu", "cpu", "cpu", 0, None, spot=False, slug="cpu", notes=tuple(notes))


def _split_prefix(text: str) -> tuple[str, str]:
    """Split "gpu-l4" into the kind that is asked for ("" when open) and the rest."""
    for kind, default in (("gpu", catalog.DEFAULT_GPU), ("tpu", catalog.DEFAULT_TPU)):
        if text == kind:
            return kind, default
        if text.startswith((f"{kind}-", f"{kind}:")):
            return kind, text[len(kind) + 1 :]
    return "", text


def _read_number(written: str, wanted: str, word: str, *, spot: bool) -> HardwareName | None:
    """Read a number without a name: the preferred GPU with that count, else the preferred TPU."""
    if not catalog.is_number(word):
        return None
    count = int(word)
    gpu = catalog.GPU_FOR_COUNT.get(count) if wanted != "tpu" else None
    tpu = catalog.TPU_FOR_COUNT.get(count) if wanted != "gpu" else None
    if gpu is not None:
        reading = _gpu(written, catalog.GPUS[gpu], count, spot=spot)
    elif tpu is not None:
        family = catalog.TPUS[tpu]
        topology = family.topology_for(count)
        assert topology is not None, f"{tpu} has no slice of {count} chips"  # noqa: S101 - a test checks the table
        reading = _tpu(written, family, topology, _join(family.short, str(count)), spot=spot)
    else:
        raise no_such_number(written, wanted)
    note = f'the number in "{written}" stands for {reading.canonical}; the name says it more clearly'
    return _with_notes(reading, note)


def _read_gpu(written: str, word: str, *, spot: bool) -> HardwareName | None:
    family = catalog.find_gpu(word)
    if family is not None:
        reading = _gpu(written, family, family.default_count, spot=spot)
        if family.default_count == 1:
            return reading
        note = f"{family.name} only comes in machines of {family.default_count}: {reading.canonical} asks for them all"
        return _with_notes(reading, note)
    head, _, count = word.rpartition("x")
    family = catalog.find_gpu(head)
    if family is None or not catalog.is_number(count):
        return None
    if int(count) not in family.machines:
        raise no_such_gpu_count(written, family, int(count))
    return _gpu(written, family, int(count), spot=spot)


def _read_tpu(written: str, word: str, *, spot: bool) -> HardwareName | None:
    family = catalog.find_tpu(word)
    if family is not None:
        return _read_tpu_count(written, family, family.default_chips, spot=spot)
    head, _, size = word.rpartition("-")
    family = catalog.find_tpu(head)
    if family is None:
        return None
    if catalog.is_number(size):
        if family.name == "v3" and int(size) == _GOOGLE_V3_HOST:
            return _google_v3_host(written, family, spot=spot)
        reading = _read_tpu_count(written, family, int(size), spot=spot)
        return _with_notes(reading, *_note_on_google_number(family, int(size)))
    if not catalog.is_topology(size) or not family.offers(size):
        raise no_such_topology(written, family, size)
    return _tpu(written, family, size, f"{family.short}-{size}", spot=spot)


def _read_tpu_count(written: str, family: TpuFamily, chips: int, *, spot: bool) -> HardwareName:
    topology = family.topology_for(chips)
    if topology is None:
        raise no_such_chip_count(written, family, chips)
    return _tpu(written, family, topology, _join(family.short, str(chips)), spot=spot)


def _google_v3_host(written: str, family: TpuFamily, *, spot: bool) -> HardwareName:
    # 8 chips of v3 do not exist, so Google's reading is the only one; it is also the documented example.
    note = "v3-8 is read as Google's name for one v3 host: 8 TensorCores on 4 chips, 2x2; other v3 numbers count chips"
    return _with_notes(_tpu(written, family, "2x2", "v3-8", spot=spot), note)


def _gpu(written: str, family: GpuFamily, count: int, *, spot: bool) -> HardwareName:
    word = family.name if count == 1 else f"{family.name}x{count}"
    return HardwareName(written, f"gpu-{word}", "gpu", family.name, count, None, spot=spot, slug=_cut(word))


def _tpu(written: str, family: TpuFamily, topology: str, word: str, *, spot: bool) -> HardwareName:
    canonical, chips = family.canonical(topology), catalog.chips_of(topology)
    return HardwareName(written, canonical, "tpu", family.name, chips, topology, spot=spot, slug=_cut(word))


def _note_on_google_number(family: TpuFamily, chips: int) -> Iterator[str]:
    """Yield a note where Google's name with the same number is another slice, or no slice at all."""
    if family.cores_per_chip == 1:
        return
    ours = f"{family.short}-{chips} means {chips} {plural('chip', chips)} here ({family.topology_for(chips)})"
    theirs = family.google_topology_for(chips)
    if theirs is None:
        yield f"{ours}; Google counts TensorCores and calls this slice {family.short}-{chips * family.cores_per_chip}"
    else:
        yield (
            f"{ours}; Google's {family.short}-{chips} counts TensorCores and is {catalog.chips_of(theirs)} "
            f"{plural('chip', catalog.chips_of(theirs))}: write {family.canonical(theirs)} for that one"
        )


def _with_notes(reading: HardwareName, *notes: str) -> HardwareName:
    return reading._replace(notes=(*reading.notes, *notes))


def _join(short: str, number: str) -> str:
    """Write "v5e1", but "v4-16": a digit next to a digit would read as another number."""
    return f"{short}-{number}" if short[-1].isdigit() else f"{short}{number}"


def _cut(word: str) -> str:
    return word[:SLUG_LENGTH].rstrip("-")


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
    wanted = parse(accelerator)
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
    machine, hosts = family.machines_for(topology, multi_host=multi_host)
    selector = {_TPU_LABEL: machine.label, _TOPOLOGY_LABEL: topology}
    if machine != family.machines_for(topology)[0]:
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
