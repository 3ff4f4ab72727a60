"""Read accelerator names, and say what a cluster must provide for them: hosts, chips, node selector, tolerations.

The grammar, after trimming and lower-casing:

    name     = [ "gpu" sep | "tpu" sep ] what [ ":spot" ]        sep is "-" or ":"
    what     = "cpu" [ ":" number ]                              the number is ignored
             | "gpu" | "tpu"                                     l4 x1, v5litepod with 4 chips
             | number                                            a GPU with that count first, else a TPU
             | gpu [ "x" count [ "x" machines ] ]                "l4", "l4x4", "nvidia-l4"; "h100x8x2" is two machines
             | [ slices "x" ] tpu [ "-" chips | "-" topology ]   "v5e", "v5e-8", "v5litepod-2x4"; "2xv5e-16": two slices

Without a prefix a GPU comes first. A TPU number counts CHIPS. Google's own names for v3, v4, v5p and tpu7x count
TensorCores, two per chip, so the same text can mean twice the slice: a note says so, and the canonical name spells the
topology, which cannot be misread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Literal

from kinetic._hardware import catalog
from kinetic._hardware.catalog import GpuFamily, TpuFamily, is_number
from kinetic._wire import NamedTuple
from kinetic.errors import OptionError, OptionTypeError

Kind = Literal["cpu", "gpu", "tpu"]
Toleration = dict[str, str]

SLUG_LENGTH = 16  # characters; a job id carries a function name, a date and a hash as well, and must fit 63
_SPOT = ":spot"
_GOOGLE_V3_HOST = 8  # TensorCores; "v3-8" is the common name of one v3 host
_MOST_MACHINES = 256  # with GPUs, or slices, of one job; more is a typing error
_SLICES = r"(tpu[-:])?(\d+)x(?:tpu[-:])?(?!tpu[-:])(?=[a-z])(.+)"


class HardwareName(NamedTuple):
    """What a name means, before anything is said about machines."""

    written: str  # the name exactly as the user wrote it
    canonical: str  # the one spelling of this hardware, e.g. "tpu-v5litepod-2x4", "gpu-l4x4", "cpu"; without spot
    kind: Kind  # "cpu", "gpu" or "tpu"
    family: str  # key in ``catalog.GPUS`` or ``catalog.TPUS``; "cpu" for a CPU
    chips: int  # GPUs of all machines, or TPU chips of all slices (count); 0 for a CPU
    topology: str | None  # of each slice: TPU chips per axis, e.g. "2x4"; None otherwise
    slug: str  # a short DNS-safe word for job ids, e.g. "v5e1"
    machines: int = 1  # with GPUs (count); the hosts of a TPU slice follow from its topology
    slices: int = 1  # of a TPU (count)
    spot: bool = False  # whether the name ends in ":spot"; never for a CPU
    notes: tuple[str, ...] = ()  # sentences for the user where the name may not mean what they think

    def note(self, *notes: str) -> HardwareName:
        """Return the same with more notes."""
        return self._replace(notes=(*self.notes, *notes))


def parse(accelerator: str) -> HardwareName:
    """Read an accelerator name, e.g. "tpu-v5litepod-2x4" (chips per axis), "tpu-v5e-8" (chips), "gpu-l4x4" (GPUs).

    "gpu-h100x8x2" is two machines with eight GPUs each, "tpu-2xv5e-16" two slices of 16 chips each.

    Raises:
        OptionError: Unknown name (the message has the three nearest), or a count or topology that the named
            accelerator does not have (the message lists those it has).
        OptionTypeError: Not a string.

    Source: the grammar of keras-team/kinetic, with the corrections named in this module.
    """
    if not isinstance(accelerator, str):
        message = f"accelerator must be a string, not {type(accelerator).__name__}"
        raise OptionTypeError(message, next=_write(["tpu-v5e-1", "gpu-l4", "cpu"]))
    text = accelerator.strip().lower()
    spot = text.endswith(_SPOT)
    text = text.removesuffix(_SPOT)
    head, _, number = text.partition(":")
    if text == "cpu" or (head == "cpu" and is_number(number)):
        return _cpu(accelerator, numbered=text != "cpu", spot=spot)
    if slices := re.fullmatch(_SLICES, text):
        try:
            each = parse(f"{slices[1] or ''}{slices[3]}")
        except OptionError as error:
            raise OptionError(f"{_quoted(accelerator)}: {error.what}", why=error.why, next=error.next) from None
        return _slices_of(accelerator, int(slices[2]), each, spot=spot)
    wanted, word = _split_prefix(text)
    found = _read_number(accelerator, wanted, word)
    if found is None and wanted != "tpu":
        found = _read_gpu(accelerator, word)
    if found is None and wanted != "gpu":
        found = _read_tpu(accelerator, word)
    if found is None:
        raise _unknown(accelerator, wanted, word)
    return found._replace(spot=spot)


def _slices_of(written: str, count: int, each: HardwareName, *, spot: bool) -> HardwareName:
    if each.kind != "tpu":
        raise OptionError(
            f"{_quoted(written)} asks for {count} of {each.canonical}",
            why="a number in front counts slices of TPUs; machines with GPUs are counted at the end",
            next=_write(_gpus_of(count, each) if each.kind == "gpu" else [each.canonical]),
        )
    if count not in range(1, _MOST_MACHINES + 1):
        raise OptionError(
            f"{_quoted(written)} asks for {count} slices",
            why=f"a job has from 1 to {_MOST_MACHINES} of them",
            next=_write([each.canonical, _name_of_slices(2, each.canonical)]),
        )
    each = each._replace(written=written, spot=spot)
    if count == 1:
        return each
    name, word = _name_of_slices(count, each.canonical), f"s{count}"
    slug = f"{each.slug[: SLUG_LENGTH - len(word)].rstrip('-')}{word}"
    return each._replace(canonical=name, chips=each.chips * count, slug=slug, slices=count)


def _name_of_slices(count: int, each: str) -> str:
    """Write the name of several slices: "tpu-2xv5litepod-4x4", "tpu-2xtpu7x-2x2x2"."""
    return f"tpu-{count}x{each.removeprefix('tpu-')}"


def _gpus_of(count: int, each: HardwareName) -> Iterator[str]:
    """Yield what may be meant by a number in front of GPUs: so many in one machine, or so many machines."""
    chips = each.chips // each.machines
    if each.machines == 1 and chips * count in catalog.GPUS[each.family].machines:
        yield f"gpu-{each.family}x{chips * count}"
    yield f"gpu-{each.family}x{chips}x{each.machines * count}"


def slug(accelerator: str) -> str:
    """Shorten a name to a DNS-safe word of at most 16 characters for job ids: "tpu-v5e-1" is "v5e1".

    Raises:
        OptionError: As ``parse``.
    """
    return parse(accelerator).slug


def _cpu(written: str, *, numbered: bool, spot: bool) -> HardwareName:
    notes = []
    if numbered:
        notes.append(f'the number in "{written}" has no effect: "cpu" asks for a machine, not for cores')
    if spot:
        notes.append(f'":spot" in "{written}" has no effect: CPU jobs run on ordinary capacity')
    return HardwareName(written, "cpu", "cpu", "cpu", 0, None, "cpu").note(*notes)


def _split_prefix(text: str) -> tuple[str, str]:
    """Split "gpu-l4" into the kind that is asked for ("" when open) and the rest."""
    for kind, default in (("gpu", catalog.DEFAULT_GPU), ("tpu", catalog.DEFAULT_TPU)):
        if text == kind:
            return kind, default
        if text.startswith((f"{kind}-", f"{kind}:")):
            return kind, text[len(kind) + 1 :]
    return "", text


def _read_number(written: str, wanted: str, word: str) -> HardwareName | None:
    """Read a number without a name: the preferred GPU with that count, else the preferred TPU."""
    if not is_number(word):
        return None
    count = int(word)
    if wanted != "tpu" and count in catalog.GPU_FOR_COUNT:
        found = _gpu(written, catalog.GPUS[catalog.GPU_FOR_COUNT[count]], count)
    elif wanted != "gpu" and count in catalog.TPU_FOR_COUNT:
        found = _tpu_of_chips(written, catalog.TPUS[catalog.TPU_FOR_COUNT[count]], count)
    else:
        raise _no_such_number(written, wanted)
    return found.note(f'the number in "{written}" stands for {found.canonical}; the full name is clearer')


def _read_gpu(written: str, word: str) -> HardwareName | None:
    family = catalog.find_gpu(word)
    if family is not None:
        count = family.default_count
        found = _gpu(written, family, count)
        only = f"{family.name} only comes in machines of {count}: {found.canonical} asks for all of them"
        return found if count == 1 else found.note(only)
    for splits in (1, 2):
        head, *sizes = word.rsplit("x", splits)
        family = catalog.find_gpu(head)
        if family is not None and sizes and all(map(is_number, sizes)):
            return _gpu_of(written, family, *map(int, sizes))
    return None


def _gpu_of(written: str, family: GpuFamily, count: int, machines: int = 1) -> HardwareName:
    if count not in family.machines:
        raise _no_such_gpu_count(written, family, count)
    if machines not in range(1, _MOST_MACHINES + 1):
        raise OptionError(
            f"{_quoted(written)} asks for {machines} machines with {_counted(count, 'GPU')} each",
            why=f"a job has from 1 to {_MOST_MACHINES} of them",
            next=_write([f"gpu-{family.name}x{count}x2"]),
        )
    return _gpu(written, family, count, machines)


def _read_tpu(written: str, word: str) -> HardwareName | None:
    family = catalog.find_tpu(word)
    if family is not None:
        return _tpu_of_chips(written, family, family.default_chips)
    head, _, size = word.rpartition("-")
    family = catalog.find_tpu(head)
    if family is None:
        return None
    if not is_number(size):
        if not catalog.is_topology(size) or not family.offers(size):
            raise _no_such_topology(written, family, size)
        return _tpu(written, family, size, f"{family.short}-{size}")
    if family.name == "v3" and int(size) == _GOOGLE_V3_HOST:
        # v3 has no slice of 8 chips, so Google's reading is the only one; it is also the documented example.
        return _tpu(written, family, "2x2", "v3-8").note(
            "v3-8 is read as Google's name for one v3 host: 8 TensorCores on 4 chips, 2x2; other v3 numbers count chips"
        )
    return _tpu_of_chips(written, family, int(size)).note(*_note_on_google_number(family, int(size)))


def _gpu(written: str, family: GpuFamily, count: int, machines: int = 1) -> HardwareName:
    word = family.name if count == machines == 1 else f"{family.name}x{count}"
    word = word if machines == 1 else f"{word}x{machines}"
    return HardwareName(written, f"gpu-{word}", "gpu", family.name, count * machines, None, _cut(word), machines)


def _tpu_of_chips(written: str, family: TpuFamily, chips: int) -> HardwareName:
    topology = family.topology_for(chips)
    if topology is None:
        raise _no_such_chip_count(written, family, chips)
    # "v5e1", but "v4-16": a digit next to a digit would read as another number.
    return _tpu(written, family, topology, f"{family.short}{'-' if family.short[-1].isdigit() else ''}{chips}")


def _tpu(written: str, family: TpuFamily, topology: str, word: str) -> HardwareName:
    canonical, chips = family.canonical(topology), catalog.chips_of(topology)
    return HardwareName(written, canonical, "tpu", family.name, chips, topology, _cut(word))


def _cut(word: str) -> str:
    return word[:SLUG_LENGTH].rstrip("-")


def _note_on_google_number(family: TpuFamily, chips: int) -> Iterator[str]:
    """Yield a note where Google's name with the same number is another slice, or no slice at all."""
    if family.cores_per_chip == 1:
        return
    ours = f"{family.short}-{chips} means {_counted(chips, 'chip')} here ({family.topology_for(chips)})"
    theirs = family.google_topology_for(chips)
    if theirs is None:
        yield f"{ours}; Google counts TensorCores and calls this slice {family.short}-{chips * family.cores_per_chip}"
    else:
        yield (
            f"{ours}; Google's {family.short}-{chips} counts TensorCores and is "
            f"{_counted(catalog.chips_of(theirs), 'chip')}: write {family.canonical(theirs)} for that one"
        )


