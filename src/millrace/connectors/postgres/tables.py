"""Tables of a sink: their names, the statements on them, and what is made and checked before a run.

There are the user's table, the staging table, and the one with the epochs.

Statements put records into the user's table, wherever in the database they are read. *Made* is a
query of records: the columns that the sink writes, :data:`ID`, by which they sort as they were
produced, and :data:`RETRACTED`. On the epoch plane it reads the staging table, on the real-time
plane the parameters of the statement itself.

Before a run what is missing is made, and the user's table is checked: which values of a record's
field a column holds as they are. PostgreSQL refuses some of what a column cannot hold, and bends
the rest in silence: it rounds to the scale of a ``numeric(10,2)`` and to the digits of a ``real``,
cuts text at a cast, drops a zone or a time of day, and reads ``01/02/2026`` by a setting of the
incarnation.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from millrace.compile.sink_limits import DECIMAL_DIGITS, DECIMAL_SCALE, ColumnLimit
from millrace.model.errors import PipelineError
from millrace.runtime.values import SinkColumns

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

#: The staging table's own columns, before those of the record.
TASK, ID, RETRACTED = "millrace_task", "millrace_id", "millrace_retracted"

#: Millrace's own tables, by sink; and, of the real-time plane, by its tasks and by its senders.
EPOCHS, WRITERS, SENDERS = "millrace_epochs", "millrace_writers", "millrace_senders"


def identifier(schema: str, name: str) -> sql.Identifier:
    """Return a table's name, quoted."""
    from psycopg import sql

    return sql.Identifier(schema, name)


@dataclass(frozen=True)
class Column:
    """A column that the sink writes.

    Attributes:
        name: In the record and in the table.
        type: As PostgreSQL writes it, such as ``bigint`` or ``text[]``.
        array: Whether that is an array; nested data is written as JSON otherwise.
        limit: What it holds of the field's values; None: it bends none.
        is_of_key: Whether rows are replaced by it.
    """

    name: str
    type: str
    array: bool
    limit: ColumnLimit | None = None
    is_of_key: bool = False


@dataclass(frozen=True)
class Tables:
    """The tables of one sink, by their full names.

    Attributes:
        schema: Of the user's table.
        name: Of the user's table.
        workspace: Schema of Millrace's own tables.
        sink: What the sink is called in the table of epochs.
        columns: That the sink writes.
        key: Columns by which rows are replaced; none: rows are appended.
        deletes: Whether a record may be a retraction, which deletes the row of its key.
    """

    schema: str
    name: str
    workspace: str
    sink: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    deletes: bool

    def target(self) -> sql.Identifier:
        """Return the user's table."""
        return identifier(self.schema, self.name)

    def epochs(self) -> sql.Identifier:
        """Return the table with the last epoch of every sink."""
        return identifier(self.workspace, EPOCHS)

    def writers(self) -> sql.Identifier:
        """Return the table with the tasks of the real-time plane that may write."""
        return identifier(self.workspace, WRITERS)

    def senders(self) -> sql.Identifier:
        """Return the table with the last record that was written of every sender there."""
        return identifier(self.workspace, SENDERS)

    def staging_prefix(self, pipeline: str) -> str:
        """Return how the names of a pipeline's staging tables for the sink begin."""
        return f"millrace_stage_{_digest(f'{pipeline}: {self.sink}')}_"

    def staging(self, pipeline: str, owner: str, generation: int) -> str:
        """Return the name of the staging table of a run."""
        return f"{self.staging_prefix(pipeline)}{_digest(owner)}_{generation}"


def _digest(text: str) -> str:
    # PostgreSQL cuts names off after 63 bytes.
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def staged_rows(staging: tuple[str, str]) -> sql.Composed:
    """Return the records of some task attempts, a parameter, in a staging table."""
    from psycopg import sql

    return sql.SQL("SELECT * FROM {} WHERE {} = ANY(%s)").format(
        identifier(*staging), sql.Identifier(TASK)
    )


