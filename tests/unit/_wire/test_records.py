"""The manifest of a batch and the table of its inputs: sealed, verified, and small."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import pytest

from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, documents, keys
from kinetic._wire.input_table import Input, Inputs, Table
from kinetic._wire.order import Artifact, Child, DataRef, Order
from kinetic._wire.records import MANIFEST, SHARED, Group, Settings
from kinetic.errors import IntegrityError, OptionError

KEY, OTHER = b"k" * 32, b"o" * 32
GROUP = Group(
    group_id="grp-00000001",
    group_name="sweep",
    tags={"a": "b"},
    created=1_800_000_000.5,
    total_expected=3,
    submit_fn_name="train",
    slug="v5e1",
    handle={**dict.fromkeys(SHARED, ""), "backend": "local", "store": "file:///store"},
    more={"spot": False},
    settings=Settings(max_concurrent=None, retries=2, fail_fast=True, cancel_running_on_fail=True),
    order_sha256="0" * 64,
    table_sha256="1" * 64,
    outputs="file:///store/outputs",
    key_id="k1",
)
PACK = "_groups/grp-00000001/inputs/00000"
REF = DataRef("shipped", "file:///store", "./set", "set", is_dir=True, hash="ab", manifest="cd")
TABLE = Table(
    (
        Input("0.1", Artifact("a" * 64, 10, key=PACK, start=0)),
        Input("<lock>", error="TypeError: cannot"),
        Input("Data('./set')", Artifact("b" * 64, 20, key=PACK, start=10), data=(REF,)),
    )
)


def opened(data, key=KEY, at="_groups/grp-00000001/manifest.json"):
    store = MemoryStore("memory://manifests")
    store.put(at, data)
    return documents.open_page(MANIFEST, store, at, key)


def test_a_manifest_comes_back_as_it_went():
    assert opened(GROUP.to_bytes(KEY)) == replace(GROUP, created_at=keys.format_utc(GROUP.created))


def test_a_manifest_is_the_page_that_the_document_promises():
    page = json.loads(GROUP.to_bytes(KEY))

    promised = {"group_id", "group_kind", "group_name", "tags", "created_at", "total_expected", "submit_fn_name"}
    assert promised <= page.keys()
    assert (page["group_kind"], page["total_expected"], page["created_at"]) == ("map", 3, "2027-01-15T08:00:00Z")


@pytest.mark.parametrize("change", [{"total_expected": 4}, {"order_sha256": "2" * 64}, {"outputs": "gs://theirs"}])
def test_a_changed_manifest_is_refused_by_whoever_has_the_key(change):
    data = json.dumps({**json.loads(GROUP.to_bytes(KEY)), **change}).encode()

    with pytest.raises(IntegrityError, match="wrong seal"):
        opened(data)
    assert opened(data, None)  # for whoever said to trust the store


def test_a_manifest_under_another_key_or_id_or_cut_off_is_refused():
    data = GROUP.to_bytes(KEY)

    with pytest.raises(IntegrityError, match="wrong seal"):
        opened(data, OTHER)
    with pytest.raises(IntegrityError, match="wrong seal"):
        opened(data, at=keys.group_manifest("grp-00000002"))
    with pytest.raises(IntegrityError):
        opened(data[:-20])


def test_a_field_of_a_later_version_is_passed_over():
    page = json.loads(GROUP.to_bytes(KEY))

    assert opened(json.dumps({**page, "novelty": 1}).encode(), None).total_expected == 3


def test_a_table_comes_back_as_it_went_and_names_each_pack_once():
    from kinetic._wire import digests

    data = TABLE.to_bytes()

    assert Table.from_bytes(data, sha256=digests.of_bytes(data)) == TABLE
    assert data.count(PACK.encode()) == 1


def test_a_changed_table_is_not_used():
    with pytest.raises(IntegrityError, match="not what was submitted; nothing more of it was launched"):
        Table.from_bytes(TABLE.to_bytes(), sha256="0" * 64)


def test_a_row_of_a_plain_input_takes_little_room():
    rows = tuple(Input("0.1", Artifact("a" * 64, 10, key=PACK, start=n)) for n in range(10_000))

    assert len(Table(rows).to_bytes()) < 1_000_000


def test_rows_in_columns_are_the_inputs_that_were_added_and_may_be_replaced():
    plain = [Input(f"x={n} ü\ud800", Artifact(f"{n:064x}", n, key=f"pack/{n % 3}", start=1 << 40)) for n in range(7)]
    inputs = Inputs([*plain, *TABLE.inputs, Input("", Artifact.within(b"abc"))])

    inputs[1] = replace(inputs[1], data=(REF,))

    expected = [plain[0], replace(plain[1], data=(REF,)), *plain[2:], *TABLE.inputs]
    assert list(inputs) == [*expected, Input("", Artifact.within(b"abc"))]
    assert inputs == [*inputs]
    assert inputs != [*inputs][1:]
    assert inputs[-1].arguments == Artifact.within(b"abc")
    with pytest.raises(IndexError):
        inputs[len(inputs)]


def test_a_row_of_a_plain_input_takes_a_hundred_bytes_of_memory():
    text = Table([Input("0.1", Artifact("a" * 64, 10, key=PACK, start=n)) for n in range(10_000)]).to_bytes()
    tracemalloc.start()
    table = Table.from_bytes(text, sha256=digests.of_bytes(text))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert table.inputs[9_999].arguments.start == 9_999
    assert size < 1_000_000


def test_ids_of_children_are_derived_distinct_and_short_enough_for_a_pod():
    group = replace(GROUP, slug="tpu-v5litepod16x", submit_fn_name="a_function_with_a_very_long_name_indeed")
    found = {group.child_id(index, attempt) for index in range(2000) for attempt in range(3)}

    assert len(found) == 6000
    assert found == {group.child_id(index, attempt) for index in range(2000) for attempt in range(3)}
    assert max(map(len, found)) <= 63
    assert all(keys.check_job_id(name) for name in found)


@pytest.mark.parametrize("wrong", ["", "grp-", "grp-0000000", "grp-000000001", "GRP-00000001", "grp-0000000g", "job"])
def test_what_cannot_be_the_id_of_a_batch_is_refused(wrong):
    with pytest.raises(OptionError):
        keys.check_group_id(wrong)


def test_a_child_carries_what_its_launch_adds_to_the_order_that_all_share():
    order = Order(
        "grp-00000001", "train", Artifact.within(b"f"), Artifact.within(b""), data=(REF,), group="grp-00000001"
    )

    child = TABLE.child(GROUP, 2, 1)
    whole = order.of_child(Child.from_json(json.loads(json.dumps(child.to_json()))))

    assert whole.job_id == GROUP.child_id(2, 1)
    assert whole.arguments == TABLE.inputs[2].arguments
    assert whole.data == (REF, REF)
    assert whole.output_dir == "file:///store/outputs/grp-00000001/2"
    assert whole.key == order.key == keys.group_order("grp-00000001")
    assert whole.mark == "_groups/grp-00000001/marks/0000/0000002.1"
    assert order.mark == ""


def sealed_children(indexes, attempt, machine):
    return documents.sealed_name(keys.children_of("grp-00000001", indexes, attempt), machine, KEY)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (sealed_children(range(1234567, 1234568), 3, ""), (range(1234567, 1234568), 3, "")),
        (sealed_children(range(7, 8), 0, "host.example.org"), (range(7, 8), 0, "host.example.org")),
        (sealed_children(range(990, 1190), 0, "host.example.org"), (range(990, 1190), 0, "host.example.org")),
        (documents.sealed_name(keys.mark("grp-00000001", 7, 12), "succeeded", KEY), (range(7, 8), 12, "succeeded")),
        ("_groups/grp-00000001/marks/0000/0000007.12.succeeded", None),  # as nobody sealed it
        ("_groups/grp-00000001/marks/0000/1e9.0.succeeded.00", None),
        ("_groups/grp-00000001/children/0000/0000007-.0.here.00", None),
        ("_groups/grp-00000001/children/0000/0000007-x.0.here.00", None),
    ],
)
def test_the_key_of_children_or_of_a_mark_says_which_they_are(key, found):
    assert keys.parse_children(key) == found


def test_children_of_one_shard_lie_in_one_folder():
    folders = {keys.mark("g", index, 0).rpartition("/")[0] for index in range(3 * keys.SHARD)}

    assert folders == {"_groups/g/marks/0000", "_groups/g/marks/0001", "_groups/g/marks/0002"}
    assert keys.marks("g", 1) == "_groups/g/marks/0001/"
