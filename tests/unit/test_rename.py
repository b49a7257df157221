"""``scripts/rename.py`` on a small repository."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts" / "rename.py"

FILES = {
    "src/millrace/__init__.py": '''"""A package."""

_HOMES = {"kept.mill": "Wheel WIDTH"}
''',
    "src/millrace/kept/__init__.py": '''"""What is kept."""

from millrace.kept.mill import Wheel as Wheel

__all__ = ["Wheel"]
''',
    "src/millrace/kept/mill.py": '''"""A mill, of :class:`Wheel`."""

from __future__ import annotations

from .stones import Stone

WIDTH = 2


class Wheel:
    """A wheel turns a `Stone`.

    >>> Wheel().stone()
    Stone
    """

    def stone(self) -> Stone:
        """Return the stone; ``Wheel`` is not told again. A Wheel is."""
        return Stone()
''',
    "src/millrace/kept/stones.py": '''"""Stones."""


class Stone:
    """A stone."""
''',
    "src/millrace/user.py": '''"""All forms of imports."""

from __future__ import annotations

import millrace.kept.mill
import millrace.kept.stones as rocks
from millrace import kept
from millrace.kept import mill
from millrace.kept.mill import WIDTH
from millrace.kept.stones import Stone as Rock

MADE = (millrace.kept.mill.Wheel, kept.mill.Wheel)
MORE = (mill.Wheel, Rock, rocks.Stone)
TOLD = {"millrace.kept.mill.WIDTH": WIDTH, "millrace.keptalive": 1}  # see kept/mill.py
Other = type("Other", (), {"Wheel": 3})
FILE = f"src/millrace/kept/stones.py {Other.Wheel} millrace.kept"
''',
    "src/millrace/model.py": '"""Nothing."""\n',
    "tests/unit/kept/test_mill.py": """from millrace.kept.mill import Wheel


def test_wheel() -> None:
    assert Wheel().stone()
""",
    "docs/guide.md": """# The mill

`kept/mill.py` has `Wheel`, `millrace.kept.Wheel` and `Wheels`; see [it](../src/millrace/kept/).
What is kept is kept/unkept. A Wheel in prose.

```python
Wheel()
```
""",
    "src/millrace/page.js": "say(`Wheel ${1} of kept/mill.py`);\n",
    "pyproject.toml": """[[tool.importlinter.contracts]]
containers = ["millrace"]
layers = [
    "(user)",
    "(kept) : (model)",
]

[[tool.importlinter.contracts]]
containers = ["other"]
layers = ["(kept)"]

