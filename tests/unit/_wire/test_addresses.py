"""Secrets in addresses: what counts as one, and what is shown in its place."""

from __future__ import annotations

import pytest

from kinetic._wire import addresses

ADDRESSES = [
    "https://mia:hunter2@example.com/simple",
    "https://hunter2@example.com/simple",
    "https://mia:p@hunter2@example.com/simple",
    "library @ git+ssh://mia:hunter2@example.com/library",
    "https://example.com/library.whl?sp=r&sig=hunter2&se=1",
    "library @ https://example.com/library.whl?private_token=hunter2#sha256=00",
    'index = [{"url": "https://one.example/simple"}, {"url": "https://mia:hunter2@two.example/simple"}]',
]


@pytest.mark.parametrize("text", ADDRESSES)
def test_a_secret_in_an_address_is_found_and_not_shown(text):
    assert addresses.secret_in(text)
    assert addresses.secret_in(text.replace("hunter2", "${TOKEN}"))
    assert not addresses.secret_in(text.replace("p@hunter2", "hunter2").replace("hunter2", "${TOKEN}"), variables=True)
    assert "hunter2" not in addresses.without_secrets(text)
    assert "example" in addresses.without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/simple",
        "git+ssh://git@example.com/library",
        "library @ https://example.com/library.zip?ref=main#subdirectory=token",
        "rich>=13 ; python_version > '3' # mail@example.com?token=x",
    ],
)
def test_an_address_without_a_secret_has_none_and_is_shown_as_it_is(text):
    assert not addresses.secret_in(text)
    assert text.startswith("rich") or addresses.without_secrets(text) == text


def test_what_is_no_address_is_shown_as_it_is():
    text = "no such user@host: https://example.com/a?ref=main and mail@example.com"

    assert addresses.without_secrets(text) == text
