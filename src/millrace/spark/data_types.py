"""Data types: Spark's, from ours; no setting of the user's session has a say in what they mean.

Spark's own parser of DDL goes by the session: with ``spark.sql.timestampType=TIMESTAMP_NTZ`` its
``timestamp`` is one without a time zone.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from millrace.injectors.columns import arrow_schema


@cache
def struct_type(ddl: str) -> T.StructType:
    """Return a schema that is written as DDL."""
    return spark_schema(arrow_schema(ddl))


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return a schema of Arrow's."""
    spark_type: T.StructType = from_arrow_schema(schema)
    return spark_type
