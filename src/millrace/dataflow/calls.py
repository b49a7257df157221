"""Calls as steps: ``map_async`` and ``map_batches``.

Source: docs/design/2026-11-28-calls.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict

from millrace.dataflow.element_types import plain_format, retracts
from millrace.model.async_computation import AsyncComputation
from millrace.model.calls import BatchPolicy, CallOrder, CallPolicy, RetryOn
from millrace.model.coder import Coder
from millrace.model.declarations import DerivedFormat
from millrace.model.pane import PanedCoder
from millrace.model.record import Record
from millrace.model.stream import KeyExtractor, Spread
from millrace.model.time import Duration

#: The hidden cell with the records whose calls are pending, by name. No attribute is called so.
PENDING: Final = "records whose calls are pending"

#: Into so many parts the records of a stream without keys are spread.
PARTS: Final = 64


class CallSettings(TypedDict, total=False):
    """What may be said of each step that makes calls; see :class:`CallPolicy`."""

    concurrency: int
    timeout: Duration | None
    retries: int
    backoff: Duration
    max_backoff: Duration
    retry_on: RetryOn
    breaker: int | None
    order: CallOrder


class CallEach(AsyncComputation):
    """Calls a function for each value of a stream, and produces the results.

    Args:
        stream: The stream.
        extractor: How keys are extracted from its values.
        function: Called with a value, or with a batch of values.
        policy: Concurrency, time-out and retries of the calls.
        output: Output stream of the results.
        format: Record format of the results; Any: whatever the coder can encode.
        batch: How values are gathered into batches; None: one call a value.
        setup: Makes the first argument of the function, once in each process.
    """

    _reads_state = False

    def __init__(
        self,
        stream: str,
        extractor: KeyExtractor,
        function: Callable[..., Any],
        policy: CallPolicy,
        output: str,
        format: Any = Any,
        batch: BatchPolicy | None = None,
        setup: Callable[[], Any] | None = None,
    ) -> None:
        self.inputs = {stream: extractor}  # type: ignore[misc]  # of this instance
        self.calls = policy  # type: ignore[misc]
        self.batch = batch  # type: ignore[misc]
        self.setup = setup  # type: ignore[misc]
        self.call = function  # type: ignore[method-assign]
        self.output = output
        self.format = format
        self._spread = isinstance(extractor, Spread)
        self.outputs = {output: DerivedFormat((stream,), self._derive)}  # type: ignore[misc]

    def _derive(self, format: Any) -> Any:
        """Return the output's format for the input's."""
        if isinstance(format, PanedCoder):
            return PanedCoder(plain_format(self.format), retracts=retracts(format))
        return self.format

    def derive(self, formats: Mapping[str, Coder]) -> None:
        """Take the formats of the inputs, now that they are known."""
        self.outputs = {self.output: self._derive(*formats.values())}  # type: ignore[misc]

    def process_response(self, record: Record, response: Any) -> None:
        """Produce it, as the record that it was made of."""
        # Of a record without a key, the part that it was spread to is the key.
        self.produce(self.output, response, key=self.key[0] if self._spread else None)
