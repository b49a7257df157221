"""The table of all metrics in the documentation names what there is, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from millrace.inspect import ComputationLoad
from millrace.kernel.results import HookTimes
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.metrics.table import COUNTER, METRICS, NUMBERS
from tests.unit.spark.test_status_text import status

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (?:`(\w+)`)? *\| ([^|]+) \| [^|]+ \|")
KEY = re.compile(r"\| `(\w+)` \| [^|]+ \|")


@pytest.fixture(scope="module")
def section():
    text = PAGE.read_text()
    begin = text.index("## All metrics")
    return text[begin : text.index("\n## ", begin + 1)].splitlines()


def test_it_names_each_metric_with_its_kind_label_and_unit(section):
    there = {
        f"millrace_{one.name}{'_total' * (one.kind == COUNTER)}": (
            one.kind,
            one.label or None,
            one.unit,
        )
        for one in METRICS
    }
    rows = [found.groups() for line in section if (found := ROW.fullmatch(line))]

    assert len(rows) == len(there)
    assert {name: (kind, label, unit) for name, kind, label, unit in rows} == there


#: Unit -> end of the name of what has it.
ENDS = {"s since 1970": "_timestamp_seconds", "s": "_seconds", "bytes": "_bytes"}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_ends_with_its_unit(metric):
    ends = [unit for unit, end in ENDS.items() if metric.name.endswith(end)]
    assert ends[:1] == [metric.unit] * (metric.unit in ENDS)


def test_it_names_each_key_of_a_line_in_the_checkpoint(section, tmp_path):
    load = ComputationLoad(
        seconds=1.0,
        committed_bytes=1,
        state_rows=1,
        state_bytes=1,
        busiest=0.5,
        hottest=[],
        times=HookTimes({0: 1}, 0.5),
    )
    lines = MetricLines(tmp_path)
    lines.add(status(load={"Counter": load}), 0)
    lines.close()
    keys = json.loads((tmp_path / "metrics" / "epochs.jsonl").read_text()).keys()
    of_metrics = {one.name for one in NUMBERS}
    listed = {found[1] for line in section if (found := KEY.fullmatch(line))}

    assert keys - of_metrics == listed
