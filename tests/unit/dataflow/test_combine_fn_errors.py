"""What is told when a CombineFn of a user's raises, or keeps what it may not."""

import traceback
from typing import Any

import msgspec
import pytest

import millrace as mr


class Plain(mr.CombineFn):
    accumulator = int

    def create(self) -> int:
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + value

    def merge(self, accumulator: Any, other: Any) -> Any:
        return accumulator + other

    def extract(self, accumulator: Any) -> Any:
        return accumulator


class Create(Plain):
    def create(self) -> int:
        raise LookupError("nothing to begin with")


class Add(Plain):
    def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator + value["absent"]


class Merge(Plain):
    def merge(self, accumulator: Any, other: Any) -> Any:
        raise LookupError("cannot be put together")


class Extract(Plain):
    def extract(self, accumulator: Any) -> Any:
        return 1 / (accumulator - 6)


class Uncombine(Plain):
    def uncombine(self, accumulator: Any, value: Any) -> Any:
        raise LookupError("cannot be taken out")


class Text(Plain):
    def add(self, accumulator: Any, value: Any) -> Any:
        return "seven"


class Total(msgspec.Struct):
    n: int = 0


class NamedTotal(Total):
    name: str = "all"


class Lossy(Plain):
    accumulator = Total

    def add(self, accumulator: Any, value: Any) -> Any:
        return NamedTotal(value)


class Opaque(Plain):
    accumulator = Any

    def add(self, accumulator: Any, value: Any) -> Any:
        return object()


SESSION = "window [1970-01-01T00:00:00Z, 1970-01-01T00:00:00.000010Z)"
MERGED = "window [1970-01-01T00:00:00Z, 1970-01-01T00:00:00.000025Z)"
FIXED = "window [1970-01-01T00:00:00Z, 1970-01-01T00:00:00.000050Z)"


def drive(
    combine: mr.CombineFn, windows: mr.WindowFn, *, letters: bool = False, **how: Any
) -> mr.testing.Harness:
    """Sum up 1, 2 and 3 of key 'k'; the third comes between the others, then 4 comes late."""
    p = mr.Pipeline("blamed")
    stream = p.inject("elements", format=dict[str, Any])
    values = stream.key_by("key").map(lambda element: element["value"])
    if isinstance(combine, Uncombine):
        first = values.window(windows, mode=mr.ACCUMULATING_AND_RETRACTING, allowed_lateness=100)
        values = first.sum().key_by(lambda total: "k" * (total > 0))
    values.window(windows, allowed_lateness=100).aggregate(combine, **how).to("totals")
    if letters:
        p.dead_letter("rejects")
    h = mr.testing.Harness(p)
    for value, at in ((1, 0), (2, 15), (3, 8)):
        h.inject("elements", [({"key": "k", "value": value}, at)])
    h.advance_watermark("elements", 60)
    h.inject("elements", [({"key": "k", "value": 4}, 5)])
    return h


@pytest.mark.parametrize(
    ("combine", "windows", "told"),
    [
        (Create(), mr.Sessions(10), ["in create\n", SESSION, "value 1\n"]),
        (Add(), mr.Sessions(10), ["in add\n", SESSION, "value 1\n"]),
        (Add(), mr.GlobalWindow(), ["in add\n", "the global window", "value 1\n"]),
        (Merge(), mr.Sessions(10), ["in merge\n", MERGED, "value 3\n"]),
        (Extract(), mr.Sessions(10), ["in extract\n", MERGED, "Timer(tag=Window(0, 25)"]),
        (Extract(), mr.FixedWindows(50), ["in extract\n", FIXED, "tag=Window(0, 50)"]),
        (Uncombine(), mr.FixedWindows(50), ["in uncombine\n", FIXED, "value 6, a retraction"]),
        (Text(), mr.Sessions(10), [SESSION, "value 1\n", "'seven' (str)", "accumulator = int"]),
        (Text(), mr.FixedWindows(50), [FIXED, "value 1\n", "'seven' (str)", "accumulator = int"]),
        (Lossy(), mr.Sessions(10), [SESSION, "(NamedTotal)", "'name'", "accumulator = Total"]),
        (Opaque(), mr.FixedWindows(50), [FIXED, "value 1\n", "(object)", "accumulator = Any"]),
    ],
    ids=repr,
)
def test_an_error_names_key_window_and_element(
    combine: mr.CombineFn, windows: mr.WindowFn, told: list[str]
) -> None:
    with pytest.raises(mr.MillraceError) as refused:
        drive(combine, windows)

    message = str(refused.value)
    for part in (*told, "totals", "key 'k'", "epoch "):
        assert part in message, message
    for internal in ("GroupByKeyAndWindow.", "windows[", "b'", "$", "Paned"):
        assert internal not in message, message


