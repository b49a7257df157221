"""What the page is sent: instants as milliseconds, and texts of a length that a page can show."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from millrace.inspect import as_json, key_text
from millrace.inspect.json_text import KEY_TEXT_MAX
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

#: More of a value than this is for ``millrace state get --json``.
_TEXT_MAX: Final = 2_000
#: Of a URL, who may read it: it stands before the host, and after a question mark.
_SECRETS: Final = re.compile(r"(?<=://)[^/@]*@|\?.*$", re.DOTALL)


def millis(us: int | None) -> float | None:
    """Return an instant as a browser has it; None for none, before time, and the end of time.

    >>> millis(1_500), millis(None), millis(MAX_TIMESTAMP)
    (1.5, None, None)
    """
    if us is None or not MIN_TIMESTAMP < us < MAX_TIMESTAMP:
        return None
    return us / 1000


def behind(low_watermark_us: int, newest_us: int) -> float | None:
    """Return how many seconds a low watermark is behind the newest record; None if not known.

    >>> behind(4_000_000, 6_000_000), behind(MAX_TIMESTAMP, 5), behind(MIN_TIMESTAMP, 5)
    (2.0, 0.0, None)
    """
    if MIN_TIMESTAMP in (low_watermark_us, newest_us):
        return None
    return max(0, newest_us - low_watermark_us) / 1e6


def one_line(value: Any) -> str:
    """Return a value as one line of text, cut where a page has no room."""
    return cut("-" if value is None else as_json(value).decode())


def key_line(key: Any) -> str:
    """Return a key as text, cut likewise; of one that is too long for its row there is a digest."""
    return "(a key of more than 159 bytes)" if key is None else cut(key_text(key))


def whole(text: str) -> str | None:
    """Return the text of a key as it is looked up; None if it was shortened.

    >>> whole("ann"), whole("a" * 500)
    ('ann', None)
    """
    return text if len(text) <= KEY_TEXT_MAX else None


def typed(written: str) -> str | None:
    """Return a key as it is looked up, given its ``repr``; None if that was cut, or is no key's.

    >>> typed("'ann'"), typed("('ann', 7)"), typed("'an..."), typed("<object>")
    ('ann', '["ann",7]', None, None)
    """
    try:
        key = ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return whole(key_text(key))


def cut(text: str) -> str:
    """Return a text of at most some thousand characters.

    >>> len(cut("x" * 5_000)), cut("tea")
    (2001, 'tea')
    """
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def without_secrets(location: str) -> str:
    """Return a path or URL without what gives access to it.

    >>> without_secrets("s3://key:secret@bucket/runs/a?token=1"), without_secrets("/runs/a")
    ('s3://bucket/runs/a', '/runs/a')
    """
    return _SECRETS.sub("", location) if "://" in location else location
