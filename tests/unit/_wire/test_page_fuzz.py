"""Every reader of a page, fed with what nobody wrote: only errors of ours come out, soon, whatever goes in.

The examples are the same on every machine and on every day (``derandomize``); a wider search is a matter of raising
``max_examples``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetic._batches import control
from kinetic._jobs import locate
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, inspection, keys, outcomes, records, task
from kinetic._wire.input_table import Input, Table
from kinetic._wire.order import Artifact, Child, DataRef, Manifest, ManifestFile, Order, Part, Predecessor
from kinetic._wire.records import MANIFEST, Group, Settings
from kinetic.errors import IntegrityError, KineticError

# On Python 3.14 an argument may have no reference besides its owner's, which hypothesis 6.170 takes for its only one.
pytestmark = pytest.mark.filterwarnings("ignore:It looks like .register_random. was passed an object")

JOB, GROUP, KEY = "cpu-f-1", "grp-00000001", b"k" * 32
steady = settings(
    derandomize=True,
    database=None,
    deadline=None,  # a machine under load is slow; what must be quick is timed in test_hostile_stores
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)

SHARED: dict[str, Any] = {**dict.fromkeys(records.SHARED, ""), "store": "memory://fuzz", "key_id": "k"}
HANDLE = {**dict.fromkeys(records.REQUIRED, ""), **SHARED, "job_id": JOB}
REF = DataRef("shipped", "gs://b/x", "./x", "x", is_dir=True)
WHOLE = Artifact("0" * 64, 1, key="a/b")
BATCH = Group(
    group_id=GROUP,
    group_name="n",
    tags={"a": "b"},
    created=1.0,
    total_expected=2,
    submit_fn_name="f",
    slug="cpu",
    handle=SHARED,
    more={"spot": False},
    settings=Settings(),
    order_sha256="0" * 64,
    table_sha256="0" * 64,
    outputs="/o",
    key_id="k",
)
ORDER = Order(JOB, "f", WHOLE, WHOLE, manifest=WHOLE, packs=("0" * 64,), data=(REF,))
CHILD = Child(JOB, 0, 0, WHOLE, (REF,))
FILE = ManifestFile("a/b", executable=False, size=3, digest="1" * 64, packed=True, parts=(Part("2" * 64, 0, 3),))
TREE = Manifest("0" * 64, is_dir=True, files=(FILE,), folders=("c",))
BLOBS = ("2" * 64,)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sealed(page: Any, purpose: str) -> bytes:
    """Write any JSON as if we had sealed it; what we could not write, half of a character, goes without a seal."""
    with contextlib.suppress(UnicodeEncodeError):
        page = documents.with_seal(page, KEY, purpose) if isinstance(page, dict) else page
    return json.dumps(page).encode()


def _opened(kind: documents.PageKind[Any], at: str) -> Callable[[Any], object]:
    def read(page: Any) -> object:
        store = MemoryStore("memory://fuzz")
        store.put(at, _sealed(page, documents.seal_purpose(kind.name, at)))
        return documents.open_page(kind, store, at, KEY)

    return read


def _bytes(read: Callable[[bytes], object]) -> Callable[[Any], object]:
    return lambda page: read(json.dumps(page).encode())


def _outcome(page: Any) -> object:
    text = _sealed(page, outcomes.PURPOSE)
    whole = text + len(text).to_bytes(8, "big") + outcomes.MAGIC
    return outcomes.read(len(whole), lambda start, length: whole[start : start + length], KEY)


def _page(value: Any) -> dict[str, Any]:
    return {"schema": documents.SCHEMA, **dataclasses.asdict(value)}


READERS: dict[str, tuple[Callable[[Any], object], Any]] = {
    "record": (_opened(locate.RECORD, keys.record(JOB)), {"schema": documents.SCHEMA, **HANDLE, "spot": True}),
    "history": (_opened(records.HISTORY, keys.history(JOB)), {"schema": documents.SCHEMA, **HANDLE, "logs": []}),
    "manifest": (_opened(MANIFEST, keys.group_manifest(GROUP)), _page(BATCH)),
    "turn": (
        _opened(records.CONTROL_ENTRY, keys.control_entry(GROUP, 0)),
        _page(records.ControlEntry(records.RETRY, allowed={"1": 2})),
    ),
    "lease": (_opened(control.LEASE, keys.lease(GROUP, 0)), _page(control.LeasePage(0, "m", "n", 1, released=False))),
    "note": (_opened(outcomes.NOTE, keys.attempt(JOB, 0)), _page(outcomes.AttemptNote(JOB, 0, "m", 1.0))),
    "outcome": (_outcome, _page(outcomes.Outcome(JOB, "failed", error={"message": "m", "hosts": 2}))),
    "order": (_bytes(lambda data: Order.from_bytes(data, sha256=_digest(data))), _page(ORDER)),
    "predecessor": (Predecessor.from_json, dataclasses.asdict(Predecessor(JOB, "f", inputs=2, attempts=3))),
    "child": (Child.from_json, dataclasses.asdict(CHILD)),
    "reference": (DataRef.from_json, dataclasses.asdict(REF)),
    "table": (
        _bytes(lambda data: Table.from_bytes(data, sha256=_digest(data))),
        json.loads(Table((Input("x", WHOLE, (REF,)), Input("y", error="e"))).to_bytes()),
    ),
    "data": (_bytes(lambda data: Manifest.from_bytes(data, sha256=_digest(data))), json.loads(TREE.to_bytes())),
    "project": (
        _bytes(lambda data: Manifest.from_bytes(data, sha256=_digest(data), blobs=BLOBS)),
        json.loads(TREE.to_bytes(BLOBS)),
    ),
    "sealed debug": (_opened(inspection.DEBUG, keys.debug(JOB, 0, 0)), _page(inspection.DebugPage(5678))),
    "debug": (_bytes(inspection.DebugPage.from_bytes), _page(inspection.DebugPage(5678, roots=(("/a", "/b"),)))),
    "task": (
        lambda page: task.Task.from_page(json.dumps(page)),
        json.loads(task.Task(JOB, "0" * 64, "gs://b", "k", 0o22, None, {"A": "b"}, pod=task.PodSettings()).to_bytes()),
    ),
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**40)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["\ud800", "../..", "/etc/passwd", "\x1b[2J", "cpu-f-1", "0" * 64, "file:///", "grp-00000001"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", READERS)
def test_an_honest_page_is_read(name) -> None:
    read, page = READERS[name]

    read(page)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
@steady
def test_a_page_with_any_field_exchanged_or_gone_is_read_or_refused_in_our_words(name, data) -> None:
    read, honest = READERS[name]
    page = json.loads(json.dumps(honest))
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = page
        while True:  # walk down into what is nested
            inside = [*place] if isinstance(place, dict) else [*range(len(place))]
            step = data.draw(st.sampled_from(inside)) if inside else None
            if step is None or not isinstance(place[step], dict | list) or data.draw(st.booleans()):
                break
            place = place[step]
        if step is None:
            continue
        if data.draw(st.booleans()):
            place[step] = data.draw(VALUES)
        else:
            del place[step]

    _read_or_refused(read, page)


@pytest.mark.parametrize("name", READERS)
@given(page=VALUES)
@steady
def test_any_json_in_the_place_of_a_page_is_refused_in_our_words(name, page) -> None:
    _read_or_refused(READERS[name][0], page)


def _read_or_refused(read: Callable[[Any], object], page: Any) -> None:
    said = ""
    try:
        read(page)
    except KineticError as error:
        said = str(error)
    assert len(said) < 2000  # whatever somebody wrote there is not printed at length


@given(data=st.binary(max_size=200))
@steady
def test_any_bytes_are_a_page_or_refused_in_our_words(data) -> None:
    for read in (
        lambda: documents.read(data, "it"),
        lambda: outcomes.read(len(data), lambda start, length: data[start : start + length], KEY),
        lambda: outcomes.read(
            len(data) + 8, lambda start, length: (data + outcomes.MAGIC)[start : start + length], KEY
        ),
        lambda: Manifest.from_bytes(data, sha256=_digest(data), blobs=BLOBS),
        lambda: inspection.DebugPage.from_bytes(data),
    ):
        with pytest.raises(KineticError):
            read()


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
@steady
def test_one_bit_of_a_sealed_page_is_noticed(at, bit) -> None:
    store, place = MemoryStore("memory://fuzz"), keys.attempt(JOB, 0)
    whole = bytearray(outcomes.AttemptNote(JOB, 0, "m", 1.0, details={"why": "it"}).to_bytes(KEY))
    whole[at % len(whole)] ^= 1 << bit
    store.put(place, bytes(whole))

    with pytest.raises(IntegrityError):
        outcomes.read_note(store, JOB, 0, KEY)


@given(name=st.text(max_size=60))
@steady
def test_any_name_of_a_key_is_taken_apart_or_passed_over(name) -> None:
    found = keys.parse_children(f"_groups/{GROUP}/marks/0000/{name}")

    assert found is None or (found[0].start >= 0 and found[1] >= 0)
    assert keys.job_of_history(f"history/{name}.json") is not None
