"""Mixes: pipelines as people write them, each with its input and an oracle of a few lines.

A mix adds its streams to a pipeline that it may share with others. What comes of it does not depend
on when records arrive: what an oracle says is compared with what the sinks have in the end. Oracles
are plain Python over the same rows, and know nothing of Millrace.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow.parquet as pq

import millrace as mr
from tests.spark.processes.live_pipeline import START, Ticking

PROCESSES = ("a", "b")
#: Between two rows of a process, in event time.
STEP = 100_000
#: Of three rows that the pipeline of numbers reads, a mix reads one.
SHARE = 3

#: Rows of a sink, each with how often it is there; what a retraction takes back is not.
Rows = Counter[tuple[Any, ...]]


def number(*what: Any) -> int:
    """Return a number that looks drawn, and is the same for the same."""
    return zlib.crc32(repr(what).encode())


class Feed(Ticking):
    """Has the rows that a function makes of process and number."""

    def __init__(
        self, root: Path, schema: str, make: Callable[[str, int], tuple[Any, ...]]
    ) -> None:
        super().__init__(root)
        self.schema, self.make = schema, make

    def allowed(self) -> int:
        return super().allowed() // SHARE

    def read(self, process: str, start: Any, end: Any) -> Any:
        for n in range(start or 0, end):
            yield self.make(process, n)


class Mix:
    """One of them.

    Args:
        root: Folder of the input and the sinks.
        conninfo: Of a PostgreSQL server.
    """

    name: ClassVar[str]

    def __init__(self, root: Path, conninfo: str = "") -> None:
        self.root, self.conninfo = root, conninfo

    def build(self, p: mr.Pipeline) -> None:
        """Add streams, computations and sinks to a pipeline."""
        raise NotImplementedError

    def expected(self, rows: int) -> dict[str, Rows]:
        """Return what each sink has in the end, where each process has had so many rows."""
        raise NotImplementedError

    def found(self) -> dict[str, Rows]:
        """Return what each sink has."""
        return {sink: self.parquet(sink, *columns) for sink, columns in self.sinks.items()}

    #: Sink -> its columns that count.
    sinks: ClassVar[dict[str, tuple[str, ...]]] = {}

    def disturb(self, run: Any) -> None:
        """Do what somebody does from outside meanwhile, every second."""

    def inject(self, p: mr.Pipeline, stream: str, make: Any, schema: str, **how: Any) -> Any:
        feed = Feed(self.root, schema, make)
        policy = how.pop("low_watermark", mr.BoundedDelay("1 s"))
        return p.inject(stream, feed, timestamp="at", low_watermark=policy, **how)

    def sink(self, p: mr.Pipeline, stream: str) -> None:
        p.sink(stream, mr.sinks.Parquet(self.root / "disk" / stream))

    def parquet(self, stream: str, *columns: str) -> Rows:
        net: Rows = Counter()
        for row in rows_of(self.root / "disk" / stream):
            net[tuple(row[column] for column in columns)] += -1 if row.get("_retraction") else 1
        return Counter({row: count for row, count in net.items() if count})


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that the complete marks have in a folder."""
    for file in folder.glob("epoch=*/*.parquet"):
        yield from pq.ParquetFile(file).read().to_pylist()


def each(rows: int, make: Callable[[str, int], tuple[Any, ...]]) -> list[Any]:
    """Return the rows that all processes had."""
    return [make(process, n) for process in PROCESSES for n in range(rows)]


# -- joins, and retractions through a second grouping ----------------------------------------------


class Order(msgspec.Struct, frozen=True):
    id: str
    item: int
    cents: int


class Payment(msgspec.Struct, frozen=True):
    order: str
    by: str


class Paid(msgspec.Struct, frozen=True):
    id: str
    by: str | None


class Amount(msgspec.Struct, frozen=True):
    item: int
    cents: int


def order(process: str, n: int) -> tuple[Any, ...]:
    drawn = number("order", process, n)
    return f"{process}{n}", drawn % 5, drawn % 1000, START + n * STEP


def payment(process: str, n: int) -> tuple[Any, ...]:
    """Of three orders in four; of some of them too late to belong to them."""
    drawn = number("payment", process, n)
    paid = f"{process}{n}" if drawn % 4 else f"nobody's {process}{n}"
    return paid, "cash" if drawn % 3 else "card", START + n * STEP + drawn % 9_973 * 1000


