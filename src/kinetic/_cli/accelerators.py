"""``kinetic accelerators``: what a job can run on, and what a name means."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, count_text
from kinetic.errors import CapacityError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kinetic._hardware import GpuFamily, Placement, TpuFamily

_GPU_COLUMNS = (
    Column("GPU"),
    Column("COUNTS"),
    Column("MACHINE TYPES", flexible=True, spare=1),
    Column("ALSO", flexible=True, spare=2),
)
_TPU_COLUMNS = (
    Column("TPU"),
    Column("ALIAS", spare=1),
    Column("CHIPS", right=True),
    Column("TOPOLOGY"),
    Column("HOSTS", right=True),
    Column("CHIPS PER HOST", right=True, spare=2),
    Column("MACHINE TYPE", spare=3),
    Column("AT GOOGLE", spare=4),
)
_GOOGLE_EXAMPLE = 8  # "v5p-8": the number that is most often mistaken for Google's
_PLANE = 2  # axes; TPUs with more have too many shapes for a table
_CUBE = 64  # chips; larger slices are made of whole cubes


@click.command(
    epilog="NAME is gpu-NAME, gpu-NAMExCOUNT, tpu-NAME-CHIPS or tpu-NAME-TOPOLOGY, optionally followed by :spot."
)
@click.argument("name", required=False, metavar="[NAME]", shell_complete=shared_options.complete_accelerators)
@click.option("--live", is_flag=True, help="Check whether the cluster has such nodes, as a submission does.")
@shared_options.place_options
@shared_options.json_option
def accelerators(name: str | None, live: bool, as_json: bool, **place: str | None) -> None:
    """Show what a job can run on.

    With a NAME: what it means, on a cluster and on this machine. Without NAME: all accelerators, TPUs in common sizes.
    The network is used only with --live, --project, --zone or --cluster.

    Example: kinetic accelerators tpu-v5p-8
    """
    if name is not None:
        _explain(name, place if live or any(place.values()) else None, as_json=as_json)
        return
    given = [f"--{word}" for word, value in place.items() if value] or (["--live"] if live else [])
    if given:
        raise OptionError(
            f"{given[0]} requires the NAME of an accelerator",
            why="a cluster is checked for one accelerator at a time: nodes, node pools and your permissions",
            next="kinetic accelerators tpu-v5e-1 --live",
        )
    from kinetic import _hardware as hardware

    gpus, tpus = hardware.GPUS.values(), hardware.TPUS.values()
    if as_json:
        output_format.print_document(gpus=[*map(_gpu_page, gpus)], tpus=[*map(_tpu_page, tpus)])
        return
    output_format.print_table(_GPU_COLUMNS, [_gpu_cells(gpu) for gpu in gpus])
    print()
    output_format.print_table(_TPU_COLUMNS, [_tpu_cells(tpu, page) for tpu in tpus for page in _sizes(tpu)])
    print()
    # What the tables cannot show: above all where a number means something else at Google.
    for tpu in tpus:
        if tpu.cores_per_chip > 1:
            for note in hardware.parse(f"tpu-{tpu.short.removeprefix('tpu')}-{_GOOGLE_EXAMPLE}").notes:
                print(output_format.plain(note))
    *most, last = [tpu.short for tpu in tpus if tpu.axes > _PLANE and tpu.max_chips > _CUBE]
    print(f"{', '.join(most)} and {last} also have the shapes AxBxC with A <= B <= C, all multiples of 4")


def _cluster_notes(placement: Placement, place: Mapping[str, str | None]) -> tuple[str, ...]:
    """Check the cluster as a submission does, and return its notes."""
    from kinetic._config import cluster
    from kinetic._jobs import locate

    target = shared_options.target_of(place, multi_host=placement.hosts > 1)
    if registry.is_here(target.backend.value):
        raise OptionError(
            "no cluster is configured",
            why=f"jobs run on this machine: the backend is {registry.HERE.name} ({target.backend.source})",
            next=f"kinetic accelerators {placement.name} --project PROJECT --cluster CLUSTER",
        )
    with output.phase("asking the cluster", summary=False):
        wanted = {"settings": cluster.read_settings(target.profile, os.environ).to_json()}
        notes = locate.backend_at(target).check(placement, wanted)
    return notes or ("a job can run there",)


def _explain(name: str, place: Mapping[str, str | None] | None, *, as_json: bool) -> None:
    from kinetic import _hardware as hardware

    try:
        placement = hardware.place(name)
    except OptionError as error:
        nearest = re.search(r'accelerator="([^"]+)"', error.next or "")
        error.next = f"kinetic accelerators {nearest[1]}" if nearest else error.next
        raise
    here, possible = _local_notes(placement)
    there = _cluster_notes(placement, place) if place is not None else ()
    if as_json:
        page = {**placement._asdict(), "here": {"possible": possible, "notes": [*here]}}
        page |= {"cluster": {"notes": [*there]}} if place is not None else {}
        output_format.print_document(accelerator=page)
        return
    rows = [
        ["name", placement.name],
        ["means", _meaning(placement)],
        ["hosts", str(placement.hosts)],
        ["slices", str(placement.slices) if placement.slices > 1 else ""],
        ["chips", str(placement.chips) if placement.kind == "tpu" else ""],
        ["GPUs", str(placement.chips) if placement.kind == "gpu" else ""],
        ["chips per host", str(placement.chips_per_host) if placement.kind == "tpu" else ""],
        ["GPUs per host", str(placement.chips_per_host) if placement.kind == "gpu" and placement.hosts > 1 else ""],
        ["topology", placement.topology or ""],
        ["machine type", placement.machine_type or ""],
        ["spot", "yes: it can be preempted at short notice" if placement.spot else ""],
        ["on this machine", "; ".join(here)],
        ["in the cluster", "; ".join(there)],
        *(["note", note] for note in placement.notes),
    ]
    output_format.print_fields(rows)


def _local_notes(placement: Placement) -> tuple[tuple[str, ...], bool]:
    """Return what a submission would report for this machine, and whether a job can run here."""
    from kinetic._jobs import locate

    backend = locate.local()
    try:
        notes = backend.check(placement)
    except CapacityError as error:
        return (f"not possible: {error.what}",), False
    if notes:
        return notes, True
    return ("it runs on the CPU" if placement.kind == "cpu" else "it runs on a GPU of this machine",), True


def _meaning(placement: Placement) -> str:
    if placement.kind == "cpu":
        return "any machine; no accelerator is requested"
    count = count_text(placement.chips, "GPU" if placement.kind == "gpu" else "TPU chip")
    hosts = "one host" if placement.hosts == 1 else f"{placement.hosts} hosts"
    if placement.hosts > 1 and placement.kind == "tpu":
        hosts += " of one slice" if placement.slices == 1 else f" of {placement.slices} slices"
    return f"{count} of the kind {placement.family}, on {hosts}"


def _gpu_cells(gpu: GpuFamily) -> list[str]:
    counts = ", ".join(map(str, gpu.machines))
    return [f"gpu-{gpu.name}", counts, ", ".join(gpu.machines.values()), ", ".join(gpu.aliases)]


def _gpu_page(gpu: GpuFamily) -> dict[str, Any]:
    from kinetic import _hardware as hardware

    sizes = [(count, f"gpu-{gpu.name}" if count == 1 else f"gpu-{gpu.name}x{count}") for count in gpu.machines]
    return {
        "name": gpu.name,
        "aliases": [*gpu.aliases],
        "label": gpu.label,
        "architecture": "arm64" if gpu.arm64 else "amd64",
        "sizes": [
            {
                "accelerator": name,
                "count": count,
                "machine_type": gpu.machines[count],
                "notes": [*hardware.place(name).notes],
            }
            for count, name in sizes
        ],
    }


def _tpu_cells(tpu: TpuFamily, size: dict[str, Any]) -> list[str]:
    return [
        tpu.canonical("").rstrip("-"),
        "" if tpu.short == tpu.name else tpu.short,
        str(size["chips"]),
        size["topology"],
        str(size["hosts"]),
        str(size["chips_per_host"]),
        size["machine_type"],
        "" if tpu.cores_per_chip == 1 else f"{tpu.short}-{size['tensor_cores']}",
    ]


def _tpu_page(tpu: TpuFamily) -> dict[str, Any]:
    return {
        "name": tpu.name,
        "short": tpu.short,
        "aliases": [*tpu.aliases],
        "tensor_cores_per_chip": tpu.cores_per_chip,
        "sizes": [*_sizes(tpu)],
    }


def _sizes(tpu: TpuFamily) -> Iterator[dict[str, Any]]:
    """Yield the usual sizes; the notes are those of the name with a number, which is what people type."""
    from kinetic import _hardware as hardware

    for chips, topology in tpu.usual_sizes():
        placement = hardware.place(tpu.canonical(topology))
        by_number = tpu.canonical(str(chips))
        yield {
            "accelerator": placement.name,
            "by_number": by_number,
            "chips": chips,
            "topology": topology,
            "hosts": placement.hosts,
            "chips_per_host": placement.chips_per_host,
            "machine_type": placement.machine_type,
            "tensor_cores": chips * tpu.cores_per_chip,
            "notes": [*hardware.place(by_number).notes],
        }
