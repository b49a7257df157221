"""Metrics of a run: what is measured, and where it goes."""
