"""Rows that an injector refuses: dead letters beside the good ones, on both planes and in tests."""

import itertools
import random
import re
from functools import partial
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace.connectors.kafka.messages import MessageRows
from millrace.injectors.follower import Polling
from millrace.injectors.injector import NumberedInjector
from millrace.model.errors import RecordRejected
from tests.live import Feeds, InEpochs, Kept, Live

SCHEMA = "key long, value long, at long"
LINES = [
    b'{"key": 1, "value": 7, "at": 1000}',
    b'{"key": 1, "value": 19.99, "at": 2000}',
    b"",
    b"oops",
    b'{"key": 2, "value": 5, "at": 3000}',
    b'{"key": null, "value": 5, "at": 4000}',
    b'{"key": 2, "value": 6, "at": null}',
]


class Sum(mr.Computation):
    """Sums values; by a column its source has keys for, by a function Python has to."""

    outputs = {"sums": int}
    total = mr.CombiningState(int)

    def __init__(self, native):
        self.inputs = {"events": mr.by("key") if native else mr.by(lambda e: e["key"])}

    def process_record(self, record):
        self.total.add(record.value["value"])
        self.produce("sums", self.total.get())


class Files(mr.sources.Files):
    """Files that wait without a clock."""

    def follow(self, places, *, most=100_000):
        return Polling(self, places, most=most, clock=itertools.count().__next__)


class Given(Feeds):
    """Rows of user code; an injector that is read without a limit."""

    def __init__(self, rows, schema=SCHEMA):
        super().__init__(schema, {"a": rows})
        self.limit = len(rows)


def pipeline(source, *, native, letters=True):
    p, kept, rejects = mr.Pipeline("refusals"), Kept(), Kept()
    p.inject("events", source, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Sum(native))
    p.sink("sums", kept)
    if letters:
        p.dead_letter("rejects")
        p.sink("rejects", rejects)
    return p, kept, rejects


def run_through(plane: str, p: mr.Pipeline) -> mr.testing.Harness | None:
    """Run a pipeline over all that its source has; return the Harness, if that is the plane."""
    if plane == "harness":
        h = mr.testing.Harness(p)
        while h.poll("events"):
            pass
        return h
    live = Live(p, tasks=2)
    if plane == "live":
        live.boot()
        live.finish()
    else:
        epochs = InEpochs(live)
        epochs.run(live.clock_us)
        epochs.run(live.clock_us)
    return None


def run(plane, source, *, native):
    """Return the sums, and (reason, place, raw, raw key) of each dead letter in order of place."""
    p, kept, rejects = pipeline(source, native=native)
    h = run_through(plane, p)
    if h is not None:
        counted = h.dead_letters("events") if not native else h.dead_letters()
        sums = [output.value for output in h.outputs("sums")]
        letters = [output.value for output in h.outputs("rejects")]
    else:
        sums = [int(row["value"]) for row in kept.rows]
        letters = [SimpleNamespace(**row) for row in rejects.rows]
        counted = len(letters)
    assert len({(one.place, one.reason) for one in letters}) == len(letters) == counted
    return sorted(sums), sorted(letters, key=lambda one: one.place)


