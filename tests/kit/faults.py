"""Cells of the matrix that are not right yet: "table: column" -> row -> what happens there.

A cell that becomes right makes its test fail until it is taken off.
"""

FAULTS: dict[str, dict[str, str]] = {}
