"""MapState against a dictionary, over commits and crashes, with short and with long entries."""

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.kernel import cells
from millrace.model.keys import encode_key

SHORT = ["", "a", "b", 0, -1, b"\0", ("a", 1)]
LONG = ["", "a", "x" * 158, "x" * 159, "x" * 160, "x" * 600 + "a", "x" * 600 + "b", "x" * 600 + "c"]


def operations(count):
    entries = st.integers(0, count - 1)
    operation = st.one_of(
        st.tuples(st.just("set"), entries, st.integers(0, 9)),
        st.tuples(st.just("append"), entries, st.integers(0, 9)),
        st.tuples(st.just("between"), entries, st.integers(1, count)),
        st.tuples(st.sampled_from(["delete", "get", "list", "clear"]), entries, st.just(0)),
    )
    return st.lists(st.lists(operation, max_size=8), max_size=5)


def between(mapping, start, stop):
    if isinstance(mapping, mr.MapState):
        return list(mapping.between(start, stop))
    return [
        entry
        for entry in sorted(mapping, key=encode_key)
        if (start is None or encode_key(start) <= encode_key(entry))
        and (stop is None or encode_key(entry) < encode_key(stop))
    ]


def apply(mapping, operations, entries):
    """Do the same to a MapState and to a dict, and tell what was seen on the way."""
    seen = []
    for kind, n, value in operations:
        entry = entries[n]
        if kind == "set":
            mapping[entry] = [value]
        elif kind == "append" and entry in mapping:
            mapping[entry].append(value)
        elif kind == "delete":
            seen.append(mapping.pop(entry, None))
        elif kind == "get":
            seen.append((list(mapping.get(entry, ())), entry in mapping))
        elif kind == "list":
            seen.append((sorted(mapping, key=encode_key), len(mapping)))
        elif kind == "between":
            start, stop = sorted((entry, entries[-value]), key=encode_key)
            seen.append(between(mapping, start, stop))
            seen.append(between(mapping, None, start) + between(mapping, start, None))
        elif kind == "clear":
            mapping.clear()
    return seen


@pytest.mark.parametrize("entries", [SHORT, LONG], ids=["short", "long"])
@given(bundles=operations(min(len(SHORT), len(LONG))), few=st.sampled_from([cells._FEW, 1]))
def test_a_map_is_a_dictionary(entries, bundles, few):
    seen = []

    class Maps(mr.Computation):
        inputs = {"events": mr.by(lambda _: "k")}
        cell = mr.MapState(list[int])

        def process_record(self, record):
            seen.append(apply(self.cell, bundles[record.value], entries))
            seen.append([(entry, list(value)) for entry, value in self.cell.items()])

    p = mr.Pipeline("maps")
    p.inject("events")
    p.add(Maps)
    plain = {}
    with mock.patch.object(cells, "_FEW", few), mr.testing.Harness(p, intervals=1) as h:
        for n, bundle in enumerate(bundles):
            seen.clear()
            h.inject("events", [(n, 0)])
            assert seen[0] == apply(plain, bundle, entries)
            assert seen[1] == sorted(plain.items(), key=lambda item: encode_key(item[0]))
            if n % 2:
                h.crash()