PLANES = ["live", "epochs", "harness"]
NATIVE = pytest.mark.parametrize("native", [True, False], ids=["columns", "Python"])


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("more", [0, 200], ids=["few", "many"])
def test_a_line_that_is_refused_is_a_dead_letter(plane, native, more, tmp_path):
    good = [b'{"key": 3, "value": 1, "at": 5000}'] * more
    (tmp_path / "1.log").write_bytes(b"\n".join(LINES + good) + b"\n")

    sums, letters = run(plane, Files(tmp_path, schema=SCHEMA), native=native)

    assert sums == sorted([5, 7, *range(1, more + 1)])
    by_raw = {bytes(one.raw): one for one in letters if "line" in one.place}
    assert list(by_raw) == [LINES[1], LINES[3]]
    bent, oops = by_raw.values()
    assert re.match(r"column 'value' .* int64: .*19\.99.* is not a whole number", bent.reason)
    assert oops.reason == "DecodeError: JSON is malformed: invalid character (byte 0)"
    assert bent.place == f"{tmp_path / '1.log'}, line 2, byte {len(LINES[0]) + 1}"
    assert oops.place.startswith(f"{tmp_path / '1.log'}, line 4, byte ")
    assert (bent.value, oops.value) == (repr(LINES[1]), "b'oops'")
    assert (bent.timestamp, bent.key, bent.stream) == (None, "", "events")
    others = sorted(one.reason for one in letters if bytes(one.raw) not in by_raw)
    assert len(others) == 2
    assert "the key" in others[0]
    assert others[1].startswith("the timestamp is null")


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
def test_what_a_parse_raises_or_gives_is_a_dead_letter(plane, native, tmp_path):
    def parse(line):
        key, value, at = line.split(b",")
        return int(key), value.decode() if value == b"x" else int(value), int(at)

    lines = [b"1,7,1000", b"1,x,2000", b"broken", b"1,8,3000"]
    (tmp_path / "1.log").write_bytes(b"\n".join(lines))

    sums, letters = run(plane, Files(tmp_path, schema=SCHEMA, parse=parse), native=native)

    assert sums == [7, 15]
    assert [bytes(one.raw) for one in letters] == [b"1,x,2000", b"broken"]
    assert letters[0].reason.startswith("column 'value' has values that are not int64")
    assert letters[1].reason == "ValueError: not enough values to unpack (expected 3, got 1)"


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
def test_a_row_that_is_not_of_the_schema_is_a_dead_letter(plane, native):
    rows = [(1, 7, 1000), (1, "seven", 2000), (1, 8), None, (1, 1 << 63, 3000), (1, 8, 4000)]

    sums, letters = run(plane, Given(rows), native=native)

    assert sums == [7, 15]
    assert [one.place for one in letters] == [f"Given.read('a'), row {n}" for n in (1, 2, 3, 4)]
    assert [one.value for one in letters] == [repr(rows[n]) for n in (1, 2, 3, 4)]
    assert bytes(letters[0].raw) == b'[1,"seven",2000]'
    assert "values that are not int64" in letters[0].reason
    assert letters[1].reason.startswith("it gave a row of 2 values")
    assert letters[2].reason.startswith("it gave a NoneType")
    assert "values that are not int64" in letters[3].reason


class Messages(NumberedInjector):
    """Rows of messages, as Kafka's are made; there may be gaps between their offsets."""

    def __init__(self, values, *, drops=False):
        self._rows = MessageRows(SCHEMA, None, None, drops=drops)
        self.schema = self._rows.schema
        self._values = values

    def processes(self):
        return ["t-3"]

    def advance(self, process, offset):
        return mr.sources.Advance(len(self._values))

    def read_arrow(self, process, start, end):
        yield self._rows.batch(
            process, [_Message(n, self._values[n]) for n in range(start or 0, end)]
        )

    def origins(self, process, offset, count):
        first = offset or 0
        yield from self._origins(process, range(first, first + count))

    def _origins(self, process, offsets):
        return self._rows.origins(process, [_Message(n, self._values[n]) for n in offsets])

    def follow(self, places, *, most=100_000):
        return Polling(self, places, most=most, clock=itertools.count().__next__)


class _Message:
    def __init__(self, offset, value):
        self.offset, self.value = lambda: offset, lambda: value

    def key(self):
        return b"\xffkey"


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
def test_a_message_that_is_refused_is_a_dead_letter_with_its_bytes(plane, native):
    values = [LINES[0], b"\x80", LINES[1]]

    sums, letters = run(plane, Messages(values), native=native)

    assert sums == [7]
    assert [(one.place, bytes(one.raw), bytes(one.raw_key)) for one in letters] == [
        ("topic 't', partition 3, offset 1", b"\x80", b"\xffkey"),
        ("topic 't', partition 3, offset 2", LINES[1], b"\xffkey"),
    ]


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("more", [0, 200], ids=["few", "many"])
def test_a_message_that_is_refused_as_a_row_is_a_dead_letter_with_its_bytes(plane, native, more):
    values = [LINES[5], *LINES[:1] * more, LINES[6], LINES[4], LINES[5]]

    sums, letters = run(plane, Messages(values), native=native)

    assert sums == sorted([5, *range(7, 7 * more + 1, 7)])
    assert [(one.place, bytes(one.raw), bytes(one.raw_key)) for one in letters] == sorted(
        (f"topic 't', partition 3, offset {n}", values[n], b"\xffkey")
        for n in (0, 1 + more, 3 + more)
    )


