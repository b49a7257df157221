"""``millrace state`` on checkpoints on disk."""

import json
from typing import Any

import pytest

import millrace as mr

NAME = "Counter[bold]"


@pytest.fixture
def ran(checkpoint: Any) -> Any:
    """Return a checkpoint after three epochs: a page comes again in the second."""
    checkpoint.epoch("home", "7", at=30, low_watermark=0)
    checkpoint.epoch("home", at=31, low_watermark=0)
    checkpoint.epoch("\x1b[31mred", at=40, low_watermark=0)
    return checkpoint


def lines(shown: Any) -> list[Any]:
    assert shown.exit_code == 0, shown.output
    return [json.loads(line) for line in shown.output.splitlines()]


def test_get_shows_cells_timers_and_holds_of_a_key(millrace: Any, ran: Any) -> None:
    shown = millrace("state", "get", str(ran.path), NAME, "home")

    assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["computation", NAME] in rows
    assert ["key", "home"] in rows
    assert ["count", "2"] in rows
    assert ["report", "1970-01-01T00:01:00Z", "LOW_WATERMARK", "100", "-"] in rows
    assert ["held", "at", "timer"] in rows, "not to be taken for a timer's instant"
    assert ["1970-01-01T00:00:00.000031Z", "-"] in rows


def test_get_reads_an_earlier_epoch_by_its_number(millrace: Any, ran: Any) -> None:
    said = {
        epoch: lines(
            millrace("state", "get", str(ran.path), NAME, "home", "--json", "--epoch", epoch)
        )[0]
        for epoch in ("0", "1")
    }

    assert said["0"]["cells"] == {"count": 1}
    assert said["1"]["cells"] == {"count": 2}
    assert [hold["at"] for hold in said["1"]["holds"]] == [31]


def test_a_key_that_looks_like_json_is_found_as_text_too(millrace: Any, ran: Any) -> None:
    for written in ("7", '"7"'):
        (said,) = lines(millrace("state", "get", str(ran.path), NAME, written, "--json"))
        assert (said["key"], said["cells"]) == ("7", {"count": 1})


def test_get_of_a_key_of_which_nothing_is_kept_fails_with_what_was_looked_for(
    millrace: Any, ran: Any
) -> None:
    shown = millrace("state", "get", str(ran.path), NAME, "8")

    assert shown.exit_code == 1
    assert "nothing is kept of key int 8 or str '8' in 'Counter[bold]', as of epoch 2" in (
        shown.output
    )


def test_scan_lists_every_key_and_what_is_pending(millrace: Any, ran: Any) -> None:
    found = lines(millrace("state", "scan", str(ran.path), NAME, "--json"))
    timers = lines(millrace("state", "scan", str(ran.path), NAME, "--json", "--what", "timers"))
    holds = lines(millrace("state", "scan", str(ran.path), NAME, "--json", "--what", "holds"))

    assert {one["key"]: one["cells"]["count"] for one in found} == {
        "home": 2,
        "7": 1,
        "\x1b[31mred": 1,
    }
    assert [one["hash"] for one in found] == sorted(one["hash"] for one in found)
    assert len(timers) == 6
    assert {one["key"]: one["at"] for one in holds} == {"home": 31, "7": 30, "\x1b[31mred": 40}


def test_a_table_says_that_it_is_cut_and_prints_no_control_characters(
    millrace: Any, ran: Any
) -> None:
    cut = millrace("state", "scan", str(ran.path), NAME, "--limit", "2").output
    whole = millrace("state", "scan", str(ran.path), NAME).output

    assert "These are the first 2; --limit 0 shows all" in cut
    assert '"\\u001b[31mred"' in whole
    assert "\x1b" not in whole
    assert "first" not in whole


@pytest.mark.parametrize(
    "asked",
    [("get", "p", "sums", "1"), ("scan", "p", "sums"), ("scan", "p", "sums", "--what", "windows")],
)
def test_of_windows_kept_as_columns_there_are_no_keys_but_chunks(
    millrace: Any, monkeypatch: Any, asked: tuple[str, ...]
) -> None:
    p = mr.Pipeline("p")
    keyed = p.inject("events", format=int).key_by(lambda value: value % 2)
    keyed.window(mr.FixedWindows(100)).sum().to("sums")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("events", [(1, 10)])
        monkeypatch.setattr("millrace.cli.state.state_at", lambda _: h._durable)
        shown = millrace("state", *asked)

    assert "columns, of all keys together" in shown.output
    assert "--what chunks" in shown.output


def test_windows_of_a_key_are_shown_by_their_times(millrace: Any, monkeypatch: Any) -> None:
    p = mr.Pipeline("p")
    keyed = p.inject("pages").key_by("user")
    keyed.window(mr.Sessions("5 min"), mr.early("1 min")).group("page").to("visits")
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("pages", [({"user": "ann", "page": "/"}, 0)])
        monkeypatch.setattr("millrace.cli.state.state_at", lambda _: h._durable)
        shown = millrace("state", "get", "p", "visits", "ann").output

    rows = [line.split() for line in shown.splitlines()]
    assert ["1970-01-01T00:00:00Z", "1970-01-01T00:05:00Z", "1", "1", "0", '["/"]'] in rows
    assert "coder" not in shown, "what finds the windows is of no use to anybody"