def paid(pair: tuple[Order, Payment | None]) -> Paid:
    return Paid(pair[0].id, pair[1] and pair[1].by)


def amount(pair: tuple[Order | None, Payment | None]) -> Amount:
    """What an order comes to: nothing while it is not paid; a payment of no order is item -1."""
    bought, paid_by = pair
    if bought is None:
        return Amount(-1, 1)
    return Amount(bought.item, bought.cents if paid_by else 0)


class Joins(Mix):
    """By time, and for ever with pairs that are taken back; sums follow what is taken back."""

    name = "joins and retractions"
    sinks: ClassVar = {"paid": ("id", "by"), "sums": ("_key", "value")}

    def build(self, p: mr.Pipeline) -> None:
        orders = self.inject(
            p, "orders", order, "id string, item long, cents long, at long", format=Order
        ).key_by("id")
        payments = self.inject(
            p, "payments", payment, "order string, by string, at long", format=Payment,
            low_watermark=mr.BoundedDelay("10 s"),
        ).key_by("order")  # fmt: skip
        orders.join(payments, "left", within=("0 s", "5 s")).map(paid).to("paid", Paid)
        totals = orders.join(payments, "outer").map(amount).key_by("item")
        often = mr.Repeat(mr.AfterCount(1))
        (
            totals.window(trigger=often, mode=mr.ACCUMULATING_AND_RETRACTING)
            .sum("cents")
            .to("sums", int)
        )
        self.sink(p, "paid")
        self.sink(p, "sums")

    def expected(self, rows: int) -> dict[str, Rows]:
        payments = {row[0]: row for row in each(rows, payment)}
        pairs: Rows = Counter()
        sums: dict[int, int] = defaultdict(int)
        for id, item, cents, at in each(rows, order):
            found = payments.pop(id, None)
            near = found is not None and found[2] - at < 5 * mr.SECOND
            pairs[id, found[1] if found and near else None] += 1
            sums[item] += cents if found else 0
        sums[-1] = len(payments)
        return {"paid": pairs, "sums": Counter((str(item), sum) for item, sum in sums.items())}


# -- sessions, which signals and calls have fire early ---------------------------------------------

GAP = timedelta(microseconds=2_000_500)
USERS = 7


def click(process: str, n: int) -> tuple[Any, ...]:
    """Four seconds of clicks, and then five of silence; of users who come and go in them."""
    drawn = number("click", process, n)
    at = START + n * STEP + n // 40 * 5 * mr.SECOND + drawn % 89 * 1000
    return drawn % USERS, drawn % 50, at + 333 * PROCESSES.index(process)


def look(process: str, n: int) -> tuple[Any, ...]:
    """Somebody looks at a user; when that was means nothing."""
    return number("look", process, n) % USERS, START


class Sessions(Mix):
    """Those of all users, whoever has looked at them on the way."""

    name = "sessions and signals"
    sinks: ClassVar = {"visits": ("_key", "_window_start", "_window_end", "value")}

    def build(self, p: mr.Pipeline) -> None:
        clicks = self.inject(p, "clicks", click, "user long, points long, at long")
        self.inject(p, "looks", look, "user long, at long", format=int)
        now = mr.FirstOf(mr.OnSignal("looks", key=lambda user: user), mr.OnCall("visits"))
        early = mr.SequenceOf(mr.RepeatUntil(now, mr.AtWatermark()), mr.Repeat(mr.AtWatermark()))
        (
            clicks.key_by("user")
            .window(mr.Sessions(GAP), trigger=early, mode=mr.ACCUMULATING_AND_RETRACTING)
            .sum("points")
            .to("visits", int)
        )
        self.sink(p, "visits")

    def disturb(self, run: Any) -> None:
        run.fire("visits")

    def expected(self, rows: int) -> dict[str, Rows]:
        visits: Rows = Counter()
        gap = GAP // timedelta(microseconds=1)
        clicks = each(rows, click)
        for user in range(USERS):
            session: tuple[Any, ...] | None = None
            for at, points in sorted((at, points) for who, points, at in clicks if who == user):
                if session is None or at >= session[2]:
                    visits[session] += session is not None
                    session = str(user), at, at, 0
                assert session is not None
                session = str(user), session[1], at + gap, session[3] + points
            visits[session] += session is not None
        return {"visits": Counter({row: 1 for row in visits if row})}

    def parquet(self, stream: str, *columns: str) -> Rows:
        found = super().parquet(stream, *columns)
        return Counter(
            {
                (key, micros(start), micros(end), value): count
                for (key, start, end, value), count in found.items()
            }
        )


