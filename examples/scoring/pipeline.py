"""The pipeline: payments are joined with profiles, and a model in a service scores them.

It is the same on both planes and in the Harness: there, a function of the test takes the service's
place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec

import millrace as mr

PAYMENTS_SCHEMA = "id string, card string, amount double, at long"
PROFILES_SCHEMA = "card string, usual double, at long"
"""Columns of the topics, whose messages are JSON."""

THRESHOLD = 0.7


class Payment(msgspec.Struct, frozen=True):
    """Somebody pays, at a time in microseconds since 1970."""

    id: str
    card: str
    amount: float
    at: int


class Profile(msgspec.Struct, frozen=True):
    """What is usual for a card, from a time on."""

    card: str
    usual: float
    at: int


class Scored(msgspec.Struct, frozen=True):
    """A payment and how likely it is a fraud."""

    id: str
    card: str
    amount: float
    score: float


class Alert(msgspec.Struct, frozen=True):
    """A card whose payments are likely frauds, and how many of them there were."""

    card: str
    payment: str
    score: float
    alerts: int


class Unavailable(Exception):
    """The service is busy, or gone: the call is made again."""


class Score(mr.AsyncComputation):
    """Asks the model about each payment, with how many the card had before.

    A card's next payment is asked for when the one before is scored: ``recent`` is state.
    """

    inputs = {"known_payments": mr.by_key()}
    outputs = {"scored": Scored, "alerts": Alert}
    calls = mr.CallPolicy(
        concurrency=100,
        timeout="5 s",
        retries=5,
        backoff="50 ms",
        retry_on=(Unavailable, httpx.TransportError),
    )
    recent = mr.CombiningState(int)
    alerts = mr.CombiningState(int)

    def __init__(self, url: str) -> None:
        self.url = url

    def setup(self) -> Any:
        """Open the client, once in each process."""
        return httpx.AsyncClient(base_url=self.url, timeout=None)

    def request(self, record: mr.Record) -> dict[str, Any]:
        """Return what the model is asked."""
        payment, profile = record.value
        return {
            "amount": payment.amount,
            "usual": profile and profile.usual,
            "recent": self.recent.get(0),
        }

    async def call(self, client: Any, features: dict[str, Any], call: Any) -> float:
        """Ask; a service that has no time is asked again."""
        response = await client.post("/score", json=features, headers={"Idempotency-Key": call.id})
        if response.status_code == 503:
            raise Unavailable(response.text)
        if response.status_code == 422:
            raise ValueError(response.json()["error"])
        return float(response.raise_for_status().json()["score"])

    def process_response(self, record: mr.Record, score: float) -> None:
        """Report the score, and an alert if it is high."""
        payment, _ = record.value
        self.recent.add(1)
        self.produce("scored", Scored(payment.id, payment.card, payment.amount, score))
        if score > THRESHOLD:
            self.alerts.add(1)
            self.produce("alerts", Alert(payment.card, payment.id, score, self.alerts.get()))


STREAMS = ("scored", "alerts", "rejects")


def build(
    url: str,
    payments: Any = None,
    profiles: Any = None,
    sink: Callable[[str], Any] | None = None,
) -> mr.Pipeline:
    """Return the pipeline.

    Args:
        url: Of the model.
        payments: Injector with the columns of `PAYMENTS_SCHEMA`; None for the Harness.
        profiles: Injector with the columns of `PROFILES_SCHEMA`; None for the Harness.
        sink: From the name of a stream of results to its sink; None for no sinks.
    """
    p = mr.Pipeline("fraud-scoring")
    paid = p.inject(
        "payments", payments, timestamp="at", low_watermark=mr.BoundedDelay("1 s"), format=Payment
    )
    known = p.inject(
        "profiles",
        profiles,
        timestamp="at",
        low_watermark=mr.ArrivalTime("1 s", every="1 s"),
        format=Profile,
    )
    joined = paid.key_by("card").enrich(known.key_by("card"))
    joined.to("known_payments", format=tuple[Payment, Profile | None])
    p.add(Score(url))
    p.dead_letter("rejects")
    if sink is not None:
        for stream in STREAMS:
            p.sink(stream, sink(stream))
    return p
