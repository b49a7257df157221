"""The examples in README and guides run: those without Spark here, all of them in spark/.

A document's blocks share one namespace and run in order, as a reader would type them.
"""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = [
    "README.md",
    *(
        str(page.relative_to(ROOT))
        for page in ROOT.glob("docs/**/*.md")
        if page.parent.name != "design"
    ),
]

#: Blocks that run here; that need a Spark session; that name systems or data of the reader's; that
#: are of another system than Millrace.
PYTHON = ("python", "python spark", "python external", "python other")

_PLAIN = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TEXT = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OTHER = re.compile(r"^```python other\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^```(.*)$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_examples_without_spark_run(document: str) -> None:
    path = ROOT / document
    text = path.read_text()
    names: dict[str, Any] = {"__name__": "examples"}

    for block in _PLAIN.finditer(text):
        above = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(above + block[1], str(path), "exec"), names)


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_every_block_says_what_it_is(document: str) -> None:
    text = (ROOT / document).read_text()

    assert set(_FENCE.findall(text)[::2]) <= {*PYTHON, "sh", "text"}
    for block in _OTHER.findall(text):
        ast.parse(block)
    for block in _TEXT.findall(text):
        assert not _is_python(block), f"fence it as one of {PYTHON}, so that it runs: {block}"


def _is_python(block: str) -> bool:
    """Return whether text is a program: what calls nothing may be data."""
    try:
        return any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(block)))
    except SyntaxError:
        return False


@pytest.mark.parametrize("document", sorted(DOCUMENTS))
def test_links_lead_somewhere(document: str) -> None:
    here = ROOT / document
    for target, anchor in _LINK.findall(here.read_text()):
        found = (here.parent / target).resolve() if target else here
        assert found.exists(), target
        if anchor:
            assert anchor in {_anchor(line) for line in _headings(found)}, (target, anchor)


def _headings(path: Path) -> list[str]:
    return re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_tests_that_guarantees_rest_on_are_there() -> None:
    text = (ROOT / "docs" / "reliability.md").read_text()
    named = set(re.findall(r"`(?:tests/)?([\w/]+(?:\.py|/))`", text))
    assert len(named) > 15
    for name in named:
        anywhere = list((ROOT / "tests").rglob(name))
        there = (ROOT / "tests" / name).exists() or (ROOT / name).exists()
        assert there or anywhere, f"no test is named {name}"