def given(tables: Tables) -> sql.Composed:
    """Return the records in parameters: arrays ``retracted``, and ``c0``, ... of columns' texts."""
    from psycopg import sql

    names = [f"c{n}" for n in range(len(tables.columns))]
    typed = [
        sql.SQL("{}::{} AS {}").format(
            sql.Identifier(name), sql.SQL(column.type), sql.Identifier(column.name)
        )
        for name, column in zip(names, tables.columns, strict=True)
    ]
    texts = (sql.SQL("{}::text[]").format(sql.Placeholder(name)) for name in names)
    arrays = listed([sql.SQL("%(retracted)s::boolean[]"), *texts])
    return sql.SQL(
        "SELECT {}, place AS {}, retracted AS {} "
        "FROM unnest({}) WITH ORDINALITY AS given (retracted, {}, place)"
    ).format(
        listed(typed),
        sql.Identifier(ID),
        sql.Identifier(RETRACTED),
        arrays,
        listed([sql.Identifier(name) for name in names]),
    )


def in_turn(tables: Tables) -> sql.Composed:
    """Return the one statement of a turn: fence, rows, and the last record of every sender.

    It is a transaction, in one exchange with the server. The task's row in ``millrace_writers`` is
    the fence: where it is gone, nothing else of the statement finds a row. Parameters are
    ``pipeline``, ``sink``, ``task``, ``incarnation``, arrays ``senders``, ``origins``,
    ``sequences``, and those of :func:`given`. It returns how many fences it passed; and it is
    durable on a server that would lose its last transactions in a crash: the checkpoint will count
    its rows as written.
    """
    from psycopg import sql

    query = sql.SQL("SELECT * FROM made")
    if not tables.key:
        writes = [append(tables, query)]
    elif tables.deletes:
        writes = [delete(tables, query), upsert(tables, query)]
    else:
        writes = [upsert(tables, query)]
    wrote = [sql.SQL("wrote{} AS ({})").format(sql.SQL(str(n)), w) for n, w in enumerate(writes)]
    return sql.SQL(
        "WITH fence AS (UPDATE {} SET written_at = now() WHERE pipeline = %(pipeline)s "
        "AND sink = %(sink)s AND task = %(task)s AND incarnation = %(incarnation)s RETURNING 1), "
        "made AS ({} WHERE EXISTS (SELECT FROM fence)), {}, "
        "told AS (INSERT INTO {} AS told (pipeline, sink, sender, origin, sequence) "
        "SELECT %(pipeline)s, %(sink)s, last.* FROM unnest(%(senders)s::bigint[], "
        "%(origins)s::bigint[], %(sequences)s::bigint[]) AS last WHERE EXISTS (SELECT FROM fence) "
        "ON CONFLICT (pipeline, sink, sender) "
        "DO UPDATE SET origin = EXCLUDED.origin, sequence = EXCLUDED.sequence) "
        "SELECT count(*), set_config('synchronous_commit', coalesce(nullif("
        "current_setting('synchronous_commit'), 'off'), 'on'), true) FROM fence"
    ).format(tables.writers(), given(tables), listed(wrote), tables.senders())


def append(tables: Tables, query: sql.Composable) -> sql.Composed:
    """Return what adds a row for each record."""
    from psycopg import sql

    columns = listed([sql.Identifier(column.name) for column in tables.columns])
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) AS made").format(
        tables.target(), columns, columns, query
    )


def delete(tables: Tables, query: sql.Composable) -> sql.Composed:
    """Return what deletes the rows of keys that were retracted, and not replaced."""
    from psycopg import sql

    key = [sql.Identifier(name) for name in tables.key]
    same = [sql.SQL("target.{} = newest.{}").format(name, name) for name in key]
    return sql.SQL("DELETE FROM {} AS target USING ({}) AS newest WHERE {} AND {}").format(
        tables.target(),
        _newest(tables, query, key),
        sql.Identifier(RETRACTED),
        sql.SQL(" AND ").join(same),
    )


