"""The bucket client of pods, where a bucket answers what no bucket should."""

from __future__ import annotations

import pytest
from servers.http11 import Answer
from servers.scripted import Scripted

from kinetic._stores.plain_gcs import PlainGcsStore
from kinetic._stores.retrying import Retry
from kinetic.errors import StoreUnreachableError


def test_a_page_that_was_cut_is_a_store_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scripted(Answer(200, b'{"items": [{"na', {"Content-Type": "application/json"})) as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        store = PlainGcsStore("gs://jobs/here", retry=Retry(2, sleep=lambda _: None))

        with pytest.raises(StoreUnreachableError):
            list(store.entries("job-1/"))
