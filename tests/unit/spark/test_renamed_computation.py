"""A run says of a computation what it is called, not what its checkpoint knows it by."""

import millrace as mr
from millrace.spark.metrics.table import values
from millrace.spark.status import Progress


class Counts(mr.Computation):
    inputs = {"clicks": mr.by("page")}
    outputs = {}
    count = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.count.set(self.count.get(0) + 1)


def pipeline(name: str, was: str | tuple[()] = ()) -> mr.Pipeline:
    p = mr.Pipeline("pages")
    p.inject("clicks")
    p.add(Counts, name=name, was=was)
    return p


def test_load_bytes_and_calls_are_under_the_name_of_now() -> None:
    with mr.testing.Harness(pipeline("Counts")) as h:
        h.inject("clicks", [({"page": "a"}, 0)])
        h.update(pipeline("Tallies", was="Counts"))
        h.inject("clicks", [({"page": "a"}, 0)])
        status = Progress("pages").status(
            h._run_log, h._process.loads, h._process.driver.publisher, state="running"
        )

    assert status.counters.keys() == status.load.keys() == {"Tallies"}
    assert status.load["Tallies"].state_rows == 1
    assert values(status)["state_rows"] == {"Tallies": 1}