@NATIVE
@pytest.mark.parametrize("plane", ["epochs", "harness"])
def test_what_a_row_was_is_known_beyond_the_first_epoch_and_past_gaps(plane, native):
    class Gaps(Messages):
        """Every third offset has no message; an epoch reads some offsets, another the others."""

        def advance(self, process, offset):
            return mr.sources.Advance(10 if offset is None else len(self._values))

        def _offsets(self, start):
            return (n for n in range(start or 0, len(self._values)) if n % 3)

        def read_arrow(self, process, start, end):
            yield self._rows.batch(
                process, [_Message(n, self._values[n]) for n in self._offsets(start) if n < end]
            )

        def origins(self, process, offset, count):
            yield from self._origins(process, itertools.islice(self._offsets(offset), count))

    values = [LINES[6] if n in (5, 17, 19) else LINES[0] for n in range(20)]

    _, letters = run(plane, Gaps(values), native=native)

    assert [one.place for one in letters] == [
        f"topic 't', partition 3, offset {n}" for n in (17, 19, 5)
    ]


@NATIVE
@pytest.mark.parametrize("plane", ["harness", "epochs"])
def test_another_message_in_the_place_of_one_that_was_compacted_away_is_not_the_letters(
    plane, native
):
    class Compacted(Messages):
        """When it is read again, its first message is gone: rows cannot be counted any more."""

        def origins(self, process, offset, count):
            yield from self._origins(process, range(1, min(count + 1, len(self._values))))

    _, (letter,) = run(plane, Compacted([LINES[0], LINES[6], LINES[0]]), native=native)

    assert bytes(letter.raw) == b'{"key":2,"value":6}'
    assert "partition 3" not in letter.place


@pytest.mark.parametrize("plane", PLANES)
def test_a_message_that_cannot_be_read_again_leaves_a_letter_with_json(plane, caplog):
    class Gone(Messages):
        def origins(self, process, offset, count):
            raise ConnectionError("the broker is away")

    sums, (letter,) = run(plane, Gone([LINES[0], LINES[6]]), native=True)

    assert sums == [7]
    assert bytes(letter.raw) == b'{"key":2,"value":6}'
    assert "cannot be read again: the broker is away" in caplog.text


@NATIVE
@pytest.mark.parametrize("letters", [True, False], ids=["letters", "no letters"])
@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("more", [0, 200], ids=["few", "many"])
def test_tombstones_that_are_dropped_are_counted_and_are_no_letters(plane, native, letters, more):
    good = [b'{"key": 3, "value": 1, "at": 5000}'] * more
    source = Messages([None, LINES[0], None, LINES[4], *good, None], drops=True)
    p, kept, rejects = pipeline(source, native=native, letters=letters)

    if plane == "harness":
        with mr.testing.Harness(p) as h:
            while h.poll("events"):
                pass
            h.poll("events")
            sums = [output.value for output in h.outputs("sums")]
            dropped = h.checkpoint().overview.streams["events"].dropped
            assert h.dead_letters() == 0
    else:
        live = Live(p, tasks=2)
        if plane == "live":
            live.boot()
            live.finish()
            dropped = live.run_log.sources["events"].dropped
        else:
            epochs = InEpochs(live)
            epochs.run(live.clock_us)
            epochs.run(live.clock_us)
            dropped = epochs.run_log.sources["events"].dropped
        sums = [int(row["value"]) for row in kept.rows]
        assert rejects.rows == []
    assert sorted(sums) == sorted([5, 7, *range(1, more + 1)])
    assert dropped == 3


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
def test_without_a_stream_for_them_the_error_names_stream_place_and_reason(plane, native, tmp_path):
    (tmp_path / "1.log").write_bytes(b"\n".join(LINES[:2]))
    source = Files(tmp_path, schema=SCHEMA)
    p, _, _ = pipeline(source, native=native, letters=False)
    said = r"(?s)stream 'events' was refused.*'value'.*19\.99.*1\.log, line 2, byte 35"

    if plane == "harness":
        with pytest.raises(RecordRejected, match=said):
            mr.testing.Harness(p).poll("events")
        return
    live = Live(p, tasks=2)
    if plane == "live":
        live.boot()
        go = live.finish
    else:
        go = partial(InEpochs(live).run, live.clock_us)
    with pytest.raises(RecordRejected, match=said):
        go()


