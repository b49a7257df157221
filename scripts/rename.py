"""Rename a folder, a module or a name, wherever it is used: ``rename.py OLD NEW [OLD NEW ...]``.

OLD and NEW are dotted: ``millrace.store millrace.depot`` are a folder or a module with all that is
in it, ``millrace.model.record.Late millrace.model.record.Tardy`` a class, function or constant at
the top of a module, under every name by which packages hand it on. Folders of tests and benchmarks
have such names, too: ``tests.unit.store tests.unit.depot``.

Changed are

- the files, by ``git mv``,
- Python: imports of each form, uses of what they bind, and local names of the module itself,
- strings and comments of Python with the dotted name or the path, as targets of patches are,
- documents, shell scripts, ``pyproject.toml`` with its contracts, ``mkdocs.yml``, the Makefile:
  dotted names, paths from any folder that they are told from, and names in backticks.

With ``--join`` a module may become one that is there, or that another has become: their imports are
made one, the docstring of OLD goes behind the other, and so does the rest, or in front of it where
that imports OLD. Two things of one name are refused, unless they are the same.

Ruff then sorts and formats what changed. Printed are strings that changed, to be read (a metric may
be named like a module: ``--leave millrace.pipeline`` leaves that name alone in strings), and
mentions of a name outside backticks, which stay. Whether two things have one name now, mypy says.
A folder renamed and renamed back leaves no difference.
"""

from __future__ import annotations

import argparse
import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import libcst as cst
from libcst.helpers import get_full_name_for_node
from libcst.metadata import MetadataWrapper, PositionProvider, QualifiedNameProvider

#: Package -> its folder.
ROOTS = {
    "millrace": "src/millrace",
    "millrace_examples": "examples",
    "benchmarks": "benchmarks",
    "simulation": "simulation",
    "scripts": "scripts",
    "tests": "tests",
}
#: Folders that documents tell paths from.
TOLD_FROM = ("", "src", "src/millrace", "tests", "tests/unit", "examples")
DOCUMENTS = (".md", ".toml", ".yml", ".yaml", ".sh", ".cfg", ".in", ".html", ".js", ".css")
NAMES = ("Makefile", "run")
LINE = 100
#: Otherwise a line that was too long for a while stays in pieces.
_COMMAS_MEAN_NOTHING = [
    "--config", "format.skip-magic-trailing-comma=true",
    "--config", "lint.isort.split-on-trailing-comma=false",
]  # fmt: skip
#: A path, after steps up.
_PATH = re.compile(r"(?<![\w./-])((?:\.{1,2}/)*)(\w[\w.-]*/[\w./-]*\w/?|\w+/(?![\w*]))")


class Refused(SystemExit):
    """A renaming that cannot be done, with what to do instead."""


@dataclass(frozen=True)
class Renaming:
    """One name that becomes another.

    Attributes:
        old: Dotted.
        new: Dotted.
        module: Whether it is a folder or a module, rather than a name in one.
    """

    old: str
    new: str
    module: bool

    def of(self, name: str) -> str | None:
        """Return what a dotted name becomes, or None if it is another."""
        if name == self.old:
            return self.new
        if name.startswith(self.old + "."):
            return self.new + name[len(self.old) :]
        return None

    @functools.cached_property
    def dotted(self) -> re.Pattern[str]:
        """Where a text has the dotted name."""
        return re.compile(rf"(?<![\w.]){re.escape(self.old)}(?!\w)")

    @functools.cached_property
    def word(self) -> re.Pattern[str]:
        """Where a text has the name without its module."""
        return re.compile(rf"(?<!\w){re.escape(self.last)}(?!\w)")

    def may_be_in(self, file: str, text: str) -> bool:
        """Return whether a file may name it: few do, and it takes long to be sure."""
        if self.last not in text:
            return False
        home = self.old.rpartition(".")[0]
        return not self.module or not home or home.rpartition(".")[2] in text + file

    @property
    def last(self) -> str:
        """Return the old name without its module."""
        return self.old.rpartition(".")[2]

    @property
    def new_last(self) -> str:
        """Return the new name without its module."""
        return self.new.rpartition(".")[2]


def path_of(dotted: str) -> str:
    """Return the path of a package or module, without an extension."""
    first, _, rest = dotted.partition(".")
    if first not in ROOTS:
        raise Refused(f"{dotted} is in none of {', '.join(ROOTS)}.")
    return "/".join([ROOTS[first], *rest.split(".")]) if rest else ROOTS[first]


