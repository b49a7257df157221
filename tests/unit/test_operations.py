"""The table of operations in tests/README.md names recipes and tests that exist."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "tests" / "README.md").read_text().split("\n| operation |")[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.split("\n\n")[0].splitlines()
    if line.startswith("| ")
]
FOLDERS = (
    ROOT / "tests" / "transcripts",
    ROOT / "tests" / "properties",
    ROOT / "simulation",
)


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def named(cell: str, folder: Path) -> str:
    """Return in what of a cell's file the words after its name are sought."""
    name = re.match(r"`([\w.]+)`", cell)
    assert name, f"{cell!r} names no file, and does not say no"
    file = folder / name[1]
    text = (file if file.suffix else file.with_suffix(".py")).read_text()
    if file.suffix != ".yaml":
        return text
    return "\n".join(each["name"] for each in yaml.safe_load_all(text))


def test_the_table_is_found() -> None:
    assert len(ROWS) >= 15
    assert all(len(row) == 5 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_an_operation_names_is_there(row: list[str]) -> None:
    _, recipe, *cells = row
    link = re.fullmatch(r"\[.+\]\(\.\./(docs/[\w/-]+\.md)#([\w-]+)\)", recipe)
    assert link, recipe
    assert link[2] in anchors((ROOT / link[1]).read_text()), recipe
    for cell, folder in zip(cells, FOLDERS, strict=True):
        if cell == "no" or cell.startswith("no: "):
            continue
        text = named(cell, folder)
        for word in re.findall(r": `(.+?)`", cell):
            assert word in text, f"{cell}: {word!r} is not in it"
