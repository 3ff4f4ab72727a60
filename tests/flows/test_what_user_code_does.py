"""Whatever user code does to its own process, its caller gets the right value or a true error.

The table is in user_code/what_user_code_does.py. All of its rows run in one home, submitted by one process: a row costs
the time of one warm job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Project, end_supervisors

SOURCE = Path(__file__).parent / "user_code" / "what_user_code_does.py"

CLIENT = """
    import json
    import os
    import kinetic
    from what_user_code_does import TABLE

    def shown(value):
        if isinstance(value, dict) and "files" in value:
            return {"only theirs": all(open(name, "rb").read() == b"theirs" for name in value["files"])}
        if isinstance(value, bytes):
            return f"bytes: {len(value)}"
        try:
            return json.loads(json.dumps(value))
        except ValueError:
            return repr(value)

    def text_of(error):
        try:
            said = str(error)
        except BaseException:
            said = ""
        notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
        return "\\n".join([said[:5000], *notes])

    def told(result):
        if isinstance(result, BaseException):
            return {"error": type(result).__name__, "code": getattr(result, "code", ""), "text": text_of(result)}
        return {"value": shown(result)}

    @kinetic.run(accelerator="cpu", capture_env_vars=["THEIR_FOLDER"])
    def act(name):
        return TABLE[name].function()

    if __name__ == "__main__":
        bounded = {name: row.deadline for name, row in TABLE.items() if row.deadline}
        others = [name for name in TABLE if name not in bounded]
        jobs = {name: act.with_options(deadline=seconds).run_async(name) for name, seconds in bounded.items()}
        batch = act.run_async_map(others, input_mode="single")  # one submission, a tenth of the time
        for name, result in zip(others, batch.results(timeout=200, return_exceptions=True)):
            print(json.dumps({"row": name, **told(result)}), flush=True)
        for name, job in jobs.items():
            try:
                result = job.result(timeout=60)
            except Exception as error:
                result = error
            print(json.dumps({"row": name, **told(result)}), flush=True)
"""


def _table() -> dict[str, Any]:
    import importlib.util

    spec = importlib.util.spec_from_file_location("what_user_code_does", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.TABLE)


TABLE = _table()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Run the whole table once, and return what the caller of each row got."""
    folder = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith("KINETIC_") or name == "GOOGLE_CLOUD_PROJECT":
                patch.delenv(name)
        patch.setenv("KINETIC_HOME", str(folder / "home"))
        patch.setenv("KINETIC_LOCAL_SLOTS", "4")  # most rows wait for something
        patch.setenv("THEIR_FOLDER", str(folder / "theirs"))
        (folder / "theirs").mkdir()
        project = Project(folder / "project")
        project.write("what_user_code_does.py", SOURCE.read_text())
        project.write("client.py", CLIENT)
        done = project.run("client.py", timeout=240)
        yield {page.pop("row"): page for page in map(json.loads, done.stdout.splitlines())}
        end_supervisors(folder / "home")
    assert done.returncode == 0, done.stderr
    for path in (folder / "theirs").rglob("*"):
        assert path.is_dir() or path.read_bytes() == b"theirs", f"something of ours was written into {path}"


@pytest.mark.timeout(300)  # the first one runs the whole table
@pytest.mark.parametrize("name", TABLE)
def test_user_code_gets_the_right_value_or_a_true_error(found: dict[str, Any], name: str) -> None:
    row, got = TABLE[name], found.get(name, "the caller never came to this row")

    if row.error:
        assert got.get("error") == row.error, got
        assert row.code in {"", got["code"]}, got
        for words in row.words:
            assert words in got["text"], got
    else:
        assert got == {"value": row.value}, got
