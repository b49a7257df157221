"""A value that user code changes is changed for nobody else: no second run, step or key sees it."""

import pytest

import millrace as mr


class Adds(mr.Computation):
    """Changes each record; 100 raises."""

    inputs = {"in": mr.by("k")}
    outputs = {"out": int}
    total = mr.ValueState(int)

    def process_record(self, record):
        record.value["n"] += 1
        if record.value["n"] == 101:
            raise ValueError("a hundred")
        self.total.set((self.total.get() or 0) + record.value["n"])
        self.produce("out", self.total.get())


class Pops(Adds):
    def process_record(self, record):
        n = record.value.pop("n")
        if n == 100:
            raise ValueError("a hundred")
        self.produce("out", n)


def harness(computation, format=dict):
    p = mr.Pipeline("p")
    p.inject("in", format=format)
    p.add(computation)
    p.sink("out", print)
    p.dead_letter("letters")
    return mr.testing.Harness(p)


class Asks(mr.AsyncComputation):
    """Changes what it asks with; the first attempt of each call fails after that."""

    inputs = {"in": mr.by("k")}
    outputs = {"out": str}
    calls = mr.CallPolicy(retries=1, backoff="1 ms", max_backoff="1 ms")

    async def call(self, request, call):
        n = request.pop("n")
        if n == 100:
            raise ValueError("a hundred")
        if call.attempt == 1:
            raise ConnectionError("down")
        return n

    def process_response(self, record, response):
        self.produce("out", f"{record.value['n']} {response}")


def test_neither_another_attempt_nor_the_response_sees_what_a_call_changed():
    h = harness(Asks)
    h.inject("in", ROWS)
    assert [out.value for out in h.outputs("out")] == ["1 1", "2 2", "3 3"]
    assert "'n': 100" in h.outputs("letters")[0].value.value


def test_nor_does_another_attempt_at_a_batch():
    attempts = []

    def label(values):
        attempts.append(sorted(value.pop("n") for value in values))
        if 100 in attempts[-1]:
            raise ValueError("a hundred")
        return attempts[-1]

    p = mr.Pipeline("p")
    p.inject("in", format=dict).map_batches(label, max_size=4, max_wait="1 s").to("out", format=int)
    p.sink("out", print)
    p.dead_letter("letters")
    h = mr.testing.Harness(p)
    h.inject("in", ROWS)
    assert sorted(out.value for out in h.outputs("out")) == [1, 2, 3]
    assert attempts == [[1, 2, 3, 100], [1, 2], [3, 100], [100], [3]]


ROWS = [({"k": "a", "n": n}, n) for n in (1, 2, 100, 3)]


@pytest.mark.parametrize(("kind", "sums"), [(Adds, [2, 5, 9]), (Pops, [1, 2, 3])])
def test_rerun_after_an_exception_sees_records_as_they_arrived(kind, sums):
    with harness(kind) as h:
        h.inject("in", ROWS)
        assert [output.value for output in h.outputs("out")] == sums
        (letter,) = h.outputs("letters")
        assert letter.value.value == "{'k': 'a', 'n': 100}"


def test_rerun_in_a_later_bundle_and_over_many_keys():
    with harness(Pops) as h:
        rows = [({"k": f"k{n % 7}", "n": n}, n) for n in range(95, 105)]
        h.inject("in", rows)
        h.inject("in", rows)
        found = sorted(output.value for output in h.outputs("out"))
        assert found == sorted(2 * [n for n in range(95, 105) if n != 100])
        assert len(h.outputs("letters")) == 2


def test_late_record_is_told_as_it_arrived_though_its_key_runs_again():
    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.add(Pops)
    p.sink("out", print)
    p.dead_letter("letters")
    p.late_records("late")
    with mr.testing.Harness(p) as h:
        h.advance_watermark("in", 1_000)
        h.inject("in", [({"k": "a", "n": 1}, 10), ({"k": "a", "n": 100}, 2_000)])
        (late,) = h.outputs("late")
        assert late.value.value == "{'k': 'a', 'n': 1}"
        assert [output.value for output in h.outputs("out")] == [1]


class Pulls(mr.CombineFn):
    """Takes what it adds out of the element; 100 raises."""

    accumulator = list

    def create(self):
        return []

    def add(self, accumulator, element):
        n = element.pop("n")
        if n == 100:
            raise ValueError("a hundred")
        return [*accumulator, n]

    def merge(self, accumulator, other):
        return accumulator + other

    def extract(self, accumulator):
        return accumulator


