"""The example of the contract (docs: "Contract"), word for word, through the Harness."""

import msgspec

import millrace as mr


class Search(msgspec.Struct):
    query: str


class Count(msgspec.Struct):
    query: str
    n: int


class WindowCounter(mr.Computation):
    inputs = {"searches": mr.by("query")}
    outputs = {"counts": Count}
    buckets = mr.MapState(int)

    def process_record(self, record):
        second = record.timestamp // mr.SECOND
        self.buckets[second] = self.buckets.get(second, 0) + 1
        self.set_timer(second, at=(second + 1) * mr.SECOND)

    def process_timer(self, timer):
        self.produce("counts", Count(self.key, self.buckets.pop(timer.tag)), timestamp=timer.at - 1)


def zeitgeist():
    p = mr.Pipeline("zeitgeist")
    p.inject("searches", format=Search)
    p.add(WindowCounter)
    return p


def test_a_window_is_counted_when_the_low_watermark_passes_its_end():
    with mr.testing.Harness(zeitgeist()) as h:
        h.inject("searches", [(Search("rain"), at) for at in (0, 999_999, 1_000_000)])
        h.advance_watermark("searches", 999_999)
        assert h.outputs("counts") == []

        h.advance_watermark("searches", 1_000_000)
        assert h.outputs("counts") == [mr.testing.Output("rain", Count("rain", 2), 999_999)]

        h.advance_watermark("searches", mr.MAX_TIMESTAMP)
        assert h.outputs("counts")[1:] == [mr.testing.Output("rain", Count("rain", 1), 1_999_999)]


def test_a_crash_changes_nothing():
    with mr.testing.Harness(zeitgeist()) as h:
        h.inject("searches", [(Search("rain"), 0), (Search("sun"), 5)])
        h.crash()
        h.inject("searches", [(Search("rain"), 7)])
        h.crash()
        h.advance_watermark("searches", mr.SECOND)
        h.crash()

        assert sorted((o.key, o.value.n) for o in h.outputs("counts")) == [("rain", 2), ("sun", 1)]


def test_a_late_search_is_counted_in_a_window_of_its_own_at_once():
    with mr.testing.Harness(zeitgeist()) as h:
        h.inject("searches", [(Search("rain"), 0)])
        h.advance_watermark("searches", mr.SECOND)
        h.inject("searches", [(Search("rain"), 1)])

        assert [o.value.n for o in h.outputs("counts")] == [1, 1]
        assert h.counters("WindowCounter").late == 1


def test_plain_dicts_do_as_well_as_structs():
    p = mr.Pipeline("zeitgeist")
    p.inject("searches")
    p.add(WindowCounter)
    with mr.testing.Harness(p) as h:
        h.inject("searches", [({"query": "rain"}, 0)])
        h.advance_watermark("searches", mr.MAX_TIMESTAMP)

        assert [o.value for o in h.outputs("counts")] == [Count("rain", 1)]
