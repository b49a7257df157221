"""Injector tasks of the real-time plane: what they hear of processes, and the ids of records."""

import pytest

import millrace as mr
from millrace.epochlog.reader import end_of
from millrace.kernel import families, row_codec
from millrace.model.errors import CheckpointMismatch
from millrace.runtime.realtime import injector_task
from millrace.runtime.realtime.incarnation_start import decode_note
from millrace.runtime.realtime.injector_task import InjectorTask
from tests.live import Feeds, InEpochs, Kept, Live


class Same(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"same": str}

    def process_record(self, record):
        self.produce("same", str(self.key))


class Promising(Feeds):
    """Its processes promise something, though a policy says what counts."""

    def advance(self, process, offset):
        return super().advance(process, offset)._replace(low_watermark=5)


def test_a_process_without_records_does_not_have_another_s_newest():
    feeds = Promising("key long, value long, at long", {"a": [(1, 1, 20_000_000)], "b": []})
    p, kept = mr.Pipeline("two"), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.stream("events").key_by("key").window(mr.FixedWindows("10 s")).sum("value").to("sums")
    p.sink("sums", kept)
    live = Live(p, tasks=1)
    live.boot()
    live.feed(1)
    live.plane.settle(live.clock_us)
    live.plane.mark(live.clock_us)

    processes = live.run_log.sources["events"].processes
    assert processes["a"].newest_us == 20_000_000
    assert processes["b"].newest_us == mr.MIN_TIMESTAMP


def test_records_that_a_step_makes_of_one_have_ids_of_their_own():
    feeds = Feeds("key long, value long, at long", {"a": [(1, 3, 5), (2, 0, 6), (3, 2, 7)]})
    p, kept = mr.Pipeline("many"), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.stream("events").flat_map(lambda e: range(10 * e["key"], 10 * e["key"] + e["value"])).to(
        "all"
    )
    p.sink("all", kept)
    live = Live(p, tasks=1)
    live.boot()
    live.finish()

    rows = sorted(kept.rows, key=lambda row: row["_id"])
    assert [row["value"] for row in rows] == ["10", "11", "12", "30", "31"]
    assert len({row["_id"] for row in rows}) == 5


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize("at", [-1, 1 << 62, 400 * mr.DAY], ids=["early", "late", "ahead"])
def test_a_time_that_none_can_be_is_refused_among_few_and_many(count, at):
    rows = [(1, 1, 5)] * count + [(2, 2, at)]
    p, kept, letters = mr.Pipeline("times"), Kept(), Kept()
    feeds = Feeds("key long, value long, at long", {"a": rows})
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Same)
    p.dead_letter("rejects")
    p.sink("same", kept)
    p.sink("rejects", letters)
    live = Live(p, tasks=1)
    live.boot()
    live.finish()

    assert len(kept.rows) == count
    assert [row["timestamp"] for row in letters.rows] == [at]


class Seamless(Feeds):
    """Decides nothing before it reads, so nothing but numbers is noted."""

    seamless = True


class Told(mr.Computation):
    """Says each value that it has seen of its key."""

    inputs = {"events": mr.by("key")}
    outputs = {"seen": str}

    def process_record(self, record):
        self.produce("seen", record.value["what"])


@pytest.mark.parametrize("kind", [Feeds, Seamless])
@pytest.mark.parametrize("gone", [False, True])
def test_a_process_that_joins_before_the_first_mark_is_not_taken_for_another(gone, kind):
    """A number with which records have left is no other process's, though no mark knows it yet."""
    feeds = kind("key long, what string, at long", {"b": [(1, "b's", 1000)]})
    p, kept = mr.Pipeline("joining"), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay(0))
    p.add(Told)
    p.sink("seen", kept)
    live = Live(p, tasks=2)
    live.boot()
    feeds.limit = 1
    for level, task in [(0, 0), (0, 1), (1, 0), (1, 1)] * 3:
        live.plane.turn((level, task), live.clock_us)
    live.plane.crash()
    bs = feeds.feeds.pop("b")
    feeds.feeds = {"a": [(1, "a's", 1000)], **({} if gone else {"b": bs})}
    live.open()
    live.boot()
    live.feed(1)
    live.plane.settle(live.clock_us)
    if gone:  # for the length of a mark, which knows no more than its number, and what was decided
        live.plane.mark(live.clock_us)
        assert live.run_log.source_offsets["events"]["b"].number == 0
        live.plane.crash()
        feeds.feeds["b"] = bs
        live.open()
        live.boot()
    live.finish()

    assert sorted(row["value"] for row in kept.rows) == ["a's", "b's"]


def test_a_task_without_processes_waits_as_one_does_whose_processes_have_nothing(monkeypatch):
    p = mr.Pipeline("one")
    feeds = Feeds("key long, value long, at long", {"a": [(1, 1, 5)]})
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Same)
    p.sink("same", Kept())
    live = Live(p, tasks=2)
    made: list[InjectorTask] = []

    def reader(number):
        made.append(InjectorTask(live.runtime(number), number))
        return made[-1]

    monkeypatch.setattr(live.plane, "_reader", reader)
    live.boot()
    live.feed(1)
    live.plane.settle(live.clock_us)
    now, waited = 100.0, list[float]()

    def sleep(seconds):
        nonlocal now
        waited.append(seconds)
        now += seconds

    monkeypatch.setattr(injector_task.time, "sleep", sleep)
    monkeypatch.setattr(injector_task.time, "perf_counter", lambda: now)

    [idle] = [task for task in made if not task.stats.records]
    before_s = idle.stats.waited_s
    sent = list(idle.turn(live.clock_us, 0.02))

    assert (sent, waited) == ([], [0.02])
    assert idle.stats.waited_s - before_s == pytest.approx(0.02)


