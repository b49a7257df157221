"""Dead letters that are sent again: to whom they failed for, each once, on both planes."""

import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from dead_letters import AGAIN, Dying, Faulty, Mended, Planes, Total, Trip
from hypothesis import given, settings
from hypothesis import strategies as st

import millrace as mr
from millrace.injectors.dead_letters import LetterLog, Letters, bind_letters
from millrace.model.errors import DamagedStore, InputLost
from millrace.store import Mailbox, MemoryBlobs
from tests.live import Feeds, InEpochs, Live


def pipeline(seen: type[mr.Computation], *others: type[mr.Computation]) -> mr.Pipeline:
    p = mr.Pipeline("taxis")
    p.inject("trips", format=Trip)
    p.add(seen, name="Seen")
    for other in others:
        p.add(other)
    p.dead_letter("rejects", again=True)
    return p


def values(h: Any, stream: str = "seen") -> list[Any]:
    return [output.value for output in h.outputs(stream)]


# -- what is sent, and to whom ---------------------------------------------------------------------


def test_a_letter_comes_again_with_its_own_time_and_is_late_if_it_is() -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10), (Trip("T1", 2.0), 11), (Trip("T1", -3.0), 90)])
        h.advance_watermark("trips", 50)
        h.update(pipeline(Mended))

        assert h.send_dead_letters().sent == 2
        assert values(h) == [(2.0, 11, False), (-1.0, 10, True), (-3.0, 90, False)]
        assert h.low_watermark("Seen") == 50


def test_whoever_had_the_record_does_not_get_it_again() -> None:
    with mr.testing.Harness(pipeline(Faulty, Total)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        h.update(pipeline(Mended, Total))
        h.send_dead_letters()

        assert values(h) == [(-1.0, 10, False)]
        assert values(h, "totals") == [-1.0]


def some(trip: Trip) -> bool:
    return trip is not None


@pytest.mark.parametrize(("beside", "steps"), [(1, 1), (0, 2), (0, 0)])
def test_steps_in_front_of_whom_it_failed_for_may_be_others(beside: int, steps: int) -> None:
    def filtered(seen: type[mr.Computation], beside: int, steps: int) -> mr.Pipeline:
        p = mr.Pipeline("taxis")
        trips = p.inject("trips", format=Trip)
        for _ in range(beside):
            p.sink(trips.filter(some).name, print)
        for _ in range(steps):
            trips = trips.filter(some)
        p.add(type("Seen", (seen,), {"inputs": {trips.name: seen.inputs["trips"]}}))
        p.dead_letter("rejects", again=True)
        return p

    with mr.testing.Harness(filtered(Faulty, 0, 1)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        h.update(filtered(Mended, beside, steps))
        assert h.send_dead_letters().sent == 1
        assert values(h) == [(-1.0, 10, False)]
        assert len(values(h, "rejects")) == 1


def test_what_was_sent_is_not_sent_again_and_the_rest_is() -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -n), int(n)) for n in (1.0, 2.0, 3.0)])
        h.update(pipeline(Mended))

        first = h.send_dead_letters(reason="-2.0 is negative")
        assert (first.sent, first.sent_before) == (1, 0)
        h.crash()
        second = h.send_dead_letters(reason="ValueError: -... is negative", limit=1)
        assert (second.sent, values(h)[-1][0]) == (1, -1.0)
        third = h.send_dead_letters()
        assert (third.sent, third.sent_before) == (1, 2)
        assert sorted(fare for fare, *_ in values(h)) == [-3.0, -2.0, -1.0]


def test_a_letter_that_fails_again_is_a_new_one_that_can_be_sent() -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        assert h.send_dead_letters().sent == 1
        assert [letter.reason for letter in values(h, "rejects")] == [
            "ValueError: -1.0 is negative"
        ] * 2

        h.update(pipeline(Mended))
        again = h.send_dead_letters()
        assert (again.sent, again.sent_before) == (1, 1)
        assert values(h) == [(-1.0, 10, False)]