def upsert(tables: Tables, query: sql.Composable) -> sql.Composed:
    """Return what replaces the rows of keys by the records that were produced last."""
    from psycopg import sql

    columns = [sql.Identifier(column.name) for column in tables.columns]
    key = [sql.Identifier(name) for name in tables.key]
    replaced = [
        sql.SQL("{} = EXCLUDED.{}").format(column, column)
        for column in columns
        if column not in key
    ]
    action = sql.SQL("DO UPDATE SET ") + listed(replaced) if replaced else sql.SQL("DO NOTHING")
    return sql.SQL(
        "INSERT INTO {} ({}) SELECT {} FROM ({}) AS newest WHERE NOT {} ON CONFLICT ({}) {}"
    ).format(
        tables.target(),
        listed(columns),
        listed(columns),
        _newest(tables, query, columns),
        sql.Identifier(RETRACTED),
        listed(key),
        action,
    )


def _newest(
    tables: Tables, query: sql.Composable, columns: Sequence[sql.Composable]
) -> sql.Composed:
    """Return a query of the record of each key that was produced last."""
    from psycopg import sql

    key = listed([sql.Identifier(name) for name in tables.key])
    return sql.SQL("SELECT DISTINCT ON ({}) {}, {} FROM ({}) AS made ORDER BY {}, {} DESC").format(
        key, listed(columns), sql.Identifier(RETRACTED), query, key, sql.Identifier(ID)
    )


def listed(names: Sequence[sql.Composable]) -> sql.Composed:
    """Return names with commas between them."""
    from psycopg import sql

    return sql.SQL(", ").join(names)


#: Name, sizes, and the rest of the name.
_TYPE: Final = re.compile(r"([^(\[]+?)(?:\(([-\d,]+)\))?((?: with(?:out)? time zone)?)(?:\[\])*")
#: The whole numbers of a type, and between which a type of floating-point numbers has all of them.
_WHOLE: Final = {
    "smallint": (-(1 << 15), (1 << 15) - 1),
    "integer": (-(1 << 31), (1 << 31) - 1),
    "real": (-(1 << 24), 1 << 24),
    "double precision": (-(1 << 53), 1 << 53),
}
_TEXTS: Final = frozenset({"text", "character varying", "character"})
_ZONED, _ZONELESS = "timestamp with time zone", "timestamp without time zone"
_DAY, _TIME = r"\d{4,6}-\d\d-\d\d", r"\d\d:\d\d(:\d\d(\.\d{1,6})?)?"
_ZONE: Final = r"(Z|[+-]\d\d(:?\d\d)?)"
#: Of text, what a column reads as one date, time or instant: ISO 8601, and all of it.
_ISO: Final = {
    "date": f"^({_DAY}|-?infinity)$",
    "time without time zone": f"^{_TIME}$",
    "time with time zone": f"^{_TIME}{_ZONE}$",
    _ZONELESS: f"^({_DAY}([T ]{_TIME})?|-?infinity)$",
    _ZONED: f"^({_DAY}[T ]{_TIME}{_ZONE}|-?infinity)$",
}
#: Kind of a field's column -> built-in types that hold its values, all or within a limit.
_HELD: Final = (
    (pa.types.is_boolean, {"boolean"}),
    (pa.types.is_integer, {*_WHOLE, "bigint", "numeric"}),
    (pa.types.is_floating, {"double precision", "numeric"}),
    (pa.types.is_decimal, {"numeric"}),
    (pa.types.is_binary, {"bytea"}),
    (pa.types.is_timestamp, {_ZONED}),
    (pa.types.is_date, {"date", _ZONELESS}),
    # These are read as they are written, or refused; of dates and times those of _ISO.
    (pa.types.is_string, {"smallint", "integer", "bigint", "numeric", "boolean", "bytea", "date",
                          "interval", "time without time zone", "time with time zone",
                          _ZONED, _ZONELESS}),
)  # fmt: skip
#: Built-in types that bend what they do not hold. Others, such as ``uuid`` or an enum, refuse it.
_BENDING: Final = {
    *(name for _, types in _HELD for name in types), "real", "money", "name", '"char"', "bit",
}  # fmt: skip


