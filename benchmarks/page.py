"""The page of figures: docs/benchmarks.md, made of the files in benchmarks/results.

Run as ``python -m benchmarks.page``; ``--write`` writes the page. Each table shows the newest
results file that has what the table is about, with its machine, date and command. Which sections
there are, is in ``benchmarks.sections``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.figures import section_lines
from benchmarks.sections import LEAD, SECTIONS

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def page() -> str:
    """Return the page as the results files make it."""
    lines = ["<!-- python -m benchmarks.page --write -->", "# Benchmarks", "", LEAD, ""]
    for section in SECTIONS:
        lines += section_lines(section)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Print the page of figures, or write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=main.__doc__)
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page())
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
