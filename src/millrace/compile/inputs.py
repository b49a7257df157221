"""What a computation reads: its inputs, and what it takes beside them."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.dataflow.operators import operator_of
from millrace.dataflow.side_stream import SideStream
from millrace.model.declarations import Declarations
from millrace.model.keys import decode_key
from millrace.model.stream import KeyExtractor, by


def beside_of(pipeline: Declarations) -> dict[str, dict[str, SideStream]]:
    """Return computation -> stream that it takes beside its inputs -> how."""
    found = {name: dict(operator_of(one).beside()) for name, one in pipeline.computations.items()}
    for name, stream in pipeline.starts.items():
        # The stream of keys ends at once, and what is before it has come holds the low watermark.
        found[name][stream] = SideStream(by(decode_key), waits=True)
    return found


def inputs_of(
    pipeline: Declarations, beside: Mapping[str, Mapping[str, SideStream]], problems: list[str]
) -> dict[str, dict[str, KeyExtractor]]:
    """Return computation -> stream that it reads -> key extractor, those beside included.

    Args:
        pipeline: As it is declared.
        beside: As :func:`beside_of` has it.
        problems: Gets what cannot be read both ways.
    """
    found: dict[str, dict[str, KeyExtractor]] = {}
    for name, computation in pipeline.computations.items():
        own = computation.inputs
        mine = found[name] = dict(own) if isinstance(own, Mapping) else {}
        for stream, taken in beside[name].items():
            if stream in mine:
                problems.append(
                    f"computation {name!r} takes stream {stream!r} as an input, and beside its "
                    "inputs. Give it a second name, and take it by that: "
                    f'p.stream({stream!r}).to("...").'
                )
            mine.setdefault(stream, taken.extractor)
    return found
