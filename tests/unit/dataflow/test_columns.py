"""Windows that are kept as columns: what lies in the store, and what is beyond a column."""

from typing import Any

import numpy as np
import pytest

import millrace as mr
from millrace.dataflow.columnar import sessions, windows
from millrace.dataflow.columnar.chunks import ColumnarBundle, Done, Keyed, Stored
from millrace.dataflow.columnar.windows import WindowColumns
from millrace.kernel import families, timer_families


def sums() -> mr.Pipeline:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.FixedWindows(10)).sum("value").to("sums")
    p.dead_letter("letters")
    return p


def stored(h: mr.testing.Harness) -> list[bytes]:
    manifest = h._last_manifest
    assert manifest is not None
    found = []
    for entry in manifest.interval_map("sums").intervals:
        with h._caches.open("sums", entry.id).view() as view:
            found += [row[:1] for row, _ in view.scan(b"A", b"[")]
    return sorted(found)


def test_a_bundle_leaves_a_chunk_and_a_timer_for_each_window_however_many_keys() -> None:
    with mr.testing.Harness(sums(), intervals=1) as h:
        h.inject("elements", [({"key": n, "value": 1}, n % 20) for n in range(500)])
        assert (
            stored(h)
            == [families.CHUNKS] * 2
            + [timer_families.TIMERS] * 2
            + [timer_families.TIMER_BY_TAG] * 2
        )

        h.inject("elements", [({"key": n, "value": 1}, 15) for n in range(500)])
        assert stored(h).count(families.CHUNKS) == 3

        h.advance_watermark("elements", 20)
        assert stored(h) == []
        assert len(h.outputs("sums")) == 250 + 500


def test_chunks_of_a_window_that_lives_long_are_put_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(windows, "MERGE_EVERY", 5)
    with mr.testing.Harness(sums(), intervals=1) as h:
        counts = []
        for n in range(17):
            value: Any = n if n % 2 else n + 0.5
            h.inject(
                "elements", [({"key": n % 3, "value": value}, 5), ({"key": 9, "value": 1}, 15)]
            )
            counts.append(stored(h).count(families.CHUNKS))
        h.crash()
        h.advance_watermark("elements", 20)
        found = {(out.key, out.timestamp): out.value for out in h.outputs("sums")}

    assert max(counts) <= 3 + 2 * 5
    assert counts[4] == counts[9] == 3  # floats and integers of one window, integers of the other
    assert found[9, 19] == 17
    assert sum(found[key, 9] for key in range(3)) == sum(range(17)) + 9 * 0.5


def test_what_pins_the_low_watermark_is_named() -> None:
    with mr.testing.Harness(sums()) as h:
        h.inject("elements", [({"key": "a", "value": 1}, 5)])
        h.advance_watermark("elements", 7)
        explained = str(h.explain_watermark("sums"))

    assert "elements" in explained


def test_a_sum_that_no_int_can_be_is_set_aside_and_the_other_keys_are_not() -> None:
    with mr.testing.Harness(sums(), intervals=1) as h:
        large = [("a", 2**63), ("b", 5), ("a", 2**62), ("a", 2**63), ("c", 2**62), ("c", 2**62)]
        h.inject("elements", [({"key": key, "value": value}, 5) for key, value in large])
        h.crash()
        h.advance_watermark("elements", 10)

        sums_of = {out.key: out.value for out in h.outputs("sums")}
        assert sums_of == {"b": 5, "c": 2**63}
        [letter] = [out.value for out in h.outputs("letters")]
        assert letter.key == "'a'"
        assert str(2**64 + 2**62) in letter.reason


