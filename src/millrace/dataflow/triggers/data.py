"""AfterCount, AfterBytes and Punctuation: triggers that go by the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.dataflow.triggers.trigger import Trigger
from millrace.model.coroutines import refuse_parameters, truth
from millrace.model.errors import PipelineError


class _Threshold(Trigger):
    """What AfterCount and AfterBytes share: a sum over the elements, and a bound."""

    finishes = True

    def __init__(self, threshold: int) -> None:
        if type(threshold) is not int or threshold < 1:
            raise PipelineError(
                f"{type(self).__name__}({threshold!r}): expected an int above zero."
            )
        self.threshold = threshold

    def _more(self, ctx: Any) -> int:
        raise NotImplementedError

    def on_element(self, ctx: Any) -> None:
        """Add, and fire at the threshold."""
        self._store(ctx, ctx.get("sum", 0) + self._more(ctx))

    def on_merge(self, ctx: Any) -> None:
        """Add the sums up, and fire at the threshold."""
        self._store(ctx, sum(source.get("sum", 0) for source in ctx.sources))

    def _store(self, ctx: Any, total: int) -> None:
        ctx.set("sum", total)
        if total >= self.threshold:
            ctx.trigger()
            ctx.done()


class AfterCount(_Threshold):
    """Fires when so many elements have been added, and is done.

    Source: Dataflow patent, appendix A. When windows merge, their counts add up.

    >>> AfterCount(2)
    AfterCount(2)
    """

    def _more(self, ctx: Any) -> int:
        return int(ctx.elements)


class AfterBytes(_Threshold):
    """Fires when the elements added are so many bytes together, encoded as msgpack, and is done.

    Source: Dataflow patent, "AfterBytes".

    >>> AfterBytes(1_000_000)
    AfterBytes(1000000)
    """

    needs_bytes = True

    def _more(self, ctx: Any) -> int:
        return int(ctx.bytes)


class Punctuation(Trigger):
    """Fires when an element says so, and is done.

    Args:
        predicate: Called with every element (what is aggregated); true for a punctuation.

    Source: Dataflow patent, "after receiving a punctuation record that terminates the window".
    """

    finishes = True

    def __init__(self, predicate: Callable[[Any], bool]) -> None:
        if not callable(predicate):
            raise PipelineError(
                f"Punctuation({predicate!r}): expected a function of an element, such as "
                'lambda value: value == "end".'
            )
        refuse_parameters(predicate, "Punctuation(", "element")
        self.predicate = predicate

    def on_element(self, ctx: Any) -> None:
        """Ask the predicate."""
        if truth(self.predicate(ctx.element), "the predicate of mr.Punctuation"):
            ctx.trigger()
            ctx.done()

    def on_merge(self, ctx: Any) -> None:
        """Nothing is kept, so there is nothing to merge."""