def test_a_task_that_finds_something_has_not_waited():
    p = mr.Pipeline("one")
    feeds = Seamless("key long, value long, at long", {"a": [(1, 1, 5), (2, 2, 6)]})
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Same)
    p.sink("same", Kept())
    live = Live(p, tasks=1)
    made: list[InjectorTask] = []

    def reader(number):
        made.append(InjectorTask(live.runtime(number), number))
        return made[-1]

    live.plane._reader = reader
    live.boot()
    [task] = made
    feeds.limit = 2
    before_s = task.stats.waited_s
    list(task.turn(live.clock_us, 5.0))

    assert task.stats.records == 2
    assert task.stats.waited_s == before_s


class Ending(Feeds):
    """Its processes end with their last row."""

    def advance(self, process, offset):
        end = super().advance(process, offset).offset
        whole = end == len(self.feeds[process])
        return mr.sources.Advance(end, mr.MAX_TIMESTAMP if whole else None)


class Renamed:
    """A run whose source has a process of another name whenever the one before has ended.

    Args:
        options: Of the injected stream.
    """

    def __init__(self, **options):
        self.feeds = Ending("key long, what string, at long", {"waits": [(9, "never", 0)] * 2})
        p, self.kept = mr.Pipeline("renamed"), Kept()
        p.inject("events", self.feeds, timestamp="at", **options)
        p.add(Told)
        p.sink("seen", self.kept)
        self.live = Live(p, tasks=2)
        self.feeds.limit = 1

    def next(self, n):
        """Have a process of two rows, and a mark when they are read."""
        waits = self.feeds.feeds["waits"]
        self.feeds.feeds = {"waits": waits, f"p{n}": [(n % 3, f"{n}a", n), (n % 3, f"{n}b", n)]}
        self.live.boot()
        self.feeds.limit = 2
        self.feeds.feeds["waits"] = waits[:1] + waits  # it goes on
        self.live.plane.settle(self.live.clock_us)
        self.live.plane.mark(self.live.clock_us)

    def channels(self):
        """Return how many senders each interval knows, at the most."""
        return max(
            sum(row[:1] == families.CHANNELS for row, _ in row_codec.everything(view))
            for caches in self.live.caches
            for interval in range(4)
            for view in [caches.open("Told", interval).view().__enter__()]
        )


def test_processes_that_have_ended_and_are_gone_are_forgotten():
    renamed = Renamed()
    numbers = set()
    for n in range(8):
        renamed.next(n)
        places = renamed.live.run_log.source_offsets["events"]
        assert {f"p{n}", "waits"} <= places.keys()
        numbers.add(places[f"p{n}"].number)
    assert len(numbers) == 8, "no number is given twice"
    said = end_of(renamed.live.state.epochs).completions[-1]
    assert len(said.source_offsets["events"]) <= 3
    assert len(said.sources["events"].processes) <= 3
    notes = [decode_note(note) for note in renamed.live.run_log.live.notes.values()]
    assert max(len(note.consumed) for note in notes) <= 3
    renamed.live.plane.end(renamed.live.clock_us)
    assert renamed.channels() <= 4
    rows = [row["value"] for row in renamed.kept.rows if row["value"] != "never"]
    assert sorted(rows) == sorted(f"{n}{which}" for n in range(8) for which in "ab")


class Backwards(Feeds):
    """Gives what there is between two offsets from its end on."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gone = set()

    def processes(self):
        return [name for name in self.feeds if name not in self.gone]

    def read(self, process, start, end):
        return super().read(process, start, end)[::-1]


def read_in_part():
    """Return a run that has worked on two rows since its last mark, and lost their process."""
    feeds = Backwards(
        "key long, what string, at long",
        {"a": [(1, "a0", 1)], "b": [(1, f"b{n}", 1000) for n in range(3)]},
    )
    p, kept = mr.Pipeline("gone"), Kept()
    p.inject("events", feeds, timestamp="at", low_watermark=mr.BoundedDelay(0))
    p.add(Told)
    p.sink("seen", kept)
    live = Live(p, tasks=2)
    live.boot()
    live.plane.mark(live.clock_us)
    live.feed(2)
    for _ in range(5):
        live.plane.settle(live.clock_us)
    feeds.gone = {"b"}
    live.boot()
    return live, feeds, kept


def test_what_was_decided_of_a_process_that_is_gone_at_a_mark_is_not_forgotten():
    live, feeds, kept = read_in_part()
    live.plane.mark(live.clock_us)
    feeds.gone = set()
    live.feed(3)
    live.boot()
    live.finish()

    assert sorted(row["value"] for row in kept.rows) == ["a0", "b0", "b1", "b2"]


def test_epochs_do_not_go_on_where_a_process_was_read_beyond_the_last_mark():
    live, feeds, kept = read_in_part()
    live.plane.end(live.clock_us)
    with pytest.raises(CheckpointMismatch, match="process 'b' of stream 'events' was gone when"):
        InEpochs(live)

    feeds.gone = set()
    live.open()
    live.boot()
    live.plane.end(live.clock_us)
    epochs = InEpochs(live)
    live.feed(3)
    epochs.run(live.clock_us)
    assert sorted(row["value"] for row in kept.rows) == ["a0", "b0", "b1", "b2"]
