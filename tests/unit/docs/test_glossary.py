"""Words of the glossary are those of the code: a term's class is where it says, and only there."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "millrace"

_ROW = re.compile(r"^\| ([a-z ]+) \| (.+?) \| `([\w/]+\.py)`(?: `(\w+)`)? \|$", re.MULTILINE)


def glossary() -> str:
    return (ROOT / "docs" / "glossary.md").read_text()


@functools.cache  # each term looks at all files
def defined(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def fields(file: Path) -> set[str]:
    """Return what objects of a module's classes have."""
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    inside = [node for each in classes for node in each.body if isinstance(node, ast.AnnAssign)]
    return {node.target.id for node in inside if isinstance(node.target, ast.Name)}


@pytest.mark.parametrize(("term", "meaning", "path", "name"), _ROW.findall(glossary()))
def test_a_term_is_where_the_glossary_says(term: str, meaning: str, path: str, name: str) -> None:
    assert (SOURCE / path).is_file(), term
    assert not name or name in defined(SOURCE / path) | fields(SOURCE / path), term
    # The simulator has attempts and outcomes of its own making.
    elsewhere = [
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        if file != SOURCE / path and "simulation" not in file.parts and name in defined(file)
    ]
    assert elsewhere == [], f"{name} has another meaning besides: {meaning}"


def test_every_row_has_a_place_in_the_code_and_no_term_stands_there_twice() -> None:
    rows = [
        line
        for line in glossary().splitlines()
        if line.startswith("| ") and not line.startswith(("| what ", "|---"))
    ]
    terms = [term for term, *_ in _ROW.findall(glossary())]

    assert len(terms) == len(rows)
    assert len(set(terms)) == len(terms)
