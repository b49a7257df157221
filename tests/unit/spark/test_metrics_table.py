"""The table of all metrics in the documentation names what there is, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from millrace.inspect import ComputationLoad
from millrace.spark.metrics.families import families, hook_times
from millrace.spark.metrics.lines import MetricLines
from millrace.windmill.hook_times import HookTimes
from tests.unit.spark.test_status_text import BEFORE_ANYTHING, status

OPERATING = Path(__file__).parents[3] / "docs" / "operating.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| (?:`(\w+)`)? *\| ([^|]+) \| [^|]+ \|")
KEY = re.compile(r"\| `(\w+)` \| [^|]+ \|")

#: End of a name -> the unit that it says.
UNITS = {"_timestamp_seconds": "s since 1970", "_seconds": "s", "_bytes": "bytes", "_ratio": "1"}


@pytest.fixture(scope="module")
def section():
    text = OPERATING.read_text()
    begin = text.index("## All metrics")
    return text[begin : text.index("\n## ", begin + 1)].splitlines()


def test_it_names_each_metric_with_its_type_and_label(section):
    there = {
        f"millrace_{one.name}{'_total' * one.counter}": (
            "counter" if one.counter else "gauge",
            one.label or None,
        )
        for one in families(BEFORE_ANYTHING)
    }
    there[f"millrace_{hook_times(BEFORE_ANYTHING).name}"] = "histogram", "computation"
    rows = [found.groups() for line in section if (found := ROW.fullmatch(line))]

    assert len(rows) == len(there)
    assert {name: (type, label) for name, type, label, _ in rows} == there


def test_its_units_are_those_of_the_names(section):
    for name, _, _, unit in (found.groups() for line in section if (found := ROW.fullmatch(line))):
        said = [of for end, of in UNITS.items() if name.removesuffix("_total").endswith(end)]
        assert unit == said[0] if said else unit not in UNITS.values() or unit == "1"


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
    of_metrics = {one.name for one in families(BEFORE_ANYTHING)}
    listed = {found[1] for line in section if (found := KEY.fullmatch(line))}

    assert keys - of_metrics == listed
