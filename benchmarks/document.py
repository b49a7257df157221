"""Figures in a document: what lies between two marks of it."""

from __future__ import annotations

from pathlib import Path

DOCUMENTS = Path(__file__).parents[1] / "docs"
_BEGIN, _END = "<!-- figures -->\n", "<!-- end of the figures -->\n"


def put(document: str, text: str) -> None:
    """Put Markdown between the two marks of a document, in place of what is there.

    Args:
        document: Its name in ``docs``.
        text: Without an empty line around it.

    Raises:
        ValueError: The document has not exactly one of each mark.
    """
    path = DOCUMENTS / document
    try:
        before, rest = path.read_text().split(_BEGIN)
        _, after = rest.split(_END)
    except ValueError:
        raise ValueError(
            f"{path}: expected {_BEGIN.strip()} once, and after it {_END.strip()} once."
        ) from None
    path.write_text(f"{before}{_BEGIN}\n{text}\n\n{_END}{after}")
