"""The matrix of types at a real PostgreSQL; see ``properties/test_types.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import doors_out
import matrix_page
import pytest
from field_types import KINDS


@pytest.mark.parametrize("door", ["PostgreSQL, its table", "PostgreSQL, your table"])
def test_doors_out(door: str, postgres: Any, tmp_path: Path) -> None:
    way = doors_out.postgres_doors(postgres)[door]
    cells = doors_out.outcomes(way, KINDS, tmp_path)
    matrix_page.check("doors out", door, cells)
