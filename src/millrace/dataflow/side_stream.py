"""Side stream: an input that a computation takes note of, and is not about.

Side inputs and signals are. Such a stream is subscribed to as any other, with edges, numbers and
ids; but it need not hold the computation's low watermark, and each of its records may go to every
key interval. A side input also needs hidden cells, which a computation gets as its pipeline is
built.

Source: docs/design/2026-11-22-side-inputs.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from millrace.dataflow.joins.join_state import KeptCoder, kept_by_time
from millrace.model.coder import Coder
from millrace.model.computation import Computation, state_cells
from millrace.model.errors import PipelineError
from millrace.model.state import MapState, SideInput
from millrace.model.stream import KeyExtractor


@dataclass(frozen=True)
class SideStream:
    """How a computation takes a stream beside its inputs.

    Attributes:
        extractor: The key of each record, chosen by this consumer.
        waits: Whether the stream's low watermark holds that of the computation's input.
        everywhere: Whether each record goes to every key interval, and not to that of its key.
    """

    extractor: KeyExtractor
    waits: bool = False
    everywhere: bool = False


#: Names of cells that go with side inputs; no attribute of a user's class can have them.
SIZES: Final = "bytes of side inputs"
WAITING: Final = "records that wait"


def side_inputs(computation: Computation) -> dict[str, SideInput[Any]]:
    """Return a computation's side inputs, by the names of the attributes."""
    cells = state_cells(computation).items()
    return {name: cell for name, cell in cells if isinstance(cell, SideInput)}


def subscriptions(computation: Computation) -> dict[str, SideStream]:
    """Return stream -> how a computation takes it as a side input."""
    side_streams: dict[str, SideStream] = {}
    for side in side_inputs(computation).values():
        if side.stream in side_streams:
            raise PipelineError(
                f"{side.owner}.{side.name}: {side!r} is the second side input of stream "
                f"{side.stream!r}. Use one, or give the stream a second name: "
                f'p.stream({side.stream!r}).to("...").'
            )
        side_streams[side.stream] = SideStream(side.extractor, side.waits, everywhere=True)
    return side_streams


def with_tables(computation: Computation, formats: Mapping[str, Coder]) -> Computation:
    """Return a computation whose side inputs know their formats, with the cells that they need.

    Args:
        computation: As it was added.
        formats: Stream that it reads -> coder.
    """
    sides = side_inputs(computation)
    if not sides:
        return computation
    bound = copy.copy(computation)
    cells = vars(bound)
    for name, side in sides.items():
        kept, forms = kept_by_time(formats[side.stream], int)
        cells[name] = typed = copy.copy(side)
        typed.coder, typed.forms = kept.coder, forms
    cells[SIZES] = MapState(int)
    if any(side.waits for side in sides.values()):
        cells[WAITING] = MapState(KeptCoder(tuple[str, bytes]))
    return bound
