"""What is small enough for one request, and whether the rest can be sent again."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import GenericError

from kinetic._stores import upload
from kinetic._stores.large_upload import LargeUploader
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import parse_address
from kinetic._stores.upload import Large, Uploader, body_of

MOST = 100
DATA = os.urandom(1037)


def forms(data, folder):
    (folder / "file").write_bytes(data)
    return {
        "bytes": data,
        "bytearray": bytearray(data),
        "view": memoryview(data),
        "file": folder / "file",
        "chunks": [data[start : start + 7] for start in range(0, len(data), 7)],
        "one chunk": iter([data]),
        "empty chunks": iter([b"", data, b""]),
    }


FORMS = ["bytes", "bytearray", "view", "file", "chunks", "one chunk", "empty chunks"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [0, 1, MOST])
def test_what_is_small_becomes_bytes(tmp_path, form, size):
    body = body_of(forms(DATA[:size], tmp_path)[form], MOST)

    assert not isinstance(body, Large)
    assert bytes(body) == DATA[:size]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [MOST + 1, 2 * MOST, len(DATA)])
def test_what_is_large_holds_every_byte(tmp_path, form, size):
    with body_of(forms(DATA[:size], tmp_path)[form], MOST) as body:
        source = body.source
        whole = source.read_bytes() if isinstance(source, Path) else b"".join([source] if body.size else source)

    assert whole == DATA[:size]


def test_a_stream_can_be_sent_again_until_it_was_read():
    with body_of(iter([DATA[:70], DATA[70:]]), MOST) as body:
        assert body.again is True
        next(body.source)
        assert body.again is False


def test_a_file_can_be_sent_again(tmp_path):
    (tmp_path / "file").write_bytes(DATA)

    with body_of(tmp_path / "file", MOST) as body:
        body.source.read_bytes()
        assert body.again is True


@pytest.mark.parametrize("read", [0, 1, 3])
def test_a_generator_that_is_not_read_to_its_end_is_closed(read):
    closed = []

    def chunks():
        try:
            for _ in range(100):
                yield DATA[:60]
        finally:
            closed.append(True)

    with body_of(chunks(), MOST) as body:
        for _ in range(read):
            next(body.source)

    assert closed == [True]


def test_uploads_take_turns_for_ten_minutes_after_one_was_late_and_for_twice_as_long_after_the_next():
    now = 0.0
    line = upload.Line(lambda: now)

    def is_shared() -> bool:
        with line.taken() as parts:
            return parts > 1

    found = [is_shared()]
    for late_at, seconds in ((0.0, 600), (1000.0, 1200)):
        now = late_at
        for _ in range(3):  # those that were under way are late together
            with pytest.raises(GenericError), line.taken():
                raise GenericError("kind: Request, source: TimedOut")
        now = late_at + seconds - 1
        found.append(is_shared())
        now += 1
        found.append(is_shared())

    assert found == [True, False, True, False, True]


def test_a_result_does_not_wait_for_a_file_that_takes_hours_on_a_slow_line(monkeypatch):
    begun, arrived = threading.Event(), threading.Event()

    class Client:
        address, retry = parse_address("gs://bucket"), Retry()

        def ask_about(self, verb: str, key: str, body: object, *, use_multipart: bool, **_: Any) -> None:
            if use_multipart:
                begun.set()
                assert arrived.wait(5), "the result waits for the file"
            else:
                arrived.set()

    monkeypatch.setattr(upload, "LINE", upload.Line())
    with pytest.raises(GenericError), upload.LINE.taken():
        raise GenericError("kind: Request, source: TimedOut")
    uploader = Uploader(Client())

    with ThreadPoolExecutor() as pool:
        file = pool.submit(LargeUploader(uploader).write, "file", Large(memoryview(bytes(upload.PART)), upload.PART))
        assert begun.wait(5)
        uploader.create("result.pkl", bytes(2 << 20))

    assert file.result() is True
