"""What leads from one environment to another: which packages, with which hashes, and what is refused and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from servers.image_fixtures import index
from servers.wheels import Index, made_wheel, wheel_of

from kinetic._images import lock_difference, wheels
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.lock_store import Locked
from kinetic._stores.files import FileStore
from kinetic.errors import ImageBuildError

__all__ = ["index"]
PLATFORM = Platform("3.12", "x86_64", "2_36")


def wheel(name: str, version: str = "1", size: int = 10) -> Wheel:
    return Wheel(
        name, version, f"{name}-{version}-py3-none-any.whl", f"{name}{version}".ljust(64, "0"), size, "file:///"
    )


def locked(*wheels: Wheel, **more: Any) -> Locked:
    return Locked(
        Lock(PLATFORM, tuple(sorted(wheels)), (), "").__class__(**{**vars(Lock(PLATFORM, wheels, (), "")), **more})
    )


def test_a_difference_names_what_is_added_replaced_and_removed() -> None:
    before, after = locked(wheel("a"), wheel("b"), wheel("c")), locked(wheel("a"), wheel("b", "2"), wheel("d"))

    found = lock_difference.between(before, after, "tpu")

    assert [each.filename for each in found.wheels] == ["b-2-py3-none-any.whl", "d-1-py3-none-any.whl"]
    assert found.hidden == ("b", "c")
    assert found.text == "b 2 (was 1), d 1, without c"


def test_a_lock_that_the_environment_satisfies_needs_no_wheel(tmp_path: Path) -> None:
    after = locked(wheel("a"))
    found = lock_difference.between(locked(wheel("a"), wheel("b")), after, "cpu")

    page = lock_difference.requirements_of(found, after.lock, None, FileStore(tmp_path), {})

    assert page == {"layers": None, "hidden": ["b"], "text": "without b", "below": None}


@pytest.mark.parametrize(
    ("before", "after", "kind", "why"),
    [
        (locked(), locked(platform=replace(PLATFORM, python="3.13")), "cpu", "another base image or Python"),
        (locked(wheel("jaxlib")), locked(wheel("jaxlib", "2")), "tpu", "jaxlib, which drives the accelerator"),
        (locked(wheel("nvidia-nccl-cu12")), locked(), "gpu", "nvidia-nccl-cu12, which drives"),
        (locked(wheel("obstore")), locked(wheel("obstore", "2")), "cpu", "obstore is loaded there"),
        (locked(), locked(*(wheel(f"p{at}") for at in range(26))), "cpu", "26 packages are different"),
        (locked(), locked(wheel("large", size=200 << 20)), "cpu", "200 MiB"),
        (locked(), locked(to_build=("ours",)), "cpu", "ours is built from source"),
    ],
)
def test_what_cannot_be_a_difference_is_refused_with_its_reason(
    before: Locked, after: Locked, kind: str, why: str
) -> None:
    with pytest.raises(ImageBuildError) as raised:
        lock_difference.between(before, after, kind)

    assert why in raised.value.why


def test_a_wheel_that_is_not_the_one_of_the_lock_is_not_sent(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels.WheelCache, "_wait", lambda *_: None)  # it is asked for again
    file = made_wheel(tmp_path / "index", "alpha", "2.0", {"alpha.py": "VERSION = 'two'\n"})
    after = locked(replace(wheel_of(file), url=index(file)))
    made_wheel(tmp_path / "index", "alpha", "2.0", {"alpha.py": "VERSION = 'another'\n"})
    found = lock_difference.between(locked(), after, "cpu")

    with pytest.raises(ImageBuildError):
        lock_difference.requirements_of(
            found, after.lock, None, FileStore(tmp_path / "store"), {"KINETIC_HOME": str(tmp_path / "home")}
        )

    assert not [each for each in (tmp_path / "store").rglob("*") if each.is_file()]
