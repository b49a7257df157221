"""Encoded keys in an Arrow column, as the kernel asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.windmill.ordering import KeyColumn


def keys_in(column: pa.ChunkedArray) -> Sequence[bytes]:
    """Return encoded keys, by record.

    >>> keys = keys_in(pa.chunked_array([[b"sJFK"] * 300 + [b"sEWR"]]))
    >>> len(keys), keys[300], keys.at([0, 300]), keys.changed().nonzero()
    (301, b'sEWR', [b'sJFK', b'sEWR'], (array([299]),))
    """
    return ArrowKeys(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())


class ArrowKeys(KeyColumn):
    """Keys in a binary column."""

    __slots__ = ("_column",)

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, n: int) -> bytes: ...
    @overload
    def __getitem__(self, n: slice) -> list[bytes]: ...
    def __getitem__(self, n: int | slice) -> Any:
        found = self._column[n]
        return found.to_pylist() if isinstance(n, slice) else found.as_py()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._column.to_pylist())

    def at(self, places: list[int]) -> list[bytes]:
        """Return the keys at some places."""
        return self._column.take(pa.array(places, pa.int64())).to_pylist()  # type: ignore[no-any-return]

    def take(self, order: npt.NDArray[np.intp]) -> ArrowKeys:
        """Return the keys in another order."""
        return ArrowKeys(self._column.take(pa.array(order)))

    def changed(self) -> npt.NDArray[np.bool_]:
        """Return of each key but the first whether it is another than the one before."""
        found = pc.not_equal(self._column[1:], self._column[:-1])
        return found.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
