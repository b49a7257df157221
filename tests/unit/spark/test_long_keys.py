"""Keys of a megabyte, binary ones and markup, wherever a run's status shows keys."""

import pytest

import millrace as mr
from millrace.balance.load import Loads
from millrace.dashboard.metrics_file import calls_in, hottest_in, over_time
from millrace.inspect import load_of_run
from millrace.kernel.results import HookTimes, Load
from millrace.model.keys import encode_key
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.status_text import as_html, as_line, as_text
from millrace.store import open_location
from millrace.testing import Harness
from tests.unit.spark.test_status_text import status

MEGABYTE = 1 << 20
MARKUP = "<img src=x onerror=alert(1)>"


class Counter(mr.Computation):
    inputs = {"words": mr.by("word")}

    def process_record(self, record):
        self.hold(record.timestamp)


def hottest(*keys):
    """Return the load of a run whose records are of these keys, and how they are shown."""
    loads = Loads()
    share = {encode_key(key): 10_000 // len(keys) for key in keys}
    loads.add({0: Load(10_000, seconds=1.0, hottest=share, times=HookTimes({-10: 100}, 0.1))})
    load = load_of_run({"Counter": loads})
    return load, [hot.key for hot in load["Counter"].hottest]


@pytest.mark.parametrize(
    ("key", "begins"), [("x" * MEGABYTE, "xxx"), (b"\xff\x00" * (MEGABYTE // 2), "0xff00ff")]
)
def test_a_status_shows_the_beginning_of_a_long_key(key, begins):
    load, (shown, *_) = hottest(key)
    one = status(load=load)

    assert shown.startswith(begins)
    assert len(shown) < 300
    for text in (as_text(one), as_html(one), as_line(one), repr(one)):
        assert len(text) < 20_000
    assert begins in as_text(one)


def test_long_keys_that_begin_alike_are_two():
    _, shown = hottest("x" * MEGABYTE + "a", "x" * MEGABYTE + "b")

    assert len(shown) == len(set(shown)) == 2


def test_what_the_dashboard_reads_has_room_for_long_keys(tmp_path):
    """It reads the end of the file, and found nothing at all in a line that was longer."""
    load, _ = hottest(*("x" * MEGABYTE + letter for letter in "abcd"))
    state = open_location(tmp_path / "ckpt", pipeline="words")
    lines = MetricLines(tmp_path / "ckpt")
    for epoch in range(3):
        lines.add(status(epoch=epoch, load=load), epoch)
    lines.close()

    assert len(hottest_in(state)) == 4
    assert [one["computation"] for one in calls_in(state)] == ["Counter"]
    assert over_time(state)["parts"]["epoch"] == [0, 1, 2]
    assert (tmp_path / "ckpt" / "metrics" / "epochs.jsonl").stat().st_size < 20_000


@pytest.mark.parametrize("key", ["x" * MEGABYTE, b"\xff\x00" * (MEGABYTE // 2)])
def test_an_explanation_names_a_long_key_by_its_beginning(key):
    p = mr.Pipeline("words")
    p.inject("words")
    p.add(Counter)
    h = Harness(p)
    h.inject("words", [({"word": key}, 9)])
    h.advance_watermark("words", 100)
    found = h.explain_watermark()

    assert found.pin.key == key, "in a program it is whole"
    assert "Pinned by a hold" in str(found)
    assert len(str(found)) < 1_500


def test_markup_in_a_key_is_text_in_a_notebook():
    load, _ = hottest(MARKUP)
    said = as_html(status(load=load))

    assert "<img" not in said
    assert "&lt;img src=x" in said
