"""Several requests at the same time; one after the other where no thread is to be had.

That is so once the main thread of a program has ended, while the driver of a batch goes on: Python then starts no pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 8  # requests side by side


def ask_all(questions: Sequence[Callable[[], T]]) -> list[T]:
    """Ask several things, and return the answers in their order; raise what the first of them raises that does.

    All are asked, whatever one of them says. Ctrl-C waits for none of them.
    """
    if len(questions) <= 1:
        return [question() for question in questions]
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="kinetic-ask")
    try:
        answers = [_begin(pool, question) for question in questions]
        wait(answers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return [answer.result() for answer in answers]


def _begin(pool: ThreadPoolExecutor, question: Callable[[], T]) -> Future[T]:
    try:
        return pool.submit(question)
    except RuntimeError:  # "cannot schedule new futures after interpreter shutdown", "can't start new thread"
        answer: Future[T] = Future()
        try:
            answer.set_result(question())
        except Exception as error:  # noqa: BLE001 - raised again where the answer is read
            answer.set_exception(error)
        return answer
