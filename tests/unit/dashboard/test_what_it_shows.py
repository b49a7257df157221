"""What the dashboard says of a run, as the page gets it."""

import dataclasses
import json
from typing import Any

import msgspec
import pytest
from dashboard_scene import SCRIPT, kept

import millrace as mr
from millrace.dashboard.metrics_file import calls_in, interval_shares, over_time
from millrace.dashboard.points import Points
from millrace.dashboard.pulse import Pulse
from millrace.dashboard.watcher import CELLS, heat_of, stuck_in
from millrace.injectors.rate_limit import publish_held
from millrace.inspect import Checkpoint, Interval, key_text, shortened
from millrace.inspect.overview import RunEnd, leave_run_end
from millrace.watermark.propagation import LowWatermarks
from millrace.watermark.report import Report


def node(now: Any, name: str) -> Any:
    (found,) = (one for one in now["graph"]["nodes"] if one["id"] == name)
    return found


def test_the_graph_has_levels_rates_and_lag_on_every_edge(page, flown):
    graph = page(flown.state).now()["graph"]
    levels = {one["id"]: one["level"] for one in graph["nodes"]}

    assert levels == {
        "injector:departures": 0, "injector:weather": 0, "Delays": 1, "totals": 2, "worst": 2,
        "Alerts": 3, "sink:alerts": 4, "dead letters:": 4,
    }  # fmt: skip
    edges = [one for one in graph["edges"] if "dead" not in one]
    assert {(one["from"], one["to"]): one["exact"] for one in edges} == {
        ("injector:departures", "Delays"): False, ("injector:weather", "Delays"): False,
        ("Delays", "totals"): True, ("Delays", "worst"): True,
        ("totals", "Alerts"): False, ("worst", "Alerts"): False, ("Alerts", "sink:alerts"): False,
    }  # fmt: skip
    assert all(one["rate"] is not None and one["lag"] is not None for one in edges)


def test_dead_letters_are_in_the_graph_with_a_reason_and_a_sample(page, flown):
    now = page(flown.state).now()
    dead = node(now, "dead letters:")
    (edge,) = (one for one in now["graph"]["edges"] if one["to"] == "dead letters:")

    assert (dead["name"], dead["count"], edge["from"], edge["dead"]) == (
        "dead letters", 1, "Delays", 1
    )  # fmt: skip
    assert dead["top"]["reason"] == "ValueError: a flight cannot leave before it is there"
    (row,) = now["letters"]
    first = row["first"]
    assert (row["where"], row["count"], first["computation"]) == ("Delays", 1, "Delays")
    assert (first["key"], first["typed"], first["stream"]) == ("'BOS'", "BOS", "departures")
    assert "'carrier': 'B6'" in first["value"]


