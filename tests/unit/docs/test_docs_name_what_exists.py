"""What the documents and docstrings name is there: files, commands, targets, modules, results."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from millrace.cli.main import main

ROOT = Path(__file__).parents[3]
GUIDES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "tests/README.md")),
    ROOT / "benchmarks" / "README.md",
    *(ROOT / "docs").glob("**/*.md"),
]
CODE = [
    file
    for folder in ("src", "tests", "examples", "benchmarks", "scripts")
    for file in (ROOT / folder).rglob("*.py")
]
#: Where a path that a document names may begin.
BASES = (ROOT, *(ROOT / name for name in ("src", "src/millrace", "tests", "docs")))

#: Names of all tests.
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", file.read_text(), re.MULTILINE)
}

_TEST = re.compile(r"test_\w+")
_SPAN = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|sh|toml|lock|txt|json|png|yaml)")
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKDOWN = re.compile(r"[\w/.-]*\w\.md\b")


def commands(text: str) -> list[str]:
    """Return what a document says can be typed: inline code, and lines of shell blocks."""
    return _SPAN.findall(text) + [
        line for block in _BLOCK.findall(text) for line in block.splitlines()
    ]


def each_guide() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))


@each_guide()
def test_files_that_a_guide_names_exist(guide: Path) -> None:
    if guide.name.startswith("20"):
        return  # a dated note says how things were
    for span in _SPAN.findall(guide.read_text()):
        if _PATH.fullmatch(span):
            found = [base for base in (*BASES, guide.parent) if (base / span).exists()]
            assert found, f"{guide.name} names {span}"


@each_guide()
def test_tests_that_a_guide_names_exist(guide: Path) -> None:
    if guide.name.startswith("20"):
        return
    for span in _SPAN.findall(guide.read_text()):
        assert not _TEST.fullmatch(span) or span in TESTS, f"{guide.name} names {span}"


@each_guide()
def test_commands_that_a_guide_names_exist(guide: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands(guide.read_text()):
        words = command.split("#")[0].split()
        if words[:1] == ["make"]:
            assert {word for word in words[1:2] if "=" not in word} <= set(targets)
        if words[:1] == ["millrace"]:
            named: click.Command = main
            for word in words[1:]:
                if not isinstance(named, click.Group) or word.startswith("-"):
                    break
                assert word in named.commands, f"{guide.name} says: {command}"
                named = named.commands[word]
        if words[:2] == ["python", "-m"] and words[2].startswith(("millrace", "benchmarks")):
            module = Path(words[2].replace("millrace_examples", "examples").replace(".", "/"))
            places = [base / module for base in (ROOT, ROOT / "src")]
            found = any(at.is_dir() or at.with_suffix(".py").exists() for at in places)
            assert found, f"{guide.name} says: {command}"


def test_documents_that_the_code_cites_exist() -> None:
    known = {path.name for path in GUIDES} | {"CHANGELOG.md"}
    for file in CODE:
        if file == Path(__file__):
            continue
        for cited in _MARKDOWN.findall(file.read_text()):
            assert Path(cited).name in known, f"{file.relative_to(ROOT)} cites {cited}"
