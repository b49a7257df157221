"""Lookup: each value of a stream with the row of its key in a table that does not change.

The table goes to all workers with the pipeline, and the lookup is a stateless step: no shuffle, no
state, nothing to wait for.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from typing import Any, Final

from millrace.dataflow.enrich import HOW
from millrace.dataflow.formats import plain_format
from millrace.model.brief import brief
from millrace.model.copies import own_copy
from millrace.model.errors import PipelineError
from millrace.model.stream import ByKey, KeyExtractor

#: The most rows of a table that goes with a pipeline to every worker.
LARGEST: Final = 100_000


class Lookup:
    """A step: a value paired with the row of its key.

    Args:
        rows: Key -> row.
        extractor: How values' keys are extracted.
        how: ``left``: a value without a row is paired with None; ``inner``: it is left out.

    >>> from millrace.model.stream import by
    >>> lookup = Lookup({1: "tea"}, by("item"), "inner")
    >>> lookup({"item": 1}), lookup({"item": 2})
    ([({'item': 1}, 'tea')], [])
    """

    def __init__(self, rows: Mapping[Any, Any], extractor: KeyExtractor, how: str) -> None:
        if how not in HOW:
            raise PipelineError(f"lookup(how={how!r}): expected one of {', '.join(HOW)}.")
        if isinstance(extractor, ByKey):
            raise PipelineError(
                "lookup goes by the key that is chosen directly before: "
                'stream.key_by("field").lookup(table).'
            )
        self._rows = dict(rows)
        self._extractor = extractor
        self._left = how == "left"
        self._kinds = {type(key) for key in self._rows}

    def __call__(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the pair, or nothing."""
        key = self._extractor(value, None)
        row = self._rows.get(key)
        if row is None:
            if self._kinds and key is not None and type(key) not in self._kinds:
                raise PipelineError(
                    f"lookup: the key is {brief(key, 120)} ({type(key).__name__}), and the table's "
                    "keys are "
                    f"{', '.join(sorted(kind.__name__ for kind in self._kinds))}, which are never "
                    "equal to it. Make them alike: key_by(lambda value: str(value.id))."
                )
            if not self._left:
                return []
        return [(value, own_copy(row))]

    def __repr__(self) -> str:
        return f"Lookup({len(self._rows)} rows, {self._extractor!r})"


def rows_of(table: Any, key: str | None) -> Mapping[Any, Any]:
    """Return the rows of a table by key.

    Args:
        table: A mapping, or a bounded Spark DataFrame, which is read now.
        key: The column with the key, of a DataFrame.

    Raises:
        PipelineError: It is none, it is too large, or two rows have one key.
    """
    if isinstance(table, Mapping):
        if key is not None:
            raise PipelineError(f"lookup(key={key!r}): a mapping has its keys. Leave it out.")
        rows, more = dict(table), len(table) > LARGEST
    elif hasattr(table, "collect") and hasattr(table, "limit"):
        rows, more = _read(table, key)
    else:
        raise PipelineError(
            f"lookup({table!r}): expected a mapping from key to row, or a bounded DataFrame. For a "
            "stream of rows: enrich(rows.key_by(...))."
        )
    if more:
        raise PipelineError(
            f"lookup: the table has more than {LARGEST:,} rows, and would go to every worker. "
            "Inject it as a stream, whose rows are kept where their keys are: "
            "enrich(p.inject(...).key_by(...))."
        )
    return rows


def _read(table: Any, key: str | None) -> tuple[dict[Any, Any], bool]:
    """Return the rows of a DataFrame by key, and whether there are too many."""
    if getattr(table, "isStreaming", False):
        raise PipelineError(
            "lookup: the table is a streaming DataFrame. Inject it as a stream: "
            "enrich(p.inject(...).key_by(...))."
        )
    if key is None or key not in table.columns:
        raise PipelineError(
            f"lookup(key={key!r}): expected the column that is the table's key, one of "
            f"{', '.join(table.columns)}."
        )
    found: Iterable[Any] = table.limit(LARGEST + 1).collect()
    rows: dict[Any, Any] = {}
    count = 0
    for each in found:
        row = each.asDict(recursive=True)
        if row[key] in rows:
            raise PipelineError(
                f"lookup: two rows of the table have the key {row[key]!r} in {key!r}. Expected one "
                "for each key."
            )
        rows[row[key]] = row
        count += 1
    return rows, count > LARGEST


def pair_with_row(format: Any) -> Any:
    """Return the format of pairs of a stream's values and rows, of which nothing is known."""
    return types.GenericAlias(tuple, (plain_format(format), Any))
