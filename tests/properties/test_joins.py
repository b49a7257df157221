"""Joins without windows against plain Python: bundles, late values, retractions, crashes."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

import millrace as mr

KEYS, TIMES = "ab", st.integers(0, 30)

#: What a join may say of times, and from when to when that is, lateness, and whether at once.
NEAR = [
    ({"within": (-5, 10)}, (-5, 10, 0, False)),
    ({"within": (-5, 10), "allowed_lateness": 7}, (-5, 10, 7, False)),
    ({"within": (-9, -3), "allowed_lateness": 2}, (-9, -3, 2, False)),
    ({"within": (4, 8)}, (4, 8, 0, False)),
    ({"within": (None, 3)}, (None, 3, 0, False)),
    ({"within": (0, None)}, (0, None, 0, False)),
    ({"expires": 6}, (-5, 6, 0, True)),
    ({"expires": 6, "allowed_lateness": 3}, (-5, 6, 3, True)),
    ({}, (None, None, 0, True)),
]

#: A step: values that come together, (side, key, value, time), or the number of one that is taken
#: back; then how far the low watermark goes on.
values = st.tuples(st.integers(0, 1), st.sampled_from(KEYS), st.integers(0, 1), TIMES)
steps = st.lists(
    st.tuples(st.lists(st.one_of(values, st.integers(0, 20)), max_size=5), st.integers(0, 8)),
    max_size=8,
)


class Say(mr.Computation):
    """Passes values on to their sides, and takes back what says so."""

    inputs = {"said": mr.by(lambda value: value[1])}
    outputs = {
        side: mr.coders.Paned(tuple[int, str, int, bool], retracts=True)
        for side in ("left", "right")
    }

    def process_record(self, record):
        side, key, value, back = record.value
        self.produce(("left", "right")[side], (side, key, value, False), retraction=back)


def meet(left_us, right_us, near):
    first, end, _, _ = near
    apart_us = right_us - left_us
    return (first is None or first <= apart_us) and (end is None or apart_us < end)


def expected(accepted, how, near):
    """Return how often each pair stands at the end: (left, right, time)."""
    first, end, _, at_once = near
    found = Counter()
    sides = [[said for said in accepted if said[0] == side] for side in (0, 1)]
    partners = Counter()
    for left in sides[0]:
        for right in sides[1]:
            if left[1] == right[1] and meet(left[3], right[3], near):
                found[left[2], right[2], left[1], max(left[3], right[3])] += 1
                partners[left] += 1
                partners[right] += 1
    last = [None if end is None else end - 1, None if first is None else -first]
    for side in (0, 1)[: ("inner", "left", "outer").index(how)]:
        for said in sides[side]:
            if not partners[said]:
                _, key, value, at_us = said
                if not at_once and last[side] is not None:
                    at_us = max(at_us, at_us + last[side])
                found[(None, value, key, at_us) if side else (value, None, key, at_us)] += 1
    return found


@given(
    steps=steps,
    how=st.sampled_from(["inner", "left", "outer"]),
    chosen=st.sampled_from(NEAR),
    crashes=st.booleans(),
)
@example(  # the clock jumps over the end of an interval, and over all lateness
    steps=[([], 6), ([(0, "a", 0, 0), (0, "a", 0, 8)], 4)], how="left", chosen=NEAR[1], crashes=True
)
@example(  # taken back after the time in which it could meet anything, but not late
    steps=[([(1, "a", 0, 10), (0, "a", 0, 17), 1], 0)],
    how="left",
    chosen=NEAR[2],
    crashes=True,
)
def test_a_join_pairs_what_is_near_and_not_too_late(steps, how, chosen, crashes):
    said, near = chosen
    first, end, lateness, _ = near
    p = mr.Pipeline("join")
    p.inject("said", format=tuple[int, str, int, bool])
    p.add(Say)
    left, right = (p.stream(name).key_by(lambda value: value[1]) for name in ("left", "right"))
    left.join(right, how, name="j", **said).to("pairs")
    accepted, low_watermark, dropped = [], 0, 0
    # A side is too late where the other one's values are forgotten.
    forgets = (first is not None, end is not None)
    with mr.testing.Harness(p) as h:
        for together, further in steps:
            records = []
            for one in together:
                back = isinstance(one, int)
                if back:
                    # Nothing of an open interval is taken back that is forgotten already.
                    if one >= len(accepted) or (None in (first, end) and any(forgets)):
                        continue
                    one = accepted[one]
                side, key, value, at_us = one
                late = at_us < low_watermark - lateness and forgets[side]
                dropped += late
                if not late:
                    (accepted.remove if back else accepted.append)(one)
                records.append(((side, key, value, back), at_us))
            if records:
                h.inject("said", records)
            low_watermark += further
            h.advance_watermark("said", low_watermark)
            if crashes:
                h.crash()
        h.advance_watermark("said", mr.MAX_TIMESTAMP)
        found = Counter()
        for out in h.outputs("pairs"):
            one, other = (value and value[2] for value in out.value)
            retraction = out.pane is not None and out.pane.retraction
            found[one, other, out.key, out.timestamp] += -1 if retraction else 1
            assert found[one, other, out.key, out.timestamp] >= 0
        assert +found == expected(accepted, how, near)
        assert h.counters("j").counted.get("dropped_late", 0) == dropped
        if None not in (first, end):
            assert list(h.checkpoint()["j"].scan()) == []


#: Rows and values that come together, (whether a row, key, number, time); then how far on.
told = st.lists(
    st.tuples(
        st.lists(st.tuples(st.booleans(), st.sampled_from(KEYS), st.integers(0, 3), TIMES)),
        st.integers(0, 8),
    ),
    max_size=8,
)


@given(
    steps=told,
    how=st.sampled_from(["left", "inner"]),
    lateness=st.sampled_from([0, 7]),
    expires=st.sampled_from([None, 9]),
    crashes=st.booleans(),
)
def test_a_value_gets_the_row_that_stands_at_its_time(steps, how, lateness, expires, crashes):
    p = mr.Pipeline("enrich")
    said = p.inject("said", format=tuple[bool, str, int])
    values, rows = (said.filter(which).key_by(lambda one: one[1]) for which in (_is_value, _is_row))
    how_long = {"expires": expires, "allowed_lateness": lateness}
    values.enrich(rows, how, name="e", **how_long).to("out")
    stand, waiting, answers, low_watermark, dropped = {}, [], Counter(), 0, 0

    def answer(key, n, at_us):
        before = [(row_us, row) for row_us, row in stand.get(key, ()) if row_us <= at_us]
        row_us, row = max(before, key=lambda found: found[0], default=(None, None))
        # Of one time, the last that came.
        row = [row for other_us, row in before if other_us == row_us][-1] if before else None
        if row is not None and expires is not None and at_us >= row_us + expires:
            row = None
        if row is not None or how == "left":
            answers[key, n, row, at_us] += 1

    with mr.testing.Harness(p) as h:
        for together, further in steps:
            for is_row, key, n, at_us in together:
                if is_row:
                    stand.setdefault(key, []).append((at_us, n))
                elif at_us >= low_watermark:
                    waiting.append((key, n, at_us))
                elif at_us >= low_watermark - lateness:
                    answer(key, n, at_us)
                else:
                    dropped += 1
            if together:
                h.inject("said", [(one[:3], one[3]) for one in together])
            low_watermark += further
            h.advance_watermark("said", low_watermark)
            for one in [one for one in waiting if one[2] < low_watermark]:
                waiting.remove(one)
                answer(*one)
            if crashes:
                h.crash()
        h.advance_watermark("said", mr.MAX_TIMESTAMP)
        for one in waiting:
            answer(*one)
        found = Counter(
            (out.key, value[2], row and row[2], out.timestamp)
            for out in h.outputs("out")
            for value, row in [out.value]
        )
        assert found == answers
        assert h.counters("e").counted.get("dropped_late", 0) == dropped


def _is_row(one):
    return one[0]


def _is_value(one):
    return not one[0]
