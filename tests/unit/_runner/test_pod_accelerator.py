"""Whether a driver that hangs is told, and what on the PCI bus is taken for a TPU."""

from __future__ import annotations

import pytest

from kinetic._runner.pod import container
from kinetic.errors import RunnerError


def test_a_driver_that_does_not_answer_is_told(monkeypatch, capsys):
    monkeypatch.setattr(container, "_CUDA", "import time; time.sleep(60)")
    monkeypatch.setattr(container, "_DRIVER_SECONDS", 0.2)

    with pytest.raises(RunnerError, match="the GPU of this pod did not come up") as caught:
        container.check_accelerator("gpu", 1, required=True)

    assert caught.value.why == "its driver does not answer within 0.2 s"
    assert "require_accelerator = false" in caught.value.next
    assert capsys.readouterr().err.startswith("kinetic: the GPU of this pod did not come up: ")


@pytest.mark.parametrize(
    ("vendor", "kind", "is_one"),
    [
        ("0x1ae0", "0x120000", True),
        ("0x1ae0", "0x088000", True),
        ("0x1ae0", "0x020000", False),  # Google's network card
        ("0x1ae0", "0x010802", False),  # Google's disk
        ("0x10de", "0x120000", False),
    ],
)
def test_an_accelerator_of_googles_on_the_bus_is_a_tpu(tmp_path, vendor, kind, is_one):
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "class").write_text(f"{kind}\n")

    assert container._is_a_tpu(str(tmp_path)) is is_one


def test_what_cannot_be_read_is_no_tpu(tmp_path):
    assert not container._is_a_tpu(str(tmp_path / "none"))


@pytest.mark.parametrize("kind", ["cpu", ""])
def test_a_pod_without_chips_is_not_looked_at(kind, capsys):
    container.check_accelerator(kind, 0, required=True)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("set_by_user", "after"), [("cuda,cpu", "cpu"), ("", ""), ("rocm", "rocm")])
def test_only_our_own_platforms_are_taken_back(set_by_user, after, monkeypatch):
    monkeypatch.setattr(container, "_gpus", lambda _: "gone")
    monkeypatch.setenv("JAX_PLATFORMS", set_by_user)

    container.check_accelerator("gpu", 1, required=False)

    assert container.os.environ["JAX_PLATFORMS"] == after
