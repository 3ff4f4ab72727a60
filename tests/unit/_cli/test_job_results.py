"""Following a job to its end, and opening its result, where its log cannot be written or modules are missing."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kinetic.testing
from kinetic._cli import job_results
from kinetic._jobs import locate, results
from kinetic.errors import ResultUnreadableError


@pytest.mark.parametrize(
    ("cause", "is_advised"),
    [(ModuleNotFoundError("No module named 'lib'"), True), (AttributeError("its copy needs Python 3.11.7"), False)],
)
def test_only_a_missing_module_is_looked_for_in_the_folder_of_the_project(monkeypatch, cause, is_advised) -> None:
    def fail(*_: object) -> Any:
        raise ResultUnreadableError("it cannot be opened here", next="collect it with Python 3.11.7") from cause

    monkeypatch.setattr(results, "value_of", fail)
    monkeypatch.setattr(locate, "store_of", lambda _: None)
    handle: Any = SimpleNamespace(job_id="cpu-f", func_name="f")

    with pytest.raises(ResultUnreadableError) as caught:
        job_results.load_value(handle, None)

    assert ("PYTHONPATH=. python -m kinetic jobs result cpu-f" in caught.value.next) == is_advised
    assert ("Python 3.11.7" in caught.value.next) != is_advised


class Full(io.StringIO):
    """A stream to a disk that is full."""

    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@kinetic.run(accelerator="cpu")
def speak() -> None:
    print("spoken")


def test_a_job_that_has_ended_is_not_said_to_keep_running_where_its_log_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kinetic.testing.fake_backend(tmp_path):
        job = speak.run_async()
        capsys.readouterr()

        with pytest.raises(OSError, match="No space left"):
            job_results.follow_to_end(job, Full())

        assert job.status() is kinetic.JobStatus.SUCCEEDED
        assert capsys.readouterr().err.splitlines() == [
            f"kinetic: {job.job_id} has ended; its log: kinetic jobs logs {job.job_id}"
        ]
