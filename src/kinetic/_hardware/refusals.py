"""What to say about an accelerator name that cannot be read: each answer holds a spelling that works."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

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
