"""What jobs cost: a limit in dollars becomes a deadline, and a job that ran has an amount."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic._config import target as settings
from kinetic._hardware import place
from kinetic._hardware.prices import Rates
from kinetic._jobs import job_cost
from kinetic._jobs.job_options import Options
from kinetic.errors import OptionError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_PROJECT": "acme", "KINETIC_ZONE": "us-west4-a"}


def limited(root: Path, environ: dict[str, str], name: str, **given: object) -> Options:
    target = settings.resolve(environ=environ)
    return job_cost.limited(Options.checked(accelerator=name, **given), place(name), target, root, environ)


def project(root: Path, text: str) -> None:
    (root / "pyproject.toml").write_text(f"[tool.kinetic]\n{text}\n")


def test_a_limit_in_dollars_is_a_deadline(tmp_path, environ, capsys) -> None:
    project(tmp_path, "max_cost = 9.6")

    options = limited(tmp_path, environ, "v5litepod-4")

    assert options.deadline == pytest.approx(2 * 3600)  # at $4.80 per hour
    assert "max_cost of $9.6 is a deadline of 2 h 00 min" in capsys.readouterr().err


def test_the_deadline_that_is_shorter_holds(tmp_path, environ) -> None:
    environ["KINETIC_MAX_COST"] = "4.8"

    assert limited(tmp_path, environ, "v5litepod-4", deadline="10m").deadline == 600
    assert limited(tmp_path, environ, "v5litepod-4", deadline="2h").deadline == pytest.approx(3600)


def test_attempts_share_the_limit(tmp_path, environ) -> None:
    environ["KINETIC_MAX_COST"] = "4.8"

    assert limited(tmp_path, environ, "v5litepod-4", retries=3).deadline == pytest.approx(900)


def test_without_a_limit_and_on_this_machine_nothing_changes(tmp_path, environ) -> None:
    assert limited(tmp_path, environ, "v5litepod-4").deadline is None
    environ |= {"KINETIC_MAX_COST": "1", "KINETIC_BACKEND": "local"}

    assert limited(tmp_path, environ, "v5litepod-4").deadline is None


def test_a_limit_that_cannot_be_kept_refuses_the_job_unless_it_has_a_deadline(tmp_path, environ, capsys) -> None:
    project(tmp_path, "max_cost = 100")

    with pytest.raises(OptionError, match="the price of gpu-h100x8 is not known") as refused:
        limited(tmp_path, environ, "h100x8")

    assert refused.value.code == "price-unknown"
    assert "kinetic cost gpu-h100x8" in str(refused.value.next)
    assert limited(tmp_path, environ, "h100x8", deadline=60).deadline == 60
    assert "max_cost" in capsys.readouterr().err


def test_a_limit_for_seconds_is_refused(tmp_path, environ) -> None:
    environ["KINETIC_MAX_COST"] = "0.05"

    with pytest.raises(OptionError, match="is 38 s on tpu-v5litepod-2x2"):
        limited(tmp_path, environ, "v5litepod-4")


def test_a_cpu_job_is_not_limited_and_that_is_said(tmp_path, environ, capsys) -> None:
    environ["KINETIC_MAX_COST"] = "1"

    assert limited(tmp_path, environ, "cpu").deadline is None
    assert "does not limit CPU jobs" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["-1", "0", "much", "nan", "inf"])
def test_what_is_not_an_amount_is_refused(written, tmp_path, environ) -> None:
    environ["KINETIC_MAX_COST"] = written

    with pytest.raises(OptionError, match="not an amount in dollars"):
        limited(tmp_path, environ, "v5litepod-4")


RATES = Rates(0.0, {}, {"us-west4": {"v5litepod": (1.0, 0.5)}})
JOB = {"backend": "gke", "accelerator": "tpu-v5litepod-2x2", "duration_seconds": 1800.0}


@pytest.mark.parametrize(
    ("change", "zone", "spot", "dollars"),
    [
        ({}, "us-west4-a", False, 2.0),
        ({}, "us-west4-a", True, 1.0),
        ({}, "us-east1-a", False, 2.4),  # of the table
        ({"backend": "local"}, "us-west4-a", False, None),
        ({"accelerator": "cpu"}, "us-west4-a", False, None),
        ({"accelerator": "gpu-of-tomorrow"}, "us-west4-a", False, None),
        ({"duration_seconds": None}, "us-west4-a", False, None),
    ],
)
def test_a_job_costs_its_hardware_while_its_function_runs(change, zone, spot, dollars) -> None:
    assert job_cost.dollars_of(JOB | change, zone, RATES, spot=spot) == dollars


def test_an_amount_is_written_in_cents() -> None:
    assert [job_cost.dollars_text(each) for each in (None, 0.0, 0.004, 1.239)] == ["", "$0.00", "<$0.01", "$1.24"]
