"""A hook of MkDocs: the repository's Markdown as pages of one site, with its links kept right.

The documents are written to be read in the repository too. So README, CONTRIBUTING and their like
lie where they lie and become pages here, as does the notebook with what its cells gave. A link to
another file of the repository becomes a link to a copy in the site, and one whose text is a file's
name gets that page's title. A block that needs Spark or a system of the reader's (``python spark``
and ``python external``, see tests/spark/test_docs.py), or another library (``python other``), is
Python to the highlighter.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

#: What is a page and lies outside of docs/, and the page's name.
OUTSIDE = {
    "README.md": "index",
    "examples/notebooks/quick_start.ipynb": "quick-start",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "tests/README.md": "tests",
    "benchmarks/README.md": "running-benchmarks",
}

_LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_TITLE = re.compile(r"^# (.*)$", re.MULTILINE)
_SPARK = re.compile(r"^```python (?:spark|external|other)$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Append the design notes to the navigation, the newest first."""
    notes = sorted((DOCS / "design").glob("2*.md"), reverse=True)
    pages = ["design/README.md", *(f"design/{note.name}" for note in notes)]
    config.nav.append({"Design notes": pages})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside of docs/."""
    for path in OUTSIDE:
        here, uri = str(ROOT / path), _uri(ROOT / path)
        if path.endswith(".ipynb"):
            text, resources = MarkdownExporter().from_filename(here)
            files.append(File.generated(config, uri, content=text))
            for picture, content in resources["outputs"].items():
                files.append(File.generated(config, picture, content=content))
        else:
            files.append(File.generated(config, uri, abs_src_path=here))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with the site's links and languages."""
    outside = {f"{name}.md": ROOT / path for path, name in OUTSIDE.items()}
    origin = outside.get(page.file.src_uri, DOCS / page.file.src_uri)

    def in_site(link: re.Match[str]) -> str:
        text, path, anchor = link[1], link[2], link[3] or ""
        target = (origin.parent / path).resolve()
        if target.is_dir():
            target /= "README.md"
        if not target.exists():
            return link[0]  # code that looks like a link; a link that leads nowhere fails below
        uri = _uri(target)
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(target)))
        if text == path and target.suffix == ".md":
            text = _TITLE.findall(target.read_text())[0]
        above = Path(page.file.src_uri).parent
        return f"[{text}]({Path(os.path.relpath(uri, above)).as_posix()}{anchor})"

    return _LINK.sub(in_site, _SPARK.sub("```python", markdown))


def _uri(target: Path) -> str:
    path = target.relative_to(ROOT).as_posix()
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    return f"{OUTSIDE[path]}.md" if path in OUTSIDE else f"files/{path}"
