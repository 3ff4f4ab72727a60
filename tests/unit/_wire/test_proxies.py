"""Proxies of the environment are read as curl, pip and uv read them."""

from __future__ import annotations

import os

import pytest

from kinetic._backends.kube import transport
from kinetic._wire import proxies
from kinetic._wire.http_client import HttpClient

THROUGH = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "url", "expected"),
    [
        ({}, "https://a.example", ""),
        ({"HTTPS_PROXY": THROUGH}, "https://a.example/x", THROUGH),
        ({"HTTPS_PROXY": THROUGH}, "http://a.example/x", ""),
        ({"https_proxy": "proxy.example:3128"}, "https://a.example", THROUGH),
        ({"https_proxy": "ann:secret@proxy.example:3128"}, "https://a.example", "http://ann:secret@proxy.example:3128"),
        ({"ALL_PROXY": THROUGH}, "https://a.example", THROUGH),
        ({"ALL_PROXY": "http://other:1", "HTTPS_PROXY": THROUGH}, "https://a.example", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "b.example, .a.example"}, "https://x.a.example", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "a.example:5000"}, "https://a.example:5000/v2/", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "a.example:443"}, "https://a.example/v2/", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "a.example:5000"}, "https://a.example:5001/v2/", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "10.0.0.0/8,::1/128"}, "https://10.1.2.3:5000/v2/", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "10.0.0.0/8"}, "https://11.1.2.3:5000/v2/", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "b.example, *.A.example"}, "https://x.a.example:6443", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "*.a.example"}, "https://a.example", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "*.a.example:6443"}, "https://x.a.example:6443", ""),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "*.a.example:6443"}, "https://x.a.example", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "localhost, *"}, "https://x.a.example", ""),
        ({"HTTPS_PROXY": THROUGH}, "https://127.0.0.1:6443", ""),
        ({"HTTPS_PROXY": THROUGH}, "https://localhost:6443", ""),
        ({"HTTPS_PROXY": THROUGH}, "https://[::1]:6443", ""),
        ({"HTTPS_PROXY": THROUGH}, "https://127.0.0.1.example", THROUGH),
        ({"HTTPS_PROXY": THROUGH, "NO_PROXY": "fd00::/8,bad/8"}, "https://[fd00::1]:5000/v2/", ""),
    ],
)
def test_the_proxy_for_an_address_is_the_one_that_other_programs_take(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], url: str, expected: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert proxies.proxy_for(url) == expected


@pytest.mark.parametrize("url", ["https://localhost:9000", "https://x.a.example"])
def test_what_reads_the_variables_as_curl_does_asks_a_proxy_where_kubectl_asks_none(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", THROUGH)
    monkeypatch.setenv("NO_PROXY", "*.a.example")

    assert (proxies.proxy_for(url), proxies.proxy_for(url, as_curl=True)) == ("", THROUGH)


def test_a_proxy_of_another_kind_is_named_instead_of_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks4://127.0.0.1:1080")

    with pytest.raises(OSError, match=r"^a proxy whose address begins with socks4:// is not supported, only http"):
        HttpClient().send("GET", "https://registry.example.com/v2/")


def test_the_client_of_clusters_takes_the_same_kinds_of_proxies() -> None:
    assert set(proxies.KINDS) == transport._PROXIES
