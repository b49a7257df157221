"""The fraud scoring in the Harness: its model answers in place of the service."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import millrace as mr
from millrace_examples.scoring import model_server
from millrace_examples.scoring.pipeline import Score, Unavailable, build
from millrace_examples.scoring.traffic import Expected, payments, profiles

BEGIN = 1_800_000_000 * mr.SECOND


class Model:
    """Answers as the service does: after a while, and now and then only when asked again."""

    def __init__(self) -> None:
        self.asked = list[str]()

    async def post(self, path: str, json: Any, headers: dict[str, str]) -> httpx.Response:
        await asyncio.sleep(model_server.TAKES_S)
        key = headers["Idempotency-Key"]
        self.asked.append(key)
        if len(self.asked) % 7 == 0:
            return httpx.Response(503, text="busy")
        request = httpx.Request("POST", path)
        try:
            return httpx.Response(200, json={"score": model_server.score(json)}, request=request)
        except ValueError as error:
            return httpx.Response(422, json={"error": str(error)}, request=request)


def test_each_payment_has_the_score_of_the_model_or_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model()
    monkeypatch.setattr(Score, "setup", lambda _: model)
    known, paid = profiles(BEGIN, seed=1), payments(BEGIN, seconds=3, rate=100, seed=1)
    expected = Expected(known, paid)
    with mr.testing.Harness(build("http://model")) as h:
        h.advance_clock(BEGIN)
        h.inject("profiles", [(profile, profile.at) for profile in known])
        for first in range(0, len(paid), 50):
            h.inject("payments", [(each, each.at) for each in paid[first : first + 50]])
            if first == 100:
                h.crash_in_next_epoch(2)
            for stream in ("payments", "profiles"):
                h.advance_watermark(stream, paid[first + 49].at)
        for stream in ("payments", "profiles"):
            h.advance_watermark(stream, mr.MAX_TIMESTAMP)
        scores = {out.value.id: out.value.score for out in h.outputs("scored")}
        alerts = [(out.value.card, out.value.alerts) for out in h.outputs("alerts")]

        assert len(h.outputs("scored")) == len(scores)
        assert scores == expected.scores
        assert sorted(alerts) == sorted(
            (card, n) for card, count in expected.alerts.items() for n in range(1, count + 1)
        )
        assert h.dead_letters() == len(expected.refused) > 0
        reasons = {output.value.reason for output in h.outputs("rejects")}
        assert reasons == {"ValueError: an amount of -1.0"}
    assert len(set(model.asked)) == len(paid)
    assert len(model.asked) > len(paid)


def test_a_busy_service_is_asked_again_and_a_refusal_is_not() -> None:
    assert Score.calls.retries_after(Unavailable())
    assert Score.calls.retries_after(httpx.ConnectError("gone"))
    assert not Score.calls.retries_after(ValueError("an amount of -1.0"))
