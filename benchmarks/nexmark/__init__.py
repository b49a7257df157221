"""Nexmark: its queries on Millrace's planes, Spark's own streaming and Flink SQL, with a verdict.

Run it with ``make nexmark``, or ``python -m benchmarks.nexmark --help``.

**Same events.** One generator (``examples/nexmark``) makes people, auctions and bids once, as
Parquet files: a thousand events a second of event time, out of order by up to 200 ms, which is
everyone's bound on the delay. Spark and Millrace's epochs read a file of each stream a core and
batch; Millrace in real time reads the same events from a file of each stream and batch, one after
the other, as each moves the low watermark while it is read; Flink reads them from one file a core
and stream, in the same order, as it has no batches.

**Same answer.** What a query has written, as Parquet, is compared with DuckDB's answer over the
same events, row by row. Of tables that change, what their last rows say. Flink's changelogs are
written as they are, and added up. A query with another answer has no figures but its verdict.

**What is measured.** Each contender runs each query in a process of its own, three times: over a
twentieth of the events, for warm-up; over the same again; and over all. From the start of the query
to its end, both times. Records a second and CPU time are of what the last run has more than the
second: so what a query costs to start is in neither, and is told apart. CPU time is of the whole
process tree, and so is memory: the largest sum of PSS, which for all of them is mostly a JVM with 4
GiB of heap that takes what it is given.

**Who cannot.** ``rivals.CANNOT`` says, for each contender, which queries it has no words for.

**The kill.** ``--kill`` runs all queries as one pipeline, kills every process of it with SIGKILL
when it has completed some epochs, starts it again, and compares all of them.
"""
