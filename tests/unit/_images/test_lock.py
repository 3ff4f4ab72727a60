"""Locks by the real uv, against an index of this test."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from servers.wheels import Index, made_wheel

from kinetic._images import lock
from kinetic._images.lock import Lock, Platform
from kinetic.errors import ImageBuildError

PYTHON = ".".join(platform.python_version_tuple()[:2])
HERE = Platform(PYTHON, "x86_64", "2_36")
ANY = "py3-none-any"


@pytest.fixture
def publish(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a wheel into the index that uv asks."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_INDEX_URL", raising=False)

    def make(name: str, version: str, tag: str = ANY, needs: str = "") -> None:
        index(made_wheel(tmp_path / "index", name, version, {f"{name}.py": ""}, tag=tag, needs=needs))

    return make


def resolved(*lines: str, where: Platform = HERE, **more: str) -> Lock:
    return lock.resolve(lines, where, lambda _: None, **more)


def versions(found: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in found.wheels}


def test_a_lock_has_one_wheel_with_its_hash_for_each_package(publish, index) -> None:
    publish("alpha", "1.0", needs="beta>=2")
    publish("beta", "1.0")
    publish("beta", "2.1")

    found = resolved("alpha")

    assert versions(found) == {"alpha": "1.0", "beta": "2.1"}
    assert all(len(wheel.sha256) == 64 and wheel.url.startswith("http://127.0.0.1") for wheel in found.wheels)
    assert lock.read(HERE, found.text) == found


def test_a_wheel_for_a_newer_glibc_than_the_base_has_is_not_taken(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    publish("alpha", "2.0", tag="py3-none-manylinux_2_31_x86_64")
    publish("alpha", "3.0", tag="py3-none-manylinux_2_39_x86_64")

    assert versions(resolved("alpha")) == {"alpha": "2.0"}
    assert versions(resolved("alpha", where=Platform(PYTHON, "x86_64", "2_40"))) == {"alpha": "3.0"}


def test_a_lock_for_arm_takes_wheels_for_arm(publish) -> None:
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    publish("alpha", "1.0", tag="py3-none-manylinux_2_28_aarch64")

    [wheel] = resolved("alpha", where=Platform(PYTHON, "aarch64", "2_36")).wheels

    assert wheel.filename.endswith("aarch64.whl")


def test_a_change_of_one_line_keeps_the_versions_of_all_others(publish) -> None:
    publish("alpha", "1.0")
    publish("beta", "1.0")
    before = resolved("alpha")
    publish("alpha", "2.0")

    assert versions(resolved("alpha", "beta", before=before.text)) == {"alpha": "1.0", "beta": "1.0"}
    assert versions(resolved("alpha", "beta")) == {"alpha": "2.0", "beta": "1.0"}


def test_lines_without_a_solution_are_named(publish) -> None:
    publish("alpha", "1.0")

    with pytest.raises(ImageBuildError, match="have no solution") as caught:
        resolved("alpha==7")

    assert "alpha==7" in str(caught.value)


def test_a_lock_with_a_login_in_an_address_is_refused(publish, index) -> None:
    publish("alpha", "1.0")
    text = resolved("alpha").text.replace("http://127.0.0.1", "http://ann:secret@127.0.0.1")

    with pytest.raises(ImageBuildError, match="would contain the login of 127") as caught:
        lock.read(HERE, text)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "packages = 3", "[[packages]]\nname = 'a'\nwheels = [{}]\n", "}"])
def test_a_damaged_lock_is_an_error_with_a_way_out(text: str) -> None:
    with pytest.raises(ImageBuildError, match="is damaged"):
        lock.read(HERE, text)


def test_the_key_of_a_lock_changes_with_what_changes_its_result_and_has_no_secret() -> None:
    keys = {
        lock.key_of(lines, where, environ)
        for lines in (["a"], ["b"])
        for where in (HERE, Platform(PYTHON, "aarch64", "2_36"), Platform("3.99", "x86_64", "2_36"))
        for environ in ({}, {"UV_INDEX": "https://ann:secret@index"})
    }

    assert len(keys) == 12
    assert lock.key_of(["a  b"], HERE, {"UNRELATED": "1"}) == lock.key_of(["a b"], HERE, {})
