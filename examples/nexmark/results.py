"""What came out of the queries, in SQL over a sink's rows, compared with the oracle's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import duckdb
import msgspec
import pyarrow as pa

import millrace as mr
from millrace.model.time import datetime_of
from millrace_examples.nexmark.oracle import QUERIES

_NUMBER = "_key::BIGINT"
_START = "epoch_us(_window_start)"
_DAY = f"epoch_us(_window_start) // {mr.DAY}"
_COUNTS = {"bidder": _NUMBER, "start": _START, "bids": "value::BIGINT"}

#: The oracle's columns that are not of the value, in SQL over a row of a sink. There a key is text.
_FOUND = {
    "q4": {"category": _NUMBER, "mean": "value::DOUBLE"},
    "q5": {"start": _START},
    "q6": {"seller": _NUMBER},
    "q8": {"start": _START},
    "q11": _COUNTS,
    "q12": _COUNTS,
    "q15": {"day": _DAY},
    "q16": {"day": _DAY, "channel": "_key"},
    "q17": {"day": _DAY, "auction": _NUMBER},
    "q18": {
        "bidder": "regexp_extract(_key, '[0-9]+')::BIGINT",
        "auction": "regexp_extract(_key, ', ([0-9]+)', 1)::BIGINT",
    },
    "q19": {"auction": _NUMBER, "bidder": "bids[place][1]", "price": "bids[place][2]"},
}

#: Of what is told again when it changes, the last for each key stands.
_LAST = """
    SELECT * FROM found
    QUALIFY row_number() OVER (PARTITION BY _key ORDER BY _pane_index DESC) = 1
"""
_FIRST = {
    "q4": _LAST,
    "q18": _LAST,
    "q19": f"""
        WITH last AS (SELECT _key, value::BIGINT[][] AS bids FROM ({_LAST}))
        SELECT _key, place, bids FROM last, range(1, 11) AS places(place) WHERE place <= len(bids)
    """,
}


@dataclass(frozen=True)
class Verdict:
    """What the oracle says.

    Attributes:
        rows: That there should be.
        missing: Of those, how many are not there.
        extra: How many are there besides.
        some: Of the missing and the extra ones, up to three each.
    """

    rows: int
    missing: int
    extra: int
    some: list[dict[str, Any]]

    @property
    def agrees(self) -> bool:
        """Whether all rows are there, and no others; and there are some."""
        return bool(self.rows) and not self.missing and not self.extra

    def __str__(self) -> str:
        if self.agrees:
            return f"agrees, {self.rows:,} rows"
        return f"{self.missing:,} of {self.rows:,} rows missing, {self.extra:,} extra: {self.some}"


def of_outputs(outputs: Iterable[Any]) -> pa.Table:
    """Return what the Harness gave as a sink on Spark would have had it."""
    return pa.Table.from_pylist([_row(output) for output in outputs])


def compare(
    query: str,
    found: pa.Table | duckdb.DuckDBPyRelation,
    database: duckdb.DuckDBPyConnection,
    *,
    clock: bool = True,
    plain: bool = False,
) -> Verdict:
    """Return whether a query has found what the oracle says, row by row, in whatever order.

    Args:
        query: ``"q0"`` to ``"q22"``.
        found: Rows of its sink.
        database: Of the events.
        clock: Whether it is known when events arrived. Else a bidder's bids of query 12 are added
            up over all windows of the clock.
        plain: Whether the rows have the oracle's columns, as those of another engine.
    """
    rows = database.from_arrow(found) if isinstance(found, pa.Table) else found
    wanted = database.sql(QUERIES[query])
    if not plain:
        rows = _as_the_oracle(query, rows, wanted)
    if query == "q12" and not clock:
        wanted, rows = (
            each.aggregate("bidder, sum(bids)::BIGINT AS bids") for each in (wanted, rows)
        )
    columns = ", ".join(f'"{name}"' for name in wanted.columns)
    # A relation runs again whenever it is looked at, so both are kept as tables.
    for name, each in (("_wanted", wanted), ("_have", rows.project(columns))):
        database.execute(f"DROP TABLE IF EXISTS {name}")
        each.to_table(name)
    want, have = database.table("_wanted"), database.table("_have")
    missing, extra = want.except_(have), have.except_(want)
    some = [*_some(missing), *_some(extra)]
    return Verdict(_count(want), _count(missing), _count(extra), some)


def _as_the_oracle(
    query: str, rows: duckdb.DuckDBPyRelation, wanted: duckdb.DuckDBPyRelation
) -> duckdb.DuckDBPyRelation:
    if query in _FIRST:
        rows = rows.query("found", _FIRST[query])
    derived = _FOUND.get(query, {})
    own = {name for name in wanted.columns if name not in derived}
    # A value is one column, of JSON, where the pipeline does not say its format.
    packed = not own <= set(rows.columns)
    made = []
    for name, of in zip(wanted.columns, wanted.types, strict=True):
        source = f"(value->>'$.{name}')::{of}" if packed else f'"{name}"'
        made.append(f'{derived.get(name, source)} AS "{name}"')
    return rows.project(", ".join(made))


def _row(output: Any) -> dict[str, Any]:
    key, value, pane = output.key, msgspec.to_builtins(output.value), output.pane
    made = {"_key": key if isinstance(key, str) else repr(key)}
    if pane is not None:
        start = pane.window.start  # None of a global window
        made["_window_start"] = None if start is None else datetime_of(start)
        made["_pane_index"] = pane.index
    if isinstance(value, list):
        value = msgspec.json.encode(value).decode()
    return {**made, **(value if isinstance(value, dict) else {"value": value})}


def _count(rows: duckdb.DuckDBPyRelation) -> int:
    return int(rows.aggregate("count(*)").fetchall()[0][0])


def _some(rows: duckdb.DuckDBPyRelation) -> list[dict[str, Any]]:
    return rows.limit(3).to_arrow_table().to_pylist()
