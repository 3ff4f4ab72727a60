"""Data in a call: found while it is pickled, numbered, and refused where no path can take its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._data import ship
from kinetic._data.data import Data
from kinetic._jobs.data_refs import FoundData
from kinetic._project.pickler import Call, pack_call
from kinetic._project.root import Plan
from kinetic._stores.files import FileStore
from kinetic._wire import references
from kinetic.errors import OptionError

PLAN = Plan(Path(__file__).parent, "", "", ("",))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))


@pytest.fixture
def folders(tmp_path):
    made = []
    for number in range(3):
        folder = tmp_path / "sets" / str(number)
        folder.mkdir(parents=True)
        (folder / "part.txt").write_text(f"set {number}")
        made.append(Data(str(folder)))
    return made


def packed(found, *args):
    from kinetic._runner.worker import function_call

    store = FileStore(Path("/nowhere"))
    payload = pack_call(Call(len, args, {}, "len"), PLAN, store, ("f", "a"), swap=found)
    references.set_data_paths([f"/data/{number}" for number in range(10)])
    return function_call.open_payload(payload.function.unwrap("f"), payload.arguments.unwrap("a"))[1]


def test_data_is_numbered_as_pickling_comes_by_it_and_becomes_a_path(folders):
    found = FoundData()

    args = packed(found, [folders[1], {"deep": folders[0]}], folders[1])

    assert args == (["/data/0", {"deep": "/data/1"}], "/data/0")
    assert found.data == [folders[1], folders[0]]


def test_the_data_of_a_child_is_numbered_after_that_of_its_function(folders):
    found = FoundData(3)

    assert packed(found, folders[0], folders[2]) == ("/data/3", "/data/4")


def test_data_inside_an_object_of_the_users_own_class_is_found(folders):
    class Config:
        def __init__(self, data):
            self.data = data

    assert packed(FoundData(), Config(folders[0]))[0].data == "/data/0"


@pytest.mark.parametrize(
    ("wrap", "said"),
    [
        (lambda data: {data}, "a member of a set"),
        (lambda data: {data: 1}, "a key of a dict"),
        (lambda data: [{"deep": {(data, 1)}}], "a member of a set"),
    ],
    ids=["set", "key", "deep"],
)
def test_data_where_no_path_can_take_its_place_is_refused(folders, wrap, said):
    found = FoundData()
    value = wrap(folders[0])
    packed(found, value)

    with pytest.raises(OptionError, match=said) as raised:
        found.check((value,), {})

    assert raised.value.code == "data-position"


def test_data_that_was_not_pickled_is_not_looked_at(folders):
    FoundData().check(({folders[0]},), {})


def test_only_local_data_leaves_the_project(folders, tmp_path):
    found = FoundData()
    packed(found, folders[0], Data("gs://bucket/set/"))

    assert found.local_paths({"/mnt": folders[2]}) == [Path(folders[0].path), Path(folders[2].path)]


def test_arguments_come_before_volumes_in_the_order(folders, tmp_path):
    store = FileStore(tmp_path / "store")
    found = FoundData()
    packed(found, folders[1])

    refs = ship.ship_all(found.data, {"/mnt/set": folders[2]}, store, cache=tmp_path / "cache")

    assert [(ref.name, ref.mount) for ref in refs] == [("1", ""), ("2", "/mnt/set")]


def test_without_data_its_room_is_never_loaded():
    code = """
import sys
from kinetic._jobs.data_refs import FoundData
assert FoundData()(object()) is None
assert not [name for name in sys.modules if name.startswith("kinetic._data")]
"""

    subprocess.run([sys.executable, "-c", code], check=True)
