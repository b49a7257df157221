"""Projection: streams whose fields are computed by expressions of those of another."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from millrace.dataflow.aggregations.fields import FieldsCoder
from millrace.model.expression import Expression, Extension, Selection, named
from millrace.model.plain_stream import PlainStream, derived, fields_of_stream


class Projecting(PlainStream):
    """A stream of whose values expressions can make dicts of other fields."""

    def select(self, *expressions: Any, **named_expressions: Any) -> Self:
        """Replace each value by a dict of fields that expressions compute of its own fields.

        Expressions are narwhals': ``mr.col``, ``mr.lit`` and ``mr.when``. They run as columns where
        there are many records. ``to(name, format)`` makes a class of the dict.

        Args:
            *expressions: Names of fields that stay, or expressions with a name: that of their first
                field, or of ``.alias("name")``.
            **named_expressions: Others by the name of the field that they make; what is no
                expression is a value.

        Raises:
            PipelineError: There are none, or two make one field. When the pipeline is built: an
                expression names a field that the stream's format has not, or looks at other
                records.

        >>> import millrace as mr
        >>> import msgspec
        >>> class Bid(msgspec.Struct):
        ...     item: str
        ...     cents: int
        >>> p = mr.Pipeline("shop")
        >>> p.inject("bids", format=Bid).select("item", euros=mr.col("cents") / 100).to("priced")
        Stream('priced')
        >>> p.sink("priced", mr.sinks.Memory())
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("bids", [(Bid("tea", 450), 0)])
        ...     h.outputs("priced")[0].value
        {'item': 'tea', 'euros': 4.5}

        Source: docs/how-to/compute-over-columns.md.
        """
        return self._computed("select", Selection(named("select", expressions, named_expressions)))

    def with_columns(self, *expressions: Any, **named_expressions: Any) -> Self:
        """Replace each value by a dict of its fields and of those that expressions compute.

        Args:
            *expressions: See :meth:`select`.
            **named_expressions: Likewise. A field of the value of the same name is replaced.

        Raises:
            PipelineError: See :meth:`select`.

        >>> import millrace as mr
        >>> import msgspec
        >>> class Bid(msgspec.Struct):
        ...     item: str
        ...     cents: int
        >>> p = mr.Pipeline("shop")
        >>> bids = p.inject("bids", format=Bid)
        >>> bids.with_columns(dear=mr.col("cents") > 400).to("marked")
        Stream('marked')
        >>> p.sink("marked", mr.sinks.Memory())
        >>> with mr.testing.Harness(p) as h:
        ...     h.inject("bids", [(Bid("tea", 450), 0)])
        ...     h.outputs("marked")[0].value
        {'item': 'tea', 'cents': 450, 'dear': True}
        """
        extension = Extension(named("with_columns", expressions, named_expressions))
        return self._computed("with_columns", extension)

    def _computed(self, step: str, expression: Expression) -> Self:
        """Return the stream of dicts, whose format follows from the fields' types."""
        stream = self._step("map", expression)
        derive = partial(_dicts_of, self.pipeline, self.name, expression)
        self.pipeline.formats[stream.name] = derived(self.name, derive)
        return stream


def _dicts_of(pipeline: Any, stream: str, expression: Expression, format: Any) -> Any:
    """Return the format of the dicts that expressions make; Any if they are refused."""
    fields = fields_of_stream(pipeline, stream, format)
    if fields is None or expression.problem(fields) is not None:
        return Any
    return FieldsCoder(tuple(expression.bound(fields).kinds().items()))
