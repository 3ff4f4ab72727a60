"""The wheels on this machine: what a build relies on is not removed as unused."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from servers.wheels import Index, made_wheel, wheel_of

from kinetic._images import wheels
from kinetic._images.layers import Wheel
from kinetic._images.wheels import WheelCache
from kinetic._wire import http_client, proxies
from kinetic._wire.http_client import HttpClient
from kinetic.errors import ImageBuildError

DAY = 24 * 3600.0


def test_a_wheel_that_is_needed_again_after_a_long_time_is_made_young(tmp_path) -> None:
    cache = WheelCache(tmp_path, {})
    wheel = Wheel("alpha", "1.0", "alpha-1.0-py3-none-any.whl", "a" * 64, 5, "http://index/alpha.whl")
    path = cache.path_of(wheel)
    path.write_bytes(b"12345")
    os.utime(path, (time.time() - 91 * DAY, time.time() - 91 * DAY))

    assert cache.missing([wheel]) == []

    assert time.time() - path.stat().st_mtime < DAY


def test_of_two_indexes_on_one_host_a_file_is_fetched_with_the_login_of_its_own() -> None:
    # as of two projects of GitLab, each with a deploy token
    project = "https://gitlab.example/api/v4/projects/{}/packages/pypi"
    environ = {
        "UV_INDEX": f"one={project.format(1)}/simple two={project.format(12)}/simple/",
        "UV_EXTRA_INDEX_URL": "https://ci:third@gitlab.example/api/v4/projects/1/packages/pypi/more/simple",
    }
    for name in ("ONE", "TWO"):
        environ |= {f"UV_INDEX_{name}_USERNAME": "ci", f"UV_INDEX_{name}_PASSWORD": name.lower()}

    def password(address: str) -> str:
        return (wheels.find_login(address, environ) or ("", ""))[1]

    assert password(f"{project.format(1)}/files/ab/x-1.0-py3-none-any.whl") == "one"
    assert password(f"{project.format(12)}/files/ab/x-1.0-py3-none-any.whl") == "two"
    assert password(f"{project.format(1)}/more/files/ab/x-1.0-py3-none-any.whl") == "third"
    assert password("https://gitlab.example/files/x-1.0-py3-none-any.whl") == "one"
    assert password("http://gitlab.example/files/x-1.0-py3-none-any.whl") == ""


def test_an_index_of_the_own_network_may_have_no_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    file = made_wheel(tmp_path / "index", "alpha", "1.0", {"alpha.py": ""})
    wheel = replace(wheel_of(file), url=index(file))
    monkeypatch.setattr(http_client, "is_this_machine", lambda _: False)
    cache = WheelCache(tmp_path / "cache")

    try:
        cache.fetch([wheel])
    finally:
        index.close()

    assert not cache.missing([wheel])


def test_a_proxy_that_demands_a_login_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []

    class Refused(HttpClient):
        def send(self, method: str, url: str, **_: object) -> NoReturn:
            asked.append(url)
            raise proxies.RefusedError("the proxy proxy.lan answered with HTTP 407")

    cache = WheelCache(tmp_path, {}, client=Refused(), sleep=lambda _: None)
    wheel = Wheel("alpha", "1.0", "alpha-1.0-py3-none-any.whl", "a" * 64, 5, "https://index/alpha.whl")

    with pytest.raises(ImageBuildError, match=r"proxy for index does not let us through") as caught:
        cache.fetch([wheel])

    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.next
    assert asked == ["https://index/alpha.whl"]
