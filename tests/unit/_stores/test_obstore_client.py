"""Requests beside the main thread, so that Ctrl-C gets through."""

from __future__ import annotations

import threading

import pytest

from kinetic._stores import obstore_client


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(
        obstore_client, "_first_process", None
    )  # put back in the end: no threads of obstore have begun here
    return obstore_client.ObstoreClient(None, None)


def fails():
    raise RuntimeError("of its own")


def test_the_main_thread_waits_for_another_one(service):
    assert service.run(threading.get_ident) != threading.get_ident()


def test_where_no_thread_can_be_had_the_main_one_asks_by_itself(service, no_more_threads):
    assert service.run(threading.get_ident) == threading.get_ident()


def test_where_no_thread_can_be_had_an_error_is_raised_once(service, no_more_threads):
    with pytest.raises(RuntimeError, match="of its own"):
        service.run(fails)
