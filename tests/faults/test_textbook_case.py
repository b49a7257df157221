"""The textbook case of a streaming system's fault tolerance, number by number.

Source, enrichment, aggregation, alerting; a batch of 100 transactions. The aggregation dies before
or after it has checkpointed them, none of which was acknowledged to the enrichment; or 50 of them
were, in an epoch of their own. After recovery each transaction is counted once. Here one task
commits them all; with several, of which one has checkpointed 60 of them, it is
``tests/spark/test_textbook_case.py``.
"""

import random

import msgspec
import pytest

import millrace as mr
from millrace.model.keys import encode_key, hash_key

#: Key intervals of a computation, of which the transactions are in ten, ten in each.
INTERVALS = 16
ALERT_AT = 300


class Transaction(msgspec.Struct):
    id: int
    account: int
    amount: int


class Enriched(msgspec.Struct):
    transaction: int
    account: int
    amount: int
    risk: float


class Balance(msgspec.Struct):
    account: int
    count: int
    total: int


class Enrichment(mr.Computation):
    """Its productions cannot be made again: the risk is drawn, as if asked of another service."""

    inputs = {"transactions": mr.by("id")}
    outputs = {"enriched": Enriched}
    calls: list[int] = []

    def process_record(self, record):
        self.calls.append(record.value.id)
        t = record.value
        self.produce("enriched", Enriched(t.id, t.account, t.amount, random.random()))


class Aggregation(mr.Computation):
    inputs = {"enriched": mr.by("account")}
    outputs = {"balances": Balance}
    count = mr.CombiningState(int)
    total = mr.CombiningState(int)
    calls: list[int] = []

    def process_record(self, record):
        self.calls.append(record.value.transaction)
        self.count.add(1)
        self.total.add(record.value.amount)
        self.produce("balances", Balance(self.key, self.count.get(), self.total.get()))


class Alerting(mr.Computation):
    inputs = {"balances": mr.by("account")}
    outputs = {"alerts": Balance}
    alerted = mr.ValueState(bool)

    def process_record(self, record):
        if record.value.total >= ALERT_AT and not self.alerted.get(False):
            self.alerted.set(True)
            self.produce("alerts", record.value)


def accounts():
    """Return ten accounts in ten key intervals, in order of the intervals."""
    found = {}
    for account in range(10_000):
        found.setdefault(hash_key(encode_key(account)) * INTERVALS >> 64, account)
    return [found[interval] for interval in sorted(found)][:10]


ACCOUNTS = accounts()
#: Transaction n is of account n // 10: in the order in which the aggregation gets to them.
TRANSACTIONS = [Transaction(n, ACCOUNTS[n // 10], 7 * n % 60 + 1) for n in range(100)]
TOTALS = {
    account: sum(t.amount for t in TRANSACTIONS if t.account == account) for account in ACCOUNTS
}


@pytest.fixture(autouse=True)
def calls():
    Enrichment.calls.clear()
    Aggregation.calls.clear()


def harness():
    p = mr.Pipeline("bank")
    p.inject("transactions", format=Transaction)
    for computation in (Enrichment, Aggregation, Alerting):
        p.add(computation)
    return mr.testing.Harness(p, intervals=INTERVALS)


def check(h):
    """Each transaction was enriched, counted and weighed once."""
    enriched = [output.value for output in h.outputs("enriched")]
    assert sorted(e.transaction for e in enriched) == list(range(100))
    balances = [output.value for output in h.outputs("balances")]
    assert len(balances) == 100
    for account in ACCOUNTS:
        own = [b for b in balances if b.account == account]
        assert [b.count for b in own] == list(range(1, 11))
        assert own[-1].total == TOTALS[account]
    alerts = [output.value for output in h.outputs("alerts")]
    assert sorted(a.account for a in alerts) == sorted(a for a in ACCOUNTS if TOTALS[a] >= ALERT_AT)
    assert h.counters("Aggregation").records == 100


#: Writes of an epoch before the aggregation's: the manifest, and what the enrichment commits.
BEFORE = 2


def test_the_aggregation_dies_before_its_checkpoint():
    with harness() as h:
        h.crash_in_next_epoch(BEFORE)
        h.inject("transactions", [(t, t.id) for t in TRANSACTIONS])
        check(h)
    # What the enrichment sent is sent on from the checkpoint: no user code of it saw it again.
    assert sorted(Enrichment.calls) == list(range(100))
    assert sorted(Aggregation.calls[:100]) == list(range(100))
    assert sorted(Aggregation.calls[100:]) == list(range(100))


def test_the_aggregation_dies_with_100_checkpointed_and_none_acknowledged():
    with harness() as h:
        h.crash_in_next_epoch(BEFORE + 1)
        h.inject("transactions", [(t, t.id) for t in TRANSACTIONS])
        check(h)
    assert sorted(Enrichment.calls) == list(range(100))
    assert sorted(Aggregation.calls) == list(range(100))


@pytest.mark.parametrize("checkpointed", [False, True])
def test_50_acknowledged_and_50_on_their_way(checkpointed):
    """The same with 50 acknowledged in an epoch of their own: they are not even looked at again."""
    first, second = TRANSACTIONS[:50], TRANSACTIONS[50:]
    with harness() as h:
        h.inject("transactions", [(t, t.id) for t in first])
        acknowledged = h.outputs("balances")
        h.crash_in_next_epoch(BEFORE + checkpointed)
        h.inject("transactions", [(t, t.id) for t in second])
        assert h.outputs("balances")[:50] == acknowledged
        check(h)
    assert sorted(Aggregation.calls[:100]) == list(range(100))
    assert sorted(Aggregation.calls[100:]) == ([] if checkpointed else list(range(50, 100)))


def test_it_dies_again_and_again_while_it_recovers():
    writes = BEFORE + 3  # the other two, and the completion
    for crash in range(writes + 8):
        with harness() as h:
            h.crash_in_next_epoch(crash)
            h.inject("transactions", [(t, t.id) for t in TRANSACTIONS])
            h.crash()
            check(h)
