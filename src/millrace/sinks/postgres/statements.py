"""The statements that put records into the user's table, wherever in the database they are read.

*Made* is a query of records: the columns that the sink writes, :data:`~.tables.ID`, by which they
sort as they were produced, and :data:`~.tables.RETRACTED`. On the epoch plane it reads the staging
table, on the real-time plane the parameters of the statement itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.sinks.postgres.tables import ID, RETRACTED, TASK, Tables, identifier

if TYPE_CHECKING:
    from psycopg import sql


def staged(staging: tuple[str, str]) -> sql.Composed:
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
    ``pipeline``, ``sink``, ``task``, ``session``, arrays ``senders``, ``origins``, ``sequences``,
    and those of :func:`given`. It returns how many fences it passed.
    """
    from psycopg import sql

    made = sql.SQL("SELECT * FROM made")
    if not tables.key:
        writes = [append(tables, made)]
    elif tables.deletes:
        writes = [delete(tables, made), upsert(tables, made)]
    else:
        writes = [upsert(tables, made)]
    wrote = [sql.SQL("wrote{} AS ({})").format(sql.SQL(str(n)), w) for n, w in enumerate(writes)]
    return sql.SQL(
        "WITH fence AS (UPDATE {} SET written_at = now() WHERE pipeline = %(pipeline)s "
        "AND sink = %(sink)s AND task = %(task)s AND session = %(session)s RETURNING 1), "
        "made AS ({} WHERE EXISTS (SELECT FROM fence)), {}, "
        "told AS (INSERT INTO {} AS told (pipeline, sink, sender, origin, sequence) "
        "SELECT %(pipeline)s, %(sink)s, last.* FROM unnest(%(senders)s::bigint[], "
        "%(origins)s::bigint[], %(sequences)s::bigint[]) AS last WHERE EXISTS (SELECT FROM fence) "
        "ON CONFLICT (pipeline, sink, sender) "
        "DO UPDATE SET origin = EXCLUDED.origin, sequence = EXCLUDED.sequence) "
        "SELECT count(*) FROM fence"
    ).format(tables.writers(), given(tables), listed(wrote), tables.senders())


def append(tables: Tables, made: sql.Composable) -> sql.Composed:
    """Return what adds a row for each record."""
    from psycopg import sql

    columns = listed([sql.Identifier(column.name) for column in tables.columns])
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM ({}) AS made").format(
        tables.target(), columns, columns, made
    )


def delete(tables: Tables, made: sql.Composable) -> sql.Composed:
    """Return what deletes the rows of keys that were retracted, and not replaced."""
    from psycopg import sql

    key = [sql.Identifier(name) for name in tables.key]
    same = [sql.SQL("target.{} = newest.{}").format(name, name) for name in key]
    return sql.SQL("DELETE FROM {} AS target USING ({}) AS newest WHERE {} AND {}").format(
        tables.target(),
        _newest(tables, made, key),
        sql.Identifier(RETRACTED),
        sql.SQL(" AND ").join(same),
    )


def upsert(tables: Tables, made: sql.Composable) -> sql.Composed:
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
        _newest(tables, made, columns),
        sql.Identifier(RETRACTED),
        listed(key),
        action,
    )


def _newest(
    tables: Tables, made: sql.Composable, columns: Sequence[sql.Composable]
) -> sql.Composed:
    """Return a query of the record of each key that was produced last."""
    from psycopg import sql

    key = listed([sql.Identifier(name) for name in tables.key])
    return sql.SQL("SELECT DISTINCT ON ({}) {}, {} FROM ({}) AS made ORDER BY {}, {} DESC").format(
        key, listed(columns), sql.Identifier(RETRACTED), made, key, sql.Identifier(ID)
    )


def listed(names: Sequence[sql.Composable]) -> sql.Composed:
    """Return names with commas between them."""
    from psycopg import sql

    return sql.SQL(", ").join(names)
