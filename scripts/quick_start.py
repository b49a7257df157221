"""Runs the quick start of a README as a reader would type it: python quick_start.py README.md.

For the environment that `scripts/package.sh` makes: it fails if Millrace is not the installed one.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import millrace

BLOCK = re.compile(r"^```python(?: spark)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the document's blocks in order, in one namespace; they end with what they should show."""
    installed = Path(millrace.__file__).resolve()
    if Path(sys.prefix).resolve() not in installed.parents:
        raise SystemExit(f"quick start: millrace is {installed}, expected it below {sys.prefix}")
    document = Path(sys.argv[1])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    names = {"__name__": "__main__"}
    blocks = BLOCK.findall(document.read_text())
    if not blocks:
        raise SystemExit(f"quick start: no Python in {document}")
    for block in blocks:
        exec(compile(block, str(document), "exec"), names)
    print(f"quick start: {len(blocks)} blocks of {document.name} ran with {installed.parent}")


if __name__ == "__main__":
    main()
