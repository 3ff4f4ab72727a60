"""A debugger for tests: it speaks the Debug Adapter Protocol over a socket, as an editor does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

_SECONDS = 30.0  # for an answer, and for a stop


class Debugger:
    """One attached editor.

    Args:
        port: Where the debug server can be reached on this machine.
        mappings: Pairs of folders, local and remote, as in the ``pathMappings`` of a launch.json.
    """

    def __init__(self, port: int, mappings: Sequence[Mapping[str, str]] = (), *, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection((host, port), timeout=_SECONDS)
        self._stream = self._socket.makefile("rb")
        self._mappings = [dict(each) for each in mappings]
        self._number = 0
        self._news = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self._is_over = False
        self._reader = threading.Thread(target=self._read, name="dap-reader", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def attach(
        self, breakpoints: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> dict[str, list[dict[str, Any]]]:
        """Attach, set breakpoints by local path, and let the job go on; return what became of each breakpoint."""
        self.ask("initialize", adapterID="kinetic-test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        attached = self.send("attach", name="test", pathMappings=self._mappings, justMyCode=False)
        self.event("initialized")
        found = {}
        for path, lines in breakpoints.items():
            wanted = [{"line": line} for line in lines]
            found[path] = self.ask("setBreakpoints", source={"path": path}, breakpoints=wanted)["breakpoints"]
        self.ask("configurationDone")
        self.answer(attached)
        return found

    def stopped(self) -> dict[str, Any]:
        """Wait until a thread stops, and return its innermost frame with the thread's number in it."""
        event = self.event("stopped")
        thread = event["body"]["threadId"]
        frame = dict(self.ask("stackTrace", threadId=thread)["stackFrames"][0])
        return {**frame, "thread": thread, "reason": event["body"]["reason"]}

    def evaluate(self, expression: str, frame: Mapping[str, Any]) -> str:
        """Return the text of an expression's value in a frame."""
        return str(self.ask("evaluate", expression=expression, frameId=frame["id"], context="repl")["result"])

    def next(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Step over a line."""
        self.ask("next", threadId=frame["thread"])
        return self.stopped()

    def go_on(self, frame: Mapping[str, Any]) -> None:
        """Let the job run."""
        self.ask("continue", threadId=frame["thread"])

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return the body of its answer."""
        return self.answer(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request and return its number."""
        self._number += 1
        page = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(page).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return self._number

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the answer to a request."""
        with self._news:
            assert self._news.wait_for(lambda: number in self._answers or self._is_over, _SECONDS), "no answer"
            found = self._answers.pop(number)
        assert found["success"], found
        return dict(found.get("body") or {})

    def event(self, name: str) -> dict[str, Any]:
        """Wait for an event and take it."""
        with self._news:
            assert self._news.wait_for(lambda: self._is_over or self._find(name) is not None, _SECONDS), self._events
            found = self._find(name)
            assert found is not None, f"the connection ended before {name!r}: {self._events}"
            self._events.remove(found)
        return found

    def ended(self) -> None:
        """Wait until the other side has hung up."""
        with self._news:
            assert self._news.wait_for(lambda: self._is_over, _SECONDS), self._events

    def close(self) -> None:
        """Hang up, as an editor that is closed does."""
        self._socket.close()

    def _find(self, name: str) -> dict[str, Any] | None:
        return next((each for each in self._events if each["event"] == name), None)

    def _read(self) -> None:
        try:
            while (page := self._page()) is not None:
                with self._news:
                    if page["type"] == "response":
                        self._answers[page["request_seq"]] = page
                    elif page["type"] == "event":
                        self._events.append(page)
                    self._news.notify_all()
        except (OSError, ValueError):
            pass
        finally:
            with self._news:
                self._is_over = True
                self._news.notify_all()

    def _page(self) -> dict[str, Any] | None:
        length = 0
        while line := self._stream.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if not length:
            return None
        page: dict[str, Any] = json.loads(self._stream.read(length))
        return page
