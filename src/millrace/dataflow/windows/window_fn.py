"""WindowFn: how elements get their windows, as a pair of functions.

Source: Dataflow patent, "Windowing API 300": AssignWindows(datum) and MergeWindows(windows).

The vector form assigns many elements at once, as columns. A WindowFn says it in its own class,
beside ``assign``. Who wants it asks here, and learns that there is none where a class further down
assigns one by one in a way of its own.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.dataflow.value import Value, last_word, text
from millrace.model.coroutines import refuse_parameters
from millrace.model.errors import PipelineError, brief
from millrace.model.pane import Window
from millrace.model.record import Record
from millrace.model.time import (
    EARLIEST_RECORD,
    LATEST_RECORD,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    timestamp_us,
)

Ints = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Assigned(NamedTuple):
    """Windows of elements, as columns of equal length.

    Attributes:
        rows: Of each window, the position of its element; ascending.
        starts: Of each window, microseconds.
        ends: The same; after ``starts``.
    """

    rows: npt.NDArray[np.intp]
    starts: Ints
    ends: Ints


def one_each(starts: Ints, ends: Ints) -> Assigned:
    """Return windows of which every element has one."""
    return Assigned(np.arange(len(starts)), starts, ends)


def alike(assigned: Assigned, count: int) -> Ints:
    """Return a number for each of so many elements, the same for two if all their windows are.

    >>> alike(Assigned(np.array([0, 1, 1, 3]), np.array([0, 0, 5, 0]), np.array([5, 5, 9, 5])), 4)
    array([1, 2, 0, 1])
    """
    rows, starts, ends = assigned
    nth = np.arange(len(rows)) - np.searchsorted(rows, rows)
    table = np.full((count, 2 * (int(nth.max(initial=0)) + 1)), MIN_TIMESTAMP - 1, np.int64)
    table[rows, 2 * nth], table[rows, 2 * nth + 1] = starts, ends
    numbers: Ints = np.unique(table, axis=0, return_inverse=True)[1].reshape(count)
    return numbers


def overlaps(codes: Ints, starts: Ints, ends: Ints) -> npt.NDArray[np.intp]:
    """Return where windows begin that overlap none of their key before them.

    Args:
        codes: The number of each window's key, ascending.
        starts: Of the windows, ascending within a key.
        ends: Of the windows.
    """
    other = codes[1:] != codes[:-1]
    latest = ends
    if not (other | (ends[1:] >= ends[:-1])).all():
        # All keys in one run: each key's ends are lifted above those of the key before.
        values, ranks = np.unique(ends, return_inverse=True)
        latest = values[np.maximum.accumulate(ranks + codes * len(values)) - codes * len(values)]
    return np.concatenate(([0], np.flatnonzero(other | (starts[1:] >= latest[:-1])) + 1))


def checked(assigned: Any, count: int, function: str, *, one: bool) -> Assigned:
    """Return the result of a user's ``assign_column``, or raise if it is malformed.

    Args:
        assigned: The result.
        count: Number of elements.
        function: Its name, for messages.
        one: Whether each element must have one window, as where windows merge.
    """
    try:
        rows, starts, ends = map(np.asarray, assigned)
        sizes = {len(rows), len(starts), len(ends)}
        whole = all(np.issubdtype(column.dtype, np.integer) for column in (rows, starts, ends))
    except (TypeError, ValueError):
        sizes, whole = set(), False
    if len(sizes) != 1 or not whole:
        raise PipelineError(
            f"{function} returned {assigned!r}. Expected three columns of integers of one length: "
            "the position of the element, start and end of each window, in microseconds."
        )
    if len(rows) and not (rows[0] >= 0 and rows[-1] < count and (np.diff(rows) >= 0).all()):
        raise PipelineError(
            f"{function} returned windows of elements {rows.tolist()[:10]!r}. Expected positions "
            f"from 0 to {count - 1}, ascending."
        )
    if one and rows.tolist() != list(range(count)):
        raise PipelineError(
            f"{function} returned {len(rows)} windows of {count} elements. Expected one of "
            "each, as its windows merge."
        )
    wrong = np.flatnonzero((starts >= ends) | (starts < MIN_TIMESTAMP) | (ends > MAX_TIMESTAMP))
    if len(wrong):
        n = int(wrong[0])
        raise PipelineError(
            f"{function} returned a window from {starts[n]} to {ends[n]}. A window is a half-open "
            "interval [start, end) of microseconds, with start < end."
        )
    return Assigned(rows.astype(np.intp), starts.astype(np.int64), ends.astype(np.int64))


class WindowFn(Value):
    """Assigns elements to windows, and says which windows of a key merge.

    A value: equal by what it was made with, and it must pickle. Derive from it, or give it the two
    functions::

        class Halves(mr.WindowFn):
            def assign(self, record):
                return [mr.Window(record.timestamp, record.timestamp + 30 * mr.MINUTE)]


        mr.WindowFn(assign=lambda record: [...], merge=lambda windows: [...])

    Args:
        assign: See :meth:`assign`.
        merge: See :meth:`merge`; None if windows do not merge.
    """

    #: Whether windows of a key can merge.
    merges = False
    #: Whether windows end, so that the low watermark can pass them.
    ends = True
    #: Whether ``merge`` makes one of the windows that overlap, and of no others.
    joins_overlapping = False

    _assign: Callable[[Record], Iterable[Window]]
    _merge: Callable[[Sequence[Window]], Iterable[Window]] | None = None

    def __init__(
        self,
        assign: Callable[[Record], Iterable[Window]] | None = None,
        merge: Callable[[Sequence[Window]], Iterable[Window]] | None = None,
    ) -> None:
        if assign is None and merge is None and type(self).assign is not WindowFn.assign:
            return
        if assign is None:
            raise PipelineError(
                "WindowFn() assigns no windows. Give it functions, WindowFn(assign=..., "
                "merge=...), or derive a class with an assign method from it."
            )
        for name, function in (("assign", assign), ("merge", merge)):
            if function is not None and not callable(function):
                raise PipelineError(
                    f"WindowFn({name}={function!r}): expected a function that returns windows."
                )
        refuse_parameters(assign, "WindowFn(assign=", "record")
        if merge is not None:
            refuse_parameters(merge, "WindowFn(merge=", "windows")
        self._assign, self._merge = assign, merge
        self.merges = merge is not None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "merge" in vars(cls) and "merges" not in vars(cls):
            cls.merges = True

    def assign(self, record: Record) -> Iterable[Window]:
        """Return the windows of an element: none drops it, several make it several elements.

        Called once for every element, in the stage that groups. Must depend on nothing but the
        record: its timestamp, value and key.
        """
        return self._assign(record)

    def assign_column(self, timestamps: Ints, hashes: Hashes) -> Assigned:
        """Return the windows of many elements at once: those that ``assign`` returns of each.

        Optional. With it, elements are combined before the shuffle and windows are kept as columns,
        as those of ``FixedWindows`` are. It goes by timestamps, and keys' hashes, alone.

        Args:
            timestamps: Microseconds.
            hashes: Of the elements' keys.

        Returns:
            Three columns of equal length, one entry for each window: the position of its element,
            ascending; its start; its end. Where windows merge, each element must have one.
        """
        raise NotImplementedError(f"{type(self).__name__} has no assign_column")

    def alike(self, timestamps: Ints, hashes: Hashes) -> Ints:
        """Return a number for each element, the same for two of a key if all their windows are."""
        return alike(assigned_columns(self, timestamps, hashes), len(timestamps))

    def merge(self, windows: Sequence[Window]) -> Iterable[Window]:
        """Return the windows that these become: the same, or some of them as one.

        Called whenever a key gets a new window, with all windows of the key that still count,
        ordered by start. Each one given must lie within exactly one returned, and each returned
        must hold at least one of those given and reach no further than they do.
        """
        if self._merge is None:
            return windows
        return self._merge(windows)

    def __repr__(self) -> str:
        if type(self) is WindowFn:
            functions = [self._assign, *([self._merge] if self._merge is not None else [])]
            return f"WindowFn({', '.join(map(text, functions))})"
        return super().__repr__()


def end_us(window: Window) -> int:
    """Return when a window ends; the global window does at the end of time."""
    return MAX_TIMESTAMP if window.end is None else window.end


def last_instant_us(end: int) -> int:
    """Return the event time of a pane at the end of a window: a record's, whenever that is.

    >>> last_instant_us(10), last_instant_us(LATEST_RECORD + 10) == LATEST_RECORD
    (9, True)
    """
    return min(max(end - 1, EARLIEST_RECORD), LATEST_RECORD)


def assignment(window_fn: WindowFn, *, ends: bool = False) -> Callable[[Record], Iterable[Window]]:
    """Return the assign function of a WindowFn, checking what it returns if it is a user's.

    Millrace's own are right by construction, and called for every record.

    Args:
        window_fn: The WindowFn.
        ends: Whether each window must have an end, as nothing would come of one without.
    """
    if is_ours(window_fn):
        return window_fn.assign
    return partial(_checked_assignment, window_fn, ends)


def is_ours(window_fn: WindowFn) -> bool:
    """Return whether a WindowFn is one of Millrace's own, which need no check."""
    return type(window_fn).__module__.startswith("millrace.") and type(window_fn) is not WindowFn


