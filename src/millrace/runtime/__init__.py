"""The task and the epoch, written once: what runs on Spark, in the Harness and in the simulator.

A *stage* is what one task does between two exchanges: it takes rows of the wire and yields rows of
the wire. What differs between the three is how those rows reach the tasks of the next stage; that
is an :class:`~millrace.runtime.exchange.Exchange`. Arrow and plain Python; no PySpark.
"""
