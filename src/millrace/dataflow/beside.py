"""Beside: an input that a computation takes note of, and is not about.

Side inputs and signals are. Such a stream is subscribed to as any other, with edges, numbers and
ids; but it need not hold the computation's low watermark, and each of its records may go to every
key interval.

Source: docs/design/2026-11-22-side-inputs.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.model.stream import KeyExtractor


@dataclass(frozen=True)
class Beside:
    """How a computation takes a stream beside its inputs.

    Attributes:
        extractor: The key of each record, chosen by this consumer.
        waits: Whether the stream's low watermark holds that of the computation's input.
        everywhere: Whether each record goes to every key interval, and not to that of its key.
    """

    extractor: KeyExtractor
    waits: bool = False
    everywhere: bool = False
