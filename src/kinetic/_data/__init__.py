"""Data on its way to a job: hashed, sent to the store in blobs, and told to the order as references."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._data.data import Data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kinetic._stores.protocol import Store
    from kinetic._wire.order import DataRef

__all__ = ["Data", "check_volumes", "recheck", "ship_all"]


def ship_all(
    found: Sequence[Data], volumes: Mapping[str, Data], store: Store, *, cache: Path, is_here: bool = False
) -> tuple[DataRef, ...]:
    """Bring everything that a job reads to where the job can get it.

    Args:
        found: The data among the arguments, in the order in which the arguments refer to it.
        volumes: Data by the path at which the job sees it.
        store: Where local data is sent.
        cache: The folder of this machine in which kinetic remembers what it has seen.
        is_here: Whether the job runs on this very machine, where it can be shown files without a copy.

    Returns:
        A reference for each argument, in order, and then one for each volume, with its mount path.

    Raises:
        OptionError: A volume's path cannot be one.
        DataMissingError: Something is not there.
        DataChangedError: Something was edited meanwhile; nothing is promised then.
    """
    from kinetic._data import ship  # hashing and JSON, for scripts that do more than decorate

    return ship.ship_all(found, volumes, store, cache=cache, is_here=is_here)


def check_volumes(volumes: Mapping[str, Data]) -> dict[str, Data]:
    """Return volumes by their normalised paths, or say why one of them cannot be mounted; reads nothing."""
    from kinetic._data import ship

    return ship.check_volumes(volumes)


def recheck(ref: DataRef, store: Store) -> int:
    """Look again at data whose job found it damaged; see ``_data/rechecking.py``."""
    from kinetic._data import ship

    return ship.recheck(ref, store)
