"""What a computation reads: its inputs, and what it takes beside them."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.dataflow.operators import operator_of
from millrace.model.pipeline import Declarations
from millrace.model.stream import KeyExtractor


def inputs_of(pipeline: Declarations, problems: list[str]) -> dict[str, dict[str, KeyExtractor]]:
    """Return computation -> stream that it reads -> key extractor, those beside included.

    Args:
        pipeline: As it is declared.
        problems: Gets what cannot be read both ways.
    """
    found: dict[str, dict[str, KeyExtractor]] = {}
    for name, computation in pipeline.computations.items():
        own = computation.inputs
        mine = found[name] = dict(own) if isinstance(own, Mapping) else {}
        for stream, taken in operator_of(computation).beside().items():
            if stream in mine:
                problems.append(
                    f"computation {name!r} takes stream {stream!r} as an input, and beside its "
                    "inputs. Give it a second name, and take it by that: "
                    f'p.stream({stream!r}).to("...").'
                )
            mine.setdefault(stream, taken.extractor)
    return found
