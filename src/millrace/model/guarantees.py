"""Guarantees: what a computation asks of the commit protocol, and may do without.

Source: MillWheel, "Exactly-Once Delivery" (6.1.1), "Strong Productions" (6.1.2), "Weak Productions
and Idempotency" (6.1.3).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from millrace.model.errors import PipelineError


class ProductionMode(enum.Enum):
    """What becomes of productions when an attempt has committed, and its work is asked for again.

    Under either, state, timers and holds change once: the numbered commit sees to that.

    ``STRONG``: productions are in the commit, so what is sent again are the first attempt's bytes,
    whatever user code looked at. ``WEAK``: they are not. User code runs again, over the state, the
    records, the low watermarks and the clock that it had; what it changes is dropped, and what it
    produces is sent. For code whose productions depend on nothing else, or that does not mind.

    In real time ``WEAK`` productions leave before the commit. After a failure user code runs again
    over what came since the last mark, in another order perhaps, and over state that went back with
    it: productions should depend on the record alone. Where what comes again could not be told,
    they are strong all the same: see docs/realtime.md.
    """

    STRONG = "STRONG"
    WEAK = "WEAK"

    def __repr__(self) -> str:
        return self.value


class DeliveryMode(enum.Enum):
    """Whether a record that its injector delivers again reaches user code again.

    ``EXACTLY_ONCE``: not where the injector declares ids, ``p.inject(..., id="event_id")``.
    ``AT_LEAST_ONCE``: it does; no ids are kept. Retries of Millrace's own deliver nothing twice
    under either, but, in real time, what a weak computation sends again after a failure.
    """

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"

    def __repr__(self) -> str:
        return self.value


STRONG = ProductionMode.STRONG
WEAK = ProductionMode.WEAK
EXACTLY_ONCE = DeliveryMode.EXACTLY_ONCE
AT_LEAST_ONCE = DeliveryMode.AT_LEAST_ONCE


@dataclass(frozen=True)
class Guarantees:
    """A computation's two choices.

    >>> Guarantees.of("Filter", WEAK, EXACTLY_ONCE)
    Guarantees(productions=WEAK, delivery=EXACTLY_ONCE)
    """

    productions: ProductionMode = STRONG
    delivery: DeliveryMode = EXACTLY_ONCE

    @classmethod
    def of(cls, computation: str, productions: Any, delivery: Any) -> Guarantees:
        """Return the checked choices of a computation.

        Raises:
            PipelineError: One is something else.
        """
        if not isinstance(productions, ProductionMode):
            raise PipelineError(
                f"computation {computation!r} has productions = {productions!r}. Expected "
                "mr.STRONG or mr.WEAK."
            )
        if not isinstance(delivery, DeliveryMode):
            raise PipelineError(
                f"computation {computation!r} has delivery = {delivery!r}. Expected "
                "mr.EXACTLY_ONCE or mr.AT_LEAST_ONCE."
            )
        return cls(productions, delivery)
