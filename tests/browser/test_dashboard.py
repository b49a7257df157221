"""The dashboard in Chromium: what it shows, that it follows a run, and that all can use it."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from dashboard_scene import SCRIPT, kept
from selenium.webdriver.common.keys import Keys

import millrace as mr
from millrace.dashboard import Dashboard
from millrace.inspect import Checkpoint

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def page(browser: Any, dashboard: Any) -> Any:
    """Return the page, drawn."""
    browser.open(dashboard.url)
    browser.until("flights", "pipeline")
    browser.until("Epochs ", "time-words")
    return browser


def test_it_names_each_thing_that_is_wrong(page, flights):
    assert page.text("state") == "running"
    assert page.text("checkpoint") == "/srv/runs/flights-2026"
    tiles = page.text("tiles").splitlines()
    said = dict(zip(tiles[::2], tiles[1::2], strict=True))
    assert (said["Dead letters"], said["Stuck calls"]) == ("1", "1")
    assert int(said["Late records"]) > 0

    # The key that holds the low watermark, and the way to it.
    assert "key 'JFK' of Delays" in page.one("#culprit .pin").text
    assert page.one(".node.pinned").get_attribute("data-id") == "Delays"
    lit = {edge.get_attribute("data-edge") for edge in page.all(".edge.lit[data-edge]")}
    assert lit == {"Delays>totals", "totals>Alerts"}
    assert "1 stuck" in page.one('[data-id="Alerts"]').text

    # Each edge says how fast and how far behind.
    labels = [edge.text.split("\n") for edge in page.all(".edge[data-edge]")]
    assert page.one('.edge[data-dead="Delays"]').text == "1 dead"
    assert len(labels) == 7
    assert all(rate.endswith("/s") and lag.endswith(" lag") for rate, lag in labels)

    pending = Checkpoint(flights.state).overview.computations["Delays"].pending_timers
    assert pending > 1
    delays = page.one('[data-id="Delays"]')
    assert f"behind · {pending} timers" in delays.text
    assert f", {pending} timers pending" in delays.get_attribute("aria-label")
    assert "timer" not in page.one('[data-id="injector:departures"]').text

    assert "1,284 records wait" in page.one('[data-id="injector:departures"]').text
    waits = "3 files, 5.1 MiB wait in its source"
    assert waits in page.one('[data-id="injector:weather"]').get_attribute("aria-label")
    calls = page.all("#calls tbody tr")
    assert [one.text for one in calls] == [
        "Alerts\n2 ms 125 ms 2 s", "Delays\n15 µs 61 µs 8 ms"
    ]  # fmt: skip
    bars = page.one("#calls tr:nth-child(2) .bars").get_attribute("aria-label")
    assert re.match(r"[\d,.k]+ below 3.8 µs, [\d,.k]+ below 7.6 µs, ", bars)
    assert len(page.all("#calls tr:nth-child(2) .bars rect")) == 20  # one axis for both

    assert page.one("#services-title").is_displayed()
    assert [one.text for one in page.all("#services tbody tr")] == [
        "Alerts 12.3k 17 2 96 0 no 31 ms 63 ms 500 ms"
    ]

    hottest = page.all("#hot-keys tbody tr")
    assert [one.text for one in hottest][:2] == ["JFK Delays 41 %", "JFK totals 33 %"]
    page.one("#stuck summary").click()
    assert "answer = ask_gate(record.key)" in page.one("#stuck pre").text
    assert len(page.all("#time-picture canvas")) == len(page.all("#epochs-picture canvas")) == 1
    assert "completing" in page.one("#epochs-picture .u-legend").text
    assert page.complaints() == []


def test_a_key_is_looked_up_and_what_it_holds_is_text(page):
    page.run("document.getElementById('key-text').value = 'JFK'")
    page.one("#key-form button").click()
    found = page.until("Cells of JFK in Delays", "key-found")
    assert "carriers[DL]" in found
    assert "Holds" in found

    field = page.one("#key-text")
    field.clear()
    field.send_keys(SCRIPT, Keys.ENTER)
    found = page.until("Cells of <script>", "key-found")
    assert SCRIPT in found
    assert page.all("#key-found script, #key-found img") == []
    assert page.driver.title == "flights · Millrace"
    assert page.complaints() == []

    field.clear()
    field.send_keys("0xff00", Keys.ENTER)
    assert "Nothing is kept of key 0xff00" in page.until("Nothing is kept", "key-found")


def test_keys_of_bytes_and_of_any_length_are_hot_and_are_found(page, flights):
    binary, huge = b"\xff\x00\xfe" + SCRIPT.encode(), "Lukla " * 2_000
    flights.heat(binary, huge)
    typed = f"0x{binary.hex()}"
    page.until(typed[:100], "hot-keys")
    rows = [row.find_elements("css selector", "td") for row in page.all("#hot-keys tbody tr")]
    hottest, after = [row[0].text for row in rows if row[1].text == "Delays"][:2]
    assert hottest.startswith(typed[:100])
    assert after.startswith("Lukla Lukla ")
    assert "(12,000 characters, hash " in after

    field = page.one("#key-text")
    for key, said in ((typed, typed), (huge, "Lukla Lukla ")):
        field.clear()
        page.run(f"document.getElementById('key-text').value = {key!r}")  # as if pasted
        field.send_keys(Keys.ENTER)
        found = page.until(f"Cells of {said}", "key-found")
        assert "wind\n3.5" in found or "wind 3.5" in found
        wide = page.run("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "a long key does not make the page wider"

    # What cannot be asked for is said, and not cut.
    page.run("document.getElementById('key-text').value = 'x'.repeat(60000)")
    field.send_keys(Keys.ENTER)
    assert "millrace state get" in page.until("60,000 characters", "key-found")
    assert page.complaints() == []


def test_throughput_backlog_and_latency_are_drawn_over_time(page):
    assert "now " in page.until("Records read a second", "throughput-words")
    legends = {
        name: [one.text for one in page.all(f"#{name}-picture .u-label")][1:]
        for name in ("throughput", "backlog", "latency")
    }
    assert legends == {
        "throughput": ["departures", "weather"], "backlog": ["departures"],
        "latency": ["Delays", "Alerts"],
    }  # fmt: skip
    assert re.search(r"now 1,[2-5]\d\d in all", page.text("backlog-words"))

    page.run("document.querySelector('#backlog-unit [value=bytes]').click()")
    page.until("now 5.1 MiB in all", "backlog-words")
    assert [one.text for one in page.all("#backlog-picture .u-label")][1:] == ["weather"]
    before = page.run("return document.querySelector('#latency-picture canvas').toDataURL()")
    page.run("document.querySelector('#latency-share [value=p50]').click()")
    page.until("Of 100 calls of user code in an epoch, 50 take less", "latency-words")
    after = page.run("return document.querySelector('#latency-picture canvas').toDataURL()")
    assert after != before
    assert page.complaints() == []


def test_dead_letters_say_why_and_of_what(page):
    dead = page.one('[data-id="dead letters:"]')
    assert dead.text.splitlines()[:2] == ["dead letters", "1 dead letter"]
    assert dead.text.splitlines()[2].startswith("ValueError: a flight")
    said = "ValueError: a flight cannot leave before it is there"
    assert said in dead.get_attribute("aria-label")
    (row,) = page.all("#letters-table tbody tr")
    assert said in row.text
    sample = " ".join(row.text.split())
    assert "key 'BOS' value {'airport': 'BOS', 'carrier': 'B6', 'delay': -1}" in sample


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("#hot-keys button.key", "Cells of JFK in Delays"),
        ("#culprit button.key", "Cells of JFK in Delays"),
        ("#letters-table button.key", "Cells of BOS in Delays"),
        ("#stuck button.key", "JFK in Alerts"),
    ],
    ids=["hot", "culprit", "dead letter", "stuck"],
)
def test_a_key_is_clicked_on_for_its_state(page, where, found):
    page.run("document.querySelector('#stuck details').open = true")
    key = found.split()[-3]
    buttons = f"[...document.querySelectorAll('{where}')]"
    page.run(f"{buttons}.find((one) => one.textContent.includes('{key}')).focus()")
    page.press(Keys.ENTER)
    assert found in page.until(found, "key-found")
    assert page.run("return document.activeElement.className") == "key", "it keeps the focus"


@pytest.mark.parametrize(
    "name", ["W" * 90, "漢" * 60, "so long a name " * 6], ids=["wide", "han", "words"]
)
def test_text_stays_in_its_box_at_any_length(browser, run, tmp_path, name):
    p = mr.Pipeline(name)
    stream = p.inject(f"{name}in", format=dict)
    p.dead_letter("broken")
    keyed = stream.key_by("key").window(
        mr.FixedWindows("1 min"), trigger=mr.Repeat(mr.AfterCount(1))
    )
    keyed.sum("n").to("totals")
    p.add(Named, name=f"{name}of")
    p.sink("outs", print)
    harness, state = kept(p, tmp_path / "ckpt")
    with harness as h, Dashboard(state, f"/srv/{name}", run, token=TOKEN) as served:
        for minute in range(1, 4):
            h.advance_clock(minute * mr.MINUTE)
            rows = [{"key": name, "n": 10**15}, {"key": name, "n": "not a number" * 40}]
            h.inject(f"{name}in", [(row, minute * mr.MINUTE) for row in rows])
        for size in ((1440, 900), (620, 900)):
            browser.open(served.url, size=size)
            browser.until("Epochs ", "time-words")
            browser.run(f"document.getElementById('key-text').value = '{name}'")
            browser.one("#key-form button").click()
            browser.until("Cells of", "key-found")
            assert browser.run(_OUTSIDE) == []
            assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


def test_panes_are_drawn_and_withdrawn(page):
    page.one("#panes-key").send_keys("JFK", Keys.ENTER)
    page.until("key JFK", "panes-picture")
    assert len(page.all(".pane.withdrawn text")) >= 1
    assert len(page.all(".lane .pane.EARLY")) >= 1
    assert len(page.all(".pane.open")) >= 1


def test_it_follows_the_run_and_says_when_it_is_gone(page, flights, run):
    epoch, elements = page.text("epoch"), page.run("return document.querySelectorAll('*').length")
    flights.go_on(3)
    last = f"epoch {flights.harness.checkpoint().epoch:,}"
    page.until(last, "epoch")
    page.until(f"to {flights.harness.checkpoint().epoch}.", "time-words")
    assert not epoch.startswith(last)
    # It draws anew, and piles nothing up.
    assert page.run("return document.querySelectorAll('*').length") < 1.2 * elements + 50

    run.going = False  # as after kill -9: nobody says so
    page.until("no run answers", "state")
    assert page.text("epoch").startswith(last)
    assert page.one(".node.pinned").get_attribute("data-id") == "Delays"
    assert all(not button.is_enabled() for button in page.all("#acts button"))


def test_a_dashboard_that_ends_is_said(page, dashboard):
    dashboard.close()
    page.until("connection lost", "state")
    assert "what is shown is what was known last" in page.text("trouble")


def test_to_stop_takes_the_token(page, run):
    page.one('[data-act="stop"]').click()
    page.one("#token").send_keys("a-token-that-is-wrong", Keys.ENTER)
    page.until("That is not this dashboard's token.", "dialog-said")
    assert run.asked == []

    page.one("#token").send_keys(TOKEN, Keys.ENTER)
    page.until("stopped after epoch 41", "dialog-said")
    assert run.asked == [("stop", 1, "")]
    page.one("#dialog-no").click()

    page.one('[data-act="pause"]').click()
    page.run("document.getElementById('stream').value = 'weather'")
    page.one("#dialog-yes").click()
    page.wait(lambda: len(run.asked) == 2)
    assert run.asked[1] == ("pause", 1, "weather")
    page.one("#dialog-no").click()

    for what, told, about in (
        ("rate-limit", "500", "departures=500"), ("savepoint", "before", "before"),
    ):  # fmt: skip
        page.one(f'[data-act="{what}"]').click()
        page.one("#dialog-yes").click()
        assert page.one("#dialog").get_attribute("open"), "nothing is asked without it"
        page.one("#told").send_keys(told, Keys.ENTER)
        page.wait(lambda what=what: run.asked[-1][0] == what)
        assert run.asked[-1][2] == about
        page.until("after epoch 41", "dialog-said")
        page.one("#dialog-no").click()
    assert len(run.asked) == 4


def test_where_others_can_ask_nothing_is_shown_without_the_token(browser, flights, run):
    with Dashboard(flights.state, "flights", run, host="0.0.0.0", token=TOKEN) as served:
        browser.open(f"http://127.0.0.1:{served.port}/")
        browser.until("it takes its token to read", "dialog-text")
        assert browser.text("pipeline") == "Millrace"
        browser.one("#token").send_keys(TOKEN, Keys.ENTER)
        browser.until("flights", "pipeline")
        browser.until("Epochs ", "time-words")
    browser.run("sessionStorage.clear()")


def test_it_is_used_without_a_mouse(page):
    page.press(Keys.TAB)
    assert page.driver.switch_to.active_element.text == "Skip to the graph"
    page.press(Keys.ENTER, Keys.TAB)
    first = page.driver.switch_to.active_element
    assert first.get_attribute("data-id") == "Delays"
    assert first.get_attribute("aria-label").startswith("Computation Delays: ")
    page.press(Keys.TAB, Keys.ENTER)
    chosen = page.run("return document.getElementById('heat-computation').value")
    assert chosen == page.driver.switch_to.active_element.get_attribute("data-id") != "Delays"

    page.run("document.getElementById('heat').focus()")
    page.press(Keys.ARROW_RIGHT)
    page.until("Interval 0:", "heat-words")
    page.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "Interval 2:" in page.until("Interval 2:", "heat-words")
    unnamed = page.run(
        "return [...document.querySelectorAll('input, select, button, canvas, section')].filter("
        "e => e.offsetParent && !e.closest('[role=img]') && !e.labels?.length && !e.ariaLabel"
        " && !e.getAttribute('aria-labelledby') && !e.textContent.trim()).map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_all_that_can_be_used_is_reached_by_tab_and_keeps_the_focus(page, flights):
    page.run("document.querySelector('#stuck details').open = false")
    usable = page.run(_USABLE)
    reached = []
    for _ in range(len(usable) + 10):
        page.press(Keys.TAB)
        here = page.run(f"return {_NAMED}(document.activeElement)")
        reached.append(here)
    assert [one for one in usable if one not in reached] == []
    places = [reached.index(one) for one in usable if one != "checked radio"]
    assert places == sorted(places), "in the order in which they stand"

    page.run("document.querySelector('#stuck summary').focus()")
    page.press(Keys.ENTER)
    assert "ask_gate" in page.one("#stuck pre").text
    flights.go_on(1)
    page.until(f"epoch {flights.harness.checkpoint().epoch:,}", "epoch")
    assert page.run("return document.activeElement.tagName") == "SUMMARY", "drawn anew"
    assert page.one("#stuck details").get_attribute("open")

    page.run("document.getElementById('key-computation').focus()")
    page.press("D", Keys.TAB, "JFK", Keys.ENTER)
    page.until("Cells of JFK in Delays", "key-found")

    page.run("document.querySelector('[name=heat-by]:checked').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert page.run("return document.querySelector('[name=heat-by]:checked').value") == "lag"

    page.run("""document.querySelector('[data-act="drain"]').focus()""")
    page.press(Keys.ENTER)
    assert page.run("return document.activeElement.id") == "token"
    page.press(Keys.ESCAPE)
    assert not page.one("#dialog").get_attribute("open")
    assert page.run("return document.activeElement.dataset.act") == "drain"


def test_it_turns_dark_with_the_rest_of_the_screen(page):
    def colours() -> list[Any]:
        return page.run(
            "const pen = document.getElementById('heat').getContext('2d');"
            "const css = (of) => getComputedStyle(document.querySelector(of));"
            "return [css('body').backgroundColor, css('body').color, css('.card').backgroundColor,"
            " css('.node rect').fill, css('.edge .rate').fill, css('#key-text').backgroundColor,"
            " [...pen.getImageData(8, 8, 1, 1).data].join(), "
            " document.querySelector('#time-picture canvas').toDataURL()]"
        )

    page.until("Point at one", "heat-words")
    light = colours()
    page.scheme(dark=True)
    page.wait(lambda: not set(light) & set(colours()))
    page.scheme(dark=False)
    page.wait(lambda: colours() == light)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_can_be_read_in_the_light_and_in_the_dark(browser, dashboard, dark):
    browser.open(dashboard.url, dark=dark, size=(1440, 1000))
    browser.until("Epochs ", "time-words")
    contrasts = browser.run(Path(__file__).with_name("contrasts.js").read_text())
    assert len(contrasts) > 100
    assert {what: ratio for what, ratio in contrasts.items() if ratio < 4.5} == {}
    ground = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(14, 20, 19)") is dark
    wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, "the page is not wider than the window"
    _picture(browser, f"dashboard-{'dark' if dark else 'light'}.png")


def test_it_fits_a_narrow_window(browser, dashboard):
    browser.open(dashboard.url, size=(620, 900))
    browser.until("Epochs ", "time-words")
    assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0


def _picture(browser: Any, name: str) -> None:
    """Write a picture for the documents, if that is asked for."""
    if folder := os.environ.get("PICTURES"):
        browser.run("document.getElementById('panes-key').value = 'JFK'")
        browser.run("document.querySelector('#panes-form button').click()")
        browser.one("#key-text").send_keys("JFK", Keys.ENTER)
        browser.until("Cells of JFK", "key-found")
        browser.until("key JFK", "panes-picture")
        browser.run("document.activeElement.blur()")
        tall = browser.run("return document.documentElement.scrollHeight")
        size = {"width": 1440, "height": tall, "deviceScaleFactor": 1, "mobile": False}
        browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.driver.save_screenshot(str(Path(folder) / name))
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class Named(mr.Computation):
    """Keeps what comes under a name of its own."""

    inputs = {"totals": mr.by_key()}
    outputs = {"outs": int}
    last = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.last.set(record.value)
        self.produce("outs", record.value)


#: Texts that reach out of their box of a picture, and things that reach out of their card.
_OUTSIDE = """
const out = (one, box) => {
  const a = one.getBoundingClientRect(), b = box.getBoundingClientRect();
  return a.width > 0 && (a.right > b.right + 1 || a.left < b.left - 1 || a.bottom > b.bottom + 1);
};
const boxes = [...document.querySelectorAll('.node, .edge, .pane.open')]
  .filter((g) => g.querySelector('rect'))
  .flatMap((g) => [...g.querySelectorAll('text')].filter((t) => out(t, g.querySelector('rect'))));
const cards = [...document.querySelectorAll('.card, .tiles > div, header')].flatMap((card) =>
  [...card.querySelectorAll(':not(svg *)')].filter((e) => e.checkVisibility() && out(e, card)
    && !e.closest('.picture > *, .hidden, .scroll, .u-wrap, nav a') && e.tagName !== 'OPTION'));
const scrolled = [...document.querySelectorAll('.scroll')].filter(
  (e) => e.scrollWidth > e.clientWidth + 1);
return [...boxes, ...cards, ...scrolled].map(
  (e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`);
"""

#: How a test calls a thing that can be used.
_NAMED = """(e => e.type === 'radio' ? 'checked radio'
  : e.dataset.of ? `${e.closest('[id]').id} ${e.dataset.of}` : e.id || e.dataset.id || e.dataset.act
  || `${e.tagName} ${e.textContent.slice(0, 20)}`)"""

#: All that can be used now, in the order of the page; of radio buttons Tab comes to one.
_USABLE = f"""
return [...document.querySelectorAll('a[href], button, select, input, summary, [tabindex="0"]')]
  .filter((e) => e.checkVisibility() && !e.disabled && (e.type !== 'radio' || e.checked))
  .map({_NAMED});
"""
