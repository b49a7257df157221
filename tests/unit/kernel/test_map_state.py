"""MapState: a mapping per key, in the order of the encoding of its entries."""

from random import Random

import pytest

import millrace as mr
from millrace.kernel.cells import BoundMap
from millrace.model.errors import PipelineError
from millrace.store.cache import _MemoryView


@pytest.fixture
def steps(harness):
    """Run functions of a map one after the other, each in an epoch of its own."""

    def run(format, *functions, crash=False):
        class Stepped(mr.Computation):
            inputs = {"events": mr.by(lambda _: "k")}
            outputs = {"done": int}
            entries = mr.MapState(format)

            def process_record(self, record):
                got.append(functions[record.value](self.entries))

        got = []
        h = harness(Stepped)
        for n in range(len(functions)):
            h.inject("events", [(n, 0)])
            if crash:
                h.crash()
        return got

    return run


def fill(**entries):
    return lambda m: m.update(entries)


@pytest.mark.parametrize("crash", [False, True])
def test_entries_are_there_in_the_next_epoch(steps, crash):
    got = steps(int, fill(a=1, b=2), lambda m: dict(m), crash=crash)

    assert got[-1] == {"a": 1, "b": 2}


def test_a_missing_entry_is_a_key_error_that_names_it(steps):
    def read(m):
        with pytest.raises(KeyError, match="nothing"):
            m["nothing"]
        with pytest.raises(KeyError, match="nothing"):
            del m["nothing"]

    steps(int, read)


def test_a_deleted_entry_is_gone(steps):
    got = steps(int, fill(a=1, b=2), lambda m: m.pop("a"), lambda m: dict(m))

    assert got[1:] == [1, {"b": 2}]


def test_an_entry_deleted_and_set_again_in_one_hook_is_there(steps):
    def again(m):
        del m["a"]
        m["a"] = 9

    assert steps(int, fill(a=1), again, lambda m: dict(m))[-1] == {"a": 9}


def test_an_entry_set_and_deleted_in_one_hook_never_was(steps):
    def fleeting(m):
        m["a"] = 9
        del m["a"]

    assert steps(int, fleeting, lambda m: dict(m))[-1] == {}


def test_cleared_it_is_empty(steps):
    got = steps(int, fill(a=1), lambda m: (m.clear(), dict(m))[1], lambda m: dict(m))

    assert got[1:] == [{}, {}]


def test_entries_set_after_clear_are_all_there_is(steps):
    got = steps(int, fill(a=1, b=2), lambda m: (m.clear(), m.update(b=2, c=3)), lambda m: dict(m))

    assert got[-1] == {"b": 2, "c": 3}


def test_an_old_entry_does_not_come_back_after_clear(steps):
    def probe(m):
        m.clear()
        return m.get("a"), "a" in m, len(m)

    assert steps(int, fill(a=1), probe)[-1] == (None, False, 0)


@pytest.mark.parametrize(
    "ascending",
    [[-300, -1, 0, 1, 255, 256, 2**40], ["", "a", "aa", "b", "é"], [b"", b"\0", b"\xff"]],
    ids=["int", "str", "bytes"],
)
def test_iteration_is_ascending_however_entries_came(steps, ascending):
    stored, added = ascending[::2], ascending[1::2]
    got = steps(
        int,
        lambda m: m.update(dict.fromkeys(reversed(stored), 0)),
        lambda m: (m.update(dict.fromkeys(reversed(added), 0)), list(m))[1],
        lambda m: list(m),
    )

    assert got[1:] == [ascending, ascending]


def test_iteration_sees_changes_of_this_hook_once(steps):
    def change(m):
        m["b"] = 20
        m["d"] = 4
        del m["c"]
        return list(m.items()), len(m)

    got = steps(int, fill(a=1, b=2, c=3), change)

    assert got[-1] == ([("a", 1), ("b", 20), ("d", 4)], 3)