# ---------------------------------------------------------------------------------------------- names that do not exist

_NEAREST = 3  # names that are suggested for an unknown one (count)
_SHOWN = 40  # characters; what was pasted by accident does not fill the terminal


def _unknown(written: str, wanted: str, word: str) -> OptionError:
    """Refuse a name that nothing has; ``wanted`` is "gpu" or "tpu" when it had that prefix, else ""."""
    stem, _ = _split_size(word)
    misplaced = wanted == "gpu" and catalog.find_tpu(stem) is not None  # "gpu-v5e": the prefix is what is wrong
    nearest = _nearest("" if misplaced else wanted, word)
    dashed = _dashed_gpu(word) if wanted != "tpu" else None
    return OptionError(
        f"unknown {'GPU' if wanted == 'gpu' else 'accelerator'} {_quoted(written)}",
        why="a count of GPUs follows an x, not a dash"
        if dashed
        else f"the nearest names are {_listed(nearest, 'and')}",
        next=_write([dashed or nearest[0]]),
    )


def _no_such_number(written: str, wanted: str) -> OptionError:
    counts = []
    if wanted != "tpu":
        counts.append(f"GPU counts are {_listed(catalog.GPU_FOR_COUNT)}")
    if wanted != "gpu":
        counts.append(f"TPU chip counts are {_listed(catalog.TPU_FOR_COUNT)}")
    return OptionError(
        f"no accelerator has the number in {_quoted(written)}",
        why="; ".join(counts),
        next=_write(["tpu-v5e-8" if wanted == "tpu" else "gpu-l4x4"]),
    )