def fit(kind: pa.DataType, column: str) -> ColumnLimit | None:
    """Return what values of a field a column holds; None if it bends none.

    Args:
        kind: Of the field, as Arrow has it.
        column: The column's type, as PostgreSQL writes it.

    Raises:
        ValueError: The type shows that the column would bend values of the field.

    >>> fit(pa.int64(), "smallint").whole
    (-32768, 32767)
    >>> fit(pa.float64(), "numeric(10,2)")
    Traceback (most recent call last):
    ...
    ValueError: numeric(10,2) would round, cut or reinterpret values of double
    """
    if pa.types.is_list(kind) and column.endswith("[]"):
        return fit(kind.value_type, column)
    matched = _TYPE.fullmatch(column)
    name = "" if matched is None else matched[1] + matched[3]
    sizes = [] if matched is None else [int(size) for size in (matched[2] or "").split(",") if size]
    if name in _TEXTS:
        return ColumnLimit(length=sizes[0]) if sizes and pa.types.is_string(kind) else None
    if name not in _BENDING:
        return None
    if any(holds(kind) and name in types for holds, types in _HELD):
        if not sizes and pa.types.is_string(kind):
            return ColumnLimit(text=_ISO[name]) if name in _ISO else None
        if not sizes:
            return ColumnLimit(whole=_WHOLE.get(name)) if pa.types.is_integer(kind) else None
        scale = sizes[1] if len(sizes) > 1 else 0
        exact = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        if name == "numeric" and exact and 0 <= scale <= sizes[0]:
            return ColumnLimit(digits=(sizes[0] - scale, scale))
    raise ValueError(f"{column} would round, cut or reinterpret values of {kind}")


_TYPES = {
    pa.bool_(): "boolean",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.timestamp("us", tz="UTC"): "timestamptz",
    pa.date32(): "date",
    pa.decimal128(DECIMAL_DIGITS, DECIMAL_SCALE): "numeric",
}


def check(
    connection: psycopg.Connection[Any],
    table: str,
    key: Sequence[str],
    workspace: str | None,
    stream: str,
    record: SinkColumns,
) -> Tables:
    """Return the tables of a sink, the user's checked if it is there. Writes nothing.

    Raises:
        PipelineError: The table does not fit the stream's records, or a schema may not be used.
    """
    schema, name = _resolve(connection, table)
    workspace = workspace or schema
    there = _exists(connection, schema, name)
    for needed in {workspace} | (set() if there else {schema}):
        cursor = connection.execute(
            "SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s",
            [needed],
        ).fetchone()
        if cursor is None or not cursor[0]:
            raise PipelineError(
                f"PostgreSQL table '{schema}.{name}': the schema {needed!r} "
                + ("does not exist. " if cursor is None else "may not be written by this user. ")
                + "Tables of Millrace's own go there. Create it, GRANT CREATE on it, or name "
                "another schema: workspace=..."
            )
    columns = (
        _columns(connection, schema, name, stream, record)
        if there
        else tuple(
            Column(field.name, kind, kind.endswith("[]"))
            for field, kind in zip(record.arrow, _types(record), strict=True)
        )
    )
    if key:
        _check_key(connection if there else None, schema, name, key, columns)
    if record.retracts and not key and "_retraction" not in {column.name for column in columns}:
        raise PipelineError(
            f"PostgreSQL table '{schema}.{name}', stream {stream!r}: the stream has retractions, "
            "and appended rows would not show which were retracted. Add a column _retraction "
            "boolean, or name a key, by which a retraction deletes its row."
        )
    columns = tuple(replace(column, is_of_key=column.name in key) for column in columns)
    sink = f"{stream} -> {schema}.{name}"
    deletes = record.retracts and bool(key)
    return Tables(schema, name, workspace, sink, columns, tuple(key), deletes)


