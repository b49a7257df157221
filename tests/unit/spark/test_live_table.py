"""The table of computations that `millrace run` draws on a terminal."""

import dataclasses
import io
from typing import Any

from rich.console import Console

import millrace as mr
from millrace.balance.load import RunLoads
from millrace.compile.build import build
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.results import Counters
from millrace.runtime.stuck import Stuck
from millrace.spark.progress_display import (
    LiveTable,
    ProgressDisplay,
    ProgressTarget,
    where_to_show,
)
from millrace.spark.status import Progress, Status
from millrace.store import MemoryHardState

NINE = 1_795_165_200 * mr.SECOND  # 2026-11-20T09:00:00Z


def status(**changed: Any) -> Status:
    """Return the status of a run that has only begun, but for what is given."""
    topology = build(mr.Pipeline("p"))
    run_log = RunLog(topology, MemoryHardState(), intervals=1)
    begun = Progress("p").status(
        run_log, RunLoads(run_log), WatermarkPublisher({}), state="running"
    )
    nothing = {"low_watermarks": {"Counter": mr.MIN_TIMESTAMP}}
    return dataclasses.replace(begun, **(nothing | changed))


def drawn(table: Any) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def counted(records: int, **more: int) -> Counters:
    made = Counters()
    made.records = records
    for name, n in more.items():
        setattr(made, name, n)
    return made


def test_a_line_a_computation_with_rate_lag_and_what_is_wrong() -> None:
    now, stands = [100.0], [status(counters={"Counter[bold]": counted(50)},
                                   low_watermarks={"Counter[bold]": mr.MIN_TIMESTAMP})]  # fmt: skip
    live = LiveTable(lambda: stands[0], lambda: now[0])
    assert drawn(live.table(100, 30))[1] == ["Counter[bold]", "0", "-", "0", "0", "0"]

    stuck = Stuck("Counter[bold]", "'tea'", "record 1", "process 1 on host h", 12.0, "")
    stands[0] = status(
        counters={"Counter[bold]": counted(1250, late=7, dead_letters=2)},
        low_watermarks={"Counter[bold]": NINE},
        newest={"searches": NINE + 5 * mr.SECOND},
        stuck=[stuck],
    )
    now[0] = 100.9
    assert drawn(live.table(100, 30))[1][1] == "0"  # it is as it was a moment ago
    now[0] = 102.0
    header, row = drawn(live.table(100, 30))
    assert header == ["computation", "records/s", "behind", "late", "dead", "letters", "stuck"]
    assert row == ["Counter[bold]", "600", "5", "s", "7", "2", "1"]


def test_a_rate_is_that_of_the_last_seconds() -> None:
    now, records = [0.0], [0]
    live = LiveTable(
        lambda: dataclasses.replace(status(), counters={"Counter": counted(records[0])}),
        lambda: now[0],
    )
    for now[0] in range(10):
        records[0] += 1000 if now[0] < 3 else 0
        rate = drawn(live.table(100, 30))[1][1]
    assert rate == "0"


def test_it_is_drawn_below_the_line_on_a_terminal_only() -> None:
    class Spark:
        conf: dict[str, str] = {}

    terminal = Console(file=io.StringIO(), force_terminal=True, force_interactive=True)
    terminal.file.isatty = lambda: True  # type: ignore[method-assign]
    spark: Any = Spark()
    assert where_to_show("table", spark, terminal) is ProgressTarget.TABLE
    assert where_to_show(True, spark, terminal) is ProgressTarget.TERMINAL
    assert where_to_show("table", spark, Console(file=io.StringIO())) is ProgressTarget.STDERR

    live = LiveTable(lambda: status(counters={"Counter": counted(5)}))
    display = ProgressDisplay(lambda: "job: running", ProgressTarget.TABLE, table=live.table)
    text = [" ".join(line) for line in drawn(display._drawn())]
    assert text[0].endswith("job: running")
    assert text[-1].startswith("Counter 0")


def many(stuck: str) -> LiveTable:
    """Return the table of 40 computations, of which the last are furthest behind, and one hangs."""
    names = [f"Computation{n:02}" for n in range(40)]
    stands = status(
        counters={name: counted(n) for n, name in enumerate(names)},
        low_watermarks={name: NINE - n * mr.SECOND for n, name in enumerate(names)},
        newest={"searches": NINE},
        stuck=[Stuck(stuck, "'tea'", "record 1", "process 1 on host h", 12.0, "")],
    )
    return LiveTable(lambda: stands)


def test_where_not_all_have_room_those_in_most_trouble_are_shown_and_the_others_counted() -> None:
    shown = drawn(many("Computation03").table(80, 12))

    assert len(shown) <= 12
    names = [f"Computation{n:02}" for n in (3, *range(32, 40))]
    assert [row[0] for row in shown[1:-1]] == names, "in their own order"
    assert " ".join(shown[-1]) == ("and 31 in less trouble: `millrace status` has all")
    assert len(drawn(many("Computation03").table(80, 42))) == 41, "all of them, if there is room"
    assert len(drawn(many("Computation03").table(80, 1))) > 2


def test_a_name_that_has_no_room_is_cut_and_numbers_are_not() -> None:
    name = "Departures of all airlines " * 5
    stands = status(counters={name: counted(5, late=1_234_567)}, low_watermarks={name: NINE})
    for width in (70, 80, 120):
        console = Console(file=io.StringIO(), width=width)
        console.print(LiveTable(lambda: stands).table(width, 30))
        _, row, *more = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert more == []
        assert "1,234,567" in row
        assert row.startswith("Departu")
        assert "…" in row