def _no_such_gpu_count(written: str, family: GpuFamily, count: int) -> OptionError:
    near = [
        f"gpu-{family.name}" if size == 1 else f"gpu-{family.name}x{size}" for size in _around(count, family.machines)
    ]
    largest = max(family.machines)
    if count > largest and count % largest == 0:
        near.append(f"gpu-{family.name}x{largest}x{count // largest}")
    return OptionError(
        f"{_quoted(written)} asks for {_counted(count, 'GPU')}, and no {family.name} machine has that many",
        why=f"{family.name} comes in machines of {_listed(family.machines)}",
        next=_write(near),
    )


def _no_such_chip_count(written: str, family: TpuFamily, chips: int) -> OptionError:
    sizes = dict(family.usual_sizes())
    why = f"{family.short} comes in {_listed(sizes)} chips{_beyond(family, 'multiple of 64')}"
    topologies = [sizes[size] for size in _around(chips, sizes)]
    meant = family.google_topology_for(chips)
    if meant is not None:
        why += f"; Google's {family.short}-{chips} counts TensorCores, two per chip, and is {meant}"
        topologies = [meant]
    return OptionError(
        f"{_quoted(written)} asks for {_counted(chips, 'chip')}, and no {family.short} slice has that many",
        why=why,
        next=_write(map(family.canonical, topologies)),
    )


