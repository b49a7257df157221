"""For every durable write of an epoch: die right before it, recover, and nothing is different.

Not even for weak productions, since all user code here is deterministic.
"""

import pytest

import millrace as mr

INTERVALS = 2
#: The most that an epoch writes: manifest, a commit for each interval of three computations,
#: completion. Dying before write number WRITES is not dying at all.
WRITES = 1 + 3 * INTERVALS + 1


class Split(mr.Computation):
    """Level 1: counts words a second by low watermark, and sends on what it sees."""

    inputs = {"lines": mr.by(lambda line: len(line))}
    outputs = {"words": str, "lengths": int}
    lines = mr.BagState(str)

    def process_record(self, record):
        self.lines.add(record.value)
        for word in record.value.split():
            self.produce("words", word)
        self.set_timer("flush", at=record.timestamp + 10)
        self.hold(record.timestamp)

    def process_timer(self, timer):
        self.produce("lengths", len(list(self.lines)), timestamp=timer.at - 1)
        self.lines.clear()
        self.hold(None)


class Count(mr.Computation):
    """Level 2: counts by key, both timer domains."""

    inputs = {"words": mr.by(lambda word: word)}
    outputs = {"counts": list}
    n = mr.ValueState(int)
    by_bucket = mr.MapState(int)
    may_produce_late = mr.UNBOUNDED_PAST

    def process_record(self, record):
        self.n.set(self.n.get(0) + 1)
        bucket = record.timestamp // 10
        self.by_bucket[bucket] = self.by_bucket.get(bucket, 0) + 1
        self.set_timer(bucket, at=(bucket + 1) * 10)
        self.set_timer("wall", at=self.wall_time + 5, domain=mr.WALL_TIME)
        self.produce("counts", [self.key, "so far", self.n.get()])

    def process_timer(self, timer):
        if timer.domain == mr.WALL_TIME:
            self.produce("counts", [self.key, "wall", self.n.get()], timestamp=0)
        else:
            count = self.by_bucket.pop(timer.tag)
            self.produce("counts", [self.key, timer.tag, count], timestamp=timer.at - 1)


class Total(mr.Computation):
    """Level 3: a fan-in of two levels."""

    inputs = {"counts": mr.by(lambda value: str(value[1])), "lengths": mr.by(lambda _: "lengths")}
    outputs = {"totals": list}
    total = mr.CombiningState(int)

    def process_record(self, record):
        self.total.add(1 if record.stream == "lengths" else record.value[2])
        self.set_timer("t", at=record.timestamp + 3)
        self.produce("totals", [self.key, self.total.get(), record.late, record.id.hex()])

    def process_timer(self, timer):
        self.produce("totals", [self.key, self.total.get(), timer.at])


SCRIPT = [
    ("inject", "lines", [("to be or", 1), ("not to be", 2), ("a", 3), ("", 4)]),
    ("inject", "lines", [("to", 12), ("be", 25), ("late to", 2)]),
    ("advance_clock", 3),
    ("advance_watermark", "lines", 13),
    ("advance_clock", 8),
    ("inject", "lines", [("to be", 1), ("or not", 30)]),
    ("advance_watermark", "lines", 31),
    ("advance_clock", 20),
    ("advance_watermark", "lines", mr.MAX_TIMESTAMP),
]


def run(crash=lambda _h, _step: None, weak=()):
    p = mr.Pipeline("three levels")
    p.inject("lines", format=str)
    for computation in (Split, Count, Total):
        p.add(computation, productions=mr.WEAK if computation in weak else mr.STRONG)
    told = []
    with mr.testing.Harness(p, intervals=INTERVALS) as h:
        for step, (method, *arguments) in enumerate(SCRIPT):
            crash(h, step)
            getattr(h, method)(*arguments)
            told.append(
                [
                    (h.low_watermark(name), h.output_low_watermark(name), repr(h.counters(name)))
                    for name in ("Split", "Count", "Total")
                ]
            )
        return told, {
            stream: [(output, output.id) for output in h.outputs(stream)]
            for stream in ("lines", "words", "lengths", "counts", "totals")
        }


@pytest.fixture(scope="module")
def undisturbed():
    told, outputs = run()
    assert all(outputs.values()), "the script must reach every stream"
    for stream, found in outputs.items():
        assert len({id for _, id in found}) == len(found), f"ids on {stream} are not unique"
    return told, outputs


#: Computations whose productions are weak.
WEAK = {"strong": (), "weak": (Split, Count, Total), "mixed": (Count,)}
weak = pytest.mark.parametrize("weak", WEAK.values(), ids=list(WEAK))


@weak
@pytest.mark.parametrize("writes", range(WRITES + 1))
@pytest.mark.parametrize("crashing", range(len(SCRIPT)), ids=lambda n: f"step{n}")
def test_a_crash_at_this_write_of_this_epoch_changes_nothing(undisturbed, crashing, writes, weak):
    def crash(h, step):
        if step == crashing:
            h.crash_in_next_epoch(writes)

    assert run(crash, weak) == undisturbed


@weak
@pytest.mark.parametrize("writes", range(WRITES + 1))
def test_a_crash_at_this_write_of_every_epoch_changes_nothing(undisturbed, writes, weak):
    assert run(lambda h, _step: h.crash_in_next_epoch(writes), weak) == undisturbed


@weak
def test_a_crash_between_all_epochs_changes_nothing(undisturbed, weak):
    assert run(lambda h, _step: h.crash(), weak) == undisturbed
