"""The picture of low watermarks: what is drawn, from which source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.store import open_location

pytest.importorskip("matplotlib")

START = 1_767_261_600_000_000  # 2026-01-01T10:00:00Z


class Hold(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"out": dict}
    percentiles = (90,)

    def process_record(self, record: mr.Record) -> None:
        if "hold" in record.value:
            self.hold(record.value["hold"])


class Below(mr.Computation):
    inputs = {"out": mr.by("key")}

    def process_record(self, record: mr.Record) -> None:
        pass


def pipeline(*, late: bool = False) -> mr.Pipeline:
    p = mr.Pipeline("p")
    p.inject("events")
    p.add(Hold)
    p.add(Below)
    if late:
        p.late_records("late")
    return p


def play(h: mr.testing.Harness, start: int = 0) -> None:
    h.advance_clock(start)
    h.inject("events", [({"key": "k", "hold": start + 2 * mr.SECOND}, start + 2 * mr.SECOND)])
    for second in range(1, 6):
        h.advance_clock(start + second * mr.SECOND)
        h.advance_watermark("events", start + (second - 1) * mr.SECOND)
    h.inject("events", [({"key": "k"}, start + mr.SECOND)])


def lines(figure: Any) -> dict[str, list[tuple[Any, Any]]]:
    (axes,) = figure.axes
    return {
        line.get_label(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.get_lines()
    }


def crosses(figure: Any) -> list[list[float]]:
    found = [c for c in figure.axes[0].collections if c.get_label() == "late records"]
    return found[0].get_offsets().tolist() if found else []


def test_a_line_for_every_computation_event_time_to_the_right() -> None:
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        drawn = lines(mr.plot.watermarks(h))

    assert list(drawn) == ["injector of events", "Hold", "Below", "ideal"]
    assert drawn["Hold"][-1] == (4.0, 5.0)  # event time 4 s at processing time 5 s
    assert drawn["Below"][-1] == (2.0, 5.0)  # held
    assert drawn["ideal"] == [(0.0, 0.0), (5.0, 5.0)]


def test_a_low_watermark_stands_until_the_epoch_that_moves_it() -> None:
    """So the line goes up first, and then to the right."""
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        (axes,) = mr.plot.watermarks(h).axes

    steps = {line.get_label(): line.get_drawstyle() for line in axes.get_lines()}
    assert {steps[name] for name in ("injector of events", "Hold", "Below")} == {"steps-pre"}


def test_instants_of_our_era_are_dates() -> None:
    with mr.testing.Harness(pipeline()) as h:
        play(h, START)
        figure = mr.plot.watermarks(h)

    assert str(lines(figure)["Hold"][-1][0]) == "2026-01-01 10:00:04+00:00"
    assert figure.axes[0].get_xlabel() == "event time (UTC)"


@pytest.mark.parametrize("declared", [True, False])
def test_late_records_are_crosses(declared: bool) -> None:
    """Without a stream of them the first one is known all the same."""
    with mr.testing.Harness(pipeline(late=declared)) as h:
        play(h)
        h.inject("events", [({"key": "k"}, 2 * mr.SECOND)])
        figure = mr.plot.watermarks(h)

    assert crosses(figure) == ([[1.0, 5.0], [2.0, 5.0]] if declared else [[1.0, 5.0]])


def test_late_records_may_be_given() -> None:
    late = mr.LateRecord("Hold", "events", "'k'", "1", 3 * mr.SECOND, 0, 4 * mr.SECOND, 0)
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        assert crosses(mr.plot.watermarks(h, late=[late])) == [[3.0, 4.0]]
        assert crosses(mr.plot.watermarks(h, late=[late], computations=["Below"])) == []


def test_records_percentiles_and_a_choice_of_computations() -> None:
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        h.advance_watermark("events", 5 * mr.SECOND, percentile=90)
        figure = mr.plot.watermarks(
            h, computations=["Hold"], percentiles=[90], records=[(mr.SECOND, 0)], title="Ours"
        )
        drawn = lines(figure)

        assert "Below" not in drawn
        assert drawn["Hold, 90 %"][-1] == (5.0, 5.0)
        assert figure.axes[0].collections[0].get_offsets().tolist() == [[0.0, 1.0]]
        assert figure.axes[0].get_title() == "Ours"
        with pytest.raises(mr.MillraceError, match=r"percentile 99: the pipeline declares \[90\]"):
            mr.plot.watermarks(h, percentiles=[99])


def test_a_crash_forgets_nothing_of_the_picture() -> None:
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        before = lines(mr.plot.watermarks(h))
        h.crash()

        assert lines(mr.plot.watermarks(h)) == before


def test_it_draws_on_axes_that_are_given() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.add_subplot()
    with mr.testing.Harness(pipeline()) as h:
        play(h)
        assert mr.plot.watermarks(h, axes=axes) is figure

    assert len(axes.get_lines()) == 4


def test_a_replay_of_old_data_has_no_ideal() -> None:
    """Event time is of another era than processing time."""
    with mr.testing.Harness(pipeline()) as h:
        h.advance_clock(START)
        h.advance_watermark("events", START - 400 * mr.DAY)

        assert "ideal" not in lines(mr.plot.watermarks(h))


def test_a_source_without_history_is_refused() -> None:
    with mr.testing.Harness(pipeline()) as h:
        with pytest.raises(mr.MillraceError, match="no epoch has completed"):
            mr.plot.watermarks(h)
        h.advance_clock(1)
        with pytest.raises(mr.MillraceError, match=r"no computations \['Hol'\]"):
            mr.plot.watermarks(h, computations=["Hol"])
    with pytest.raises(mr.MillraceError, match="7 has no history"):
        mr.plot.watermarks(7)  # type: ignore[arg-type]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "ckpt"
    run_log = RunLog(pipeline().build(), open_location(path, pipeline="p"), intervals=1)
    for second in range(1, 4):
        manifest = run_log.begin(
            run_log.completed + 1,
            wall_time_us=START + second * mr.SECOND,
            injectors={"events": START + second * mr.SECOND - mr.SECOND},
        )
        assert manifest is not None
        run_log.complete(manifest, [])
    return path


@pytest.mark.parametrize(("name", "magic"), [("w.png", b"\x89PNG"), ("w.svg", b"<?xml")])
def test_the_command_draws_a_checkpoint(
    checkpoint: Path, tmp_path: Path, name: str, magic: bytes
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from click.testing import CliRunner

    from millrace.cli.main import main

    late = [
        {"computation": "Hold", "stream": "events", "key": "'k'", "value": "1", "delivered_in": 2}
        | {"timestamp": START, "low_watermark": START, "wall_time": START + mr.SECOND}
    ]
    pq.write_table(pa.Table.from_pylist(late), tmp_path / "late.parquet")
    out = tmp_path / "new" / name
    arguments = [str(checkpoint), "--out", str(out), "--late", str(tmp_path / "late.parquet")]
    shown = CliRunner().invoke(main, ["plot-watermarks", *arguments])

    assert shown.exit_code == 0, shown.output
    assert out.read_bytes().startswith(magic)
    assert lines(mr.plot.watermarks(str(checkpoint)))["Hold"][-1][1].second == 3


def test_one_epoch_is_a_point_on_axes_that_can_be_read() -> None:
    with mr.testing.Harness(pipeline()) as h:
        h.advance_clock(START)
        h.advance_watermark("events", START - mr.HOUR)
        axes = mr.plot.watermarks(h, computations=["Hold"]).axes[0]

    (hold,) = (line for line in axes.get_lines() if line.get_label() == "Hold")
    assert hold.get_marker() == "o"
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert 1 <= round((high - low) * 86_400, 3) < 2  # dates are days


def test_low_watermarks_that_were_at_no_time_are_no_picture() -> None:
    with mr.testing.Harness(pipeline()) as h:
        h.advance_clock(START)
        h.advance_watermark("events", mr.MAX_TIMESTAMP)
        with pytest.raises(mr.MillraceError, match="before time or at the end of time"):
            mr.plot.watermarks(h)
