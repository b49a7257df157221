"""Connectors: systems that records come from and go to, source and sink of each together.

Any callable ``(DataFrame, epoch)`` is a sink, too. It is called once for every epoch that has
records for it, and again if that epoch is retried: then it must replace what it wrote before, not
add to it. The sinks here do, or say what they do instead.

Every sink gets the record format's fields as columns (or one column ``value``), and ``_key`` (the
producer's key as text), ``_timestamp`` and ``_id`` (16 bytes, unique, the same on every attempt).
"""
