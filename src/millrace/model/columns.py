"""What expressions begin with: narwhals' functions, as ``mr.col`` and so on."""

from narwhals import coalesce, col, concat_str, lit, when

__all__ = ["coalesce", "col", "concat_str", "lit", "when"]
