"""Data of a job: hashed, sent to the store, and listed in the order as references."""

from kinetic._data.data import Data

__all__ = ["Data"]
