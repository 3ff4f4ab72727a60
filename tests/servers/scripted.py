"""A server whose answers a test writes down beforehand; it keeps what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Self

from servers.http11 import Answer, Request, Server

Reply = Answer | Callable[[Request], Answer]


class Scripted:
    """Give the written answers one after the other, and the last one again and again.

    Attributes:
        asked: Every request, in order.
        answers: What is still to be given.
    """

    def __init__(self, *answers: Reply) -> None:
        self.asked: list[Request] = []
        self.answers: list[Reply] = list(answers)
        self._server = Server(self._answer).start()
        self.url = self._server.url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def hang_up(self) -> None:
        """End the answers that stay open."""
        self._server.hang_up()

    def _answer(self, request: Request) -> Answer:
        self.asked.append(request)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return given(request) if callable(given) else given

    @property
    def paths(self) -> list[str]:
        return [f"{each.method} {each.path}" for each in self.asked]


def page(body: Any, status: int = 200, **headers: str) -> Answer:
    """Answer with JSON; names of headers are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json", **named})


def refusal(status: int, message: str = "no", reason: str = "", **headers: str) -> Answer:
    """Answer as the Kubernetes API refuses."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": status,
    }
    return page(body, status, **headers)


def lines(*pages: Any) -> Answer:
    """Answer with one JSON object per line, as a watch does until the server ends it."""
    return Answer(200, b"".join(json.dumps(each).encode() + b"\n" for each in pages))


def open_lines(*pages: Any) -> Answer:
    """Answer with one JSON object per line, as a watch does that has no more to tell yet."""
    return lines(*pages)._replace(stays_open=True)
