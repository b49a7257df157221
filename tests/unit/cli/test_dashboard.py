"""``millrace dashboard``: what it serves, and what it refuses."""

import json
import urllib.request
from typing import Any

import pytest

from millrace.dashboard import Dashboard


def test_it_serves_a_checkpoint_until_it_is_ended(
    millrace: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.epoch("home", low_watermark=0)
    seen: list[Any] = []

    def wait(served: Dashboard) -> None:
        with urllib.request.urlopen(f"{served.url}api/now") as answer:
            seen.append(json.load(answer))
        raise KeyboardInterrupt

    monkeypatch.setattr(Dashboard, "wait", wait)
    shown = millrace("dashboard", str(checkpoint.path), "--port", "0")

    assert shown.exit_code == 0
    assert "is at http://127.0.0.1:" in shown.output
    assert "(read-only)" in shown.output
    assert (seen[0]["pipeline"], seen[0]["epoch"]) == ("pages", 0)


def test_a_token_may_come_from_the_environment(
    millrace: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dashboard, "wait", lambda _: None)
    monkeypatch.setenv("MILLRACE_DASHBOARD_TOKEN", "a-token-of-enough-letters")
    shown = millrace("dashboard", str(checkpoint.path), "--port", "0")

    assert shown.exit_code == 0
    assert "read-only" not in shown.output
    assert "a-token" not in shown.output


def test_no_checkpoint_is_refused_with_what_to_give(millrace: Any) -> None:
    shown = millrace("dashboard", "nowhere")
    assert shown.exit_code == 1
    assert "nowhere: no checkpoint, there is nothing at that path" in shown.output


def test_a_checkpoint_of_a_newer_format_is_refused(millrace: Any, checkpoint: Any) -> None:
    form = checkpoint.path / "FORMAT"
    said = json.loads(form.read_text())
    form.write_text(json.dumps({**said, "format": said["format"] + 1}))
    shown = millrace("dashboard", str(checkpoint.path))

    assert shown.exit_code == 1
    assert "newer" in shown.output or "format" in shown.output
