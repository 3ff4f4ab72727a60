"""What slice this machine emulates, what it refuses, and what it says about it."""

from __future__ import annotations

import pytest

from kinetic._backends.local import limits
from kinetic._hardware import place
from kinetic.errors import CapacityError, OptionError


@pytest.mark.parametrize("name", ["cpu", "gpu-l4", "tpu-v5e-1", "tpu-v5e-8", "tpu-v5litepod-16"])
def test_up_to_eight_hosts_are_emulated(name) -> None:
    limits.check(place(name), {}, (), strict=False)


def test_more_hosts_than_the_limit_are_refused_with_the_way_to_raise_it() -> None:
    with pytest.raises(CapacityError, match="spans 16 hosts, and this machine emulates at most 8") as refused:
        limits.check(place("tpu-v5litepod-64"), {}, (), strict=False)

    assert "KINETIC_LOCAL_MAX_HOSTS=16" in refused.value.next


def test_the_limit_can_be_lowered() -> None:
    with pytest.raises(CapacityError, match="at most 3"):
        limits.check(place("tpu-v5litepod-16"), {"KINETIC_LOCAL_MAX_HOSTS": "3"}, (), strict=False)


def test_more_hosts_than_the_free_memory_carries_are_refused_whatever_the_limit() -> None:
    huge = place("tpu-v4-16x16x16")  # 1024 hosts, 400 GiB

    with pytest.raises(CapacityError, match="not enough free memory for them") as refused:
        limits.check(huge, {"KINETIC_LOCAL_MAX_HOSTS": "2000"}, (), strict=False)

    assert "GiB are free" in refused.value.why


@pytest.mark.parametrize("setting", ["0", "-1", "many", "2.5", "9" * 20, "²"])
def test_a_limit_that_is_no_number_of_hosts_is_refused(setting) -> None:
    with pytest.raises(OptionError, match="is not a number of hosts"):
        limits.check(place("cpu"), {"KINETIC_LOCAL_MAX_HOSTS": setting}, (), strict=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tpu-v5e-1", "1 virtual CPU device for JAX"),
        ("tpu-v5e-8", "8 virtual CPU devices for JAX"),
        ("tpu-v5litepod-16", "4 processes with 4 virtual CPU devices each, joined by jax.distributed"),
    ],
)
def test_what_stands_for_the_hardware_is_said(name, words) -> None:
    assert limits.check(place(name), {}, (), strict=False)[0].endswith(words)