def has_columns(window_fn: WindowFn) -> bool:
    """Return whether windows of many elements can be assigned, and merged, at once."""
    kind = type(window_fn)
    if not last_word(kind, ("assign_column",), ("assign",)) or kind.assign_column is _NONE:
        return False
    return not window_fn.merges or joins_overlapping(window_fn)


def joins_overlapping(window_fn: WindowFn) -> bool:
    """Return whether windows merge where they overlap, and nowhere else."""
    kind = type(window_fn)
    return window_fn.joins_overlapping and last_word(kind, ("joins_overlapping",), ("merge",))


def assigned_columns(window_fn: WindowFn, timestamps: Ints, hashes: Hashes) -> Assigned:
    """Return the windows of elements, checked if they are of a user's WindowFn."""
    assigned = window_fn.assign_column(timestamps, hashes)
    if is_ours(window_fn):
        return assigned
    return checked(assigned, len(timestamps), f"{window_fn!r}.assign_column", one=window_fn.merges)


_NONE = WindowFn.assign_column


def _checked_assignment(window_fn: WindowFn, ends: bool, record: Record) -> list[Window]:
    windows = _checked(window_fn.assign(record), f"{window_fn!r}.assign")
    if ends and Window() in windows:
        raise PipelineError(
            f"{window_fn!r}.assign returned the global window, over a stream without end and with "
            "a trigger that waits for the end: it would never fire. Return windows that end, or "
            'choose another trigger, such as mr.Repeat(mr.AtPeriod("1 min")).'
        )
    return windows


