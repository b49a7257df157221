"""An extension of Griffe: docstrings as Markdown.

They are written with roles, ``:class:`~millrace.Stream```, and with examples that stand for
themselves. What the reference describes becomes a link to it, other names stay names, and an
example becomes a block of code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from griffe import Extension

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(~?)([\w.]+)`")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
_DESCRIBED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def described() -> dict[str, str]:
    """Return name -> path of what pages of the reference describe."""
    paths = [
        path for page in REFERENCE.glob("*.md") for path in _DESCRIBED.findall(page.read_text())
    ]
    return {path.rpartition(".")[2]: path for path in paths}


class Docstrings(Extension):
    """Rewrites each docstring once, when its object is loaded."""

    def __init__(self) -> None:
        self._described = described()

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = _ROLE.sub(self._as_link, obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub(_as_block, text).replace("::\n\n", ":\n\n")

    def _as_link(self, role: re.Match[str]) -> str:
        name = role[2].rpartition(".")[2]
        shown = f"`{name if role[1] else role[2]}`"
        path = self._described.get(name)
        return shown if path is None else f"[{shown}][{path}]"


def _as_block(example: re.Match[str]) -> str:
    return f"{example[1]}```pycon\n{example[0]}\n{example[1]}```"