def test_a_record_refused_before_any_computation_goes_to_all_and_by_all_steps() -> None:
    def steps(divide: Any) -> mr.Pipeline:
        p = mr.Pipeline("p")
        p.inject("numbers", format=int).map(divide).to("inverse", format=float)
        p.add(Keep)
        p.dead_letter("rejects", again=True)
        return p

    class Keep(mr.Computation):
        inputs = {"numbers": mr.by(str), "inverse": mr.by(str)}
        outputs = {"kept": tuple}

        def process_record(self, record: mr.Record) -> None:
            self.produce("kept", (record.stream, record.value))

    with mr.testing.Harness(steps(lambda n: 1 / n)) as h:
        h.inject("numbers", [(0, 5)])
        assert values(h, "kept") == []
        h.update(steps(lambda n: 1 / n if n else -1.0))
        h.send_dead_letters()

        assert sorted(values(h, "kept")) == [("inverse", -1.0), ("numbers", 0)]


def test_what_its_format_refused_is_of_it_once_the_format_is_mended() -> None:
    class Whole(msgspec.Struct):
        n: int
        at: int = msgspec.field(name="when", default=0)

    class Fraction(msgspec.Struct):
        n: float
        at: int = msgspec.field(name="when", default=0)

    class Keep(mr.Computation):
        inputs = {"numbers": mr.by("n")}
        outputs = {"kept": float}

        def process_record(self, record: mr.Record) -> None:
            self.produce("kept", record.value.n + record.value.at)

    rows = Feeds("n double, at long", {"p0": [(1.0, 5), (2.5, 6)]})

    def numbers(format: Any) -> mr.Pipeline:
        p = mr.Pipeline("p")
        p.inject("numbers", rows, timestamp="at", low_watermark=mr.BoundedDelay(0), format=format)
        p.add(Keep)
        p.dead_letter("rejects", again=True)
        return p

    with mr.testing.Harness(numbers(Whole)) as h:
        rows.limit = 2
        h.poll("numbers")
        letters = values(h, "rejects")
        assert [one.raw for one in letters] == [b'{"n":1.0,"at":5}', b'{"n":2.5,"at":6}']
        h.update(numbers(Fraction))
        h.send_dead_letters()

        assert sorted(values(h, "kept")) == [6.0, 8.5]


def test_computed_streams_keep_the_producers_key_and_the_pane() -> None:
    class Alarm(mr.Computation):
        inputs = {"counts": mr.by_key()}
        outputs = {"alarms": tuple}
        mended = False

        def process_record(self, record: mr.Record) -> None:
            if not self.mended:
                raise ValueError("no")
            self.produce("alarms", (record.key, record.value, record.window.start))

    class Alarmed(Alarm):
        mended = True

    def counting(alarm: type[mr.Computation]) -> mr.Pipeline:
        p = mr.Pipeline("p")
        trips = p.inject("trips", format=Trip)
        trips.key_by("taxi").window(mr.FixedWindows(100)).count().to("counts")
        p.add(alarm, name="Alarm")
        p.dead_letter("rejects", again=True)
        return p

    with mr.testing.Harness(counting(Alarm)) as h:
        h.inject("trips", [(Trip("T1", 1.0), 110), (Trip("T1", 1.0), 120)])
        h.advance_watermark("trips", 1000)
        h.update(counting(Alarmed))
        h.send_dead_letters()

        assert values(h, "alarms") == [("T1", 2, 100)]


def test_what_has_no_way_any_more_is_a_letter_again_and_nothing_is_lost() -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        renamed = mr.Pipeline("taxis")
        renamed.inject("trips", format=Trip)
        renamed.add(Total)
        renamed.remove("Seen")
        renamed.dead_letter("rejects", again=True)
        h.update(renamed)
        h.send_dead_letters()

        first, second = values(h, "rejects")
        assert second.reason == (
            "sent again: PipelineError: no computation 'Seen' of this pipeline reads stream 'trips'"
        )
        assert (second.encoded, second.timestamp) == (first.encoded, 10)
        assert h.dead_letters(AGAIN) == 1


def test_a_renamed_computation_gets_what_it_failed_on_under_its_old_name() -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        p = mr.Pipeline("taxis")
        p.inject("trips", format=Trip)
        p.add(Mended, name="Looking", was="Seen")
        p.dead_letter("rejects", again=True)
        h.update(p)
        h.send_dead_letters()

        assert values(h) == [(-1.0, 10, False)]


