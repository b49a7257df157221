"""Documents, public docstrings and messages are in plain technical English.

Sentences are short, words are those of the trade, and figures stand in one place.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from page_words import PAGES, words

import millrace

ROOT = Path(__file__).parents[3]
#: Read by people who work on Millrace.
WORKSHOP = [ROOT / name for name in ("CONTRIBUTING.md", "tests/README.md", "benchmarks/README.md")]
HOW_TO = sorted(ROOT.glob("docs/how-to/*.md"))

WORDS_OF_A_SENTENCE = 30
WORDS_OF_A_HOW_TO = 900
#: Of all pages together, without code and numbers. It only falls.
WORDS_OF_ALL = 50_000

#: Measurements have dates and machines, and stand here only.
FIGURES = {"docs/benchmarks.md"}

#: What is no plain English, and what to write instead.
STYLE = {
    r"\bwhat waits\b": "pending records, the backlog",
    r"\bis told\b|\bare told\b|\bwas told\b": "reported, given",
    r"\bof those that\b": "name the thing",
    r"\bby hand\b": "leave it out, or say how it is measured",
    r"\bbeside other\b": "leave the state of a machine out",
    r"\bas it may\b|\bas they may\b": "a sentence of its own",
    r"\bthat is there\b|\bwhich is there\b": "exists",
    r"\bhas what\b|\bsays what\b": "contains, names",
    r"\bat the least\b": "at least",
    r"(?<!-)\bletters\b": "dead letters",
    r"\bjournals?\b|\bslots?\b": "segment",
    r"\bthe more so\b|\bso to speak\b|\bas it were\b": "leave it out",
    r"\bsays of\b|\bsaid of\b|\btells of\b": "reports",
}
_DEAD_LETTER = re.compile(r"dead.letters?|\bletters(?=, digits)", re.IGNORECASE)
_DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_RATE = re.compile(r"\b\d[\d,.]*(?: million)? (?:records|rows|messages) (?:a|per) second\b|\bp99\b")
_END = re.compile(r"(?<=[.!?])[)\"”]?\s+(?=[A-Z`(\"“\[])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|cf|vs|etc)\.")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def paragraphs(page: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each paragraph and list item; code has become the word "code"."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    cell = False
    for token in tokens:
        cell = token.type in ("td_open", "th_open") or (cell and token.type == "inline")
        directive = token.content.startswith(":::")  # a docstring is put there
        if token.type == "inline" and not cell and not directive and token.map is not None:
            yield token.map[0] + 1, "".join(_text(child) for child in token.children or [])


def _text(token: Token) -> str:
    if token.type == "code_inline":
        return "code"
    return " " if token.type in ("softbreak", "hardbreak") else token.content


def sentences(text: str) -> list[str]:
    return _END.split(_ABBREVIATION.sub(r"\1", text))


def each(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=name)


@each([*PAGES, *WORKSHOP])
def test_sentences_are_short(page: Path) -> None:
    long = [
        f"{name(page)}:{line}: {len(sentence.split())} words: {sentence}"
        for line, text in paragraphs(page)
        for sentence in sentences(text)
        if len(sentence.split()) > WORDS_OF_A_SENTENCE
    ]
    assert long == [], f"\n{len(long)} sentences are too long; cut them in two:\n" + "\n".join(long)


@each([*PAGES, *WORKSHOP])
def test_the_words_are_those_of_the_trade(page: Path) -> None:
    found = [
        f"{name(page)}:{line}: {match[0]!r}: {instead}"
        for line, text in paragraphs(page)
        for pattern, instead in STYLE.items()
        for match in re.finditer(pattern, _DEAD_LETTER.sub("dead record", text))
    ]
    assert found == [], "\n" + "\n".join(found)


@each([page for page in PAGES if name(page) not in FIGURES])
def test_dates_and_measurements_stand_in_one_place(page: Path) -> None:
    """A link to a dated note is none: its text is what is read."""
    found = [
        f"{name(page)}:{line}: {match[0]}"
        for line, text in paragraphs(page)
        for pattern in (_DATE, _RATE)
        for match in pattern.finditer(text)
    ]
    assert found == [], "\n" + "\n".join(found)


@pytest.mark.parametrize("page", HOW_TO, ids=name)
def test_a_how_to_is_short_and_begins_with_a_program(page: Path) -> None:
    text = page.read_text()

    assert len(text.split()) <= WORDS_OF_A_HOW_TO
    program = text.find("\n```python")
    assert program > 0, "there is none"
    assert len(text[:program].split()) <= 80, "it comes too late"


def test_all_pages_together_are_not_too_long() -> None:
    counts = {name(page): words(page) for page in PAGES}
    longest = sorted(counts, key=counts.__getitem__)[-5:]

    assert sum(counts.values()) <= WORDS_OF_ALL, {page: counts[page] for page in longest}


# -- docstrings that users read, and messages ------------------------------------------------------

_SECTION = re.compile(
    r"^(Args|Attributes|Raises|Returns|Yields|Source|Counters[^:]*):\s*$", re.MULTILINE
)
_MARKED = re.compile(r":\w+:`[^`]*`|``[^`]*``|`[^`]*`|\*\*?[\w ]+\*\*?")
_ENTRY = re.compile(r"^\s*\*{0,2}[\w.]+(?: \([^)]*\))?: ")


#: Where public names stand beside those in front.
_NAMESPACES = ("agg", "coders", "ops", "plot", "sinks", "sources", "spark", "testing")


def public() -> Iterator[tuple[str, str]]:
    """Yield the name and docstring of what users call, and of its own methods."""
    seen = set[int]()
    namespaces = [millrace, *(getattr(millrace, name) for name in _NAMESPACES)]
    for namespace in namespaces:
        for name in namespace.__all__:
            value = getattr(namespace, name)
            module = getattr(value, "__module__", "") or ""
            if id(value) in seen or not module.startswith("millrace") or not callable(value):
                continue
            seen.add(id(value))
            where = f"{namespace.__name__}.{name}"
            yield where, value.__doc__ or ""
            members = inspect.getmembers_static(value) if isinstance(value, type) else ()
            for attribute, member in members:
                inner = member.fget if isinstance(member, property) else member
                inner = getattr(inner, "__func__", inner)
                ours = inspect.isfunction(inner) and inner.__module__.startswith("millrace")
                if ours and not attribute.startswith("_"):
                    yield f"{where}.{attribute}", inner.__doc__ or ""


def docstring_paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs and entries of a docstring; code has become the word "code"."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.lstrip().startswith((">>>", "```", "|")):
            continue
        lines = [line for line in block.splitlines() if not _SECTION.match(line.strip())]
        entry: list[str] = []
        for line in lines:
            if (_ENTRY.match(line) or line.lstrip().startswith("- ")) and entry:
                yield _MARKED.sub("`code`", " ".join(entry))
                entry = []
            entry.append(_ENTRY.sub("", line).strip())
        yield _MARKED.sub("`code`", " ".join(entry))


def messages() -> Iterator[tuple[str, str]]:
    """Yield the place and text of each message of an error; what is put in is the word "code"."""
    for path in sorted((ROOT / "src" / "millrace").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = literal(node.exc.args[0])
                if text is not None:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def literal(node: ast.expr) -> str | None:
    """Return the text of a string as it is written; None if it is none."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "code" for part in node.values]
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = literal(node.left), literal(node.right)
        return None if left is None and right is None else (left or "code") + (right or "code")
    return None


def judged(where: str, text: str) -> Iterator[str]:
    for sentence in (one for line in text.splitlines() for one in sentences(line)):
        if len(sentence.split()) > WORDS_OF_A_SENTENCE:
            yield f"{where}: {len(sentence.split())} words: {sentence}"
    for pattern, instead in STYLE.items():
        for match in re.finditer(pattern, _DEAD_LETTER.sub("dead record", text)):
            yield f"{where}: {match[0]!r}: {instead}"


def test_docstrings_of_public_names_are_plain_english() -> None:
    found = [
        complaint
        for where, text in public()
        for paragraph in docstring_paragraphs(text)
        for complaint in judged(where, paragraph)
    ]
    assert found == [], f"\n{len(found)} sentences:\n" + "\n".join(found)


def test_messages_of_errors_are_plain_english() -> None:
    found = [
        one for where, text in messages() for one in judged(where, _MARKED.sub("`code`", text))
    ]
    assert found == [], f"\n{len(found)} sentences:\n" + "\n".join(found)
