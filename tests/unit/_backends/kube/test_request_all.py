"""Several requests at once: in order, all of them, and also where no thread is to be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from kinetic._backends.kube import client


def test_answers_come_in_the_order_of_the_questions() -> None:
    gate = threading.Event()

    def last() -> str:
        gate.wait(10)
        return "slow"

    def first() -> str:
        gate.set()
        return "quick"

    assert client.request_all([last, first]) == ["slow", "quick"]


def test_the_first_that_fails_is_raised_and_all_were_asked() -> None:
    asked = []

    def fail(number: int) -> None:
        asked.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match="1"):
        client.request_all([lambda: asked.append(0), lambda: fail(1), lambda: fail(2)])

    assert sorted(asked) == [0, 1, 2]


def test_nothing_is_asked_of_nobody() -> None:
    assert client.request_all([]) == []


def test_a_program_whose_main_thread_has_ended_still_asks() -> None:
    code = """
import threading
from kinetic._backends.kube import client

def later():
    threading.main_thread().join()
    print(client.request_all([lambda: 1, lambda: 2, lambda: 3]))

threading.Thread(target=later).start()
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ, timeout=60)

    assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")
