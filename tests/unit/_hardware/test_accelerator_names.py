"""The grammar of accelerator names, rule by rule, and what is said about names that break it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from kinetic._hardware import GPUS, TPUS, parse, slug
from kinetic.errors import OptionError, OptionTypeError

EVERY_GPU = [
    f"gpu-{name}" if count == 1 else f"gpu-{name}x{count}" for name, row in GPUS.items() for count in row.machines
]
EVERY_TPU = [row.canonical(topology) for row in TPUS.values() for _, topology in row.usual_sizes()]
EVERY_NAME = ["cpu", *EVERY_GPU, *EVERY_TPU]


def refusal(name: str) -> OptionError:
    with pytest.raises(OptionError) as caught:
        parse(name)
    return caught.value


def suggestions(error: OptionError) -> list[str]:
    return re.findall(r'accelerator="([^"]+)"', error.next or "")


# O-R1: trimming, case, ":spot", prefixes


@pytest.mark.parametrize("name", ["gpu-l4", "gpu:l4", "l4", "  GPU-L4\n", "Gpu:L4"])
def test_prefix_separator_case_and_blanks_do_not_matter(name: str) -> None:
    assert parse(name).canonical == "gpu-l4"


@pytest.mark.parametrize("name", ["tpu-v5e-2x4", "tpu:v5e-2x4", "v5e-2x4", "TPU-V5E-2X4"])
def test_a_tpu_name_may_come_with_or_without_its_prefix(name: str) -> None:
    assert parse(name).canonical == "tpu-v5litepod-2x4"


@pytest.mark.parametrize("name", ["gpu-l4:spot", "tpu-v5e-1:spot", "v5p-2x2x1:SPOT", "8:spot", "gpu:spot"])
def test_a_trailing_spot_asks_for_spot_and_leaves_the_rest(name: str) -> None:
    reading = parse(name)

    assert reading.spot
    assert reading.canonical == parse(name.lower().removesuffix(":spot")).canonical


def test_spot_is_off_unless_it_is_written() -> None:
    assert not parse("gpu-l4").spot


def test_spot_in_the_middle_of_a_name_is_not_understood() -> None:
    refusal("gpu-l4:spot:x2")


def test_the_name_is_kept_as_it_was_written() -> None:
    assert parse(" TPU-v5e-1 ").written == " TPU-v5e-1 "


# O-R2: CPU


@pytest.mark.parametrize("name", ["cpu", "CPU", "cpu:8"])
def test_cpu_with_or_without_a_number_is_a_cpu(name: str) -> None:
    reading = parse(name)

    assert (reading.kind, reading.canonical, reading.chips, reading.topology) == ("cpu", "cpu", 0, None)


def test_spot_and_a_number_have_no_effect_on_a_cpu_and_say_so() -> None:
    reading = parse("cpu:8:spot")

    assert not reading.spot
    assert len(reading.notes) == 2
    assert all("no effect" in note for note in reading.notes)


@pytest.mark.parametrize("name", ["cpu-8", "cpu:", "cpu:x", "cpux2", "gpu-cpu"])
def test_a_cpu_with_anything_else_is_unknown(name: str) -> None:
    assert refusal(name).what.startswith("unknown")


def test_the_way_out_of_cpu_8_is_cpu() -> None:
    assert suggestions(refusal("cpu-8")) == ["cpu"]


# O-R3: the bare words


def test_gpu_alone_is_one_l4() -> None:
    assert parse("gpu").canonical == "gpu-l4"


def test_tpu_alone_is_a_v5e_host_of_4_chips() -> None:
    assert parse("tpu").canonical == "tpu-v5litepod-2x2"


# O-R4: numbers without a name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("1", "gpu-h100"),
        ("8", "gpu-h100x8"),
        ("16", "gpu-a100x16"),
        ("gpu-4", "gpu-h100x4"),
        ("gpu:2", "gpu-h100x2"),
        ("32", "tpu-v5p-2x4x4"),
        ("64", "tpu-v5litepod-8x8"),
        ("tpu-1", "tpu-v5litepod-1x1"),
        ("tpu-4", "tpu-v5litepod-2x2"),
        ("tpu:8", "tpu-v6e-2x4"),
        ("tpu-16", "tpu-v6e-4x4"),
        ("tpu-256", "tpu-v5litepod-16x16"),
        ("tpu-512", "tpu-v4-8x8x8"),
        ("tpu-4096", "tpu-v4-16x16x16"),
    ],
)
def test_a_number_means_the_preferred_gpu_and_else_the_preferred_tpu(name: str, canonical: str) -> None:
    reading = parse(name)

    assert reading.canonical == canonical
    assert any(canonical in note for note in reading.notes)


@pytest.mark.parametrize(
    ("name", "listed", "missing"),
    [
        ("gpu-3", "1, 2, 4, 8 or 16", "TPU"),
        ("tpu-3", "1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048 or 4096", "GPU"),
        ("3", "1, 2, 4, 8 or 16; TPU chip counts are 1, 4, 8", "nothing"),
    ],
)
def test_a_number_that_nothing_has_lists_the_numbers_that_exist(name: str, listed: str, missing: str) -> None:
    error = refusal(name)

    assert error.why is not None
    assert listed in error.why
    assert missing not in error.why


# O-R5: GPUs and TPUs by name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("nvidia-l4", "gpu-l4"),
        ("gpu-nvidia-tesla-t4x4", "gpu-t4x4"),
        ("l4x1", "gpu-l4"),
        ("a100-80gbx8", "gpu-a100-80gbx8"),
        ("a100-80", "gpu-a100-80gb"),
        ("a100-40gb", "gpu-a100"),
        ("h100-80gbx8", "gpu-h100x8"),
        ("gpu-h100-megax8", "gpu-h100-megax8"),
        ("gpu-rtx-pro-6000", "gpu-rtx-pro-6000"),
        ("gpu-rtx-pro-6000x8", "gpu-rtx-pro-6000x8"),
    ],
)
def test_a_gpu_is_named_by_word_or_label_with_an_optional_count(name: str, canonical: str) -> None:
    assert parse(name).canonical == canonical


@pytest.mark.parametrize(
    ("name", "canonical", "gpus", "machines"),
    [
        ("gpu-h100x8x2", "gpu-h100x8x2", 16, 2),
        ("H100x8x16:spot", "gpu-h100x8x16", 128, 16),
        ("nvidia-l4x1x3", "gpu-l4x1x3", 3, 3),
        ("a100-80gbx4x1", "gpu-a100-80gbx4", 4, 1),
        ("rtx-pro-6000x8x2", "gpu-rtx-pro-6000x8x2", 16, 2),
        ("h100-megax8x2", "gpu-h100-megax8x2", 16, 2),
    ],
)
def test_a_second_number_counts_machines_with_gpus(name: str, canonical: str, gpus: int, machines: int) -> None:
    reading = parse(name)

    assert (reading.canonical, reading.chips, reading.machines) == (canonical, gpus, machines)
    assert parse(canonical) == reading._replace(written=canonical, spot=False)


@pytest.mark.parametrize("name", ["l4x1x0", "l4x1x257", "l4x1x100000"])
def test_a_job_has_from_one_to_256_machines(name: str) -> None:
    error = refusal(name)

    assert error.why == "a job has from 1 to 256 of them"
    assert suggestions(error) == ["gpu-l4x1x2"]


@pytest.mark.parametrize(
    ("name", "canonical", "chips", "slices"),
    [
        ("tpu-2xv5e-16", "tpu-2xv5litepod-4x4", 32, 2),
        ("2xV5E-16:spot", "tpu-2xv5litepod-4x4", 32, 2),
        ("2xtpu-v5e-16", "tpu-2xv5litepod-4x4", 32, 2),
        ("tpu:4xv5p-2x2x2", "tpu-4xv5p-2x2x2", 32, 4),
        ("3xtpu", "tpu-3xv5litepod-2x2", 12, 3),
        ("1xv6e-8", "tpu-v6e-2x4", 8, 1),
        ("256xv5e-256", "tpu-256xv5litepod-16x16", 65536, 256),
        ("2xtpu7x-2x2x2", "tpu-2xtpu7x-2x2x2", 16, 2),  # its generation begins with the prefix
    ],
)
def test_a_number_in_front_counts_slices(name: str, canonical: str, chips: int, slices: int) -> None:
    reading = parse(name)

    assert (reading.canonical, reading.chips, reading.slices) == (canonical, chips, slices)
    assert reading.spot == name.endswith(":spot")
    assert reading.slug[0].isalpha()  # names of objects begin with a letter
    assert len(reading.slug) <= 16
    again = parse(canonical)
    assert again._replace(slug="") == reading._replace(written=canonical, slug="", spot=False)


@pytest.mark.parametrize("name", ["0xv5e-16", "257xv5e-16"])
def test_a_job_has_from_one_to_256_slices(name: str) -> None:
    error = refusal(name)

    assert error.why == "a job has from 1 to 256 of them"
    assert suggestions(error) == ["tpu-v5litepod-4x4", "tpu-2xv5litepod-4x4"]


@pytest.mark.parametrize("name", ["2xv99", "tpu-2xv5e-17", "3xv5e-3x3"])
def test_a_slice_that_does_not_exist_is_said_of_the_name_as_it_was_written(name: str) -> None:
    error = refusal(name)

    assert error.what.startswith(f'"{name}": ')
    assert suggestions(error)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("2xh100x8", ["gpu-h100x8x2"]),
        ("2xh100x8x2", ["gpu-h100x8x4"]),
        ("4xl4", ["gpu-l4x4", "gpu-l4x1x4"]),
        ("2xcpu", ["cpu"]),
    ],
)
def test_only_slices_of_tpus_are_counted_in_front(name: str, instead: list[str]) -> None:
    error = refusal(name)

    assert "counts slices of TPUs" in (error.why or "")
    assert suggestions(error) == instead
    assert [parse(each).canonical for each in instead] == instead


@pytest.mark.parametrize("name", ["2xtpu-3xv5e-16", "tpu-2xtpu-3xv5e-16", "2x3xv5e-16"])
def test_slices_are_counted_once(name: str) -> None:
    assert refusal(name).what.startswith(f'unknown accelerator "{name}"')


@pytest.mark.parametrize("name", ["h200", "b200", "h100-mega", "gb200", "gb300"])
def test_a_gpu_that_is_sold_in_one_size_means_that_size_and_says_so(name: str) -> None:
    (size,) = GPUS[name].machines

    reading = parse(name)

    assert reading.chips == size
    assert any(f"gpu-{name}x{size}" in note for note in reading.notes)


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v3", "2x2"),
        ("v4", "2x2x1"),
        ("v4-lite", "2x2"),
        ("v5e", "2x2"),
        ("v5litepod", "2x2"),
        ("v5e-device", "2x2"),
        ("v5p", "2x2x2"),
        ("v6e", "2x4"),
        ("tpu7x", "2x2x1"),
        ("tpu7", "2x2x1"),
    ],
)
def test_a_tpu_name_alone_means_its_default_size(name: str, topology: str) -> None:
    assert parse(name).topology == parse(f"tpu-{name}").topology == topology


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v5e-1", "1x1"),
        ("v5litepod-8", "2x4"),
        ("v6e-1", "1x1"),
        ("v6e-4", "2x2"),
        ("v6e-8", "2x4"),
        ("v6e-256", "16x16"),
        ("v5p-4", "2x2x1"),
        ("v5p-8", "2x2x2"),
        ("v5p-512", "8x8x8"),
        ("v4-4096", "16x16x16"),
        ("v3-1024", "32x32"),
        ("tpu7x-1", "1x1x1"),
        ("tpu7x-9216", "16x16x36"),
        ("v5e-device-8", "2x4"),
        ("v4-lite-4", "2x2"),
    ],
)
def test_a_tpu_number_counts_chips(name: str, topology: str) -> None:
    assert parse(name).topology == topology


@pytest.mark.parametrize("label", ["tpu-v5-lite-podslice", "tpu-v4-podslice", "tpu-v5p-slice", "tpu-v6e-slice"])
def test_the_node_label_of_a_tpu_is_a_name_too(label: str) -> None:
    machines = TPUS[parse(label).family].machines

    assert {machine.label for machine in machines} == {label}
    assert parse(f"{label}-{TPUS[parse(label).family].largest}").topology == TPUS[parse(label).family].largest


@pytest.mark.parametrize("name", ["tpu7x-2x2x1", "tpu-tpu7x-2x2x1", "tpu:tpu7x-2x2x1", "v7x-2x2x1", "tpu-7x-2x2x1"])
def test_the_seventh_generation_may_repeat_its_prefix(name: str) -> None:
    assert parse(name).canonical == "tpu7x-2x2x1"


def test_without_a_prefix_the_gpu_reading_comes_first() -> None:
    assert parse("4").kind == "gpu"
    assert parse("tpu-4").kind == "tpu"


# O-R6: errors


@pytest.mark.parametrize(
    "name", ["gpu-l5", "tpu-v5x-2x4", "v5lightpod-4", "banana", "", "tpu-", "gpu:", ":spot", "v2-8"]
)
def test_an_unknown_name_lists_the_three_nearest(name: str) -> None:
    error = refusal(name)

    assert error.why is not None
    nearest = re.split(r", | and ", error.why.removeprefix("the nearest names are "))
    assert len(set(nearest)) == 3
    assert len({parse(suggestion).family for suggestion in nearest}) == 3
    assert suggestions(error) == nearest[:1]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu-l5", "gpu-l4"),
        ("l5x4", "gpu-l4x4"),
        ("l5x4x2", "gpu-l4x4x2"),
        ("gpu-a10", "gpu-a100"),
        ("tpu-v5x-2x4", "tpu-v5e-2x4"),
        ("v5lightpod-4", "tpu-v5litepod-4"),
        ("tpu8x-8", "tpu7x-8"),
        ("gpu-v5e", "tpu-v5e"),
        ("gpu-v5e-8", "tpu-v5e-8"),
        ("tpu-l4", "gpu-l4"),
        ("l4-4", "gpu-l4x4"),
        ("gpu-a100-8", "gpu-a100x8"),
    ],
)
def test_the_way_out_of_an_unknown_name_is_what_was_meant(name: str, meant: str) -> None:
    assert suggestions(refusal(name)) == [meant]


def test_an_unknown_name_with_the_gpu_prefix_is_an_unknown_gpu() -> None:
    assert refusal("gpu-l5").what == 'unknown GPU "gpu-l5"'
    assert refusal("tpu-v9").what == 'unknown accelerator "tpu-v9"'


def test_a_gpu_with_a_dash_before_its_count_is_told_about_the_x() -> None:
    assert refusal("l4-4").why == "a count of GPUs follows an x, not a dash"


@pytest.mark.parametrize(
    ("name", "listed", "near"),
    [
        ("l4x3", "1, 2, 4 or 8", ["gpu-l4x2", "gpu-l4x4"]),
        ("gpu-l4x0", "1, 2, 4 or 8", ["gpu-l4"]),
        ("gpu-l4x3x2", "1, 2, 4 or 8", ["gpu-l4x2", "gpu-l4x4"]),
        ("gpu-a100-80gbx16", "1, 2, 4 or 8", ["gpu-a100-80gbx8", "gpu-a100-80gbx8x2"]),
        ("l4x9", "1, 2, 4 or 8", ["gpu-l4x8"]),
        ("h200x1", "8", ["gpu-h200x8"]),
    ],
)
def test_a_gpu_count_that_is_not_sold_lists_those_that_are(name: str, listed: str, near: list[str]) -> None:
    error = refusal(name)

    assert error.why is not None
    assert error.why.endswith(f"machines of {listed}")
    assert suggestions(error) == near


@pytest.mark.parametrize(
    ("name", "listed", "near"),
    [
        ("v5e-12", "1, 4, 8, 16, 32, 64, 128 or 256 chips", ["tpu-v5litepod-2x4", "tpu-v5litepod-4x4"]),
        ("v6e-512", "1, 4, 8, 16, 32, 64, 128 or 256 chips", ["tpu-v6e-16x16"]),
        ("v5p-9", "any multiple of 64 up to 6144 chips", ["tpu-v5p-2x2x2", "tpu-v5p-2x2x4"]),
        ("tpu7-128", "1, 4, 8, 16, 32 or 64 chips", ["tpu7-4x4x4"]),
        ("v4-lite-8", "4 chips", ["tpu-v4-lite-2x2"]),
    ],
)
def test_a_number_of_chips_that_a_tpu_does_not_have_lists_those_it_has(name: str, listed: str, near: list[str]) -> None:
    error = refusal(name)

    assert error.why is not None
    assert listed in error.why
    assert suggestions(error) == near


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tpu-v5e-4x2", ["tpu-v5litepod-2x4"]),
        ("v6e-04x8", ["tpu-v6e-4x8"]),
        ("v5p-2x1x2", ["tpu-v5p-2x2x1"]),
        ("v5p-8x4x4", ["tpu-v5p-4x4x8"]),
        ("v5p-16x8x4", ["tpu-v5p-4x8x16"]),
        ("v5p-2x2", ["tpu-v5p-2x2x1"]),
        ("v6e-2x2x2", ["tpu-v6e-2x4"]),
        ("v6e-3x5", ["tpu-v6e-1x1", "tpu-v6e-2x2"]),
        ("v6e-0x4", ["tpu-v6e-1x1", "tpu-v6e-2x2"]),
        ("v6e-large", ["tpu-v6e-1x1", "tpu-v6e-2x2"]),
    ],
)
def test_a_topology_that_does_not_exist_names_the_one_that_was_meant(name: str, near: list[str]) -> None:
    assert suggestions(refusal(name)) == near


def test_a_topology_that_does_not_exist_lists_those_that_do() -> None:
    assert refusal("v5e-4x2").why == "v5e comes as 1x1, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16 or 16x16"


def test_shapes_that_are_too_many_to_list_are_given_as_a_rule() -> None:
    why = refusal("v5p-2x2").why

    assert why is not None
    assert "2x2x1, 2x2x2, 2x2x4" in why
    assert "any AxBxC with A <= B <= C, all multiples of 4, up to 6144 chips" in why


@pytest.mark.parametrize(
    "name", ["gpu-l5", "l4x3", "3", "v5e-12", "v5e-4x2", "v5e-big", "cpu-8", "v3-2048", "gpu-v5e", "l4-4"]
)
def test_every_way_out_leads_out(name: str) -> None:
    ways = suggestions(refusal(name))

    assert ways
    assert all(parse(way) for way in ways)


def test_a_refusal_is_a_value_error_and_reads_as_three_lines() -> None:
    error = refusal("tpu-v5e-4x2")

    assert isinstance(error, ValueError)
    assert [line.split()[0] for line in str(error).splitlines()] == ['"tpu-v5e-4x2"', "why:", "next:"]


@pytest.mark.parametrize("thing", [None, 8, b"gpu-l4", ["cpu"]])
def test_something_that_is_no_string_is_a_type_error_that_names_its_type(thing: object) -> None:
    with pytest.raises(OptionTypeError, match=type(thing).__name__):
        parse(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["9" * 5000, "v5e-" + "9" * 5000, "l4x" + "9" * 5000, "v5p-2x2x" + "9" * 5000])
def test_an_absurdly_long_name_is_refused_in_a_few_words(name: str) -> None:
    assert len(str(refusal(name))) < 600


@pytest.mark.parametrize("name", ["v5e-٤", "l4x²", "\uff18"])
def test_digits_of_other_scripts_are_not_numbers(name: str) -> None:
    refusal(name)


# O-R7: chips are not TensorCores


def test_v3_8_is_googles_name_for_one_host() -> None:
    reading = parse("tpu-v3-8")

    assert (reading.canonical, reading.chips, reading.slug) == ("tpu-v3-2x2", 4, "v3-8")
    assert any("8 TensorCores on 4 chips" in note for note in reading.notes)


def test_v3_2048_is_refused_and_googles_reading_is_offered() -> None:
    error = refusal("v3-2048")

    assert suggestions(error) == ["tpu-v3-32x32"]
    assert "TensorCores" in str(error)


@pytest.mark.parametrize(
    ("name", "googles"), [("v5p-8", "tpu-v5p-2x2x1"), ("v4-16", "tpu-v4-2x2x2"), ("tpu7x-128", "tpu7x-4x4x4")]
)
def test_a_number_that_is_half_the_slice_at_google_says_so_and_names_that_slice(name: str, googles: str) -> None:
    (note,) = parse(name).notes

    assert f"write {googles}" in note
    assert f"{parse(name).chips} chips here" in note


@pytest.mark.parametrize(("name", "googles"), [("v5p-4", "v5p-8"), ("v3-16", "v3-32"), ("tpu7x-1", "tpu7x-2")])
def test_a_number_that_means_nothing_at_google_is_told_googles_name(name: str, googles: str) -> None:
    (note,) = parse(name).notes

    assert note.endswith(f"calls this slice {googles}")


@pytest.mark.parametrize("name", ["v5e-8", "v6e-8", "v5p-2x2x1", "v4-2x2x2", "v5p", "tpu7-8", "gpu-l4x4"])
def test_a_name_that_means_the_same_everywhere_has_no_note(name: str) -> None:
    assert parse(name).notes == ()


# O-R8: what an image is built for


@pytest.mark.parametrize(
    ("name", "kind"), [("cpu", "cpu"), ("gpu-l4x4:spot", "gpu"), ("8", "gpu"), ("64", "tpu"), ("tpu7x", "tpu")]
)
def test_the_kind_of_a_name_is_cpu_gpu_or_tpu(name: str, kind: str) -> None:
    assert parse(name).kind == kind


# Sweeps over the whole catalogue


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_canonical_name_reads_as_itself_without_a_note_on_its_meaning(name: str) -> None:
    reading = parse(name)

    assert reading.canonical == name
    assert reading.notes == ()


@pytest.mark.parametrize("name", EVERY_TPU)
def test_a_number_of_chips_and_its_topology_read_as_the_same_slice(name: str) -> None:
    reading = parse(name)
    short = TPUS[reading.family].short

    again = parse(f"{short}-{reading.chips}")

    assert again.canonical == name


@pytest.mark.parametrize("name", EVERY_NAME)
def test_spot_changes_nothing_about_the_hardware(name: str) -> None:
    reading = parse(f"{name}:spot")

    assert reading.canonical == name
    assert reading.spot == (name != "cpu")


# Slugs


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("tpu-v5e-1", "v5e1"),
        ("tpu-v5litepod-1", "v5e1"),
        ("tpu-v5litepod-2x4", "v5e-2x4"),
        ("tpu", "v5e4"),
        ("tpu-v6e-8:spot", "v6e8"),
        ("tpu-v5p-16x16x24", "v5p-16x16x24"),
        ("v4-128", "v4-128"),
        ("tpu7x-8", "tpu7x8"),
        ("tpu7-4", "tpu7-4"),
        ("v5e-device-2x4", "v5e-device-2x4"),
        ("cpu", "cpu"),
        ("cpu:4", "cpu"),
        ("gpu-l4", "l4"),
        ("l4x4", "l4x4"),
        ("gpu-a100-80gbx8", "a100-80gbx8"),
        ("8", "h100x8"),
    ],
)
def test_a_slug_is_the_word_a_job_id_begins_with(name: str, word: str) -> None:
    assert slug(name) == word


@pytest.mark.parametrize("name", [*EVERY_NAME, "tpu7x-8x12x96", "tpu7x-9216", "v5e-device-8", "rtx-pro-6000x8"])
def test_a_slug_is_dns_safe_short_and_says_the_size_in_full(name: str) -> None:
    word = slug(name)

    assert re.fullmatch(r"[a-z][a-z0-9-]{0,14}[a-z0-9]", word)
    assert not word.endswith("-")
    assert parse(name).kind != "gpu" or word == parse(name).canonical.removeprefix("gpu-")


def test_slugs_of_different_hardware_differ() -> None:
    words = [slug(name) for name in EVERY_NAME]

    assert len(words) == len(set(words))


def test_a_slug_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(OptionError):
        slug("banana")


def test_reading_a_good_name_loads_no_library_for_bad_ones() -> None:
    program = (
        "import sys; before = set(sys.modules); from kinetic._hardware import place; place('tpu-v5p-8'); "
        "print('difflib' in set(sys.modules) - before)"
    )

    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "False"
