"""What unit tests share: a Harness whose invariants are checked when the test ends."""

import pytest

import millrace as mr


@pytest.fixture
def harness():
    """Return a maker of Harnesses: computations in, streams injected, ``dead`` for dead letters."""
    opened = []

    def open_harness(*computations, streams=("events",), dead=False, intervals=4):
        p = mr.Pipeline("under test")
        for stream in streams:
            p.inject(stream)
        if dead:
            p.dead_letter("dead")
        for computation in computations:
            p.add(computation)
        opened.append(mr.testing.Harness(p, intervals=intervals))
        return opened[-1]

    yield open_harness
    for h in opened:
        h.check()