def module_of(path: str) -> str:
    """Return the dotted name of a Python file."""
    for package, folder in ROOTS.items():
        if path.startswith(folder + "/"):
            parts = path[len(folder) + 1 : -len(".py")].split("/")
            return ".".join([package, *(parts[:-1] if parts[-1] == "__init__" else parts)])
    return path[: -len(".py")].replace("/", ".")


@dataclass
class Tree:
    """A repository.

    Attributes:
        root: Its folder.
        strings: What was changed in strings and comments, by place.
        mentions: Places where a name is mentioned and stays.
    """

    root: Path
    leave: frozenset[str] = frozenset()
    join: bool = False
    strings: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)

    def git(self, *arguments: str) -> str:
        """Return what git prints."""
        command = ["git", "-C", str(self.root), *arguments]
        done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE)
        return done.stdout

    @functools.cached_property
    def files(self) -> list[str]:
        """Return all files that git knows, by their old paths."""
        return sorted(self.git("ls-files", "-z").split("\0")[:-1])

    def renaming(self, old: str, new: str) -> Renaming:
        """Return a renaming that can be done."""
        path, to = path_of(old), path_of(new)
        module = f"{path}.py" in self.files or any(f.startswith(path + "/") for f in self.files)
        if module:
            for taken in (f"{to}.py", to):
                if (self.root / taken).exists() and not (self.join and taken.endswith(".py")):
                    raise Refused(f"{taken} is there already. Move it first, or --join the two.")
            if not (self.root / to).parent.is_dir():
                raise Refused(f"{Path(to).parent} is not there. Make it, with an __init__.py.")
        elif not self._has(old):
            raise Refused(f"{old} is neither a module nor a name in one: no {path}.py.")
        elif old.rpartition(".")[0] != new.rpartition(".")[0]:
            raise Refused(f"{old} would go to another module. Move it by hand, then rename it.")
        return Renaming(old, new, module)

    def _has(self, name: str) -> bool:
        """Return whether a module has a name, as far as its text says so."""
        home, _, last = name.rpartition(".")
        for file in (f"{path_of(home)}.py", f"{path_of(home)}/__init__.py"):
            if file in self.files:
                return re.search(rf"\b{re.escape(last)}\b", self._read(file)) is not None
        return False

    def handed_on(self, renaming: Renaming) -> list[Renaming]:
        """Return a name's renaming under every name by which other modules hand it on."""
        found, left = {renaming.old: renaming}, [renaming]
        handing = re.compile(rf"\b{re.escape(renaming.last)}\b")
        modules = {
            module_of(file): self._read(file)
            for file in self.files
            if file.endswith(".py") and handing.search(self._read(file))
        }
        while left:
            old = left.pop().old
            home = old.rpartition(".")[0]
            for module, text in modules.items():
                alias = f"{module}.{renaming.last}"
                name = rf"\b{re.escape(renaming.last)}\b"
                imported = rf"(\([^)]*?|[^(\n]*?){name}(?! as (?!{name}))"
                imports = rf"from {re.escape(home)} import {imported}"
                listed = rf"[\"'][\w\s]*{name}[\w\s]*[\"']"
                of_home = home.startswith(module + ".")
                if alias not in found and (
                    re.search(imports, text) or (of_home and re.search(listed, text))
                ):
                    found[alias] = Renaming(alias, f"{module}.{renaming.new_last}", module=False)
                    left.append(found[alias])
        return list(found.values())

    def _read(self, file: str) -> str:
        return (self.root / file).read_text("utf-8")

    def apply(self, pairs: Sequence[Renaming]) -> list[str]:
        """Change all files; return the new paths of those that changed."""
        changed = list[str]()
        moves = {file: self.moved(file, pairs) for file in self.files}
        for file in self.files:
            python = file.endswith(".py")
            if not python and not file.endswith(DOCUMENTS) and Path(file).name not in NAMES:
                continue
            if (self.root / file).is_symlink():
                continue
            text = self._read(file)
            if not any(renaming.may_be_in(file, text) for renaming in pairs):
                continue
            after = self.python(file, text, pairs) if python else self.document(file, text, pairs)
            if after != text:
                (self.root / file).write_text(after, "utf-8")
                changed.append(moves[file])
        for renaming in pairs:
            if renaming.module and (self.root / f"{path_of(renaming.new)}.py").exists():
                self._join(renaming)
                changed.append(f"{path_of(renaming.new)}.py")
            elif renaming.module:
                self._move(renaming)
        return list(dict.fromkeys(changed))

    def _join(self, renaming: Renaming) -> None:
        """Put a module, which has the new names already, into one that is there."""
        old, new = (self.root / f"{path_of(name)}.py" for name in (renaming.old, renaming.new))
        there, comes = Parts.of(new.read_text("utf-8")), Parts.of(old.read_text("utf-8"))
        needs = there.imported.get(renaming.new, set()) & comes.names.keys()
        first, second = (comes, there) if needs else (there, comes)
        both = sorted(there.names.keys() & comes.names.keys())
        if unlike := [name for name in both if there.names[name] != comes.names[name]]:
            raise Refused(f"{renaming.old} and {renaming.new} both have {', '.join(unlike)}.")
        body = second.body
        for name in both:
            body = body.replace(second.names[name], "", 1)
        parts = [
            f'"""{there.docstring}\n\n{comes.docstring}\n"""',
            *dict.fromkeys([*first.imports, *second.imports]),
            first.body,
            body,
        ]
        lines = "\n\n".join(parts)
        names = there.names.keys() | comes.names.keys()
        new.write_text(_without_itself(lines, renaming.new, names), "utf-8")
        self.git("rm", "-q", "-f", str(old.relative_to(self.root)))

    @staticmethod
    def moved(file: str, pairs: Sequence[Renaming]) -> str:
        """Return a file's new path."""
        for renaming in pairs:
            old, new = path_of(renaming.old), path_of(renaming.new)
            if renaming.module and file == f"{old}.py":
                return f"{new}.py"
            if renaming.module and file.startswith(old + "/"):
                return new + file[len(old) :]
        return file

    def _move(self, renaming: Renaming) -> None:
        old, new = path_of(renaming.old), path_of(renaming.new)
        for path, to in ((f"{old}.py", f"{new}.py"), (old, new)):
            if path in self.files or any(file.startswith(path + "/") for file in self.files):
                self.git("mv", path, to)
        for left in (self.root / old).rglob("__pycache__") if (self.root / old).is_dir() else ():
            for file in left.iterdir():
                file.unlink()
            left.rmdir()
        if (self.root / old).is_dir() and not any((self.root / old).iterdir()):
            (self.root / old).rmdir()

    # Text.

    def text(self, text: str, pairs: Iterable[Renaming]) -> str:
        """Return prose with other dotted names and paths."""
        for renaming in pairs:
            if renaming.old not in self.leave:
                text = renaming.dotted.sub(renaming.new, text)
            if renaming.module:
                text = self._with_paths(text, renaming)
        return text

    def _with_paths(self, text: str, renaming: Renaming) -> str:
        old, new = path_of(renaming.old), path_of(renaming.new)
        last = old.rpartition("/")[2]
        if last not in text:
            return text

        def changed(found: re.Match[str]) -> str:
            up, path = found[1], found[2]
            for base in TOLD_FROM:
                whole = str(PurePosixPath(base, path)) if base else path.rstrip("/")
                if whole != old and whole != f"{old}.py" and not whole.startswith(old + "/"):
                    continue
                if not self._exists(whole):
                    continue
                to = new + whole[len(old) :]
                if base and not to.startswith(base + "/"):
                    return up + to + "/" * path.endswith("/")
                return up + to[len(base) + bool(base) :] + "/" * path.endswith("/")
            return found[0]

        return _PATH.sub(changed, text)

    def _exists(self, path: str) -> bool:
        return path in self.files or any(file.startswith(path + "/") for file in self.files)

    def document(self, file: str, text: str, pairs: Sequence[Renaming]) -> str:
        """Return a document, or another file that is not Python, with the new names."""
        if file.endswith(".toml"):
            for renaming in pairs:
                text = _contracts(text, renaming)
        if not file.endswith(".js"):  # there backticks are text that people read
            text = self.named(file, text, pairs)
        return self.text(text, pairs)

    def named(self, file: str, text: str, pairs: Sequence[Renaming], first: int = 1) -> str:
        """Return prose in which names in backticks and in blocks of code are the new ones."""
        for renaming in pairs:
            if renaming.module:
                continue
            in_code = functools.partial(_in_code, renaming)
            lines, fenced = text.split("\n"), False
            for number, line in enumerate(lines):
                stripped = line.lstrip()
                if stripped.startswith("```"):
                    fenced = not fenced
                elif fenced or stripped.startswith((">>> ", "... ")):
                    lines[number] = renaming.word.sub(renaming.new_last, line)
                else:
                    lines[number] = re.sub(r"`[^`\n]+`", in_code, line)
                    if renaming.word.search(lines[number]):
                        self.mentions.append(f"{file}:{first + number}: {stripped}")
            text = "\n".join(lines)
        return text

    def python(self, file: str, text: str, pairs: Sequence[Renaming]) -> str:
        """Return a Python file with the new names."""
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        return wrapper.visit(_Python(self, file, pairs)).code


