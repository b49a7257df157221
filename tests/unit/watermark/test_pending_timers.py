"""How many timers are pending is kept up with, and is what a count of all reports says."""

import random

from millrace.watermark.authority import Bulletin
from millrace.watermark.report import PendingTimers, Report


def test_it_is_the_sum_of_the_last_reports_whatever_came_before():
    bulletin, drawn = Bulletin("Counter", range(8)), random.Random(1)
    for epoch in range(200):
        some = drawn.sample(range(8), drawn.randrange(1, 8))
        reports = {}
        for interval in some:
            timers, wall_timers = drawn.randrange(3), drawn.randrange(3)
            due = {"low_watermark_timer_us": epoch} if timers else {}
            due |= {"wall_timer_us": epoch} if wall_timers else {}
            counts = {"timers": timers, "wall_timers": wall_timers}
            reports[interval] = Report(**due, **counts)
        bulletin.record(reports, (1, epoch))

        assert bulletin.pending_timers == PendingTimers.of(bulletin.reports.values())


def test_intervals_that_are_gone_from_the_map_do_not_count():
    bulletin = Bulletin("Counter", [0, 1])
    bulletin.record({0: Report(5, timers=2), 1: Report(7, timers=3)}, (1, 0))

    bulletin.cover([1, 2, 3])
    assert bulletin.pending_timers == PendingTimers(3)

    bulletin.restore({2: Report(5, timers=1), 3: Report(wall_timer_us=1, wall_timers=1)})
    assert bulletin.pending_timers == PendingTimers(4, 1)
