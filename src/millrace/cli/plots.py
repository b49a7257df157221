"""``millrace plot-watermarks``: a picture of low watermarks, from the checkpoint alone.

``millrace plot-panes``: a picture of panes, from what a Parquet sink has written.

Where a picture goes: a file whose ending chooses its form.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from millrace.dataflow.windowing import AccumulationMode
from millrace.model.errors import PipelineError
from millrace.model.record import LateRecord
from millrace.plots.pane_plot import plot_panes
from millrace.plots.watermark_plot import plot_watermarks

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, out: Path) -> None:
    """Write a picture, and say where it is.

    Raises:
        PipelineError: It cannot be written there, or its ending names no form of pictures.
    """
    forms = figure.canvas.get_supported_filetypes()
    if out.suffix and out.suffix[1:].lower() not in forms:
        raise PipelineError(
            f"--out {str(out)!r}: {out.suffix} is no form of pictures. Expected an ending such as "
            ".png, .svg or .pdf."
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=150)
    except OSError as error:
        raise PipelineError(
            f"--out {str(out)!r}: the picture cannot be written: {error.strerror}. Give another "
            "path."
        ) from error
    click.echo(str(out))


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
@click.option("--label", metavar="FIELD", help="The field to write at a pane; by default all.")
@click.option("--title", help="Above the picture.")
def panes(
    rows: Path,
    out: Path,
    key: str | None,
    checkpoint: str | None,
    computation: str | None,
    mode: str,
    label: str | None,
    title: str | None,
) -> None:
    """Draw the panes in DIR: event time against processing time.

    DIR is what mr.sinks.Parquet wrote of the stream of a grouping. Needs no Spark, writes nothing
    but the picture, and may be used while a run goes on.
    """
    figure = plot_panes(
        written(rows),
        key=key,
        watermark=checkpoint,
        computation=computation,
        mode=AccumulationMode[mode.upper()],
        label=label,
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
            "mr.sinks.Parquet was given."
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
