"""Cells of a notebook that change in place: what shows a job or a batch there, and the bar of a wait.

IPython is found only where it runs already. Whatever goes wrong here ends the display, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kinetic._wire import NamedTuple, python_runtime

_TRACK = "height:.5em;margin:.3em 0;border:1px solid;border-radius:.3em;overflow:hidden;max-width:32em;opacity:.9"


class Drawing(NamedTuple):
    """What a cell shows, for pages and for terminals, and whether it stays so."""

    html: str
    text: str
    is_final: bool = False


def is_kernel() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class Cell:
    """One output of a cell, which is replaced by what it shows next."""

    def __init__(self) -> None:
        self._id = os.urandom(16).hex()
        self._shown: tuple[str, str] | None = None

    def show(self, html_: str, text: str) -> None:
        """Show something in the place of what was shown before."""
        if (html_, text) == self._shown:
            return
        from IPython.display import display, update_display  # it runs already

        show: Any = display if self._shown is None else update_display
        show({"text/html": html_, "text/plain": text}, raw=True, display_id=self._id)
        self._shown = html_, text


class LiveCells:
    """The cells that show one thing: only the newest changes."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._look: Callable[[], object] = lambda: None  # of the newest

    def show(self, draw: Callable[[], Drawing], pause: Callable[[], float]) -> None:
        """Show what is drawn now, and then, on a thread, whatever is drawn until that is final."""
        self._over.set()
        over = self._over = threading.Event()
        cell, lock = Cell(), threading.Lock()

        def look() -> None:
            with lock:  # else what was drawn first may be shown last
                drawing = draw()
                cell.show(drawing.html, drawing.text)
            if drawing.is_final:
                over.set()

        def follow() -> None:
            with contextlib.suppress(Exception):  # a kernel that ends, or a place that is gone
                while not over.wait(pause()):
                    look()

        look()
        self._look = look
        if not over.is_set():
            python_runtime.start_thread(follow, "kinetic-notebook")

    def look_now(self) -> None:
        """Show what is drawn now, and not after the next pause: a notebook may be saved before."""
        with contextlib.suppress(Exception):  # as above
            if not self._over.is_set():
                self._look()


_live: dict[str, LiveCells] = {}


def live_cells(name: str) -> LiveCells:
    """Return the cells that show a job or a batch, by its id."""
    return _live.setdefault(name, LiveCells())


def look_now(name: str) -> None:
    """Show a job or a batch as it is now, if a cell shows it."""
    if name in _live:
        _live[name].look_now()


def bar(share: float | None, label: str) -> str:
    """Return a bar as HTML; "" where it has no end."""
    if share is None:
        return ""
    import html  # 3 ms; only where something is shown

    percent = f"{100 * share:.0f}"
    name = html.escape(label, quote=True)
    return (
        f'<div role="progressbar" aria-label="{name}" aria-valuemin="0" aria-valuemax="100" aria-valuenow="{percent}" '
        f'style="{_TRACK}"><div style="width:{percent}%;height:100%;background:#1a73e8"></div></div>'
    )


def card(kind: str, name: str, body: str, rows: Sequence[tuple[str, str]] = ()) -> str:
    """Return a card as HTML: a heading, a body that is HTML already, and a table of texts. Texts are never HTML."""
    import html  # as above

    cells = "".join(
        f"<tr><th scope='row' style='text-align:left'>{html.escape(first)}</th>"
        f"<td style='text-align:left;overflow-wrap:anywhere'>{html.escape(second)}</td></tr>"
        for first, second in rows
        if second
    )
    table = f"<table>{cells}</table>" if cells else ""
    return f"<div><b>kinetic {html.escape(kind)}</b> <code>{html.escape(name)}</code>{body}{table}</div>"
