"""Numbers in public signatures that say whether anybody wrote them."""

from __future__ import annotations


class NotGivenNumber(int):
    """A number that nobody wrote: equal to the default, and known as the default by its class."""

    __slots__ = ()


RETRIES: int = NotGivenNumber(0)  # of a batch: the profile and the project may say more
