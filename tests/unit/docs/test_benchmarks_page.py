"""The page of figures is what the results files make it."""

from __future__ import annotations

from benchmarks.figures import cell, command, table_lines
from benchmarks.page import PAGE, page
from benchmarks.sections import SECTIONS


def test_the_page_is_what_the_results_make_it() -> None:
    assert PAGE.read_text() == page(), "python -m benchmarks.page --write"


def test_a_cell_is_a_value_by_its_path_and_format() -> None:
    row = {"cell": {"rate": 2000}, "place": "kafka", "on": True}

    assert cell(row, "cell.rate:,") == "2,000"
    assert cell(row, "place") == "kafka"
    assert cell(row, "on") == "yes"
    assert cell(row, "cell.rivals:.1f") == ""


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    rows = [{"keys": 1000, "who": "spark"}, {"keys": 20, "who": "flink"}]

    assert list(table_lines(rows, {"keys": "keys:,", "who": "who"})) == [
        "| keys | who |",
        "|---:|---|",
        "| 1,000 | spark |",
        "| 20 | flink |",
    ]


def test_a_command_is_made_of_settings_where_a_file_does_not_say_it() -> None:
    section = SECTIONS[0]
    settings = {"keys": "[1000, 20]", "quick": "False", "law": "None", "soak": "True", "out": "x"}

    given = command(section, section.tables[0], {"machine": {}, "settings": settings})
    assert given == "python -m benchmarks.keyed_state --keys 1000,20 --soak"
    recorded = {"machine": {"command": "python -m benchmarks.keyed_state --keys 7"}}
    assert command(section, section.tables[0], recorded).endswith("--keys 7")
