"""What an address says."""

from __future__ import annotations

import pytest

from kinetic._stores import protocol
from kinetic._stores.parallel import Retry
from kinetic.errors import OptionError


@pytest.mark.parametrize(
    ("url", "bucket", "prefix", "spelling"),
    [
        ("gs://bucket", "bucket", "", "gs://bucket"), ("gs://bucket/", "bucket", "", "gs://bucket"),
        ("s3://a.b-c_d/x/y/", "a.b-c_d", "x/y/", "s3://a.b-c_d/x/y"), ("gs://b1/x", "b1", "x/", "gs://b1/x"),
    ],
)  # fmt: skip
def test_an_address_is_taken_apart(url, bucket, prefix, spelling):
    address = protocol.parse_address(url)

    assert (address.bucket, address.prefix, address.url) == (bucket, prefix, spelling)


@pytest.mark.parametrize("url", ["gs://", "gs:///x", "gs://a b", "s3://b/x//y", "s3://b/../y", "s3://b/.tmp/y"])
def test_an_address_that_leads_nowhere_is_refused(url):
    with pytest.raises(OptionError):
        protocol.parse_address(url)


def test_a_password_in_an_address_is_refused_and_not_shown():
    with pytest.raises(OptionError, match=r"s3://\*\*\*@bucket") as refused:
        protocol.parse_address("s3://me:hunter2@bucket/x")

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", None),
        ("localhost:9000", "http://localhost:9000"),
        ("http://h:1/", "http://h:1"),
        ("https://h", "https://h"),
    ],
)
def test_an_emulator_is_named_as_for_googles_clients(monkeypatch, value, expected):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", value)

    assert protocol.google_emulator() == expected


def test_the_variables_that_stores_read_are_told():
    assert {"STORAGE_EMULATOR_HOST", "AWS_ENDPOINT_URL", "GOOGLE_APPLICATION_CREDENTIALS"} <= set(
        protocol.CREDENTIAL_VARIABLES
    )


def test_pauses_grow_to_their_limit_and_honour_what_the_server_asks():
    pauses = []
    retry = Retry(first_seconds=1, most_seconds=5, sleep=pauses.append, random=lambda: 0.0)

    for attempt in range(5):
        retry.pause(attempt)
    retry.pause(0, at_least=3)

    assert pauses == [0.5, 1, 2, 2.5, 2.5, 3]