def _no_such_topology(written: str, family: TpuFamily, size: str) -> OptionError:
    topologies = [topology for _, topology in family.usual_sizes()]
    rule = _beyond(family, "AxBxC with A <= B <= C, all multiples of 4,")
    meant = _meant_topology(family, size) if catalog.is_topology(size) else None
    return OptionError(
        f"{_quoted(written)} asks for {_quoted(size)}, and no {family.short} slice has that shape",
        why=f"{family.short} comes as {_listed(topologies)}{rule}",
        next=_write(map(family.canonical, [meant] if meant else topologies[:2])),
    )


def _beyond(family: TpuFamily, rule: str) -> str:
    """Return the rule of the shapes that are too many to list, or ""."""
    many = family.axes == catalog.MAX_AXES and family.max_chips > catalog.CUBE_CHIPS
    return f", and any {rule} up to {family.max_chips} chips" if many else ""


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
    if family is None or not is_number(count) or int(count) not in family.machines:
        return None
    return f"gpu-{family.name}x{int(count)}"


def _nearest(wanted: str, word: str) -> list[str]:
    """Return the three names that look most like a word, each of another family, with its size where it fits."""
    from difflib import SequenceMatcher  # 2 ms; only on the way to an error

    stem, size = _split_size(word)

    def likeness(candidate: tuple[str, str]) -> float:
        return max(SequenceMatcher(None, candidate[0], text).ratio() for text in (word, stem))

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
    """Split "v5x-2x4" into "v5x" and "-2x4", "l5x4x2" into "l5" and "x4x2"; the size may be empty."""
    stem, _, size = word.rpartition("-")
    if stem and (is_number(size) or catalog.is_topology(size)):
        return stem, f"-{size}"
    stem, _, size = word.rpartition("x")
    if not stem or not is_number(size):
        return word, ""
    above, _, count = stem.rpartition("x")
    return (above, f"x{count}x{size}") if above and is_number(count) else (stem, f"x{size}")


