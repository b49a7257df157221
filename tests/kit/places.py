"""Every place inside of a pipeline that a value can be in, as a program of the Harness."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any

from field_types import (
    EQUAL,
    MISSING,
    Kind,
    Outcome,
    compared,
    lettered,
    raised,
    refused,
    same,
)

import millrace as mr

#: Takes a pipeline that injects ``numbers``, the values, and where what comes back is written.
Program = Callable[[mr.Pipeline, Kind, dict[int, Any]], None]

#: A number is twice the position of a value, and one more when the value is to be read back.
_NUMBERS = {"numbers": mr.by(lambda number: number // 2)}


def in_value(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    _produced(p, kind)

    class Reads(mr.Computation):
        inputs = {"values": mr.by_key()}

        def process_record(self, record: Any) -> None:
            seen[self.key] = record.value

    p.add(Reads)


def in_key(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    class Keyed(mr.Computation):
        inputs = _NUMBERS
        outputs = {"keyed": int}

        def process_record(self, record: Any) -> None:
            self.produce("keyed", record.value // 2)

    class Reads(mr.Computation):
        inputs = {"keyed": mr.by(lambda n: kind.values[n])}
        times = mr.ValueState(int)

        def process_record(self, record: Any) -> None:
            self.times.set(self.times.get(0) + 1)
            if self.times.get() == 2:  # both records came to the same key
                seen[record.value] = self.key

    p.add(Keyed)
    p.add(Reads)


def _cell(write: Callable[[Any, Any], None], read: Callable[[Any, Any], Any], cell: Any) -> Program:
    def program(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
        class Cells(mr.Computation):
            inputs = _NUMBERS
            state = cell(kind.type)

            def process_record(self, record: Any) -> None:
                n, reading = divmod(record.value, 2)
                if reading:
                    seen[n] = read(self.state, kind.values[n])
                else:
                    write(self.state, kind.values[n])

        p.add(Cells)

    return program


def _put(cell: Any, value: Any) -> None:
    cell["entry"] = value


def _put_entry(cell: Any, value: Any) -> None:
    cell[value] = 1


def _only(cell: Any, _: Any) -> Any:
    return next(iter(cell), MISSING)


def _entry(cell: Any, value: Any) -> Any:
    return _only(cell, value) if value in cell else MISSING


def in_timer_tag(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    class Timers(mr.Computation):
        inputs = _NUMBERS

        def process_record(self, record: Any) -> None:
            if record.value % 2 == 0:
                self.set_timer(kind.values[self.key], at=record.timestamp + 1)

        def process_timer(self, timer: Any) -> None:
            seen[self.key] = timer.tag

    p.add(Timers)


def in_window(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    _produced(p, kind)
    groups = p.stream("values").key_by(mr.of_record(lambda record: record.key))
    groups.window(mr.FixedWindows(1)).group().to("groups")
    _outputs(p, "groups", seen, lambda group: group[0] if len(group) == 1 else group)


def in_retraction(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    _produced(p, kind, twice=True)
    how: dict[str, Any] = {
        "trigger": mr.Repeat(mr.AfterCount(1)),
        "mode": mr.ACCUMULATING_AND_RETRACTING,
    }
    keyed = p.stream("values").key_by(mr.of_record(lambda record: record.key))
    firsts = keyed.window(**how).group().map(lambda group: group[0]).to("firsts", kind.type)
    again = firsts.key_by(mr.of_record(lambda record: record.key))
    again.window(**how).group().to("groups")
    # The value came, was taken back, and came again.
    _outputs(p, "groups", seen, lambda group: group[0] if len(group) == 1 else group)


def in_side_input(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    _produced(p, kind)

    class Reads(mr.Computation):
        inputs = _NUMBERS
        outputs = {"out": int}
        rows = mr.SideInput("values", waits=False)

        def process_record(self, record: Any) -> None:
            if record.value % 2:
                seen[self.key] = self.rows.get(self.key, None if kind.name == "null" else MISSING)

    p.add(Reads)


def in_dead_letter(p: mr.Pipeline, kind: Kind, seen: dict[int, Any]) -> None:
    _produced(p, kind)

    class Raises(mr.Computation):
        inputs = {"values": mr.by_key()}

        def process_record(self, record: Any) -> None:
            raise ValueError("on purpose")

    p.add(Raises)


def _produced(p: mr.Pipeline, kind: Kind, *, twice: bool = False) -> None:
    """Add what produces the stream ``values``, keyed by the position."""

    class Produces(mr.Computation):
        inputs = _NUMBERS
        outputs = {"values": kind.type}

        def process_record(self, record: Any) -> None:
            if twice or record.value % 2 == 0:
                self.produce("values", kind.values[self.key])

    p.add(Produces)


def _outputs(p: mr.Pipeline, stream: str, seen: dict[int, Any], pick: Any) -> None:
    class Reads(mr.Computation):
        inputs = {stream: mr.by_key()}

        def process_record(self, record: Any) -> None:
            if record.pane is None or not record.pane.retraction:
                seen[self.key] = pick(record.value)

    p.add(Reads)


PLACES: dict[str, Program] = {
    "value": in_value,
    "key": in_key,
    "ValueState": _cell(lambda cell, v: cell.set(v), lambda cell, _: cell.get(), mr.ValueState),
    "MapState value": _cell(_put, lambda cell, _: cell.get("entry", MISSING), mr.MapState),
    "MapState entry": _cell(_put_entry, _entry, lambda _: mr.MapState(int)),
    "BagState": _cell(lambda cell, v: cell.add(v), _only, mr.BagState),
    "CombiningState": _cell(
        lambda cell, v: cell.add(v),
        lambda cell, _: cell.get(),
        lambda type: mr.CombiningState(type, lambda _, item: item),
    ),
    "timer tag": in_timer_tag,
    "window": in_window,
    "side input": in_side_input,
    "retraction": in_retraction,
    "dead letter": in_dead_letter,
}

#: Places whose type is that of keys, whatever is declared.
OF_KEYS = ("key", "MapState entry", "timer tag")


def outcomes(place: str, kind: Kind) -> list[Outcome]:
    """Return what becomes of each value of a kind in a place."""
    try:
        return _run(place, kind)
    except Exception as error:
        if len(kind.values) == 1:
            return [raised(error, place)]
    # Each alone tells which of them it was.
    alone = [dataclasses.replace(kind, values=(value,)) for value in kind.values]
    return [outcomes(place, one)[0] for one in alone]


def _run(place: str, kind: Kind) -> list[Outcome]:
    seen: dict[int, Any] = {}
    p = mr.Pipeline("matrix")
    p.dead_letter("letters")
    p.inject("numbers", format=int)
    try:
        PLACES[place](p, kind, seen)
        p.build()
    except Exception as error:
        return [refused(error, "values", "state", "Cells", kind.name)] * len(kind.values)
    count = len(kind.values)
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("numbers", [(2 * n, 10 * n) for n in range(count)])
        h.crash()
        h.inject("numbers", [(2 * n + 1, 10 * n + 2) for n in range(count)])
        h.advance_watermark("numbers", 10 * count)
        letters = [letter.value for letter in h.outputs("letters")]
    made = []
    for n, value in enumerate(kind.values):
        own = [letter for letter in letters if letter.timestamp // 10 == n]
        made.append(_outcome(place, value, seen.get(n, MISSING), own))
    return made


def _outcome(place: str, value: Any, received: Any, letters: list[Any]) -> Outcome:
    if place == "dead letter":
        if [letter.reason for letter in letters] == ["ValueError: on purpose"]:
            return EQUAL
        if not letters:
            return Outcome("lost", f"no letter of {value!r}")
    if letters:
        reason = letters[0].reason
        if "was to take" in reason:
            return Outcome("wrong", f"{value!r} cannot be taken back: {reason[:200]}")
        return lettered(reason, *_names(value))
    return compared(_as_key(value) if place in OF_KEYS else value, received)


def _as_key(value: Any) -> Any:
    """Return the canonical form of a key: of an enum its value, and there is one zero."""
    if isinstance(value, enum.IntEnum):
        return value.value
    return 0.0 if same(value, -0.0) else value


def _names(value: Any) -> tuple[str, ...]:
    return ("values", "key", "tag", "state", type(value).__name__)
