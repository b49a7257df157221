"""How many words the pages have, for the limit in ``tests/unit/docs/test_plain_english.py``.

Run as ``python -m tests.kit.page_words``: a line for each page, the longest first, with its words
of text, and with all its words as ``wc -w`` counts them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Design notes are not among them: they are dated, and read by people who work on Millrace.
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "design"),
]
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def words(page: Path) -> int:
    """Return the number of words in text and tables; code and numbers are none."""
    text = _CODE.sub("", page.read_text())
    return sum(any(map(str.isalpha, word)) for word in text.split())


def main() -> None:
    """Print the words of each page, and of all."""
    lines = sorted(
        (
            (words(page), len(page.read_text().split()), str(page.relative_to(ROOT)))
            for page in PAGES
        ),
        reverse=True,
    )
    lines.append((sum(line[0] for line in lines), sum(line[1] for line in lines), "all"))
    sys.stdout.writelines(f"{text:7,} {whole:7,}  {page}\n" for text, whole, page in lines)


if __name__ == "__main__":
    main()