def test_entries_may_be_deleted_while_iterating_over_a_copy(steps):
    def empty(m):
        for entry in list(m):
            del m[entry]

    assert steps(int, fill(a=1, b=2), empty, lambda m: len(m))[-1] == 0


def test_a_value_changed_in_place_is_persisted(steps):
    got = steps(list[int], fill(a=[1]), lambda m: m["a"].append(2), lambda m: m["a"], crash=True)

    assert got[-1] == [1, 2]


def test_setdefault_keeps_what_is_appended(steps):
    got = steps(list[int], lambda m: m.setdefault("a", []).append(1), lambda m: m["a"])

    assert got[-1] == [1]


def test_entries_of_different_types_are_different_entries(steps):
    entries = {1: 1, "1": 2, b"1": 3, (1,): 4}

    assert steps(int, lambda m: m.update(entries), lambda m: dict(m))[-1] == entries


def test_an_entry_of_one_map_is_not_in_another(harness):
    class Two(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        outputs = {"out": list}
        one = mr.MapState(int)
        two = mr.MapState(int)

        def process_record(self, record):
            self.one[record.value] = 1
            self.two[record.value + 1] = 2
            self.produce("out", [list(self.one), list(self.two)])

    h = harness(Two)
    h.inject("events", [(1, 0)])
    h.inject("events", [(2, 0)])

    assert h.outputs("out")[-1].value == [[1, 2], [2, 3]]


@pytest.mark.parametrize(
    ("keys", "start", "stop", "expected"),
    [
        ([1.5, -0.5, 0.25, -2.0, 1e19, float("-inf")], -1.0, 2.0, [-0.5, 0.25, 1.5]),
        ([1.5, -0.5, 2, -2, 0], -1, 2, [-0.5, 0, 1.5]),
        ([True, False], False, True, [False]),
        ([("b", 1), ("a", 2), ("a",), ("a", 1, 1), ("aa",)], ("a",), ("aa",), [
            ("a",), ("a", 1, 1), ("a", 2),
        ]),
        ([("a", 0.5), ("a", None), ("a", -3.0), ("a", 7)], ("a", -4), ("a", 1), [
            ("a", -3.0), ("a", 0.5),
        ]),
        ([(b"\0",), (b"",), (b"\0\xff",), (b"\1",)], (b"",), (b"\1",), [
            (b"",), (b"\0",), (b"\0\xff",),
        ]),
    ],
    ids=["floats", "ints and floats", "bools", "tuples", "numbers in tuples", "bytes in tuples"],
)  # fmt: skip
@pytest.mark.parametrize("stored", [False, True])
def test_a_range_goes_by_the_order_of_values(steps, keys, start, stop, expected, stored):
    def put(m):
        m.update(dict.fromkeys(keys, 1))
        return list(m.between(start, stop))

    got = steps(int, put, lambda m: list(m.between(start, stop)))

    assert got[stored] == expected


@pytest.mark.parametrize(
    ("prefix", "start", "stop", "expected"),
    [
        (("tea",), None, None, [("tea",), ("tea", 5), ("tea", "x" * 200), ("tea", "y")]),
        (("tea",), ("tea", 5), None, [("tea", 5), ("tea", "x" * 200), ("tea", "y")]),
        (("tea",), None, ("tea", 5), [("tea",)]),
        ((1,), None, None, [(1, 2)]),
        (("mate",), ("tea",), None, []),
    ],
)
def test_a_prefix_of_tuples_has_those_that_begin_with_it(steps, prefix, start, stop, expected):
    keys = [
        ("tea", 5),
        ("tea\0", 5),
        ("team",),
        ("tea",),
        ("te",),
        ("tea", "x" * 200),
        ("tea", "y"),
    ]
    keys += ["tea", (1, 2), (1.0, 2)]

    got = steps(
        int,
        lambda m: m.update(dict.fromkeys(keys, 1)),
        lambda m: list(m.between(start, stop, prefix=prefix)),
    )

    assert got[1] == expected


def test_a_prefix_that_is_no_tuple_is_refused(steps):
    def read(m):
        with pytest.raises(PipelineError, match="expected a tuple"):
            list(m.between(prefix="tea"))

    steps(int, read)


def test_zero_has_one_entry_and_so_has_nan(steps):
    nan = float("nan")

    def put(m):
        m[0.0], m[-0.0], m[nan], m[-nan], m[0] = 1, 2, 3, 4, 5
        return m[0.0], m[nan], len(m)

    assert steps(int, put) == [(2, 4, 3)]


def test_a_map_of_many_entries_of_one_hook_is_walked_in_order_whatever_came_between(steps):
    def work(m):
        known = dict(m)
        for n in range(200):
            entry = n * 67 % 211
            if entry % 5:
                m[entry] = known[entry] = n
            elif known.pop(entry, None) is not None:
                del m[entry]
            low, high = entry - 20, entry + 20
            assert list(m.between(low, high)) == [e for e in sorted(known) if low <= e < high]
            if n == 120:
                m.clear()
                known.clear()
        assert list(m) == sorted(known)
        return len(known)

    assert steps(int, lambda m: m.update(dict.fromkeys(range(90), 0)), work)[-1] > 50


@pytest.mark.parametrize("stored", [False, True])
def test_a_map_that_is_emptied_and_filled_at_many_places_has_what_a_dict_has(steps, stored):
    def work(m):
        random, known = Random(7), dict(m)
        for _ in range(1500):
            first = random.randrange(100)
            end = random.choice([None, first + random.randrange(100)])
            there = [e for e in sorted(known) if first <= e and (end is None or e < end)]
            assert next(m.between(first, end), None) == next(iter(there), None)
            if random.random() < 0.5:
                for entry in there[: random.choice([1, 5, 100])]:
                    del m[entry], known[entry]
            for _ in range(random.choice([0, 0, 3, 30])):
                entry = random.randrange(120)
                m[entry] = known[entry] = 1
            assert list(m.between(first, end)) == [
                e for e in sorted(known) if first <= e and (end is None or e < end)
            ]
        assert list(m) == sorted(known)
        return len(known)

    fill_it = (lambda m: m.update(dict.fromkeys(range(100), 0))) if stored else len
    assert steps(int, fill_it, work)[-1] > 0


def test_entries_that_come_while_a_map_is_walked_are_not_in_the_walk(steps):
    def work(m):
        m.update(dict.fromkeys(range(0, 1000, 10), 0))
        walked = []
        for entry in m:
            walked.append(entry)
            m[entry + 5] = 0
            assert list(m.between(entry, entry + 6)) == [entry, entry + 5]
        return walked

    assert steps(int, work) == [list(range(0, 1000, 10))]


def test_a_queue_is_not_walked_over_where_its_entries_are_gone(steps, monkeypatch):
    passed = []
    stored, touched = _MemoryView.scan, BoundMap._touched

    def scan(self, start, stop):
        for row in stored(self, start, stop):
            passed.append(row)
            yield row

    def walk(self, first, end):
        for entry in touched(self, first, end):
            passed.append(entry)
            yield entry

    def work(m):
        for n in range(200, 400):
            m[n] = n
            for entry in list(m.between(None, n - 200 + 1)):
                del m[entry]
        return list(m)

    def first(m):
        return [m.pop(next(iter(m.between(None, n + 1)))) for n in range(201, 300)]

    monkeypatch.setattr(_MemoryView, "scan", scan)
    monkeypatch.setattr(BoundMap, "_touched", walk)
    got = steps(int, lambda m: m.update(zip(range(200), range(200), strict=True)), work, first)

    assert got[1:] == [list(range(200, 400)), list(range(200, 299))]
    assert len(passed) < 5_000
