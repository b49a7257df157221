"""How files are split, of several runs in one session of the user's."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark.offset_files import ProgressFiles
from millrace.spark.split_settings import SplitSettings
from tests.unit.spark.test_lent_settings import Conf, session

LEAST, MOST_BYTES = "spark.sql.files.minPartitionNum", "spark.sql.files.maxPartitionBytes"
USERS = {LEAST: "4", MOST_BYTES: "128m"}
EARLIER = {LEAST: "2", MOST_BYTES: "64m"}
FILE_MANAGER_OF = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.fixture
def spark() -> Any:
    return session(Conf(USERS))


def in_a_thread(call: Any) -> tuple[threading.Thread, threading.Event]:
    """Begin a call that may have to wait; return its thread, and what says that it has ended."""
    ended = threading.Event()

    def run() -> None:
        call()
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, ended


def test_an_epoch_is_split_as_before_and_the_next_as_the_user_has_it(spark: Any) -> None:
    splitting = SplitSettings(spark)
    splitting.repeat(EARLIER)
    assert splitting.keep() == EARLIER == spark.conf
    splitting.give_back()
    assert spark.conf == USERS
    assert splitting.keep() == USERS
    splitting.give_back()
    assert spark.conf == USERS


def test_another_object_of_the_session_shares_what_is_kept(spark: Any) -> None:
    """As ``SparkSession.active()`` makes one."""
    first, second = SplitSettings(spark), SplitSettings(session(spark.conf))
    first.repeat(EARLIER)
    second.repeat(EARLIER)
    first.give_back()
    assert spark.conf == EARLIER, "the second has not read its files yet"
    second.give_back()
    assert spark.conf == USERS


def test_two_runs_that_repeat_epochs_have_them_split_until_the_last_is_done(spark: Any) -> None:
    first, second = SplitSettings(spark), SplitSettings(spark)
    first.repeat(EARLIER)
    second.repeat(EARLIER)
    first.give_back()
    assert spark.conf == EARLIER, "the second has not read its files yet"
    assert second.keep() == EARLIER
    second.give_back()
    assert spark.conf == USERS


def test_a_run_that_begins_meanwhile_sets_nothing_of_its_own(spark: Any) -> None:
    first = SplitSettings(spark)
    first.repeat({MOST_BYTES: "64m"})
    SplitSettings(spark)
    assert spark.conf == {MOST_BYTES: "64m"}
    first.give_back()
    assert spark.conf == USERS


def test_of_two_runs_that_repeat_epochs_that_were_split_otherwise_one_waits(spark: Any) -> None:
    first, second, other = SplitSettings(spark), SplitSettings(spark), EARLIER | {LEAST: "9"}
    first.repeat(EARLIER)
    thread, ended = in_a_thread(lambda: second.repeat(other))
    assert not ended.wait(0.05)
    assert spark.conf == EARLIER
    first.give_back()
    thread.join(10)
    assert spark.conf == other
    second.give_back()
    assert spark.conf == USERS


def test_an_epoch_under_way_is_read_to_its_end_as_it_is_written_down(spark: Any) -> None:
    running, started = SplitSettings(spark), SplitSettings(spark)
    assert running.keep() == USERS
    thread, ended = in_a_thread(lambda: started.repeat(EARLIER))
    assert not ended.wait(0.05)
    assert spark.conf == USERS
    running.give_back()
    thread.join(10)
    # Its next is begun as it is to be read now, and written down so.
    assert running.keep() == EARLIER == spark.conf
    started.give_back()
    running.give_back()
    assert spark.conf == USERS


def test_who_is_stopped_does_not_wait(spark: Any) -> None:
    running, started, next_epoch = (SplitSettings(spark) for _ in range(3))
    running.keep()
    thread, _ = in_a_thread(lambda: started.repeat(EARLIER))

    def epochs() -> None:
        while True:  # until the other waits, which is then the first
            next_epoch.keep(_stopped)
            next_epoch.give_back()

    with pytest.raises(InterruptedError):
        epochs()
    running.give_back()
    thread.join(10)
    started.give_back()
    assert spark.conf == USERS


def _stopped() -> None:
    raise InterruptedError


def test_a_session_that_was_stopped_is_given_back(spark: Any) -> None:
    splitting = SplitSettings(spark)
    splitting.repeat(EARLIER)
    spark.conf = SimpleNamespace()
    splitting.give_back()
    spark.conf = Conf(USERS)
    assert splitting.keep() == USERS
    splitting.give_back()


def test_two_queries_write_their_progress_the_quick_way_until_the_last_has_begun(
    spark: Any, tmp_path: Any
) -> None:
    first, second = (ProgressFiles(str(tmp_path / name), spark) for name in "ab")
    first.begin()
    second.begin()
    first.give_back()
    assert FILE_MANAGER_OF in spark.conf
    second.give_back()
    second.give_back()
    assert spark.conf == USERS


def test_a_users_choice_of_how_progress_is_written_stands(spark: Any, tmp_path: Any) -> None:
    spark.conf[FILE_MANAGER_OF] = "theirs"
    progress = ProgressFiles(str(tmp_path), spark)
    progress.begin()
    progress.give_back()
    assert spark.conf[FILE_MANAGER_OF] == "theirs"
