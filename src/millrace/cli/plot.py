"""``millrace plot-watermarks``: a picture of low watermarks, from the checkpoint alone."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from millrace.cli.picture_file import save
from millrace.model.record import LateRecord
from millrace.observe.watermark_plot import plot_watermarks


@click.command("plot-watermarks", short_help="Draw low watermarks of a run.")
@click.argument("path")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("watermarks.png"),
    show_default=True,
    help="Where the picture goes; the ending chooses PNG, SVG or PDF.",
)
@click.option("--computation", "computations", multiple=True, help="Only these; may be repeated.")
@click.option(
    "--late",
    type=click.Path(exists=True, path_type=Path),
    help="Parquet files of the stream that p.late_records declares.",
    metavar="DIR",
)
@click.option("--title", help="Above the picture.")
def plot(
    path: str, out: Path, computations: tuple[str, ...], late: Path | None, title: str | None
) -> None:
    """Draw the low watermarks of the checkpoint at PATH: event time against processing time.

    The epoch log knows the last hundred epochs or so. Needs no Spark, writes nothing but the
    picture, and may be used while a run goes on.
    """
    figure = plot_watermarks(
        path,
        computations=computations or None,
        late=None if late is None else _read_late(late),
        title=title,
    )
    save(figure, out)


def _read_late(late: Path) -> list[LateRecord]:
    from pyarrow import dataset

    fields = [field.name for field in msgspec.structs.fields(LateRecord)]
    rows = dataset.dataset(late, format="parquet").to_table(columns=fields).to_pylist()
    return [msgspec.convert(row, LateRecord) for row in rows]