def test_timers_and_what_has_no_time_are_refused_and_counted() -> None:
    class Timed(Faulty):
        def process_record(self, record: mr.Record) -> None:
            self.set_timer("t", at=record.timestamp)

        def process_timer(self, timer: mr.Timer) -> None:
            raise ValueError("unlucky")

    with mr.testing.Harness(pipeline(Timed)) as h:
        h.inject("trips", [(Trip("T1", 1.0), 10), (Trip("T1", 1.0), None), (Trip("T1", 1.0), -5)])
        h.advance_watermark("trips", 20)
        done = h.send_dead_letters()

        assert (done.sent, sorted(done.refused.values())) == (0, [1, 2])
        assert [reason[:16] for reason in sorted(done.refused)] == [
            "refused before t",
            "timers and migra",
        ]


def test_ids_of_the_source_do_not_drop_what_is_sent_again() -> None:
    def with_ids(seen: type[mr.Computation]) -> mr.Pipeline:
        p = mr.Pipeline("taxis")
        p.inject("trips", format=Trip, id="taxi")
        p.add(seen, name="Seen")
        p.sink("seen", print)
        p.dead_letter("rejects", again=True)
        return p

    with mr.testing.Harness(with_ids(Faulty)) as h:
        h.inject("trips", [(Trip("T1", -1.0), 10)])
        h.update(with_ids(Mended))
        h.send_dead_letters()

        assert values(h) == [(-1.0, 10, False)]


def test_without_again_they_cannot_be_sent_and_it_says_how_they_could() -> None:
    p = mr.Pipeline("taxis")
    p.inject("trips", format=Trip)
    p.add(Faulty)
    p.dead_letter("rejects")
    with (
        mr.testing.Harness(p) as h,
        pytest.raises(mr.MillraceError, match=r"again=True"),
    ):
        h.send_dead_letters()


# -- once, through crashes -------------------------------------------------------------------------


@pytest.mark.parametrize("writes", range(8))
def test_wherever_an_epoch_dies_each_letter_counts_once(writes: int) -> None:
    with mr.testing.Harness(pipeline(Faulty)) as h:
        h.inject("trips", [(Trip(f"T{n % 3}", -float(n)), n) for n in range(1, 9)])
        h.update(pipeline(Mended))
        h.crash_in_next_epoch(writes)
        assert h.send_dead_letters().sent == 8
        h.crash()
        assert h.send_dead_letters().sent == 0

        assert sorted(-fare for fare, *_ in values(h)) == list(range(1, 9))


