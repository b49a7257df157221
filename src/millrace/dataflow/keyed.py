"""Streams with keys: which stream a consumer subscribes to, and how it extracts the keys."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.dataflow.formats import field_type, plain_format
from millrace.model.coder import Coder, type_name
from millrace.model.errors import PipelineError
from millrace.model.plain_stream import PlainStream
from millrace.model.stream import ByFields, KeyExtractor, by_key

#: A stream by its name, and how its keys are extracted.
Side = tuple[str, KeyExtractor]


def keyed(stream: PlainStream) -> Side:
    """Return the stream to subscribe to for a stream with keys, and how the keys are extracted.

    Directly after ``key_by`` that is the stream before it, so that the key is extracted where the
    stream's own consumers' are: by Spark itself, if it is a column.
    """
    made_by = [step for step in stream.pipeline.steps if step.target == stream.name]
    if len(made_by) == 1 and made_by[0].kind == "key_by":
        assert isinstance(made_by[0].function, KeyExtractor)
        return made_by[0].source, made_by[0].function
    return stream.name, by_key()


def sides(left: PlainStream, right: PlainStream, call: str) -> tuple[Side, Side]:
    """Return what a computation of two streams subscribes to.

    Args:
        left: The one.
        right: The other; it may be the same stream by another key.
        call: Of which method, for the message.

    Raises:
        PipelineError: They are of two pipelines, or one stream by one key.
    """
    if not isinstance(right, PlainStream) or right.pipeline is not left.pipeline:
        raise PipelineError(
            f"{left!r}.{call}({right!r}): expected another stream of {left.pipeline!r}."
        )
    both = keyed(left), keyed(right)
    if both[0][0] == both[1][0]:
        both = (left.name, by_key()), (right.name, by_key())
    if both[0][0] == both[1][0]:
        raise PipelineError(
            f"stream {left.name!r} is joined with itself by one key. Give one side a name or a "
            "step of its own."
        )
    return both


def check_keys(name: str, inputs: Mapping[str, KeyExtractor], formats: Mapping[str, Coder]) -> None:
    """Refuse two sides whose keys are surely of different types, which would never be equal."""
    (left, of_left), (right, of_right) = (
        (stream, _key_type(extractor, formats[stream])) for stream, extractor in inputs.items()
    )
    if of_left is None or of_right is None or of_left == of_right:
        return
    said = [", ".join(map(type_name, kinds)) for kinds in (of_left, of_right)]
    raise PipelineError(
        f"the join {name!r} has keys of different types, which are never equal: {said[0]} of "
        f"{left!r} ({inputs[left]!r}), and {said[1]} of {right!r} ({inputs[right]!r}). Make them "
        "alike: key_by(lambda value: str(value.id))."
    )


def _key_type(extractor: KeyExtractor, coder: Coder) -> tuple[type, ...] | None:
    """Return the types that a key is made of, if they are surely those."""
    if not isinstance(extractor, ByFields):
        return None
    kinds = tuple(field_type(plain_format(coder), field) for field in extractor.fields)
    return kinds if all(kind in (str, int, bytes, bool, float) for kind in kinds) else None
