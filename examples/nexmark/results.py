"""What came out of the queries, as rows that can be compared with SQL's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

import millrace as mr

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
        outputs = list({output.key: output for output in outputs}.values())
    return [row for output in outputs for row in _rows(query, output)]


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
