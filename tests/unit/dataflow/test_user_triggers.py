"""Triggers that users write: the short form, the full interface, composites."""

from typing import Any

import pytest

import millrace as mr


class OnRise(mr.Trigger):
    def should_emit(self, element: Any, state: Any) -> tuple[bool, Any]:
        return state is not None and element > state, element


def test_the_short_form_sees_elements_and_keeps_state(grouping: Any) -> None:
    g = grouping(trigger=OnRise(), mode=mr.DISCARDING)

    assert g.add((3, 1), (2, 2)) == []
    g.harness.crash()
    assert g.add((5, 3)) == ["[) 10 EARLY"]
    assert g.add((6, 4), (1, 5)) == ["[) 6 EARLY"]


def test_a_short_form_that_returns_no_pair_is_an_error(grouping: Any) -> None:
    class Wrong(mr.Trigger):
        def should_emit(self, element: Any, state: Any) -> bool:
            return True

    with pytest.raises(mr.MillraceError, match="whether to emit, and the new state"):
        grouping(trigger=Wrong()).add((1, 1))


def test_a_trigger_can_look_at_the_aggregate(grouping: Any) -> None:
    """The patent's ResultIsOdd."""

    class ResultIsOdd(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            if ctx.peek() % 2 == 1:
                ctx.trigger()

        def on_merge(self, ctx: Any) -> None:
            self.on_element(ctx)

    g = grouping(mr.Sessions(10), trigger=ResultIsOdd())
    assert g.add((2, 0), (1, 5), (1, 6)) == ["[0, 15) 3 EARLY"]


def test_should_fire_may_answer_instead_of_trigger(grouping: Any) -> None:
    class Full(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            pass

        def should_fire(self, ctx: Any) -> bool:
            return bool(ctx.peek() >= 10)

    g = grouping(mr.FixedWindows(10), trigger=Full(), mode=mr.DISCARDING)
    assert g.add((6, 0), (4, 1), (1, 2)) == ["[0, 10) 10 EARLY"]


class Deadlines(mr.Trigger):
    """Two timers on two clocks; the one that fires first deletes the other."""

    def on_element(self, ctx: Any) -> None:
        if ctx.get_timer("event") is None:
            ctx.set_timer("event", ctx.timestamp + 5)
            ctx.set_timer("wall", ctx.now(mr.WALL_TIME) + 100, mr.WALL_TIME)

    def on_timer(self, ctx: Any) -> None:
        ctx.delete_timer("wall" if ctx.tag == "event" else "event")
        ctx.set("fired", [*ctx.get("fired", []), ctx.tag])
        if len(ctx.get("fired")) < 3:
            ctx.trigger()


def test_a_trigger_has_timers_in_both_domains(grouping: Any) -> None:
    g = grouping(mr.FixedWindows(100), trigger=Deadlines(), mode=mr.DISCARDING)

    g.add((1, 0))
    assert g.watermark(5) == ["[0, 100) 1 EARLY"]
    assert g.clock(100) == []  # its timer was deleted
    g.add((2, 10))
    assert g.clock(199) == []
    assert g.clock(200) == ["[0, 100) 2 EARLY"]
    assert g.watermark(20) == []
    g.add((4, 50))
    assert g.watermark(60) == []  # the third is not emitted, but left to the end
    assert g.watermark(100) == ["[0, 100) 4 ON_TIME"]


@pytest.mark.parametrize(
    ("mode", "fire", "values"),
    [
        (mr.DISCARDING, mr.FireMode.ACCUMULATE, ["1", "3", "7"]),
        (mr.ACCUMULATING, mr.FireMode.CLEAR, ["1", "2", "4"]),
        (mr.ACCUMULATING_AND_RETRACTING, mr.FireMode.CLEAR, ["1", "2", "4"]),
        (mr.ACCUMULATING, mr.FireMode.DEFAULT, ["1", "3", "7"]),
    ],
)
def test_a_trigger_can_ask_to_accumulate_or_to_clear(
    grouping: Any, mode: Any, fire: Any, values: list[str]
) -> None:
    class Asks(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            ctx.trigger(fire)

    g = grouping(mr.FixedWindows(10), trigger=mr.Repeat(Asks()), mode=mode)
    assert [pane.split()[2] for pane in g.add((1, 1), (2, 2), (4, 3))] == values


class Alternate(mr.CompositeTrigger):
    """Fires as its children in turn, whenever the one whose turn it is does."""

    def on_element(self, ctx: Any) -> None:
        self._ask(ctx, ctx.get("turn", 0))

    def on_merge(self, ctx: Any) -> None:
        self._ask(ctx, min(source.get("turn", 0) for source in ctx.sources))

    def on_child_timer(self, ctx: Any) -> None:
        ctx.invoke_child(ctx.child)
        self._after(ctx, ctx.get("turn", 0))

    def _ask(self, ctx: Any, turn: int) -> None:
        ctx.invoke_child(turn)
        self._after(ctx, turn)

    def _after(self, ctx: Any, turn: int) -> None:
        (event,) = list(ctx.trigger_history) or [None]
        if event is not None:
            ctx.trigger(event.mode)
            ctx.reset_child(event.child)
            turn = (turn + 1) % len(self.children)
        ctx.set("turn", turn)


def test_a_composite_of_a_users_own(grouping: Any) -> None:
    trigger = Alternate(mr.AfterCount(2), mr.AfterDelay(50), mr.AfterCount(1))
    g = grouping(mr.FixedWindows(100), trigger=trigger, mode=mr.DISCARDING)

    assert repr(trigger) == "Alternate(AfterCount(2), AfterDelay(50), AfterCount(1))"
    assert g.add((1, 1), (2, 2), (4, 3)) == ["[0, 100) 3 EARLY"]
    assert g.clock(49) == []
    assert g.clock(50) == ["[0, 100) 4 EARLY"]
    assert g.add((8, 4)) == ["[0, 100) 8 EARLY"]
    g.harness.crash()
    assert g.add((16, 5), (32, 6)) == ["[0, 100) 48 EARLY"]
    assert g.outputs()[1].pane.trigger == "AfterDelay(50)"


def test_a_composite_works_inside_others_and_when_windows_merge(grouping: Any) -> None:
    trigger = mr.Repeat(mr.FirstOf(Alternate(mr.AfterCount(3), mr.AfterCount(1)), mr.AtWatermark()))
    g = grouping(mr.Sessions(10), trigger=trigger)

    assert g.add((1, 0), (2, 15)) == []
    assert g.add((4, 8)) == ["[0, 25) 7 EARLY"]
    assert g.watermark(25) == []


class Pairs(mr.Trigger):
    """Fires for every two elements, and says so where sessions bring two together, too."""

    def on_element(self, ctx: Any) -> None:
        self._met(ctx, ctx.get("n", 0) + 1)

    def on_merge(self, ctx: Any) -> None:
        self._met(ctx, sum(source.get("n", 0) for source in ctx.sources))

    def _met(self, ctx: Any, n: int) -> None:
        ctx.set("n", n % 2)
        if n >= 2:
            ctx.trigger(mr.FireMode.CLEAR)


class OverSix(mr.Trigger):
    """Asked by should_fire, which must see what a pane would have."""

    def on_element(self, ctx: Any) -> None:
        pass

    def on_merge(self, ctx: Any) -> None:
        pass

    def should_fire(self, ctx: Any) -> bool:
        return bool(ctx.peek() > 6)


class Either(mr.CompositeTrigger):
    """Fires whenever a child does, and looks at them in on_merge as in on_element."""

    def on_element(self, ctx: Any) -> None:
        for child in range(len(self.children)):
            ctx.invoke_child(child)
        for event in ctx.trigger_history:
            ctx.trigger(event.mode)
            ctx.reset_child(event.child)

    on_merge = on_element


@pytest.mark.parametrize(
    ("trigger", "panes"),
    [
        (Pairs(), ["[0, 25) 7 EARLY"]),
        (mr.Repeat(mr.FirstOf(Pairs(), mr.AtWatermark())), ["[0, 25) 7 EARLY"]),
        (OverSix(), ["[0, 25) 7 EARLY"]),
        (mr.AfterCount(4), []),
        (Either(mr.AfterCount(4), mr.AfterCount(2)), ["[0, 25) 7 EARLY"]),
        (Either(Pairs()), ["[0, 25) 7 EARLY"]),
    ],
    ids=repr,
)
def test_what_a_trigger_answers_to_a_merge_counts_with_the_element(
    grouping: Any, trigger: mr.Trigger, panes: list[str]
) -> None:
    g = grouping(mr.Sessions(10), trigger=trigger, mode=mr.DISCARDING, allow_data_loss=True)

    assert g.add((1, 0), (2, 15)) == []
    assert g.add((4, 8)) == panes


def test_sessions_that_are_done_merge_without_a_word(grouping: Any) -> None:
    g = grouping(mr.Sessions(10), trigger=mr.AfterCount(1), allow_data_loss=True)

    assert len(g.add((1, 0), (2, 15))) == 2
    assert g.add((4, 8)) == []
    assert g.counted() == {"dropped_after_finish": 1}
    assert g.watermark(24) == []
    assert g.add((8, 24)) == []  # still there, until the end of the merged window
    assert g.counted() == {"dropped_after_finish": 2}
    assert g.watermark(34) == []
    assert g.add((16, 24)) == []
    assert g.counted() == {"dropped_after_finish": 2, "dropped_late": 1}


@pytest.mark.parametrize("bridge", [[(4, 8)], [(4, 8), (8, 9)]], ids=["one by one", "lifted"])
def test_a_partial_that_merges_sessions_is_in_their_pane(bridge: list[tuple[int, int]]) -> None:
    p = mr.Pipeline("lifted")
    how = {"trigger": mr.Repeat(mr.AfterCount(2)), "mode": mr.DISCARDING, "lift": True}
    values = p.inject("elements", format=int).key_by(lambda value: value > 0)
    values.window(mr.Sessions(10), **how).sum().to("panes")
    with mr.testing.Harness(p, lift=True) as h:
        for element in [(1, 0), (2, 15)]:
            h.inject("elements", [element])
        h.inject("elements", bridge)

        (pane,) = h.outputs("panes")
        assert (pane.value, pane.pane.window) == (3 + sum(v for v, _ in bridge), mr.Window(0, 25))
        assert h.counters("panes").counted.get("lifted", 0) == (2 if len(bridge) == 2 else 0)


class Again(mr.Repeat):
    """The same trigger, and one that nothing else is known of."""

    def __repr__(self) -> str:
        return super().__repr__().replace("Again", "Repeat")


@pytest.mark.parametrize("mode", [mr.DISCARDING, mr.ACCUMULATING, mr.ACCUMULATING_AND_RETRACTING])
@pytest.mark.parametrize("windows", [mr.GlobalWindow(), mr.FixedWindows(10), mr.Sessions(10)])
def test_a_pane_with_each_is_that_of_the_callbacks(windows: Any, mode: Any) -> None:
    def panes(trigger: mr.Trigger) -> list[Any]:
        p = mr.Pipeline("each")
        values = p.inject("elements", format=int).key_by(lambda value: value % 2)
        how: Any = {"trigger": trigger, "mode": mode, "allowed_lateness": 20}
        values.window(windows, **how).sum().to("panes")
        with mr.testing.Harness(p) as h:
            for elements in ([(1, 0), (3, 15), (2, 3)], [(5, 8), (5, 9)], [(7, 24), (4, 1)]):
                h.inject("elements", elements)
                h.crash()
            h.advance_watermark("elements", 25)
            h.inject("elements", [(9, 7), (11, 40)])
            h.advance_watermark("elements", 90)
            return h.outputs("panes")

    found = panes(mr.Repeat(mr.AfterCount(1)))

    assert len(found) > 4
    assert found == panes(Again(mr.AfterCount(1)))


def test_children_of_equal_triggers_keep_their_own_state(grouping: Any) -> None:
    same = mr.AfterCount(2)
    g = grouping(mr.FixedWindows(10), trigger=mr.Repeat(mr.AllOf(same, same)), mode=mr.DISCARDING)

    assert g.add((1, 1), (2, 2), (4, 3), (8, 4)) == ["[0, 10) 3 EARLY", "[0, 10) 12 EARLY"]


def test_a_child_that_is_ambiguous_is_refused(grouping: Any) -> None:
    class Vague(mr.CompositeTrigger):
        def on_element(self, ctx: Any) -> None:
            ctx.invoke_child(self.children[0])

    same = mr.AfterCount(2)
    grouping(mr.FixedWindows(10), trigger=Vague(same)).add((1, 1))
    with pytest.raises(mr.MillraceError, match="has it twice"):
        grouping(mr.FixedWindows(10), trigger=Vague(same, same)).add((1, 1))


def test_done_must_be_declared(grouping: Any) -> None:
    class Once(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            ctx.trigger()
            ctx.done()

    class DeclaredOnce(Once):
        finishes = True

    with pytest.raises(mr.MillraceError, match="finishes = False"):
        grouping(mr.FixedWindows(10), trigger=Once()).add((1, 1))
    with pytest.raises(mr.MillraceError, match="would be lost"):
        grouping(mr.FixedWindows(10), trigger=DeclaredOnce())
    g = grouping(mr.FixedWindows(10), trigger=mr.Repeat(DeclaredOnce()), mode=mr.DISCARDING)
    assert g.add((1, 1), (2, 2)) == ["[0, 10) 1 EARLY", "[0, 10) 2 EARLY"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ctx: ctx.trigger(mr.DISCARDING), "expected mr.FireMode.ACCUMULATE, CLEAR or DEF"),
        (lambda ctx: ctx.trigger("clear"), "expected mr.FireMode.ACCUMULATE, CLEAR or DEFAULT"),
        (lambda ctx: ctx.set_timer("t", 5, "wall"), "expected mr.LOW_WATERMARK or mr.WALL_TIME"),
        (lambda ctx: ctx.now("wall"), "expected mr.LOW_WATERMARK or mr.WALL_TIME"),
        (lambda ctx: ctx.set_timer("t", 5, percentile=90), r"percentiles = frozenset\(\{90\}\)"),
    ],
)
def test_what_a_trigger_asks_for_must_be_there(grouping: Any, call: Any, message: str) -> None:
    class Wrong(mr.Trigger):
        def on_element(self, ctx: Any) -> None:
            call(ctx)

    with pytest.raises(mr.MillraceError, match=message):
        grouping(mr.FixedWindows(10), trigger=Wrong()).add((1, 1))


def test_windows_that_merge_need_a_trigger_that_can(grouping: Any) -> None:
    with pytest.raises(mr.MillraceError, match="when windows merge"):
        grouping(mr.Sessions(10), trigger=mr.Repeat(OnRise()))


def test_reset_is_told(grouping: Any) -> None:
    told = []

    class Told(mr.AfterCount):
        def reset(self, ctx: Any) -> None:
            told.append(ctx.window)

    grouping(mr.FixedWindows(10), trigger=mr.Repeat(Told(2))).add((1, 1), (1, 2), (1, 3))
    assert told == [mr.Window(0, 10)]


class Longest(mr.CombineFn):
    accumulator = str

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: str) -> str:
        return max(accumulator, value, key=len)

    def merge(self, accumulator: str, other: str) -> str:
        return self.add(accumulator, other)

    def extract(self, accumulator: str) -> str:
        return accumulator.upper()


def test_a_combine_fn_of_a_users_own(grouping: Any) -> None:
    g = grouping(mr.Sessions(10), lambda s: s.aggregate(Longest()))
    g.add(("mill", 0), ("race", 15))
    g.harness.crash()
    g.add(("millrace", 7))

    assert g.watermark(25) == ["[0, 25) MILLRACE ON_TIME"]


def test_an_accumulator_that_is_not_of_its_type_is_laid_to_the_grouping(grouping: Any) -> None:
    class Wrong(Longest):
        def add(self, accumulator: Any, value: Any) -> Any:
            return 7

    with pytest.raises(mr.MillraceError, match="accumulator"):
        grouping(mr.FixedWindows(10), lambda s: s.aggregate(Wrong())).add(("a", 1))


@pytest.mark.parametrize("given", [Longest, sum, None])
def test_what_is_no_combine_fn_is_refused(grouping: Any, given: Any) -> None:
    with pytest.raises(mr.MillraceError, match="aggregate"):
        grouping(mr.FixedWindows(10), lambda s: s.aggregate(given))
