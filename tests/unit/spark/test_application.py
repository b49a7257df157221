"""A driver that goes on with changed code imports it anew, and only what belongs to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from millrace.model.errors import PipelineError
from millrace.spark.application import pipeline_at

_JOBS = """
import millrace as mr
from {helper} import NAME
def shop():
    p = mr.Pipeline(NAME)
    p.inject("bids", format=dict)
    return p
class Mine: pass
"""


@pytest.fixture(autouse=True)
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no module of a test, and no mark on one, behind."""
    before = dict(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    by_value = cloudpickle.list_registry_pickle_by_value()
    for name in sys.modules.keys() - before.keys():
        if name in by_value:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
        del sys.modules[name]


def written(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize("how", ["module", "package", "file"])
def test_the_module_and_what_belongs_to_it_are_as_they_are_now(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "firm" if how == "package" else tmp_path
    helper = "firm.firm_names" if how == "package" else "firm_names"
    written(folder, "__init__.py", "")
    written(folder, "firm_names.py", "NAME = 'before'")
    written(folder, "firm_jobs.py", _JOBS.format(helper=helper))
    app = {"module": "firm_jobs", "package": "firm.firm_jobs", "file": f"{folder}/firm_jobs.py"}[
        how
    ]
    old: Any = pipeline_at(f"{app}:shop", "run")
    written(folder, "firm_names.py", "NAME = 'after'")
    assert pipeline_at(f"{app}:shop", "run").name == "before"
    made = pipeline_at(f"{app}:shop", "update", anew=True)
    assert (old.name, made.name) == ("before", "after")
    # Workers have what they imported; so what was imported anew goes to them whole.
    module = "millrace_app_firm_jobs" if how == "file" else app
    mine = sys.modules[module].Mine
    assert b"Mine" in cloudpickle.dumps(mine)
    del sys.modules[module].Mine
    assert cloudpickle.loads(cloudpickle.dumps(mine)).__name__ == "Mine"


def test_where_it_cannot_be_imported_all_is_as_it_was(tmp_path: Path) -> None:
    written(tmp_path, "firm_names.py", "NAME = 'before'")
    written(tmp_path, "firm_jobs.py", _JOBS.format(helper="firm_names"))
    pipeline_at("firm_jobs:shop", "run")
    before = sys.modules["firm_jobs"]
    written(tmp_path, "firm_jobs.py", "1 / 0")
    with pytest.raises(PipelineError, match="'firm_jobs' cannot be imported: ZeroDivisionError"):
        pipeline_at("firm_jobs:shop", "update", anew=True)
    assert sys.modules["firm_jobs"] is before
    assert sys.modules["json"].loads("1") == 1


_FOLDED = """
import millrace as mr
from shop_formats import Bid
def shop():
    from shop_parts.names import Name
    p = mr.Pipeline(Name.__name__)
    p.inject("bids", format=dict)
    return p
"""


@pytest.mark.parametrize("workers_look_there", [False, True])
def test_what_is_beside_a_file_travels_by_value_unless_workers_find_it(
    workers_look_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a package there; and what only the call imports."""
    folder = tmp_path / "a folder #1"
    written(folder, "shop_formats.py", "class Bid: pass")
    written(folder / "shop_parts", "names.py", "import zipfile\nclass Name: pass")
    written(folder, "shop_jobs.py", _FOLDED)
    monkeypatch.setenv("PYTHONPATH", str(folder) if workers_look_there else str(tmp_path))
    before = cloudpickle.list_registry_pickle_by_value()
    made: Any = pipeline_at(f"{folder}/shop_jobs.py:shop", "run")
    assert made.name == "Name"
    by_value = cloudpickle.list_registry_pickle_by_value() - before
    modules = {"millrace_app_shop_jobs", "shop_formats", "shop_parts", "shop_parts.names"}
    assert by_value == ({"millrace_app_shop_jobs"} if workers_look_there else modules)
    assert str(folder) not in sys.path


def test_a_file_of_a_package_is_told_how_to_be_part_of_it(tmp_path: Path) -> None:
    written(tmp_path, "part.py", "from .names import NAME")
    with pytest.raises(PipelineError, match=r"parent package; to be part .* package\.module:NAME"):
        pipeline_at(f"{tmp_path}/part.py:shop", "run")
