"""What came out of the queries, as rows that can be compared with SQL's."""

from __future__ import annotations

import ast
import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

import millrace as mr
from millrace.testing.output import Output

_KEYS = {
    "q4": ("category",),
    "q6": ("seller",),
    "q11": ("bidder",),
    "q12": ("bidder",),
    "q16": ("channel",),
    "q17": ("auction",),
    "q18": ("bidder", "auction"),
    "q19": ("auction",),
}
_OF_A_DAY = ("q15", "q16", "q17")
_OF_A_WINDOW = ("q5", "q8", "q11", "q12")
_NUMBERS = {"q4": "mean", "q11": "bids", "q12": "bids"}

#: Those that tell a result again when it changes: the last for each key stands.
TABLES = ("q4", "q18", "q19")


def rows(query: str, outputs: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows that outputs of a query amount to, in the order of the outputs."""
    outputs = list(outputs)
    if query in TABLES:
        outputs.sort(key=lambda output: output.pane.index)
        outputs = list({output.key: output for output in outputs}.values())
    return [row for output in outputs for row in _rows(query, output)]


def of_sink(query: str, rows: Iterable[Mapping[str, Any]]) -> list[Output]:
    """Return outputs of a query as a sink on Spark got them, in a session whose time zone is UTC.

    There a key is text, and so is, as JSON, a value whose format the pipeline does not say.
    """
    outputs = []
    for row in rows:
        made = {name: _utc(value) for name, value in row.items()}
        for name in ("value", "minute"):
            if isinstance(made.get(name), str):
                made[name] = msgspec.json.decode(made[name])
        if query in _KEYS and query != "q16":
            made["_key"] = ast.literal_eval(made["_key"])
        outputs.append(Output.of_row(made))
    return outputs


def _utc(value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value


def _rows(query: str, output: Any) -> list[dict[str, Any]]:
    value = output.value
    names = _KEYS.get(query, ())
    keys = output.key if len(names) > 1 else (output.key,)
    made = dict(zip(names, keys, strict=False))
    if query in _OF_A_DAY:
        made["day"] = output.pane.window.start // mr.DAY
    elif query in _OF_A_WINDOW:
        made["start"] = output.pane.window.start
    if query == "q19":
        return [
            {**made, "place": place, "bidder": bidder, "price": price}
            for place, (bidder, price) in enumerate(value, 1)
        ]
    if query in _NUMBERS:
        return [{**made, _NUMBERS[query]: value}]
    return [{**made, **msgspec.to_builtins(value)}]
