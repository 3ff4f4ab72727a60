"""The grid of a batch in a notebook: a small square for each input, or for a few of them, coloured by its state."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetic._batches import naming, tally
from kinetic._batches.board import REMOVED

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch

_COLOURS = {
    tally.SUCCEEDED: "#34a853",
    tally.FAILED: "#ea4335",
    tally.REFUSED: "#b31412",
    tally.AGAIN: "#fbbc04",
    tally.RUNNING: "#4c8bf5",
    tally.WAITING: "#c9c9c9",
    tally.MISSING: "#eeeeee",
    tally.CANCELLED: "#9aa0a6",
    REMOVED: "#dadce0",
}
# Which colour a square of several inputs has: the first of these that one of them is in.
_RANKS = (tally.FAILED, tally.REFUSED, tally.AGAIN, tally.RUNNING, tally.CANCELLED, tally.WAITING, tally.MISSING)
_SQUARES = 1000  # a notebook page with many more becomes slow
_FAILED = 5  # that are named below the grid
_SQUARE = "display:inline-block;width:12px;height:12px;margin:1px;background:"


def html_of(batch: Batch) -> str:
    """Return the grid as HTML; never raises: a card must not break a notebook."""
    try:
        return f"<div>{''.join(_parts(batch))}</div>"
    except Exception as error:  # noqa: BLE001 - whatever it is, the notebook goes on
        group_id = html.escape(str(getattr(batch, "group_id", "")))
        return f"<div><b>kinetic batch</b> <code>{group_id}</code>: {html.escape(type(error).__name__)}</div>"


def _parts(batch: Batch) -> Iterator[str]:
    board, refused = batch._refreshed(), batch._refused()
    states = [tally.state_of(board, index, refused) for index in range(len(board.attempts))]
    title = html.escape(f"{batch.group_id} {batch.name or ''}".strip())
    yield f"<div><b>kinetic batch</b> <code>{title}</code></div>"
    yield f"<div>{html.escape(tally.told(Counter(states)))}</div>"
    many = max(1, -(-len(states) // _SQUARES))
    yield "<div>"
    yield from (_square(batch, states, first, many) for first in range(0, len(states), many))
    yield "</div>"
    failed = [index for index, state in enumerate(states) if state == tally.FAILED][:_FAILED]
    yield from (f"<pre>{html.escape(naming.line(batch, index, ''))}</pre>" for index in failed)


def _square(batch: Batch, states: list[str], first: int, many: int) -> str:
    """Return one square; the mouse on it shows what it stands for."""
    own = states[first : first + many]
    state = next((rank for rank in _RANKS if rank in own), own[0])
    if many == 1:
        said = f"[{first}] {state}: {naming.shown(batch, first)}"
    else:
        said = f"[{first}] to [{first + len(own) - 1}]: {tally.told(Counter(own))}"
    return f'<span title="{html.escape(said, quote=True)}" style="{_SQUARE}{_COLOURS[state]}"></span>'
