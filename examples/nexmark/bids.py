"""Bids, as Nexmark has them: made up, the same for the same seed."""

from __future__ import annotations

import random

import msgspec

import millrace as mr

START_US = 1_795_219_200 * mr.SECOND  # 2026-11-21, midnight


class Bid(msgspec.Struct, frozen=True):
    """A bid of so many cents, by somebody, for something, made on some channel."""

    auction: int
    bidder: int
    price: int
    channel: str


def made_up(count: int, *, seed: int = 7, days: int = 2) -> list[tuple[Bid, int]]:
    """Return bids and their times, in order of time."""
    dice = random.Random(seed)
    times = sorted(START_US + dice.randrange(days * mr.DAY) for _ in range(count))
    return [(_bid(dice), at_us) for at_us in times]


def _bid(dice: random.Random) -> Bid:
    price = int(10 ** dice.uniform(2, 8))  # from a euro to a million
    channel = dice.choice(["Google", "Facebook", "Baidu", "Apple"])
    return Bid(dice.randrange(8), dice.randrange(30), price, channel)