def make(connection: psycopg.Connection[Any], tables: Tables) -> None:
    """Make the tables that are missing; in one transaction with what follows."""
    from psycopg import sql

    # Two runs that start at once would both make them.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('millrace', 0))")
    if not recorded(connection, tables):
        connection.execute(
            sql.SQL(
                "CREATE TABLE {} (pipeline text NOT NULL, sink text NOT NULL, "
                "checkpoint text NOT NULL, generation bigint NOT NULL, epoch bigint NOT NULL, "
                "written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink))"
            ).format(tables.epochs())
        )
    # Rows that are updated many times a second: pages are left half empty for their next versions.
    for table, columns in (
        (tables.writers(), "task bigint, incarnation bigint NOT NULL, written_at timestamptz"),
        (tables.senders(), "sender bigint, origin bigint NOT NULL, sequence bigint NOT NULL"),
    ):
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (pipeline text, sink text, {}, "
                "PRIMARY KEY (pipeline, sink, {})) WITH (fillfactor = 50)"
            ).format(table, sql.SQL(columns), sql.SQL(columns.partition(" ")[0]))
        )
    if not _exists(connection, tables.schema, tables.name):
        declared = [
            sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
            for column in tables.columns
        ]
        if tables.key:
            key = sql.SQL(", ").join([sql.Identifier(name) for name in tables.key])
            declared.append(sql.SQL("PRIMARY KEY ({})").format(key))
        connection.execute(
            sql.SQL("CREATE TABLE {} ({})").format(tables.target(), sql.SQL(", ").join(declared))
        )


def recorded(connection: psycopg.Connection[Any], tables: Tables) -> bool:
    """Return whether there is a table of epochs."""
    return _exists(connection, tables.workspace, EPOCHS)


def database(connection: psycopg.Connection[Any]) -> str:
    """Return what tells a database from all others, by whichever host it is reached."""
    row = connection.execute("SELECT current_database(), pg_postmaster_start_time()").fetchone()
    assert row is not None, "both have a value"
    name, started = row
    since = started.astimezone(dt.UTC).isoformat()
    return f"database {name!r} of the server that was started at {since}"


def _resolve(connection: psycopg.Connection[Any], table: str) -> tuple[str, str]:
    schema, _, name = table.rpartition(".")
    if schema:
        return schema, name
    row = connection.execute(
        "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        [_quoted(name)],
    ).fetchone()
    if row is None:
        row = connection.execute("SELECT current_schema()").fetchone()
    if row is None or row[0] is None:
        raise PipelineError(
            f"PostgreSQL table {table!r}: the search_path names no schema that exists. Name one: "
            f"table='public.{table}'."
        )
    return row[0], name


def _exists(connection: psycopg.Connection[Any], schema: str, name: str) -> bool:
    cursor = connection.execute("SELECT to_regclass(%s)", [f"{_quoted(schema)}.{_quoted(name)}"])
    (oid,) = cursor.fetchone() or (None,)
    return oid is not None


def _types(record: SinkColumns) -> list[str]:
    texts = dict.fromkeys(record.json, "jsonb") | dict.fromkeys(record.uuids, "uuid")
    return [texts.get(field.name) or column_type(field.type) for field in record.arrow]


def column_type(kind: pa.DataType) -> str:
    """Return the PostgreSQL type of a record's column; what has none of its own is JSON.

    >>> column_type(pa.int64()), column_type(pa.list_(pa.string())), column_type(pa.struct([]))
    ('bigint', 'text[]', 'jsonb')
    """
    if pa.types.is_list(kind) and kind.value_type in _TYPES:
        return f"{_TYPES[kind.value_type]}[]"
    return _TYPES.get(kind, "jsonb")


