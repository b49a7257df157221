"""The PostgreSQL sink. It needs psycopg: ``pip install 'millrace-spark[postgres]'``."""

from millrace.connectors.postgres.sink import PostgreSQL

__all__ = ["PostgreSQL"]
