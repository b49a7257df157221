"""Windows: sums per key and window, on Millrace, Spark's own aggregations and Flink SQL.

Run it with ``python -m benchmarks.windows --help``; ``benchmarks/README.md`` holds the method and
the figures.

**Same work.** Windows of ten seconds, or sessions that a pause of five seconds ends; the sum of a
column per key and window, written to Parquet once, when the low watermark has passed the window's
end. What everyone wrote is read back and compared with what NumPy makes of the same records: how
many windows, the sum of their sums, and the sum of the squares. ``millrace-per-record`` is the
exception: its trigger emits a pane for each record, which can only be done record by record; its
last panes are what is compared.

**Same input.** One set of Parquet files a case, made once from a seeded generator. Ten records
arrive per millisecond of event time (``--rates``) whatever the number of keys, so with 1,000 keys a
window has a hundred records, and with 200,000 hardly any two share one: then what is measured is
how fast windows come and go. At a hundred, which is nearer to a stream that is processed as it
arrives, a window of 200,000 keys has five. They are out of order by up to
ten seconds, which is also everyone's bound on the delay, so nothing is late. With sessions each key
is silent for 15 seconds of every 45, at a time of its own; otherwise sessions of a thousand keys
would never end. Two last batches of a record a file push the low watermark past everything; they
are in no figure. Spark and Millrace get batches of exactly the given size. Flink has no batches,
and reads the same records from one file a core.

**What survives.** Spark: RocksDB with changelog checkpointing, committed by every batch. Flink:
RocksDB with incremental checkpoints every second, exactly once. Millrace: a commit by every batch,
fsync'd.

**Warm-up.** The first ten batches, of 20,000 records each, are processed by everyone and timed for
no one.

**Clock.** Measured records over the time from the start of the first measured batch to the end of
the last: on Spark the trigger's timestamp and ``triggerExecution`` of its progress reports; on
Flink, when the results come out that everyone's low watermark lets out there (``flink_sql``). The
slowest, the median and the fastest batch are given as well; of Flink, of ten seconds of event time.

**CPU and memory.** The parent samples the contender's process tree over that same time: CPU
seconds with the JVM, all Python workers and ended children. Peak memory is the largest sum of PSS
from the contender's start, warm-up included, to the end of its last batch. Each JVM has 4 GiB of
heap, and takes what it is given.
"""
