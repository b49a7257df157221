"""Side inputs against plain Python: rows and records in any order, late ones, crashes."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

NAMES, KEYS, TIMES = "xyz", "abcdef", st.integers(0, 40)

#: A step: rows (name, time) that come together, or records, or how far a low watermark goes on.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(st.tuples(st.sampled_from(NAMES), TIMES), max_size=4)),
        st.tuples(st.just("asks"), st.lists(st.tuples(st.sampled_from(KEYS), TIMES), max_size=4)),
        st.tuples(st.sampled_from(["rows ahead", "asks ahead"]), st.integers(0, 15)),
        st.tuples(st.just("crash"), st.integers(0, 7)),
    ),
    max_size=12,
)


class Ask(mr.Computation):
    inputs = {"asks": mr.by(lambda ask: ask[0])}
    outputs = {"told": list}
    rows = mr.SideInput("rows", lambda row: row[0])
    newest = mr.SideInput("others", lambda row: row[0], waits=False)

    def process_record(self, record):
        tables = [{name: row[1] for name, row in t.items()} for t in (self.rows, self.newest)]
        self.produce("told", [record.value[1], *tables])


def rows_in_force(rows, as_of):
    """Return name -> number of the row that stands, of rows (name, number, time) as they came."""
    found = {}
    for name, number, at in sorted(rows, key=lambda row: row[2]):
        if at <= as_of:
            found[name] = number
    return found


@given(steps)
def test_each_record_sees_what_stands_at_its_time(script):
    p = mr.Pipeline("tables")
    p.inject("rows", format=tuple[str, int])
    p.stream("rows").to("others")
    p.inject("asks", format=tuple[str, int])
    p.add(Ask)
    arrived, waiting, expected = [], {}, {}
    ahead = {"rows": mr.MIN_TIMESTAMP, "asks": mr.MIN_TIMESTAMP}
    with mr.testing.Harness(p, intervals=2) as h:
        for n, (what, said) in enumerate([*script, ("rows ahead", None), ("asks ahead", None)]):
            low_watermark = min(ahead.values())
            if what == "crash":
                h.crash_in_next_epoch(said)
            elif what == "rows":
                new = [(name, 10 * n + i, at) for i, (name, at) in enumerate(said)]
                h.inject("rows", [((name, number), at) for name, number, at in new])
                arrived += new
            elif what == "asks":
                new = [(key, 10 * n + i, at) for i, (key, at) in enumerate(said)]
                h.inject("asks", [((key, number), at) for key, number, at in new])
                for _, number, at in new:
                    if at < low_watermark:
                        expected[number] = rows_in_force(arrived, low_watermark - 1)
                    else:
                        waiting[number] = at
            else:
                stream = what.split()[0]
                moved = mr.MAX_TIMESTAMP if said is None else max(ahead[stream], 0) + said
                ahead[stream] = moved
                h.advance_watermark(stream, moved)
                for number, at in list(waiting.items()):
                    if at < min(ahead.values()):
                        expected[number] = rows_in_force(arrived, waiting.pop(number))
        told = {number: table for number, table, _ in (out.value for out in h.outputs("told"))}
        newest = {number: table for number, _, table in (out.value for out in h.outputs("told"))}

        assert told == expected
        assert len(h.outputs("told")) == len(expected)
        assert all(set(table) >= set(told[number]) for number, table in newest.items())
