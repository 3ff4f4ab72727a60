"""Data sets of Hugging Face in the job: loaded by their library, which meets nothing of the project."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from kinetic._runner.data import hugging_face, provision, transfer
from kinetic._runner.data.mounted_data import JobFolders
from kinetic._wire.order import DataRef
from kinetic.errors import DataError, DataMissingError, RunnerError

pytestmark = pytest.mark.timeout(180)  # the library alone takes seconds to import, and half a minute on a busy machine

COMMIT = "0123456789abcdef" * 2 + "01234567"

# A library like the real one, as far as we use it; a hub is not reachable here.
LIBRARY = """
import json, os
from pathlib import Path

def load_dataset(path, name=None, **options):
    calls = Path(__file__).with_name("calls")
    calls.write_text(calls.read_text() + json.dumps([path, name, sorted(options.items())]) + "\\n")
    return Loaded()

class Loaded:
    def save_to_disk(self, target):
        os.makedirs(target + "/train")
        Path(target, "state.json").write_text("{}")
        Path(target, "train", "data.arrow").write_bytes(b"rows")
"""


def ref(uri, **more):
    return DataRef("hf", uri, uri, "set", is_dir=True, **more)


def provide(top, *refs, job="one", **more):
    here = {"folder": top / job / "data-0-0", "cache": top / "cache", "environ": {}, **more}
    return provision.provide(refs, JobFolders(**here))


@pytest.fixture
def rows(tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in range(10)))
    (folder / "test.jsonl").write_text(json.dumps({"number": 100}) + "\n")
    return folder


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Return a function that lists the calls of a library which stands in for the real one."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "datasets.py").write_text(LIBRARY)
    (tmp_path / "library" / "calls").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "library"))
    return lambda: [json.loads(line) for line in (tmp_path / "library" / "calls").read_text().splitlines()]


def test_a_split_of_a_data_set_arrives_saved(tmp_path, rows):
    datasets = pytest.importorskip("datasets")

    (path,) = provide(tmp_path, ref(f"hf://{rows}?split=train"))

    loaded = datasets.load_from_disk(path)
    assert [row["number"] for row in loaded] == list(range(10))
    assert os.listdir(tmp_path / "one" / "data-0-0" / "0") == ["set"]
    assert not list((tmp_path / "one" / "data-0-0").glob("hf-*"))


def test_a_split_that_does_not_exist_is_missing(tmp_path, rows):
    pytest.importorskip("datasets")

    with pytest.raises(DataMissingError, match="no data set") as caught:
        provide(tmp_path, ref(f"hf://{rows}?split=validation"))

    assert "validation" in caught.value.why


def test_a_folder_that_does_not_exist_is_missing(tmp_path):
    pytest.importorskip("datasets")

    with pytest.raises(DataMissingError, match="no data set"):
        provide(tmp_path, ref(f"hf://{tmp_path}/misspelt"))


def test_a_file_of_the_project_cannot_pass_for_the_library(tmp_path, library, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "datasets.py").write_text("raise SystemExit('this is the user\\'s own')")
    monkeypatch.syspath_prepend(str(tmp_path / "project"))

    (path,) = provide(tmp_path, ref("hf://owner/set"), workspace=tmp_path / "project")

    assert Path(path, "train", "data.arrow").read_bytes() == b"rows"
    assert "datasets" not in sys.modules or "library" not in str(sys.modules["datasets"].__file__)


def test_without_the_library_the_error_says_how_to_get_it(tmp_path, rows):
    installed = Path(sysconfig.get_path("purelib"))

    with pytest.raises(RunnerError, match="needs the library 'datasets'") as caught:
        provide(tmp_path, ref(f"hf://{rows}"), workspace=installed)  # what is below the workspace is not looked at

    assert caught.value.phase == "data download"
    assert 'pip install "kinetic-jobs[hf]"' in caught.value.next
    assert "dependency file" in caught.value.next


def test_what_the_library_raises_is_told(tmp_path, library):
    (tmp_path / "library" / "datasets.py").write_text(
        "def load_dataset(*_, **__):\n    raise OSError('the hub is away')"
    )

    with pytest.raises(DataError, match="could not be loaded") as caught:
        provide(tmp_path, ref("hf://owner/set"))

    assert caught.value.why == "OSError: the hub is away"


def test_all_of_an_address_reaches_the_library(tmp_path, library, capsys):
    uri = "hf://owner/set?split=train%5B%3A10%25%5D%2Btest&config_name=en&revision=main"

    provide(tmp_path, ref(uri, trust=True))

    ((path, name, given),) = library()
    cache = next(value for key, value in given if key == "cache_dir")
    assert (path, name) == ("owner/set", "en")
    assert [each for each in given if each[0] != "cache_dir"] == [
        ["revision", "main"],
        ["split", "train[:10%]+test"],
        ["trust_remote_code", True],
    ]
    assert not os.path.exists(cache)
    assert "WARNING" in capsys.readouterr().err


def test_a_data_set_that_takes_long_says_how_much_of_it_is_there(tmp_path, library, capsys, monkeypatch):
    monkeypatch.setattr(transfer, "_PAUSES", (0.0,))
    monkeypatch.setattr(hugging_face, "_LOOK_SECONDS", 0.02)
    slow = (
        LIBRARY
        + """
