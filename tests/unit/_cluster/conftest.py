"""A project at the fake of Google, and who makes clusters in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.cluster_maker import Maker
from servers.google_cloud import GoogleCloud


@pytest.fixture
def cloud() -> Iterator[GoogleCloud]:
    with GoogleCloud() as cloud:
        yield cloud
    assert cloud.wrong == []


@pytest.fixture
def maker(cloud: GoogleCloud) -> Maker:
    return Maker(cloud)
