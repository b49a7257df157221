"""``millrace plot-panes`` on the files that Spark writes."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

NINE = dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC)


def write(folder: Path, epoch: int, total: int, **options: Any) -> None:
    instant = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "value": pa.array([total]),
            "_key": pa.array(["red"]),
            "_timestamp": pa.array([NINE], instant),
            "_id": pa.array([b""]),
            "_window_start": pa.array([NINE], instant),
            "_window_end": pa.array([NINE + dt.timedelta(hours=1)], instant),
            "_pane_index": pa.array([epoch]),
            "_pane_timing": pa.array(["EARLY"]),
            "_is_first": pa.array([epoch == 0]),
            "_is_last": pa.array([False]),
            "_retraction": pa.array([False]),
            "_production_time": pa.array([NINE + dt.timedelta(minutes=epoch)], instant),
            "_percentile": pa.array([0]),
            "_trigger": pa.array([""]),
        }
    )
    (folder / f"epoch={epoch}").mkdir(parents=True)
    pq.write_table(table, folder / f"epoch={epoch}" / "part.parquet", **options)


@pytest.mark.parametrize("int96", [True, False], ids=["INT96", "int64"])
def test_it_draws_what_a_sink_wrote(millrace: Any, tmp_path: Path, int96: bool) -> None:
    # INT96 is what Spark writes by default: instants in UTC that do not say so.
    for epoch in (0, 2, 10):
        write(tmp_path / "totals", epoch, epoch + 5, use_deprecated_int96_timestamps=int96)
    picture = tmp_path / "panes.png"

    drawn = millrace("plot-panes", str(tmp_path / "totals"), "--out", str(picture))

    assert drawn.exit_code == 0, drawn.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert drawn.output == f"{picture}\n"


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("panes.docx", ".docx is no form of pictures. Expected an ending such as .png"),
        ("file/panes.png", "the picture cannot be written: "),
    ],
)
def test_a_picture_that_cannot_be_written_is_said(
    millrace: Any, tmp_path: Path, out: str, complaint: str
) -> None:
    write(tmp_path / "totals", 0, 5)
    (tmp_path / "file").touch()

    drawn = millrace("plot-panes", str(tmp_path / "totals"), "--out", str(tmp_path / out))

    assert drawn.exit_code == 1
    assert drawn.output.startswith("Error: --out '")
    assert complaint in drawn.output
