"""Encoded keys of many records that need not be objects each.

A bundle has many records a key, and only one of them is asked for its key. Who has keys as a
column keeps them as such until then.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class KeyColumn(Sequence[bytes]):
    """Keys, by record."""

    __slots__ = ()

    @abstractmethod
    def at(self, places: list[int]) -> list[bytes]:
        """Return the keys at some places, none below zero."""

    @abstractmethod
    def take(self, order: npt.NDArray[np.intp]) -> KeyColumn:
        """Return the keys in another order."""

    @abstractmethod
    def changed(self) -> npt.NDArray[np.bool_]:
        """Return of each key but the first whether it is another than the one before."""


def keys_at(keys: Sequence[bytes], places: list[int]) -> list[bytes]:
    """Return the keys at some places, of a column or a list."""
    return keys.at(places) if isinstance(keys, KeyColumn) else [keys[n] for n in places]
