"""The launch page of a pod, and what the container's surroundings add to it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic._runner.pod import container
from kinetic._runner.pod.container import HostInPod
from kinetic._wire.task import PodSettings, Task
from kinetic.errors import IntegrityError, RunnerError

SETTINGS = PodSettings(secret="/nonexistent")
PAGE = Task("job", "ab" * 32, "gs://jobs", "key-1", 0o022, None, {}, pod=SETTINGS)


def test_a_page_arrives_as_it_was_sent() -> None:
    page = replace(PAGE, child={"job_id": "job", "data": []}, placed=[{"path": "/ü ☃"}], deadline=1.5, hosts=4)

    assert Task.from_page(page.to_argument()) == page


def test_kubernetes_finds_nothing_to_replace_in_a_page() -> None:
    page = replace(PAGE, function="$(HOME) $$(HOME) $HOME")

    word = page.to_argument()

    assert "$" not in word
    assert Task.from_page(word) == page


def test_a_page_of_a_later_version_is_refused() -> None:
    word = json.dumps({**json.loads(PAGE.to_argument()), "schema": 99})

    with pytest.raises(IntegrityError, match="another version"):
        Task.from_page(word)


def test_fields_that_this_version_does_not_know_are_passed_over() -> None:
    word = json.dumps({**json.loads(PAGE.to_argument()), "new": 1})

    assert Task.from_page(word) == PAGE


@pytest.mark.parametrize(
    ("hosts", "environ", "host"),
    [
        (1, {"JOB_COMPLETION_INDEX": "3"}, 0),
        (4, {"JOB_COMPLETION_INDEX": "3"}, 3),
        (4, {"JOB_COMPLETION_INDEX": "", "LWS_WORKER_INDEX": "2"}, 2),
        (4, {"LWS_WORKER_INDEX": "x", "TPU_WORKER_ID": "1"}, 1),
    ],
)
def test_which_host_this_is(hosts: int, environ: dict[str, str], host: int) -> None:
    assert container.host_of(hosts, environ) == host


def test_the_hosts_of_several_slices_are_counted_on() -> None:
    pods = [{"JOB_COMPLETION_INDEX": f"{host}", "JOBSET_JOB_INDEX": f"{of}"} for of in range(2) for host in range(3)]

    assert [container.host_of(6, pod, slices=2) for pod in pods] == [0, 1, 2, 3, 4, 5]
    for wrong in ({"JOB_COMPLETION_INDEX": "3", "JOBSET_JOB_INDEX": "0"}, {"JOB_COMPLETION_INDEX": "1"}):
        with pytest.raises(RunnerError, match="which of 6 hosts"):
            container.host_of(6, wrong, slices=2)


@pytest.mark.parametrize("environ", [{}, {"JOB_COMPLETION_INDEX": "4"}, {"TPU_WORKER_ID": "-1"}])
def test_a_host_that_nothing_names_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(RunnerError, match="which of 4 hosts"):
        container.host_of(4, environ)


def test_what_was_captured_wins_over_the_image_and_never_over_what_is_ours(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"A": "captured", "KINETIC_JOB_ID": "forged"}')
    page = replace(PAGE, pod=replace(SETTINGS, secret=str(tmp_path)))
    place = HostInPod(0, 0, tmp_path, "/runner")

    found = container.task_of(page, place, 2, {"A": "image", "B": "image"}).environment

    assert (found["A"], found["B"]) == ("captured", "image")
    assert (found["KINETIC_JOB_ID"], found["KINETIC_ATTEMPT"]) == ("job", "2")


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_captured_values_that_cannot_be_read_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "environment.json").write_text(text)

    with pytest.raises(RunnerError, match="captured variables"):
        container.captured(replace(SETTINGS, secret=str(tmp_path)))


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 33])
def test_a_key_of_another_length_is_invalid(tmp_path: Path, key: bytes) -> None:
    (tmp_path / "job-key").write_bytes(key)

    with pytest.raises(RunnerError, match="is invalid"):
        container.key_of(replace(SETTINGS, secret=str(tmp_path)))


def test_of_the_keys_of_a_batch_a_child_reads_its_own(tmp_path: Path) -> None:
    (tmp_path / "job-key").write_bytes(b"a" * 32 + b"b" * 32)

    assert container.key_of(replace(SETTINGS, secret=str(tmp_path), key_offset=32)) == b"b" * 32
    with pytest.raises(RunnerError, match="is invalid"):
        container.key_of(replace(SETTINGS, secret=str(tmp_path), key_offset=64))


def test_the_values_of_a_job_are_not_in_the_text_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "environment.json").write_text('{"TOKEN": "secret 1"}')
    page = replace(PAGE, pod=replace(SETTINGS, secret=str(tmp_path)))
    place = HostInPod(0, 0, tmp_path, "/runner")

    task = container.task_of(page, place, 0, {})

    assert task.environment["TOKEN"] == "secret 1"
    assert "secret 1" not in repr(task)