@pytest.mark.parametrize("bundles", [1, 3])
@pytest.mark.parametrize("lateness", [0, 1], ids=["columns", "rows"])
@pytest.mark.parametrize(
    "window_fn", [mr.FixedWindows(10), mr.SlidingWindows(10, 5), mr.Sessions(10)], ids=repr
)
def test_a_mean_does_not_depend_on_whether_its_sum_has_64_bits(
    window_fn: mr.WindowFn, lateness: int, bundles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MERGE_EVERY", 2)
    monkeypatch.setattr(sessions, "MERGE_EVERY", 2)
    p = mr.Pipeline("means")
    keyed = p.inject("elements", format=int).key_by(lambda n: n % 2)
    windowed = keyed.window(window_fn, allowed_lateness=lateness)
    windowed.aggregate(mean=mr.agg.mean(), n=mr.agg.count()).to("means")
    values = [sign * (2**61 + n) for n in range(24) for sign in (1, -1)]
    values = [n for n in values if n > 0 or n % 2]  # those of one key beyond, those of one within
    with mr.testing.Harness(p, intervals=1) as h:
        for n in range(bundles):
            h.inject("elements", [(value, 6) for value in values[n::bundles]])
        h.crash()
        h.advance_watermark("elements", mr.MAX_TIMESTAMP)
        results = {(out.key, out.value["mean"], out.value["n"]) for out in h.outputs("means")}
    parts = [[n for n in values if n % 2 == key] for key in (0, 1)]
    assert results == {(key, sum(part) / len(part), len(part)) for key, part in enumerate(parts)}


def test_keys_that_share_a_hash_do_not_share_a_sum() -> None:
    p = sums().build()
    columns: WindowColumns = p.computation("sums").columnar
    same = np.array([7, 7], np.uint64)
    records = Keyed([b"sa", b"sb"], same, np.array([0, 1]), [{"value": 1}, {"value": 2}], [1, 2])

    def run(records: Keyed | None, stored: list[Stored], low_watermark_us: int) -> Done:
        return columns.run(ColumnarBundle(records, 1, 0, low_watermark_us, 0, lambda _: stored))

    (chunk,) = run(records, [], 0).added[10]
    stored = [Stored(b"C1", 10, chunk), Stored(b"C2", 10, chunk)]
    done = run(None, stored, 10)
    (emitted,) = done.emitted

    assert done.removed == [b"C1", b"C2"]
    assert dict(zip(emitted.keys, emitted.values, strict=True)) == {b"sa": 2, b"sb": 4}


def test_integers_and_floats_meet_in_a_pane() -> None:
    with mr.testing.Harness(sums(), intervals=1) as h:
        values: list[Any] = [1, 2.5, 3]
        h.inject("elements", [({"key": "a", "value": value}, 5) for value in values])
        h.inject("elements", [({"key": "b", "value": 4}, 5)])
        h.advance_watermark("elements", 10)

        found = {out.key: out.value for out in h.outputs("sums")}
        assert found == {"a": 6.5, "b": 4}
        assert type(found["b"]) is int


def test_a_session_goes_on_in_a_chunk_that_is_not_due(monkeypatch: Any) -> None:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.Sessions(10)).sum("value").to("sums")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("elements", [({"key": "a", "value": 1}, 0), ({"key": "b", "value": 1}, 2)])
        h.inject("elements", [({"key": "a", "value": 1}, 9)])
        h.advance_watermark("elements", 15)  # past [0, 10) and [2, 12), not past [9, 19)
        assert [(out.key, out.pane.window) for out in h.outputs("sums") if out.pane] == [
            ("b", mr.Window(2, 12))
        ]
        assert h.output_low_watermark("sums") == 15
        h.inject("elements", [({"key": "a", "value": 1}, 18)])
        h.crash()
        h.advance_watermark("elements", 28)

        assert [(out.value, out.pane.window) for out in h.outputs("sums")[1:] if out.pane] == [
            (3, mr.Window(0, 28))
        ]
        assert stored(h) == []


def test_what_expired_alone_is_kept_where_its_session_lives() -> None:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.Sessions(10)).sum("value").to("sums")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("elements", [({"key": "a", "value": 1}, 20)])
        h.advance_watermark("elements", 25)
        late = [({"key": key, "value": 1}, at) for key, at in (("a", 12), ("a", 1), ("b", 12))]
        h.inject("elements", late)
        h.advance_watermark("elements", 40)

        assert [(out.key, out.value, out.pane.window) for out in h.outputs("sums") if out.pane] == [
            ("a", 2, mr.Window(12, 30))
        ]
        assert h.counters("sums").counted == {"dropped_late": 2}


def test_a_chunk_is_read_once_however_many_keys_are_late(monkeypatch: Any) -> None:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.Sessions(10)).sum("value").to("sums")
    decode, chunks = sessions._decode, []
    monkeypatch.setattr(sessions, "_decode", lambda chunk: chunks.append(chunk) or decode(chunk))
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("elements", [({"key": n, "value": 1}, 20) for n in range(0, 40, 2)])
        h.advance_watermark("elements", 25)
        chunks.clear()
        h.inject("elements", [({"key": n, "value": 1}, at) for at in (12, 3) for n in range(40)])
        assert len(chunks) <= 2  # and not once for each of 40 keys
        h.advance_watermark("elements", 40)

        assert [(out.value, out.pane.window.start) for out in h.outputs("sums")] == [(3, 3)] * 20
        assert h.counters("sums").counted == {"dropped_late": 40}


def test_many_sessions_that_go_on_are_one_chunk() -> None:
    p = mr.Pipeline("columns")
    keyed = p.inject("elements", format=dict).key_by("key")
    keyed.window(mr.Sessions(10)).sum("value").to("sums")
    with mr.testing.Harness(p, intervals=1) as h:
        for at in (0, 9):
            h.inject("elements", [({"key": n, "value": 1}, at) for n in range(300)])
        h.advance_watermark("elements", 15)
        assert stored(h).count(families.CHUNKS) == 2
        h.advance_watermark("elements", 19)

        assert [out.value for out in h.outputs("sums")] == [2] * 300


class Early(mr.Computation):
    inputs = {"asks": mr.by("key")}
    outputs = {"early": int}
    percentiles = (50,)

    def process_record(self, record: mr.Record) -> None:
        self.set_timer(record.timestamp, at=record.timestamp, percentile=50)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("early", timer.at)


def test_a_percentile_elsewhere_leaves_a_grouping_in_columns_and_both_are_right() -> None:
    p = sums()
    p.inject("asks", format=dict)
    p.add(Early)
    with mr.testing.Harness(p, intervals=2) as h:
        for n in range(3):
            h.inject("elements", [({"key": key, "value": 1}, n * 7) for key in range(20)])
            h.inject("asks", [({"key": 1}, 100 + n)])
            assert families.CHUNKS in stored(h)
            h.crash()
        h.advance_watermark("asks", 101, percentile=50)
        h.advance_watermark("elements", 20)

        assert [out.value for out in h.outputs("early")] == [100, 101]
        assert sorted(out.value for out in h.outputs("sums")) == [1] * 20 + [2] * 20
