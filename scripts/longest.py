"""Print the ten longest modules and functions of the package: where to look first for two ideas.

    python scripts/longest.py

A function is counted with its docstring, and without those that are defined in it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "millrace"
SHOWN = 10


def main() -> None:
    modules, functions = list[tuple[int, str]](), list[tuple[int, str]]()
    for file in SOURCE.rglob("*.py"):
        name, text = str(file.relative_to(SOURCE)), file.read_text()
        modules.append((text.count("\n"), name))
        functions += [(lines, f"{name} {of}") for lines, of in functions_of(ast.parse(text))]
    for title, found in (("modules", modules), ("functions", functions)):
        print(f"the longest {title}, of {len(found):,}")
        for lines, of in sorted(found, reverse=True)[:SHOWN]:
            print(f"{lines:6} {of}")


def functions_of(tree: ast.AST, within: str = "") -> Iterator[tuple[int, str]]:
    """Yield how long each function is, and its name within a module."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{within}.{node.name}" if within else node.name
            inner = list(functions_of(node, name))
            if not isinstance(node, ast.ClassDef):
                inside = sum(lines for lines, of in inner if of.count(".") == name.count(".") + 1)
                yield (node.end_lineno or node.lineno) - node.lineno + 1 - inside, name
            yield from inner
        else:
            yield from functions_of(node, within)


if __name__ == "__main__":
    main()
