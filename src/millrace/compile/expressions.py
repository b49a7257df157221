"""Expressions of a pipeline: checked and bound to the types of their streams' fields."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from millrace.model.coder import Coder, type_name
from millrace.model.declarations import Declarations
from millrace.model.expression import Expression
from millrace.model.pane import PanedCoder
from millrace.model.plain_stream import fields_of_stream
from millrace.model.stream import ByFunction, KeyExtractor, Spread, TimeSetter

#: Kind of a step -> what messages call it, where they are not the same.
_CALLS = {"key_by_record": "key_by", "with_timestamps": "with_timestamps"}


class ExpressionBinder:
    """Binds the expressions of a pipeline.

    Args:
        pipeline: As it is declared.
        formats: Stream -> format and coder.
        problems: Gets what is wrong with them.
    """

    def __init__(
        self,
        pipeline: Declarations,
        formats: Mapping[str, tuple[Any, Coder]],
        problems: list[str],
    ) -> None:
        self._pipeline = pipeline
        self._formats = formats
        self._problems = problems

    def steps(self) -> Declarations:
        """Return the pipeline with the expressions of its steps bound."""
        steps = [
            step
            if (bound := self._bound(step.function, step.source, _who(step.kind, step.function)))
            is step.function
            else replace(step, function=bound)
            for step in self._pipeline.steps
        ]
        if all(new is old for new, old in zip(steps, self._pipeline.steps, strict=True)):
            return self._pipeline
        changed = copy.copy(self._pipeline)
        changed.steps = steps
        return changed

    def inputs(
        self, inputs: Mapping[str, Mapping[str, KeyExtractor]]
    ) -> dict[str, dict[str, KeyExtractor]]:
        """Return the same key extractors of computations, with expressions bound."""
        return {
            name: {
                stream: self._bound(extractor, stream, f"the key of computation {name!r}")
                for stream, extractor in streams.items()
            }
            for name, streams in inputs.items()
        }

    def _bound(self, function: Any, stream: str, who: str) -> Any:
        """Return a function or extractor with its expression bound; the same if it has none."""
        if isinstance(function, Expression):
            return self._expression(function, stream, who)
        if isinstance(function, ByFunction):
            bound = self._bound(function.function, stream, who)
            return function if bound is function.function else ByFunction(bound)
        if isinstance(function, Spread):
            plain = self._bound(function.plain, stream, who)
            return function if plain is function.plain else Spread(plain, function.parts)
        if isinstance(function, TimeSetter):
            choose = self._bound(function.choose, stream, who)
            return function if choose is function.choose else TimeSetter(choose, function.unit)
        return function

    def _expression(self, expression: Expression, stream: str, who: str) -> Expression:
        format, _ = self._formats[stream]
        where = f"{who} on stream {stream!r}, {expression!r}"
        fields = fields_of_stream(self._pipeline, stream, format)
        plain = format.format if isinstance(format, PanedCoder) else format
        if fields is None:
            self._problems.append(
                f"{where}: nobody says what fields the values of the stream have, as its format "
                f"is {_format_text(plain)}. Declare one with fields, a msgspec.Struct or a "
                "dataclass: inject(..., format=Bid) or to(name, Bid). Or use a function."
            )
            return expression
        for name in expression.reads:
            if name not in fields:
                close = get_close_matches(name, fields, n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                self._problems.append(
                    f"{where} names field {name!r}, which its format {_format_text(plain)} does "
                    f"not have.{hint} It has: {', '.join(fields)}."
                )
        if expression.reads and not set(expression.reads) <= fields.keys():
            return expression
        if (wrong := expression.problem(fields)) is not None:
            self._problems.append(f"{where}: {wrong}")
            return expression
        return expression.bound(fields)


def _who(kind: str, function: Callable[..., Any]) -> str:
    if kind == "map" and isinstance(function, Expression):
        kind = function.step
    return f"a {_CALLS.get(kind, kind)} step"


def _format_text(format: Any) -> str:
    kind = getattr(format, "type", format) if isinstance(format, Coder) else format
    return type_name(kind)
