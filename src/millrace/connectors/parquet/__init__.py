"""Parquet: directories of an epoch, or one table by key."""
