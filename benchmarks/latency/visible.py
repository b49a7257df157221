"""When rows of PostgreSQL become visible to others: a client that asks for snapshots.

``python -m benchmarks.latency.visible CONNINFO OUT``: it says ``ready``, asks until it is told to
end by SIGTERM, and leaves in OUT the rows of the table and when each could be seen.

A snapshot says which transactions have ended, so the table is not read until the end, and a
question costs the server some 20 microseconds.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np
import psycopg

#: Of the benchmark alone: it is dropped and made for each cell.
SCHEMA = "millrace_benchmark"
TABLE = f"{SCHEMA}.counted"
_EVERY_S = 0.002


def main(conninfo: str, out: Path) -> None:
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    seen: list[tuple[int, str]] = []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        cursor = connection.cursor()
        print("ready", flush=True)
        while not told:
            found = cursor.execute("SELECT pg_current_snapshot()::text", prepare=True).fetchone()
            assert found is not None
            now_ns = time.time_ns()
            if not seen or seen[-1][1] != found[0]:
                seen.append((now_ns, found[0]))
            time.sleep(_EVERY_S)
        rows = cursor.execute(
            f"SELECT sent, key, count, xmin::text::bigint FROM {TABLE}"
        ).fetchall()
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    transactions, which = np.unique(table[:, 3], return_inverse=True)
    at_ns = np.array([visible_ns(seen, int(one)) for one in transactions], dtype=np.int64)
    table[:, 3] = 0
    np.savez(out, rows=table, arrived_ns=at_ns[which])


def visible_ns(seen: list[tuple[int, str]], transaction: int) -> int:
    """Return the time of the first snapshot in which a committed transaction had ended.

    Args:
        seen: Times, and snapshots as PostgreSQL writes them, in order.
        transaction: Its number; snapshots' numbers count on where its 32 bits begin again.

    Raises:
        ValueError: It had not in any.

    >>> seen = [(1, "7:7:"), (2, "7:9:7,8"), (3, "7:9:7"), (4, "9:9:")]
    >>> visible_ns(seen, 7), visible_ns(seen, 8)
    (4, 3)
    """
    low, high = 0, len(seen)
    while low < high:
        middle = (low + high) // 2
        if _has_ended(seen[middle][1], transaction):
            high = middle
        else:
            low = middle + 1
    if low == len(seen):
        raise ValueError(f"transaction {transaction} is in none of {len(seen)} snapshots")
    return seen[low][0]


def _has_ended(snapshot: str, transaction: int) -> bool:
    _, beyond, running = snapshot.split(":")
    return transaction < int(beyond) % 2**32 and str(transaction) not in running.split(",")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
