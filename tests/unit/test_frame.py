"""The package as a whole: what importing it loads, what it exports, what it ships."""

import ast
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

import millrace

ROOT = Path(__file__).parents[2]


def test_importing_millrace_imports_no_pyspark() -> None:
    program = (
        "import json, sys; from millrace import *; import millrace.testing; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in json.loads(run.stdout)}
    assert loaded.isdisjoint({"pyspark", "py4j"})


#: What an extra installs -> the modules that need it as soon as they are imported.
_NEED_AN_EXTRA = {
    "starlette": ["millrace.dashboard.application"],
    "matplotlib": ["millrace.plots.notebook_figure"],
}

_WITHOUT_EXTRAS = """
import importlib, json, pkgutil, re, sys
from importlib.metadata import packages_distributions, requires

needed = [re.match(r"[\\w-]+", one)[0] for one in requires("millrace-spark") if "extra" in one]
always = [re.match(r"[\\w-]+", one)[0] for one in requires("millrace-spark") if "extra" not in one]
optional = set(needed) - set(always)
blocked = {name for name, of in packages_distributions().items() if set(of) <= optional}
assert {"starlette", "matplotlib", "psycopg", "deltalake"} <= blocked

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Blocked())
import millrace

failed = {}
for module in pkgutil.walk_packages(millrace.__path__, "millrace."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            failed.setdefault(missing.name, []).append(module.name)
print(json.dumps(failed))
"""


def test_an_installation_without_extras_can_import_all_but_what_needs_them() -> None:
    """All that a run imports: a dashboard that nobody asked for needs no web server."""
    ran = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == _NEED_AN_EXTRA


def imported(block: ast.If) -> dict[str, str]:
    """Return public name -> module, as an ``if TYPE_CHECKING`` has it."""
    return {
        alias.name: str(node.module).removeprefix("millrace.")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_a_type_checker_sees_of_the_package_is_what_there_is() -> None:
    block, _ = [
        node
        for node in ast.parse(Path(millrace.__file__).read_text()).body
        if isinstance(node, ast.If)
    ]

    namespaces = dict.fromkeys(millrace._NAMESPACES, "millrace")
    assert imported(block) == {**millrace._MODULES, **namespaces}
    assert sorted(millrace.__all__) == sorted(imported(block)) == sorted(dir(millrace))
    assert all(hasattr(millrace, name) for name in millrace.__all__)
    with pytest.raises(AttributeError, match="module 'millrace' has no attribute 'Windows'"):
        millrace.Windows  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_imports_no_more_of_it() -> None:
    """As Spark waits for it in each Python process that it starts."""
    program = "import sys, millrace.spark.ticks; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    ours = {name for name in ran.stdout.split() if name.startswith("millrace.")}
    assert ours == {
        "millrace.model", "millrace.model.errors", "millrace.spark", "millrace.spark.compat",
        "millrace.spark.connect", "millrace.spark.failure",
        "millrace.spark.realtime", "millrace.spark.realtime.requirements", "millrace.spark.ticks",
    }  # fmt: skip


def moved() -> list[tuple[str, str]]:
    """Return names that are in a namespace now, with where."""
    named = (
        (one.partition("="), namespace)
        for namespace, names in millrace._MOVED.items()
        for one in names.split()
    )
    return [(old, f"{namespace}.{new or old}") for (old, _, new), namespace in named]


@pytest.mark.parametrize(("old", "new"), moved())
def test_a_name_that_has_moved_says_where_it_is_now(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=f"^{re.escape(f'mr.{old} is mr.{new}')}$"):
        getattr(millrace, old)
    space, _, name = new.partition(".")
    assert hasattr(getattr(millrace, space), name)


def test_public_names_are_few_and_a_namespace_has_what_it_says() -> None:
    assert len(millrace.__all__) == 80 + len(millrace._NAMESPACES)
    for space in millrace._NAMESPACES:
        found = getattr(millrace, space)
        assert all(hasattr(found, name) for name in found.__all__)
    assert millrace.Parquet is millrace.sinks.Parquet


@pytest.mark.parametrize("folder", millrace._NAMESPACES)
def test_a_namespace_is_reached_through_the_package(folder: str) -> None:
    """In a process of its own: here another test has imported it."""
    program = f"import millrace as mr; print(mr.{folder}.__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == f"millrace.{folder}"


def test_no_foreign_name_is_public() -> None:
    foreign = [
        name
        for name in millrace.__all__
        if not getattr(getattr(millrace, name), "__module__", "millrace").startswith("millrace")
    ]

    # An expression is narwhals' own, and so is what begins one: nobody has to import two packages.
    assert foreign == ["coalesce", "col", "concat_str", "lit", "when"]


def test_annotations_are_shipped() -> None:
    assert files("millrace").joinpath("py.typed").is_file()


def test_the_command_is_declared() -> None:
    commands = importlib.metadata.entry_points(group="console_scripts", name="millrace")

    assert [command.value for command in commands] == ["millrace.cli.main:main"]
    assert callable(next(iter(commands)).load())


def test_the_examples_are_installed() -> None:
    assert importlib.import_module("millrace_examples").__doc__


def test_every_folder_with_code_is_a_package() -> None:
    # A folder without __init__.py works from a checkout and is missing from the wheel.
    without = [
        str(folder.relative_to(ROOT))
        for root in (ROOT / "src" / "millrace", ROOT / "examples")
        for folder in {file.parent for file in root.rglob("*.py")}
        if not (folder / "__init__.py").is_file()
    ]

    assert without == []


def test_what_the_examples_install_is_part_of_what_development_does() -> None:
    """So `make test` after `make demo` only adds to the environment."""
    examples, development = (
        set(re.findall(r"^([\w.-]+==\S+)", (ROOT / f"requirements/{name}.lock").read_text(), re.M))
        for name in ("demo", "dev")
    )

    assert any(pin.startswith("pyspark==") for pin in examples)
    assert examples < development
    assert not {pin.split("==")[0] for pin in examples} & {"mypy", "pytest", "ruff", "hypothesis"}
