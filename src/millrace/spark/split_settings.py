"""How Spark cuts the files of an epoch into partitions, written down so that a retry does it again.

A record's id is its place in its source: the partition of the scan, and the row in it. Spark's file
sources choose the partitions by the settings here, those of the session in which the source was
made. So an epoch's manifest holds them, and an epoch that is run again is read under those that it
was begun with, whatever the session is set to by then.

Source: MillWheel 6.1.1: the id of a record is the same whenever it is delivered again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from millrace.spark.compat import session_id
from millrace.spark.parallelism import tasks_for

_log = logging.getLogger("millrace")

_LEAST = "spark.sql.files.minPartitionNum"
_SETTINGS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    _LEAST,
    "spark.sql.files.maxPartitionNum",
)
#: What Spark takes for the least number of partitions if that is not set; else its cores.
_INSTEAD = "spark.sql.leafNodeDefaultParallelism"


@dataclass(eq=False)
class _Loan:
    """How a session splits files for those that keep it so.

    Attributes:
        users: What the user had before.
        values: The settings now.
        holders: How many runs keep them.
        claimants: How many wait to set others.
    """

    users: dict[str, str]
    values: dict[str, str]
    holders: int = 1
    claimants: int = 0


_changed = threading.Condition()
#: Id of a session -> how it splits files while epochs are under way.
_loans: dict[str, _Loan] = {}
#: How often who waits for others looks whether to go on waiting.
_LOOK_S: Final = 0.1


def _go_on() -> None:
    """Let nothing keep a call from waiting."""


class SplitSettings:
    """The settings of a session by which files are split.

    Runs of one session share them. An epoch keeps them as they are until its files are read, and
    one that is repeated with others waits for that.

    The least number of partitions is set, if the user has not, to what it is by default: how many
    tasks the session can run at once. Left to Spark, it would be looked up for each scan, and be
    another when executors have come or gone.

    Args:
        spark: The session in which the sources were made.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._session = session_id(spark)
        self._loan: _Loan | None = None
        with _changed:
            # Of a session that another run splits otherwise for a time, that run has set it.
            if self._session not in _loans and spark.conf.get(_LEAST, None) is None:
                spark.conf.set(_LEAST, spark.conf.get(_INSTEAD, None) or str(tasks_for(spark)))

    def repeat(self, wanted: Mapping[str, str]) -> None:
        """Split as an epoch was split before, until :meth:`give_back`.

        It waits while epochs of other runs are under way that are split otherwise.

        Args:
            wanted: Its settings; nothing of a checkpoint that is older than they are.
        """
        if wanted:
            self._borrow(wanted, _go_on)

    def keep(self, check: Callable[[], None] = _go_on) -> dict[str, str]:
        """Return how files are split, and keep it so until :meth:`give_back`.

        It waits while another run waits to repeat an epoch.

        Args:
            check: Is called again and again meanwhile, and raises what is to end the wait.
        """
        return dict(self._borrow(None, check).values)

    def give_back(self) -> None:
        """Set the session as the user had it, when no other run needs it otherwise."""
        with _changed:
            loan, self._loan = self._loan, None
            if loan is None:
                return
            loan.holders -= 1
            if loan.holders:
                return
            del _loans[self._session]
            _changed.notify_all()
            if loan.values != loan.users:
                with contextlib.suppress(Exception):  # a session that was stopped has no settings
                    self._set(loan.users)

    def _borrow(self, wanted: Mapping[str, str] | None, check: Callable[[], None]) -> _Loan:
        """Return the loan that this run has, or has from now on."""
        with _changed:
            if self._loan is not None:
                return self._loan
            while (loan := _loans.get(self._session)) is not None:
                if loan.values == wanted or (wanted is None and not loan.claimants):
                    loan.holders += 1
                    break
                self._wait(loan, wanted is not None)
                check()
            else:
                values = {name: self._spark.conf.get(name, None) for name in _SETTINGS}
                users = {name: value for name, value in values.items() if value is not None}
                loan = _Loan(users, users if wanted is None else dict(wanted))
                if loan.values != users:
                    self._set(loan.values)
                _loans[self._session] = loan
            self._loan = loan
            return loan

    @staticmethod
    def _wait(loan: _Loan, claims: bool) -> None:
        if claims and not loan.claimants:
            _log.info("an epoch is read again when those under way in the session have ended")
        loan.claimants += claims
        try:
            _changed.wait(_LOOK_S)
        finally:
            loan.claimants -= claims

    def _set(self, wanted: Mapping[str, str]) -> None:
        for name in _SETTINGS:
            if name in wanted:
                self._spark.conf.set(name, wanted[name])
            else:
                self._spark.conf.unset(name)
