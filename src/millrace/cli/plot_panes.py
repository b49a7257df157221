"""``millrace plot-panes``: a picture of panes, from what a Parquet sink has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from millrace.cli.picture_file import save
from millrace.dataflow.windowing import AccumulationMode
from millrace.model.errors import PipelineError
from millrace.observe.pane_plot import plot_panes


@click.command("plot-panes", short_help="Draw panes that a sink wrote.")
@click.argument("rows", type=click.Path(exists=True, path_type=Path), metavar="DIR")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("panes.png"),
    show_default=True,
    help="Where the picture goes; the ending chooses PNG, SVG or PDF.",
)
@click.option("--key", help="Whose panes; it may be left out if there is only one.")
@click.option("--checkpoint", help="Draw the low watermark that this checkpoint knows, too.")
@click.option("--computation", help="The grouping whose low watermark it is, if there are several.")
@click.option(
    "--mode",
    type=click.Choice([mode.value.lower() for mode in AccumulationMode]),
    default=AccumulationMode.ACCUMULATING.value.lower(),
    show_default=True,
    help="How the panes of a window relate.",
)
@click.option("--title", help="Above the picture.")
def panes(
    rows: Path,
    out: Path,
    key: str | None,
    checkpoint: str | None,
    computation: str | None,
    mode: str,
    title: str | None,
) -> None:
    """Draw the panes in DIR: event time against processing time.

    DIR is what mr.Parquet wrote of the stream of a grouping. Needs no Spark, writes nothing but the
    picture, and may be used while a run goes on.
    """
    figure = plot_panes(
        written(rows),
        key=key,
        watermark=checkpoint,
        computation=computation,
        mode=AccumulationMode[mode.upper()],
        title=title,
    )
    save(figure, out)


def written(rows: Path) -> Any:
    """Return what a Parquet sink wrote, an Arrow table, in order of its epochs."""
    import pyarrow as pa
    from pyarrow import dataset

    try:
        table = dataset.dataset(rows, format="parquet", partitioning="hive").to_table()
    except pa.ArrowInvalid as error:
        raise PipelineError(
            f"{str(rows)!r} is no directory of Parquet files ({error}). Expected the path that "
            "mr.Parquet was given."
        ) from None
    # Spark writes instants as INT96 by default, which is in UTC and does not say so.
    table = table.cast(
        pa.schema(
            field.with_type(pa.timestamp("us", tz="UTC"))
            if field.name.startswith("_") and pa.types.is_timestamp(field.type)
            else field
            for field in table.schema
        )
    )
    # Directories of epochs come by name, in which 10 is before 2.
    return table.sort_by("epoch") if "epoch" in table.column_names else table