class Named(mr.Computation):
    """Has cells with the names of columns of what is pending."""

    inputs = {"pages": mr.by("user")}
    outputs = {}
    at = mr.ValueState(int)
    timer = mr.ValueState(int)
    tag = mr.ValueState(str)
    domain = mr.ValueState(list[str])
    end = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.at.set(7)
        self.timer.set(8)
        self.tag.set("9")
        self.domain.set(["a"])


def test_a_cell_may_be_called_as_a_column_of_what_is_pending(
    millrace: Any, monkeypatch: Any
) -> None:
    p = mr.Pipeline("p")
    p.inject("pages")
    p.add(Named)
    with mr.testing.Harness(p, intervals=1) as h:
        h.inject("pages", [({"user": "ann"}, 0)])
        monkeypatch.setattr("millrace.cli.state.state_at", lambda _: h._durable)
        shown = millrace("state", "scan", "p", "Named")

    assert shown.exit_code == 0, shown.exception
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["key", "at", "domain", "end", "tag", "timer"] in rows
    assert ["ann", "7", '["a"]', "-", '"9"', "8"] in rows


def test_a_scan_that_finds_nothing_says_so(millrace: Any, ran: Any) -> None:
    shown = millrace("state", "scan", str(ran.path), NAME, "--what", "chunks")

    assert shown.output.endswith("It keeps no chunks.\n")


def test_diff_tells_keys_by_what_they_were_and_are(millrace: Any, ran: Any) -> None:
    def diff(*between: str) -> Any:
        return millrace("state", "diff", str(ran.path), NAME, "--from-epoch", *between)

    found = lines(diff("0", "--json"))
    assert {one["key"]: (one["before"], one["after"]) for one in found} == {
        "home": ({"count": 1}, {"count": 2}),
        "\x1b[31mred": (None, {"count": 1}),
    }
    rows = [line.split() for line in diff("0", "--to-epoch", "1").output.splitlines()]
    assert rows[-1] == ["home", "count", "1", "2"]
    assert "Nothing has changed." in diff("2").output
    assert "--from-epoch 2 is later than epoch 1" in diff("2", "--to-epoch", "1").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("get", "{}", "Count", "home"), "no computation 'Count'; there are Counter[bold]"),
        (("scan", "{}", NAME, "--epoch", "9"), "epoch 9 is not in the epoch log"),
        (("scan", "{}/none", NAME), "no checkpoint, there is nothing at that path"),
    ],
)
def test_what_is_not_there_is_said(
    millrace: Any, ran: Any, arguments: tuple[str, ...], said: str
) -> None:
    shown = millrace("state", *(each.format(ran.path) for each in arguments))

    assert (shown.exit_code, said in shown.output) == (1, True), shown.output


def test_a_key_of_a_megabyte_is_cut_where_people_read_and_whole_in_json(
    millrace: Any, checkpoint: Any
) -> None:
    # A shell passes at most 128 KiB as an argument; here the command runs in the same process.
    long = "x" * (1 << 20)
    checkpoint.epoch(long, at=30, low_watermark=0)
    path = str(checkpoint.path)

    got = millrace("state", "get", path, NAME, long)
    assert got.exit_code == 0
    assert "1,048,576 characters, hash" in got.output
    nobody = millrace("state", "get", path, NAME, long + "y")
    assert nobody.exit_code == 1
    (one,) = lines(millrace("state", "scan", path, NAME, "--json"))
    said = {
        what: millrace("state", "scan", path, NAME, "--what", what).output
        for what in ("cells", "timers", "holds")
    }
    # Rows of cells have a digest of so long a key, and no more.
    assert one["key"] is None
    assert f"(hash {one['hash']})" in said["cells"]
    assert f"hash {one['hash']})" in got.output
    assert "xxx..." in said["timers"]
    assert "xxx..." in said["holds"]
    assert max(map(len, (got.output, nobody.output, *said.values()))) < 2_000
    (held,) = lines(millrace("state", "scan", path, NAME, "--json", "--what", "holds"))
    assert held["key"] == long


def test_binary_keys_are_hexadecimal_and_can_be_typed(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch(b"\x00\xff<b>", at=30, low_watermark=0)
    path = str(checkpoint.path)

    assert "0x00ff3c623e" in millrace("state", "scan", path, NAME).output
    (one,) = lines(millrace("state", "scan", path, NAME, "--json"))
    (got,) = lines(millrace("state", "get", path, NAME, one["key"], "--json"))
    assert one["key"] == got["key"] == "0x00ff3c623e"
    assert got["cells"] == {"count": 1}
