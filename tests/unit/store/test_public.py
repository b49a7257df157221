from __future__ import annotations

import millrace.store


def test_all_names_what_is_there() -> None:
    exported = millrace.store.__all__
    assert exported == sorted(exported, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(millrace.store, name) for name in exported)
