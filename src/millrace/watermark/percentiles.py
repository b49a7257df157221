"""What injectors publish for percentiles: a share of the records, that a pipeline waits for.

Source: MillWheel 7.2, percentile low watermarks.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.compile.topology import Topology
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.watermark.ahead import Ahead, SaysPercentiles, never_back
from millrace.watermark.authority import Authority


class Percentiles:
    """The percentile low watermarks of a pipeline's injectors.

    Args:
        topology: The pipeline.
        authority: Knows what was published before.
    """

    def __init__(self, topology: Topology, authority: Authority) -> None:
        self._wanted = topology.percentiles
        self._authority = authority
        self._scripted = {
            spec.name: policy
            for spec in topology.injected()
            if spec.injection is not None
            and isinstance(policy := spec.injection.low_watermark, SaysPercentiles)
        }

    def estimated(
        self, injectors: Mapping[str, int], ahead: Mapping[str, Ahead], epoch: int
    ) -> dict[int, dict[str, int]]:
        """Return what to publish with an epoch.

        That goes by how far ahead records came so far, unless a policy says it itself.

        Args:
            injectors: Injected stream -> low watermark that it is about to publish.
            ahead: Injected stream -> how far ahead its records came.
            epoch: Number of the epoch.

        Returns:
            Percentile -> injected stream -> microseconds; empty if the pipeline uses none.
        """
        return self.published(
            injectors,
            {
                p: {
                    stream: us + (known.ahead_us(p) if (known := ahead.get(stream)) else 0)
                    for stream, us in injectors.items()
                    if MIN_TIMESTAMP < us < MAX_TIMESTAMP
                }
                | {
                    stream: policy.percentile_us(p, epoch)
                    for stream, policy in self._scripted.items()
                }
                for p in self._wanted
            },
        )

    def published(
        self, injectors: Mapping[str, int], given: Mapping[int, Mapping[str, int]]
    ) -> dict[int, dict[str, int]]:
        """Return what is published, never less than before.

        Args:
            injectors: Injected stream -> low watermark that it publishes.
            given: Percentile -> injected stream -> what it says; by default its low watermark.
        """
        known = self._authority.low_watermarks.percentiles
        return never_back(injectors, given, {p: known[p].outputs for p in self._wanted})