def micros(instant: Any) -> int:
    """Return microseconds since 1970."""
    return instant if isinstance(instant, int) else round(instant.timestamp() * 1_000_000)


# -- a side input, of which records see what stands at their times; records that are refused -------


class Sale(msgspec.Struct, frozen=True):
    id: str
    shop: int
    currency: int
    amount: int


class Rate(msgspec.Struct, frozen=True):
    currency: int
    cents: int


class Sold(msgspec.Struct, frozen=True):
    id: str
    cents: int
    total: int


class Letter(msgspec.Struct, frozen=True):
    computation: str
    id: str


CURRENCIES = 3


def sale(process: str, n: int) -> tuple[Any, ...]:
    drawn = number("sale", process, n)
    at = START + n * STEP + 500 * PROCESSES.index(process)
    return f"{process}{n}", drawn % 5, drawn % CURRENCIES, drawn % 13, at


def rate(process: str, n: int) -> tuple[Any, ...]:
    """A currency changes every few steps; never when something is sold."""
    drawn = number("rate", process, n)
    at = START + n * STEP + 100 + PROCESSES.index(process)
    return drawn % CURRENCIES, drawn % 400, at


class Selling(mr.Computation):
    """Adds up what each shop takes; refuses what costs nothing."""

    inputs: ClassVar = {"sales": mr.by("shop")}
    outputs: ClassVar = {"sold": Sold}
    rates = mr.SideInput("rates", "currency")
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        rate = self.rates.get(record.value.currency)
        cents = record.value.amount * (rate.cents if rate else 0)
        self.total.add(cents)
        self.produce("sold", Sold(record.value.id, cents, self.total.get()))
        if record.value.amount == 0:
            raise ValueError("it costs nothing")


def told(letter: mr.DeadLetter) -> Letter:
    assert letter.raw is not None
    return Letter(letter.computation, json.loads(letter.raw)["id"])


class Sales(Mix):
    """Each at the rate of its time, with a total by shop in order of time."""

    name = "side inputs and dead letters"
    sinks: ClassVar = {"sold": ("id", "cents", "total"), "letters": ("computation", "id")}

    def build(self, p: mr.Pipeline) -> None:
        schema = "id string, shop long, currency long, amount long, at long"
        self.inject(p, "sales", sale, schema, format=Sale)
        self.inject(p, "rates", rate, "currency long, cents long, at long", format=Rate)
        p.add(Selling)
        p.dead_letter("rejects")
        p.stream("rejects").map(told).to("letters", Letter)
        self.sink(p, "sold")
        self.sink(p, "letters")

    def expected(self, rows: int) -> dict[str, Rows]:
        changes = [(at, 0, row) for *row, at in each(rows, rate)]
        sales = [(at, 1, row) for *row, at in each(rows, sale)]
        rates: dict[int, int] = {}
        totals: dict[int, int] = defaultdict(int)
        sold: Rows = Counter()
        letters: Rows = Counter()
        for _, kind, row in sorted(changes + sales):
            if kind == 0:
                rates[row[0]] = row[1]
                continue
            id, shop, currency, amount = row
            if amount == 0:
                letters["Selling", id] += 1
                continue
            cents = amount * rates.get(currency, 0)
            totals[shop] += cents
            sold[id, cents, totals[shop]] += 1
        return {"sold": sold, "letters": letters}


# -- weak productions, and records that come twice -------------------------------------------------


class Reading(msgspec.Struct, frozen=True):
    id: str
    meter: int


class Nth(msgspec.Struct, frozen=True):
    meter: int
    nth: int


METERS = 6


