"""Plots: pictures of panes and of watermarks."""

from millrace.observe.pane_plot import plot_panes as panes
from millrace.observe.watermark_plot import plot_watermarks as watermarks

__all__ = ["panes", "watermarks"]
