"""A computation with rows in every family: values, maps, bags, timers with holds."""

from __future__ import annotations

import millrace as mr


class Everything(mr.Computation):
    """Of events with a ``key`` and an ``n``; says what its state is, after each and later."""

    inputs = {"events": mr.by("key")}
    outputs = {"said": str}
    count = mr.ValueState(int)
    seen = mr.MapState(int)
    lately = mr.BagState(int)
    #: How long after its record a timer fires.
    later_us = 9

    def process_record(self, record: mr.Record) -> None:
        n = record.value.n
        self.count.set(self.count.get(0) + 1)
        self.seen[n % 3] = n
        self.lately.add(n)
        self.set_timer(n % 2, at=record.timestamp + self.later_us, hold=record.timestamp)
        self.produce("said", f"{record.key} {self.count.get()}")

    def process_timer(self, timer: mr.Timer) -> None:
        bag = sorted(self.lately)
        self.produce("said", f"{self.key} {timer.tag} {sorted(self.seen.items())} {bag}")
        if timer.tag:
            self.lately.clear()