def test_rerun_in_a_bundle_with_a_signal_sees_elements_as_they_arrived():
    p = mr.Pipeline("p")
    rows = p.inject("in", format=dict)
    rows.filter(lambda value: value["k"] == "now").to("now")
    trigger = mr.Repeat(mr.OnSignal("now", every_key=True))
    rows.filter(lambda value: value["k"] != "now").key_by("k").window(
        mr.GlobalWindow(), trigger=trigger, mode=mr.DISCARDING
    ).aggregate(Pulls()).to("lists")
    p.sink("lists", print)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("in", [*ROWS, ({"k": "now"}, 4)])
        assert [output.value for output in h.outputs("lists")] == [[1, 2, 3]]
        (letter,) = h.outputs("letters")
        assert letter.value.value == "{'k': 'a', 'n': 100}"


def popped(value):
    value.pop("n")
    return value


def kept(value):
    value["n"] = -1
    return True


@pytest.mark.parametrize("change", ["map", "filter"])
def test_two_steps_on_one_stream_see_it_each_as_it_came(change):
    p = mr.Pipeline("p")
    rows = p.inject("in", format=dict)
    changed = rows.map(popped) if change == "map" else rows.filter(kept)
    changed.to("one", dict)
    rows.map(lambda value: value["n"]).to("two", int)
    rows.to("three", dict)
    for stream in ("one", "two", "three"):
        p.sink(stream, print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [({"n": 5}, 0)])
        one = {"map": {}, "filter": {"n": -1}}[change]
        assert [h.outputs(s)[0].value for s in ("one", "two", "three")] == [one, 5, {"n": 5}]


def test_step_does_not_change_what_the_computation_keeps():
    class Keeps(mr.Computation):
        inputs = {"in": mr.by("k")}
        outputs = {"rows": dict}
        rows = mr.ValueState(list)

        def process_record(self, record):
            rows = [*(self.rows.get() or ()), record.value["n"]]
            self.rows.set(rows)
            self.produce("rows", {"rows": rows})
            self.produce("rows", {"rows": rows})

    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.add(Keeps)
    p.stream("rows").map(lambda v: v["rows"].pop()).to("out", int)
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", ROWS)
        assert [output.value for output in h.outputs("out")] == [1, 1, 2, 2, 100, 100, 3, 3]


def test_step_does_not_change_the_list_that_a_grouping_keeps():
    p = mr.Pipeline("p")
    lists = (
        p.inject("in", format=int)
        .key_by(lambda _: "a")
        .window(mr.GlobalWindow(), trigger=mr.Repeat(mr.AfterCount(1)), allow_data_loss=True)
        .group()
    )
    lists.map(lambda v: [*v, v.clear()][:-1]).to("one", list)
    lists.map(len).to("two", int)
    p.sink("one", print)
    p.sink("two", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [(1, 0), (2, 1), (3, 2)])
        assert [o.value for o in h.outputs("one")] == [[1], [1, 2], [1, 2, 3]]
        assert [o.value for o in h.outputs("two")] == [1, 2, 3]


def test_row_of_a_lookup_table_is_nobodys_to_change():
    p = mr.Pipeline("p")
    pairs = p.inject("in", format=str).key_by(lambda v: v).lookup({"a": {"n": 5}})
    pairs.map(lambda pair: pair[1].pop("n")).to("out", int)
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("in", [("a", 0), ("a", 1)])
        assert [output.value for output in h.outputs("out")] == [5, 5]


def test_row_of_a_side_input_is_nobodys_to_change():
    class Reads(mr.Computation):
        inputs = {"in": mr.by("k")}
        outputs = {"out": int}
        rates = mr.SideInput("rates", "r")

        def process_record(self, record):
            self.produce("out", self.rates["x"].pop("n"))

    p = mr.Pipeline("p")
    p.inject("in", format=dict)
    p.inject("rates", format=dict)
    p.add(Reads)
    p.sink("out", print)
    with mr.testing.Harness(p) as h:
        h.inject("rates", [({"r": "x", "n": 5}, 0)])
        h.advance_watermark("rates", 100)
        h.inject("in", [({"k": "a"}, 10), ({"k": "a"}, 11), ({"k": "b"}, 12)])
        h.advance_watermark("in", 50)
        h.inject("rates", [({"r": "y", "n": 6}, 200)])
        h.inject("in", [({"k": "c"}, 60)])
        for stream in ("in", "rates"):
            h.advance_watermark(stream, 300)
        assert [output.value for output in h.outputs("out")] == [5, 5, 5, 5]


def test_choice_of_what_is_aggregated_is_made_once():
    p = mr.Pipeline("p")
    windowed = p.inject("in", format=dict).key_by("k").window(mr.FixedWindows(1_000))
    windowed.sum(lambda value: value.pop("n") // (value["m"])).to("out")
    p.sink("out", print)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("in", [({"k": "a", "n": n, "m": m}, n) for n, m in [(1, 1), (2, 0), (3, 1)]])
        h.advance_watermark("in", 2_000)
        assert [output.value for output in h.outputs("out")] == [4]
        assert len(h.outputs("letters")) == 1
