"""Where a picture goes: a file whose ending chooses its form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from millrace.model.errors import PipelineError

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
