"""The poller of a pod keeps polling, whatever a poll raises."""

from __future__ import annotations

import os
import threading

from kinetic._runner.pod.pod_source import Poller


def test_a_look_that_goes_wrong_in_an_unforeseen_way_is_followed_by_another() -> None:
    came, again = [], threading.Event()

    def look() -> bool:
        came.append("look")
        if len(came) == 1:
            raise ValueError("an answer that nobody foresaw")
        again.set()
        return threading.Event().wait()  # a pod's process ends with it; here, it has looked often enough

    _, mouth = os.pipe()
    Poller(look, mouth, 0.01).start()

    assert again.wait(10)