def load_dataset(path, name=None, cache_dir="", **_):
    import time
    os.makedirs(cache_dir)
    Path(cache_dir, "part").write_bytes(bytes(3_000_000))
    time.sleep(1)
    return Loaded()
"""
    )
    (tmp_path / "library" / "datasets.py").write_text(slow)

    provide(tmp_path, ref("hf://owner/set"))

    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith("kinetic: fetching hf://owner/set: 3.0 MB, ") for line in said)
    assert said[-1].startswith("kinetic: fetched hf://owner/set: 3.0 MB in ")


def test_nobody_is_trusted_unless_asked(tmp_path, library, capsys):
    provide(tmp_path, ref("hf://owner/set"))

    assert "trust_remote_code" not in dict(library()[0][2])
    assert capsys.readouterr().err == ""


def test_a_pinned_commit_is_loaded_once_for_this_machine_and_a_name_that_moves_each_time(tmp_path, library):
    for revision, calls in ((COMMIT, 1), ("main", 3)):
        for job in ("one", "two"):
            (path,) = provide(tmp_path, ref(f"hf://owner/set?revision={revision}"), job=f"{job}-{revision}")
            assert Path(path, "train", "data.arrow").read_bytes() == b"rows"
        assert len(library()) == calls


def test_a_pinned_commit_that_was_harmed_on_this_machine_is_loaded_again(tmp_path, library, capsys):
    provide(tmp_path, ref(f"hf://owner/set?revision={COMMIT}"))
    for path in (tmp_path / "cache" / "files").rglob("*"):
        if path.is_file() and path.read_bytes() == b"rows":
            path.chmod(0o600)
            path.write_bytes(b"ROWS")

    (path,) = provide(tmp_path, ref(f"hf://owner/set?revision={COMMIT}"), job="two")

    assert Path(path, "train", "data.arrow").read_bytes() == b"rows"
    assert len(library()) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "last"), [(0, "kinetic: fetched hf://acme/set"), (1, "kinetic: fetching hf://acme/set")]
)
def test_a_data_set_that_could_not_be_loaded_is_not_called_fetched(tmp_path, capsys, code, last):
    now = [0.0]
    fetching = transfer.Transfer("hf://acme/set", clock=lambda: now[0])
    now[0] = 6.0
    fetching.received(1_000_000)

    ended = hugging_face._run([sys.executable, "-c", f"exit({code})"], tmp_path, {}, fetching)

    assert ended == code
    assert capsys.readouterr().err.splitlines()[-1].startswith(last)
