"""Opening a result on the command line, where the modules of its project may be missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
