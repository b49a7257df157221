"""What docs/benchmarks.md shows: sections, the results files they take, and their columns."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figures import Section, Table
from benchmarks.rows import (
    balanced,
    cached,
    called,
    empty,
    evaluated,
    has_figures,
    has_part,
    has_rivals,
    in_memory,
    lag,
    large,
    latencies,
    limited,
    many,
    nexmark,
    only,
    overload,
    ratio,
    recovered,
    requests,
    rests,
    scaled,
    side,
    simulated,
    soak,
    started,
)

LEAD = """\
All figures of Millrace stand here, and other pages link to them.
It is made of the files in `benchmarks/results/`.
Each table names its file, machine, date and command.
[Running the benchmarks](../benchmarks/README.md) describes each.

Machines differ in speed by a factor of two, so compare figures within a table only.
*Load* is the load average at the beginning.
Above 1, others ran too: trust ratios, not times."""

_RATES = {
    "keys": "keys:,",
    "contender": "contender",
    "records/s": "records_per_s:,.0f",
    "CPU s / million": "cpu_s_per_million:.1f",
    "peak MiB": "peak_mib:,.0f",
}
_BATCHES = {"keys": "keys:,", "batch": "batch_records:,", **_RATES, "contender": "rival"}
_NEXMARK = {name: name for name in ("query", "millrace", "millrace-realtime", "spark")}
_LATENCY = {
    "p50 ms": "ms.p50:,.1f",
    "p95 ms": "ms.p95:,.1f",
    "p99 ms": "ms.p99:,.1f",
    "CPU s / million": "cpu_s_per_million.engine:,.0f",
}


_RESOURCES = {
    "memory MiB": "memory:,.0f",
    "threads": "threads:.0f",
    "open files": "files:.0f",
    "checkpoint MiB": "checkpoint:.0f",
    "cache MiB": "cache:.0f",
}


def _sections() -> Iterator[Section]:
    yield Section(
        "Keyed state",
        "keyed_state",
        "A running count: each record reads the count of its key, adds one and writes it back. "
        "Millrace makes each epoch durable with fsync; `tws` is Spark's `transformWithState`, "
        "whose local checkpoint is not synced.",
        [Table("measurements", _BATCHES, has_rivals("millrace", "millrace-files", "tws"))],
    )
    yield Section(
        "Keyed state in real time",
        "realtime_throughput",
        "The same count on the real-time plane. `millrace-files` is the epoch plane, which reads"
        " the "
        "same files. The suffix of a real-time contender is its source: files, Kafka or memory.",
        [
            Table(
                only("figures", work=["keyed state"]),
                _RATES,
                has_figures("figures", "millrace-realtime", "tws", "bytewax-recovery"),
                "--records 24000000 --shapes",
            ),
        ],
    )
    shapes = {"shape": "shape", **_BATCHES}
    works = {"work": "work", **_RATES}
    live = only("figures", work=["windows", "sessions"])
    yield Section(
        "Windows",
        "windows",
        "The sum of a column by key and window: fixed windows of ten seconds, or sessions. "
        "Spark's own aggregations run no Python.",
        [
            Table(
                "measurements",
                shapes,
                has_rivals("millrace", "spark", batches="[100000]", keys="[1000, 200000]"),
                title="By epochs",
            ),
            Table(
                "measurements",
                shapes,
                has_rivals("millrace", "spark", "flink"),
                title="By epochs, larger batches",
            ),
        ],
    )
    yield Section(
        "Windows in real time",
        "realtime_throughput",
        "The same windows on the real-time plane, beside Spark's micro-batches and Flink SQL.",
        [
            Table(
                live,
                works,
                has_figures(
                    "figures", "windows", "sessions", of="work", keys=1000, contender="flink"
                ),
                "--keys 1000 --shapes sessions windows --records 8000000 "
                "--rivals millrace-realtime spark flink",
                "1,000 keys",
            ),
            Table(
                only("figures", work=["windows", "sessions"], keys=[200_000]),
                works,
                has_figures(
                    "figures", "windows", "sessions", of="work", keys=200_000, contender="spark"
                ),
                "--keys 200000 --shapes windows sessions --records 12000000 "
                "--rivals millrace-realtime spark flink",
                "200,000 keys",
            ),
        ],
    )
    yield Section(
        "Latency",
        "latency",
        "From the time at which a record is sent until user code of the second keyed stage has it "
        "(`code`), or a consumer of the sink (`kafka`, `postgres`). Millrace commits each stage "
        "with an "
        "fsync first. At `code`, the other systems have made nothing durable yet.",
        [
            Table(
                latencies(),
                {"records/s": "cell.rate:,", "contender": "cell.rival", "at": "place", **_LATENCY},
                has_rivals("millrace-realtime", "flink", to="['kafka']"),
                title="Beside other systems, from Kafka to Kafka",
            ),
            Table(
                latencies(),
                {"contender": "cell.rival", "from Kafka to": "place", **_LATENCY},
                has_rivals("millrace-realtime", "millrace-epochs", to="['kafka', 'postgres']"),
                title="By sink, 200 records/s",
            ),
            Table(
                latencies("code"),
                {"records/s": "cell.rate:,", "tasks a level": "cell.partitions", **_LATENCY},
                has_rivals(
                    "millrace-realtime",
                    rates="[200, 2000, 10000]",
                    to="['code']",
                    synthetic="False",
                ),
                title="By rate, from Kafka",
            ),
        ],
    )
    yield Section(
        "Growth in real time",
        "realtime_growth",
        "Latency at user code of the last stage, at 2,000 records/s, by stages, keys and tasks. "
        "Tasks that exceed the cores of the machine wait for one.",
        [
            Table(
                latencies("code"),
                {
                    "stages": "cell.stages",
                    "keys": "cell.keys:,",
                    "tasks a level": "cell.partitions",
                    **_LATENCY,
                    "peak MiB": "peak_mib:,.0f",
                },
            )
        ],
    )
    yield Section(
        "An hour in real time",
        "realtime_growth",
        "Two stages at 60,000 records/s, exactly once, with marks, snapshots and collection. "
        "Medians of the second and the last tenth of the hour.",
        [
            Table(
                soak,
                {"when": "when", "p50 ms": "p50:.0f", "p99 ms": "p99:.0f", **_RESOURCES},
                picture=(
                    "soak-realtime.png",
                    "Latency, memory of each process and bytes on disk, by minute",
                ),
            )
        ],
        prefix="realtime-soak",
    )
    yield Section(
        "Overload",
        "overload",
        "More records than two keyed stages can process.",
        [
            Table(
                overload,
                {
                    "when": "when",
                    "records/s": "rate:,.0f",
                    "seconds a mark": "mark_s:.1f",
                    **_RESOURCES,
                },
            )
        ],
    )
    yield Section(
        "MillWheel's evaluation",
        "evaluation",
        "What section 8 of the MillWheel paper measures. [Its page](evaluation.md) lists the "
        "differences.",
        [
            Table(
                evaluated,
                {
                    "productions, delivery": "how",
                    "stages": "stages",
                    "p50 ms": "ms.p50:,.1f",
                    "p95 ms": "ms.p95:,.1f",
                    "p99 ms": "ms.p99:,.1f",
                    "paper's p50": "paper.p50",
                    "paper's p95": "paper.p95",
                },
                has_part("latency"),
                title="Latency (figure 13)",
                picture=("evaluation-latency.svg", "Latency by productions and delivery"),
            ),
            Table(
                scaled,
                {
                    "tasks a level": "partitions",
                    "records/s": "rate:,",
                    "p50 ms": "ms.p50:,.1f",
                    "p95 ms": "ms.p95:,.1f",
                    "p99 ms": "ms.p99:,.1f",
                },
                has_part("scale"),
                title="Latency by size (figure 14)",
                picture=("evaluation-scale.svg", "Latency by number of tasks"),
            ),
            Table(
                lag,
                {
                    "stage": "stage",
                    "the paper, ms": "paper:,",
                    "epochs, ms": "epochs:,.0f",
                    "real time, ms": "live:,.0f",
                },
                has_part("lag"),
                title="Low-watermark lag (figure 15)",
                picture=("evaluation-lag.svg", "Low-watermark lag by stage"),
            ),
            Table(
                cached,
                {
                    "cached": "share:.1%",
                    "MB": "cache_mb:.0f",
                    "hits": "hits:.0%",
                    "CPU us a record": "cpu_us:.1f",
                    "ratio": "ratio:.2f",
                    "bytes read a record": "read_bytes:,.0f",
                },
                has_part("cache"),
                title="The cache (figure 16)",
                picture=("evaluation-cache.svg", "CPU by cached share of the state"),
            ),
            Table(
                lambda result: result["parts"]["two-phase"]["hot key"]["cases"],
                {
                    "90 % of one key": "how",
                    "records/s": "records_per_s:,.0f",
                    "CPU s / million": "cpu_s_per_million:.1f",
                    "cores in use": "cores:.2f",
                },
                has_part("two-phase"),
                title="A hot key (8.4)",
                picture=("evaluation-two-phase.svg", "Throughput with a hot key"),
            ),
            Table(
                lambda result: [
                    {**each, "limit": each["skew"] or "none"}
                    for each in result["parts"]["skew"]["skew"]["cases"]
                ],
                {
                    "limit on skew": "limit",
                    "records buffered at most": "buffered_max:,",
                    "cache MB": "cache_mb_max:.0f",
                    "seconds": "seconds:.0f",
                },
                has_part("skew"),
                title="A limit on skew (8.4)",
                picture=("evaluation-skew.svg", "Buffered records by limit on skew"),
            ),
        ],
    )
    yield Section(
        "Nexmark",
        "nexmark",
        "Thousands of records per second; CPU seconds per million events. DuckDB checked every "
        "answer. Without a figure, a query cannot be expressed, or was too short. "
        "[nexmark.md](nexmark.md) describes the queries.",
        [
            Table(
                nexmark,
                {**_NEXMARK, "flink": "flink"},
                has_rivals("millrace", "millrace-realtime", "spark", "flink", document="True"),
                "--document",
            ),
            Table(
                nexmark,
                {**_NEXMARK, "flink": "flink"},
                has_rivals("millrace", "millrace-realtime", "spark", "flink", document="False"),
                title="Again, with query 10 as an expression",
            ),
        ],
    )
    yield Section(
        "An empty epoch",
        "empty_epoch",
        "Milliseconds of an epoch with one row; *injector*, *one task*: the driver's jobs.",
        [
            Table(
                empty,
                {
                    "levels": "depth",
                    "Spark alone": "floor:.0f",
                    "Millrace": "millrace:.0f",
                    "injector": "driven:.0f",
                    "one task": "one task:.0f",
                    "no job": "idle:.0f",
                },
                arguments="--epochs 60 --warmup 20",
            )
        ],
    )
    yield Section(
        "Start and restart",
        "start_up",
        "Seconds until the first record is processed, and until processing goes on after a "
        "worker was killed. Millrace forks workers with their imports; a plain "
        "worker imports anew.",
        [
            Table(
                started,
                {
                    "plane": "plane",
                    "workers": "workers",
                    "first, s": "first_s:.1f",
                    "after a kill, s": "back_s:.1f",
                    "Python CPU s": "back_cpu_s:.1f",
                },
            )
        ],
    )
    yield Section(
        "Recovery",
        "recovery",
        "1 GB of state in one million keys, overwritten twice. Its cache is lost and rebuilt.",
        [
            Table(
                recovered,
                {
                    "from": "from",
                    "seconds": "seconds:.1f",
                    "CPU s": "cpu_seconds:.1f",
                    "MB read": "mb:,.0f",
                    "commits": "commits:,",
                },
                arguments="--gigabytes 1",
            )
        ],
    )
    yield Section(
        "Large state",
        "large_state",
        "State that exceeds the memory of its worker, which the kernel limits. Caches are mapped"
        " files, "
        "and the limit does not include them.",
        [
            Table(
                large,
                {
                    "state GB": "state_bytes:.0f",
                    "limit GB": "limit_bytes:.0f",
                    "memory at most GB": "anonymous_bytes_max:.2f",
                    "keys written/s": "write_keys_per_second:,",
                    "keys changed/s": "change_keys_per_second:,",
                    "cache GB": "disk.cache:.1f",
                    "commits GB": "disk.commits:.1f",
                },
                arguments="--gigabytes 10 --limit-gigabytes 2",
            )
        ],
    )
    of_many = {
        "keys": "keys:,",
        "records/s": "records_per_s:,.0f",
        "CPU s / million": "cpu_s_per_million:.1f",
        "state GB": "state:.1f",
        "caches GB": "caches:.1f",
    }
    yield Section(
        "Many keys",
        "many_keys",
        "A count and 200 bytes a key, in epochs of 100,000 records with keys drawn evenly.",
        [
            Table(many, of_many, in_memory, "--cache /dev/shm", "Caches in memory"),
            Table(many, of_many, limited, "--limit-gigabytes 4", "Caches on disk, 4 GB of memory"),
        ],
    )
    yield Section(
        "Reading state",
        "state_reading",
        "A million counters as a DataFrame: Millrace's reader, Spark's `statestore` reader, and "
        "`mr.ops.open_checkpoint` in one process without Spark.",
        [
            Table(
                "readings",
                {
                    "way": "way",
                    "seconds": "seconds:.1f",
                    "keys/s": "keys_a_second:,.0f",
                    "CPU s": "cpu_s:.1f",
                },
            )
        ],
    )
    yield Section(
        "Timers",
        "timers",
        "Microseconds by the number of pending timers in one key interval. "
        "The cost follows the timers that fire, and not the pending ones.",
        [
            Table(
                "costs",
                {
                    "pending": "pending:,",
                    "to set one": "set_us:.1f",
                    "to fire one": "fire_us:.1f",
                    "a bundle, none due": "idle_us:.0f",
                },
            )
        ],
    )
    yield Section(
        "Expiry",
        "expiry",
        "Map entries that expire, in one key interval: median milliseconds of a bundle in which "
        "none, "
        "1,000 or 100,000 entries expire.",
        [
            Table(
                "costs",
                {
                    "kept": "kept:,",
                    "us to write one": "write_us:.1f",
                    "bytes a cell": "bytes_a_cell:.0f",
                    "none": "bundle_ms.0:.2f",
                    "1,000": "bundle_ms.1000:.1f",
                    "100,000": "bundle_ms.100000:.0f",
                },
            )
        ],
    )
    yield Section(
        "Duplicates",
        "dedup",
        "A running count whose records are deduplicated by an id, in the kernel without Spark.",
        [
            Table(
                ratio("costs", "cpu_us"),
                {
                    "case": "case",
                    "CPU us a record": "cpu_us:.1f",
                    "ratio": "ratio:.2f",
                    "log bytes a record": "written:.0f",
                    "filters MiB": "filter_mib:.1f",
                },
                arguments="--epochs 6 --rounds 1",
            )
        ],
    )
    yield Section(
        "Options of a computation",
        "productions",
        "A running count that produces a record for each record, with ids. "
        "Without ids, exactly-once delivery costs nothing extra.",
        [
            Table(
                "costs",
                {
                    "productions": "productions",
                    "delivery": "delivery",
                    "CPU s / million": "cpu_s:.1f",
                    "log bytes a record": "written:.0f",
                },
            )
        ],
    )
    yield Section(
        "Calls to a service",
        "calls",
        "A service of 20 ms over HTTP, 200 calls in flight. `millrace` includes its start on "
        "Spark. CPU time excludes the service.",
        [
            Table(
                called,
                {
                    "contender": "contender",
                    "records/s": "rate:,.0f",
                    "of the client": "share:.0%",
                    "of the server": "of_server:.0%",
                    "CPU us a record": "cpu_us:.0f",
                },
            )
        ],
    )
    yield Section(
        "Side inputs",
        "side_input",
        "50,000 records an epoch look up rows in a table of 10 MB, with four key intervals in "
        "one task.",
        [
            Table(
                side,
                {"the table": "table", "CPU ms an epoch": "cpu_ms:.0f", "ratio": "ratio:.1f"},
                lambda result: (
                    result["arguments"]["intervals"] == "4" and len(result["costs"]) == 4
                ),
            )
        ],
    )
    yield Section(
        "Load balancing",
        "balanced_run",
        "A run on Spark with `balance=` and without: two tasks, 16 key intervals, 200 us of user"
        " code a record.",
        [
            Table(
                balanced,
                {
                    "keys": "law",
                    "`balance=`": "on",
                    "first third, s": "first_s:.2f",
                    "last third, s": "last_s:.2f",
                    "records/s": "records_per_s:,.0f",
                    "key intervals at the end": "intervals",
                },
            ),
        ],
    )
    yield Section(
        "Load balancing, simulated",
        "hot_intervals",
        "Median records of the busiest of eight tasks, as a multiple of an equal share. "
        "Intervals move one by one. The bound is what one hot key allows.",
        [
            Table(
                balanced,
                {
                    "keys": "law",
                    "`balance=`": "on",
                    "busiest": "usual:.2f",
                    "bound": "bound:.2f",
                    "moves": "moves",
                    "splits": "splits",
                    "merges": "merges",
                },
                picture=("hot-intervals.png", "Records of the busiest task by epoch"),
            )
        ],
    )
    yield Section(
        "500,000 key intervals, simulated",
        "balancing",
        "A balancer of single intervals, 10,000 tasks, 1,000 machines: 1 % is lost for an hour. "
        "Rounds of five minutes.",
        [
            Table(
                simulated,
                {
                    "phase": "phase",
                    "rounds": "rounds",
                    "intervals moved or split": "remaps:,",
                    "GB to read again": "gb:.0f",
                    "busiest task at most": "worst:.2f",
                    "in the last round": "last:.2f",
                    "balancer CPU s a round": "balancer_s:.1f",
                },
                picture=("balancing.png", "Load, remaps and low-watermark lag over two hours"),
            )
        ],
    )
    yield Section(
        "Fail-over of a lost worker",
        "failover",
        "Seconds from SIGKILL of a worker to a record that was written after it, in real time, at "
        "400 records/s.",
        [
            Table(
                lambda result: result["failovers"],
                {
                    "`standby=`": "standby",
                    "kills": "kills",
                    "first key, p50": "first_p50_s:.2f",
                    "last key, p50": "last_p50_s:.2f",
                    "last key, p99": "last_p99_s:.2f",
                },
            )
        ],
    )
    yield Section(
        "Fail-over of a lost driver",
        "driver_failover",
        "Seconds from SIGKILL of a driver to a newer record of each key; another waits, lease 2 s.",
        [
            Table(
                lambda result: result["failovers"],
                {"plane": "plane", "kills": "kills", "p50": "p50_s:.2f", "most": "most_s:.2f"},
            )
        ],
    )
    yield Section(
        "Pauses of an update",
        "update_pause",
        "Seconds without a record while another pipeline takes over, at 500 records/s.",
        [
            Table(
                "of",
                {
                    "tasks are started": "how",
                    "updates": "updates",
                    "median": "gap_s:.2f",
                    "most": "most_s:.2f",
                },
                arguments="--rounds 6",
            )
        ],
    )
    yield Section(
        "Tasks that follow the load",
        "following_load",
        "A load that triples and falls; user code waits 2 ms a row.",
        [
            Table(
                "cases",
                {
                    "`tasks=`": "tasks",
                    "waited, p50 s": "p50_s:.2f",
                    "p99 s": "p99_s:.2f",
                    "task seconds": "task_seconds",
                },
                picture=("following-load.png", "Rows a second, how long they wait, tasks"),
            )
        ],
    )
    yield Section(
        "Pauses of a split and a savepoint",
        "rest_pause",
        "Seconds in which user code has no record, in real time, at 500 records/s.",
        [
            Table(
                rests,
                {
                    "what": "what",
                    "least, s": "least:.2f",
                    "median, s": "median:.2f",
                    "most, s": "most:.2f",
                },
                lambda result: "of" not in result,
            )
        ],
    )
    yield Section(
        "Requests of commits",
        "commit_requests",
        "Requests and bytes of an epoch with four tasks, and dollars per day of an epoch a "
        "second by "
        "Amazon S3's list price.",
        [
            Table(
                requests,
                {
                    "key intervals": "intervals:,",
                    "checkpoint": "kind",
                    "PUT": "requests.put:.0f",
                    "GET": "requests.get:.0f",
                    "HEAD": "requests.head:.0f",
                    "fsync": "requests.fsync:.0f",
                    "link": "requests.link:.0f",
                    "KB": "sent_kb:,.0f",
                    "USD a day": "usd_a_day:.2f",
                },
            )
        ],
    )
    yield Section(
        "An idle pipeline",
        "idle_run",
        "Requests a minute to an object store while a source has nothing, and dollars per day of a "
        "thousand such runs. By the clock, the low watermark moves once a second.",
        [
            Table(
                "costs",
                {
                    "run": "run",
                    "epochs": "epochs_a_minute:.0f",
                    "PUT": "requests_a_minute.put:.0f",
                    "LIST": "requests_a_minute.list:.0f",
                    "GET": "requests_a_minute.get:.0f",
                    "HEAD": "requests_a_minute.head:.0f",
                    "USD a day, 1,000": "usd:,.0f",
                },
                arguments="--write",
            )
        ],
    )


SECTIONS = list(_sections())
