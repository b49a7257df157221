"""The traffic of the demo: profiles, payments, and what must come of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable

import msgspec
from confluent_kafka import Producer

import millrace as mr

from .model_server import score
from .pipeline import THRESHOLD, Payment, Profile

CARDS = 200
#: One payment in so many has an amount that the model refuses.
_REFUSED = 97


def profiles(begin_us: int, seed: int) -> list[Profile]:
    """Return what is usual for most cards; of one in ten nothing is known."""
    draw = random.Random(seed)
    return [
        Profile(f"card-{n}", round(draw.uniform(10, 500), 2), begin_us - mr.MINUTE)
        for n in range(CARDS)
        if n % 10
    ]


def payments(begin_us: int, seconds: float, rate: float, seed: int) -> list[Payment]:
    """Return payments in order of time."""
    draw = random.Random(seed + 1)
    found = []
    for n in range(round(seconds * rate)):
        amount = -1.0 if n % _REFUSED == 1 else round(draw.uniform(1, 2_000), 2)
        at_us = begin_us + round(n / rate * mr.SECOND)
        found.append(Payment(f"p{n}", f"card-{draw.randrange(CARDS)}", amount, at_us))
    return found


class Expected:
    """What must come of payments.

    Attributes:
        scores: Payment -> its score.
        refused: Payments that become dead letters.
        alerts: Card -> how many alerts it has.
    """

    def __init__(self, known: Iterable[Profile], paid: Iterable[Payment]) -> None:
        usual = {profile.card: profile.usual for profile in known}
        recent: Counter[str] = Counter()
        self.scores: dict[str, float] = {}
        self.refused: set[str] = set()
        self.alerts: Counter[str] = Counter()
        for payment in paid:
            features = {
                "amount": payment.amount,
                "usual": usual.get(payment.card),
                "recent": recent[payment.card],
            }
            try:
                self.scores[payment.id] = score(features)
            except ValueError:
                self.refused.add(payment.id)
                continue
            recent[payment.card] += 1
            self.alerts[payment.card] += self.scores[payment.id] > THRESHOLD


class Sender:
    """Sends values to topics as JSON, each card to a partition of its own.

    Args:
        servers: Of Kafka.
    """

    def __init__(self, servers: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})

    def send(self, topic: str, values: Iterable[Payment | Profile]) -> None:
        """Send values, and wait until they are there."""
        for value in values:
            self._producer.produce(topic, msgspec.json.encode(value), value.card)
            self._producer.poll(0)
        self._producer.flush()

    def play(self, topic: str, values: Iterable[Payment]) -> None:
        """Send each payment when it is due by the clock."""
        for value in values:
            wait_s = value.at / mr.SECOND - time.time()
            if wait_s > 0:
                self._producer.flush()
                time.sleep(wait_s)
            self.send_one(topic, value)
        self._producer.flush()

    def send_one(self, topic: str, value: Payment) -> None:
        """Send a payment; it leaves within milliseconds."""
        self._producer.produce(topic, msgspec.json.encode(value), value.card)
        self._producer.poll(0)
