"""``kinetic cost``, and the dollars of jobs in ``kinetic jobs list`` and ``kinetic jobs show``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator

import pytest
from servers.google_cloud import GoogleCloud

from kinetic._jobs import status as job_status


@pytest.fixture
def cloud(home, monkeypatch, tmp_path) -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        for name, value in cloud.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        yield cloud
    assert cloud.wrong == []


def test_prices_are_googles_with_their_date_and_what_they_do_not_include(kinetic, cloud) -> None:
    result = kinetic("cost", "l4", "v5litepod-4", "--region", "us-central1")

    assert result.exit_code == 0, result.stderr
    first, second = result.stdout.splitlines()[1:]
    assert "0.67" in first
    assert "Google's price list, 20" in first
    assert "4.80" in second  # not in the list of that region
    assert "a table of 2026-11" in second
    assert "not included: disks" in result.stderr
    assert cloud.writes == []


def test_they_are_kept_for_a_day(kinetic, cloud) -> None:
    first = kinetic("cost", "v6e-8", "--json")
    cloud.forget()

    second = kinetic("cost", "v6e-8", "--json")

    assert second.stdout == first.stdout
    assert cloud.calls == []
    (page,) = json.loads(second.stdout)["prices"]
    assert (page["dollars_per_hour"], page["live"]) == (20.0, True)
    table = kinetic("cost", "v6e-8", "l4", "--csv")
    first, unknown = csv.DictReader(io.StringIO(table.stdout))
    assert first == {
        name: str(value).lower() if value is True or value is False else str(value) for name, value in page.items()
    }
    assert (unknown["accelerator"], unknown["spot_wanted"]) == ("gpu-l4", "false")
    assert "not included: disks" in table.stderr
    both = kinetic("cost", "v6e-8", "--csv", "--json")
    assert (both.exit_code, both.stdout) == (2, "")


def test_spot_has_its_own_price_or_is_below_that_of_the_table(kinetic, cloud) -> None:
    result = kinetic("cost", "v5litepod-4", "a100", "--spot")

    first, second = result.stdout.splitlines()[1:]
    assert "1.60" in first
    assert "us-west4" in first
    assert "< 3.67" in second
    assert "Spot is cheaper" in second


@pytest.mark.parametrize("problem", ["no login", "its API is off", "it does not answer"])
def test_without_googles_list_the_table_answers_and_says_why(problem, kinetic, home, monkeypatch, request) -> None:
    if problem != "no login":
        cloud = request.getfixturevalue("cloud")
        if problem == "its API is off":
            cloud.enabled -= {"cloudbilling.googleapis.com"}
        else:
            monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBILLING", "http://127.0.0.1:9")
    else:
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(home))
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)

    result = kinetic("cost", "l4")

    assert result.exit_code == 0
    assert "0.76" in result.stdout
    assert "Google's price list was not read" in result.stderr


def test_a_price_that_is_not_known_is_said_and_exits_with_1(kinetic, cloud) -> None:
    result = kinetic("cost", "b200")

    assert result.exit_code == 1
    assert "not known" in result.stdout
    assert "not known: gpu-b200" in result.stderr


@pytest.mark.parametrize("words", [(), ("cpu",), ("gpu-l5",)])
def test_what_has_no_price_is_a_usage_error(words, kinetic, cloud) -> None:
    result = kinetic("cost", *words)

    assert result.exit_code == 2
    assert "next:" in result.stderr
    assert cloud.calls == []


def test_a_list_of_jobs_shows_what_they_cost(kinetic, made_job) -> None:
    made_job(backend="gke", accelerator="tpu-v5litepod-16x16", zone="us-west4-a")  # of two seconds
    made_job()

    shown = kinetic("jobs", "list", "--cost")
    plain = kinetic("jobs", "list", "--json")
    asked = json.loads(kinetic("jobs", "list", "--cost", "--json").stdout)["jobs"]

    assert shown.stdout.splitlines()[0].endswith("COST")
    assert "$0.17" in shown.stdout  # 256 chips at $1.20 per hour
    assert "dollars" not in json.loads(plain.stdout)["jobs"][0]
    assert sorted(each["dollars"] is None for each in asked) == [False, True]


def test_one_job_shows_what_it_cost(kinetic, made_job, monkeypatch) -> None:
    monkeypatch.setattr(job_status, "details_of", lambda *_: {"lock": None})  # asks the cluster for the log
    job_id = made_job(backend="gke", accelerator="tpu-v5litepod-16x16", zone="us-west4-a")

    page = json.loads(kinetic("jobs", "show", job_id, "--json").stdout)["job"]

    assert page["dollars"] == pytest.approx(256 * 1.20 * 2 / 3600)
    assert "$0.17" in kinetic("jobs", "show", job_id).stdout
