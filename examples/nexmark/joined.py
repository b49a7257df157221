"""Nexmark's queries of several streams: joins, a table beside, and auctions with their winners."""

from __future__ import annotations

from typing import Any

import msgspec

import millrace as mr
from millrace_examples.nexmark.events import Auction, Bid

_EVERY = mr.Repeat(mr.AfterCount(1))

#: Q13's table: for the rest of an auction's number by 10,000.
SIDE = {n: f"value {n}" for n in range(10_000) if n % 3}


class Won(msgspec.Struct, frozen=True):
    """An auction that is over, and the bid that won it."""

    auction: int
    seller: int
    category: int
    bidder: int
    price: int
    at: int


class WinningBids(mr.Computation):
    """Finds the highest bid of each auction while it was open, the first of those that are equal.

    A computation, as no join has a bound that stands in the row. Bids wait for their auction only
    until the low watermark has passed them: an auction that has not come by then began later.
    """

    inputs = {"auctions": mr.by("id"), "bids": mr.by("auction")}
    outputs = {"won": Won}
    auction = mr.ValueState(Auction)
    bids = mr.BagState(Bid)
    best = mr.ValueState(Bid)

    def process_record(self, record: Any) -> None:
        """Keep the auction until it is over, or the bid if it may win."""
        if record.stream == "auctions":
            self.auction.set(record.value)
            self.set_timer("over", at=record.value.expires + 1, hold=record.value.expires)
            for bid in self.bids:
                self._compare(record.value, bid)
            self.bids.clear()
            self.delete_timer("no auction")
        elif (auction := self.auction.get()) is not None:
            self._compare(auction, record.value)
        else:
            self.bids.add(record.value)
            last = max(bid.at for bid in self.bids)
            self.set_timer("no auction", at=last + 1)

    def process_timer(self, timer: Any) -> None:
        """Tell who won, or forget bids for what is no auction any more."""
        if timer.tag == "no auction":
            self.bids.clear()
            return
        auction, best = self.auction.get(), self.best.get()
        if best is not None:
            won = Won(
                auction.id, auction.seller, auction.category, best.bidder, best.price, best.at
            )
            self.produce("won", won)
        self.auction.clear()
        self.best.clear()

    def _compare(self, auction: Auction, bid: Bid) -> None:
        best = self.best.get()
        open_then = auction.at <= bid.at <= auction.expires
        if open_then and (best is None or (-bid.price, bid.at) < (-best.price, best.at)):
            self.best.set(bid)


class LastSales(mr.Computation):
    """Tells the mean price of the last ten things that somebody sold, with each.

    The order is that in which auctions are over, whatever the order in which they arrive: so each
    waits for the low watermark, and timers come in order.
    """

    inputs = {"won": mr.by("seller")}
    outputs = {"q6": dict[str, Any]}
    waiting = mr.MapState(int)
    last = mr.ValueState(list[int])

    def process_record(self, record: Any) -> None:
        """Wait until nothing can come before it."""
        self.waiting[record.timestamp, record.value.auction] = record.value.price
        self.set_timer(record.timestamp, at=record.timestamp + 1, hold=record.timestamp)

    def process_timer(self, timer: Any) -> None:
        """Take those that were over at this time, in order of their numbers."""
        for at, auction in list(self.waiting.between((timer.tag, 0), (timer.tag + 1, 0))):
            last = [*(self.last.get() or []), self.waiting.pop((at, auction))][-10:]
            self.last.set(last)
            self.produce("q6", {"auction": auction, "mean": sum(last) / len(last)})


def q3(persons: Any, auctions: Any) -> Any:
    """Who sells in category 10, and lives in Oregon, Idaho or California: a join for ever."""
    west = persons.filter(lambda p: p.state in ("OR", "ID", "CA"))
    ten = auctions.filter(lambda a: a.category == 10)
    return ten.key_by("seller").join(west.key_by("id")).map(_local_item)


def q4(won: Any) -> Any:
    """The mean of the winning bids of each category.

    What is asked has no window and no end: a global window that tells its result with every bid,
    each in place of the one before.
    """
    category = won.key_by("category").window(mr.GlobalWindow(), trigger=_EVERY)
    return category.mean("price")


def q13(bids: Any) -> Any:
    """Bids with a row of a table that does not change: a lookup, which is a step without state."""
    found = bids.key_by(lambda b: b.auction % 10_000).lookup(SIDE, "inner")
    return found.map(_with_row)


def q18(bids: Any) -> Any:
    """The last bid of each bidder for each auction: the top one by time, told as it changes."""
    each = bids.key_by("bidder", "auction").window(mr.GlobalWindow(), trigger=_EVERY)
    return each.top(1, key="at").map(lambda top: {"price": top[0].price, "at": top[0].at})


def q19(bids: Any) -> Any:
    """The ten dearest bids for each auction, told as they change; of equal ones the first."""
    each = bids.key_by("auction").window(mr.GlobalWindow(), trigger=_EVERY)
    dearest = each.top(10, key=lambda b: (b.price, -b.at))
    return dearest.map(lambda top: [[b.bidder, b.price] for b in top])


def q20(bids: Any, auctions: Any) -> Any:
    """Bids with their auctions, of category 10: a join for ever, of what is left by a filter."""
    ten = auctions.filter(lambda a: a.category == 10)
    return bids.key_by("auction").join(ten.key_by("id")).map(_with_auction)


def _local_item(pair: Any) -> dict[str, Any]:
    auction, person = pair
    return {"name": person.name, "city": person.city, "state": person.state, "auction": auction.id}


def _with_row(pair: Any) -> dict[str, Any]:
    bid, row = pair
    return {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price, "value": row}


def _with_auction(pair: Any) -> dict[str, Any]:
    bid, auction = pair
    made = {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price}
    return {**made, "item": auction.item, "seller": auction.seller}
