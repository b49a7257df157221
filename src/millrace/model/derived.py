"""DerivedFormat: the format of a stream that depends on that of others.

What a grouping gives depends on what it is given: the maximum of a stream of floats is a float. A
stream's format is known only when the pipeline is built, so such a stream says how to derive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DerivedFormat:
    """Stands in a computation's ``outputs`` for a format found when the pipeline is built.

    Attributes:
        streams: Those that it depends on.
        derive: From their formats to its own; called whenever the pipeline is built.
    """

    streams: tuple[str, ...]
    derive: Callable[..., Any]
