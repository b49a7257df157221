"""A figure that a notebook shows without pyplot, whose backend is what else would draw it there."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A matplotlib Figure that draws itself where it is the last value of a notebook's cell."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()
