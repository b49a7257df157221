"""Triggers as Hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

import millrace as mr


def composites(children: Any) -> Any:
    """Return a strategy of triggers that are made of others, for ``st.recursive``."""
    several = st.lists(children, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda c: mr.FirstOf(*c)),
        several.map(lambda c: mr.AllOf(*c)),
        several.map(lambda c: mr.SequenceOf(*c)),
        children.map(mr.Repeat),
        st.tuples(children, children).map(lambda c: mr.RepeatUntil(*c)),
        st.tuples(children, st.integers(1, 3)).map(lambda c: mr.RepeatCount(*c)),
    )