def reading(process: str, n: int) -> tuple[Any, ...]:
    """Every fifth is the third before it once more."""
    n -= 3 if n % 5 == 4 else 0
    return f"{process}{n}", number("reading", process, n) % METERS, START + n * STEP


class Checking(mr.Computation):
    """Sends on what it gets, before that is durable."""

    inputs: ClassVar = {"weighed": mr.by("id")}
    outputs: ClassVar = {"checked": Reading}
    productions = mr.WEAK

    def process_record(self, record: mr.Record) -> None:
        self.produce("checked", record.value)


class Nths(mr.Computation):
    """Counts by meter, and says of each how many it was."""

    count = mr.CombiningState(int)

    def __init__(self, stream: str, out: str) -> None:
        self.inputs = {stream: mr.by("meter")}
        self.outputs = {out: Nth}
        self.out = out

    def process_record(self, record: mr.Record) -> None:
        self.count.add(1)
        self.produce(self.out, Nth(self.key, self.count.get()))


class Readings(Mix):
    """Counted by source ids, without, and behind a weak computation."""

    name = "weak productions and source ids"
    sinks: ClassVar = dict.fromkeys(("once", "every", "behind weak"), ("meter", "nth"))

    def build(self, p: mr.Pipeline) -> None:
        schema = "id string, meter long, at long"
        self.inject(p, "readings", reading, schema, format=Reading, id="id", slack="1 min")
        self.inject(p, "weighed", reading, schema, format=Reading)
        p.add(Nths("readings", "once"), name="Once")
        p.add(Nths("readings", "every"), name="Every", delivery=mr.AT_LEAST_ONCE)
        p.add(Checking)
        p.add(Nths("checked", "behind weak"), name="Behind")
        for stream in self.sinks:
            self.sink(p, stream)

    def expected(self, rows: int) -> dict[str, Rows]:
        every = Counter(meter for _, meter, _ in each(rows, reading))
        once = Counter(meter for _, meter in {row[:2] for row in each(rows, reading)})

        def nths(counts: Counter[int]) -> Rows:
            return Counter((m, n) for m in counts for n in range(1, counts[m] + 1))

        return {"once": nths(once), "every": nths(every), "behind weak": nths(every)}


# -- PostgreSQL, written in every turn, and Delta, by mark -----------------------------------------


class Posting(msgspec.Struct, frozen=True):
    account: int
    n: int
    balance: int


ACCOUNTS = 8


def transfer(process: str, n: int) -> tuple[Any, ...]:
    drawn = number("transfer", process, n)
    return drawn % ACCOUNTS, drawn % 90, START + n * STEP


class Booking(mr.Computation):
    """Adds up in order of arrival; both are in what it says, so that a doubled one is seen."""

    inputs: ClassVar = {"transfers": mr.by("account")}
    outputs: ClassVar = {"postings": Posting}
    n = mr.CombiningState(int)
    balance = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.n.add(1)
        self.balance.add(record.value["cents"])
        self.produce("postings", Posting(self.key, self.n.get(), self.balance.get()))


class Tables(Mix):
    """The last posting of each account, and how many there are, in four tables."""

    name = "PostgreSQL and Delta"

    def build(self, p: mr.Pipeline) -> None:
        self.inject(p, "transfers", transfer, "account long, cents long, at long")
        p.add(Booking)
        p.sink("postings", mr.sinks.PostgreSQL(self.conninfo, "postings"))
        p.sink("postings", mr.sinks.PostgreSQL(self.conninfo, "balances", key="account"))
        p.sink("postings", mr.sinks.Delta(self.root / "disk" / "postings"))
        p.sink("postings", mr.sinks.Delta(self.root / "disk" / "balances", key="account"))

    def expected(self, rows: int) -> dict[str, Rows]:
        counts: Counter[int] = Counter()
        balances: Counter[int] = Counter()
        for account, cents, _ in each(rows, transfer):
            counts[account] += 1
            balances[account] += cents
        postings = Counter((a, n) for a in counts for n in range(1, counts[a] + 1))
        last = Counter({(a, counts[a], balances[a]): 1 for a in counts})
        found = {"postings": postings, "balances": last}
        return {f"{table} in {where}": found[table] for table in found for where in self._tables}

    _tables: ClassVar[tuple[str, ...]] = ("PostgreSQL", "Delta")

    def found(self) -> dict[str, Rows]:
        import psycopg
        from deltalake import DeltaTable

        found: dict[str, Rows] = {}
        for table, columns in (("postings", "account, n"), ("balances", "account, n, balance")):
            with psycopg.connect(self.conninfo) as connection:
                rows = connection.execute(f"SELECT {columns} FROM {table}").fetchall()
            found[f"{table} in PostgreSQL"] = Counter(rows)
            stored = DeltaTable(str(self.root / "disk" / table)).to_pyarrow_table()
            picked = [stored.column(column).to_pylist() for column in columns.split(", ")]
            found[f"{table} in Delta"] = Counter(zip(*picked, strict=True))
        return found


