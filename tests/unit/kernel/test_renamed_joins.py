"""A join that has another name now goes on with what it kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import CheckpointMismatch


def over_time(orders: Any, paid: Any, **named: Any) -> Any:
    return orders.join(paid, within=("0 s", "10 s"), **named)


def in_windows(orders: Any, paid: Any, **named: Any) -> Any:
    return orders.window(mr.FixedWindows("10 s")).join(paid, **named)


def enriched(orders: Any, paid: Any, **named: Any) -> Any:
    return orders.enrich(paid, **named)


def shop(how: Callable[..., Any], *, new: bool = False, **named: Any) -> mr.Pipeline:
    p = mr.Pipeline("shop")
    paid = p.inject("paid", format=dict)
    if new:
        orders = p.inject("sales", format=dict, was="orders").filter(bool)
        paid = paid.filter(bool).filter(bool)
    else:
        orders = p.inject("orders", format=dict)
    how(orders.key_by("id"), paid.key_by("id"), **named).to("out")
    return p


@pytest.mark.parametrize("how", [over_time, in_windows, enriched])
def test_what_waits_for_a_partner_meets_it_under_another_name(how: Callable[..., Any]) -> None:
    with mr.testing.Harness(shop(how, name="pairs")) as h:
        h.inject("orders", [({"id": 1}, 2 * mr.SECOND)])
        with pytest.raises(CheckpointMismatch, match="'pairs': in the checkpoint, gone"):
            h.update(shop(how, name="meetings"))
        h.update(shop(how, name="meetings", was="pairs"))
        h.inject("paid", [({"id": 1, "by": "card"}, 2 * mr.SECOND)])
        for stream in ("orders", "paid"):
            h.advance_watermark(stream, mr.MINUTE)
        assert [o.value for o in h.outputs("out")] == [({"id": 1}, {"id": 1, "by": "card"})]
        assert h.checkpoint().computations == ["meetings"]


@pytest.mark.parametrize("how", [over_time, in_windows, enriched])
def test_sides_that_pass_other_steps_and_have_other_names_are_the_sides(
    how: Callable[..., Any],
) -> None:
    with mr.testing.Harness(shop(how, name="pairs")) as h:
        h.inject("orders", [({"id": 1}, 2 * mr.SECOND)])
        h.update(shop(how, new=True, name="pairs"))
        h.inject("paid", [({"id": 1, "by": "card"}, 2 * mr.SECOND)])
        for stream in ("sales", "paid"):
            h.advance_watermark(stream, mr.MINUTE)
        assert [o.value for o in h.outputs("out")] == [({"id": 1}, {"id": 1, "by": "card"})]
