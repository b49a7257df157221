"""Effects: what a bundle changes, before anything of it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from millrace.watermark.report import Report
from millrace.windmill.counters import Counters
from millrace.windmill.load import NO_LOAD, Load
from millrace.windmill.routing import RowsBuilder


@dataclass(slots=True)
class Effects:
    """What a bundle changes: nothing has been written yet.

    Attributes:
        mutations: Row -> new value, or None where it is deleted.
        productions: What leaves once that is durable.
        report: What is pending then.
        counters: What happened.
        load: What it cost, but for the commit, which is not made yet.
    """

    mutations: dict[bytes, bytes | None]
    productions: RowsBuilder
    report: Report
    counters: Counters = field(default_factory=Counters)
    load: Load = NO_LOAD
