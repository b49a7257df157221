"""AtPeriod and AfterDelay: triggers that go by a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.value import positive_us
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK, WALL_TIME, TimeDomain
from millrace.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Duration,
    Instant,
    duration_literal,
    timestamp_us,
)


class _ClockTrigger(Trigger):
    """What both share: one timer, set by the first element since the trigger began."""

    per_element = False
    finishes = True

    def __init__(self, domain: TimeDomain) -> None:
        if domain not in (LOW_WATERMARK, WALL_TIME):
            raise PipelineError(
                f"{type(self).__name__}(domain={domain!r}): expected mr.LOW_WATERMARK or "
                "mr.WALL_TIME."
            )
        self.domain = domain

    def _after(self, now_us: int) -> int:
        raise NotImplementedError

    def on_element(self, ctx: Any) -> None:
        """Set the timer, unless it is set."""
        if ctx.get_timer("at") is None:
            now_us = ctx.now(self.domain)
            # Before the first low watermark that clock says nothing; the element does.
            now_us = ctx.timestamp if now_us <= MIN_TIMESTAMP else now_us
            at_us = MAX_TIMESTAMP if now_us >= MAX_TIMESTAMP else self._after(now_us)
            ctx.set_timer("at", at_us, self.domain)

    def _merge(self, ctx: Any, choose: Callable[[list[int]], int]) -> None:
        waiting = [timer.at for source in ctx.sources if (timer := source.get_timer("at"))]
        if waiting:
            ctx.set_timer("at", choose(waiting), self.domain)

    def on_timer(self, ctx: Any) -> None:
        """Fire."""
        ctx.trigger()
        ctx.done()


class AtPeriod(_ClockTrigger):
    """Fires at the next instant that is whole periods from a reference, and is done.

    Counted from the first element: a window to which nothing is added does not fire.
    ``Repeat(AtPeriod("1 min"))`` gives at most one pane a minute.

    Args:
        period: How far apart the instants are.
        reference: One of them; by default 1970 in UTC, so that an hour is a clock's hour.
        domain: ``mr.WALL_TIME`` or ``mr.LOW_WATERMARK``.

    Source: Dataflow patent, "AtPeriod(reference, period, domain)".

    >>> AtPeriod("1 min")
    AtPeriod('1 min')
    """

    def __init__(
        self, period: Duration, reference: Instant = 0, domain: TimeDomain = WALL_TIME
    ) -> None:
        super().__init__(domain)
        self.period_us = positive_us(period, "AtPeriod(period)")
        if isinstance(reference, TimeDomain):
            raise PipelineError(
                f"AtPeriod({period!r}, mr.{reference.name}): the reference, one of the instants, "
                f"comes before the clock. Write AtPeriod({period!r}, domain=mr.{reference.name})."
            )
        self.reference_us = timestamp_us(reference)

    def _after(self, now_us: int) -> int:
        return now_us - (now_us - self.reference_us) % self.period_us + self.period_us

    def on_merge(self, ctx: Any) -> None:
        """Keep the earliest instant that a source waits for."""
        self._merge(ctx, min)

    def __repr__(self) -> str:
        more = f", reference={self.reference_us}" if self.reference_us else ""
        more += ", domain=LOW_WATERMARK" if self.domain == LOW_WATERMARK else ""
        return f"AtPeriod({duration_literal(self.period_us)}{more})"


class AfterDelay(_ClockTrigger):
    """Fires some time after the first element since it began, and is done.

    Args:
        delay: How long after.
        domain: ``mr.WALL_TIME`` or ``mr.LOW_WATERMARK``: by which clock.

    Source: Dataflow patent, appendix A. When windows merge, the latest of their delays counts.

    >>> AfterDelay("1 h", LOW_WATERMARK)
    AfterDelay('1 h', domain=LOW_WATERMARK)
    """

    def __init__(self, delay: Duration, domain: TimeDomain = WALL_TIME) -> None:
        super().__init__(domain)
        self.delay_us = positive_us(delay, "AfterDelay(delay)")

    def _after(self, now_us: int) -> int:
        return now_us + self.delay_us

    def on_merge(self, ctx: Any) -> None:
        """Keep the latest delay that a source waits for."""
        self._merge(ctx, max)

    def __repr__(self) -> str:
        more = ", domain=LOW_WATERMARK" if self.domain == LOW_WATERMARK else ""
        return f"AfterDelay({duration_literal(self.delay_us)}{more})"
