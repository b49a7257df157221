"""Calls in the Harness: order, other keys, late records, retractions, errors, state, crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.kernel.calls import CallHooks
from millrace.model.calls import CallAttempt
from millrace.model.coder import coder_for
from millrace.model.errors import DamagedCache, InvariantViolation, PipelineError, UserCodeError


def payments(step: Callable[[Any], Any], *, letters: bool = False) -> mr.Pipeline:
    """Return a pipeline of records (key, what a service makes of it), and the step on them."""
    p = mr.Pipeline("payments")
    keyed = p.inject("asked", format=tuple).key_by(lambda value: value[0])
    step(keyed).to("told")
    if letters:
        p.dead_letter("letters")
    return p


async def service(value: Any) -> Any:
    """Answer after as many milliseconds as the value says."""
    await asyncio.sleep(value[1] / 1000)
    return value[1]


def told(h: mr.testing.Harness, stream: str = "told") -> list[tuple[Any, Any]]:
    return [(output.key, output.value) for output in h.outputs(stream)]


def test_results_of_a_key_keep_the_order_of_its_records() -> None:
    with mr.testing.Harness(payments(lambda s: s.map_async(service))) as h:
        h.inject("asked", [(("a", ms), n) for n, ms in enumerate((50, 10, 30, 10))])
        assert told(h) == [("a", 50), ("a", 10), ("a", 30), ("a", 10)]


def test_without_order_results_leave_as_calls_return() -> None:
    with mr.testing.Harness(payments(lambda s: s.map_async(service, order="none"))) as h:
        h.inject("asked", [(("a", ms), n) for n, ms in enumerate((50, 10, 30, 20))])
        assert told(h) == [("a", 10), ("a", 20), ("a", 30), ("a", 50)]


def test_other_keys_go_on_while_a_call_waits() -> None:
    ended: list[int] = []

    async def noting(value: Any) -> None:
        await asyncio.sleep(value[1] / 1000)
        ended.append(value[1])

    with mr.testing.Harness(payments(lambda s: s.map_async(noting))) as h:
        h.inject("asked", [(("a", 500), 0), (("b", 1), 1), (("c", 2), 2)])
        assert ended == [1, 2, 500]


def test_no_more_calls_are_in_flight_than_the_policy_allows() -> None:
    in_flight, most = 0, 0

    async def counting(value: Any) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1

    with mr.testing.Harness(payments(lambda s: s.map_async(counting, concurrency=3))) as h:
        h.inject("asked", [((str(n), n), n) for n in range(20)])
        assert len(told(h)) == 20
    assert most == 3


def test_key_time_and_id_are_those_of_the_record() -> None:
    seen: list[CallAttempt] = []

    async def asking(value: Any, call: CallAttempt) -> int:
        seen.append(call)
        return 7

    with mr.testing.Harness(payments(lambda s: s.map_async(asking))) as h:
        h.inject("asked", [(("a", 1), 100), (("b", 1), 200)])
        assert sorted((o.key, o.value, o.timestamp) for o in h.outputs("told")) == [
            ("a", 7, 100),
            ("b", 7, 200),
        ]
    assert sorted(call.key for call in seen) == ["a", "b"]
    assert len({call.id for call in seen}) == 2


def test_an_id_is_the_same_when_the_epoch_runs_again() -> None:
    seen: list[str] = []

    async def asking(value: Any, call: CallAttempt) -> int:
        seen.append(call.id)
        return 7

    with mr.testing.Harness(payments(lambda s: s.map_async(asking))) as h:
        h.crash_in_next_epoch(after_writes=1)  # the manifest; its calls are lost
        h.inject("asked", [(("a", 1), 100)])
        assert told(h) == [("a", 7)]
    assert len(set(seen)) == 1


def test_a_replay_of_what_was_committed_makes_no_call() -> None:
    calls = 0

    async def asking(value: Any) -> int:
        nonlocal calls
        calls += 1
        return calls

    with mr.testing.Harness(payments(lambda s: s.map_async(asking))) as h:
        h.crash_in_next_epoch(after_writes=2)  # the manifest, and the commit
        h.inject("asked", [(("a", 1), 100)])
        assert told(h) == [("a", 1)]
    assert calls == 1


def test_a_late_record_is_counted_once_and_stays_late() -> None:
    class Late(mr.AsyncComputation):
        inputs = {"asked": mr.by(lambda value: value)}
        outputs = {"told": bool}

        async def call(self, request: Any) -> None: ...

        def process_response(self, record: mr.Record, response: Any) -> None:
            self.produce("told", record.late)

    p = mr.Pipeline("late")
    p.inject("asked", format=str)
    p.add(Late)
    with mr.testing.Harness(p) as h:
        h.advance_watermark("asked", 100)
        h.inject("asked", [("a", 50), ("a", 150)])
        assert told(h) == [("a", True), ("a", False)]
        assert h.counters("Late").late == 1
        assert h.counters("Late").records == 2


def test_windows_behind_calls_wait_for_them() -> None:
    p = mr.Pipeline("windows")
    asked = p.inject("asked", format=tuple).key_by(lambda value: value[0])
    asked.map_async(service, order="none").window(mr.FixedWindows(100)).sum().to("sums")
    with mr.testing.Harness(p) as h:
        h.inject("asked", [(("a", ms), n) for n, ms in enumerate((900, 10, 30))])
        h.advance_watermark("asked", 100)
        assert told(h, "sums") == [("a", 940)]
        assert h.counters("sums").late == 0


def test_a_retraction_stays_one() -> None:
    p = mr.Pipeline("sums")
    asked = p.inject("asked", format=tuple).key_by(lambda value: value[0])
    sums = asked.window(
        mr.GlobalWindow(), mr.Repeat(mr.AfterCount(1)), mode=mr.ACCUMULATING_AND_RETRACTING
    ).sum(lambda value: value[1])

    async def double(value: int) -> int:
        await asyncio.sleep(0.001 * (value % 3))
        return 2 * value

    sums.map_async(double).to("doubled", int)
    with mr.testing.Harness(p) as h:
        for value in (1, 4):
            h.inject("asked", [(("a", value), 0)])
        assert [(o.value, o.pane.retraction) for o in h.outputs("doubled")] == [
            (2, False),
            (2, True),
            (10, False),
        ]


class Remembering(mr.AsyncComputation):
    """Takes back what it produced, without asking again a service that answers otherwise."""

    inputs = {"sums": mr.by_key()}
    outputs = {"scored": float}
    asked = 0
    scores = mr.MapState(float)

    def request(self, record: mr.Record) -> Any:
        return None if record.pane.retraction else record.value

    async def call(self, request: int) -> float:
        Remembering.asked += 1
        return request + Remembering.asked / 10

    def process_response(self, record: mr.Record, response: Any) -> None:
        window = record.pane.window.start
        if record.pane.retraction:
            response = self.scores.pop(window)
        else:
            self.scores[window] = response
        self.produce("scored", response)


def test_a_computation_that_keeps_responses_calls_for_no_retraction() -> None:
    p = mr.Pipeline("sums")
    asked = p.inject("asked", format=tuple).key_by(lambda value: value[0])
    sums = asked.window(
        mr.FixedWindows(100), mr.Repeat(mr.AfterCount(1)), mode=mr.ACCUMULATING_AND_RETRACTING
    ).sum(lambda value: value[1])
    sums.to("sums")
    p.add(Remembering)
    with mr.testing.Harness(p) as h:
        for value in (1, 4, 2):
            h.inject("asked", [(("a", value), 0)])
        assert [(o.value, o.pane.retraction) for o in h.outputs("scored")] == [
            (1.1, False),
            (1.1, True),
            (5.2, False),
            (5.2, True),
            (7.3, False),
        ]
    assert Remembering.asked == 3


class Spending(mr.AsyncComputation):
    """Asks with the total so far, and adds what the service says."""

    inputs = {"asked": mr.by(lambda value: value[0])}
    outputs = {"told": tuple}
    total = mr.CombiningState(int, sum)
    parts = mr.BagState(int)
    by_value = mr.MapState(int)

    def request(self, record: mr.Record) -> Any:
        return None if record.value[1] < 0 else (record.value[1], self.total.get(0))

    async def call(self, request: Any) -> Any:
        await asyncio.sleep(0.1 / (1 + request[0]))
        if request[0] == 13:
            raise ValueError("13 is refused")
        return request[1]

    def process_response(self, record: mr.Record, response: Any) -> None:
        value = record.value[1]
        if value == 17:
            raise KeyError("17 breaks the response")
        self.total.add(value)
        self.parts.add(value)
        self.by_value[str(value)] = self.by_value.get(str(value), 0) + 1
        self.produce("told", (value, response, self.total.get(0), [*self.parts]))


def spending(*, letters: bool = False) -> mr.Pipeline:
    p = mr.Pipeline("spending")
    p.inject("asked", format=tuple)
    p.add(Spending)
    if letters:
        p.dead_letter("letters")
    return p


def test_a_request_reads_what_the_responses_before_it_wrote() -> None:
    with mr.testing.Harness(spending()) as h:
        h.inject("asked", [(("a", n), n) for n in (1, 2, 3)])
        h.inject("asked", [(("a", n), n) for n in (4, 5)])
        assert told(h) == [
            ("a", (1, 0, 1, [1])),
            ("a", (2, 1, 3, [1, 2])),
            ("a", (3, 3, 6, [1, 2, 3])),
            ("a", (4, 6, 10, [1, 2, 3, 4])),
            ("a", (5, 10, 15, [1, 2, 3, 4, 5])),
        ]


def test_a_record_without_a_request_is_answered_in_its_place() -> None:
    with mr.testing.Harness(spending()) as h:
        h.inject("asked", [(("a", n), abs(n)) for n in (-1, 2, -3, 4)])
        assert [value[:2] for _, value in told(h)] == [(-1, None), (2, -1), (-3, None), (4, -2)]


@pytest.mark.parametrize("bad", [13, 17], ids=["the call", "the response"])
def test_a_failure_is_a_dead_letter_and_the_key_goes_on(bad: int) -> None:
    with mr.testing.Harness(spending(letters=True)) as h:
        h.inject("asked", [(("a", n), n) for n in (1, bad, 3)])
        assert [value[0] for _, value in told(h)] == [1, 3]
        [letter] = [output.value for output in h.outputs("letters")]
        assert (letter.stream, letter.timestamp) == ("asked", bad)
        assert str(bad) in letter.reason
        assert h.dead_letters("Spending") == 1


def test_an_error_of_the_store_as_an_outcome_is_taken_is_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pop(_: CallHooks, _name: Any) -> Any:
        raise DamagedCache("another attempt uses it")

    monkeypatch.setattr(CallHooks, "_pop", pop)
    with mr.testing.Harness(payments(lambda s: s.map_async(service), letters=True)) as h:
        with pytest.raises(DamagedCache):
            h.inject("asked", [(("a", 5), 0)])
        assert h.outputs("letters") == []


def test_without_dead_letters_a_failure_ends_the_epoch_and_nothing_is_applied() -> None:
    with mr.testing.Harness(spending()) as h:
        with pytest.raises(UserCodeError, match=r"Spending raised ValueError: 13 is refused"):
            h.inject("asked", [(("a", n), n) for n in (1, 13, 3)])
        h.inject("asked", [(("a", 5), 5)])
        assert told(h) == [("a", (5, 0, 5, [5]))]


async def _hanging(_: Any) -> None:
    await asyncio.sleep(60)


async def _text(_: Any) -> str:
    return "5"


@pytest.mark.parametrize("call", [_hanging, _text])
def test_a_failure_outside_of_the_users_code_is_ascribed_to_nothing_else(call: Any) -> None:
    step = lambda s: s.map_async(call, timeout="1 s", retries=0, format=int)  # noqa: E731
    with mr.testing.Harness(payments(step)) as h:
        with pytest.raises(UserCodeError, match="the call, or process_response") as refused:
            h.inject("asked", [(("a", 1), 0)])
        assert "Millrace's own" not in str(refused.value)
        assert "changed in place" not in str(refused.value)


def test_a_timeout_is_retried_and_then_a_dead_letter() -> None:
    attempts: list[int] = []

    async def hanging(value: Any, call: CallAttempt) -> None:
        attempts.append(call.attempt)
        await asyncio.sleep(60)

    step = lambda s: s.map_async(hanging, timeout="1 s", retries=2)  # noqa: E731
    with mr.testing.Harness(payments(step, letters=True)) as h:
        h.inject("asked", [(("a", 1), 0)])
        assert told(h) == []
        [letter] = [output.value for output in h.outputs("letters")]
        assert "no response within 1 s" in letter.reason
    assert attempts == [1, 2, 3]


def test_batches_are_gathered_across_keys_and_a_bad_value_is_found() -> None:
    sizes: list[int] = []

    def model(values: list[Any]) -> list[int]:
        sizes.append(len(values))
        return [10 // value[1] for value in values]

    step = lambda s: s.map_batches(model, max_size=4)  # noqa: E731
    with mr.testing.Harness(payments(step, letters=True)) as h:
        h.inject("asked", [((str(n), n), n) for n in range(6)])
        assert sorted(told(h)) == [("1", 10), ("2", 5), ("3", 3), ("4", 2), ("5", 2)]
        assert h.dead_letters() == 1
    assert sizes[0] == 4


def test_a_stream_without_keys_is_spread() -> None:
    p = mr.Pipeline("images")
    p.inject("images", format=int).map_batches(lambda values: [-v for v in values]).to("labels")
    with mr.testing.Harness(p) as h:
        h.inject("images", [(n, n) for n in range(5)])
        assert sorted(output.value for output in h.outputs("labels")) == [-4, -3, -2, -1, 0]


def test_expiring_state_outlives_its_call() -> None:
    class Seen(mr.AsyncComputation):
        inputs = {"asked": mr.by(lambda value: value)}
        outputs = {"told": int}
        seen = mr.ValueState(int, expires="10 s")

        async def call(self, request: Any) -> None:
            await asyncio.sleep(1)

        def process_response(self, record: mr.Record, response: Any) -> None:
            self.seen.set(self.seen.get(0) + 1)
            self.produce("told", self.seen.get())

    p = mr.Pipeline("seen")
    p.inject("asked", format=str)
    p.add(Seen)
    with mr.testing.Harness(p) as h:
        h.inject("asked", [("a", 0), ("a", mr.SECOND)])
        h.advance_watermark("asked", 20 * mr.SECOND)
        h.inject("asked", [("a", 20 * mr.SECOND)])
        assert [value for _, value in told(h)] == [1, 2, 1]


def test_a_request_must_not_produce() -> None:
    class Eager(mr.AsyncComputation):
        inputs = {"asked": mr.by(lambda value: value)}
        outputs = {"told": str}

        def request(self, record: mr.Record) -> Any:
            self.produce("told", "too early")

        async def call(self, request: Any) -> None: ...

        def process_response(self, record: mr.Record, response: Any) -> None: ...

    p = mr.Pipeline("eager")
    p.inject("asked", format=str)
    p.add(Eager)
    with mr.testing.Harness(p) as h, pytest.raises(UserCodeError, match="request produced a value"):
        h.inject("asked", [("a", 0)])


@pytest.mark.parametrize(
    "change",
    [
        lambda self: self.value.set(7),
        lambda self: self.value.clear(),
        lambda self: self.sum.add(7),
        lambda self: self.map.update(b=7),
        lambda self: self.map.pop("a"),
        lambda self: self.map.clear(),
        lambda self: self.bag.add(7),
        lambda self: self.expiring.set(7),
        lambda self: self.increment("asked"),
        lambda self: self.hold(0),
    ],
)
def test_a_request_must_not_change_anything(change: Any) -> None:
    class Eager(mr.AsyncComputation):
        inputs = {"asked": mr.by(lambda value: value[0])}
        outputs = {"told": list}
        value, sum, map = mr.ValueState(int), mr.CombiningState(int), mr.MapState(int)
        bag, expiring = mr.BagState(int), mr.ValueState(int, expires="1 h")

        def state(self) -> list[Any]:
            single = [self.value.get(), self.sum.get(), self.expiring.get()]
            return [*single, list(self.map.items()), list(self.bag)]

        def request(self, record: mr.Record) -> Any:
            if record.value[1]:
                change(self)
            return self.state()

        async def call(self, request: Any) -> Any:
            return request

        def process_response(self, record: mr.Record, response: Any) -> None:
            self.produce("told", [response, self.state()])
            self.value.set(1)
            self.expiring.set(1)
            self.sum.add(1)
            self.map["a"] = 1
            self.bag.add(1)

    p = mr.Pipeline("eager")
    p.inject("asked", format=tuple)
    p.add(Eager)
    p.dead_letter("letters")
    with mr.testing.Harness(p) as h:
        h.inject("asked", [(("k", n == 1), n) for n in range(3)])
        before, after = [None, None, None, [], []], [1, 1, 1, [["a", 1]], [1]]
        assert [output.value for output in h.outputs("told")] == [[before] * 2, [after] * 2]
        [letter] = h.outputs("letters")
        assert "must change nothing" in letter.value.reason
        assert h.counters("Eager").counted == {}


def test_what_could_never_run_is_refused() -> None:
    class Timed(mr.AsyncComputation):
        inputs = {"asked": mr.by(lambda value: value)}
        productions = mr.WEAK

        def process_timer(self, timer: mr.Timer) -> None: ...

    p = mr.Pipeline("timed")
    p.inject("asked", format=str)
    p.add(Timed)
    with pytest.raises(PipelineError) as refused:
        p.explain()
    for part in ("has no call", "has no process_response", "has process_timer", "mr.STRONG"):
        assert part in str(refused.value)


def test_an_epoch_that_waits_says_for_which_call() -> None:
    seen: list[str] = []

    async def asking(value: Any) -> int:
        await asyncio.sleep(1)
        seen.append(h._process._runtime.execution.at_hand())
        return 7

    with mr.testing.Harness(payments(lambda s: s.map_async(asking, name="asked for"))) as h:
        h.inject("asked", [(("a", 1), 100)])
        assert h._process._runtime.execution.at_hand() == ""
    assert seen == ["a call of computation 'asked for', key 'a' (attempt 1)"]


@pytest.mark.parametrize("routes", [{"a": "left"}, {"a": "left", "b": "right"}])
def test_a_pending_record_of_an_input_that_is_gone_is_the_only_inputs_or_nobodys(
    routes: dict[str, str],
) -> None:
    coder = coder_for(int)
    hooks: Any = SimpleNamespace(
        _cell={b"name": ("c", coder.encode(7), 5, False, 1, 2)},
        _by_route=routes,
        _routes={stream: route for route, stream in routes.items()},
        _streams={stream: SimpleNamespace(coder=coder) for stream in routes.values()},
        _spec=SimpleNamespace(title="Asks"),
    )
    if len(routes) == 1:
        pending = CallHooks._stored(hooks, b"name")
        assert (pending.stream, pending.value) == ("left", 7)
    else:
        with pytest.raises(InvariantViolation, match=r"'Asks' .* input 'c', .*\['a', 'b'\]"):
            CallHooks._stored(hooks, b"name")