@NATIVE
def test_letters_come_once_though_tasks_fail(native):
    rows = [(n % 3, "x" if n % 4 == 0 else n, 1000 + n) for n in range(40)]
    whole, letters = run("live", Given(rows), native=native)
    for seed in range(4):
        source = Given(rows)
        source.limit = 0
        p, kept, rejects = pipeline(source, native=native)
        live = Live(p, tasks=2)
        live.boot()
        live.play(random.Random(seed), turns=120, crash=0.1, mark=0.1)
        live.finish()
        assert sorted(int(row["value"]) for row in kept.rows) == whole
        places = sorted(re.sub(r", row \d+", "", row["value"]) for row in rejects.rows)
        assert places == sorted(one.value for one in letters)
        assert len({row["_id"] for row in rejects.rows}) == len(letters) == 10


def test_a_batch_without_refusals_has_no_column_for_them(tmp_path):
    (tmp_path / "1.log").write_bytes(LINES[0])
    files = mr.sources.Files(tmp_path, schema=SCHEMA)
    end = files.advance(str(tmp_path), None).offset
    (piece,) = files.split(str(tmp_path), None, end)
    (batch,) = files.read_arrow(str(tmp_path), *piece)

    assert isinstance(batch, pa.RecordBatch)
    assert batch.schema.names == ["key", "value", "at"]


class Event(msgspec.Struct):
    key: str
    value: int

    def __getitem__(self, name):
        return getattr(self, name)


class Columns(Given):
    """Rows as Arrow has them: nobody has looked at the text."""

    def __init__(self, keys, ids):
        rows = [(None, None, 1, 1_000 + n) for n in range(len(keys))]
        super().__init__(rows, "key string, id string, value long, at long")
        self.keys, self.ids = keys, ids

    def read_arrow(self, process, start, end):
        for batch in super().read_arrow(process, start, end):
            for n, texts in enumerate((self.keys, self.ids)):
                column = pa.array(texts[start or 0 : end]).view(pa.string())
                batch = batch.set_column(n, batch.schema.field(n), column)
            yield batch


@NATIVE
@pytest.mark.parametrize("plane", PLANES)
@pytest.mark.parametrize("more", [0, 200], ids=["few", "many"])
def test_a_key_that_is_not_utf8_is_a_dead_letter_and_an_id_is_bytes(plane, native, more):
    keys = [b"a", b"\xff", b"c", *(b"b%d" % n for n in range(more))]
    ids = [b"1", b"2", b"\xff", *(b"%d" % n for n in range(3, 3 + more))]
    p, kept, rejects = mr.Pipeline("text"), Kept(), Kept()
    policy = mr.BoundedDelay("1 s")
    source = Columns(keys, ids)
    p.inject("events", source, timestamp="at", low_watermark=policy, id="id", format=Event)
    p.add(Sum(native))
    p.sink("sums", kept)
    p.dead_letter("rejects")
    p.sink("rejects", rejects)
    h = run_through(plane, p)
    if h is not None:
        count = len(h.outputs("sums"))
        letters = [output.value for output in h.outputs("rejects")]
    else:
        count, letters = len(kept.rows), [SimpleNamespace(**row) for row in rejects.rows]
    (letter,) = letters
    assert "column 'key' (string): 'utf-8' codec can't decode byte 0xff" in letter.reason
    assert r"b'\xff'" in letter.value
    assert count == 2 + more
