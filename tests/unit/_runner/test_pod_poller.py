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


def test_a_look_that_found_that_the_worker_should_end_is_not_undone_by_the_next() -> None:
    answers, again = iter([True, False]), threading.Event()

    def look() -> bool:
        for answer in answers:
            return answer
        again.set()
        return threading.Event().wait()  # as above

    _, mouth = os.pipe()
    poller = Poller(look, mouth, 0.01)
    poller.start()

    assert again.wait(10)
    assert poller.found
