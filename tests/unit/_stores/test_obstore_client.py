"""Requests beside the main thread, so that Ctrl-C gets through."""

from __future__ import annotations

import threading

import pytest
from obstore.exceptions import GenericError

from kinetic._stores import obstore_client
from kinetic._stores.parallel import Retry


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


def test_after_a_login_that_got_no_token_the_next_request_reads_the_login_anew(service, monkeypatch):
    logins = ["ended", "new"]
    monkeypatch.setattr(obstore_client, "make_client", lambda *_: logins.pop(0))
    service.retry = Retry(attempts=3, sleep=lambda _: None)

    def ask(login):
        if login == "ended":
            raise GenericError("Generic GCS error: Error performing token request: 400 Bad Request: invalid_grant")
        return login

    with pytest.raises(GenericError):
        service.ask(ask)

    assert service.ask(ask) == "new"
