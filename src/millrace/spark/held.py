"""What every run has, of whichever plane: parts that are made when it is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.compile.explanation import Explanation
from millrace.compile.topology import Topology
from millrace.injectors.publisher import WatermarkPublisher
from millrace.spark.console import Quiet
from millrace.spark.housekeeping import Housekeeping
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.metrics.prometheus import Scrapes
from millrace.spark.progress_display import Where
from millrace.store import Mailbox
from millrace.windmill.epochs import Epochs


@dataclass(frozen=True)
class Held:
    """What every run has.

    Attributes:
        topology: The pipeline.
        epochs: Of the checkpoint that it claimed.
        publisher: What injectors publish.
        housekeeping: Collects beside the epochs.
        explanation: How the pipeline runs.
        clock: Returns wall-clock microseconds since 1970.
        console: Spark's share of it.
        shown: Where progress is shown.
        scrapes: Answers Prometheus; None if nobody asked for that.
        lines: Where metrics are kept.
        mailbox: Where others ask something of the run.
    """

    topology: Topology
    epochs: Epochs
    publisher: WatermarkPublisher
    housekeeping: Housekeeping
    explanation: Explanation
    clock: Callable[[], int]
    console: Quiet
    shown: Where
    scrapes: Scrapes | None
    lines: MetricLines
    mailbox: Mailbox