#: Of a table's columns: name, type, the type that is behind its domains, whether that is an array,
#: whether a row must have a value for it, and whether the server alone gives it one.
_COLUMNS: Final = """
    WITH RECURSIVE column_types AS (
        SELECT attnum, atttypid AS kind, atttypmod AS modifier FROM pg_attribute
        WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped
        UNION ALL
        SELECT attnum,
            CASE WHEN t.typtype = 'd' THEN t.typbasetype
                ELSE (SELECT base.typarray FROM pg_type base WHERE base.oid = e.typbasetype) END,
            CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE e.typtypmod END
        FROM column_types JOIN pg_type t ON t.oid = kind
        LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
        WHERE t.typtype = 'd' OR e.typtype = 'd'
    )
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), format_type(b.kind, b.modifier),
        t.typcategory = 'A', a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',
        a.attgenerated <> '' OR a.attidentity = 'a'
    FROM column_types b JOIN pg_type t ON t.oid = b.kind
    LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
    JOIN pg_attribute a ON a.attrelid = %(table)s::regclass AND a.attnum = b.attnum
    WHERE t.typtype <> 'd' AND e.typtype IS DISTINCT FROM 'd'
    ORDER BY a.attnum
"""


def _columns(
    connection: psycopg.Connection[Any], schema: str, name: str, stream: str, record: SinkColumns
) -> tuple[Column, ...]:
    table = {"table": f"{_quoted(schema)}.{_quoted(name)}"}
    rows = connection.execute(_COLUMNS, table).fetchall()
    where = f"PostgreSQL table '{schema}.{name}', stream {stream!r}"
    has = {column: (kind, base, array) for column, kind, base, array, _, own in rows if not own}
    fields = [field.name for field in record.arrow]
    # Columns that are not of the record's format, a table has or not.
    lacking = [column for column in record.names if column not in has]
    if lacking:
        raise PipelineError(
            f"{where}: the records have fields {lacking}, for which the table has no column that "
            f"can be written (it has {sorted(has)}). Add the columns, or produce another format."
        )
    needed = [column for column, *_, needs, _ in rows if needs and column not in fields]
    if needed:
        raise PipelineError(
            f"{where}: the columns {needed} are NOT NULL without a default, and the records have "
            f"no such fields (they have {fields}). Give them a default, or add the fields."
        )
    typed_columns = []
    for field in record.arrow:
        if field.name not in has:
            continue
        kind, base, array = has[field.name]
        try:
            limit = fit(field.type, base)
        except ValueError as refused:
            raise PipelineError(
                f"{where}: the column {field.name!r} cannot represent all values of the field: "
                f"{refused}. Change the type of the column ({column_type(field.type)} holds all "
                "values), or convert the values in a step before the sink."
            ) from None
        typed_columns.append(Column(field.name, kind, array, limit))
    return tuple(typed_columns)


def _check_key(
    connection: psycopg.Connection[Any] | None,
    schema: str,
    name: str,
    key: Sequence[str],
    columns: Sequence[Column],
) -> None:
    written = [column.name for column in columns]
    unknown = [column for column in key if column not in written]
    if unknown:
        raise PipelineError(
            f"PostgreSQL table '{schema}.{name}': key={list(key)} names {unknown}, which the sink "
            f"does not write. It writes {written}."
        )
    if connection is None:
        return  # the table will be made with a primary key
    unique = connection.execute(
        "SELECT array_agg(a.attname::text) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) "
        "WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indimmediate AND i.indisvalid "
        "AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
        [f"{_quoted(schema)}.{_quoted(name)}"],
    ).fetchall()
    if not any(set(names) == set(key) for (names,) in unique):
        raise PipelineError(
            f"PostgreSQL table '{schema}.{name}': rows are to be replaced by {list(key)}, and the "
            "table has no primary key or unique index on exactly these columns. Make one: CREATE "
            f"UNIQUE INDEX ON {schema}.{name} ({', '.join(key)})."
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
