"""DerivedFormat: the format of an output that depends on that of an input.

What a grouping gives depends on what it is given: the maximum of a stream of floats is a float. A
stream's format is known only when the pipeline is built, so such an output says how to derive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DerivedFormat:
    """Stands in a computation's ``outputs`` for a format found when the pipeline is built.

    Attributes:
        stream: The input.
        derive: From its format to that of the output; called whenever the pipeline is built.
    """

    stream: str
    derive: Callable[[Any], Any]