def _suggestion(spelling: str, family: str, size: str) -> str:
    """Return a known spelling as a user would write it, with the size they asked for where that family has it."""
    if family in catalog.GPUS:
        fits = size.startswith("x") and int(size.split("x")[1]) in catalog.GPUS[family].machines
        return f"gpu-{spelling}{size if fits else ''}"
    if family not in catalog.TPUS:
        return spelling
    tpu, number = catalog.TPUS[family], size.removeprefix("-")
    fits = size.startswith("-") and (
        tpu.topology_for(int(number)) is not None if is_number(number) else tpu.offers(number)
    )
    return f"{spelling if spelling.startswith('tpu') else f'tpu-{spelling}'}{size if fits else ''}"


def _quoted(written: str) -> str:
    return f'"{written if len(written) <= _SHOWN else written[:_SHOWN] + "…"}"'


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _listed(words: Iterable[object], last: str = "or") -> str:
    *first, final = map(str, words)
    return f"{', '.join(first)} {last} {final}" if first else final


def _write(spellings: Iterable[str]) -> str:
    return "write " + " or ".join(f'accelerator="{spelling}"' for spelling in spellings)


def _around(number: int, offered: Iterable[int]) -> list[int]:
    """Return the offered numbers next below and next above: one or two of them."""
    offered = sorted(offered)
    return [size for size in offered if size < number][-1:] + [size for size in offered if size > number][:1]


# ------------------------------------------------------------------------------------------ what a cluster must provide

_GPU_LABEL = "cloud.google.com/gke-accelerator"
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
_TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-topology"
COUNT_LABEL = "cloud.google.com/gke-accelerator-count"
_SPOT_LABEL = "cloud.google.com/gke-spot"
_ARCH_LABEL = "kubernetes.io/arch"
_GPU_RESOURCE = "nvidia.com/gpu"
_TPU_RESOURCE = "google.com/tpu"


