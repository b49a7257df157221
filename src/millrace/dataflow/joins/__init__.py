"""Joins: of two streams in windows, of two that are near in time, of a stream and a table."""
