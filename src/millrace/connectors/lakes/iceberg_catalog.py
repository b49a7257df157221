"""Catalogs of Iceberg, as PyIceberg opens them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.model.errors import PipelineError


def require_pyiceberg(who: str, where: str) -> None:
    """Refuse to go on without ``pyiceberg``.

    Args:
        who: Needs it, for messages.
        where: It is needed, for messages.

    Raises:
        PipelineError: It is not installed.
    """
    try:
        import pyiceberg  # noqa: F401
    except ImportError as missing:
        raise PipelineError(
            f"{who} needs the package pyiceberg, {where}: pip install 'millrace-spark[iceberg]'."
        ) from missing


def open_catalog(catalog: str | Mapping[str, str]) -> Any:
    """Return a catalog by its name in PyIceberg's configuration, or by its properties."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(catalog) if isinstance(catalog, str) else load_catalog(**catalog)