def letters(*numbers: int) -> list[tuple[bytes, mr.DeadLetter]]:
    return [
        (b"%d" % n, mr.DeadLetter("s", "c", "no", "", "", str(n), n, 0, encoded=b"x" * n))
        for n in numbers
    ]


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 40), max_size=30),
            st.none() | st.integers(0, 10),
            st.none() | st.integers(0, 5),
        ),
        max_size=8,
    ),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_a_letter_is_in_the_log_once_whoever_sends_and_dies(
    calls: list[tuple[list[int], int | None, int | None]], size: int, rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("millrace.injectors.dead_letters._LETTERS", size)
        mailbox, wanted, said = Dying(), set[int](), 0
        for numbers, limit, dies in calls:
            mailbox.left = float("inf") if dies is None else dies
            new = set(numbers) - {int(id) for id in LetterLog(mailbox).ids()}
            try:
                done = LetterLog(mailbox).append(letters(*numbers), limit)
                assert done.new == min(len(new), len(new) if limit is None else limit)
                said += done.new
            except ConnectionError:
                pass
            wanted |= set(numbers)
        mailbox.left = float("inf")
        LetterLog(mailbox).append(letters(*wanted))

        # An injector reads the same between offsets, wherever it is cut.
        injector = Letters()
        injector.bind(mailbox)
        offset, read = None, list[bytes]()
        while (end := injector.advance("", offset).offset) != (offset or 0):
            cut = rng.randrange(offset or 0, end + 1)
            read += [row[0] for row in injector.read("", offset, cut)]
            read += [row[0] for row in injector.read("", cut, end)]
            offset = end
        found = Counter(int(msgspec.msgpack.decode(row)["value"]) for row in read)
        assert found == Counter(wanted)


def test_two_who_send_at_once_send_each_letter_once() -> None:
    mailbox = Mailbox(MemoryBlobs())

    class Losing(Mailbox):
        """Somebody else is always a message ahead."""

        def put(self, name: str, data: bytes) -> bool:
            others = letters(*range(len(mailbox.names()), 7))[:2]
            LetterLog(mailbox).append(others)
            return mailbox.put(name, data)

        read, names = mailbox.read, mailbox.names

    done = LetterLog(Losing(MemoryBlobs())).append(letters(*range(7)))
    sent = [one.id for n in range(1, LetterLog(mailbox).last() + 1) for one in
            LetterLog(mailbox).read(n)]  # fmt: skip
    assert sorted(sent) == [b"%d" % n for n in range(7)]
    assert done.new + done.known == 7


def test_a_message_that_is_gone_or_damaged_is_said_so() -> None:
    mailbox = Mailbox(MemoryBlobs())
    for n in range(3):
        LetterLog(mailbox).append(letters(n))
    first, second, _ = mailbox.names()
    data = bytearray(mailbox.read(first) or b"")
    data[-1] ^= 1
    mailbox.remove([first, second])
    mailbox.put(first, bytes(data))
    injector = Letters()
    injector.bind(mailbox)

    with pytest.raises(DamagedStore, match="letters-000000000001"):
        list(injector.read("", 0, 1))
    with pytest.raises(InputLost, match="letters-000000000002"):
        list(injector.read("", 1, 3))
    with pytest.raises(DamagedStore):
        LetterLog(mailbox).append([])


# -- both planes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["keys in columns", "keys by Python"])
def test_in_real_time_a_letter_counts_once_through_crashes(native: bool) -> None:
    planes = Planes(native=native)
    live = Live(planes.pipeline(Faulty))
    planes.bind(live)
    live.boot()
    live.feed(2)
    live.plane.settle(live.clock_us)
    live.plane.end(live.clock_us)
    assert (planes.send(), planes.send()) == (1, 0)

    live.pipeline = planes.pipeline(Mended)
    live.open()
    planes.bind(live)
    live.boot()
    live.plane.settle(live.clock_us)
    for _ in range(2):  # before it is in a mark, and after it
        live.plane.crash()
        live.open()
        planes.bind(live)
        live.boot()
        live.plane.settle(live.clock_us)
        live.plane.mark(live.clock_us)
    live.finish()
    assert live.coordinator.ended
    planes.check()
    assert len(planes.rejects.rows) == 1


@pytest.mark.parametrize("native", [True, False], ids=["keys in columns", "keys by Python"])
def test_by_epochs_a_letter_counts_once(native: bool) -> None:
    planes = Planes(native=native)
    live = Live(planes.pipeline(Faulty), tasks=1)
    live.feed(2)
    InEpochs(live).run(live.clock_us)
    assert planes.send() == 1

    live.pipeline = planes.pipeline(Mended)
    epochs = InEpochs(live)
    bind_letters(live.topology, planes.mailbox)
    epochs.run(live.clock_us)
    live.open()
    live.feed(3)
    epochs = InEpochs(live)
    bind_letters(live.topology, planes.mailbox)
    epochs.run(live.clock_us + mr.SECOND, draining=True)
    planes.check()
    assert len(planes.rejects.rows) == 1


def test_letters_sent_by_epochs_are_not_sent_again_in_real_time() -> None:
    planes = Planes(native=True)
    live = Live(planes.pipeline(Faulty), tasks=1)
    live.feed(2)
    InEpochs(live).run(live.clock_us)
    planes.send()
    live.pipeline = planes.pipeline(Mended)
    epochs = InEpochs(live)
    bind_letters(live.topology, planes.mailbox)
    epochs.run(live.clock_us)

    live.open()
    planes.bind(live)
    live.boot()
    live.finish()
    assert live.coordinator.ended
    planes.check()
    assert len(planes.rejects.rows) == 1
