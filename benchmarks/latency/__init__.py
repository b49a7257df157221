"""Latency: from a record's send time to user code, to a consumer of the sink topic, to PostgreSQL.

Run it with ``python -m benchmarks.latency --help``; ``benchmarks/README.md`` holds the figures.

**Same work.** Records of 16 bytes, send time and key, from a Kafka topic. A stage counts the
records of each key and hands each on under another key (``key * 31 % keys``); the next stage counts
them by that; two stages, unless ``--stages`` says otherwise. Each record becomes one row, ``(send
time, last key, last count)``, sent to a Kafka topic or written to a table of PostgreSQL (``--to``).
Who cannot do that says in the table what it does instead: Spark's SQL aggregation is one stage
only, and its row stands for all records of a key in a batch.

**Load.** One process that calls ``produce_batch`` of librdkafka once a millisecond at the most, or
as often as ``--every`` says (Kafka's own producer lingers for 5 ms since 4.0), for what is due
then, whole batches to the partitions in turn, and never waits: a slow contender falls behind.
A record has the time at which its batch was handed to librdkafka. How late that was, and the load's
own CPU time, stand in the results. With ``--synthetic`` there is no Kafka: an injector of
Millrace's own makes the records by the clock, as often, and the time of a batch is the one at which
it is due, not the one at which it is made.

**Latency.** Three points, each in nanoseconds of the machine's one clock:

``code``
    User code of the last stage is called with the record, as it says itself (``probe``). Flink SQL
    has no user code; ``CURRENT_ROW_TIMESTAMP()`` of the last stage stands for it, in milliseconds.
    Spark's aggregation has none.
``kafka``
    A consumer of the sink topic has the record's row. It reads what is committed only, so where a
    sink is transactional that is when the transaction ends.
``postgres``
    The row is visible to others: a client asks for ``pg_current_snapshot()`` every two
    milliseconds, and a row is there with the first snapshot that has its transaction.

Measured are the records sent in ``--seconds`` after ``--warm-up``. A record's row is found by the
send time that it carries, and where a row stands for many, by its count: a record that is the n-th
of its key is there with the first row of that key that has counted n. Percentiles are of records;
histograms, with bins of 5 %, are in the results, as are median, 99th percentile and maximum of each
second.

**Checked.** When the load has ended the contender gets ``--patience`` seconds more. Then the rows
must be those that NumPy makes of the same keys: for each key each count from 1 on exactly once, and
where rows stand for many the last count. A contender with a wrong result has no figures.

**What "exactly once" means** at the sink differs, and so does its price; ``contender.PROMISES`` has
it, and the report prints it.

**CPU.** Seconds a million records, and cores in use, of the contender's process tree (the JVM, all
Python workers and ended children), the broker, the load, the consumer, and PostgreSQL, in the
measured seconds. The broker's is not in the contender's.
"""
