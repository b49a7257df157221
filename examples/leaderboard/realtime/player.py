"""The players: a process that sends the scores of the game to Kafka, each when it is due.

It is the game of the tutorial, played so many times as fast: an hour of it passes in 20 seconds. So
a phone's delay is some hundredths of a second, and what was played offline is uploaded up to half a
minute after.

    python -m millrace_examples.leaderboard.realtime.player JSON    with the fields of `Play`
"""

from __future__ import annotations

import sys
import time

import msgspec
import pandas as pd
from confluent_kafka import Producer

import millrace as mr
from millrace_examples.leaderboard import game

SPEED = 180
_SCORES_A_PLAYER = 74  # on average, however long the game is


class Play(msgspec.Struct, frozen=True):
    """What is played.

    Attributes:
        servers: Of Kafka.
        topic: Where the scores go.
        begin_us: When the game begins, microseconds since 1970.
        seconds: For how long it is played.
        rate: Scores a second, about.
        seed: The same seed makes the same game.
    """

    servers: str
    topic: str
    begin_us: int
    seconds: float
    rate: float
    seed: int = 4

    def scores(self) -> pd.DataFrame:
        """Return the scores that are sent, in that order, with the columns of `game.SCHEMA`."""
        players = max(2, round(self.rate * self.seconds / _SCORES_A_PLAYER))
        scores = game.play(game.Game(players, self.seconds * SPEED / 3600, self.seed))
        for time_of in ("at", "arrived"):
            scores[time_of] = self.begin_us + (scores[time_of] - game.START) // SPEED
        end_us = self.begin_us + self.seconds * mr.SECOND
        return scores[scores["arrived"] < end_us].reset_index(drop=True)


def play(it: Play) -> None:
    """Send the scores, each when it is due.

    Raises:
        SystemExit: Kafka did not take them all.
    """
    producer = Producer(
        {"bootstrap.servers": it.servers, "enable.idempotence": True, "linger.ms": 0}
    )
    refused = []
    scores = it.scores()
    due_us = scores.pop("arrived").tolist()
    for score, at_us in zip(scores.to_dict("records"), due_us, strict=True):
        while (left_us := at_us - _now_us()) > 0:
            time.sleep(left_us / mr.SECOND)
        producer.produce(
            it.topic,
            key=score["user"],
            value=msgspec.json.encode({**score, "sent": _now_us()}),
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        producer.poll(0)
    if producer.flush(60) or refused:
        sys.exit(f"Kafka did not take all scores: {refused[:1]}")


def _now_us() -> int:
    return time.time_ns() // 1000


if __name__ == "__main__":
    play(msgspec.json.decode(sys.argv[1], type=Play))
