"""How wide a text is on a terminal, and how it is made to fit: for tables, and for what is written over again."""

from __future__ import annotations


def wide(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata  # 1 ms; only where there is more than ASCII

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def shortened(text: str, width: int) -> str:
    """Return a text that takes at most some columns; what was cut is marked by an ellipsis."""
    if wide(text) <= width:
        return text
    while text and wide(text) > width - 1:
        text = text[:-1]
    return f"{text}…" if width > 0 else ""
