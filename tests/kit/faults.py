"""Cells of the matrix that are not right yet: "table: column" -> row -> what happens there.

A cell that becomes right makes its test fail until it is taken off.
"""

FAULTS: dict[str, dict[str, str]] = {
    "almost: Files, JSON": {
        "19.99 as long": "error",
        "true as long": "error",
        "text as long": "error",
        "2147483648 as int": "error",
        "1 as boolean": "error",
        "1e400 as double": "error",
        "0.001 as decimal(10, 2)": "error",
        "invalid UTF-8": "error",
        "a time without a zone": "error",
    },
    "almost: Kafka, JSON": {
        "19.99 as long": "error",
        "true as long": "error",
        "text as long": "error",
        "2147483648 as int": "error",
        "1 as boolean": "error",
        "1e400 as double": "error",
        "0.001 as decimal(10, 2)": "error",
        "invalid UTF-8": "error",
        "a time without a zone": "error",
    },
    "doors in: Files, JSON": {
        "float NaN": "error",
        "float infinity": "error",
        "str, lone surrogate": "error",
    },
    "doors in: Kafka, JSON": {
        "float NaN": "error",
        "float infinity": "error",
        "str, lone surrogate": "error",
    },
    "doors in: Harness": {"datetime without a zone": "wrong"},
}
