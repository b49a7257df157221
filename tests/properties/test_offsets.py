"""Injectors by offsets, through crashes: every record once, none late, none read too far ahead."""

from hypothesis import given
from hypothesis import strategies as st

import millrace as mr

NAMES = ("a", "b")


class Logs(mr.sources.Injector):
    """Logs that only grow, in order of time, and promise what they have reached."""

    schema = "n long, at long"

    def __init__(self, step):
        self.logs = {name: [] for name in NAMES}
        self.step = step

    def processes(self):
        return [name for name in NAMES if self.logs[name]]

    def advance(self, process, offset):
        log = self.logs[process]
        offset = min((offset or 0) + self.step, len(log))
        return mr.sources.Advance(offset, log[offset - 1])

    def read(self, process, start, end):
        numbered = list(enumerate(self.logs[process]))[start or 0 : end]
        return [(2 * n + (process == "b"), at) for n, at in numbered]


class Check(mr.Computation):
    inputs = {"logs": mr.by(lambda value: value["n"] % 3)}
    outputs = {"seen": int, "late": bool}

    def process_record(self, record):
        self.produce("seen", record.value["n"])
        self.produce("late", record.late)


#: (which log grows, by how much in time each), then a poll that may crash after so many writes.
steps = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.lists(st.integers(0, 40), max_size=4),
        st.none() | st.integers(0, 8),
    ),
    max_size=14,
)


@given(steps, st.integers(1, 3), st.none() | st.integers(0, 60))
def test_every_record_once_and_none_too_far_ahead(script, step, skew):
    logs = Logs(step)
    p = mr.Pipeline("logs")
    p.inject("logs", logs, timestamp="at", expected=NAMES, skew=skew)
    p.add(Check)
    with mr.testing.Harness(p, publish=True) as h:

        def poll():
            seen = [out.value for out in h.outputs("seen")]
            counts = [sum(value % 2 == b for value in seen) for b in range(len(NAMES))]
            low_watermark = h.low_watermark("Check")
            h.poll("logs")
            for value in [out.value for out in h.outputs("seen")][len(seen) :]:
                log, count = logs.logs[NAMES[value % 2]], counts[value % 2]
                # It was not too far ahead when it was asked, and gave no more than its share.
                assert value // 2 < count + step
                assert skew is None or not count or log[count - 1] <= low_watermark + skew

        for name, grown, crash in script:
            for by in grown:
                logs.logs[name].append((logs.logs[name] or [0])[-1] + by)
            if crash is not None:
                h.crash_in_next_epoch(crash)
            poll()
        for name in NAMES:
            logs.logs[name].append(10_000)
        while h.poll("logs"):
            pass
        assert not any(out.value for out in h.outputs("late"))
        expected = [2 * n + b for b, name in enumerate(NAMES) for n in range(len(logs.logs[name]))]
        assert sorted(out.value for out in h.outputs("seen")) == sorted(expected)
        assert h.low_watermark("Check") == 10_000