class _Python(cst.CSTTransformer):
    """Renames in one file."""

    METADATA_DEPENDENCIES = (QualifiedNameProvider, PositionProvider)

    def __init__(self, tree: Tree, file: str, pairs: Sequence[Renaming]) -> None:
        super().__init__()
        self.tree, self.file, self.pairs = tree, file, pairs
        self.module = module_of(file)
        self.package = (
            self.module if file.endswith("/__init__.py") else self.module.rpartition(".")[0]
        )
        #: What the module is called afterwards, for relative imports.
        self.new_module = self._new(self.module) or self.module
        self.aliases = {renaming.old for renaming in pairs if not renaming.module}

    def _new(self, dotted: str) -> str | None:
        return next(filter(None, (renaming.of(dotted) for renaming in self.pairs)), None)

    def _place(self, node: cst.CSTNode) -> str:
        return f"{self.file}:{self.get_metadata(PositionProvider, node).start.line}"

    # Imports.

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """Take an import apart whose names come from several modules now."""
        if len(original_node.body) != 1 or not isinstance(original_node.body[0], cst.ImportFrom):
            return updated_node
        before = original_node.body[0]
        home = self._home(before)
        if isinstance(before.names, cst.ImportStar):
            return updated_node.with_changes(
                body=[self._with_home(before, self._new(home) or home)]
            )
        names = list(before.names)
        full = [f"{home}.{get_full_name_for_node(alias.name)}" for alias in names]
        new = [(self._new(name) or name).rpartition(".")[::2] for name in full]
        homes = list(dict.fromkeys(new_home for new_home, _ in new))
        renamed = [
            alias.with_changes(name=cst.Name(name))
            for alias, (_, name) in zip(names, new, strict=True)
        ]
        if len(homes) == 1:
            after = self._with_home(before.with_changes(names=renamed), homes[0])
            return updated_node.with_changes(body=[after])
        statements = list[cst.BaseStatement]()
        for new_home in homes:
            of_home = [a for a, (of, _) in zip(renamed, new, strict=True) if of == new_home]
            after = self._with_home(_one_line(before.with_changes(names=of_home)), new_home)
            line = updated_node.with_changes(leading_lines=[]) if statements else updated_node
            statements.append(line.with_changes(body=[after]))
        return cst.FlattenSentinel(statements)

    def _home(self, node: cst.ImportFrom) -> str:
        named = get_full_name_for_node(node.module) if node.module else None
        if not node.relative:
            return str(named)
        package = self.package.split(".")
        package = package[: len(package) - len(node.relative) + 1]
        return ".".join([*package, *([named] if named else [])])

    def _with_home(self, node: cst.ImportFrom, home: str) -> cst.ImportFrom | cst.Import:
        if home == self._home(node):
            return node
        if not home:  # a package of its own now
            assert not isinstance(node.names, cst.ImportStar)
            return cst.Import(node.names)
        return node.with_changes(module=_dotted(home), relative=())

    def leave_ImportAlias(
        self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias
    ) -> cst.ImportAlias:
        """Rename what ``import a.b`` names; what ``from`` imports have is seen to above."""
        name = get_full_name_for_node(original_node.name)
        after = self._new(name) if name and "." in name else None
        return updated_node.with_changes(name=_dotted(after)) if after else updated_node

    # Uses.

    def _meant(self, node: cst.CSTNode) -> set[str]:
        """Return the dotted names that a node may stand for."""
        found = set[str]()
        for meant in self.get_metadata(QualifiedNameProvider, node, set()):
            name = str(meant.name)
            local = meant.source.name == "LOCAL"
            if local:
                found.add(f"{self.module}.{name}")
            elif name.startswith("."):
                dots = len(name) - len(name.lstrip("."))
                package = self.package.split(".")
                found.add(".".join([*package[: len(package) - dots + 1], name[dots:]]))
            else:
                found.add(name)
        return found

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Rename what an import binds, or the module itself."""
        for renaming in self.pairs:
            if original_node.value == renaming.last and renaming.old in self._meant(original_node):
                return updated_node.with_changes(value=renaming.new_last)
        return updated_node

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute | cst.Name:
        """Rename ``module.name``, and ``a.b.module`` after ``import a.b.module``."""
        meant = self._meant(original_node)
        for renaming in self.pairs:
            if renaming.old not in meant or original_node.attr.value != renaming.last:
                continue
            if get_full_name_for_node(original_node) == renaming.old:
                return _dotted(renaming.new)
            return updated_node.with_changes(attr=cst.Name(renaming.new_last))
        return updated_node

    # Strings and comments.

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        """Rename in a string: dotted names and paths, and what the module hands on by name."""
        before = original_node.value
        after = self._text(original_node, before)
        for renaming in self.pairs:
            hands_on = renaming.old == f"{self.module}.{renaming.last}" and not renaming.module
            words = before[1:-1].split() if hands_on else []
            if renaming.last in words and all(word.isidentifier() for word in words):
                after = renaming.word.sub(renaming.new_last, before)
        # A package that imports what it hands on when it is asked for has a table of its modules.
        new = self._new(f"{self.package}.{before[1:-1]}") or ""
        if self.file.endswith("/__init__.py") and new.startswith(f"{self.package}."):
            after = before[0] + new.removeprefix(f"{self.package}.") + before[-1]
        return updated_node.with_changes(value=after)

    def leave_FormattedStringText(
        self, original_node: cst.FormattedStringText, updated_node: cst.FormattedStringText
    ) -> cst.FormattedStringText:
        """Rename in what an f-string says itself."""
        return updated_node.with_changes(value=self._text(original_node, original_node.value))

    def leave_Comment(self, original_node: cst.Comment, updated_node: cst.Comment) -> cst.Comment:
        """Rename in a comment."""
        return updated_node.with_changes(value=self._text(original_node, original_node.value))

    def _text(self, node: cst.CSTNode, text: str) -> str:
        if not any(renaming.last in text for renaming in self.pairs):
            return text
        first = self.get_metadata(PositionProvider, node).start.line
        names = [pair for pair in self.pairs if pair.old == f"{self.module}.{pair.last}"]
        named = self.tree.named(self.file, text, names or self._bound(), first)
        after = self.tree.text(named, self.pairs)
        if after != text:
            for old, new in zip(text.split("\n"), after.split("\n"), strict=True):
                if old != new:
                    self.tree.strings.append(f"{self._place(node)}: {new.strip()}")
        return after

    def _bound(self) -> list[Renaming]:
        """Return the names, of which each has but one last part."""
        return list({pair.last: pair for pair in self.pairs if not pair.module}.values())


@dataclass(frozen=True)
class Parts:
    """What a module is made of.

    Attributes:
        docstring: Without quotes.
        imports: At the top.
        imported: Module -> what they import from it.
        names: What is at the top, by name: its text.
        body: All that is no import.
    """

    docstring: str
    imports: list[str]
    imported: dict[str, set[str]]
    names: dict[str, str]
    body: str

    @classmethod
    def of(cls, text: str) -> Parts:
        """Return those of a module."""
        lines, tree = text.splitlines(), ast.parse(text)
        docstring, imports, imported, names = (
            "",
            list[str](),
            dict[str, set[str]](),
            dict[str, str](),
        )
        taken = set[int]()
        for node in tree.body:
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
            span = range(first - 1, node.end_lineno or first)
            source = "\n".join(lines[n] for n in span)
            if isinstance(node, ast.Import | ast.ImportFrom):
                taken |= {*span}
                if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                    imports.insert(0, source)
                else:
                    imports.append(source)
                if isinstance(node, ast.ImportFrom):
                    known = imported.setdefault(str(node.module), set())
                    known |= {alias.name for alias in node.names}
            elif node is tree.body[0] and ast.get_docstring(tree):
                taken |= {*span}
                docstring = source.strip().removeprefix("r").strip('"').strip()
            elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                names[node.name] = source
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                each = [name for target in targets for name in ast.walk(target)]
                named = [name.id for name in each if isinstance(name, ast.Name)]
                names |= dict.fromkeys(named, source)
        body = "\n".join(line for n, line in enumerate(lines) if n not in taken)
        return cls(docstring, imports, imported, names, body.strip("\n"))


def _without_itself(text: str, module: str, names: Set[str]) -> str:
    """Return a module that does not import from itself what it has."""
    lines, taken = text.splitlines(), dict[int, str]()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or node.module != module:
            continue
        mine = [alias for alias in node.names if alias.name in names]
        if any(alias.asname not in (None, alias.name) for alias in mine):
            raise Refused(f"{module} imports itself under another name. Mend that first.")
        rest = [ast.unparse(alias) for alias in node.names if alias not in mine]
        taken |= dict.fromkeys(range(node.lineno - 1, node.end_lineno or node.lineno), "")
        if rest:
            indent = " " * node.col_offset
            taken[node.lineno - 1] = f"{indent}from {module} import {', '.join(rest)}"
    kept = (taken.get(n, line) for n, line in enumerate(lines) if taken.get(n) != "")
    return "\n".join(kept) + "\n"


def _in_code(renaming: Renaming, code: re.Match[str]) -> str:
    return renaming.word.sub(renaming.new_last, code[0])


def _one_line(node: cst.ImportFrom) -> cst.ImportFrom:
    """Return an import without a comma at its end, which would keep it in several lines."""
    assert not isinstance(node.names, cst.ImportStar)
    names = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in node.names]
    return node.with_changes(names=names, lpar=cst.LeftParen(), rpar=cst.RightParen())


def _dotted(name: str) -> cst.Attribute | cst.Name:
    node = cst.parse_expression(name)
    assert isinstance(node, (cst.Attribute, cst.Name))
    return node


def _contracts(text: str, renaming: Renaming) -> str:
    """Return ``pyproject.toml`` with contracts whose layers are told from a container."""
    parent, _, last = renaming.old.rpartition(".")
    new_parent, _, new_last = renaming.new.rpartition(".")
    if not renaming.module or parent != new_parent:
        return text

    def contract(found: re.Match[str]) -> str:
        if f'"{parent}"' not in found["containers"]:
            return found[0]
        return re.sub(rf"(?<![\w.]){re.escape(last)}(?![\w.])", new_last, found[0])

    blocks = r"(?m)^containers = (?P<containers>\[[^]]*\])\nlayers = \[[^]]*\]"
    return re.sub(blocks, contract, text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Rename, and print what is to be read."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="OLD NEW")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--join", action="store_true", help="a module may become one that is there")
    parser.add_argument(
        "--leave", action="append", default=[], help="a dotted name that strings keep"
    )
    given = parser.parse_args(arguments)
    if len(given.names) % 2:
        raise Refused(f"OLD without NEW: {given.names[-1]}.")
    tree = Tree(given.root, frozenset(given.leave), given.join)
    pairs = list[Renaming]()
    for old, new in zip(given.names[::2], given.names[1::2], strict=True):
        renaming = tree.renaming(old, new)
        pairs += [renaming] if renaming.module else tree.handed_on(renaming)
    commas = {tree.moved(file, pairs) for file in _with_commas(tree.root)}
    changed = tree.apply(pairs)
    python = {file for file in changed if file.endswith(".py")}
    for files, options in ((python - commas, _COMMAS_MEAN_NOTHING), (python & commas, [])):
        for command in (["check", "-q", "--select", "I", "--fix"], ["format", "-q"]):
            if files:
                _ruff(tree.root, *command, *options, *sorted(files), check=True)
    for title, lines in (("strings, to be read", tree.strings), ("mentions, left", tree.mentions)):
        for line in _unique(lines):
            print(f"{title}: {line}")
    print(f"{len(changed)} files changed.")


def _with_commas(root: Path) -> set[str]:
    """Return the files in which a comma at the end keeps something in several lines."""
    found = set[str]()
    for command in (["check", "--select", "I"], ["format", "--check"]):
        told = _ruff(root, *command, "--output-format", "concise", *_COMMAS_MEAN_NOTHING, ".")
        found |= {line.partition(":")[0] for line in told.splitlines() if ":" in line}
    return found


def _ruff(root: Path, *arguments: str, check: bool = False) -> str:
    command = [sys.executable, "-m", "ruff", *arguments]
    done = subprocess.run(command, cwd=root, check=check, text=True, stdout=subprocess.PIPE)
    return done.stdout


def _unique(lines: list[str]) -> Iterator[str]:
    yield from dict.fromkeys(lines)


if __name__ == "__main__":
    main()
