"""The wheels on this machine: what a build relies on is not removed as unused."""

from __future__ import annotations

import os
import time

from kinetic._images.layers import Wheel
from kinetic._images.wheels import WheelCache

DAY = 24 * 3600.0


def test_a_wheel_that_is_needed_again_after_a_long_time_is_made_young(tmp_path) -> None:
    cache = WheelCache(tmp_path, {})
    wheel = Wheel("alpha", "1.0", "alpha-1.0-py3-none-any.whl", "a" * 64, 5, "http://index/alpha.whl")
    path = cache.path_of(wheel)
    path.write_bytes(b"12345")
    os.utime(path, (time.time() - 91 * DAY, time.time() - 91 * DAY))

    assert cache.missing([wheel]) == []

    assert time.time() - path.stat().st_mtime < DAY
