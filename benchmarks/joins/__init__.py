"""Joins of two streams: by nearness in time, and with a table, beside Spark and Flink SQL.

Both sides have so many records a batch, of 200,000 keys. ``interval``: a right value within five
seconds before a left one and ten after it; a batch is ten seconds of event time, so a left value
has three partners in four keys. ``table``: the right side has each key once, in the first batch,
and each left value of the later ones meets its row: Millrace by ``join`` for ever and by
``enrich``, which keeps no left values, Spark and Flink by an inner join for ever, which keeps both.

All write the pairs to Parquet. Their number, and the sums of both values, are compared with what
NumPy finds; a wrong one has no figures.
"""
