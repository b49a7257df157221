"""Nexmark's events: people, auctions and bids, made up, the same for the same seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

import millrace as mr

MIDNIGHT_US = 1_795_219_200 * mr.SECOND  # 2026-11-21

_EVENTS = 50  # of which one is a person and three are auctions; the others are bids
_STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_LETTERS = "abcdefgh"


class Person(msgspec.Struct, frozen=True):
    """Somebody who sells and bids."""

    id: int
    name: str
    city: str
    state: str
    at: int


class Auction(msgspec.Struct, frozen=True):
    """Something that is for sale until it expires, the instant included."""

    id: int
    item: str
    reserve: int
    expires: int
    seller: int
    category: int
    at: int


class Bid(msgspec.Struct, frozen=True):
    """A bid of so many cents, by somebody, for an auction, made on some channel."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str
    at: int


Event = Person | Auction | Bid

#: The streams, and what is in each.
FORMATS = {"persons": Person, "auctions": Auction, "bids": Bid}


@dataclass(frozen=True)
class Generator:
    """Makes events up, in Nexmark's proportions: of 50, one person, three auctions, 46 bids.

    Attributes:
        seed: Draws all there is to draw.
        rate: Events a second of event time, evenly.
        skew: The share of bids, from 0 to 1, that go to the newest auction and come from the newest
            person; the others go to, and come from, one of the last ``active``.
        active: How many auctions, and people, bids are for and by.
        disorder: For how long at most, in microseconds, an event may be behind a newer one.
        start: The time of the first event, in microseconds.
        first: The number of the first person, and of the first auction.

    >>> made = list(Generator(rate=100).events(100))
    >>> [sum(stream == name for stream, _ in made) for name in FORMATS]
    [2, 6, 92]
    """

    seed: int = 7
    rate: int = 10_000
    skew: float = 0.5
    active: int = 100
    disorder: int = 0
    start: int = MIDNIGHT_US
    first: int = 1000

    def events(self, count: int) -> Iterator[tuple[str, Event]]:
        """Yield so many events, each with its stream, in the order in which they arrive."""
        if not self.disorder:
            yield from self._in_order(count)
            return
        dice = random.Random(f"{self.seed} disorder")
        waiting: list[tuple[int, int, tuple[str, Event]]] = []
        for n, made in enumerate(self._in_order(count)):
            at = made[1].at
            while waiting and waiting[0][0] <= at:  # nothing that is still to come is before it
                yield heapq.heappop(waiting)[2]
            heapq.heappush(waiting, (at + dice.randrange(self.disorder), n, made))
        while waiting:
            yield heapq.heappop(waiting)[2]

    def _in_order(self, count: int) -> Iterator[tuple[str, Event]]:
        dice = random.Random(self.seed)
        for n in range(count):
            at = self.start + n * mr.SECOND // self.rate
            place = n % _EVENTS
            people, auctions = n // _EVENTS + 1, n // _EVENTS * 3 + min(place, 3)
            if place == 0:
                yield "persons", _person(dice, self.first + people - 1, at)
            elif place <= 3:
                seller = self._one_of(dice, people)
                yield "auctions", self._auction(dice, self.first + auctions - 1, seller, at)
            else:
                yield (
                    "bids",
                    _bid(dice, self._one_of(dice, auctions), self._one_of(dice, people), at),
                )

    def _auction(self, dice: random.Random, id: int, seller: int, at: int) -> Auction:
        open_us = dice.randrange(1, 2 * self.active * _EVENTS // 3 + 2) * mr.SECOND // self.rate
        category = 10 + dice.randrange(5)
        return Auction(id, f"item {id}", _price(dice), at + open_us, seller, category, at)

    def _one_of(self, dice: random.Random, there_are: int) -> int:
        if dice.random() < self.skew:
            return self.first + there_are - 1
        return self.first + there_are - 1 - dice.randrange(min(there_are, self.active))


def _person(dice: random.Random, id: int, at: int) -> Person:
    return Person(id, f"person {id}", f"city {dice.randrange(10)}", dice.choice(_STATES), at)


def _bid(dice: random.Random, auction: int, bidder: int, at: int) -> Bid:
    number = dice.randrange(100)
    directories = "/".join(_word(dice) for _ in range(3))
    url = f"https://www.nexmark.com/{directories}/item.htm?query=1"
    channel = dice.choice(_CHANNELS)
    if number >= 50:
        channel = f"channel-{number}"
        url += f"&channel_id={number}" if number < 95 else ""
    return Bid(auction, bidder, _price(dice), channel, url, _word(dice), at)


def _price(dice: random.Random) -> int:
    return int(10 ** dice.uniform(2, 8))  # from a euro to a million


def _word(dice: random.Random) -> str:
    return "".join(dice.choices(_LETTERS, k=dice.randrange(2, 6)))
