"""Tables of a lake: Delta and Iceberg, read as they are appended to, and written."""
