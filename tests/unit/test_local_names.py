"""Local names say their type: no more vague ones than there are."""

from __future__ import annotations

import ast
from pathlib import Path

import millrace

#: What says nothing of a value that has a name.
VAGUE = {"found", "one", "made", "what", "of", "kept"}
#: Folder -> how many bindings have such a name; the number only falls.
MOST = {
    "balance": 8, "cli": 3, "compile": 3, "connectors": 2, "dashboard": 2, "dataflow": 46,
    "epochlog": 8, "injectors": 46, "inspect": 56, "kernel": 12, "model": 50, "plots": 0,
    "runtime": 56, "spark": 32, "store": 12, "testing": 40, "watermark": 0,
}  # fmt: skip


def vague_names(path: Path) -> int:
    """Return how many times a module binds one of them, as a variable or a parameter."""
    names = (
        node.id if isinstance(node, ast.Name) else node.arg
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return sum(name in VAGUE for name in names)


def test_local_names_say_their_type() -> None:
    package = Path(millrace.__file__).parent
    counts = {
        folder: sum(map(vague_names, sorted((package / folder).rglob("*.py")))) for folder in MOST
    }
    more = {folder: count for folder, count in counts.items() if count > MOST[folder]}
    assert not more, "name it by its type, as segment or offset; if there are fewer, lower MOST"
