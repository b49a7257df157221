"""Plots: pictures of panes and of watermarks."""

from millrace.plots.pane_plot import plot_panes as panes
from millrace.plots.watermark_plot import plot_watermarks as watermarks

__all__ = ["panes", "watermarks"]
