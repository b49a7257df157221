"""Keyed state: a running count a key, on Millrace, ``transformWithState`` and bytewax.

Run it with ``python -m benchmarks.keyed_state --help``; ``benchmarks/README.md`` holds the method
and the figures.

**Same work.** For each record a contender reads the count of the record's key, adds one and
writes it back; nothing is emitted. ``tws`` is the exception, in its favour: it reads and writes
once for all the rows of a key in a batch, as a good ``handleInputRows`` does, because each access
is a round trip to the JVM. ``tws-per-record`` is the literal form. Afterwards every contender's
state is read back and compared with what NumPy counted: number of keys, sum of the counts, and
sum of their squares.

**Same input.** One set of Parquet files a case, made once from a seeded generator: ``cores`` files
a batch, so every core reads, and every Spark contender gets batches of exactly the given size.
Bytewax reads the same files, one partition a core, and closes one epoch a batch.

**Warm-up.** The first ten batches, of 20,000 records each (``--warmup-batches``,
``--warmup-records``), are processed by everyone and timed for no one; the measured records come
after them. They pay for JVM start-up, class loading, code generation, forking Python workers, and
most of what the JIT compiler does: on Spark the second batch of a query costs about twice the CPU
time of the tenth, and a rival that needs minutes for what another does in seconds would hide that.
What the JIT compiler still does later is left in, for everyone.

**Clock.** Records a second are measured records over the time from the start of the first
measured batch to the end of the last. On Spark these are the trigger's timestamp and
``triggerExecution`` of its progress reports. In bytewax they are the calls of ``next_batch``:
bytewax asks a source for the next epoch's items only when the last epoch has left the dataflow
(with recovery: when its snapshots are in SQLite), so the call after the last batch is its end.

**CPU and memory.** The parent samples the contender's process tree over that same time: CPU
seconds with the JVM, all Python workers and ended children. Peak memory is the largest sum of PSS
from the contender's start, warm-up included, to the end of its last batch.
"""