class Placement(NamedTuple):
    """The hardware of one job."""

    accelerator: str  # the name exactly as the user wrote it
    name: str  # its canonical spelling, e.g. "tpu-v5litepod-2x4"
    kind: Kind  # "cpu", "gpu" or "tpu"
    family: str  # key in ``catalog.GPUS`` or ``catalog.TPUS``; "cpu" for a CPU
    chips: int  # GPUs, or TPU chips, of all hosts together (count); 0 for a CPU
    hosts: int  # machines, and so pods (count), of all slices; 1 but for TPU slices and for several machines with GPUs
    slices: int  # of a TPU (count): what is joined by the network of the data center, and not by that of the chips
    chips_per_host: int  # that each pod asks for (count): of TPUs all that its host has, as their plugin demands
    topology: str | None  # of each slice: TPU chips per axis, e.g. "2x4"; None otherwise
    machine_type: str | None  # Compute Engine's machine type; None for a CPU, where any will do
    node_selector: dict[str, str]  # labels that a node must carry
    tolerations: tuple[Toleration, ...]  # Kubernetes tolerations, ready for a pod
    resource: str | None  # the extended resource a pod asks for, e.g. "google.com/tpu"; None for a CPU
    resource_count: int  # how much of it each pod asks for (count)
    spot: bool  # whether the capacity can be preempted with about 30 s notice
    notes: tuple[str, ...]  # sentences for the user: what the name may mean elsewhere, what the hardware needs
    source: str  # where the facts were read

    @property
    def one_slice(self) -> Placement:
        """The hardware of one of its slices."""
        name = self.name.removeprefix(f"tpu-{self.slices}x")
        if self.slices > 1 and not name.startswith("tpu"):
            name = f"tpu-{name}"
        return self._replace(name=name, chips=self.chips // self.slices, hosts=self.hosts // self.slices, slices=1)

    @property
    def machine(self) -> str:
        """The machine of its hosts as wheels name it: "x86_64" or "aarch64"."""
        return "aarch64" if self.node_selector.get(_ARCH_LABEL) == "arm64" else "x86_64"


def place(accelerator: str, *, spot: bool = False, multi_host: bool = False) -> Placement:
    """Return what hardware a name asks for.

    Args:
        accelerator: As a user writes it, e.g. "tpu-v5litepod-2x4" (chips per axis) or "gpu-l4x4" (GPUs).
        spot: Ask for capacity that can be preempted with about 30 s notice; ":spot" in the name does the same.
            A CPU job ignores both.
        multi_host: Take two hosts of 4 chips for the ``2x4`` of v5e and v6e, which is one host of 8 otherwise.
            It changes nothing else.

    Raises:
        OptionError: Unknown name (the message has the three nearest), or a size it does not come in.

    Source: per row, in the field ``source``; labels and taints as in GKE's autoscaler and device plugin, 2026.
    """
    wanted = parse(accelerator)
    plain = Placement(
        accelerator=wanted.written,
        name=wanted.canonical,
        kind=wanted.kind,
        family=wanted.family,
        chips=wanted.chips,
        hosts=wanted.machines,
        slices=wanted.slices,
        chips_per_host=wanted.chips // wanted.machines,
        topology=wanted.topology,
        machine_type=None,
        node_selector={},
        tolerations=(),
        resource=None,
        resource_count=0,
        spot=False,
        notes=wanted.notes,
        source="any node: nothing is asked for",
    )
    if wanted.kind == "cpu":
        note = ("spot has no effect on a CPU job: it runs on ordinary capacity",) if spot else ()
        return plain._replace(notes=plain.notes + note)
    spot = spot or wanted.spot
    found = _place_gpu(plain, spot=spot) if wanted.kind == "gpu" else _place_tpu(plain, multi_host=multi_host)
    if not spot:
        return found
    # Without its value an Equal toleration tolerates only an empty taint: the pod would stay pending forever.
    return found._replace(
        spot=True,
        node_selector=found.node_selector | {_SPOT_LABEL: "true"},
        tolerations=(*found.tolerations, _tolerate(_SPOT_LABEL, "true")),
    )


def _place_gpu(plain: Placement, *, spot: bool) -> Placement:
    family, count = catalog.GPUS[plain.family], plain.chips_per_host
    selector, tolerations, notes = {_GPU_LABEL: family.label}, [_tolerate(_GPU_RESOURCE)], [*plain.notes]
    if family.arm64:
        # GKE taints every Arm node, so that an x86 image does not land there by accident.
        selector[_ARCH_LABEL] = "arm64"
        tolerations.append(_tolerate(_ARCH_LABEL, "arm64"))
        notes.append(f"{family.name} hosts are Arm machines: the image must be built for linux/arm64")
    if count < family.on_demand_from and not spot:
        notes.append(
            f"Google sells machines with fewer than {family.on_demand_from} {family.name} as Spot or flex-start only: "
            f"write {plain.name}:spot if no such machine comes up"
        )
    return plain._replace(
        machine_type=family.machines[count],
        node_selector=selector,
        tolerations=tuple(tolerations),
        resource=_GPU_RESOURCE,
        resource_count=count,
        notes=tuple(notes),
        source=family.source,
    )


def _place_tpu(plain: Placement, *, multi_host: bool) -> Placement:
    family = catalog.TPUS[plain.family]
    topology = plain.topology or family.largest  # a TPU name always has one; this is for the type checker only
    machine, hosts = family.machines_for(topology, multi_host=multi_host)
    selector = {_TPU_LABEL: machine.label, _TOPOLOGY_LABEL: topology}
    if machine != family.machines_for(topology)[0]:
        # Both labels are also on the one large host, and its device plugin refuses a pod that asks for half of it.
        selector[COUNT_LABEL] = str(machine.chips)
    return plain._replace(
        hosts=hosts * plain.slices,
        chips_per_host=machine.chips,
        machine_type=machine.machine_type,
        node_selector=selector,
        tolerations=(_tolerate(_TPU_RESOURCE),),
        resource=_TPU_RESOURCE,
        resource_count=machine.chips,
        source=catalog.AUTOSCALER,
    )


def _tolerate(key: str, value: str = "") -> Toleration:
    if value:
        return {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    # GKE writes the taint as key=present:NoSchedule; Exists holds for any value it may choose.
    return {"key": key, "operator": "Exists", "effect": "NoSchedule"}
