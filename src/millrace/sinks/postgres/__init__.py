"""The PostgreSQL sink. It needs psycopg, which comes with ``pip install 'millrace[postgres]'``."""

from millrace.sinks.postgres.sink import PostgreSQL

__all__ = ["PostgreSQL"]