def _checked(returned: Any, function: str) -> list[Window]:
    """Return what a user's function returned as a list of windows, or say what is wrong."""
    if isinstance(returned, Window) or not isinstance(returned, Iterable):
        raise PipelineError(
            f"{function} returned {brief(returned)}. Expected a list of windows: "
            "[mr.Window(start, end)], or [] for none."
        )
    windows = list(returned)
    for n, window in enumerate(windows):
        if not isinstance(window, Window):
            raise PipelineError(
                f"{function} returned {brief(window)} ({type(window).__name__}). Expected "
                "windows: [mr.Window(start, end)], in microseconds."
            )
        if type(window.start) is not int:
            window = windows[n] = _in_microseconds(window)
        if window != Window() and not (
            type(window.start) is int
            and type(window.end) is int
            and MIN_TIMESTAMP <= window.start < window.end <= MAX_TIMESTAMP
        ):
            raise PipelineError(
                f"{function} returned {brief(window)}. A window is a half-open interval [start, "
                "end) of microseconds or datetimes, with start < end; the global one is "
                "mr.Window()."
            )
    return windows


def _in_microseconds(window: Any) -> Window:
    """Return a window that was given by datetimes as one that is not; any other as it is."""
    if isinstance(window.start, dt.datetime) and isinstance(window.end, dt.datetime):
        return Window(timestamp_us(window.start), timestamp_us(window.end))
    return window  # type: ignore[no-any-return]


def checked_merge(
    window_fn: WindowFn, windows: Sequence[Window]
) -> list[tuple[Window, list[Window]]]:
    """Return (window, those it is merged from) of a user's merge function.

    Raises:
        PipelineError: It invents a window, loses one, or stretches one beyond those it is made of.
    """
    returned = _checked(window_fn.merge(tuple(windows)), f"{window_fn!r}.merge")
    merged = sorted(set(returned), key=lambda w: (w.start or 0, end_us(w)))
    parts: list[tuple[Window, list[Window]]] = [(window, []) for window in merged]
    for window in windows:
        holders = [
            sources
            for whole, sources in parts
            if whole.start is None
            or (
                window.start is not None
                and whole.start <= window.start
                and end_us(window) <= end_us(whole)
            )
        ]
        if len(holders) != 1:
            where = "no window" if not holders else f"{len(holders)} windows"
            raise PipelineError(
                f"{window_fn!r}.merge was given {brief(list(windows))} and returned "
                f"{brief(merged)}: "
                f"{brief(window)} is in {where} of those. Each must be in exactly one."
            )
        holders[0].append(window)
    for whole, sources in parts:
        if (
            not sources
            or whole.end != max(sources, key=end_us).end
            or (
                whole.start != min(source.start or 0 for source in sources)
                and whole.start is not None
            )
        ):
            raise PipelineError(
                f"{window_fn!r}.merge was given {brief(list(windows))} and invented "
                f"{brief(whole)}. A merged "
                "window must begin with the first and end with the last of those it is made of."
            )
    return parts
