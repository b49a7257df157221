"""The picture of panes: what is drawn of a run, and of rows that a sink got."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import yaml

import millrace as mr
from millrace.testing.player import OnHarness, play
from millrace.testing.transcript import Transcript

pytest.importorskip("matplotlib")

FIGURES = Path(__file__).parents[2] / "transcripts" / "figures"
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
NINE = 1_795_165_200 * mr.SECOND  # 2026-11-20T09:00:00Z


def played(figure: str) -> mr.testing.Harness:
    transcript = Transcript.of(yaml.safe_load((FIGURES / f"fig_{figure}.yaml").read_text()))
    executor = OnHarness(transcript)
    play(transcript, executor)
    return executor.harness


def draw(figure: str) -> Any:
    return mr.plot.panes(
        played(figure), "panes", records="elements", value=lambda element: element[1]
    )


def boxes(figure: Any) -> list[tuple[str, str, str, str]]:
    """Return (left, right, bottom, top) of each rectangle, as hours and minutes."""
    found = []
    for patch in figure.axes[0].patches:
        xs, ys = zip(*patch.get_xy().tolist(), strict=True)
        found.append(tuple(map(clock, (min(xs), max(xs), min(ys), max(ys)))))
    return found


def clock(days: float) -> str:
    return f"{EPOCH + dt.timedelta(days=round(days * 86_400) / 86_400):%H:%M:%S}"


def texts(figure: Any) -> list[str]:
    """Return what is written at panes and retractions, in order of the panes."""
    return [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold"]


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_panes_are_rectangles_from_their_first_record_to_their_emission() -> None:
    figure = draw("6h")

    assert boxes(figure) == [
        ("12:00:00", "12:02:00", "12:05:20", "12:06:40"),
        ("12:02:00", "12:04:00", "12:05:40", "12:07:20"),
        ("12:00:00", "12:02:00", "12:05:20", "12:08:20"),
        ("12:04:00", "12:06:00", "12:06:50", "12:08:30"),
        ("12:06:00", "12:08:00", "12:07:20", "12:09:20"),
    ]
    assert texts(figure) == ["5", "22", "14", "3", "12"]
    assert legend(figure) == [
        "records", "on time pane", "late pane", "low watermark", "ideal watermark",
    ]  # fmt: skip


def test_the_area_of_a_pane_that_discards_begins_where_the_one_before_ended() -> None:
    figure = draw("6d")

    assert [(bottom, top) for _, _, bottom, top in boxes(figure)] == [
        ("12:05:20", "12:06:00"),
        ("12:06:00", "12:07:00"),
        ("12:07:00", "12:08:00"),
        ("12:08:00", "12:09:00"),
    ]
    assert texts(figure) == ["12", "10", "11", "18"]
    # The global window is as wide as the picture; the low watermark never moved.
    assert {(left, right) for left, right, _, _ in boxes(figure)} == {
        tuple(clock(limit) for limit in figure.axes[0].get_xlim())
    }
    assert legend(figure) == ["records", "early pane", "ideal watermark"]


def test_retractions_are_lines_over_the_windows_that_they_take_back() -> None:
    figure = draw("6j")
    dashed = [
        (*(clock(to_days(x)) for x in line.get_xdata()), clock(to_days(line.get_ydata()[0])))
        for line in figure.axes[0].get_lines()
        if line.get_label() == "retraction"
    ]

    assert texts(figure) == [
        "5", "7", "10", "−7", "−10", "25", "3", "−5", "−25", "39", "−3", "12",
    ]  # fmt: skip
    assert dashed == [
        ("12:02:20", "12:03:20", "12:07:40"),
        ("12:03:40", "12:05:30", "12:07:40"),
        ("12:00:30", "12:01:30", "12:08:20"),
        ("12:02:20", "12:05:30", "12:08:20"),
        ("12:06:30", "12:07:30", "12:09:00"),
    ]


def to_days(instant: dt.datetime) -> float:
    return (instant - EPOCH) / dt.timedelta(days=1)


@pytest.mark.parametrize("figure", ["6b", "6e", "6f", "6g", "6h", "6i", "6j"])
def test_no_value_covers_another_or_a_record(figure: str) -> None:
    axes = draw(figure).axes[0]
    axes.figure.draw_without_rendering()
    written = [text.get_window_extent() for text in axes.texts]

    for n, one in enumerate(written):
        # A record's circle is a little larger than the figure in it.
        assert not any(one.overlaps(other) for other in written[:n]), axes.texts[n].get_text()


def test_a_low_watermark_at_the_end_of_time_goes_to_the_edge() -> None:
    axes = draw("6b").axes[0]
    (line,) = (line for line in axes.get_lines() if line.get_label() == "low watermark")
    ends = [to_days(x) for x in line.get_xdata()]

    assert (ends[0], ends[-1]) == pytest.approx(axes.get_xlim(), abs=1e-5)


def one_pane(windowing: mr.WindowFn, end: int) -> list[mr.testing.Output]:
    """Return the only pane of one record at nine, emitted at ten, of a key of 2026."""
    p = mr.Pipeline("p")
    p.inject("points", format=int).key_by(lambda _: "k").window(windowing).sum().to("totals")
    with mr.testing.Harness(p) as h:
        h.inject("points", [(5, NINE)])
        h.advance_clock(NINE + mr.HOUR)
        h.advance_watermark("points", end)
        return h.outputs("totals")


@pytest.mark.parametrize(
    ("windowing", "records", "wide", "high"),
    [
        # One instant of processing time: as much of it is shown as of event time.
        (mr.Sessions("30 min"), [], 30 * mr.MINUTE, 30 * mr.MINUTE),
        (mr.Sessions("30 min"), [(NINE + mr.HOUR, NINE, 5)], 30 * mr.MINUTE, 30 * mr.MINUTE),
        (mr.Sessions("30 min"), [(NINE, NINE, 5)], 30 * mr.MINUTE, mr.HOUR),
        # One of event time, or of both.
        (mr.GlobalWindow(), [(NINE, NINE, 5)], mr.HOUR, mr.HOUR),
        (mr.GlobalWindow(), [], mr.SECOND, mr.SECOND),
    ],
    ids=["no records", "a record at once", "a record", "one event time", "one instant"],
)
def test_an_axis_of_one_instant_has_a_span_that_can_be_read(
    windowing: Any, records: list[Any], wide: int, high: int
) -> None:
    panes = one_pane(windowing, mr.MAX_TIMESTAMP)
    axes = mr.plot.panes(panes, records=records).axes[0]

    for (low, top), span in ((axes.get_xlim(), wide), (axes.get_ylim(), high)):
        assert span <= round((top - low) * mr.DAY) <= 1.5 * span
    (box,) = (patch.get_xy() for patch in axes.patches)
    assert axes.get_ylim()[0] < max(y for _, y in box) < axes.get_ylim()[1]


def row_of(output: mr.testing.Output) -> dict[str, Any]:
    """Return an output as a sink on Spark gets it."""
    pane = output.pane

    def instant(us: int | None) -> Any:
        return None if us is None else EPOCH + dt.timedelta(microseconds=us)

    return {
        "_key": output.key, "_timestamp": instant(output.timestamp), "_id": output.id,
        "value": output.value, "_window_start": instant(pane.window.start),
        "_window_end": instant(pane.window.end), "_pane_index": pane.index,
        "_pane_timing": str(pane.timing), "_is_first": pane.is_first, "_is_last": pane.is_last,
        "_retraction": pane.retraction, "_production_time": instant(pane.production_time),
        "_percentile": pane.percentile, "_trigger": pane.trigger,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["mappings", "arrow", "pandas"])
@pytest.mark.parametrize("figure", ["6c", "6j"])
def test_rows_of_a_sink_are_the_outputs_again(form: str, figure: str) -> None:
    import pyarrow as pa

    h = played(figure)
    rows: Any = [row_of(output) for output in h.outputs("panes")]
    if form != "mappings":
        rows = pa.Table.from_pylist(rows)
    if form == "pandas":
        rows = rows.to_pandas()
    records = [(o.wall_time, o.timestamp, o.value[1]) for o in h.outputs("elements")]

    drawn = mr.plot.panes(rows, records=records, watermark=h)

    assert mr.testing.outputs_of(rows) == h.outputs("panes")
    assert boxes(drawn) == boxes(draw(figure))
    assert texts(drawn) == texts(draw(figure))
    assert drawn.axes[0].get_title() == "Panes"


def keyed() -> mr.Pipeline:
    p = mr.Pipeline("p")
    scores = p.inject("scores", format=dict).key_by("team")
    scores.window(mr.FixedWindows("1 min")).sum("points").to("totals")
    return p


def test_one_key_of_several() -> None:
    with mr.testing.Harness(keyed()) as h:
        scores = [("red", 5, 10), ("blue", 7, 20), ("red", 1, 30)]
        h.inject("scores", [({"team": t, "points": n}, at * mr.SECOND) for t, n, at in scores])
        h.advance_clock(90 * mr.SECOND)
        h.advance_watermark("scores", mr.MINUTE)
        figure = mr.plot.panes(
            h, "totals", key="red", records="scores", value="points", by_key="team", title="Red"
        )
        by_itself = mr.plot.panes(h, "totals", key="red", records="scores")
        with pytest.raises(
            mr.MillraceError, match=r"panes of 2 keys.*Say which: .*key='(red|blue)'"
        ):
            mr.plot.panes(h, "totals")
        with pytest.raises(mr.MillraceError, match="no panes of key 'green'"):
            mr.plot.panes(h, "totals", key="green")

    assert texts(figure) == ["6"]
    assert figure.axes[0].get_title() == "Red"
    assert figure.axes[0].get_xlabel() == "event time (s)"
    points = figure.axes[0].collections[0].get_offsets().tolist()
    assert points == [[10.0, 0.0], [30.0, 0.0]]
    assert by_itself.axes[0].collections[0].get_offsets().tolist() == points, "as it is grouped"


def bids(panes: int) -> list[mr.testing.Output]:
    """Return so many panes of a minute, of values with two fields."""
    window = mr.Window(0, mr.MINUTE)
    return [
        mr.testing.Output(
            "tea",
            {"item": "tea", "cents": 100 + n},
            mr.MINUTE - 1,
            mr.Pane(window, n, mr.EARLY, production_time=(n + 1) * mr.SECOND),
        )
        for n in range(panes)
    ]


@pytest.mark.parametrize("label", ["cents", lambda value: value["cents"]])
def test_a_label_is_a_field_of_the_value(label: Any) -> None:
    assert texts(mr.plot.panes(bids(2), label=label)) == ["100", "101"]


def test_a_label_that_is_no_field_is_refused() -> None:
    with pytest.raises(mr.MillraceError, match=r"label='sents'.*no field 'sents'"):
        mr.plot.panes(bids(2), label="sents")


def test_many_panes_have_a_value_where_there_is_room() -> None:
    few, many = (mr.plot.panes(bids(n), label="cents") for n in (20, 900))
    assert len(texts(few)) == 20
    written = texts(many)
    assert written[0] == "999", "the last of a window is written first"
    assert 20 < len(written) < 900
    boxes = [text.get_window_extent() for text in many.axes[0].texts]
    crossed = [
        (one, other)
        for n, one in enumerate(boxes)
        for other in boxes[:n]
        if one.shrunk(0.5, 0.5).overlaps(other.shrunk(0.5, 0.5))
    ]
    assert not crossed
    assert tuple(many.get_size_inches()) > tuple(few.get_size_inches())


def test_the_low_watermark_of_rows_is_that_of_the_stream_they_are_of() -> None:
    p = keyed()
    p.stream("totals").key_by(abs).window(mr.FixedWindows("1 h")).count().to("counts")
    with mr.testing.Harness(p) as h:
        h.inject("scores", [({"team": "red", "points": 1}, mr.MINUTE)])
        h.advance_clock(2 * mr.MINUTE)
        h.advance_watermark("scores", 2 * mr.MINUTE)
        rows = [row_of(output) for output in h.outputs("totals")]
        drawn = mr.plot.panes(rows, "totals", watermark=h)
        other = mr.plot.panes(rows, watermark=h, computation="counts")
        with pytest.raises(mr.MillraceError, match=r"say one of \['totals', 'counts'\]"):
            mr.plot.panes(rows, watermark=h)

    assert "low watermark" in legend(drawn)
    assert "low watermark" in legend(other)
    assert drawn.axes[0].get_title() == "Panes of totals"


def test_what_cannot_be_drawn_is_refused() -> None:
    with mr.testing.Harness(keyed()) as h:
        h.inject("scores", [({"team": "red", "points": 1}, 0)])
        with pytest.raises(mr.MillraceError, match="nothing came out of a grouping yet"):
            mr.plot.panes(h, "totals")
        with pytest.raises(mr.MillraceError, match=r"plot.panes\(h, \"totals\"\)"):
            mr.plot.panes(h)
        h.advance_watermark("scores", mr.MAX_TIMESTAMP)
        rows = h.outputs("totals")
        with pytest.raises(mr.MillraceError, match=r"no computation 'x'; say one of \['totals'\]"):
            mr.plot.panes(rows, watermark=h, computation="x")
    with pytest.raises(mr.MillraceError, match="int is not rows of a sink"):
        mr.plot.panes(7)
    with pytest.raises(mr.MillraceError, match=r"columns \['total'\] is not a row of a sink"):
        mr.plot.panes([{"total": 7}])
    with pytest.raises(mr.MillraceError, match="names a stream of a Harness"):
        mr.plot.panes(rows, records="scores")


def test_the_command_draws_what_a_parquet_sink_wrote(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from click.testing import CliRunner

    from millrace.cli.main import main
    from millrace.cli.plots import written

    outputs = played("6d").outputs("panes")
    for epoch, output in zip((2, 10, 11, 30), outputs, strict=True):
        folder = tmp_path / "out" / f"epoch={epoch}"
        folder.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row_of(output)]), folder / "part-0.parquet")
    picture = tmp_path / "new" / "panes.svg"
    arguments = [str(tmp_path / "out"), "--out", str(picture), "--mode", "discarding"]
    shown = CliRunner().invoke(main, ["plot-panes", *arguments])
    refused = CliRunner().invoke(main, ["plot-panes", str(tmp_path / "out"), "--key", "x"])

    assert shown.exit_code == 0, shown.output
    drawing = picture.read_text()
    assert drawing.startswith("<?xml")
    assert "<!-- early pane -->" in drawing
    assert mr.testing.outputs_of(written(tmp_path / "out")) == outputs
    assert refused.exit_code == 1
    assert "no panes of key 'x'" in refused.output


def test_a_notebook_shows_the_figure_without_pyplot() -> None:
    assert draw("6c")._repr_png_().startswith(b"\x89PNG")
