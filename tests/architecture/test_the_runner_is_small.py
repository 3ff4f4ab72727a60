"""What travels into every job loads only its own floor and the words below it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# With the package itself, which is loaded with any of its parts.
ALLOWED = ("kinetic._runner", "kinetic._wire", "kinetic._stores", "kinetic.errors", "kinetic.job_status")
ALLOWED_ALONE = {"kinetic", "kinetic._version", "kinetic._blobs", "kinetic._blobs.fetch"}

RUNNER = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in (SOURCE / "kinetic" / "_runner").rglob("*.py")
)


def is_allowed(module: str) -> bool:
    return module in ALLOWED_ALONE or any(module == room or module.startswith(room + ".") for room in ALLOWED)


@pytest.mark.parametrize("module", RUNNER)
def test_a_module_of_the_runner_loads_no_other_room_and_no_third_party(
    module: str, loaded_by: Callable[[str], set[str]]
) -> None:
    loaded = loaded_by(f"import {module}")

    ours = {each for each in loaded if each.partition(".")[0] == "kinetic"}
    packages = {each.partition(".")[0] for each in loaded}
    assert {each for each in ours if not is_allowed(each)} == set()
    assert packages - sys.stdlib_module_names - {"kinetic"} == set()
