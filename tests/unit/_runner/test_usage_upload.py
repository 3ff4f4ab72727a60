"""What a pod's job uses on its way to the store: the newest only, not often, and once more at the end."""

from __future__ import annotations

import threading
from typing import Any

from kinetic._runner.pod.usage_upload import UsageUpload
from kinetic.errors import StoreUnreachableError


def test_only_the_newest_is_written_first_after_a_while_and_then_at_the_end() -> None:
    written: list[Any] = []
    first = threading.Event()
    upload = UsageUpload(lambda found: (written.append(found), first.set()), first_seconds=0.05)
    upload.offer("one")  # type: ignore[arg-type] # any value: it is handed on
    upload.offer("two")  # type: ignore[arg-type] # as above
    upload.start()
    assert first.wait(10)
    upload.offer("three")  # type: ignore[arg-type] # as above

    upload.send_last()
    upload.join(10)

    assert written == ["two", "three"]
    assert not upload.is_alive()


def test_a_job_of_a_few_seconds_is_written_once() -> None:
    written: list[Any] = []
    upload = UsageUpload(written.append, first_seconds=60)
    upload.start()
    upload.offer("all")  # type: ignore[arg-type] # as above

    upload.send_last()
    upload.join(10)

    assert written == ["all"]


def test_a_store_that_is_away_harms_nothing() -> None:
    tried = []

    def put(found: object) -> None:
        tried.append(found)
        raise StoreUnreachableError("away")

    upload = UsageUpload(put, first_seconds=60)
    upload.start()
    upload.offer("all")  # type: ignore[arg-type] # as above

    upload.send_last()
    upload.join(10)

    assert tried == ["all"]
    assert not upload.is_alive()