def test_sinks_of_dead_letters_and_late_records_are_in_the_graph(page, tmp_path):
    p = mr.Pipeline("shop")
    p.inject("sales", format=int)
    p.dead_letter("broken")
    p.late_records("late")
    counts = p.stream("sales").key_by(lambda n: 1 // n).window(mr.FixedWindows("1 min")).count()
    counts.to("counts")
    for stream in ("counts", "broken", "late"):
        p.sink(stream, print)
    harness, state = kept(p, tmp_path / "ckpt")
    with harness as h:
        h.inject("sales", [(1, mr.HOUR), (0, mr.HOUR)])
        h.advance_watermark("sales", 2 * mr.HOUR)
        h.inject("sales", [(1, mr.HOUR)])
        now = page(state).now()

    ends = {one["id"]: one["kind"] for one in now["graph"]["nodes"] if one["level"] == 2}
    assert ends == {"sink:counts": "sink", "sink:late": "sink", "dead letters:": "letters"}
    assert node(now, "dead letters:")["name"] == "broken"
    edges = {(one["from"], one["to"]) for one in now["graph"]["edges"] if one["to"] in ends}
    assert {("counts", "sink:counts"), ("counts", "sink:late")} < edges
    assert ("injector:sales", "dead letters:") in edges, "no key could be made of it"
    assert [row["where"] for row in now["letters"]] == ["stream sales"]


def test_sinks_behind_steps_are_in_the_graph_with_who_feeds_them(page, tmp_path):
    p = mr.Pipeline("shop")
    sales = p.inject("sales", format=int)
    counts = sales.key_by(lambda n: n).window(mr.FixedWindows("1 min")).count()
    counts.filter(bool).to("some")
    unnamed = counts.map(str)
    sales.map(str).to("texts")
    for stream in ("some", "texts", "sales", unnamed.name):
        p.sink(stream, print)
    harness, state = kept(p, tmp_path / "ckpt")
    with harness as h:
        h.inject("sales", [(1, mr.HOUR)])
        now = page(state).now()

    edges = {(one["from"], one["to"]) for one in now["graph"]["edges"] if "sink" in one["to"]}
    name = counts.name
    assert edges == {
        (name, "sink:some"),
        (name, f"sink:{name} > map"),
        ("injector:sales", "sink:texts"),
        ("injector:sales", "sink:sales"),
    }


class Tally(mr.Computation):
    inputs = {"sales": mr.by(lambda n: n)}
    outputs = {}

    def process_record(self, record):
        pass


def test_a_renamed_computation_and_stream_go_on_with_their_rates(page, tmp_path):
    def pipeline(name, stream, **was):
        p = mr.Pipeline("shop")
        p.inject(stream, format=int, was="sales" if was else ())
        tally = type("Tally", (Tally,), {"inputs": {stream: mr.by(lambda n: n)}})
        p.add(tally, name=name, **was)
        return p

    harness, state = kept(pipeline("Counts", "sales"), tmp_path / "ckpt", epoch_time="10 s")
    with harness as h:
        h.inject("sales", [(n, mr.HOUR) for n in range(100)])
        h.advance_watermark("sales", mr.HOUR)
        h.update(pipeline("Tallies", "offers", was="Counts"))
        before = page(state)
        renamed = before.now()
        h.inject("offers", [(n, mr.HOUR) for n in range(20)])
        now = before.now()

    assert (node(renamed, "injector:offers")["count"], node(renamed, "Tallies")["count"]) == (
        100, 100
    )  # fmt: skip
    assert node(now, "Tallies")["rate"] == node(now, "injector:offers")["rate"] == 2.0
    history = before.get("/api/history")
    assert history["low"].keys() == {"Tallies"}
    assert history["throughput"]["read"] == {"offers": [2.0]}
    assert sum(before.get("/api/intervals", computation="Tallies")["load"]) == 4


class Converted(mr.Computation):
    """Looks rates up as they are: it does not wait for them."""

    inputs = {"sales": mr.by("item")}
    outputs = {"cents": int}
    rates = mr.SideInput("rates", "currency", waits=False)

    def process_record(self, record: mr.Record) -> None:
        self.produce("cents", record.value["amount"] * self.rates.get("usd", {"rate": 1})["rate"])


def test_a_stream_that_is_a_table_is_not_behind(page, tmp_path):
    """Its rows are as old as they are: nothing is late by that."""
    p = mr.Pipeline("shop")
    newest = mr.BoundedDelay(0)
    p.inject("sales", format=dict, low_watermark=newest)
    p.inject("rates", format=dict, low_watermark=newest)
    prices = p.inject("prices", format=dict, low_watermark=newest, idle="1 min")
    p.add(Converted, name="Converted")
    p.stream("sales").key_by("item").enrich(prices.key_by("item")).to("priced")
    p.sink("priced", print)
    p.sink("cents", print)
    harness, state = kept(p, tmp_path / "ckpt", publish=True)
    with harness as h:
        h.advance_clock(mr.HOUR)
        h.inject("rates", [({"currency": "usd", "rate": 2}, mr.HOUR)])
        h.inject("prices", [({"item": "tea", "cents": 5}, mr.HOUR)])
        h.advance_clock(2 * mr.HOUR)
        h.inject("sales", [({"item": "tea", "amount": 3}, 2 * mr.HOUR)])
        h.advance_clock(2 * mr.HOUR + mr.SECOND)
        now = page(state).now()

    streams = {name: node(now, f"injector:{name}") for name in ("sales", "rates", "prices")}
    lags = {name: (one["lag"], one["rests"]) for name, one in streams.items()}
    assert lags == {
        "sales": (0.0, ""),
        "rates": (None, "nothing waits for it"),
        "prices": (None, "idle"),
    }


def test_a_stream_that_an_operator_holds_back_is_told_before_the_next_epoch(page, harness):
    h = harness(Tally, streams=("sales",))
    h.advance_watermark("sales", 5)
    shown, generation = page(h._durable), h.checkpoint().overview.generation
    assert "paused" not in str(shown.now()["culprit"])
    publish_held(h._durable.mailbox, generation, {"sales": "paused"})
    shown.watcher._culprit_again = 0.0  # or it would wait, as it costs something to find it
    assert "It is paused: nothing of it is read" in str(shown.now()["culprit"]["lines"])


def test_the_culprit_is_lit_with_the_way_to_it(page, flown):
    culprit = page(flown.state).now()["culprit"]

    assert (culprit["kind"], culprit["node"]) == ("hold", "Delays")
    assert culprit["way"] == ["Alerts", "totals", "Delays"]
    assert any("key 'JFK' of Delays" in line for line in culprit["lines"])


def test_totals_say_what_went_wrong(page, flown):
    totals = page(flown.state).now()["totals"]

    assert (totals["dead"], totals["stuck"]) == (1, 0)
    assert totals["late"] > 0 < totals["rate"]
    assert totals["injected"] == sum(
        stats.records for stats in Checkpoint(flown.state).ended.completion.sources.values()
    )


def test_a_run_is_silent_when_nobody_answers_and_running_while_epochs_complete(flown):
    overview = Checkpoint(flown.state).overview
    at, asked = overview.wall_time / 1e6, []

    def state(after: float) -> str:
        def ask(*_: Any, **__: Any) -> None:
            asked.append(after)

        return Pulse(flown.state, ask, clock=lambda: at + after).state(overview)

    assert [state(5), state(60)] == ["running", "silent"]
    assert asked == [60]


def test_who_is_silent_is_asked_ever_less_often(flown):
    overview, asked = Checkpoint(flown.state).overview, []
    at = overview.wall_time / 1e6

    def ask(*_: Any, **__: Any) -> None:
        asked.append(now)

    pulse = Pulse(flown.state, ask, clock=lambda: now)
    for second in range(30, 3_630):
        now = at + second
        pulse.state(overview)
    assert len(asked) < 20


def test_a_run_that_answers_is_running_though_it_has_nothing_to_do(flown):
    @dataclasses.dataclass
    class Answer:
        done: bool = True
        text: str = "running"
        epoch: int = 1

    overview = Checkpoint(flown.state).overview
    asked = Pulse(flown.state, lambda *_, **__: Answer(), clock=lambda: 9e9)
    assert asked.state(overview) == "running"


def test_a_run_of_this_process_is_asked_nothing_and_another_s_is(flown):
    overview = Checkpoint(flown.state).overview
    at, asked = overview.wall_time / 1e6 + 60, []

    def state(alive: Any) -> str:
        pulse = Pulse(flown.state, lambda *a, **_: asked.append(a[2]), alive, clock=lambda: at)
        return pulse.state(overview)

    assert [state(lambda _: True), state(lambda _: False)] == ["running", "silent"]
    assert asked == []
    assert state(lambda generation: None if generation == 1 else True) == "silent"
    assert asked == [1]


def test_a_run_that_has_said_that_it_ends_is_gone_at_once(flown):
    overview = Checkpoint(flown.state).overview
    pulse = Pulse(flown.state, lambda *_, **__: None, clock=lambda: overview.wall_time / 1e6)
    assert pulse.state(overview) == "running"
    pulse.ended(1)
    assert pulse.state(overview) == "silent"
    later = msgspec.structs.replace(overview, generation=2)
    assert pulse.state(later) == "running", "another run has begun"


@pytest.mark.parametrize("after", [1, 60])
def test_a_run_that_was_stopped_from_elsewhere_is_stopped_at_once(flown, after):
    @dataclasses.dataclass
    class Answer:
        done: bool = True
        said: str = "running"
        epoch: int = 1

    overview = Checkpoint(flown.state).overview
    now = overview.wall_time / 1e6 + after
    pulse = Pulse(flown.state, lambda *_, **__: Answer(), clock=lambda: now)
    assert pulse.state(overview) == "running"
    mailbox = flown.state.mailbox
    leave_run_end(mailbox, overview.generation, RunEnd("stopped", overview.epoch, 0))
    stands = pulse.state(overview)
    mailbox.remove(name for name in mailbox.names() if name.startswith("ended-"))
    assert stands == "stopped"


def test_before_the_first_epoch_everything_is_empty(page, flights):
    served = page(flights.state)
    now = served.now()

    assert (now["epoch"], now["culprit"], now["totals"]["rate"]) == (-1, None, None)
    assert served.get("/api/intervals", computation="Delays")["intervals"] == 0
    assert served.get("/api/panes", computation="totals")["panes"] == []
    assert served.get("/api/history")["epoch"] == []


def test_what_is_shown_follows_the_run(page, flights):
    served = page(flights.state)
    served.now()
    before = served.watcher.version
    served.watcher.look()
    assert served.watcher.version == before

    flights.go_on(2)
    now = served.now()
    assert served.watcher.version == before + 1
    assert now["epoch"] == Checkpoint(flights.state).epoch
    assert served.get("/api/history")["epoch"][-1] == now["epoch"]


def test_history_is_bounded_and_keeps_what_is_new(flown):
    found, (done, *_) = Points(), [Checkpoint(flown.state).ended.completion]
    for epoch in range(20_000):
        found._add(msgspec.structs.replace(done, epoch=epoch, wall_time_us=epoch * 1_000_000))

    assert len(found.points) <= 1_024
    assert len(found._recent) <= 61
    assert [point.epoch for point in found.points[-3:]] == [19_997, 19_998, 19_999]


def test_of_many_computations_those_furthest_behind_have_lines(flown):
    found, done = Points(), Checkpoint(flown.state).ended.completion
    many = {f"c{n:02}": n * 1_000_000 for n in range(40)}
    found._add(msgspec.structs.replace(done, after=LowWatermarks(many, {}, {})))
    columns = found.columns()

    assert list(columns["low"]) == [f"c{n:02}" for n in range(6)]
    assert columns["others"] == 34


def test_ten_thousand_intervals_are_a_few_hundred_cells():
    many = 10_000
    intervals = [
        Interval(id=n, start=n, end=n + 1, commit=n, chain=0, report=Report(hold_us=n + 1))
        for n in range(many)
    ]
    found = heat_of(intervals, {9_999: 3, 0: 1}, "commits", 1_000_000)

    assert (found["intervals"], found["each"]) == (many, 14)
    assert len(found["load"]) == len(found["lag"]) == 715 <= CELLS
    assert (found["load"][0], found["load"][-1], sum(found["load"])) == (1, 3, 4)
    assert len(json.dumps(found)) < 40_000


def test_load_counts_the_commits_of_the_last_minute(page, flown):
    heat = page(flown.state).get("/api/intervals", computation="worst")
    assert heat["unit"] == "commits in the last minute"
    assert 0 < sum(heat["load"]) < Checkpoint(flown.state)["worst"].commits


def test_load_is_time_in_user_code_where_a_run_has_written_it_down(page, flown):
    heat = page(flown.state).get("/api/intervals", computation="Delays")
    busy = dict(zip(heat["first"], heat["load"], strict=True))

    assert heat["unit"] == "% of the time in user code"
    assert (busy[0], busy[3], busy[1]) == (52.0, 8.5, 0)


def test_a_key_is_found_with_cells_timers_and_holds(page, flown):
    found = page(flown.state).get("/api/key", computation="Delays", key="JFK")

    cells = dict(found["cells"])
    assert found["found"]
    assert int(cells["minutes"]) > 0
    assert int(cells["carriers[DL]"]) > 0
    assert [timer["tag"] for timer in found["timers"]] == ["quiet"]
    assert len(found["holds"]) == 1


@pytest.mark.parametrize("key", ["nobody", "", "0xff", "\x00", "[[[[", SCRIPT * 50, "ü" * 9_000])
def test_a_key_that_is_not_there_is_no_error(page, flown, key):
    assert not page(flown.state).get("/api/key", computation="Delays", key=key)["found"]


@pytest.mark.parametrize("key", [b"\xff\x00", "Lukla " * 2_000], ids=["bytes", "long"])
def test_a_key_is_found_by_all_of_it(page, flights, key):
    flights.go_on(1)
    flights.heat(key)
    served, typed = page(flights.state), key_text(key)

    found = served.get("/api/key", computation="Delays", key=typed)
    assert dict(found["cells"])["wind"] == "3.5"
    assert not served.get("/api/key", computation="Delays", key=typed[:-2])["found"]
    assert served.now()["hot"][0]["key"] == shortened(typed, key)


def test_a_key_with_markup_is_data(page, flown):
    answer = page(flown.state).client.get(
        "/api/key", params={"computation": "Delays", "key": SCRIPT}
    )
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["key"] == SCRIPT


def test_a_computation_that_is_not_there_is_said(page, flown):
    answer = page(flown.state).client.get("/api/key", params={"computation": "Nobody", "key": "a"})
    assert answer.status_code == 404
    assert answer.json()["error"].startswith("no computation 'Nobody'; there are Alerts")


def test_panes_are_made_and_withdrawn(page, flown):
    found = page(flown.state).get("/api/panes", computation="totals", key="JFK")
    panes = found["panes"]

    def values(retraction: bool) -> dict[tuple[float, int], str]:
        mine = (pane for pane in panes if pane["retraction"] is retraction)
        return {(pane["start"], pane["index"]): pane["value"] for pane in mine}

    made, withdrawn = values(False), values(True)
    assert withdrawn
    assert all(made[pane] == value for pane, value in withdrawn.items() if pane in made)
    last = {start: max(n for of, n in made if of == start) for start, _ in made}
    assert not withdrawn.keys() & last.items(), "the last one of a window stands"
    assert found["open"], "the last window is not over"
    assert [pane["at"] for pane in panes] == sorted(pane["at"] for pane in panes)


def test_without_a_key_panes_are_of_one_that_emitted_lately(page, flown):
    found = page(flown.state).get("/api/panes", computation="totals")
    assert found["panes"]
    assert found["key"]


def test_groupings_are_named_those_with_windows_first(page, flown):
    assert page(flown.state).now()["groupings"] == ["totals", "worst", "Alerts"]


def test_stuck_code_is_said_while_its_worker_says_so(flights):
    flights.hang()
    (name,) = flights.state.mailbox.names()
    said = int(name.partition("-")[0])

    (found,) = stuck_in(flights.state.mailbox, lambda: said + 10_000_000)
    assert (found["computation"], found["key"]) == ("Alerts", "'JFK'")
    assert found["since"] == said // 1000 - 94_000
    assert "ask_gate(record.key)" in found["stack"]
    assert stuck_in(flights.state.mailbox, lambda: said + 90_000_000) == []


def test_what_else_lies_in_the_mailbox_is_passed_over(flights):
    for name in ("1-a.request", "x.stuck", "9999999999999999-b.stuck"):
        flights.state.mailbox.put(name, b"{")
    assert stuck_in(flights.state.mailbox, lambda: 9_999_999_999_999_999) == []


def test_epochs_by_part_pass_over_lines_that_say_nothing(flights):
    flights.go_on(3)
    path = flights.path / "metrics" / "epochs.jsonl"
    path.write_bytes(b'{"epoch": 1}\n[]\nnot json\n' + path.read_bytes() + b'{"epoch": 9, "at"')
    found = over_time(flights.state)["parts"]

    assert len(found["epoch"]) == len(found["seconds"]) == 3
    assert list(found["parts"]) == ["planning", "tasks", "sinks", "completing"]
    whole = [sum(values) for values in zip(*found["parts"].values(), strict=True)]
    assert whole == pytest.approx(found["seconds"], abs=0.002)


def test_lines_of_hundreds_of_computations_are_read(flights):
    path = flights.path / "metrics" / "epochs.jsonl"
    path.parent.mkdir(exist_ok=True)
    names = [f"computation {n}" for n in range(200)]
    shares = {str(interval): 0.015 for interval in range(64)}
    lines = [
        {
            "at": 1_000_000 * epoch, "epoch": epoch, "epoch_duration_seconds": 1.0,
            "hook_calls": {name: {"-10": 1 + epoch} for name in names},
            "hottest_keys": {name: {"k" * 200: 0.5} for name in names},
            "interval_shares": dict.fromkeys(names, shares),
        }
        for epoch in range(20)
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert len(json.dumps(lines[0])) > 200_000
    assert len(calls_in(flights.state)) == 200
    assert interval_shares(flights.state, names[0]).keys() == set(range(64))
    assert over_time(flights.state)["parts"]["epoch"] == [*range(20)]


def test_latency_over_time_is_of_the_calls_that_each_epoch_added(flights):
    flights.go_on(2)
    path = flights.path / "metrics" / "epochs.jsonl"
    line = json.loads(path.read_bytes().splitlines()[0])
    grown = ({"-3": 10}, {"-3": 10}, {"-3": 30}, {"-3": 30, "0": 40}, {"-1": 5})
    path.write_text(
        "".join(
            json.dumps(line | {"epoch": n, "at": n, "hook_calls": {"Delays": calls}}) + "\n"
            for n, calls in enumerate(grown)
        )
    )
    found = over_time(flights.state)["latency"]

    assert (found["of"], found["others"], found["wall"][-1]) == ("calls", 0, 0.004)
    assert found["p50"] == {"Delays": [0.125, None, 0.125, 1.0, 0.5]}
    assert found["p99"] == found["p50"]


def test_latency_in_real_time_is_of_the_steps_of_a_record(flights):
    flights.go_on(1)
    path = flights.path / "metrics" / "epochs.jsonl"
    line = json.loads(path.read_bytes())
    steps = {f"step {n}": 0.001 * n for n in range(9)}
    more = {f"step_{p}_seconds": steps for p in ("p50", "p95", "p99")}
    path.write_text(json.dumps(line | more) + "\n")
    found = over_time(flights.state)["latency"]

    assert (found["of"], found["others"]) == ("steps", 3)
    assert found["p95"] == {f"step {n}": [pytest.approx(0.001 * n)] for n in range(3, 9)}


def test_backlog_over_time_is_by_unit_and_stream(flights):
    flights.go_on(3)
    found = over_time(flights.state)["backlog"]

    assert {unit: list(streams) for unit, streams in found["units"].items()} == {
        "records": ["departures"], "files": ["weather"], "bytes": ["weather"],
    }  # fmt: skip
    assert found["units"]["files"]["weather"] == [3.0] * 3
    assert len(found["wall"]) == 3


def test_throughput_is_the_records_read_between_two_points(flown):
    done, found = Checkpoint(flown.state).ended.completion, Points()
    (name, stats), *_ = done.sources.items()
    for epoch, (second, records) in enumerate([(0, 0), (0, 5), (2, 25), (2, 25), (12, 25)]):
        known = {name: msgspec.structs.replace(stats, records=records)}
        entry = msgspec.structs.replace(
            done, epoch=epoch, wall_time_us=second * mr.SECOND, sources=known
        )
        found._add(entry)

    assert found.throughput() == {
        "others": 0, "wall": [2_000.0, 12_000.0], "read": {name: [10.0, 0.0]},
    }  # fmt: skip


def test_throughput_has_few_steps_over_a_long_time(flown):
    done, found = Checkpoint(flown.state).ended.completion, Points()
    for epoch in range(3_000):
        found._add(msgspec.structs.replace(done, epoch=epoch, wall_time_us=epoch * mr.SECOND))
    assert 120 <= len(found.throughput()["wall"]) <= 240


def test_what_a_page_is_sent_does_not_grow_with_the_epochs(flights):
    flights.go_on(1)
    path = flights.path / "metrics" / "epochs.jsonl"
    done, kept, sizes = Checkpoint(flights.state).ended.completion, Points(), []
    for epoch in range(12_000):
        kept._add(msgspec.structs.replace(done, epoch=epoch, wall_time_us=epoch * 1_000_000))
        if epoch in (5_999, 11_999):
            line = {"epoch": epoch, "at": epoch, "epoch_duration_seconds": 0.5}
            path.write_text("".join(json.dumps(line | {"epoch": n}) + "\n" for n in range(epoch)))
            bars = over_time(flights.state)["parts"]
            columns = kept.columns()
            assert len(bars["epoch"]) == len(bars["seconds"]) == 120
            assert len(columns["epoch"]) == len(columns["wall"]) <= 1_024
            sizes.append(len(json.dumps([bars, columns])))

    assert bars["epoch"][-1] == 11_998
    assert sizes[1] < 1.5 * sizes[0] < 200_000


def test_the_hottest_keys_are_those_of_the_last_whole_line(page, flights):
    assert page(flights.state).now()["hot"] == []
    flights.go_on(1)
    with (flights.path / "metrics" / "epochs.jsonl").open("ab") as file:
        file.write(b'{"hottest_keys": {"Delays": {"half a li')
    hot = page(flights.state).now()["hot"]

    assert [(one["computation"], one["key"]) for one in hot] == [
        ("Delays", "JFK"), ("totals", "JFK"), ("Delays", "ATL"), ("Delays", SCRIPT),
    ]  # fmt: skip
    assert hot[0]["share"] == 0.412


def test_secrets_of_a_location_are_not_shown(page, flown):
    assert page(flown.state).now()["checkpoint"] == "s3://bucket/runs"


def test_an_old_entry_that_is_damaged_is_a_gap_in_the_lines_and_no_more(page, flights):
    flights.go_on(3)
    whole = page(flights.state).get("/api/history")["epoch"]
    done = Checkpoint(flights.state).ended.completion
    for path in sorted((flights.path / "epochs").glob("*.json"))[:4]:
        path.write_bytes(b"{")
    found = Points()
    found.follow(flights.state.epochs)

    assert len(found.points) < len(whole)
    assert found.points[-1].epoch == done.epoch


def test_a_damaged_checkpoint_is_said_and_what_was_known_stays(page, flights):
    flights.go_on(2)
    served = page(flights.state)
    before = served.now()
    newest = max((flights.path / "epochs").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    now = served.now()

    assert now["state"] == "unreadable"
    assert newest.name in now["said"] or "entry" in now["said"]
    assert now["graph"] == before["graph"]
