"""Ending informers so that nothing is left of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.scripted import Scripted

    from kinetic._backends.kube.informer import Informer


def end_informers(server: Scripted, informers: Iterable[Informer]) -> None:
    """End the informers of a server and wait for their threads: one left behind would open a connection once more."""
    for informer in informers:
        informer.end()
        for thread in informer.threads:
            while thread.is_alive():
                server.hang_up()  # again and again: it may be opening a stream this moment
                thread.join(0.02)