[tool.ruff.lint.per-file-ignores]
"src/millrace/kept/**" = ["PTH"]
""",
    "tests/unit/kept/bugs.py": 'PLANTED = ("millrace.kept.mill", "Wheel.stone")\n',
}


@pytest.fixture
def rename() -> Any:
    pytest.importorskip("libcst")
    spec = importlib.util.spec_from_file_location("rename", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["rename"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def there(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    _ruff(tmp_path)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        _git(tmp_path, *command)
    return tmp_path


def _ruff(there: Path) -> None:
    for command in (["check", "-q", "--select", "I", "--fix"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=there, check=True)


def _git(there: Path, *arguments: str) -> str:
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    command = ["git", "-C", str(there), *who, *arguments]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout


def test_a_folder_goes_with_all_that_names_it(rename: Any, there: Path) -> None:
    names = ["millrace.kept", "millrace.gear", "tests.unit.kept", "tests.unit.gear"]
    rename.main(["--root", str(there), *names])
    assert (there / "src/millrace/user.py").read_text() == (
        '''"""All forms of imports."""

from __future__ import annotations

import millrace.gear.mill
import millrace.gear.stones as rocks
from millrace import gear
from millrace.gear import mill
from millrace.gear.mill import WIDTH
from millrace.gear.stones import Stone as Rock

MADE = (millrace.gear.mill.Wheel, gear.mill.Wheel)
MORE = (mill.Wheel, Rock, rocks.Stone)
TOLD = {"millrace.gear.mill.WIDTH": WIDTH, "millrace.keptalive": 1}  # see gear/mill.py
Other = type("Other", (), {"Wheel": 3})
FILE = f"src/millrace/gear/stones.py {Other.Wheel} millrace.gear"
'''
    )
    assert "from .stones import Stone" in (there / "src/millrace/gear/mill.py").read_text()
    assert '{"gear.mill": "Wheel WIDTH"}' in (there / "src/millrace/__init__.py").read_text()
    assert "millrace.gear.mill" in (there / "tests/unit/gear/bugs.py").read_text()
    guide = (there / "docs/guide.md").read_text()
    assert "`gear/mill.py` has `Wheel`, `millrace.gear.Wheel`" in guide
    assert "[it](../src/millrace/gear/)" in guide
    assert "What is kept is kept/unkept." in guide
    contracts = (there / "pyproject.toml").read_text()
    assert '"(gear) : (model)"' in contracts
    assert 'layers = ["(kept)"]' in contracts
    assert '"src/millrace/gear/**"' in contracts
    assert not (there / "src/millrace/kept").exists()
    subprocess.run(
        [sys.executable, "-c", "import millrace.user"], cwd=there / "src", check=True,
        env={"PYTHONPATH": "."},
    )  # fmt: skip


def test_a_folder_leaves_its_package(rename: Any, there: Path) -> None:
    rename.main(["--root", str(there), "millrace.kept", "simulation"])
    user = (there / "src/millrace/user.py").read_text()
    assert "import simulation\n" in user
    assert "from simulation.mill import WIDTH" in user
    assert "MADE = (simulation.mill.Wheel, simulation.mill.Wheel)" in user
    subprocess.run(
        [sys.executable, "-c", "import millrace.user"], cwd=there, check=True,
        env={"PYTHONPATH": ".:src"},
    )  # fmt: skip


def test_there_and_back_leaves_no_difference(rename: Any, there: Path) -> None:
    names = [
        "millrace.kept",
        "millrace.a_name_that_is_much_longer",
        "tests.unit.kept",
        "tests.unit.x",
    ]
    rename.main(["--root", str(there), *names])
    assert _git(there, "status", "--short")
    back = [names[1], names[0], names[3], names[2]]
    rename.main(["--root", str(there), *back])
    assert _git(there, "diff", "HEAD") == ""


def test_a_class_has_its_new_name_wherever_it_is_handed_on(
    rename: Any, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rename.main(["--root", str(there), "millrace.kept.mill.Wheel", "millrace.kept.mill.Rotor"])
    mill = (there / "src/millrace/kept/mill.py").read_text()
    assert "class Rotor:" in mill
    assert "of :class:`Rotor`" in mill
    assert ">>> Rotor().stone()" in mill
    assert "``Rotor`` is not told again. A Wheel is." in mill
    assert '"Rotor WIDTH"' in (there / "src/millrace/__init__.py").read_text()
    kept = (there / "src/millrace/kept/__init__.py").read_text()
    assert "from millrace.kept.mill import Rotor as Wheel" in kept
    assert "assert Wheel()" not in (there / "tests/unit/kept/test_mill.py").read_text()
    guide = (there / "docs/guide.md").read_text()
    assert "has `Rotor`, `millrace.kept.Rotor` and `Wheels`" in guide
    assert "\nRotor()\n" in guide
    assert "mentions, left: docs/guide.md:4: What is kept" in capsys.readouterr().out
    # What stands in backticks there is said to people.
    assert "say(`Wheel ${1}" in (there / "src/millrace/page.js").read_text()


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["millrace.kept", "millrace.model"], "src/millrace/model.py is there already"),
        (["millrace.kept", "millrace.new.kept"], "src/millrace/new is not there"),
        (["millrace.no", "millrace.yes"], "neither a module nor a name in one"),
        (["other.kept", "other.gear"], "is in none of millrace"),
        (["millrace.kept"], "OLD without NEW"),
        (["millrace.kept.mill.Wheel", "millrace.model.Wheel"], "would go to another module"),
    ],
)
def test_what_cannot_be_done_is_refused(
    rename: Any, there: Path, names: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        rename.main(["--root", str(there), *names])
    assert _git(there, "status", "--short") == ""


def test_modules_become_one(rename: Any, there: Path) -> None:
    names = ["millrace.kept.mill", "millrace.kept.works", "millrace.kept.stones"]
    rename.main(["--root", str(there), "--join", *names, "millrace.kept.works"])
    assert (
        (there / "src/millrace/kept/works.py")
        .read_text()
        .startswith(
            '''"""A mill, of :class:`Wheel`.

Stones.
"""

from __future__ import annotations


class Stone:
    """A stone."""


WIDTH = 2


class Wheel:
'''
        )
    )
    assert not (there / "src/millrace/kept/mill.py").exists()
    assert not (there / "src/millrace/kept/stones.py").exists()
    user = (there / "src/millrace/user.py").read_text()
    assert "from millrace.kept import works\n" in user
    assert "from millrace.kept.works import Stone as Rock" in user
    assert "MADE = (millrace.kept.works.Wheel, kept.works.Wheel)" in user
    subprocess.run(
        [sys.executable, "-c", "import millrace.user"], cwd=there / "src", check=True,
        env={"PYTHONPATH": "."},
    )  # fmt: skip