# -- what is forgotten, by both clocks, and keys that begin by themselves --------------------------


class Seen(msgspec.Struct, frozen=True):
    taxi: int
    at: int
    times: int


class Beat(msgspec.Struct, frozen=True):
    station: str
    n: int


TAXIS = 20
STATIONS = ("north", "south", "west")
BEATS = 30
#: Of a value by event time, and between two beats by the clock.
FORGOTTEN, BEAT = 2 * mr.SECOND, 500 * mr.MILLISECOND


def sighting(process: str, n: int) -> tuple[Any, ...]:
    at = START + n * STEP + 500 * PROCESSES.index(process)
    return number("sighting", process, n) % TAXIS, at


class Sightings(mr.Computation):
    """Takes what it gets in order of time: how often a taxi was seen since it was last away."""

    inputs: ClassVar = {"sightings": mr.by("taxi")}
    outputs: ClassVar = {"seen": Seen}
    times = mr.ValueState(int, expires="2 s")
    lately = mr.ValueState(int, expires="1 s", domain=mr.WALL_TIME)

    def process_record(self, record: mr.Record) -> None:
        self.lately.set(record.timestamp)
        self.set_timer(record.timestamp, at=record.timestamp)

    def process_timer(self, timer: mr.Timer) -> None:
        times = self.times.get(0) + 1
        self.times.set(times)
        self.produce("seen", Seen(self.key, timer.at, times))


class Beating(mr.Computation):
    """Begins by itself, once, and ends after so many beats of the clock."""

    outputs: ClassVar = {"beats": Beat}
    n = mr.ValueState(int)

    def process_start(self) -> None:
        self.produce("beats", Beat(self.key, 0), timestamp=START)
        self.set_timer("beat", at=self.wall_time + BEAT, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        n = self.n.get(0) + 1
        self.n.set(n)
        self.produce("beats", Beat(self.key, n))
        if n < BEATS:
            self.set_timer("beat", at=timer.at + BEAT, domain=mr.WALL_TIME)


class Forgetting(Mix):
    """Sightings since the last gap of two seconds, and beats; what the clock forgets is gone."""

    name = "expiry and process_start"
    sinks: ClassVar = {"seen": ("taxi", "at", "times"), "beats": ("station", "n")}

    def build(self, p: mr.Pipeline) -> None:
        self.inject(p, "sightings", sighting, "taxi long, at long")
        p.add(Sightings)
        p.add(Beating, keys=STATIONS)
        self.sink(p, "seen")
        self.sink(p, "beats")

    def expected(self, rows: int) -> dict[str, Rows]:
        seen: Rows = Counter()
        last: dict[int, tuple[int, int]] = {}
        for at, taxi in sorted((at, taxi) for taxi, at in each(rows, sighting)):
            before, times = last.get(taxi, (at, 0))
            times = 1 if at - before >= FORGOTTEN else times + 1
            last[taxi] = at, times
            seen[taxi, at, times] += 1
        beats = Counter((station, n) for station in STATIONS for n in range(BEATS + 1))
        return {"seen": seen, "beats": beats, "kept": Counter()}

    def found(self) -> dict[str, Rows]:
        state = mr.ops.open_checkpoint(self.root / "disk" / "checkpoint")["Sightings"].scan()
        return super().found() | {"kept": Counter((one.key,) for one in state if one.cells)}


MIXES: dict[str, type[Mix]] = {
    mix.name: mix for mix in (Joins, Sessions, Sales, Readings, Tables, Forgetting)
}
