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

from typing import TYPE_CHECKING, Literal, NamedTuple

from kinetic._hardware import catalog, families, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetic._hardware.families import GpuFamily, TpuFamily

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
        raise refusals.not_a_string(accelerator)
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
        raise refusals.unknown(accelerator, wanted, word)
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
        raise refusals.no_such_number(written, wanted)
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
        raise refusals.no_such_gpu_count(written, family, int(count))
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
        raise refusals.no_such_topology(written, family, size)
    return _tpu(written, family, size, f"{family.short}-{size}", spot=spot)


def _read_tpu_count(written: str, family: TpuFamily, chips: int, *, spot: bool) -> HardwareName:
    topology = family.topology_for(chips)
    if topology is None:
        raise refusals.no_such_chip_count(written, family, chips)
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
    ours = f"{family.short}-{chips} means {chips} {refusals.plural('chip', chips)} here ({family.topology_for(chips)})"
    theirs = family.google_topology_for(chips)
    if theirs is None:
        yield f"{ours}; Google counts TensorCores and calls this slice {family.short}-{chips * family.cores_per_chip}"
    else:
        yield (
            f"{ours}; Google's {family.short}-{chips} counts TensorCores and is {families.chips_of(theirs)} "
            f"{refusals.plural('chip', families.chips_of(theirs))}: write {family.canonical(theirs)} for that one"
        )


def _with_notes(reading: HardwareName, *notes: str) -> HardwareName:
    return reading._replace(notes=(*reading.notes, *notes))


def _join(short: str, number: str) -> str:
    """Write "v5e1", but "v4-16": a digit next to a digit would read as another number."""
    return f"{short}-{number}" if short[-1].isdigit() else f"{short}{number}"


def _cut(word: str) -> str:
    return word[:SLUG_LENGTH].rstrip("-")