def test_the_users_traceback_is_kept() -> None:
    with pytest.raises(mr.MillraceError) as refused:
        drive(Add(), mr.Sessions(10))

    cause = refused.value.__cause__
    assert isinstance(cause, TypeError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "add"


def test_a_dead_letter_names_the_window() -> None:
    with drive(Extract(), mr.FixedWindows(50), letters=True) as h:
        (letter,) = [output.value for output in h.outputs("rejects")]

    assert (letter.computation, letter.key, letter.value) == ("totals", "'k'", "Window(0, 50)")
    assert FIXED in letter.error
    assert "in extract" in letter.error
    assert letter.reason == "ZeroDivisionError: division by zero"


def test_a_part_of_a_hot_key_names_the_window_too() -> None:
    with pytest.raises(mr.MillraceError, match="in add\n") as refused:
        drive(Add(), mr.Sessions(10), fanout=2)
    assert SESSION in str(refused.value)


def test_a_trigger_names_the_window_too() -> None:
    class Odd(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            raise LookupError("odd")

        def on_merge(self, ctx: Any) -> None:
            pass

    p = mr.Pipeline("trigger")
    values = p.inject("elements", format=int).key_by(lambda value: value % 1)
    values.window(mr.Sessions(10), trigger=Odd()).sum().to("totals")
    with mr.testing.Harness(p) as h, pytest.raises(mr.MillraceError) as refused:
        h.inject("elements", [(1, 0)])
    assert SESSION in str(refused.value)


class EarlyExtract(Plain):
    """Fails on panes of fewer than three elements."""

    def extract(self, accumulator: Any) -> Any:
        return accumulator // (accumulator >= 6)


@pytest.mark.parametrize("windows", [mr.FixedWindows(50), mr.Sessions(20)], ids=repr)
def test_a_window_whose_early_timer_failed_goes_on(windows: mr.WindowFn) -> None:
    p = mr.Pipeline("early")
    p.inject("numbers", format=int).key_by(lambda _: "k").window(
        windows, trigger=mr.RepeatUntil(mr.AfterDelay(5, mr.LOW_WATERMARK), mr.AtWatermark())
    ).aggregate(EarlyExtract()).to("totals")
    p.dead_letter("rejects")
    with mr.testing.Harness(p) as h:
        h.inject("numbers", [(1, 0), (2, 1)])
        h.advance_watermark("numbers", 10)
        h.inject("numbers", [(3, 11)])
        assert h.outputs("totals") == []
        h.advance_watermark("numbers", 100)
        assert [output.value for output in h.outputs("totals")] == [6]
        (letter,) = [output.value for output in h.outputs("rejects")]
    assert letter.reason == "ZeroDivisionError: integer division or modulo by zero"


def test_a_window_that_failed_at_its_end_takes_late_elements() -> None:
    p = mr.Pipeline("late")
    p.inject("numbers", format=int).key_by(lambda _: "k").window(
        mr.FixedWindows(10), allowed_lateness=100
    ).aggregate(EarlyExtract()).to("totals")
    p.dead_letter("rejects")
    with mr.testing.Harness(p) as h:
        h.inject("numbers", [(1, 0), (2, 1)])
        h.advance_watermark("numbers", 20)
        assert len(h.outputs("rejects")) == 1
        h.inject("numbers", [(3, 2)])
        h.advance_watermark("numbers", 200)
        assert [output.value for output in h.outputs("totals")] == [6]
        assert len(h.outputs("rejects")) == 1
