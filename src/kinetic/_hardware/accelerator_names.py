"""Accelerator names as users write them, read into one unambiguous form.

The grammar, after trimming and lower-casing:

    name     = [ "gpu" sep | "tpu" sep ] what [ ":spot" ]        sep is "-" or ":"
    what     = "cpu" [ ":" number ]                              the number is ignored
             | "gpu" | "tpu"                                     l4 x1, v5litepod with 4 chips
             | number                                            a GPU with that count first, else a TPU
             | gpu [ "x" count ]                                 "l4", "l4x4", "nvidia-l4"
             | tpu [ "-" chips | "-" topology ]                  "v5e", "v5e-8", "v5litepod-2x4"

Without a prefix the GPU reading comes first. A TPU number counts CHIPS. Google's own names for v3, v4, v5p and tpu7x
count TensorCores, two per chip, so the same text can mean twice the slice: the reading carries a note that says so,
and the canonical name spells the topology, which cannot be misread.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Literal, NamedTuple

from kinetic._hardware import catalog, families
from kinetic.errors import OptionError, OptionTypeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kinetic._hardware.families import GpuFamily, TpuFamily


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
    rungs = dict(family.ladder())
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
    topologies = [topology for _, topology in family.ladder()]
    meant = _meant_topology(family, size) if families.is_topology(size) else None
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
    if family.axes < families.MAX_AXES or family.max_chips <= families.CUBE_CHIPS:
        return ""
    return f", and any {rule} up to {family.max_chips} chips"


def _meant_topology(family: TpuFamily, size: str) -> str | None:
    """Find what a wrong topology was meant to be: the same sides in another order, or the same number of chips."""
    for sides in permutations(families.sides_of(size)):
        if family.offers(topology := families.topology_of(sides)):
            return topology
    return family.topology_for(families.chips_of(size))


def _dashed_gpu(word: str) -> str | None:
    """Return what "l4-4" was meant to be, or None."""
    head, _, count = word.rpartition("-")
    family = catalog.find_gpu(head)
    if family is None or not families.is_number(count) or int(count) not in family.machines:
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
    if stem and (families.is_number(size) or families.is_topology(size)):
        return stem, f"-{size}"
    stem, _, size = word.rpartition("x")
    if stem and families.is_number(size):
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
        tpu.topology_for(int(number)) is not None if families.is_number(number) else tpu.offers(number)
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
    return text == "cpu" or (head == "cpu" and families.is_number(number))


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
    if not families.is_number(word):
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
    if family is None or not families.is_number(count):
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
    if families.is_number(size):
        if family.name == "v3" and int(size) == _GOOGLE_V3_HOST:
            return _google_v3_host(written, family, spot=spot)
        reading = _read_tpu_count(written, family, int(size), spot=spot)
        return _with_notes(reading, *_note_on_google_number(family, int(size)))
    if not families.is_topology(size) or not family.offers(size):
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
    canonical, chips = family.canonical(topology), families.chips_of(topology)
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
            f"{ours}; Google's {family.short}-{chips} counts TensorCores and is {families.chips_of(theirs)} "
            f"{plural('chip', families.chips_of(theirs))}: write {family.canonical(theirs)} for that one"
        )


def _with_notes(reading: HardwareName, *notes: str) -> HardwareName:
    return reading._replace(notes=(*reading.notes, *notes))


def _join(short: str, number: str) -> str:
    """Write "v5e1", but "v4-16": a digit next to a digit would read as another number."""
    return f"{short}-{number}" if short[-1].isdigit() else f"{short}{number}"


def _cut(word: str) -> str:
    return word[:SLUG_LENGTH].rstrip("-")
