"""Where in event time: each kind of window at its boundaries."""

from typing import Any

import pytest

import millrace as mr


def windows(window_fn: mr.WindowFn, at: int, key: str = "k") -> list[tuple[int | None, int | None]]:
    record = mr.Record(key, None, at, "s")
    return [(window.start, window.end) for window in window_fn.assign(record)]


@pytest.mark.parametrize(("at", "start"), [(0, 0), (9, 0), (10, 10), (19, 10), (20, 20)])
def test_a_fixed_window_has_its_start_and_not_its_end(at: int, start: int) -> None:
    assert windows(mr.FixedWindows(10), at) == [(start, start + 10)]


@pytest.mark.parametrize(("at", "start"), [(2, -7), (3, 3), (12, 3), (13, 13)])
def test_an_offset_shifts_fixed_windows(at: int, start: int) -> None:
    assert windows(mr.FixedWindows(10, offset=3), at) == [(start, start + 10)]


def test_a_phase_shift_is_the_keys_own_and_always_the_same() -> None:
    shifted = mr.FixedWindows(1_000_000, phase_shift=True)

    starts = {key: windows(shifted, 5_000_000, key)[0][0] for key in map(str, range(50))}

    assert len(set(starts.values())) > 40
    assert starts == {key: windows(shifted, 5_000_000, key)[0][0] for key in starts}
    assert all(start <= 5_000_000 < start + 1_000_000 for start in starts.values() if start)


def test_an_element_is_in_size_by_period_sliding_windows() -> None:
    assert windows(mr.SlidingWindows(10, 5), 12) == [(5, 15), (10, 20)]
    assert windows(mr.SlidingWindows(10, 5), 10) == [(5, 15), (10, 20)]
    assert windows(mr.SlidingWindows(10, 5, offset=2), 11) == [(2, 12), (7, 17)]


def test_a_period_that_does_not_divide_the_size() -> None:
    assert windows(mr.SlidingWindows(10, 4), 12) == [(4, 14), (8, 18), (12, 22)]
    assert windows(mr.SlidingWindows(10, 4), 14) == [(8, 18), (12, 22)]


def test_the_global_window_has_no_start_and_no_end() -> None:
    assert windows(mr.GlobalWindow(), 12) == [(None, None)]


@pytest.mark.parametrize(
    ("second", "merged"),
    [
        pytest.param(9, [mr.Window(0, 19)], id="inside the gap"),
        pytest.param(10, [mr.Window(0, 10), mr.Window(10, 20)], id="exactly the gap"),
        pytest.param(11, [mr.Window(0, 10), mr.Window(11, 21)], id="beyond the gap"),
    ],
)
def test_sessions_merge_below_the_gap(second: int, merged: list[mr.Window]) -> None:
    assert mr.Sessions(10).merge([mr.Window(0, 10), mr.Window(second, second + 10)]) == merged


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: mr.FixedWindows(0), "no time at all"),
        (lambda: mr.FixedWindows(-1), "not a duration"),
        (lambda: mr.FixedWindows("soon"), "not a duration"),
        (lambda: mr.FixedWindows(10, offset=10), "below the size"),
        (lambda: mr.SlidingWindows(5, 10), "Did you swap"),
        (lambda: mr.SlidingWindows(10, 0), "no time at all"),
        (lambda: mr.Sessions("0 s"), "no time at all"),
        (lambda: mr.SlidingWindows(0, 0), r"SlidingWindows\(size\): 0 is no time at all"),
        (lambda: mr.SlidingWindows(-10, 5), r"SlidingWindows\(size\): -10 is not a duration"),
        (lambda: mr.SlidingWindows(10, -5), r"SlidingWindows\(period\): -5 is not a duration"),
        (lambda: mr.SlidingWindows(10, 5, offset=5), "below the period"),
        (lambda: mr.SlidingWindows(10, 5, offset=-1), r"SlidingWindows\(offset\): -1 is not"),
        (lambda: mr.FixedWindows(10, offset=-1), r"FixedWindows\(offset\): -1 is not a duration"),
        (lambda: mr.FixedWindows(float("nan")), "nan is not a duration"),
        (lambda: mr.Sessions(-1), r"Sessions\(gap\): -1 is not a duration"),
        (lambda: mr.AfterDelay("0 s"), r"AfterDelay\(delay\): '0 s' is no time at all"),
        (lambda: mr.AtWatermark(float("nan")), "expected a whole number"),
        (lambda: mr.WindowFn(3), r"WindowFn\(assign=3\): expected a function"),
        (lambda: mr.WindowFn(len, "merge"), r"WindowFn\(merge='merge'\): expected a function"),
        (lambda: mr.WindowFn(), "assigns no windows"),
        (lambda: mr.AtPeriod(0), "no time at all"),
        (lambda: mr.AfterDelay(-5), "not a duration"),
        (lambda: mr.AfterCount(0), "above zero"),
        (lambda: mr.AfterBytes("1 kB"), "above zero"),
        (lambda: mr.RepeatCount(mr.AfterCount(1), 0), "above zero"),
        (lambda: mr.Repeat(mr.AtWatermark), "Give it a trigger: AtWatermark"),
        (lambda: mr.FirstOf(), "made of no triggers"),
        (lambda: mr.SequenceOf("now"), "Expected triggers"),
        (lambda: mr.Punctuation("end"), "expected a function"),
        (lambda: mr.AtPeriod("1 s", domain="wall"), "expected mr.LOW_WATERMARK"),
        (lambda: mr.AtPeriod("1 s", mr.LOW_WATERMARK), "domain=mr.LOW_WATERMARK"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Any, complaint: str) -> None:
    with pytest.raises(mr.MillraceError, match=complaint):
        make()


def test_windows_and_triggers_are_values() -> None:
    assert mr.FixedWindows("1 min") == mr.FixedWindows(60 * mr.SECOND) != mr.FixedWindows("2 min")
    assert mr.Repeat(mr.AfterCount(2)) == mr.Repeat(mr.AfterCount(2)) != mr.Repeat(mr.AfterCount(3))
    assert len({mr.Sessions("1 s"), mr.Sessions("1 s"), mr.Sessions("2 s")}) == 2
    for value in (
        mr.FixedWindows("1 h", offset="10 min"),
        mr.SlidingWindows("1 h", "30 s"),
        mr.SequenceOf(
            mr.RepeatUntil(mr.AtPeriod("1 min"), mr.AtWatermark()), mr.Repeat(mr.AtWatermark())
        ),
        mr.FirstOf(mr.AfterBytes(10), mr.RepeatCount(mr.AfterCount(2), 3)),
        mr.AllOf(mr.AfterDelay("1 d", domain=mr.LOW_WATERMARK), mr.AtWatermark()),
    ):
        assert eval(repr(value), vars(mr).copy()) == value


def test_a_class_of_windows_needs_no_beginning_of_its_own(grouping: Any) -> None:
    class Halves(mr.WindowFn):
        def assign(self, record: mr.Record) -> list[mr.Window]:
            return [mr.Window(record.timestamp, record.timestamp + 5)]

    g = grouping(Halves())
    g.add((1, 3))

    assert g.watermark(8) == ["[3, 8) 1 ON_TIME"]


def test_an_aggregation_without_windows_asks_for_them() -> None:
    stream: Any = mr.Pipeline("p").inject("clicks").key_by("user")

    assert not hasattr(stream, "counts")
    with pytest.raises(AttributeError, match=r'\.window\(mr\.FixedWindows\("1 h"\)\)\.count\('):
        stream.count()
